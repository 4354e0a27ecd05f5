"""Transactions that a watcher reports: their writers know nothing of lakewarden, and nothing can stop them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from lakewarden.events import Abort, CommitCompleted, Marker
from lakewarden.handlers.table.invariants import check_invariants
from lakewarden.handlers.table.transactions import Phase
from tests.unit.handlers.table.stories import Story, stories
from tests.unit.handlers.table.world import World, facts, m, world

HUDI, OTHER = "hudi:20261122135446024", "hudi:20261122135643314"


def observe(w: World, transaction: str = HUDI, *scope: Marker, **fields: Any) -> World:
    return w.intent(transaction, *scope, **{"observed": True, "writer": transaction, **fields})


def land(w: World, transaction: str = HUDI, *markers: Marker, **fields: Any) -> World:
    """The watcher reports that the transaction has committed."""
    return w.read(w.event(CommitCompleted, transaction, markers=markers, version=transaction[5:], **fields))


STORIES = """
a granted transaction is not aborted for an observed one
    # It may be publishing. The table format's own check decides between the two.
    intent A; lock; touch A p/f; request A; observe hudi:a; touch hudi:a p/f → nothing, A is granted

each pair of observed transactions is reported when one lands
    intent A; observe hudi:b; observe hudi:a; observe hudi:c; touch hudi:a p/f; touch hudi:c q/f
    land hudi:b p/f q/f → reported hudi:a to hudi:b and hudi:c to hudi:b

with first-committer an observed transaction conflicts once it has landed
    world policy=first-committer
    intent A; touch A p/f; observe hudi:a; touch hudi:a p/f → no abort
    land hudi:a → aborted A conflict

the rule of the observed transaction applies
    # Hudi permits appends beside a running compaction. A delete of what it rewrites conflicts.
    observe hudi:a p/f p/g deleted-file; intent A; intent B; touch A p/f:append → no abort
    touch B p/g:delete → aborted B conflict

an observed intent ends no transaction of a writer with the same name
    intent A writer=ingest; observe hudi:a writer=ingest → no abort
    intent B writer=ingest → aborted A superseded

a lock that is gone or refused concerns no observed transaction
    intent A; observe hudi:a; forbid_lock → aborted A not-allowed
    intent B; withhold_lock → aborted B lock-refused

a transaction that began after an observed commit does not meet it
    intent A; observe hudi:a; touch hudi:a p/f; land hudi:a; intent B; touch B p/f → no abort
    touch A p/f → aborted A conflict

a commit that the agent does not know is ignored without a warning
    # A watcher that was restarted repeats the table's last commits. They are no news.
    intent A; touch A p/f; land hudi:b p/f → nothing

an observed rollback ends the transaction
    observe hudi:a; touch hudi:a p/f; abandon hudi:a → hudi:a is aborted
    intent A; touch A p/f → no abort

