"""The permission to publish, for the length of a block."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto


class Outcome(Enum):
    """What is known about a publish. An unknown outcome is never reported as one of the others."""

    UNKNOWN = auto()
    PUBLISHED = auto()
    NOT_PUBLISHED = auto()


class Grant:
    """A grant, as the block of `Transaction.commit` receives it. Its lease had time left at that moment.

    `token` is the fencing token: the Kafka offset of the grant's record, which rises with every grant of the table. Set
    `version` to the table's name for the commit (a snapshot id, an instant) before the block ends.
    """

    __slots__ = ("_check", "grant", "outcome", "token", "version")

    def __init__(self, grant: str, token: int, check: Callable[[], None]) -> None:
        self.grant = grant
        self.token = token
        self.version: str | None = None
        self.outcome = Outcome.UNKNOWN
        self._check = check

    def check(self) -> None:
        """Raise `LeaseLost` or `CommitAborted` if you may no longer publish. Call it right before the last step."""
        self._check()

    def published(self, version: str | None) -> None:
        """Declare that the commit is in the table, although the publish seemed to fail: you have read the table back."""
        self.outcome = Outcome.PUBLISHED
        self.version = version

    def not_published(self) -> None:
        """Declare that nothing reached the table and nothing still can. The transaction ends as abandoned."""
        self.outcome = Outcome.NOT_PUBLISHED
