"""What every event carries, and how strictly: strict when built, tolerant when read.

Wire names, tags and meanings are those of protocol version 1 and never change; fields may be added.
Ids and times come from whoever builds the event: nothing in this package reads a clock or draws a number.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, StringConstraints

from lakewarden.events.tables import require_canonical

PROTOCOL = 1

MAX_NAME = 512
"""Characters in an id or a writer's name: they are keys in every index, and printed in every message."""

MAX_PATH = 1024
"""Characters in a table URI, a partition or a file group: S3's own limit for a key."""

Name = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME, pattern=r"^[^\n\r]+$")]
TableUri = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_PATH), AfterValidator(require_canonical)
]


class Wire(BaseModel):
    """A frozen value with exactly these fields; `codec.decode` forgives unknown ones when it reads."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class EventBase(Wire):
    """The fields that every event has."""

    protocol: Literal[1] = 1
    event_id: Name
    """Unique; the same id again is the same event delivered twice, and changes nothing."""
    table: TableUri
    transaction: Annotated[str, StringConstraints(max_length=MAX_NAME)]
    """Unique per attempt; empty only where an operator's event concerns no transaction."""
    writer: Annotated[str, StringConstraints(max_length=MAX_NAME)]
    """Stable name of the writing job, the same after a restart."""
    at: AwareDatetime
    """Informative only: nothing is ever ordered by it."""
