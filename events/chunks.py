"""Splits lists of markers into the lists of single events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lakewarden.events.codec import MAX_EVENT_BYTES
from lakewarden.events.markers import MAX_MARKERS_PER_EVENT, Marker

_OVERHEAD_BYTES = 64
"""Of one marker in JSON besides its two names: keys, quotes, operation."""

_BUDGET_BYTES = MAX_EVENT_BYTES * 3 // 4
"""For the markers of one record. Kafka's framing and escapes in names need the rest."""


def event_chunks(markers: Iterable[Marker]) -> Iterator[tuple[Marker, ...]]:
    """Yield the markers, each once and in order, in tuples that each fit into one record."""
    chunk: list[Marker] = []
    size = 0
    for marker in dict.fromkeys(markers):
        cost = len(marker.partition.encode()) + len(marker.file_group.encode()) + _OVERHEAD_BYTES
        if chunk and (len(chunk) == MAX_MARKERS_PER_EVENT or size + cost > _BUDGET_BYTES):
            yield tuple(chunk)
            chunk, size = [], 0
        chunk.append(marker)
        size += cost
    if chunk:
        yield tuple(chunk)
