"""Turns what a watcher has seen into events. Their ids follow from what they say, so two watchers report one thing once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any, assert_never
from uuid import UUID, uuid5

from lakewarden.agent.watching.follower import Seen
from lakewarden.events import (
    CommitCompleted,
    CommitIntent,
    ConflictRule,
    Marker,
    MarkerCreated,
    TransactionAbandoned,
    WriterEventUnion,
    WriterHeartbeat,
    event_chunks,
)
from lakewarden.handlers.hudi.watching import Alive, Completed, Ended, Opened, Touched
from lakewarden.handlers.observations import ObservedCommit

SPACE = UUID("5d4c1bd6-0f2e-5c1a-9a57-6f6e1c0f8a33")
"""The namespace of the ids. It never changes."""
HEARTBEAT_SECONDS = 60.0
"""In the intent of an observed transaction: Hudi's own interval. After three of them without a sign, its outcome is unknown."""


def reports(table: str, form: str, seen: Seen, at: datetime) -> Iterator[WriterEventUnion]:
    """The events that report what was seen of a table of this format."""
    name = f"{form}:{seen.version if isinstance(seen, ObservedCommit) else seen.instant}"
    common: dict[str, Any] = {"table": table, "transaction": name, "writer": name, "at": at}
    match seen:
        case ObservedCommit():
            yield _intent(common, "deleted-file")
            yield from _completion(common, seen.version, seen)
        case Opened(rule=rule):
            yield _intent(common, rule)
        case Touched(markers=markers):
            for part in event_chunks(markers):
                yield MarkerCreated(**common, event_id=_marker_id(table, name, part), markers=part)
        case Alive(sign=sign):
            seq = max(0, round(sign * 1000))
            yield WriterHeartbeat(**common, event_id=_id(table, name, f"alive {seq}"), seq=seq)
        case Completed():
            yield from _completion(common, seen.instant, seen)
        case Ended(reason=reason):
            yield TransactionAbandoned(**common, event_id=_id(table, name, "ended"), reason=reason)
        case _:
            assert_never(seen)


def _intent(common: dict[str, Any], rule: ConflictRule) -> CommitIntent:
    return CommitIntent(
        **common,
        event_id=_id(common["table"], common["transaction"], "opened"),
        observed=True,
        conflict_rule=rule,
        heartbeat_seconds=HEARTBEAT_SECONDS,
    )


def _completion(
    common: dict[str, Any], version: str, seen: ObservedCommit | Completed
) -> Iterator[WriterEventUnion]:
    table, name, maker = common["table"], common["transaction"], seen.made_by
    *before, last = list(event_chunks(seen.markers)) or [()]
    for part in before:
        yield MarkerCreated(**common, event_id=_marker_id(table, name, part), markers=part)
    yield CommitCompleted(
        **common,
        event_id=_id(table, name, "completed"),
        version=version,
        markers=last,
        engine=maker.engine,
        user=maker.user,
        job=maker.job,
        application_id=maker.application,
    )


def _marker_id(table: str, name: str, markers: tuple[Marker, ...]) -> str:
    places = [[each.partition, each.file_group, each.operation] for each in markers]
    return _id(table, name, f"touched {json.dumps(places)}")


def _id(table: str, name: str, what: str) -> str:
    return uuid5(SPACE, f"{table}\n{name}\n{what}").hex
