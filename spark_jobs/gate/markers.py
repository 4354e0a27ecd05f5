"""Lists of markers: split into records, or reduced to a scope that fits into one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lakewarden.events import ALL_FILE_GROUPS, MAX_EVENT_BYTES, MAX_MARKERS_PER_EVENT, Marker

_OVERHEAD_BYTES = 64
"""Of one marker in JSON besides its two names: keys, quotes, operation."""

_BUDGET_BYTES = MAX_EVENT_BYTES * 3 // 4
"""For the markers of one record. Kafka's framing and escapes in names need the rest."""


def event_chunks(markers: Iterable[Marker]) -> Iterator[tuple[Marker, ...]]:
    """Yield the markers, each once and in order, in tuples that each fit into one record."""
    chunk: list[Marker] = []
    size = 0
    for marker in dict.fromkeys(markers):
        cost = _encoded_bytes(marker)
        if chunk and (len(chunk) == MAX_MARKERS_PER_EVENT or size + cost > _BUDGET_BYTES):
            yield tuple(chunk)
            chunk, size = [], 0
        chunk.append(marker)
        size += cost
    if chunk:
        yield tuple(chunk)


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


def _encoded_bytes(marker: Marker) -> int:
    return len(marker.partition.encode()) + len(marker.file_group.encode()) + _OVERHEAD_BYTES