a commit that can't be read stops the rewrites of the whole table, and no append
    intent A; intent B; touch A p/f:append; touch B q/g:merge → no abort
    observe delta:7 deleted-file; land delta:7 */*:delete → aborted B conflict

a watcher and the gate report one transaction
    # The gate announces its instant before the watcher reports it. The sink must not lose to itself.
    intent A; beat A instant=a; touch A p/f; observe hudi:a; touch hudi:a p/f
    land hudi:a p/f → nothing, A is active

the instant that the gate committed is its own
    # A sink that announces no instant names it as the version of its commit.
    intent A; lock; touch A p/f; commits A version=a; intent B; touch B p/f; observe hudi:a
    land hudi:a p/f → no abort

an observed transaction that is silent ends as unknown
    # Its writer has died, or its watcher. What it touched may be in the table.
    observe hudi:a; touch hudi:a p/f; intent A p/f queued → no admission
    beat A; tick 14; beat A; tick 2 → aborted hudi:a outcome-unknown, hudi:a is unknown, admitted A

what is found out later counts after an unknown outcome
    # The watcher was away. A transaction that began after the silence meets the commit when it is reported.
    observe hudi:a; touch hudi:a p/f; tick 16; intent A; touch A p/f → no abort
    land hudi:a p/f → aborted A conflict

max_transaction ends an observed transaction as unknown
    world max_transaction=20
    observe hudi:a; tick 10; beat hudi:a; tick 11 → aborted hudi:a outcome-unknown

queued and protected writers wait behind an observed transaction
    # A protected writer that started would lose to it again and again.
    world max_losses=1
    intent W; intent A writer=w; touch W p/f; touch A p/f; abandon W; observe hudi:a; touch hudi:a p/g
    intent B p/g queued → no admission
    intent C writer=w → no admission
    land hudi:a → admitted C
    abandon C → admitted B

at the memory budget the largest observed transaction is forgotten
    intent A; observe hudi:a; touch hudi:a p/1 p/2 → largest is hudi:a
    over_budget hudi:a 1000000 → Abort transaction=hudi:a detail~'the agent no longer tracks this observed transaction'
    touch A p/1 → no abort

the commit of a forgotten transaction counts
    intent A; observe hudi:a; over_budget hudi:a 1000000; touch A p/f; land hudi:a p/f → aborted A conflict

an operator can have an observed transaction forgotten
    observe hudi:a; touch hudi:a p/f; request_abort hudi:a → aborted hudi:a operator
    intent A; touch A p/f → no abort

a replay repeats no report about two observed transactions
    observe hudi:a; observe hudi:b; touch hudi:a p/f; touch hudi:b p/f; restart → no report

a writer of the gate loses to an observed one although it is older
    # The observed writer reads no decisions, so only one of the two can stop.
    intent A; touch A p/f; observe hudi:a; touch hudi:a p/f → aborted A conflict, met hudi:a marker f, reported A to hudi:a
    → hudi:a is observed

neither priority nor protection wins against an observed transaction
    where ORDER is touch hudi:a p/f; touch B p/f | touch B p/f; touch hudi:a p/f
    world max_losses=1
    intent W; intent A writer=w; touch W p/f; touch A p/f; abandon W; intent B writer=w priority=9; observe hudi:a
    ORDER → B is aborted, hudi:a is observed

between two observed transactions a conflict is reported once
    observe hudi:a; observe hudi:b; touch hudi:a p/f p/g
    touch hudi:b p/f → reported hudi:b to hudi:a, ConflictDetected victim_age_seconds=0.0, no abort
    touch hudi:b p/g → no report

the observed transaction that lands first wins the report
    observe hudi:a; observe hudi:b; touch hudi:a p/f
    land hudi:b p/f → reported hudi:a to hudi:b, ConflictDetected kind=commit, hudi:a is observed

an observed intent gets no answer and no lock
    # Its writer takes a lock of its own. An agent that held the same one would stop it.
    observe hudi:a queued priority=100 lock=elsewhere → nothing, hudi:a is observed
    intent A → AcquireLock adopt=None

an observed transaction is never granted
    intent A; lock; observe hudi:a
    request hudi:a → no grant, Warn detail~'a watcher reports this transaction' detail~'so it is never granted'
    complete hudi:a grant=0:0 → Warn event=commit-without-grant, hudi:a is observed

a writer of the gate can not report its commit without its grant
    intent A; lock; touch A p/f; request A
    land A → Warn detail~'names no grant' detail~'the transaction is not observed', A is granted

the commit of an observed transaction aborts those that began before
    # Its footprint may come with the completion alone: the watcher saw no marker.
    intent A; touch A p/f; observe hudi:a; land hudi:a p/f → aborted A conflict, met hudi:a commit f

an observed commit is in no ledger
    observe hudi:a batch_id=7; land hudi:a → nothing, ledger is empty

a repeated report of a commit changes nothing
    # Two watchers say the same, and one that was restarted says it again.
    intent A; observe hudi:a; land hudi:a p/f; intent B; touch B p/f; note; land hudi:a p/f p/g → nothing, unchanged

an instant that the gate announces late is dropped
    intent A; observe hudi:a; touch hudi:a p/f; touch A p/f instant=a → no abort, hudi:a is gone
    land hudi:a p/f → nothing

an observed transaction beyond a limit is forgotten aloud
    # Nothing can stop it. Hudi's own check still finds the conflict.
    world max_open=1
    intent A; observe hudi:a → Abort transaction=hudi:a reason=not-allowed detail~'the agent no longer tracks'
    world max_markers=1
    observe hudi:a; touch hudi:a p/f p/g → aborted hudi:a not-allowed

an observed transaction keeps no evidence of commits
    # A compaction may run for hours; it never loses to what landed meanwhile.
    observe hudi:a; intent A; lock; touch A p/f; commits A → A is gone

a restarted agent has the same observed transactions
    intent A; observe hudi:a; touch hudi:a p/f; observe hudi:b q/g; land hudi:b; beat A instant=x7; beat hudi:a
    → a replay agrees, state.instants~'x7': 'A'
    restart → only AcquireLock(adopt=None), state.instants~'x7': 'A'
    touch A p/f → aborted A conflict

a late commit counts after a restart from the checkpoint
    # A completion counts only with its intent, so the checkpoint holds that: before the completion and after it.
    where END is tick 16 | request_abort hudi:a
    observe hudi:a; touch hudi:a p/f; END; intent A; touch A p/g → hudi:a is gone, needs 0
    land hudi:a p/f → needs 0, a replay agrees
    restart → hudi:a is committed

the checkpoint holds the intent of a silent observed transaction for ten minutes
    observe hudi:a; touch hudi:a p/f; tick 16; intent A; wait 601 → needs 2
    land hudi:a p/f; touch A q/f → needs 2

after an incomplete log an observed transaction stays open
    # Its completion brings its whole footprint.
    intent A; observe hudi:a; restart_incomplete → aborted A unknown-transaction, hudi:a is observed
"""


@pytest.mark.parametrize("story", stories(STORIES, observe=observe, land=land), ids=str)
def test_conflicts_with_observed_transactions(story: Story) -> None:
    story.play()


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
