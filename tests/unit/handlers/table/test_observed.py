"""Transactions that a watcher reports: their writers know nothing of lakewarden, and nothing can stop them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewarden.events import Abort, CommitCompleted, ConflictDetected, Marker
from lakewarden.handlers.table.effects import AcquireLock, Warn
from lakewarden.handlers.table.invariants import check_invariants
from lakewarden.handlers.table.memory import largest_transaction
from lakewarden.handlers.table.state import LATE_COMPLETION_SECONDS
from lakewarden.handlers.table.step_context import FORGOTTEN
from lakewarden.handlers.table.transactions import Phase
from tests.unit.handlers.table.world import World, facts, m, world

HUDI, OTHER = "hudi:20261122135446024", "hudi:20261122135643314"


def observe(w: World, transaction: str = HUDI, *scope: Marker, **fields: Any) -> World:
    return w.intent(transaction, *scope, **{"observed": True, "writer": transaction, **fields})


def land(w: World, transaction: str = HUDI, *markers: Marker) -> World:
    """The watcher reports that the transaction has committed."""
    return w.read(w.event(CommitCompleted, transaction, markers=markers, version=transaction[5:]))


# -- conflicts


def test_a_writer_of_the_gate_loses_to_an_observed_one_although_it_is_older() -> None:
    """The observed writer reads no decisions, so only one of the two can stop."""
    w = observe(world().intent("A").touch("A", m("p/f"))).touch(HUDI, m("p/f"))

    assert w.aborted == {"A": "conflict"}
    (entry,) = w.one(Abort).conflicts
    assert (entry.other_transaction, entry.other_writer, entry.file_group) == (HUDI, HUDI, "f")
    assert w.reports == [("A", HUDI)]
    assert w.phase(HUDI) is Phase.OBSERVED


@pytest.mark.parametrize("first", ["observed", "gate"])
def test_neither_priority_nor_protection_wins_against_an_observed_transaction(first: str) -> None:
    w = world(max_losses=1).intent("W").intent("A", writer="w").touch("W", m("p/f")).touch("A", m("p/f"))
    assert w.state.has_lost_enough("w")

    w.abandon("W").intent("B", writer="w", priority=9)
    observe(w)
    order = [HUDI, "B"] if first == "observed" else ["B", HUDI]
    for each in order:
        w.touch(each, m("p/f"))

    assert w.phase("B") is Phase.ABORTED
    assert w.phase(HUDI) is Phase.OBSERVED


def test_a_granted_transaction_is_not_aborted_for_an_observed_one() -> None:
    """It may be publishing. The table format's own check decides between the two."""
    w = observe(world().intent("A").lock().touch("A", m("p/f")).request("A")).touch(HUDI, m("p/f"))

    assert w.effects == []
    assert w.phase("A") is Phase.GRANTED


def test_between_two_observed_transactions_a_conflict_is_reported_once() -> None:
    w = observe(observe(world()), OTHER).touch(HUDI, m("p/f"), m("p/g"))

    w.touch(OTHER, m("p/f"))
    assert w.reports == [(OTHER, HUDI)]
    assert w.one(ConflictDetected).victim_age_seconds == 0
    assert w.aborted == {}
    assert w.touch(OTHER, m("p/g")).reports == []


def test_each_pair_of_observed_transactions_is_reported_when_one_lands() -> None:
    third = "hudi:3"
    w = (
        observe(observe(observe(world().intent("A")), OTHER), third)
        .touch(HUDI, m("p/f"))
        .touch(third, m("q/f"))
    )

    land(w, OTHER, m("p/f"), m("q/f"))

    assert w.reports == [(HUDI, OTHER), (third, OTHER)]


def test_the_observed_transaction_that_lands_first_wins_the_report() -> None:
    w = observe(observe(world()), OTHER).touch(HUDI, m("p/f"))

    land(w, OTHER, m("p/f"))

    assert w.reports == [(HUDI, OTHER)]
    assert w.one(ConflictDetected).kind == "commit"
    assert w.phase(HUDI) is Phase.OBSERVED


def test_with_first_committer_an_observed_transaction_conflicts_once_it_has_landed() -> None:
    w = observe(world(policy="first-committer").intent("A").touch("A", m("p/f"))).touch(HUDI, m("p/f"))
    assert w.aborted == {}

    assert land(w).aborted == {"A": "conflict"}


def test_the_rule_of_the_observed_transaction_applies() -> None:
    """Hudi permits appends beside a running compaction. A delete of what it rewrites conflicts."""
    w = observe(world(), HUDI, m("p/f"), m("p/g"), conflict_rule="deleted-file").intent("A").intent("B")

    assert w.touch("A", m("p/f", "append")).aborted == {}
    assert w.touch("B", m("p/g", "delete")).aborted == {"B": "conflict"}


