"""This machine's clock against a server's.

Contenders for a lock compare its end with their own clocks, which may differ by `drift_seconds`. They can't compare their clocks
with one another, but each can with the store that has the lock. So a difference to the store's clock beyond the drift is a
problem: a contender may consider the lease ended while its holder relies on it. With `strict_takeover`, no lease depends on
clocks.

Kafka's clock decides about no lease. A record's timestamp is its producer's: a broker refuses one that is more than
`message.timestamp.after.max.ms` ahead (an hour by default), and counts the retention from it.

A server's time is known only within limits: it was read at some moment between request and answer, and a `Date` header is
up to two seconds old. The difference counts that is certain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lakewarden.handlers.setup.findings import Finding

REFUSED_AHEAD_MS: Final = 3_600_000
"""Kafka's default of `message.timestamp.after.max.ms`."""


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
        return _agrees("store-clock", store, drift_seconds)
    return Finding(
        "store-clock",
        "warning" if strict else "problem",
        store,
        f"this machine's clock is {_how_far(ahead)} the store's, and drift_seconds is {drift_seconds:g}",
        "synchronise the clocks (NTP), or set drift_seconds to more than the clocks differ",
    )


def judge_kafka_clock(servers: str, reading: ClockReading, *, drift_seconds: float) -> Finding:
    """The finding about the clock of Kafka's active controller."""
    ahead = reading.ahead_ms
    if abs(ahead) <= drift_seconds * 1000:
        return _agrees("kafka-clock", servers, drift_seconds)
    risk = (
        "the brokers refuse its records"
        if ahead > REFUSED_AHEAD_MS
        else "the times in events, and the retention, are off by as much"
    )
    return Finding(
        "kafka-clock",
        "problem" if ahead > REFUSED_AHEAD_MS else "warning",
        servers,
        f"this machine's clock is {_how_far(ahead)} that of Kafka's controller: {risk}",
        "synchronise the clocks (NTP)",
    )


def _agrees(check: str, about: str, drift_seconds: float) -> Finding:
    return Finding(
        "store-clock" if check == "store-clock" else "kafka-clock",
        "ok",
        about,
        f"no difference of more than {drift_seconds:g} s to this machine's clock",
    )


def _how_far(ahead_ms: int) -> str:
    return f"at least {abs(ahead_ms) / 1000:.1f} s {'ahead of' if ahead_ms > 0 else 'behind'}"
