"""What the events of a table's writers show of two transactions: whether they overlap, and whether one waits for the other.

The agent decides who waits (`handlers/table/`). A writer reads the same log, and finds there for whom its own transaction waits.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from lakewarden import events as wire

_FORMATS: Final = ("delta", "hudi", "iceberg", "paimon")
_QUERY_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_OF_QUERY: Final = re.compile(rf"(.+):({_QUERY_ID.pattern})(~.*)?")
"""A writer's name, also as a table has it: with an edition."""

MAX_NAMESAKES: Final = 10


def without_query(writer: str) -> str:
    """A writer as people name it: `<name>` of `<name>:<query id>`."""
    name, _, query = writer.rpartition(":")
    return name if name and _QUERY_ID.fullmatch(query) else writer


def namesakes(writer: str, others: Iterable[str]) -> tuple[str, ...]:
    """Return the last `MAX_NAMESAKES` of the others that are this job by another query id, or its query by another job name."""
    own = _OF_QUERY.fullmatch(writer)
    if own is None:
        return ()
    alike = (each for each in others if own[2] in each or each.startswith(f"{own[1]}:"))
    parsed = [other for other in map(_OF_QUERY.fullmatch, alike) if other is not None]
    found = [f"{other[1]}:{other[2]}" for other in parsed if (other[1] == own[1]) != (other[2] == own[2])]
    return tuple(dict.fromkeys(found))[-MAX_NAMESAKES:]


def without_gate(transaction: str) -> bool:
    """Whether a watcher has reported this transaction: its id is that of its writer, and begins with its format."""
    return transaction.partition(":")[0] in _FORMATS and ":" in transaction


def short_table(uri: str) -> str:
    """A table as people name it: the last two segments of its URI."""
    return "/".join(uri.rstrip("/").rpartition("://")[2].split("/")[-2:])


def overlap(mine: Iterable[wire.Marker], theirs: Iterable[wire.Marker]) -> bool:
    """Return whether two sets of markers have a file group in common, whatever is done to it."""
    groups: dict[str, set[str]] = {}
    for marker in mine:
        groups.setdefault(marker.partition, set()).add(marker.file_group)
    return any(
        (groups and wire.WHOLE_TABLE in (marker.partition, *groups))
        or (
            marker.partition in groups
            and (
                wire.ALL_FILE_GROUPS in (marker.file_group, *groups[marker.partition])
                or marker.file_group in groups[marker.partition]
            )
        )
        for marker in theirs
    )


def precise(declared: Iterable[wire.Marker], touched: Iterable[wire.Marker]) -> tuple[wire.Marker, ...]:
    """Return the markers. Where they name nothing more exact than the scope, in a partition or table, return the scope."""
    scope = dict.fromkeys(declared)
    beyond = tuple(marker for marker in dict.fromkeys(touched) if marker not in scope)
    finer = {marker.partition for marker in beyond} | ({wire.WHOLE_TABLE} if beyond else set())
    return (*beyond, *(marker for marker in scope if marker.partition not in finer))


@dataclass(slots=True)
class _TransactionSeen:
    """A transaction as the events show it. Numbers are places among these events."""

    table: str
    writer: str
    intent: int | None = None
    requested: int | None = None
    end: int | None = None
    last: int = 0
    ordered: bool = False
    priority: int = 0
    scope: tuple[wire.Marker, ...] = ()
    markers: list[wire.Marker] = field(default_factory=list)

    @property
    def touches(self) -> tuple[wire.Marker, ...]:
        """What it has touched, or is going to."""
        return (*self.scope, *self.markers)


def waited_for(events: Sequence[wire.WriterEventUnion], transaction: str) -> set[str]:
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
        and (other.intent is None or overlap(me.scope, other.touches))
    }


def writers_ahead(events: Sequence[wire.WriterEventUnion], transaction: str) -> tuple[str, ...]:
    """Return the names of the writers whose transactions are ahead (`waited_for`) and have not ended, sorted."""
    seen = _transactions(events)
    open_ones = (seen[name] for name in waited_for(events, transaction) if seen[name].end is None)
    return tuple(sorted({one.writer for one in open_ones}))


def writers_before(events: Sequence[wire.WriterEventUnion], transaction: str) -> tuple[str, ...]:
    """Return the writers of the `ordered` transactions for whose turns an `ordered` one waits with its request, sorted.

    They began before it, touch its file groups, don't have a smaller priority, and are alive since its request. The turns
    themselves are in the agent's decisions: of two with queued admission, the one that began first may be admitted last.
    """
    seen = _transactions(events)
    me = seen.get(transaction)
    if me is None or me.intent is None or me.requested is None:
        return ()
    found = {
        other.writer
        for other in seen.values()
        if (other.table, other.ordered) == (me.table, True)
        and other.writer != me.writer
        and other.intent is not None
        and other.intent < me.intent
        and other.end is None
        and other.last > me.requested
        and other.priority >= me.priority
        and overlap(me.touches, other.touches)
    }
    return tuple(sorted(found))


def writers_granted_before(events: Sequence[wire.WriterEventUnion], transaction: str) -> tuple[str, ...]:
    """Return the writers that requested a grant of the table before this transaction and are alive since, sorted.

    One of them has the table's grant, or `writers_before` has them all.
    """
    seen = _transactions(events)
    me = seen.get(transaction)
    if me is None or me.requested is None:
        return ()
    found = {
        other.writer
        for other in seen.values()
        if other.table == me.table
        and other.requested is not None
        and other.requested < me.requested < other.last
        and other.end is None
    }
    return tuple(sorted({*found, *writers_before(events, transaction)}))


def met(
    events: Sequence[wire.WriterEventUnion],
    transaction: str,
    touched: Iterable[wire.Marker],
    others: Iterable[str],
) -> bool | None:
    """Return whether a transaction touched what another one of `others` touched. None if `events` don't show all of them.

    `touched` are its markers besides those in `events`. `precise` says when the scope of another transaction counts.
    """
    seen = _transactions(events)
    me = seen.get(transaction)
    known = [seen[name] for name in others if name in seen and seen[name].intent is not None]
    mine = (*touched, *(me.markers if me else ()))
    if any(overlap(mine, precise(other.scope, other.markers)) for other in known):
        return True
    return False if len(known) == len(set(others)) else None


def _transactions(events: Sequence[wire.WriterEventUnion]) -> dict[str, _TransactionSeen]:
    seen: dict[str, _TransactionSeen] = {}
    for number, event in enumerate(events):
        one = seen.setdefault(event.transaction, _TransactionSeen(event.table, event.writer))
        one.last = number
        match event:
            case wire.CommitIntent():
                one.intent, one.scope, one.priority = number, event.scope, event.priority
                one.ordered = event.conflict_rule in wire.IN_TURN and not event.observed
            case wire.MarkerCreated():
                one.markers.extend(event.markers)
            case wire.CommitRequested():
                one.requested = number
                one.markers.extend(event.markers)
            case wire.CommitCompleted() | wire.TransactionAbandoned():
                one.end = number
            case _:
                pass
    return seen
