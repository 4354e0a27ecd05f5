"""The fields that every event has, and the base class of all wire models.

A model is strict when an event is built and tolerant when it is read (`codec.decode`). Names, tags and meanings are those of
protocol version 1: they never change, but fields may be added. The caller supplies ids and times, because nothing in this
package reads a clock or draws a random number.

Limits belong to the events that others publish: `decode` refuses what is beyond them. An event of an agent repeats what it has
read, so its model has no limit of its own: every event that the agent accepts can be answered. The agent builds its events with
`model_construct`, which checks nothing: first without their `Stamp`, when it decides.

The string below a field is its description in `asyncapi.json` and docs/protocol.md.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypedDict

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
)

from lakewarden.events.tables import MAX_PATH, require_canonical

PROTOCOL: Final = 1

MAX_NAME = 512
"""Bytes (UTF-8) of an id or a writer's name. Both are keys in every index of the agent and appear in every message."""

MAX_GRANT = 128
"""Bytes of a grant's id. An agent's own ids have up to about 40."""

MAX_VERSION = 1024
"""Characters of a version. The ledger and `already-committed` repeat it."""

MAX_INSTANT = 128
"""Characters of a table format's own name of a transaction. Hudi's instants have 17."""

MAX_ORIGIN = 255
"""Characters of a host's name, as in DNS, and of the id of a Spark application."""
MAX_PID = 2**32 - 1
MAX_REASON = 1000
"""Characters of a reason that people read."""

INTEGER_BITS = 64
"""Bits of a signed integer: every client and every store of numbers has these."""


def _at_most(limit: int) -> AfterValidator:
    def check(text: str) -> str:
        if len(text) * 4 > limit and (size := len(text.encode())) > limit:
            raise ValueError(f"{size} bytes, at most {limit} are allowed")
        return text

    return AfterValidator(check)


def _integer(value: object) -> object:
    if type(value) is not int:
        raise ValueError("an integer is expected")
    return value


Version = BeforeValidator(_integer)
"""Validates a `protocol`: a literal would accept `true` and `1.0` for 1."""
_LINE = r"^[^\n\r]+$"
Name = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME, pattern=_LINE), _at_most(MAX_NAME)]
GrantId = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_GRANT, pattern=_LINE), _at_most(MAX_GRANT)
]
InstantName = Annotated[str, StringConstraints(min_length=1, max_length=MAX_INSTANT, pattern=_LINE)]
Integer = Annotated[int, Field(ge=-(2 ** (INTEGER_BITS - 1)), le=2 ** (INTEGER_BITS - 1) - 1)]
Counter = Annotated[int, Field(ge=0, le=2 ** (INTEGER_BITS - 1) - 1)]
TableUri = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_PATH), AfterValidator(require_canonical)
]


def _in_utc(at: datetime) -> datetime:
    try:
        at.astimezone(UTC)
    except OverflowError:
        raise ValueError("in UTC it is before the year 1 or after 9999") from None
    return at


Time = Annotated[AwareDatetime, AfterValidator(_in_utc)]


class Wire(BaseModel):
    """A frozen value that refuses unknown fields when it is built. `codec.decode` ignores them when it reads."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Stamp(TypedDict):
    """What the agent enters into an event when it publishes it."""

    event_id: str
    at: datetime


UNSTAMPED = Stamp(event_id="", at=datetime.min.replace(tzinfo=UTC))
"""Stamp of an event that is decided and not published yet."""


class EventBase(Wire):
    """The fields that every event has."""

    _template: ClassVar[dict[str, Any]]
    """All fields in their order, with their defaults."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        cls._template = {name: each.get_default() for name, each in cls.model_fields.items()}

    @classmethod
    def model_construct(cls, _fields_set: set[str] | None = None, **values: Any) -> Self:  # type: ignore[override]
        """Build an event without a check, as pydantic does, in a tenth of its time: no field has an alias or a factory."""
        event = cls.__new__(cls)
        object.__setattr__(event, "__dict__", {**cls._template, **values})
        object.__setattr__(event, "__pydantic_fields_set__", _fields_set or set(values))
        object.__setattr__(event, "__pydantic_extra__", None)
        object.__setattr__(event, "__pydantic_private__", None)
        return event

    protocol: Annotated[Literal[1], Version] = 1
    """Version of the protocol. Readers refuse an event of another version."""
    event_id: Annotated[str, StringConstraints(min_length=1)]
    """Unique. Decisions name the event by it. Ids are not compared: what an event says counts once."""
    table: TableUri
    """Canonical URI of the table."""
    transaction: str
    """Id of the transaction, unique for each attempt. Empty where an event of an agent concerns no transaction."""
    writer: str
    """Name of the writing job, the same after a restart. Empty where an event of an agent concerns no writer."""
    at: Time
    """Time at which the event was built, RFC 3339 with an offset. Informative: no reader orders events by it."""
