"""`lakewarden ledger show`: what the ledger topic has for each writer of each table."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from lakewarden.agent.kafka import partitions_of, read_to_end
from lakewarden.agent.serving.log_records import decoded_ledger
from lakewarden.agent.settings import KafkaSettings
from lakewarden.events import BatchCommitted, ConflictsLost, LedgerEventUnion
from lakewarden.handlers.table.ledger import events_in_force


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

    @staticmethod
    def of(batch: BatchCommitted | None, lost: ConflictsLost | None) -> LedgerLine:
        """The line of the two entries in force; at least one of them is not None."""
        either = batch or lost
        assert either is not None
        line = LedgerLine(
            either.table, either.writer, None, None, None, None, None, 0 if lost is None else lost.losses
        )
        if batch is None:
            return line
        return replace(
            line,
            batch_id=batch.batch_id,
            transaction=batch.transaction,
            version=batch.version,
            recorded=batch.at.isoformat(timespec="milliseconds"),
            corrected_at=batch.corrected_at,
        )


async def ledger(settings: KafkaSettings, names: Collection[str] = ()) -> list[LedgerLine]:
    """The lines of these tables and writers, or of all. A streaming query's writer may be named without its query id."""
    batches: dict[tuple[str, str], BatchCommitted] = {}
    losses: dict[tuple[str, str], ConflictsLost] = {}
    for partition in await partitions_of(settings, settings.topics.ledger):
        records = await read_to_end(settings, {partition: None})
        for entry in events_in_force(decoded_ledger(records[partition])):
            if not names or _matches(entry, names):
                if isinstance(entry, BatchCommitted):
                    batches[entry.table, entry.writer] = entry
                elif entry.losses:
                    losses[entry.table, entry.writer] = entry
    return [LedgerLine.of(batches.get(key), losses.get(key)) for key in sorted({*batches, *losses})]


def _matches(entry: LedgerEventUnion, names: Collection[str]) -> bool:
    """A wire name is `<writer>:<query id>` for a streaming query."""
    return entry.table in names or entry.writer in names or entry.writer.rpartition(":")[0] in names
