"""Decode bytes from the wire to typed events, and encode events to bytes.

A model refuses an unknown field when an event is built. `decode` ignores fields that a newer version added, and refuses a
`protocol` or a `type` that it does not know. For a record that it can't decode it returns `Undecodable` with the reason,
so that one bad record stops no consumer. No value is converted: `"7"`, `true` and `7.0` are no integers.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from lakewarden.events.base import Name, TableUri, Wire
from lakewarden.events.decision import DecisionRecord
from lakewarden.events.markers import MAX_MARKERS_PER_EVENT, Marker
from lakewarden.events.operator import AuditEventUnion, ConflictDetected, LedgerEventUnion, LedgerRecord
from lakewarden.events.tables import canonical_table
from lakewarden.events.writer import WriterEventUnion

MAX_EVENT_BYTES = 1_048_576
"""Kafka's default record limit. `decode` refuses a larger record before it parses it."""

UNREADABLE = b"\x00unreadable: "
"""Begins the value of a record that stands for a batch that can't be read (`access/batches.py`); the reason follows."""

Event: TypeAlias = Annotated[
    WriterEventUnion | DecisionRecord | ConflictDetected | AuditEventUnion | LedgerEventUnion,
    Field(discriminator="type"),
]

EVENT: TypeAdapter[Event] = TypeAdapter(Event)
WRITER_EVENT: TypeAdapter[WriterEventUnion] = TypeAdapter(
    Annotated[WriterEventUnion, Field(discriminator="type")],
    # Nearly every value is a file group that occurs once. Caching values as well would slow down decoding by a tenth.
    config=ConfigDict(cache_strings="keys"),
)
DECISION_RECORD: TypeAdapter[DecisionRecord] = TypeAdapter(
    Annotated[DecisionRecord, Field(discriminator="type")]
)
CONFLICT_EVENT: TypeAdapter[ConflictDetected] = TypeAdapter(ConflictDetected)
AUDIT_EVENT: TypeAdapter[AuditEventUnion] = TypeAdapter(
    Annotated[AuditEventUnion, Field(discriminator="type")]
)
LEDGER_EVENT: TypeAdapter[LedgerRecord] = TypeAdapter(Annotated[LedgerRecord, Field(discriminator="type")])
_NAME: TypeAdapter[str] = TypeAdapter(Name)
_TABLE: TypeAdapter[str] = TypeAdapter(TableUri)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Undecodable:
    """Why a record is not an event, and the names in it that could be read.

    The names are valid in an abort, so that the agent can answer the record. `table` is canonical even if the record's is not.
    """

    reason: str
    table: str | None = None
    transaction: str | None = None
    writer: str | None = None
    event_id: str | None = None


def encode(event: Wire) -> bytes:
    """The event as UTF-8 JSON, with the fields in the order of the model and null fields included."""
    return event.model_dump_json().encode()


def decode(kind: TypeAdapter[T], value: bytes | None, *, key: bytes | None = None) -> T | Undecodable:
    """Decode a record's value as an event of `kind`. If `key` is not None, it must be the event's table."""
    if value is None:
        return Undecodable("empty record")
    if value.startswith(UNREADABLE):
        return Undecodable(value[len(UNREADABLE) :].decode(errors="replace"))
    if len(value) > MAX_EVENT_BYTES:
        return Undecodable(f"record of {len(value)} bytes; at most {MAX_EVENT_BYTES} are read")
    try:
        event = kind.validate_json(value, strict=True, extra="ignore")
    except ValidationError as error:
        return _undecodable(value, _first_reason(error))
    table: str = getattr(event, "table", "")
    if key is not None and key != table.encode():
        return _undecodable(
            value, f"record key {key[:200].decode(errors='replace')!r} is not the event's table {table!r}"
        )
    return event


def _first_reason(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{field or 'value'}: {first['msg']}{more}"


def _undecodable(value: bytes, reason: str) -> Undecodable:
    """The reason, with as many names as can be read from the record."""
    parsed = json_object(value)

    def valid_name(field: str) -> str | None:
        try:
            return _NAME.validate_python(parsed.get(field))
        except ValidationError:
            return None

    try:
        table = _TABLE.validate_python(canonical_table(str(parsed.get("table"))))
    except ValueError:
        table = None
    return Undecodable(reason, table, valid_name("transaction"), valid_name("writer"), valid_name("event_id"))


def json_object(text: str | bytes | None) -> dict[str, Any]:
    """The JSON object in a text that others have written; an empty one if it is anything else."""
    try:
        found = json.loads(text or b"")
    except (TypeError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


_OVERHEAD_BYTES = 64
"""Bytes of one marker in JSON besides its two names: keys, quotes, operation."""

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


LOG_EVERY = 1_024
"""Up to so many undecodable records of a topic, each that doubles their number is logged; beyond, every 1,024th."""

MAX_LOGGED_REASON = 300
"""Characters of a reason in a log line: a reason may quote what the record contains."""


class UndecodableRecords:
    """The undecodable records of one reader. A record that is read again in another replay is counted again."""

    def __init__(self) -> None:
        self.by_topic: Counter[str] = Counter()

    @property
    def total(self) -> int:
        return self.by_topic.total()

    def add(
        self, topic: str, partition: int, offset: int, undecodable: Undecodable
    ) -> dict[str, str | int] | None:
        """Count one record. Returns the fields of the log line to write, or None if this record is only counted."""
        self.by_topic[topic] += 1
        count = self.by_topic[topic]
        if count & (count - 1) and count % LOG_EVERY:
            return None
        return {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "reason": undecodable.reason[:MAX_LOGGED_REASON],
            "undecodable": count,
        }