# -- no answer, no grant, no lock


def test_an_observed_intent_gets_no_answer_and_no_lock() -> None:
    """Its writer takes a lock of its own. An agent that held the same one would stop it."""
    w = observe(world(), priority=100, lock="s3://elsewhere/lock.json", admission="queued")

    assert w.effects == []
    assert w.phase(HUDI) is Phase.OBSERVED
    assert w.intent("A").of(AcquireLock) == [AcquireLock()]


def test_an_observed_transaction_is_never_granted() -> None:
    w = observe(world().intent("A").lock()).request(HUDI)

    assert w.granted == []
    assert w.one(Warn).detail == "a watcher reports this transaction, so it is never granted"
    assert w.complete(HUDI, grant="0:0").one(Warn).event == "commit-without-grant"
    assert w.phase(HUDI) is Phase.OBSERVED


def test_a_writer_of_the_gate_can_not_report_its_commit_without_its_grant() -> None:
    w = world().intent("A").lock().touch("A", m("p/f")).request("A")

    land(w, "A")

    assert w.one(Warn).detail == "the completion names no grant, and the transaction is not observed"
    assert w.phase("A") is Phase.GRANTED


def test_an_observed_intent_ends_no_transaction_of_a_writer_with_the_same_name() -> None:
    w = world().intent("A", writer="ingest")

    assert observe(w, writer="ingest").aborted == {}
    assert w.intent("B", writer="ingest").aborted == {"A": "superseded"}


def test_a_lock_that_is_gone_or_refused_concerns_no_observed_transaction() -> None:
    w = observe(world().intent("A"))

    assert w.forbid_lock().aborted == {"A": "not-allowed"}
    assert w.intent("B").withhold_lock().aborted == {"B": "lock-refused"}


# -- its commit


def test_the_commit_of_an_observed_transaction_aborts_those_that_began_before() -> None:
    """Its footprint may come with the completion alone: the watcher saw no marker."""
    w = observe(world().intent("A").touch("A", m("p/f")))

    land(w, HUDI, m("p/f"))

    assert w.aborted == {"A": "conflict"}
    assert w.one(Abort).conflicts[0].kind == "commit"


def test_a_transaction_that_began_after_an_observed_commit_does_not_meet_it() -> None:
    w = observe(world().intent("A")).touch(HUDI, m("p/f"))
    land(w).intent("B")

    assert w.touch("B", m("p/f")).aborted == {}
    assert w.touch("A", m("p/f")).aborted == {"A": "conflict"}


def test_an_observed_commit_is_in_no_ledger() -> None:
    w = observe(world(), batch_id=7)

    assert land(w).effects == []
    assert w.state.ledger == {}


def test_a_repeated_report_of_a_commit_changes_nothing() -> None:
    """Two watchers say the same, and one that was restarted says it again."""
    w = land(observe(world().intent("A")), HUDI, m("p/f")).intent("B").touch("B", m("p/f"))

    before = facts(w.state)
    land(w, HUDI, m("p/f"), m("p/g"))

    assert w.effects == []
    assert facts(w.state) == before


def test_a_commit_that_the_agent_does_not_know_is_ignored_without_a_warning() -> None:
    """A watcher that was restarted repeats the table's last commits. They are no news."""
    w = world().intent("A").touch("A", m("p/f"))

    assert land(w, OTHER, m("p/f")).effects == []


def test_an_observed_rollback_ends_the_transaction() -> None:
    w = observe(world()).touch(HUDI, m("p/f")).abandon(HUDI)

    assert w.phase(HUDI) is Phase.ABORTED
    assert w.intent("A").touch("A", m("p/f")).aborted == {}


# -- the gate's own instants


def test_a_watcher_and_the_gate_report_one_transaction() -> None:
    """The gate announces its instant before the watcher reports it. The sink must not lose to itself."""
    w = world().intent("A").beat("A", instant=HUDI[5:]).touch("A", m("p/f"))

    observe(w).touch(HUDI, m("p/f"))
    land(w, HUDI, m("p/f"))

    assert w.effects == []
    assert w.phase("A") is Phase.ACTIVE


def test_an_instant_that_the_gate_announces_late_is_dropped() -> None:
    w = observe(world().intent("A")).touch(HUDI, m("p/f"))

    w.touch("A", m("p/f"), instant=HUDI[5:])

    assert w.aborted == {}
    assert HUDI not in w.state.transactions
    assert land(w, HUDI, m("p/f")).effects == []


