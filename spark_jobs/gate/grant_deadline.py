"""How long a grant holds, counted by this writer alone.

The rule: a grant names the last `seq` that the agent had seen, and its lease runs from the moment when this writer
*sent* that `seq`, on this machine's monotonic clock, less a margin. The reason: the agent read the `seq` after it was
sent, so our deadline is never later than the agent's, whatever the clocks of the two machines say; and a grant from an
agent that slept through its own lease has, for us, already lapsed.

The moment is remembered *before* the send, so that a slow send shortens the lease and never lengthens it. A `seq` that
was never sent, or sent so long ago that it was forgotten, gives no lease at all.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

MAX_REMEMBERED = 4096
"""Send times kept. At a heartbeat a second it is more than an hour: no lease is that long."""


def monotonic_seconds() -> float:
    """Seconds that also pass while the machine is suspended, where the platform has such a clock.

    Linux' CLOCK_MONOTONIC stands still in a suspended virtual machine; a lease doesn't.
    """
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


@dataclass(slots=True)
class SendTimes:
    """The rising counter of a transaction's heartbeats and its request, and when each was sent."""

    margin_seconds: float
    _sent_at: dict[int, float] = field(default_factory=dict)
    _next: int = 0

    def next_seq(self, now: float) -> int:
        """The next `seq`; call it before it is sent."""
        seq = self._next
        self._next += 1
        self._sent_at[seq] = now
        self._sent_at.pop(seq - MAX_REMEMBERED, None)
        return seq

    def deadline(self, seq: int, lease_seconds: float) -> float | None:
        """Until when a lease that names `seq` holds; None where that `seq` gives none."""
        sent_at = self._sent_at.get(seq)
        return None if sent_at is None else sent_at + lease_seconds - self.margin_seconds
