"""Lists of markers: cut to what one record holds, and reduced to what a scope may name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lakewarden.events import ALL_FILE_GROUPS, MAX_EVENT_BYTES, MAX_MARKERS_PER_EVENT, Marker

_OVERHEAD_BYTES = 64
"""Of one marker in JSON beside its two names: keys, quotes, operation."""

_BUDGET_BYTES = MAX_EVENT_BYTES * 3 // 4
"""Of one record: Kafka counts its own framing too, and names may need escapes."""


def event_chunks(markers: Iterable[Marker]) -> Iterator[tuple[Marker, ...]]:
    """The markers, each once and in order, in lists that fit one record each."""
    chunk: list[Marker] = []
    size = 0
    for marker in dict.fromkeys(markers):
        cost = _cost(marker)
        if chunk and (len(chunk) == MAX_MARKERS_PER_EVENT or size + cost > _BUDGET_BYTES):
            yield tuple(chunk)
            chunk, size = [], 0
        chunk.append(marker)
        size += cost
    if chunk:
        yield tuple(chunk)


def as_scope(markers: Iterable[Marker]) -> tuple[Marker, ...]:
    """The markers as a scope that fits one intent: whole partitions, where the file groups are too many.

    A scope only decides who waits for whom. Too wide makes a writer wait in vain; too narrow lets it begin early and
    be stopped by its markers as anybody else: neither is unsafe, so what still doesn't fit is left out.
    """
    distinct = tuple(dict.fromkeys(markers))
    for candidate in (distinct, whole_partitions(distinct)):
        first = next(event_chunks(candidate), ())
        if len(first) == len(candidate):
            return first
    return next(event_chunks(whole_partitions(distinct)), ())


def whole_partitions(markers: Iterable[Marker]) -> tuple[Marker, ...]:
    """All file groups of every partition named, by the operation that conflicts with most."""
    partitions = dict.fromkeys(marker.partition for marker in markers)
    return tuple(
        Marker(partition=partition, file_group=ALL_FILE_GROUPS, operation="merge") for partition in partitions
    )


def _cost(marker: Marker) -> int:
    return len(marker.partition.encode()) + len(marker.file_group.encode()) + _OVERHEAD_BYTES
