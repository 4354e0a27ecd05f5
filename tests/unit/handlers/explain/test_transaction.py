"""An explanation is built from the events and decisions of the log, and from nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from lakewarden.agent.operators.explain import explanation_fields
from lakewarden.agent.operators.explain_text import explanation_lines
from lakewarden.events import (
    Abort,
    AuditEventUnion,
    CommitGranted,
    ConflictDetected,
    LockLost,
    LockRefused,
    PartitionTaken,
    partition_name,
)
from lakewarden.handlers.explain.timeline import Because, Explanation, RecordRef, TransactionRef
from lakewarden.handlers.table.transactions import OPEN, Phase
from tests.unit.handlers.explain.explained import SECOND, explanation_of, one, published, reference, types
from tests.unit.handlers.table.test_table_stateful import history
from tests.unit.handlers.table.world import AT, TABLE, World, m, world


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

    assert types(explanation) == [
        "commit-intent",
        "admitted",
        "marker-created",
        "commit-requested",
        "commit-granted",
        "grant-renewed",
        "commit-completed",
    ]
    assert (explanation.outcome.phase, explanation.outcome.version) == (Phase.COMMITTED, "17")
    assert explanation.transaction == TransactionRef("A", "w-A", 4, 0)
    touched = one(explanation, "marker-created")
    assert (touched.first.offset, touched.record.offset, touched.times) == (1, 2, 2)
    assert (touched.because.markers, touched.because.new, touched.because.partitions) == (3, 2, ("p",))
    granted = one(explanation, "commit-granted")
    assert isinstance(granted.event, CommitGranted)
    assert (granted.record.offset, granted.event.seq, granted.event.lock_owner) == (1, 2, "agent-1")
    assert granted.because.cause is not None
    assert (granted.because.cause.record.offset, granted.event.cause_offset) == (4, 4)
    assert one(explanation, "commit-completed").because.phase_before is Phase.GRANTED
    assert (explanation.heartbeats.count, explanation.markers, explanation.waits_for) == (2, 2, ())


def test_a_commit_is_explained_that_is_reported_after_the_grant_lease_expired() -> None:
    """The writer was cut off, read the table, and reported what it found."""
    w = world().intent("A").lock().request("A").tick(21).complete("A", version="9")

    explanation = explanation_of(w, "A")

    assert abort(explanation).reason == "outcome-unknown"
    lapse = one(explanation, "abort").because
    assert (lapse.phase_before, lapse.cause) == (Phase.GRANTED, None)
    assert one(explanation, "commit-completed").because.phase_before is Phase.UNKNOWN
    assert (explanation.outcome.phase, explanation.outcome.version) == (Phase.COMMITTED, "9")


def test_a_revoked_grant_stays_granted_until_its_outcome_is_known() -> None:
    """The agent lost the lock while the writer published; the commit had landed."""
    w = world().intent("A").lock().request("A").lose_lock("renewal not confirmed")

    meanwhile = explanation_of(w, "A").outcome
    explanation = explanation_of(w.complete("A", version="2"), "A")

    assert (meanwhile.phase, meanwhile.reason, meanwhile.record) == (Phase.GRANTED, "lease-lost", None)

    assert abort(explanation).reason == "lease-lost"
    assert one(explanation, "abort").because.phase_before is Phase.GRANTED
    assert explanation.outcome.phase is Phase.COMMITTED


def test_events_after_the_end_are_counted_and_change_nothing() -> None:
    """Executors of an aborted job continue for a moment; the driver still requests its grant."""
    w = world().intent("A").touch("A", m("p/f")).intent("B").touch("B", m("p/f"))
    w.touch("B", m("p/g")).touch("B", m("p/h")).request("B")

    explanation = explanation_of(w, "B")

    expected = "commit-intent admitted marker-created abort -marker-created -commit-requested abort"
    assert types(explanation) == expected.split()
    late, again = explanation.steps[4], explanation.steps[-1]
    assert (late.times, late.because.phase_before) == (2, Phase.ABORTED)
    assert again.because.phase_before is Phase.ABORTED
    assert explanation.markers == 1


def test_a_repeated_delivery_is_counted_as_such() -> None:
    """A producer sent the event twice."""
    w = world().intent("A").touch("A", m("p/f"))
    w.read(next(each[0] for each in w.log if isinstance(each, tuple) and each[1] == 1))

    explanation = explanation_of(w, "A")

    assert (explanation.repeated, one(explanation, "marker-created").times) == (1, 1)


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

    assert types(explanation) == [
        "commit-intent",
        "admitted",
        "partition-taken",
        "commit-requested",
        "-commit-granted",
    ]
    void = explanation.steps[-1].because
    assert void.taken_at is not None
    assert (void.taken_by, void.taken_at.offset) == ("agent-2", 1)
    text = "DOES NOT COUNT: commit-granted by agent agent-1, after agent agent-2 had taken over the partition"
    assert text in "\n".join(explanation_lines(explanation))
    assert explanation.outcome.phase is Phase.WAITING


def test_a_take_over_is_a_step_at_its_place() -> None:
    """A restart in between shows the operator why the commit took so long."""
    w = world().intent("A").lock().touch("A", m("p/f")).request("A")
    admitted, granted = published(w)
    taken = PartitionTaken(event_id="t", table=partition_name(0), at=AT, agent="agent-2", term="term-2")
    later = granted[1].model_copy(update={"term": "term-2", "agent": "agent-2"})
    decisions = [admitted, (reference("decisions", 1, 1_500), taken), (replace(granted[0], offset=2), later)]

    explanation = explanation_of(w, "A", decisions)

    assert types(explanation) == [
        "commit-intent",
        "admitted",
        "marker-created",
        "partition-taken",
        "commit-requested",
        "commit-granted",
    ]


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

    assert types(explanation) == [
        "commit-intent",
        "admitted",
        "commit-requested",
        "lock-refused",
        "commit-granted",
        "abort",
        "lock-lost",
        "commit-completed",
    ]
    assert one(explanation, "lock-refused").times == 2
    assert "which owner foreign holds until" in "\n".join(explanation_lines(explanation))


def test_an_abort_has_the_detection_times_of_the_agent() -> None:
    """The times in the log are too coarse for them."""
    w = world().intent("A").touch("A", m("p/f")).intent("B").touch("B", m("p/f"))
    reports = tuple(w.of(ConflictDetected))

    because = one(explanation_of(w, "B", reports=reports), "abort").because

    assert (because.detected_after_ms, because.victim_age_seconds) != (None, None)
    assert ", 0.0 s after it read the intent" in "\n".join(
        explanation_lines(explanation_of(w, "B", reports=reports))
    )


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

    text = "nothing to do: the batch is already committed, by A as version 5"
    assert text in "\n".join(explanation_lines(explanation))
    assert (explanation.outcome.phase, explanation.outcome.reason) == (Phase.COMMITTED, "already-committed")


def test_a_transaction_whose_intent_was_removed_has_an_explanation() -> None:
    """Retention removed its intent while no agent ran."""
    w = world().touch("A", m("p/f"))

    explanation = explanation_of(w, "A")

    assert types(explanation) == ["-marker-created", "abort"]
    assert (explanation.outcome.phase, explanation.outcome.reason) == (Phase.ABORTED, "unknown-transaction")
    assert explanation.transaction.sequence is None


def test_a_commit_of_a_transaction_whose_intent_was_removed_is_a_commit() -> None:
    """The log contains no grant for it."""
    explanation = explanation_of(world().complete("A", version="3"), "A")

    assert (explanation.outcome.phase, explanation.outcome.version) == (Phase.COMMITTED, "3")
    assert one(explanation, "commit-completed").because.phase_before is None


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
        assert types(explanation)[0] == "commit-intent"
        assert len(list(explanation_lines(explanation))) > len(explanation.steps)
        decided = [each for each in explanation.steps if each.record.topic == "decisions"]
        own = [each for each in decided if each.event.transaction == transaction]
        verdicts = [each for each in w.log if not isinstance(each, tuple) and each.transaction == transaction]
        assert sum(each.times for each in own) == len(verdicts)
        for step in own:
            if step.event.type == "abort" and step.because.phase_before in OPEN:
                assert all(
                    each.victim_rule and each.victim_event and each.winner_event
                    for each in step.because.lost_conflicts
                ), step


def test_the_json_of_a_step_is_that_of_its_event_and_because() -> None:
    """Programs that read the log read an explanation, too; what a step doesn't say is not in its JSON."""
    w = world().intent("A").lock().request("A")

    [*_, granted] = explanation_fields(explanation := explanation_of(w, "A"))["steps"]

    assert granted == {
        **explanation.steps[-1].event.model_dump(mode="json"),
        "record": {"topic": "decisions", "offset": 1, "recorded_ms": 1_500},
        "first": {"topic": "decisions", "offset": 1, "recorded_ms": 1_500},
        "times": 1,
        "because": {
            "cause": {
                "type": "commit-requested",
                "transaction": "A",
                "writer": "w-A",
                "record": {"topic": "writers", "offset": 1, "recorded_ms": 1_000},
            },
            "waited_ms": 500,
            "unblocked_ms": 500,
        },
    }


def test_the_documentation_names_every_field_of_because() -> None:
    """Programs read them."""
    text = (Path(__file__).parents[4] / "docs" / "explain.md").read_text(encoding="utf-8")

    assert [each.name for each in fields(Because) if f"| `{each.name}`" not in text] == []


def abort(explanation: Explanation) -> Abort:
    event = one(explanation, "abort").event
    assert isinstance(event, Abort)
    return event
