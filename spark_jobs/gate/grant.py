"""Leave to publish, for the length of a block."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto


class Outcome(Enum):
    """What is known about a publish: three answers, never two."""

    UNKNOWN = auto()
    PUBLISHED = auto()
    NOT_PUBLISHED = auto()


class Grant:
    """A grant whose lease had not run out when it was given to you.

    `token` is the fencing token: the offset of the grant's record, rising with every grant of the table. Set `version`
    to what the table calls the commit (snapshot id, instant) before you leave the block.
    """

    __slots__ = ("_check", "grant", "outcome", "token", "version")

    def __init__(self, grant: str, token: int, check: Callable[[], None]) -> None:
        self.grant = grant
        self.token = token
        self.version: str | None = None
        self.outcome = Outcome.UNKNOWN
        self._check = check

    def check(self) -> None:
        """Raise `LeaseLost` or `CommitAborted` if you may no longer publish: call it right before the last step."""
        self._check()

    def published(self, version: str | None) -> None:
        """The table was read back: the commit is in it, though the publish seemed to fail."""
        self.outcome = Outcome.PUBLISHED
        self.version = version

    def not_published(self) -> None:
        """Nothing reached the table, and nothing still can: the transaction ends as abandoned."""
        self.outcome = Outcome.NOT_PUBLISHED
