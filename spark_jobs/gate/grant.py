"""The permission to publish, and what the writer reports about its publish.

| report | meaning | what the gate does |
| --- | --- | --- |
| `published(version)` | the commit is durable | publishes `commit-completed` at once |
| `not_published()` | nothing reached the table, and nothing still can | the transaction ends as abandoned |
| `unknown(error)` | the publish raised, its outcome unknown | looks the batch up in the table; raises `OutcomeUnknown` |

- A commit that is reported as published stays published: a later `not_published()` raises `RuntimeError`.
- Every method may be called from any thread, for example from a callback of the JVM. Don't call them in callbacks of
  `on_abort` and of the observer, which know nothing of the publish.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum, auto


class PublishOutcome(Enum):
    """What is known about a publish. An unknown outcome is never reported as one of the others."""

    UNKNOWN = auto()
    PUBLISHED = auto()
    NOT_PUBLISHED = auto()


class Grant:
    """A grant, as `Transaction.commit` and `request_grant` return it. Its lease had time left at that moment.

    `token` is the fencing token: the Kafka offset of the grant's record, which rises with every grant of the table. In a
    block of `commit`, set `version` to the table's name for the commit (a snapshot id, an instant) before the block ends.
    """

    __slots__ = ("_check", "_completed", "_failed", "_lock", "grant", "outcome", "token", "version")

    def __init__(
        self,
        grant: str,
        token: int,
        *,
        check: Callable[[], float],
        completed: Callable[[Grant], None],
        failed: Callable[[Grant, Exception], bool],
    ) -> None:
        """`check` returns the seconds left, or raises; `completed` reports; `failed` returns if the table has it, or raises."""
        self.grant = grant
        self.token = token
        self.version: str | None = None
        self.outcome = PublishOutcome.UNKNOWN
        self._check = check
        self._completed = completed
        self._failed = failed
        self._lock = threading.Lock()

    def check(self) -> None:
        """Raise `LeaseLost` or `CommitAborted` if you may no longer publish. Call it right before the last step."""
        self._check()

    def seconds_left(self) -> float:
        """Return how long the lease still counts, more than 0. Raise as `check` does. Renewals prolong it."""
        return self._check()

    def published(self, version: str | None) -> None:
        """Report that the commit is in the table, in `version`. A second report changes nothing."""
        with self._lock:
            if self.outcome is PublishOutcome.PUBLISHED:
                return
            self.outcome, self.version = PublishOutcome.PUBLISHED, version
        self._completed(self)

    def not_published(self) -> None:
        """Declare that nothing reached the table and nothing still can. The transaction ends as abandoned."""
        with self._lock:
            if self.outcome is PublishOutcome.PUBLISHED:
                raise RuntimeError(
                    f"the commit is reported as published in version {self.version}, and that can't be withdrawn; "
                    f"call not_published() only if nothing can be in the table; grant={self.grant}"
                )
            self.outcome = PublishOutcome.NOT_PUBLISHED

    def unknown(self, error: Exception) -> None:
        """Report that the publish raised `error`. Return if the batch is in the table; it is then reported as published.

        Otherwise raise: `OutcomeUnknown`, or `error` itself if it is a `GateError`. Without a lookup (`recognise`) a table
        never has the batch. `BaseChanged` means that nothing was published.
        """
        if not self._failed(self, error):
            raise error
