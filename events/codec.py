"""Bytes on the wire to typed events and back.

Strict when built: a model refuses an unknown field. Tolerant when read: `decode` ignores fields that a newer
version added, and refuses a `protocol` or a `type` that it doesn't know. What can't be decoded is a value with
its reason (`Undecodable`), never an exception: one bad record stops nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, TypeAlias, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from lakewarden.events.base import Name, TableUri, Wire
from lakewarden.events.decision import DecisionRecord
from lakewarden.events.operator import AuditEventUnion, ConflictDetected, LedgerEventUnion
from lakewarden.events.tables import canonical_table
from lakewarden.events.writer import WriterEventUnion

MAX_EVENT_BYTES = 1_048_576
"""Kafka's default record limit; a larger record is refused before it is parsed."""

Event: TypeAlias = Annotated[
    WriterEventUnion | DecisionRecord | ConflictDetected | AuditEventUnion | LedgerEventUnion,
    Field(discriminator="type"),
]

EVENT: TypeAdapter[Event] = TypeAdapter(Event)
WRITER_EVENT: TypeAdapter[WriterEventUnion] = TypeAdapter(
    Annotated[WriterEventUnion, Field(discriminator="type")],
    # Almost every value, a file group, comes once: to look for it among the last ones costs a tenth of the reading.
    config=ConfigDict(cache_strings="keys"),
)
DECISION_RECORD: TypeAdapter[DecisionRecord] = TypeAdapter(
    Annotated[DecisionRecord, Field(discriminator="type")]
)
CONFLICT_EVENT: TypeAdapter[ConflictDetected] = TypeAdapter(ConflictDetected)
AUDIT_EVENT: TypeAdapter[AuditEventUnion] = TypeAdapter(
    Annotated[AuditEventUnion, Field(discriminator="type")]
)
LEDGER_EVENT: TypeAdapter[LedgerEventUnion] = TypeAdapter(
    Annotated[LedgerEventUnion, Field(discriminator="type")]
)
_NAME: TypeAdapter[str] = TypeAdapter(Name)
_TABLE: TypeAdapter[str] = TypeAdapter(TableUri)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Undecodable:
    """Why a record is no event, and whose transaction it would have been, where that can be read.

    Names are such as a decision can bear, and the table is the canonical one, however the record spelled it.
    """

    reason: str
    table: str | None = None
    transaction: str | None = None
    writer: str | None = None
    event_id: str | None = None


def encode(event: Wire) -> bytes:
    """UTF-8 JSON, fields in the order of the model, null fields included."""
    return event.model_dump_json().encode()


def decode(kind: TypeAdapter[T], value: bytes | None, *, key: bytes | None = None) -> T | Undecodable:
    """One record's value as an event of `kind`; with `key`, which must then be the event's table."""
    if value is None:
        return Undecodable("empty record")
    if len(value) > MAX_EVENT_BYTES:
        return Undecodable(f"record of {len(value)} bytes; at most {MAX_EVENT_BYTES} are read")
    try:
        event = kind.validate_json(value, extra="ignore")
    except ValidationError as error:
        return _salvage(value, _first_reason(error))
    table: str = getattr(event, "table", "")
    if key is not None and key != table.encode():
        return _salvage(
            value, f"record key {key[:200].decode(errors='replace')!r} is not the event's table {table!r}"
        )
    return event


def _first_reason(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{where or 'value'}: {first['msg']}{more}"


def _salvage(value: bytes, reason: str) -> Undecodable:
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        return Undecodable(reason)
    if not isinstance(parsed, dict):
        return Undecodable(reason)

    def text(name: str) -> str | None:
        try:
            return _NAME.validate_python(parsed.get(name))
        except ValidationError:
            return None

    try:
        table = _TABLE.validate_python(canonical_table(str(parsed.get("table"))))
    except ValueError:
        table = None
    return Undecodable(reason, table, text("transaction"), text("writer"), text("event_id"))
