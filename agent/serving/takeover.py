"""Partition take-over: read the checkpoints, decisions and ledger of partitions, and pass them to their owners for the replay.

The order of the steps matters:

1. Each owner publishes `partition-taken`, and only then the decisions are read. Decisions that a former owner publishes after it
   don't count (`handlers/table/replay.py`).
2. The checkpoints determine from which event and from which decision on the owners replay. If the log lacks something that a
   checkpoint relies on, `handlers/table/log_gaps.py` says what, and where the replay starts instead.
3. Decisions and ledger are read to their ends, as a stream: an owner keeps the entries in force, not the records. If decisions
   were removed since step 2 that the replay needs, the session ends, and the next take-over finds the gap.
4. Only then the end offsets of `writers` are requested, up to which the owners decide nothing. Every decision that was read has
   its cause before these ends.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import anyio.lowlevel
import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import IllegalStateError

from lakewarden.agent.kafka import partitions_known
from lakewarden.agent.log import Log
from lakewarden.agent.publisher import Publisher
from lakewarden.agent.serving.checkpoint import (
    Checkpoint,
    digest,
    recorded_partitions,
    require_same_partitions,
)
from lakewarden.agent.serving.partition.owner import PartitionOwner
from lakewarden.events import WRITER_EVENT, decode
from lakewarden.handlers.table.log_gaps import (
    Extent,
    Gap,
    LastRecord,
    find_correction_gap,
    find_gap,
    find_ledger_gap,
    replay_start,
)
from lakewarden.handlers.table.replay import Position

log = structlog.get_logger()

RECORDS_AT_ONCE = 200
"""Records that are decoded before other tasks run: about 2 ms of ledger entries, 30 ms of the largest usual decisions."""
RECORDS_READ_AT_ONCE = 5_000
"""Records that are in memory at once, beside what Kafka's client has fetched."""


@dataclass(frozen=True, slots=True)
class LedgerState:
    """Where the ledger of one partition begins, and what it lacks of what the checkpoint relies on."""

    beginning: int
    gap: Gap | None


@dataclass(frozen=True, slots=True)
class Start:
    """Where the replay of one partition starts."""

    checkpoint: Checkpoint | None
    """The one of the former owner."""
    offset: int
    decisions: Position
    gaps: tuple[Gap, ...]
    """What `writers` and `decisions` lack of what the checkpoint relies on."""


async def load(
    owners: Sequence[PartitionOwner],
    reading: Log,
    consumer: AIOKafkaConsumer,
    publisher: Publisher,
    partitions: int,
) -> None:
    """Load these owners. An owner whose partition is revoked during the take-over is skipped. `consumer`: the session's."""
    settings, topics = reading.settings, reading.topics
    require_same_partitions(partitions_known(consumer, topics.writers), partitions, settings)
    for owner in owners:
        owner.publish_takeover()
    await publisher.flush()
    starts = await find_starts(reading, [owner.number for owner in owners], partitions)
    spans: dict[TopicPartition, int | None] = {}
    for number, start in starts.items():
        spans[TopicPartition(topics.decisions, number)] = start.decisions.offset
        spans[TopicPartition(topics.ledger, number)] = None
    ledgers = await find_ledger_gaps(
        reading, starts, {owner.number: owner.takeover_in_ledger for owner in owners}
    )
    await _read(owners, reading, spans, starts)
    corrected = await _correction_gaps(owners, reading)
    ends = await reading.ends([TopicPartition(topics.writers, number) for number in starts])
    for owner in owners:
        if owner.phase != "loading":
            continue
        start, events = starts[owner.number], TopicPartition(topics.writers, owner.number)
        ledger = ledgers[owner.number]
        gaps = start.gaps if ledger.gap is None else (*start.gaps, ledger.gap)
        if (lost := corrected.get(owner.number)) is not None and not any(
            each.topic == topics.writers for each in gaps
        ):
            gaps = (*gaps, lost)
        if start.gaps or owner.follows_paused:
            _move(consumer, events, start.offset)
        owner.load(
            start.offset,
            ends[events],
            start.decisions,
            checkpoint=start.checkpoint,
            gaps=gaps,
            ledger_beginning=ledger.beginning,
        )


async def _read(
    owners: Sequence[PartitionOwner],
    reading: Log,
    spans: Mapping[TopicPartition, int | None],
    starts: Mapping[int, Start],
) -> None:
    """Pass decisions and ledger to their owners, a few records at a time, so that other tasks run between them."""
    by_number = {owner.number: owner for owner in owners}
    streaming = reading.batches(spans, max_records=RECORDS_READ_AT_ONCE, complete=True)
    async with aclosing(streaming) as batches:
        async for partition, records in batches:
            owner = by_number[partition.partition]
            for start in range(0, len(records), RECORDS_AT_ONCE):
                some = records[start : start + RECORDS_AT_ONCE]
                if partition.topic == reading.topics.ledger:
                    owner.replay.read_ledger(some)
                else:
                    owner.replay.read_decisions(starts[owner.number].decisions, some)
                await anyio.lowlevel.checkpoint()


