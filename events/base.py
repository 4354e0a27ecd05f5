"""The fields that every event has, and the base class of all wire models.

A model is strict when an event is built and tolerant when it is read (`codec.decode`). Names, tags and meanings are those of
protocol version 1: they never change, but fields may be added. The caller supplies ids and times, because nothing in this
package reads a clock or draws a random number.

The string below a field is its description in `schema.json`, `asyncapi.json` and docs/protocol.md.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, StringConstraints

from lakewarden.events.tables import require_canonical

PROTOCOL = 1

MAX_NAME = 512
"""Characters of an id or a writer's name. Both are keys in every index of the agent and appear in every message."""

MAX_PATH = 1024
"""Characters of a table URI, a partition or a file group: the length limit of an S3 key."""

Name = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME, pattern=r"^[^\n\r]+$")]
TableUri = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_PATH), AfterValidator(require_canonical)
]


class Wire(BaseModel):
    """A frozen value that refuses unknown fields when it is built. `codec.decode` ignores them when it reads."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class EventBase(Wire):
    """The fields that every event has."""

    protocol: Literal[1] = 1
    """Version of the protocol. Readers refuse an event of another version."""
    event_id: Name
    """Unique. A repeated id is a duplicate delivery and changes nothing."""
    table: TableUri
    """Canonical URI of the table."""
    transaction: Annotated[str, StringConstraints(max_length=MAX_NAME)]
    """Id of the transaction, unique for each attempt. Empty where an event of an agent concerns no transaction."""
    writer: Annotated[str, StringConstraints(max_length=MAX_NAME)]
    """Name of the writing job, the same after a restart. Empty where an event of an agent concerns no writer."""
    at: AwareDatetime
    """Time at which the event was built, RFC 3339 with an offset. Informative: no reader orders events by it."""
