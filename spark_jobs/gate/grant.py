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
import time
from collections.abc import Callable
from dataclasses import dataclass, field
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


MAX_SEND_TIMES = 4096
"""Send times kept: more than an hour at one heartbeat per second, and no lease is that long."""


def monotonic_seconds() -> float:
    """Return seconds of a clock that also counts while the machine is suspended, where the platform has one.

    Linux' CLOCK_MONOTONIC stops in a guest that is suspended; a lease doesn't. No clock of a guest counts while its
    hypervisor pauses it.
    """
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


@dataclass(slots=True)
class SendTimes:
    """Until when a grant lease counts, on this writer's clock alone: `seq` counts a transaction's heartbeats and its request.

    **Rule.** A grant names the last `seq` that the agent had read. Its lease starts when this writer *sent* that `seq`, on this
    machine's monotonic clock, and ends `margin_seconds` early.

    **Reason.** The agent read the `seq` after it was sent. So the writer's deadline is never later than the agent's, whatever
    the two machines' clocks show. A grant from an agent that was suspended during the lease has already expired here.

    - The time is recorded *before* the send, so a slow send shortens the lease and never lengthens it.
    - A `seq` that was never sent, or whose time is no longer kept, gives no lease.
    """

    margin_seconds: float
    _sent_at: dict[int, float] = field(default_factory=dict)
    _next: int = 0

    def next_seq(self, now: float) -> int:
        """Return the next `seq` and record `now` as its send time. Call it before the send."""
        seq = self._next
        self._next += 1
        self._sent_at[seq] = now
        self._sent_at.pop(seq - MAX_SEND_TIMES, None)
        return seq

    def deadline(self, seq: int, lease_seconds: float) -> float | None:
        """Return until when a lease that names `seq` counts, or None if that `seq` gives none."""
        sent_at = self._sent_at.get(seq)
        return None if sent_at is None else sent_at + lease_seconds - self.margin_seconds
