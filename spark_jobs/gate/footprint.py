"""The footprint of a transaction, read back from Kafka.

The driver knows its own markers and those that an abort names. It doesn't know the markers that executors published, least
of all those of tasks whose job was cancelled. All of them are in the table's partition of `writers`, between the intent and
the present end, so a retry or a clean-up reads them there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from lakewarden.events import (
    ALL_FILE_GROUPS,
    CommitCompleted,
    CommitIntent,
    CommitRequested,
    ConflictEntry,
    Marker,
    MarkerCreated,
    TransactionAbandoned,
    WriterEventUnion,
)
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


def overlap(mine: Iterable[Marker], theirs: Iterable[Marker]) -> bool:
    """Return whether two sets of markers have a file group in common, whatever is done to it."""
    groups: dict[str, set[str]] = {}
    for marker in mine:
        groups.setdefault(marker.partition, set()).add(marker.file_group)
    return any(
        marker.partition in groups
        and (
            ALL_FILE_GROUPS in (marker.file_group, *groups[marker.partition])
            or marker.file_group in groups[marker.partition]
        )
        for marker in theirs
    )


def precise(declared: Iterable[Marker], touched: Iterable[Marker]) -> tuple[Marker, ...]:
    """Return what was touched. In a partition without a marker beyond the declared scope, that is the scope."""
    scope = dict.fromkeys(declared)
    beyond = tuple(marker for marker in dict.fromkeys(touched) if marker not in scope)
    finer = {marker.partition for marker in beyond}
    return (*beyond, *(marker for marker in scope if marker.partition not in finer))


@dataclass(slots=True)
class _Seen:
    """A transaction as the events show it. Numbers are places among these events."""

    table: str
    writer: str
    intent: int | None = None
    end: int | None = None
    last: int = 0
    scope: tuple[Marker, ...] = ()
    markers: list[Marker] = field(default_factory=list)


def waited_for(events: Sequence[WriterEventUnion], transaction: str) -> set[str]:
    """Return the transactions ahead of a queued one: begun before it, not ended by then, and overlapping its scope.

    `events` are those of its partition of `writers`. A transaction whose intent they don't show counts.
    """
    seen = _transactions(events)
    me = seen.get(transaction)
    if me is None or me.intent is None:
        return set()
    return {
        name
        for name, other in seen.items()
        if other.table == me.table
        and other.writer != me.writer
        and (other.intent is None or other.intent < me.intent < other.last)
        and (other.end is None or other.end > me.intent)
        and (other.intent is None or overlap(me.scope, (*other.scope, *other.markers)))
    }


def writers_ahead(events: Sequence[WriterEventUnion], transaction: str) -> tuple[str, ...]:
    """Return the names of the writers whose transactions are ahead (`waited_for`) and have not ended, sorted."""
    seen = _transactions(events)
    open_ones = (seen[name] for name in waited_for(events, transaction) if seen[name].end is None)
    return tuple(sorted({one.writer for one in open_ones}))


def met(
    events: Sequence[WriterEventUnion], transaction: str, touched: Iterable[Marker], others: Iterable[str]
) -> bool | None:
    """Return whether a transaction touched what one of the others touched. None if `events` don't show all of them.

    `touched` are its markers besides those in `events`. Where another one published nothing beyond its scope, that counts.
    """
    seen = _transactions(events)
    me = seen.get(transaction)
    known = [seen[name] for name in others if name in seen and seen[name].intent is not None]
    mine = (*touched, *(me.markers if me else ()))
    if any(overlap(mine, precise(other.scope, other.markers)) for other in known):
        return True
    return False if len(known) == len(set(others)) else None


def _transactions(events: Sequence[WriterEventUnion]) -> dict[str, _Seen]:
    seen: dict[str, _Seen] = {}
    for number, event in enumerate(events):
        one = seen.setdefault(event.transaction, _Seen(event.table, event.writer))
        one.last = number
        match event:
            case CommitIntent():
                one.intent, one.scope = number, event.scope
            case MarkerCreated() | CommitRequested():
                one.markers.extend(event.markers)
            case CommitCompleted() | TransactionAbandoned():
                one.end = number
            case _:
                pass
    return seen
