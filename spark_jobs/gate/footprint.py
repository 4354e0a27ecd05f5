"""The footprint of a transaction, read back from Kafka.

The driver knows its own markers and those that an abort names. It doesn't know the markers that executors published, least
of all those of tasks whose job was cancelled. All of them are in the table's partition of `writers`, between the intent and
the present end, so a retry or a clean-up reads them there.
"""

from __future__ import annotations

from lakewarden.events import CommitRequested, ConflictEntry, Marker, MarkerCreated
from lakewarden.spark_jobs.gate.channel import Channel
from lakewarden.spark_jobs.gate.errors import GateError
from lakewarden.spark_jobs.gate.logs import EventLogger

log = EventLogger("lakewarden.gate")


def as_marker(entry: ConflictEntry) -> Marker:
    """Return the aborted transaction's own marker that an entry of the abort names."""
    return Marker(partition=entry.partition, file_group=entry.file_group, operation=entry.operation)


def published_markers(
    channel: Channel, table: str, writer: str, transaction: str, *, since: int, timeout: float
) -> tuple[Marker, ...]:
    """Return the transaction's markers in `writers` from offset `since` on. If Kafka doesn't answer, log it; return none."""
    try:
        events = channel.read_back(table, since, timeout)
    except GateError as error:
        log.warning("gate.footprint-incomplete", table=table, transaction=transaction, error=str(error))
        return ()
    return tuple(
        marker
        for event in events
        if isinstance(event, MarkerCreated | CommitRequested)
        and (event.table, event.writer, event.transaction) == (table, writer, transaction)
        for marker in event.markers
    )
