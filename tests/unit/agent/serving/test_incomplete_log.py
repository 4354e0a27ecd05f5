"""A take-over of a partition whose log in Kafka was cut, truncated or created again. Kafka is in memory."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import anyio
import anyio.lowlevel
import pytest
from structlog.testing import capture_logs

from lakewarden.agent.serving import takeover
from lakewarden.events import (
    Abort,
    Admitted,
    BatchCommitted,
    CommitGranted,
    CommitIntent,
    CommitRequested,
    MarkerCreated,
    encode,
)
from tests.unit.agent.serving.log_scene import (
    SETTINGS,
    TABLE,
    TOPICS,
    Kafka,
    Scene,
    marker,
    scene,
    with_history,
)

__all__ = ["scene"]


async def test_a_complete_log_is_replayed_without_an_error(scene: Scene) -> None:
    await with_history(scene)
    end = scene.kafka.topics[TOPICS.decisions].end

    with capture_logs() as lines:
        owner = await scene.take_over()

    assert [each for each in lines if each["log_level"] == "error"] == []
    assert scene.decisions(Abort, end) == []
    assert sorted(each.id for each in owner.tables[TABLE].open()) == ["T1", "T3"]
    assert scene.kafka.moved_to == []


def lose_decisions_beginning(kafka: Kafka) -> None:
    kafka.topics[TOPICS.decisions].cut(kafka.topics[TOPICS.decisions].end)


def lose_events_beginning(kafka: Kafka) -> None:
    kafka.topics[TOPICS.writers].cut(4)


def lose_events_end(kafka: Kafka) -> None:
    kafka.topics[TOPICS.writers].truncate(3)


def lose_decisions_end(kafka: Kafka) -> None:
    kafka.topics[TOPICS.decisions].truncate(2)


def create_again(topic: str, kafka: Kafka) -> None:
    kafka.topics[topic].create_again()


def write_over(topic: str, kafka: Kafka) -> None:
    """The end was lost, and other records have reached the same offsets."""
    end = kafka.topics[topic].end
    kafka.topics[topic].truncate(end - 1)
    kafka.topics[topic].append(b"k", b"{}")


LOSSES: list[tuple[Callable[[Kafka], None], str, str]] = [
    (lose_decisions_beginning, TOPICS.decisions, "beginning-lost"),
    (lose_events_beginning, TOPICS.writers, "beginning-lost"),
    (lose_events_end, TOPICS.writers, "end-lost"),
    (lose_decisions_end, TOPICS.decisions, "end-lost"),
    (partial(create_again, TOPICS.writers), TOPICS.writers, "end-lost"),
    (partial(create_again, TOPICS.decisions), TOPICS.decisions, "end-lost"),
    (partial(write_over, TOPICS.writers), TOPICS.writers, "replaced"),
    (partial(write_over, TOPICS.decisions), TOPICS.decisions, "replaced"),
]


@pytest.mark.parametrize(("lose", "topic", "problem"), LOSSES)
async def test_a_loss_is_logged_and_no_transaction_of_before_is_granted_after_it(
    scene: Scene, lose: Callable[[Kafka], None], topic: str, problem: str
) -> None:
    """Before, T1 and T3 were granted without a look at what T2 had committed, or the agent read nothing any more."""
    await with_history(scene)
    lose(scene.kafka)
    end = scene.kafka.topics[TOPICS.decisions].end

    with capture_logs() as lines:
        owner = await scene.take_over()
    for transaction in ("T1", "T3"):
        scene.send(MarkerCreated, transaction, markers=marker())
        scene.send(CommitRequested, transaction, seq=1)
    scene.send(CommitIntent, "N")
    scene.consume(owner)
    before_the_lock = scene.decisions(Admitted, end)
    scene.lock(owner)

    [line] = [each for each in lines if each["event"] == "log.incomplete"]
    assert (line["topic"], line["problem"], line["partition"]) == (topic, problem, 0)
    assert scene.decisions(CommitGranted, end) == []
    assert {"T1", "T3"} <= set(scene.decisions(Abort, end)) <= {"T1", "T2", "T3"}
    assert before_the_lock == []
    assert scene.decisions(Admitted, end) == ["N"]


async def test_an_owner_that_is_replaced_at_once_leaves_the_gap_to_the_next(scene: Scene) -> None:
    """The first checkpoint after a loss would hide it, and a grant that the log lost may still run."""
    await with_history(scene)
    lose_decisions_beginning(scene.kafka)

    first = await scene.take_over()
    assert first.checkpoint() is None
    with capture_logs() as lines:
        await scene.take_over()

    assert [each["problem"] for each in lines if each["event"] == "log.incomplete"] == ["beginning-lost"]


async def test_after_a_lock_lease_the_loss_is_over_and_the_checkpoints_still_name_it(scene: Scene) -> None:
    await with_history(scene)
    lose_decisions_beginning(scene.kafka)
    owner = await scene.take_over()
    scene.clock[0] += SETTINGS.validity_seconds
    scene.commit(owner)
    end = scene.kafka.topics[TOPICS.decisions].end

    with capture_logs() as lines:
        again = await scene.take_over()

    assert [each for each in lines if each["event"] == "log.incomplete"] == []
    assert scene.decisions(Abort, end) == []
    checkpoint = again.checkpoint()
    assert checkpoint is not None
    assert [each.gap.problem for each in checkpoint.gaps] == ["beginning-lost"]


async def test_an_event_that_only_a_decision_remembers_is_missed(scene: Scene) -> None:
    """The last events before a crash are in no checkpoint yet, and an unclean leader election removes them."""
    owner = await with_history(scene)
    scene.send(MarkerCreated, "T1", markers=())
    scene.send(CommitRequested, "T3", seq=1)
    scene.consume(owner)
    assert scene.decisions(CommitGranted) == ["T2", "T3"]
    scene.kafka.topics[TOPICS.writers].truncate(6)

    with capture_logs() as lines:
        await scene.take_over()

    [line] = [each for each in lines if each["event"] == "log.incomplete"]
    assert (line["problem"], line["expected"], line["found"]) == ("end-lost", 8, 6)


async def test_decisions_that_are_truncated_while_the_owner_runs_end_its_session(scene: Scene) -> None:
    """Kafka acknowledges the next decision at an offset that an earlier decision had."""
    owner = await with_history(scene)
    scene.kafka.topics[TOPICS.decisions].truncate(1)

    scene.send(CommitIntent, "N")
    scene.consume(owner)

    assert owner.cut is not None
    assert TOPICS.decisions in owner.cut


async def test_decisions_that_were_lost_before_the_last_checkpoint_are_missed_by_the_next_owner(
    scene: Scene,
) -> None:
    """Seed 39 of the simulation: the session that noticed it ended with a checkpoint that named the decision written since."""
    owner = await with_history(scene)
    scene.kafka.topics[TOPICS.decisions].truncate(1)
    for transaction in ("A", "B", "C", "D", "E", "F"):
        scene.send(CommitIntent, transaction)
    scene.consume(owner)
    scene.commit(owner)
    end = scene.kafka.topics[TOPICS.decisions].end

    with capture_logs() as lines:
        await scene.take_over()

    assert [each["problem"] for each in lines if each["event"] == "log.incomplete"] == ["replaced"]
    assert {"T1", "T3"} <= set(scene.decisions(Abort, end))


async def test_a_long_ledger_leaves_the_event_loop_to_other_tasks(scene: Scene) -> None:
    """Meanwhile the locks of other partitions are renewed, and heartbeats to the group are sent."""
    await scene.take_over()
    ledger = scene.kafka.topics[TOPICS.ledger]
    entry = BatchCommitted(
        event_id="e", table=TABLE, transaction="T", writer="w", at=datetime.now(UTC), batch_id=1
    )
    for _ in range(10 * takeover.RECORDS_AT_ONCE):
        ledger.append(b"k", encode(entry))
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take_turns)
        owner = await scene.take_over()
        tasks.cancel_scope.cancel()

    assert turns >= 10
    assert owner._tables.ledger.tables[TABLE].batches["w"].batch_id == 1