async def find_starts(
    reading: Log, numbers: Collection[int], partitions: int | None = None
) -> dict[int, Start]:
    """Where the replay of these partitions starts, and what their logs lack.

    Raises `PartitionsChangedError` if a checkpoint was made with another number of partitions than `partitions`.
    """
    topics = reading.topics
    committed = await reading.committed()
    events = {number: TopicPartition(topics.writers, number) for number in numbers}
    decisions = {number: TopicPartition(topics.decisions, number) for number in numbers}
    both = [*events.values(), *decisions.values()]
    beginnings, ends = await reading.beginnings(both), await reading.ends(both)
    checkpoints: dict[int, Checkpoint | None] = {}
    last: dict[TopicPartition, LastRecord] = {}
    for number in numbers:
        known = committed.get(events[number])
        if partitions is not None:
            recorded = recorded_partitions(known.metadata) if known else None
            require_same_partitions(recorded, partitions, reading.settings)
        checkpoint = Checkpoint.parse(known.offset, known.metadata) if known and known.offset >= 0 else None
        checkpoints[number] = checkpoint
        if checkpoint is not None and checkpoint.read is not None:
            last[events[number]] = checkpoint.read
        if checkpoint is not None and checkpoint.published is not None:
            last[decisions[number]] = checkpoint.published
    digests = await _digests(reading, last, beginnings, ends)
    starts: dict[int, Start] = {}
    for number, checkpoint in checkpoints.items():
        extents = tuple(
            Extent(beginnings[each], ends[each], digests.get(each))
            for each in (events[number], decisions[number])
        )
        position = Position(0, None) if checkpoint is None else checkpoint.decisions
        offset = None if checkpoint is None else checkpoint.offset
        found = (
            find_gap(topics.writers, offset, last.get(events[number]), extents[0]),
            find_gap(
                topics.decisions,
                None if checkpoint is None else position.offset,
                last.get(decisions[number]),
                extents[1],
            ),
        )
        first, first_decision = replay_start(offset, position, found, (extents[0], extents[1]))
        gaps = tuple(each for each in found if each is not None)
        starts[number] = Start(checkpoint, first, first_decision, gaps)
    return starts


async def _digests(
    reading: Log,
    last: Mapping[TopicPartition, LastRecord],
    beginnings: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> dict[TopicPartition, str]:
    """The digests of the records at the offsets of these, without those where there is no record."""
    offsets = {
        where: each.offset for where, each in last.items() if beginnings[where] <= each.offset < ends[where]
    }
    records = await reading.read(offsets, {each: offset + 1 for each, offset in offsets.items()})
    return {
        partition: digest(found[0].value)
        for partition, found in records.items()
        if found and found[0].offset == offsets[partition]
    }


async def find_ledger_gaps(
    reading: Log, starts: Mapping[int, Start], ends: Mapping[int, int] | None = None
) -> dict[int, LedgerState]:
    """What the ledger lacks of what the checkpoints rely on.

    `ends`: where it ended before the owners' own `partition-taken`. None: now.
    """
    topic = reading.topics.ledger
    where = {number: TopicPartition(topic, number) for number in starts}
    beginnings = await reading.beginnings(where.values())
    if ends is None:
        ended = await reading.ends(where.values())
    else:
        ended = {each: ends[number] for number, each in where.items()}
    last = {
        where[number]: start.checkpoint.entry
        for number, start in starts.items()
        if start.checkpoint is not None and start.checkpoint.entry is not None
    }
    digests = await _digests(reading, last, beginnings, ended)
    found: dict[int, LedgerState] = {}
    for number, each in where.items():
        extent = Extent(beginnings[each], ended[each], digests.get(each))
        checkpoint = starts[number].checkpoint
        gap = find_ledger_gap(
            topic,
            None if checkpoint is None else checkpoint.ledger_beginning,
            0 if checkpoint is None else checkpoint.ledger_end,
            last.get(each),
            extent,
        )
        found[number] = LedgerState(extent.beginning, gap)
    return found


async def _correction_gaps(owners: Sequence[PartitionOwner], reading: Log) -> dict[int, Gap]:
    """What the corrections that the ledger names show to be missing in `writers`, by partition."""
    topic = reading.topics.writers
    named = {
        TopicPartition(topic, owner.number): correction
        for owner in owners
        if (correction := owner.tables.ledger.last_correction()) is not None
    }
    if not named:
        return {}
    beginnings, ends = await reading.beginnings(named), await reading.ends(named)
    records = await reading.read(
        {each: correction.offset for each, correction in named.items() if correction.offset < ends[each]},
        {each: correction.offset + 1 for each, correction in named.items()},
    )
    found: dict[int, Gap] = {}
    for where, correction in named.items():
        extent, event_id = Extent(beginnings[where], ends[where]), None
        for record in records.get(where, ()):
            event = decode(WRITER_EVENT, record.value)
            event_id = event.event_id
        gap = find_correction_gap(topic, correction, extent, event_id)
        if gap is not None:
            found[where.partition] = gap
    return found


def _move(consumer: AIOKafkaConsumer, partition: TopicPartition, offset: int) -> None:
    """Consume from `offset` on, instead of from the group's committed offset."""
    try:
        consumer.seek(partition, offset)
    except IllegalStateError:
        log.debug("partition.revoked-during-takeover", partition=partition.partition)
