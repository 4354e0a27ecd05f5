"""Until when a grant lease counts, on this writer's clock alone.

**Rule.** A grant names the last `seq` that the agent had read. Its lease starts when this writer *sent* that `seq`, on this
machine's monotonic clock, and ends `margin_seconds` early.

**Reason.** The agent read the `seq` after it was sent. So the writer's deadline is never later than the agent's, whatever
the two machines' clocks show. A grant from an agent that was suspended during the lease has already expired here.

- The time is recorded *before* the send, so a slow send shortens the lease and never lengthens it.
- A `seq` that was never sent, or whose time is no longer kept, gives no lease.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

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
    """The counter `seq` of a transaction's heartbeats and its request, and when each number was sent."""

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
