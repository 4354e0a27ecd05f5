"""What a transaction touched, asked of the log: it has what the driver can't know.

A driver knows its own markers and those that an abort names. Executors publish theirs directly, and a task whose job is
cancelled takes its knowledge along. But all of them are in the table's one partition of `writers`, between the intent
and now; so they are read back from there when a retry, or a clean-up, needs to know.
"""

from __future__ import annotations

import structlog

from lakewarden.events import CommitRequested, ConflictEntry, Marker, MarkerCreated
from lakewarden.spark_jobs.gate.channel import Channel
from lakewarden.spark_jobs.gate.errors import GateError

log = structlog.get_logger("lakewarden.gate")


def as_marker(entry: ConflictEntry) -> Marker:
    """The own marker that an abort's entry names."""
    return Marker(partition=entry.partition, file_group=entry.file_group, operation=entry.operation)


def published_markers(
    channel: Channel, table: str, transaction: str, since: int, timeout: float
) -> tuple[Marker, ...]:
    """The transaction's markers in the log from its intent on; none, and a warning, where Kafka doesn't answer."""
    try:
        published = channel.read_back(table, since, timeout)
    except GateError as error:
        log.warning("gate.footprint-incomplete", table=table, transaction=transaction, error=str(error))
        return ()
    return tuple(
        marker
        for event in published
        if isinstance(event, MarkerCreated | CommitRequested) and event.transaction == transaction
        for marker in event.markers
    )
