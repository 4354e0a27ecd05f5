"""`lakewarden ledger show`: what the ledger topic has for each writer of each table."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable
from contextlib import aclosing
from dataclasses import dataclass, replace

from aiokafka import TopicPartition

from lakewarden.agent.kafka import batches_to_end, partitions_of
from lakewarden.agent.serving.log_records import decoded_ledger
from lakewarden.agent.serving.takeover import RECORDS_READ_AT_ONCE
from lakewarden.agent.settings import KafkaSettings
from lakewarden.events import ConflictsLost, LedgerCopied, LedgerEventUnion
from lakewarden.handlers.table.ledger import InForce

COPIED = b'"type":"ledger-copied"'
"""Identifies a marker of `lakewarden migrate` without decoding the record."""


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """One writer of one table. The field names are the JSON of `lakewarden ledger show`."""

    table: str
    writer: str
    batch_id: int | None
    """Its last committed batch; batches with smaller ids are skipped too. None: no batch is recorded."""
    transaction: str | None
    """The transaction that committed it, or the correction that states it."""
    version: str | None
    recorded: str | None
    """When an agent recorded it, by its clock."""
    corrected_at: int | None
    """Offset in `writers` of the last correction by an operator."""
    losses: int
    """Conflicts lost in a row."""


def line_of(entry: LedgerEventUnion, known: LedgerLine | None = None) -> LedgerLine:
    """The line of an entry in force, added to what is known of its table and writer."""
    line = known or LedgerLine(entry.table, entry.writer, None, None, None, None, None, 0)
    if isinstance(entry, ConflictsLost):
        return replace(line, losses=entry.losses)
    return replace(
        line,
        batch_id=entry.batch_id,
        transaction=entry.transaction,
        version=entry.version,
        recorded=entry.at.isoformat(timespec="milliseconds"),
        corrected_at=entry.corrected_at,
    )


async def ledger(settings: KafkaSettings, names: Collection[str] = ()) -> list[LedgerLine]:
    """The lines of these tables and writers, or of all. A streaming query's writer may be named without its query id."""
    lines: dict[tuple[str, str], LedgerLine] = {}
    async with aclosing(entries_in_force(settings)) as entries:
        async for entry in entries:
            if not names or _matches(entry, names):
                key = entry.table, entry.writer
                lines[key] = line_of(entry, lines.get(key))
    return [lines[key] for key in sorted(lines) if lines[key].transaction is not None or lines[key].losses]


async def entries_in_force(settings: KafkaSettings) -> AsyncGenerator[LedgerEventUnion]:
    """Each entry of the ledger that is in force when it is read; a later one may replace it. Close the generator (`aclosing`).

    The topic is read as a stream, because it may be longer than what is in force.
    """
    partitions = await partitions_of(settings, settings.topics.ledger)
    in_force = {each: InForce() for each in partitions}
    spans: dict[TopicPartition, int | None] = dict.fromkeys(partitions)
    async with aclosing(batches_to_end(settings, spans, max_records=RECORDS_READ_AT_ONCE)) as batches:
        async for partition, records in batches:
            for record in decoded_ledger(records):
                if (entry := in_force[partition].replaces(record)) is not None:
                    yield entry


async def incomplete_copies(settings: KafkaSettings, numbers: Iterable[int]) -> dict[int, str]:
    """The Kafka partitions whose ledger `lakewarden migrate` has not finished copying, each with the source's prefix."""
    topic, found = settings.topics.ledger, dict[int, str]()
    spans: dict[TopicPartition, int | None] = {TopicPartition(topic, number): None for number in numbers}
    async with aclosing(batches_to_end(settings, spans, max_records=RECORDS_READ_AT_ONCE)) as batches:
        async for partition, records in batches:
            for entry in decoded_ledger(each for each in records if COPIED in (each.value or b"")):
                if isinstance(entry, LedgerCopied) and entry.complete:
                    found.pop(partition.partition, None)
                elif isinstance(entry, LedgerCopied):
                    found[partition.partition] = entry.source
    return found


def _matches(entry: LedgerEventUnion, names: Collection[str]) -> bool:
    """A wire name is `<writer>:<query id>` for a streaming query."""
    return entry.table in names or entry.writer in names or entry.writer.rpartition(":")[0] in names
