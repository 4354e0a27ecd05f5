"""What a batch is going to touch, found before it is computed, and reduced until it fits into one event."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lakewarden.events import ALL_FILE_GROUPS, Marker, event_chunks


@dataclass(frozen=True, slots=True)
class BatchScope:
    """The markers of a batch that are known beforehand.

    The gate declares them with the intent. So the transaction has touched them when it is admitted. A sink that finds more
    than the markers (the partitions' values, for example) returns a subclass, gets it back as `txn.batch_scope`, and
    doesn't look again. It must trust only its own subclass: a user may have given another function for the scope.
    """

    markers: tuple[Marker, ...]


def as_scope(markers: Iterable[Marker]) -> tuple[Marker, ...]:
    """Return the markers as a scope that fits into one intent. Too many file groups become whole partitions.

    Partitions that still don't fit are left out. That is safe, because a scope only decides which transaction waits: with
    a scope that is too narrow the transaction starts early, and its markers are checked like any others.
    """
    distinct = tuple(dict.fromkeys(markers))
    for candidate in (distinct, whole_partitions(distinct)):
        first = next(event_chunks(candidate), ())
        if len(first) == len(candidate):
            return first
    return next(event_chunks(whole_partitions(distinct)), ())


def whole_partitions(markers: Iterable[Marker]) -> tuple[Marker, ...]:
    """Return `*` for every partition of the markers, with the operation that conflicts with most others (`merge`)."""
    partitions = dict.fromkeys(marker.partition for marker in markers)
    return tuple(
        Marker(partition=partition, file_group=ALL_FILE_GROUPS, operation="merge") for partition in partitions
    )
