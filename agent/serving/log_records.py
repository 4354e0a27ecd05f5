"""Decodes the records of `decisions` and `ledger`. Records that can't be decoded are skipped, counted and logged."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator

import structlog
from aiokafka.structs import ConsumerRecord

from lakewarden.events import (
    DECISION_RECORD,
    LEDGER_EVENT,
    DecisionRecord,
    LedgerRecord,
    Undecodable,
    UndecodableRecords,
    decode,
)
from lakewarden.handlers.table.replay import Position, PublishedDecisions

log = structlog.get_logger()


def decoded_decisions(start: Position, records: Iterable[ConsumerRecord]) -> PublishedDecisions:
    """The records of `decisions`, for a replay. Undecodable ones are skipped."""
    return PublishedDecisions(start, decisions_in(records))


def decisions_in(
    records: Iterable[ConsumerRecord],
    undecodable: UndecodableRecords | None = None,
    on_newer: Callable[[str], None] | None = None,
) -> Iterator[tuple[int, DecisionRecord]]:
    """The records of `decisions` with their offsets. Undecodable ones are counted in `undecodable`, logged and skipped.

    `on_newer`: called with a description of each undecodable record that is an event, which a newer agent has published.
    """
    for record in records:
        decision = decode(DECISION_RECORD, record.value)
        if isinstance(decision, Undecodable):
            skip_undecodable(record, decision, undecodable)
            if on_newer is not None and is_event(record.value):
                on_newer(
                    f"this version doesn't know the decision at offset {record.offset} of {record.topic}: {decision.reason}"
                )
        else:
            yield record.offset, decision


def is_event(value: bytes | None) -> bool:
    """Whether a record is an event of any version: a JSON object with a `type`."""
    try:
        found = json.loads(value or b"")
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and isinstance(found.get("type"), str)


def decoded_ledger(
    records: Iterable[ConsumerRecord], undecodable: UndecodableRecords | None = None
) -> Iterator[LedgerRecord]:
    """The records of `ledger`. Undecodable ones are counted in `undecodable`, logged and skipped."""
    for record in records:
        entry = decode(LEDGER_EVENT, record.value)
        if isinstance(entry, Undecodable):
            skip_undecodable(record, entry, undecodable)
        else:
            yield entry


def skip_undecodable(
    record: ConsumerRecord, reason: Undecodable, undecodable: UndecodableRecords | None
) -> None:
    """Count a record that an agent skips, and log it unless many have been logged (`UndecodableRecords`)."""
    if undecodable is None:
        return
    line = undecodable.add(record.topic, record.partition, record.offset, reason)
    if line is not None:
        log.warning("record.undecodable", **line)