def test_the_instant_that_the_gate_committed_is_its_own() -> None:
    """A sink that announces no instant names it as the version of its commit."""
    w = world().intent("A").lock().touch("A", m("p/f")).commits("A", version=HUDI[5:])

    w.intent("B").touch("B", m("p/f"))
    observe(w)

    assert land(w, HUDI, m("p/f")).aborted == {}


# -- silence, limits, memory


def test_an_observed_transaction_that_is_silent_ends_as_unknown() -> None:
    """Its writer has died, or its watcher. What it touched may be in the table."""
    w = observe(world()).touch(HUDI, m("p/f")).intent("A", m("p/f"), admission="queued")
    assert w.admitted == []

    w.beat("A").tick(14).beat("A").tick(2)

    assert w.aborted == {HUDI: "outcome-unknown"}
    assert w.phase(HUDI) is Phase.UNKNOWN
    assert w.admitted == ["A"]


def test_what_is_found_out_later_counts_after_an_unknown_outcome() -> None:
    """The watcher was away. A transaction that began after the silence meets the commit when it is reported."""
    w = observe(world()).touch(HUDI, m("p/f")).tick(16)
    w.intent("A").touch("A", m("p/f"))
    assert w.aborted == {}

    assert land(w, HUDI, m("p/f")).aborted == {"A": "conflict"}


def test_max_transaction_ends_an_observed_transaction_as_unknown() -> None:
    w = observe(world(max_transaction=20)).tick(10).beat(HUDI).tick(11)

    assert w.aborted == {HUDI: "outcome-unknown"}


def test_queued_and_protected_writers_wait_behind_an_observed_transaction() -> None:
    """A protected writer that started would lose to it again and again."""
    w = world(max_losses=1).intent("W").intent("A", writer="w").touch("W", m("p/f")).touch("A", m("p/f"))
    observe(w.abandon("W")).touch(HUDI, m("p/g"))

    w.intent("B", m("p/g"), admission="queued")
    assert w.admitted == []
    w.intent("C", writer="w")
    assert w.admitted == []

    assert land(w).admitted == ["C"]
    assert w.abandon("C").admitted == ["B"]


def test_an_observed_transaction_beyond_a_limit_is_forgotten_aloud() -> None:
    """Nothing can stop it. Hudi's own check still finds the conflict."""
    w = observe(world(max_open=1).intent("A"))
    assert w.aborted == {HUDI: "not-allowed"}
    assert (w.one(Abort).detail or "").startswith(FORGOTTEN)

    w = observe(world(max_markers=1)).touch(HUDI, m("p/f"), m("p/g"))
    assert w.aborted == {HUDI: "not-allowed"}


def test_at_the_memory_budget_the_largest_observed_transaction_is_forgotten() -> None:
    w = observe(world().intent("A")).touch(HUDI, *(m(f"p/{n}") for n in range(9)))
    excess = largest_transaction(w.state)
    assert excess is not None
    assert excess.transaction == HUDI

    w.over_budget(HUDI, 1_000_000)

    assert (w.one(Abort).detail or "").startswith(FORGOTTEN)
    assert w.touch("A", m("p/1")).aborted == {}


def test_the_commit_of_a_forgotten_transaction_counts() -> None:
    w = observe(world().intent("A")).over_budget(HUDI, 1_000_000).touch("A", m("p/f"))

    assert land(w, HUDI, m("p/f")).aborted == {"A": "conflict"}


def test_an_observed_transaction_keeps_no_evidence_of_commits() -> None:
    """A compaction may run for hours; it never loses to what landed meanwhile."""
    w = observe(world()).intent("A").lock().touch("A", m("p/f")).commits("A")

    assert "A" not in w.state.transactions


def test_an_operator_can_have_an_observed_transaction_forgotten() -> None:
    w = observe(world()).touch(HUDI, m("p/f")).request_abort(HUDI)

    assert w.aborted == {HUDI: "operator"}
    assert w.intent("A").touch("A", m("p/f")).aborted == {}


# -- restart


def test_a_restarted_agent_has_the_same_observed_transactions() -> None:
    w = observe(observe(world().intent("A")).touch(HUDI, m("p/f")), OTHER, m("q/g"))
    land(w, OTHER).beat("A", instant="7").beat(HUDI)

    again = w.rebuilt()

    assert facts(again.state) == facts(w.state)
    assert again.state.instants == w.state.instants
    assert again.replayed().effects == [AcquireLock()]
    assert again.touch("A", m("p/f")).aborted == {"A": "conflict"}


