"""The ledger has lost entries: what a take-over notices, and what a process that knew them records again. Kafka is in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.structs import OffsetAndMetadata
from structlog.testing import capture_logs

from lakewarden.agent.serving.partition.owner import PartitionOwner
from lakewarden.agent.serving.takeover import find_ledger_gaps, find_starts
from lakewarden.events import (
    LEDGER_EVENT,
    Abort,
    AlreadyCommitted,
    BatchCommitted,
    CommitCompleted,
    CommitIntent,
    CommitRequested,
    LedgerCorrected,
    decode,
)
from tests.unit.agent.serving.log_scene import (
    SETTINGS,
    TABLE,
    TOPICS,
    Kafka,
    Scene,
    only_grant,
    scene,
    with_history,
)

__all__ = ["scene"]

LEDGER = TOPICS.ledger


async def after_a_commit(scene: Scene) -> PartitionOwner:
    """Batch 7 of a writer is committed, in the ledger, and before the checkpoint. Nothing is open."""
    owner = await scene.take_over()
    scene.send(CommitIntent, "T", batch_id=7)
    scene.send(CommitRequested, "T", seq=1)
    scene.consume(owner)
    scene.lock(owner)
    scene.send(CommitCompleted, "T", grant=only_grant(scene), version="1")
    scene.consume(owner)
    scene.commit(owner)
    assert in_ledger(scene) == {"w-T": 7}
    return owner


def in_ledger(scene: Scene) -> dict[str, int | None]:
    """The last batches that the topic has, by writer."""
    return {
        found.writer: found.batch_id
        for each in scene.kafka.topics[LEDGER].records
        if isinstance(found := decode(LEDGER_EVENT, each.value), BatchCommitted)
    }


def errors(lines: list[Any]) -> list[tuple[str, str]]:
    return [(each["topic"], each["problem"]) for each in lines if each["event"] == "log.incomplete"]


def create_again(kafka: Kafka) -> None:
    kafka.topics[LEDGER].create_again()


def create_again_and_outgrow(kafka: Kafka) -> None:
    end = kafka.topics[LEDGER].end
    create_again(kafka)
    for _ in range(end + 3):
        kafka.topics[LEDGER].append(b"k", b"{}")


def lose_end(kafka: Kafka) -> None:
    kafka.topics[LEDGER].truncate(1)


def lose_beginning(kafka: Kafka) -> None:
    kafka.topics[LEDGER].cut(kafka.topics[LEDGER].end)


LOSSES: list[tuple[Callable[[Kafka], None], str]] = [
    (create_again, "end-lost"),
    (create_again_and_outgrow, "replaced"),
    (lose_end, "end-lost"),
    (lose_beginning, "beginning-lost"),
]


@pytest.mark.parametrize(("lose", "problem"), LOSSES)
async def test_a_loss_is_logged_once_and_the_checkpoints_name_it(
    scene: Scene, lose: Callable[[Kafka], None], problem: str
) -> None:
    await after_a_commit(scene)
    lose(scene.kafka)

    with capture_logs() as lines:
        scene.commit(await scene.take_over())
        owner = await scene.take_over()

    assert errors(lines) == [(LEDGER, problem)]
    checkpoint = owner.checkpoint()
    assert checkpoint is not None
    assert [(each.gap.topic, each.gap.problem) for each in checkpoint.gaps] == [(LEDGER, problem)]


@pytest.mark.parametrize(("lose", "problem"), LOSSES)
async def test_the_owner_that_knew_the_entries_records_them_again(
    scene: Scene, lose: Callable[[Kafka], None], problem: str
) -> None:
    """At the end of its session. Before, the batch was admitted again and written twice."""
    owner = await after_a_commit(scene)
    lose(scene.kafka)

    for record in owner.ledger_records():
        scene.kafka.put(record)
    with capture_logs() as lines:
        again = await scene.take_over()
    scene.send(CommitIntent, "again", batch_id=7, writer="w-T")
    scene.consume(again)

    assert [topic for topic, _ in errors(lines)] == [LEDGER], problem
    assert scene.decisions(AlreadyCommitted) == ["again"]


async def test_an_entry_recorded_again_replaces_no_later_correction(scene: Scene) -> None:
    """An operator has set the writer back. A replaced agent that was suspended before that records what it knew."""
    owner = await after_a_commit(scene)
    scene.send(LedgerCorrected, "C", writer="w-T", batch_id=3, operator="me", reason="restored")
    scene.consume(await scene.take_over())

    for record in owner.ledger_records():
        scene.kafka.put(record)
    again = await scene.take_over()

    assert again.tables[TABLE].ledger["w-T"].batch_id == 3


async def test_another_process_keeps_what_is_left_and_aborts_nothing(scene: Scene) -> None:
    """T2 committed after the checkpoint's offset, so its completion is replayed and recorded again."""
    await with_history(scene)
    create_again(scene.kafka)
    end = scene.kafka.topics[TOPICS.decisions].end

    with capture_logs() as lines:
        owner = await scene.take_over()

    [line] = [each for each in lines if each["event"] == "log.incomplete"]
    assert "written twice" in line["detail"]
    assert scene.decisions(Abort, end) == []
    assert sorted(each.id for each in owner.tables[TABLE].open()) == ["T1", "T3"]
    assert in_ledger(scene) == {"w-T2": 1}


@pytest.mark.parametrize("compacted", [False, True])
async def test_a_complete_ledger_is_no_error_even_if_compaction_removed_the_last_entry(
    scene: Scene, compacted: bool
) -> None:
    """A later entry of the same writer was published after the last checkpoint."""
    await after_a_commit(scene)
    if compacted:
        [last] = [
            each for each in scene.kafka.topics[LEDGER].records if b"batch-committed" in (each.value or b"")
        ]
        scene.kafka.topics[LEDGER].records.remove(last)
        scene.kafka.topics[LEDGER].compacted = 1

    with capture_logs() as lines:
        await scene.take_over()

    assert errors(lines) == []


async def test_a_checkpoint_of_an_earlier_release_is_compared_by_the_end_alone(scene: Scene) -> None:
    await after_a_commit(scene)
    where = TopicPartition(TOPICS.writers, 0)
    known = scene.kafka.committed[where]
    older = known.metadata.replace('"entry"', '"-"').replace('"ledger_beginning"', '"--"')
    scene.kafka.committed[where] = OffsetAndMetadata(known.offset, older)

    with capture_logs() as lines:
        await scene.take_over()
    assert errors(lines) == []
    create_again(scene.kafka)
    with capture_logs() as lines:
        await scene.take_over()
    assert errors(lines) == [(LEDGER, "end-lost")]


async def test_a_loss_is_shown_before_an_agent_takes_over(scene: Scene) -> None:
    await after_a_commit(scene)
    create_again(scene.kafka)
    consumer: Any = scene.kafka

    found = await find_ledger_gaps(SETTINGS, consumer, await find_starts(SETTINGS, consumer, [0]))

    gap = found[0].gap
    assert gap is not None
    assert gap.description == f"{LEDGER} ends at offset 0 and had reached 2"


async def test_an_entry_that_is_acknowledged_below_an_earlier_one_ends_the_session(scene: Scene) -> None:
    owner = await after_a_commit(scene)
    create_again(scene.kafka)

    scene.send(LedgerCorrected, "C", writer="w-T", batch_id=3, operator="me", reason="restored")
    scene.consume(owner)

    assert owner.cut is not None
    assert LEDGER in owner.cut
    assert owner.ledger_lost
