"""This machine's clock against a server's.

Contenders for a lock compare its end with their own clocks, which may differ by `drift_seconds`. They can't compare their clocks
with one another, but each can with the store that has the lock. So a difference to the store's clock beyond the drift is a
problem: a contender may consider the lease ended while its holder relies on it. With `strict_takeover`, no lease depends on
clocks.

A server's time is known only within limits: it was read at some moment between request and answer, and a `Date` header is
up to two seconds old. The difference counts that is certain.
"""

from dataclasses import dataclass

from lakewarden.handlers.setup.findings import Finding


@dataclass(frozen=True, slots=True)
class ClockReading:
    """A server's time, and this machine's before the request and after the answer. All in Unix milliseconds."""

    before: int
    after: int
    server: int
    resolution: int = 1
    """The server's time is at least `server`, and less than this much later."""

    @property
    def ahead_ms(self) -> int:
        """By how much this clock is certainly ahead; negative: behind; 0: the clocks may agree."""
        least = self.before - (self.server + self.resolution)
        most = self.after - self.server
        if least > 0:
            return least
        return min(most, 0)


def judge_store_clock(store: str, reading: ClockReading, *, drift_seconds: float, strict: bool) -> Finding:
    """The finding about the clock of a store that has locks."""
    ahead = reading.ahead_ms
    if abs(ahead) <= drift_seconds * 1000:
        no_more = f"no difference of more than {drift_seconds:g} s to this machine's clock"
        return Finding("store-clock", "ok", store, no_more)
    return Finding(
        "store-clock",
        "warning" if strict else "problem",
        store,
        f"this machine's clock is {_how_far(ahead)} the store's, and drift_seconds is {drift_seconds:g}",
        "synchronise the clocks (NTP), or set drift_seconds to more than the clocks differ",
    )


def _how_far(ahead_ms: int) -> str:
    return f"at least {abs(ahead_ms) / 1000:.1f} s {'ahead of' if ahead_ms > 0 else 'behind'}"
