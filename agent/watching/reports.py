"""Turns what a watcher has seen into events. Their ids follow from what they say, so two watchers report one thing once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any, assert_never
from uuid import UUID, uuid5

from lakewarden.events import (
    MAX_MARKERS_PER_EVENT,
    CommitCompleted,
    CommitIntent,
    Marker,
    MarkerCreated,
    TransactionAbandoned,
    WriterEventUnion,
    WriterHeartbeat,
)
from lakewarden.handlers.hudi.watching import Alive, Completed, Ended, Observation, Opened, Touched

SPACE = UUID("5d4c1bd6-0f2e-5c1a-9a57-6f6e1c0f8a33")
"""The namespace of the ids. It never changes."""
HEARTBEAT_SECONDS = 60.0
"""In the intent of an observed transaction: Hudi's own interval. After three of them without a sign, its outcome is unknown."""
MAX_CHARACTERS = 300_000
"""Of the names in one event. In JSON a character takes up to three bytes in UTF-8, so the event stays below 1 MB."""


def reports(table: str, seen: Observation, at: datetime) -> Iterator[WriterEventUnion]:
    """The events that report an observation."""
    name = f"hudi:{seen.instant}"
    common: dict[str, Any] = {"table": table, "transaction": name, "writer": name, "at": at}
    match seen:
        case Opened(rule=rule):
            yield CommitIntent(
                **common,
                event_id=_id(table, name, "opened"),
                observed=True,
                conflict_rule=rule,
                heartbeat_seconds=HEARTBEAT_SECONDS,
            )
        case Touched(markers=markers):
            for part in _parts(markers):
                yield MarkerCreated(**common, event_id=_marker_id(table, name, part), markers=part)
        case Alive(sign=sign):
            seq = max(0, round(sign * 1000))
            yield WriterHeartbeat(**common, event_id=_id(table, name, f"alive {seq}"), seq=seq)
        case Completed(markers=markers):
            *before, last = _parts(markers)
            for part in before:
                yield MarkerCreated(**common, event_id=_marker_id(table, name, part), markers=part)
            yield CommitCompleted(
                **common, event_id=_id(table, name, "completed"), version=seen.instant, markers=last
            )
        case Ended(reason=reason):
            yield TransactionAbandoned(**common, event_id=_id(table, name, "ended"), reason=reason)
        case _:
            assert_never(seen)


def _parts(markers: tuple[Marker, ...]) -> list[tuple[Marker, ...]]:
    """The markers in parts that fit into one event each; at least one part."""
    parts: list[tuple[Marker, ...]] = []
    part: list[Marker] = []
    characters = 0
    for each in markers:
        size = len(each.partition) + len(each.file_group) + 60
        if part and (characters + size > MAX_CHARACTERS or len(part) == MAX_MARKERS_PER_EVENT):
            parts.append(tuple(part))
            part, characters = [], 0
        part.append(each)
        characters += size
    return [*parts, tuple(part)]


def _marker_id(table: str, name: str, markers: tuple[Marker, ...]) -> str:
    places = [[each.partition, each.file_group, each.operation] for each in markers]
    return _id(table, name, f"touched {json.dumps(places)}")


def _id(table: str, name: str, what: str) -> str:
    return uuid5(SPACE, f"{table}\n{name}\n{what}").hex
