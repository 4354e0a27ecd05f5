"""An explanation is built from the events and decisions of the log, and from nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar, get_args

import pytest

from lakewarden.agent import wire_events
from lakewarden.agent.operators.explain_json import KINDS, explanation_json, json_name
from lakewarden.agent.operators.explain_text import explanation_lines
from lakewarden.events import (
    AuditEventUnion,
    ConflictDetected,
    DecisionRecord,
    LockLost,
    LockRefused,
    PartitionTaken,
    partition_name,
)
from lakewarden.handlers.explain import timeline
from lakewarden.handlers.explain.evidence import victim_rule
from lakewarden.handlers.explain.timeline import Explanation, RecordRef, TransactionRef
from lakewarden.handlers.explain.transaction import Explainer
from lakewarden.handlers.table.conflicts import loser_of
from lakewarden.handlers.table.transactions import OPEN, Phase
from lakewarden.handlers.table.verdicts import ReportConflict
from tests.unit.handlers.table.table_history import history
from tests.unit.handlers.table.test_conflicts import VICTIMS, a_transaction
from tests.unit.handlers.table.world import AT, TABLE, World, m, world

S = TypeVar("S")
SECOND = 1_000


def reference(topic: Any, offset: int, recorded_ms: int) -> RecordRef:
    return RecordRef(topic, offset, AT.timestamp() * 1000, recorded_ms)


def published(
    w: World, agent: str = "agent-1", term: str = "term-1"
) -> list[tuple[RecordRef, DecisionRecord]]:
    """What an agent of this world published, each a second after the event that it names."""
    verdicts = [each for each in w.log if not isinstance(each, tuple)]
    return [
        (
            reference("decisions", number, verdict.cause.offset * SECOND + 500),
            wire_events.decision(agent, term, TABLE, verdict),
        )
        for number, verdict in enumerate(verdicts)
    ]


def explanation_of(
    w: World,
    transaction: str,
    decisions: list[tuple[RecordRef, DecisionRecord]] | None = None,
    locks: list[tuple[RecordRef, AuditEventUnion]] | None = None,
    reports: tuple[ConflictDetected, ...] = (),
) -> Explanation:
    """The explanation of a transaction of this world; an event each second."""
    explainer = Explainer(
        TransactionRef(transaction, f"w-{transaction}"),
        TABLE,
        published(w) if decisions is None else decisions,
    )
    for each in w.log:
        if isinstance(each, tuple):
            event, offset = each
            explainer.add(reference("writers", offset, offset * SECOND), event)
    return explainer.explanation(locks or (), reports)


def one(explanation: Explanation, kind: type[S]) -> S:
    (found,) = (each for each in explanation.steps if isinstance(each, kind))
    return found


def kinds(explanation: Explanation) -> list[str]:
    return [type(each).__name__ for each in explanation.steps]


def test_a_commit_is_explained_from_its_intent_to_its_version() -> None:
    """The usual case: every fact that an operator needs first is there, with its offset."""
    w = (
        world()
        .intent("A", batch_id=4, writer="w-A")
        .lock()
        .touch("A", m("p/f"), m("p/g"))
        .touch("A", m("p/g"))
    )
    w.beat("A").request("A").beat("A").complete("A", version="17")

    explanation = explanation_of(w, "A")

    assert kinds(explanation) == [
        "Opened",
        "Admitted",
        "Touched",
        "GrantRequested",
        "Granted",
        "Renewed",
        "Completed",
    ]
    assert (explanation.outcome.phase, explanation.outcome.version) == (Phase.COMMITTED, "17")
    assert explanation.transaction == TransactionRef("A", "w-A", 4, 0)
    touched = one(explanation, timeline.Touched)
    assert (touched.first.offset, touched.record.offset) == (1, 2)
    assert (touched.events, touched.markers, touched.new, touched.partitions) == (2, 3, 2, ("p",))
    granted = one(explanation, timeline.Granted)
    assert (granted.record.offset, granted.seq, granted.lock_owner) == (1, 2, "agent-1")
    assert (granted.cause.event and granted.cause.event.record.offset, granted.cause.offset) == (4, 4)
    assert one(explanation, timeline.Completed).phase_before is Phase.GRANTED
    assert (explanation.heartbeats.count, explanation.markers, explanation.waits_for) == (2, 2, ())


def test_an_abort_names_both_events_the_place_and_the_victim_rule() -> None:
    """The question that the command answers most often."""
    w = world().intent("A").touch("A", m("p/e")).touch("A", m("p/f")).intent("B").touch("B", m("p/x"))
    w.touch("B", m("p/y"), m("p/f", "append"))

    aborted = one(explanation_of(w, "B"), timeline.Aborted)

    (lost,) = aborted.lost_conflicts
    assert (lost.winner.id, lost.winner.writer) == ("A", "w-A")
    assert (lost.victim_rule, lost.offsets_older, lost.conflict_rule) == ("sequence", 3, "file-group")
    assert [(e.partition, e.file_group, e.operation, e.other_operation) for e in lost.entries] == [
        ("p", "f", "append", "merge")
    ]
    assert lost.victim_event is not None
    assert lost.winner_event is not None
    assert (lost.victim_event.record.offset, lost.winner_event.record.offset) == (5, 2)
    assert aborted.cause.event == lost.victim_event
    assert (aborted.losses, aborted.phase_before, aborted.retriable) == (1, Phase.ACTIVE, True)


def test_a_winner_has_a_step_for_each_victim() -> None:
    """With the events of both sides."""
    w = world().intent("A").intent("B").touch("B", m("p/f")).touch("A", m("p/*", "delete")).abandon("A")

    explanation = explanation_of(w, "A")

    won = one(explanation, timeline.Won)
    assert (won.victim.id, won.reason, won.lost_conflict.victim_rule) == ("B", "conflict", "sequence")
    assert won.lost_conflict.victim_event is not None
    assert won.lost_conflict.winner_event is not None
    assert (won.lost_conflict.victim_event.record.offset, won.lost_conflict.winner_event.record.offset) == (
        2,
        3,
    )
    assert [(each.transaction.id, each.outcome.phase) for each in explanation.others] == [
        ("B", Phase.ABORTED)
    ]
    assert one(explanation, timeline.Abandoned).reason == "the writer failed"


@pytest.mark.parametrize(
    "mine, theirs", [("p/f", "p/*"), ("p/*", "p/f"), ("/f", "/f"), ("a_b/c%2F", "a_b/c%2F")]
)
def test_the_first_events_of_both_sides_are_found_for_any_names(mine: str, theirs: str) -> None:
    """A `*` covers file groups that it does not name; only the first event that touched a place counts."""
    star = theirs.rsplit("/", 1)[0] + "/*"
    w = (
        world()
        .intent("A")
        .touch("A", m("q/z"))
        .touch("A", m(theirs))
        .touch("A", m(theirs))
        .touch("A", m(star))
    )
    w.intent("B").touch("B", m(mine))

    (lost,) = one(explanation_of(w, "B"), timeline.Aborted).lost_conflicts

    assert lost.victim_event is not None
    assert lost.winner_event is not None
    assert (lost.victim_event.record.offset, lost.winner_event.record.offset) == (6, 2)


LOSSES = [each for each in VICTIMS if each[4] is not None]


@pytest.mark.parametrize(
    "a, b, losses, victim", [each[1:] for each in LOSSES], ids=[each[0] for each in LOSSES]
)
def test_the_victim_rule_is_the_one_that_decided(
    a: dict[str, Any], b: dict[str, Any], losses: dict[str, int], victim: str
) -> None:
    """If the fact that the rule names, and all later rules, are reversed, the other transaction loses."""
    first, second = a_transaction("a", **a), a_transaction("b", **{"sequence": 2, **b})
    lost, won = (first, second) if victim == "a" else (second, first)

    rule = victim_rule(lost, won, losses, 3)

    younger = replace(won, sequence=lost.sequence + 1)
    lower = replace(younger, priority=lost.priority - 1)
    turned, fewer = {
        "landed": (replace(lower, phase=Phase.ACTIVE), {}),
        "granted": (replace(lower, phase=Phase.ACTIVE), {}),
        "protected": (lower, {}),
        "priority": (lower, losses),
        "sequence": (younger, losses),
    }[rule]
    assert loser_of(lost, won, losses, 3) is lost
    assert loser_of(lost, turned, fewer, 3) is not lost


def test_a_queued_transaction_has_its_blockers_and_the_last_of_them() -> None:
    """B waits for A, which is computing on its scope; then for C, which overtook it by priority."""
    w = world().intent("A").touch("A", m("p/f")).intent("B", m("p/f"), admission="queued")
    w.beat("A").intent("C", m("p/*"), admission="queued", priority=1).abandon("A").abandon("C")

    explanation = explanation_of(w, "B")

    first, second = (each for each in explanation.steps if isinstance(each, timeline.Waiting))
    assert [(each.transaction.id, each.reason) for each in first.blockers] == [("A", "computing")]
    assert [(each.transaction.id, each.reason) for each in second.blockers] == [
        ("A", "computing"),
        ("C", "earlier in the line"),
    ]
    assert (first.awaited, first.record.offset, second.record.offset) == ("admission", 2, 4)
    assert [(each.partition, each.file_group) for each in first.blockers[0].shared] == [("p", "f")]
    admitted = one(explanation, timeline.Admitted)
    assert admitted.freed_by is not None
    assert (admitted.freed_by.transaction.id, admitted.freed_by.outcome.reason) == ("C", "abandoned")
    assert admitted.waited_ms == 4 * SECOND + 500


def test_a_transaction_that_is_answered_in_the_same_step_has_no_wait() -> None:
    """The older attempt of the same writer was superseded by this very intent."""
    w = world().intent("A1", m("p/f"), writer="w-A").intent("A2", m("p/f"), writer="w-A", admission="queued")

    assert kinds(explanation_of(w, "A2")) == ["Opened", "Admitted"]


def test_the_reason_of_the_admission_is_in_the_text_and_in_the_json() -> None:
    """With `auto`, the gate chooses: the operator must be able to see why a transaction was queued."""
    w = world().intent("A", m("p/f"), admission="queued", admission_reason="its scope\nis known").intent("B")

    chosen, unexplained = explanation_of(w, "A"), explanation_of(w, "B")

    assert "intent: queued (its scope is known), priority 0" in "\n".join(explanation_lines(chosen))
    assert "intent: optimistic, priority 0" in "\n".join(explanation_lines(unexplained))
    reasons = [
        json.loads(explanation_json(each))["steps"][0]["admission_reason"] for each in (chosen, unexplained)
    ]
    assert reasons == ["its scope\nis known", None]


def test_a_wait_that_ends_with_a_timeout_is_a_step() -> None:
    """No event came in between: only the decision before the admission shows that it waited."""
    w = world().intent("A").touch("A", m("p/f"))
    w.intent("B", m("p/f"), admission="queued", heartbeat_seconds=100).tick(16)

    explanation = explanation_of(w, "B")

    assert kinds(explanation) == ["Opened", "Waiting", "Admitted"]
    freed = one(explanation, timeline.Admitted).freed_by
    assert freed is not None
    assert (freed.transaction.id, freed.outcome.reason) == ("A", "writer-lost")


def test_a_transaction_that_waits_for_its_grant_has_the_holder_and_the_earlier_requests_as_blockers() -> None:
    """One grant at a time for each table."""
    w = world().intent("A").intent("B").intent("C").lock().request("A").request("B").request("C")

    open_end = explanation_of(w, "C")
    explanation = explanation_of(w.complete("A").complete("B").complete("C"), "C")

    behind = [("A", "granted"), ("B", "earlier in the line")]
    assert [(each.transaction.id, each.reason) for each in open_end.waits_for] == behind
    assert open_end.outcome.phase is Phase.WAITING
    assert [
        (each.transaction.id, each.reason) for each in one(explanation, timeline.Waiting).blockers
    ] == behind
    granted = one(explanation, timeline.Granted)
    assert granted.freed_by is not None
    assert granted.freed_by.transaction.id == "B"
    assert (granted.waited_ms, granted.unblocked_ms) == (2 * SECOND + 500, 500)


def test_an_ordered_transaction_has_those_with_earlier_turns_as_blockers() -> None:
    """B requests its grant first, and waits for A, which touches the same place."""
    w = world().intent("A", m("p/f"), conflict_rule="ordered").intent("B", m("p/f"), conflict_rule="ordered")
    w.lock().request("B").request("A")

    waiting = explanation_of(w, "B")
    explanation = explanation_of(w.complete("A").complete("B"), "B")

    assert [(each.transaction.id, each.reason) for each in waiting.waits_for] == [("A", "granted")]
    (first,) = one(explanation, timeline.Waiting).blockers
    assert (first.transaction.id, first.reason) == ("A", "earlier turn")
    assert one(explanation, timeline.Admitted).turn == 1
    text = "\n".join(explanation_lines(explanation))
    assert ", turn 1" in text
    assert "whose turn is earlier and which has not ended on p" in text


def test_a_commit_is_explained_that_is_reported_after_the_grant_lease_expired() -> None:
    """The writer was cut off, read the table, and reported what it found."""
    w = world().intent("A").lock().request("A").tick(21).complete("A", version="9")

    explanation = explanation_of(w, "A")

    lapse = one(explanation, timeline.Aborted)
    assert (lapse.reason, lapse.phase_before, lapse.cause.event) == ("outcome-unknown", Phase.GRANTED, None)
    assert one(explanation, timeline.Completed).phase_before is Phase.UNKNOWN
    assert (explanation.outcome.phase, explanation.outcome.version) == (Phase.COMMITTED, "9")


def test_a_revoked_grant_stays_granted_until_its_outcome_is_known() -> None:
    """The agent lost the lock while the writer published; the commit had landed."""
    w = world().intent("A").lock().request("A").lose_lock("renewal not confirmed")

    meanwhile = explanation_of(w, "A").outcome
    explanation = explanation_of(w.complete("A", version="2"), "A")

    assert (meanwhile.phase, meanwhile.reason, meanwhile.record) == (Phase.GRANTED, "lease-lost", None)

    revoked = one(explanation, timeline.Aborted)
    assert (revoked.reason, revoked.phase_before) == ("lease-lost", Phase.GRANTED)
    assert explanation.outcome.phase is Phase.COMMITTED


def test_events_after_the_end_are_counted_and_change_nothing() -> None:
    """Executors of an aborted job continue for a moment; the driver still requests its grant."""
    w = world().intent("A").touch("A", m("p/f")).intent("B").touch("B", m("p/f"))
    w.touch("B", m("p/g")).touch("B", m("p/h")).request("B")

    explanation = explanation_of(w, "B")

    assert kinds(explanation) == ["Opened", "Admitted", "Touched", "Aborted", "Ignored", "Ignored", "Aborted"]
    late = next(each for each in explanation.steps if isinstance(each, timeline.Ignored))
    assert (late.type, late.events, late.phase_before) == ("marker-created", 2, Phase.ABORTED)
    again = explanation.steps[-1]
    assert isinstance(again, timeline.Aborted)
    assert again.phase_before is Phase.ABORTED
    assert explanation.markers == 1


def test_a_repeated_delivery_is_counted_as_such() -> None:
    """A producer sent the event twice."""
    w = world().intent("A").touch("A", m("p/f"))
    w.read(next(each[0] for each in w.log if isinstance(each, tuple) and each[1] == 1))

    explanation = explanation_of(w, "A")

    assert (explanation.repeated, one(explanation, timeline.Touched).events) == (1, 1)


def test_two_appends_under_deleted_file_overlap_without_a_conflict() -> None:
    """The explanation contains the overlap, and that the rule allows it."""
    rule = {"conflict_rule": "deleted-file"}
    w = (
        world()
        .intent("A", **rule)
        .touch("A", m("p/f", "append"))
        .intent("B", **rule)
        .touch("B", m("p/f", "append"))
    )

    met = one(explanation_of(w, "B"), timeline.Met)

    assert (met.other.id, met.conflict, met.rule, met.came_second) == (
        "A",
        False,
        "deleted-file",
        "mine",
    )


def test_a_transaction_that_landed_before_is_no_overlap() -> None:
    """Its commit is part of the base version. It is evidence only for an older transaction."""
    w = (
        world()
        .intent("old")
        .intent("A")
        .lock()
        .touch("A", m("p/f"))
        .commits("A")
        .intent("B")
        .touch("B", m("p/f"))
    )

    assert kinds(explanation_of(w, "B")) == ["Opened", "Admitted", "Touched"]
    (other,) = explanation_of(w.touch("old", m("p/f")), "old").others[:1]
    assert (other.transaction.id, other.outcome.phase, other.places) == ("A", Phase.COMMITTED, 1)


def test_protection_comes_before_priority() -> None:
    """In the order of `conflicts.loser_of`."""
    winner, victim = a_transaction("w", priority=5), a_transaction("v", sequence=2)

    assert victim_rule(victim, winner, {"w-w": 3}, 3) == "protected"


def test_a_decision_of_an_agent_that_had_lost_the_partition_is_void() -> None:
    """It was suspended, woke up, and granted; another agent had taken over before the grant was in the log."""
    w = world().intent("A").lock().request("A")
    (admitted, granted) = published(w)
    taken = PartitionTaken(event_id="t", table=partition_name(0), at=AT, agent="agent-2", term="term-2")
    decisions = [
        admitted,
        (reference("decisions", 1, 200), taken),
        (replace(granted[0], offset=2), granted[1]),
    ]

    explanation = explanation_of(w, "A", decisions)

    assert kinds(explanation) == ["Opened", "Admitted", "TakenOver", "GrantRequested", "Void"]
    void = one(explanation, timeline.Void)
    assert (void.type, void.agent, void.taken_by) == ("commit-granted", "agent-1", "agent-2")
    assert void.taken_at is not None
    assert void.taken_at.offset == 1
    assert explanation.outcome.phase is Phase.WAITING


def test_a_take_over_is_a_step_at_its_place() -> None:
    """A restart in between shows the operator why the commit took so long."""
    w = world().intent("A").lock().touch("A", m("p/f")).request("A")
    admitted, granted = published(w)
    taken = PartitionTaken(event_id="t", table=partition_name(0), at=AT, agent="agent-2", term="term-2")
    later = granted[1].model_copy(update={"term": "term-2", "agent": "agent-2"})
    decisions = [admitted, (reference("decisions", 1, 1_500), taken), (replace(granted[0], offset=2), later)]

    explanation = explanation_of(w, "A", decisions)

    assert kinds(explanation) == ["Opened", "Admitted", "Touched", "TakenOver", "GrantRequested", "Granted"]


def test_lock_steps_are_placed_by_their_time() -> None:
    """A foreign writer held the lock while the transaction waited, and the agent lost the lock after the grant."""
    w = world().intent("A").request("A").lock().lose_lock().beat("A").complete("A")
    common: dict[str, Any] = {
        "table": TABLE,
        "at": AT,
        "agent": "agent-1",
        "lock": "s3://lake/lock.json",
        "owner": "o",
        "valid_until": 5,
        "requests": 1,
        "duration_ms": 1.0,
    }

    def refused(number: int) -> LockRefused:
        return LockRefused(event_id=f"l{number}", holder="foreign", waiting=True, **common)

    locks: list[tuple[RecordRef, AuditEventUnion]] = [
        (reference("audit", 0, 1_100), refused(0)),
        (reference("audit", 1, 1_200), refused(1)),
        (reference("audit", 2, 1_600), LockLost(event_id="l2", detail="not confirmed", **common)),
        (reference("audit", 3, 9_000), refused(3)),
    ]

    explanation = explanation_of(w, "A", locks=locks)

    assert kinds(explanation) == [
        "Opened",
        "Admitted",
        "GrantRequested",
        "LockStep",
        "Granted",
        "Aborted",
        "LockStep",
        "Completed",
    ]
    held = next(each for each in explanation.steps if isinstance(each, timeline.LockStep))
    assert (held.type, held.holder, held.times) == ("lock-refused", "foreign", 2)


def test_an_abort_has_the_detection_times_of_the_agent() -> None:
    """The times in the log are too coarse for them."""
    w = world().intent("A").touch("A", m("p/f")).intent("B").touch("B", m("p/f"))
    reports = tuple(wire_events.conflict(TABLE, each) for each in w.of(ReportConflict))

    aborted = one(explanation_of(w, "B", reports=reports), timeline.Aborted)

    assert aborted.detected_after_ms is not None
    assert aborted.age_seconds is not None


def test_the_attempts_of_a_batch_are_listed_with_their_outcomes() -> None:
    """Those before it and those after it."""
    w = world().lock().intent("A").touch("A", m("p/f"))
    for attempt in ("B1", "B2"):
        w.intent(attempt, writer="w-B", batch_id=3).touch(attempt, m("p/f"), writer="w-B")
    w.abandon("A").intent("B3", writer="w-B", batch_id=3).lock().request("B3").complete(
        "B3", writer="w-B", version="8"
    )
    w.intent("B4", writer="w-B", batch_id=4)

    explanation = explanation_of(w, "B2")

    assert [(each.transaction.id, each.outcome.phase) for each in explanation.attempts] == [
        ("B1", Phase.ABORTED),
        ("B2", Phase.ABORTED),
        ("B3", Phase.COMMITTED),
    ]


def test_a_skipped_batch_names_the_transaction_that_committed_it() -> None:
    """Spark replays a micro-batch after a restart."""
    w = world().intent("A", writer="w", batch_id=1).lock().request("A").complete("A", writer="w", version="5")
    w.intent("B", writer="w", batch_id=1)

    explanation = explanation_of(w, "B")

    skipped = one(explanation, timeline.Skipped)
    assert (skipped.committed_transaction, skipped.version) == ("A", "5")
    assert (explanation.outcome.phase, explanation.outcome.reason) == (Phase.COMMITTED, "already-committed")


def test_a_transaction_whose_intent_was_removed_has_an_explanation() -> None:
    """Retention removed its intent while no agent ran."""
    w = world().touch("A", m("p/f"))

    explanation = explanation_of(w, "A")

    assert kinds(explanation) == ["Ignored", "Aborted"]
    assert (explanation.outcome.phase, explanation.outcome.reason) == (Phase.ABORTED, "unknown-transaction")
    assert explanation.transaction.sequence is None


def test_a_commit_of_a_transaction_whose_intent_was_removed_is_a_commit() -> None:
    """The log contains no grant for it."""
    explanation = explanation_of(world().complete("A", version="3"), "A")

    assert (explanation.outcome.phase, explanation.outcome.version) == (Phase.COMMITTED, "3")
    assert one(explanation, timeline.Completed).phase_before is None


@pytest.mark.parametrize(
    "life, text",
    [
        (
            lambda w: w.intent("V").touch("V", m("p/f")).intent("W", priority=1).touch("W", m("p/f")),
            (
                "marker-created of w-W (W) at writers:3 touched p f (merge/merge), "
                "which it had touched with marker-created at writers:1; w-W has the higher priority"
            ),
        ),
        (
            lambda w: w.intent("W").intent("V").lock().touch("W", m("p/f")).commits("W").touch("V", m("p/f")),
            (
                "its marker-created at writers:5 touched p f (merge/merge), "
                "which w-W (W) had touched with marker-created at writers:2; w-W has committed since it began"
            ),
        ),
        (
            lambda w: (
                w.intent("W")
                .intent("V")
                .lock()
                .touch("W", m("/f"))
                .request("W")
                .touch("V", m("/*", "delete"))
            ),
            (
                "its marker-created at writers:4 touched (unpartitioned) * (delete/merge), which w-W (W) had touched with "
                "marker-created at writers:2; w-W holds the grant, and a granted transaction is never the victim"
            ),
        ),
    ],
    ids=["priority", "landed", "granted"],
)
def test_the_text_of_an_abort_names_both_events_and_the_rule(
    life: Callable[[World], World], text: str
) -> None:
    """The events of both sides, and why this transaction is the victim."""
    assert text in "\n".join(explanation_lines(explanation_of(life(world()), "V")))


def test_the_text_of_an_abort_names_the_event_that_led_to_it() -> None:
    """Without early detection, that is its own request; under `first-committer`, the request of the other transaction."""
    off = (
        world(early_detection=False).intent("V").intent("W").lock().touch("V", m("p/f")).touch("W", m("p/f"))
    )
    off.commits("W").request("V")
    late = (
        world(policy="first-committer")
        .intent("V")
        .intent("W")
        .lock()
        .touch("V", m("p/f"))
        .touch("W", m("p/f"))
    )
    late.request("W")

    both = "both touched p f (merge/merge), it with marker-created at writers:2, w-W (W) with marker-created at writers:3"
    assert f"{both}, detected with w-V's commit-requested at writers:6" in "\n".join(
        explanation_lines(explanation_of(off, "V"))
    )
    assert f"{both}, detected with w-W's commit-requested at writers:4" in "\n".join(
        explanation_lines(explanation_of(late, "V"))
    )


def test_the_longest_gap_between_events_is_located() -> None:
    """It shows why the agent declared a writer lost."""
    w = world().intent("A").beat("A").intent("B").intent("C").beat("A")

    heartbeats = explanation_of(w, "A").heartbeats

    assert heartbeats.gap_after is not None
    assert (heartbeats.count, heartbeats.longest_gap_ms, heartbeats.gap_after.offset) == (2, 3 * SECOND, 1)


@pytest.mark.parametrize("seed", range(24))
def test_in_random_histories_every_explanation_ends_in_the_phase_of_the_table(seed: int) -> None:
    """Writers that restart, go silent or are cut off, agents that crash, locks that are lost: see `history`."""
    w = history(seed).w
    opened = {
        each[0].transaction for each in w.log if isinstance(each, tuple) and each[0].type == "commit-intent"
    }

    for transaction in sorted(opened):
        explanation = explanation_of(w, transaction)

        assert explanation.outcome.phase is w.phase(transaction), transaction
        assert [json.loads(explanation_json(explanation))["steps"][0]["kind"], kinds(explanation)[0]] == [
            "opened",
            "Opened",
        ]
        assert len(list(explanation_lines(explanation))) > len(explanation.steps)
        verdicts = [each for each in w.log if not isinstance(each, tuple) and each.transaction == transaction]
        assert _decisions(explanation) == len(verdicts)
        for step in explanation.steps:
            if isinstance(step, timeline.Aborted) and step.phase_before in OPEN:
                assert all(
                    each.victim_rule and each.victim_event and each.winner_event
                    for each in step.lost_conflicts
                ), step


def _decisions(explanation: Explanation) -> int:
    """Number of decisions on the transaction itself in its explanation."""
    one_each = timeline.Admitted | timeline.Granted | timeline.Skipped | timeline.Aborted
    return sum(
        each.times if isinstance(each, timeline.Renewed) else isinstance(each, one_each)
        for each in explanation.steps
    )


def test_the_documentation_names_every_kind_of_step_with_its_json_fields() -> None:
    """Programs read them."""
    text = (Path(__file__).parents[4] / "docs" / "explain.md").read_text(encoding="utf-8")
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}

    for kind in get_args(timeline.Step):
        row = rows[KINDS[kind]]
        if kind is timeline.Opened:
            continue  # the intent's own fields
        for each in fields(kind):
            name = json_name(kind, each.name)
            assert name == "where" or f"`{name}`" in row, (kind, name)
