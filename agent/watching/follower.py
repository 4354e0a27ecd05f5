"""What the watcher needs of each table format: one look at a table, and what is to be reported after it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from lakewarden.handlers.hudi.watching import Observation
from lakewarden.handlers.observations import ObservedCommit

RECHECK_SECONDS = 60.0
"""Between two looks whether a table is still the one that it was."""
ACTIVE_SECONDS = 60.0
"""A table of which a commit was seen is looked at more often for so long."""
MAX_COMMITS = 100
"""Commits that one look reads. The next look reads on."""

Seen: TypeAlias = Observation | ObservedCommit


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at a table has found."""

    active: bool
    """Whether the next look follows soon."""
    seen: Sequence[Seen] = ()
    complete: bool = True
    """Whether it has read all commits that it found. If not, the age of those that the next look reads isn't known by it."""
    problems: Sequence[tuple[str, str]] = field(default=())
    """Files that could not be read, and why. They are read again."""


class TableFollower(Protocol):
    """Follows one table. It raises `UnreadableTableError`, or the errors of the format's own rules."""

    format: str
    """The prefix of the transactions that it reports."""

    @property
    def began(self) -> bool:
        """Whether a look has succeeded, and its position is known."""
        ...

    async def look(self) -> Look: ...
