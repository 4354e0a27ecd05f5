"""Taking partitions over: what was committed, decided and recorded of them is read, for their owners to replay.

In this order, and each for its reason:

1. Each owner says that the partition is its own. Only when that is in the log the decisions are read: what a former owner says
   after it does not count (`handlers/table/replay.py`).
2. Where the group stands tells from which event on, and from which decision on.
3. Decisions and ledger are read to their ends.
4. Only then the ends of `writers` are asked, up to which nothing is decided anew: whatever was decided before has its cause
   before them.
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
    """Give these owners all that they need; one that was given up meanwhile gets nothing."""
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
        spans[TopicPartition(topics.decisions, number)] = starts[number].decided.offset
        spans[TopicPartition(topics.ledger, number)] = None
    records = await read_to_end(settings, spans)
    ends = await consumer.end_offsets(list(writers.values()))
    for owner in owners:
        if owner.phase == "loading":
            owner.load(
                starts[owner.number].offset,
                ends[writers[owner.number]],
                starts[owner.number].decided,
                records[TopicPartition(topics.decisions, owner.number)],
                records[TopicPartition(topics.ledger, owner.number)],
            )


def _start(
    number: int, known: OffsetAndMetadata | None, beginning: int, partitions: int, settings: Settings
) -> Checkpoint:
    """Where the replay of a partition begins."""
    offset, metadata = (known.offset, known.metadata) if known else (-1, "")
    require_same_partitions(recorded_partitions(metadata), partitions, settings)
    if 0 <= offset < beginning:
        log.error(
            "log.beginning-lost",
            partition=number,
            committed=offset,
            beginning=beginning,
            detail="retention removed events of open transactions; they are aborted as unknown when heard of",
        )
    return Checkpoint(max(offset, beginning), decisions_position(metadata))
