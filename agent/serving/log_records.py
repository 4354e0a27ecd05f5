"""Decodes the records of `decisions` and `ledger`. Records that can't be decoded are skipped, counted and logged."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import structlog
from aiokafka.structs import ConsumerRecord
from pydantic import TypeAdapter

from lakewarden import events
from lakewarden.events.codec import json_object

log = structlog.get_logger()
_Event = TypeVar("_Event")


def decisions_in(
    records: Iterable[ConsumerRecord],
    undecodable: events.UndecodableRecords | None = None,
    on_newer: Callable[[str], None] | None = None,
) -> Iterator[tuple[int, events.DecisionRecord]]:
    """The records of `decisions` with their offsets. Undecodable ones are counted in `undecodable`, logged and skipped.

    `on_newer`: called with a description of each undecodable record that is an event, which a newer agent has published.
    """
    for record in records:
        decision = events.decode(events.DECISION_RECORD, record.value)
        if isinstance(decision, events.Undecodable):
            _skip(record, decision, undecodable)
            if on_newer is not None and is_event(record.value):
                on_newer(
                    f"this version doesn't know the decision at offset {record.offset} of {record.topic}: {decision.reason}"
                )
        else:
            yield record.offset, decision


def is_event(value: bytes | None) -> bool:
    """Whether a record is an event of any version: a JSON object with a `type`."""
    return isinstance(json_object(value).get("type"), str)


def decoded_all(
    kind: TypeAdapter[_Event],
    records: Iterable[ConsumerRecord],
    undecodable: events.UndecodableRecords | None = None,
) -> Iterator[_Event]:
    """The events of records. Undecodable ones are counted in `undecodable`, logged and skipped."""
    for record in records:
        if (event := decoded(kind, record, undecodable)) is not None:
            yield event


def decoded(
    kind: TypeAdapter[_Event], record: ConsumerRecord, undecodable: events.UndecodableRecords | None = None
) -> _Event | None:
    """The event of a record. None: it can't be decoded; it is counted in `undecodable`, and logged."""
    event = events.decode(kind, record.value)
    if not isinstance(event, events.Undecodable):
        return event
    _skip(record, event, undecodable)
    return None


def _skip(
    record: ConsumerRecord, reason: events.Undecodable, undecodable: events.UndecodableRecords | None
) -> None:
    """Count a record that an agent skips, and log it unless many have been logged (`UndecodableRecords`)."""
    if undecodable is None:
        return
    line = undecodable.add(record.topic, record.partition, record.offset, reason)
    if line is not None:
        log.warning("record.undecodable", **line)
