"""`lakewarden ledger show`: what the ledger topic has for each writer of each table."""

from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from dataclasses import dataclass, replace

from aiokafka import TopicPartition

from lakewarden.agent.log import Log
from lakewarden.agent.serving.log_records import decoded_all
from lakewarden.agent.serving.takeover import RECORDS_READ_AT_ONCE
from lakewarden.agent.settings import KafkaSettings
from lakewarden.events import LEDGER_EVENT, ConflictsLost, LedgerEventUnion
from lakewarden.handlers.table.ledger import InForce


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
    edition: str | None = None
    """In the writer's name in the table, `<writer>~<edition>`, since a correction that lowered its last batch."""


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
        edition=entry.edition,
    )


async def ledger(settings: KafkaSettings, names: Collection[str] = ()) -> list[LedgerLine]:
    """The lines of these tables and writers, or of all. A streaming query's writer may be named without its query id."""
    lines: dict[tuple[str, str], LedgerLine] = {}
    async with Log(settings) as log, aclosing(_entries_in_force(log)) as entries:
        async for entry in entries:
            if not names or _matches(entry, names):
                key = entry.table, entry.writer
                lines[key] = line_of(entry, lines.get(key))
    return [lines[key] for key in sorted(lines) if lines[key].transaction is not None or lines[key].losses]


async def _entries_in_force(log: Log) -> AsyncGenerator[LedgerEventUnion]:
    """Each entry of the ledger that is in force when it is read; a later one may replace it. Close the generator (`aclosing`).

    The topic is read as a stream, because it may be longer than what is in force.
    """
    partitions = await log.partitions(log.topics.ledger)
    in_force = {each: InForce() for each in partitions}
    spans: dict[TopicPartition, int | None] = dict.fromkeys(partitions)
    async with aclosing(log.batches(spans, max_records=RECORDS_READ_AT_ONCE)) as batches:
        async for partition, records in batches:
            for record in decoded_all(LEDGER_EVENT, records):
                if (entry := in_force[partition].replaces(record)) is not None:
                    yield entry


def _matches(entry: LedgerEventUnion, names: Collection[str]) -> bool:
    """A wire name is `<writer>:<query id>` for a streaming query."""
    return entry.table in names or entry.writer in names or entry.writer.rpartition(":")[0] in names
