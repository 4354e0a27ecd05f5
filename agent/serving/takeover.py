"""Partition take-over: read the checkpoints, decisions and ledger of partitions, and pass them to their owners for the replay.

The order of the steps matters:

1. Each owner publishes `partition-taken`, and only then the decisions are read. Decisions that a former owner publishes after it
   don't count (`handlers/table/replay.py`).
2. The checkpoints determine from which event and from which decision on the owners replay.
3. Decisions and ledger are read to their ends.
4. Only then the end offsets of `writers` are requested, up to which the owners decide nothing. Every decision that was read has
   its cause before these ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from lakewarden.agent.kafka import committed_offsets, partitions_known, read_to_end
from lakewarden.agent.publisher import Publisher
from lakewarden.agent.serving.checkpoint import (
    Checkpoint,
    decisions_position,
    recorded_partitions,
    require_same_partitions,
)
from lakewarden.agent.serving.partition import PartitionOwner
from lakewarden.agent.settings import Settings

log = structlog.get_logger()


async def load(
    owners: Sequence[PartitionOwner],
    settings: Settings,
    consumer: AIOKafkaConsumer,
    publisher: Publisher,
    partitions: int,
) -> None:
    """Load these owners. An owner whose partition was revoked meanwhile is skipped."""
    topics = settings.topics
    require_same_partitions(partitions_known(consumer, topics.writers), partitions, settings)
    for owner in owners:
        owner.publish_takeover()
    await publisher.flush()
    committed = await committed_offsets(settings, settings.group)
    writers = {owner.number: TopicPartition(topics.writers, owner.number) for owner in owners}
    beginnings = await consumer.beginning_offsets(list(writers.values()))
    starts: dict[int, Checkpoint] = {}
    spans: dict[TopicPartition, int | None] = {}
    for number, partition in writers.items():
        starts[number] = _start(number, committed.get(partition), beginnings[partition], partitions, settings)
        spans[TopicPartition(topics.decisions, number)] = starts[number].decisions.offset
        spans[TopicPartition(topics.ledger, number)] = None
    records = await read_to_end(settings, spans)
    ends = await consumer.end_offsets(list(writers.values()))
    for owner in owners:
        if owner.phase == "loading":
            owner.load(
                starts[owner.number].offset,
                ends[writers[owner.number]],
                starts[owner.number].decisions,
                records[TopicPartition(topics.decisions, owner.number)],
                records[TopicPartition(topics.ledger, owner.number)],
            )


def _start(
    number: int, known: OffsetAndMetadata | None, beginning: int, partitions: int, settings: Settings
) -> Checkpoint:
    """The checkpoint at which the replay of a partition starts."""
    offset, metadata = (known.offset, known.metadata) if known else (-1, "")
    require_same_partitions(recorded_partitions(metadata), partitions, settings)
    if 0 <= offset < beginning:
        log.error(
            "log.beginning-lost",
            partition=number,
            committed=offset,
            beginning=beginning,
            detail="retention has removed events of open transactions; each gets unknown-transaction at its next event",
        )
    return Checkpoint(max(offset, beginning), decisions_position(metadata))