@pytest.mark.parametrize("end", ["silent", "forgotten"])
def test_a_late_commit_counts_after_a_restart_from_the_checkpoint(end: str) -> None:
    """A completion counts only with its intent, so the checkpoint holds that: before the completion and after it."""
    w = observe(world()).touch(HUDI, m("p/f"))
    w = w.tick(16) if end == "silent" else w.request_abort(HUDI)
    w.intent("A").touch("A", m("p/g"))
    assert HUDI not in w.state.transactions
    assert w.state.oldest_needed(w.now) == 0

    land(w, HUDI, m("p/f"))

    assert w.state.oldest_needed(w.now) == 0
    again = w.rebuilt()
    assert again.phase(HUDI) is Phase.COMMITTED
    assert facts(again.state) == facts(w.state)


def test_the_checkpoint_holds_the_intent_of_a_silent_observed_transaction_for_ten_minutes() -> None:
    w = observe(world()).touch(HUDI, m("p/f")).tick(16)

    w.intent("A").now += LATE_COMPLETION_SECONDS + 1
    assert w.state.oldest_needed(w.now) == w.offset

    land(w, HUDI, m("p/f")).touch("A", m("q/f"))
    assert w.state.oldest_needed(w.now) == w.offset - 2


def test_after_an_incomplete_log_an_observed_transaction_stays_open() -> None:
    """Its completion brings its whole footprint."""
    w = observe(world().intent("A")).rebuilt()

    assert w.replayed(missing="records are missing").aborted == {"A": "unknown-transaction"}
    assert w.phase(HUDI) is Phase.OBSERVED


def test_a_replay_repeats_no_report_about_two_observed_transactions() -> None:
    w = observe(observe(world()), OTHER).touch(HUDI, m("p/f")).touch(OTHER, m("p/f"))

    assert w.rebuilt().replayed().reports == []


# -- any order of events

GATE, OBSERVED, PLACES = ("A", "B", "C"), ("hudi:1", "hudi:2"), ("p/f", "p/g", "q/f")
actions = st.one_of(
    st.tuples(st.just("open"), st.sampled_from(GATE + OBSERVED), st.sampled_from(PLACES)),
    st.tuples(st.just("touch"), st.sampled_from(GATE + OBSERVED), st.sampled_from(PLACES)),
    st.tuples(st.just("land"), st.sampled_from(OBSERVED), st.sampled_from(PLACES)),
    st.tuples(st.just("instant"), st.sampled_from(GATE), st.sampled_from(("1", "2"))),
    st.tuples(st.sampled_from(("request", "complete")), st.sampled_from(GATE), st.just("")),
    st.tuples(st.just("abandon"), st.sampled_from(GATE + OBSERVED), st.just("")),
    st.tuples(st.just("tick"), st.just(""), st.just("")),
)


@given(
    st.lists(actions, max_size=40),
    st.sampled_from(("first-intent", "first-committer")),
    st.sampled_from((True, True, False)),
)
def test_no_grant_overlaps_an_observed_transaction_and_a_restart_changes_nothing(
    history: list[tuple[str, str, str]], policy: Any, early: bool
) -> None:
    """The order of the log is the only order. Each step is compared with a list of what has landed."""
    w = world(policy=policy, early_detection=early).lock()
    touched: dict[str, set[str]] = {}
    landed: list[tuple[int, str, set[str]]] = []
    for action, name, what in history:
        known = w.state.transactions.get(name)
        if action == "open":
            observe(w, name, m(what)) if name in OBSERVED else w.intent(name, m(what))
        elif action == "touch":
            w.touch(name, m(what))
        elif action == "land":
            land(w, name, m(what))
        elif action == "instant":
            w.beat(name, instant=what)
        elif action == "tick":
            w.tick(6.0)
        else:
            getattr(w, action)(name)
        if w.state.lock is None:
            w.lock()
        for each in w.state.transactions.values():
            touched[each.id] = {f"{p}/{f}" for p, groups in each.footprint.items() for f in groups}
        if action == "land" and known is not None and known.phase is Phase.COMMITTED:
            landed.append((known.ended, name, touched.get(name, set()) | {what}))
        running = w.state.running()
        if running is not None and running.id in w.granted:
            began, places = running.began, touched[running.id]
            met = [other for ended, other, where in landed if ended > began and where & places]
            assert not met, f"{running.id} was granted although {met} had landed on the same since it began"
        for verdict in w.of(Abort):
            lost = verdict.transaction in OBSERVED and verdict.reason == "conflict"
            assert not lost, "an observed transaction never loses"
        assert not set(w.granted + w.admitted) & set(OBSERVED)
        check_invariants(w.state)

    again = w.rebuilt()
    assert facts(again.state) == facts(w.state)
    assert again.state.instants == w.state.instants
