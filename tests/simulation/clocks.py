"""The clocks of a machine.

- The monotonic clock has an arbitrary start, and runs slightly fast or slow at a constant rate.
- The wall clock has a skew that drifts, or jumps when it is corrected, and stays within a band. Two clocks with the same band
  never differ by more than its width.

Both are drawn for the whole run in advance, so an oracle can ask what a clock *will* show.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from random import Random

EPOCH_MS = 1_800_000_000_000
"""January 2027: the start of the wall clocks."""


@dataclass(frozen=True, slots=True)
class Knot:
    """The skew is `skew` at this time, and changes by `slope` per second until the next knot."""

    at: float
    skew: float
    slope: float


@dataclass(frozen=True, slots=True)
class Clock:
    """One machine's clocks as functions of true time."""

    offset: float
    rate: float
    knots: tuple[Knot, ...]

    def monotonic(self, true: float) -> float:
        """Return the monotonic time in seconds."""
        return self.offset + self.rate * true

    def when(self, monotonic: float) -> float:
        """Return the true time at which the monotonic clock shows this."""
        return (monotonic - self.offset) / self.rate

    def wall(self, true: float) -> float:
        """Return the wall clock in seconds since the start of the run."""
        knot = self.knots[bisect_right(self.knots, true, key=lambda knot: knot.at) - 1]
        return true + knot.skew + knot.slope * (true - knot.at)

    def wall_ms(self, true: float) -> int:
        """Return the wall clock in milliseconds since 1970, as a program reads it."""
        return EPOCH_MS + int(self.wall(true) * 1000)


def draw_clock(
    random: Random, *, until: float, band: tuple[float, float], rate_error: float, jumps: float
) -> Clock:
    """Draw a clock whose skew stays within the band, and whose rate is off by at most `rate_error`."""
    at = 0.0
    knots: list[Knot] = []
    skew = random.uniform(*band)
    while at <= until:
        span = random.uniform(0.1, 0.5) * until + 0.001
        target = random.uniform(*band)
        if random.random() < jumps:
            knots.append(Knot(at, skew, 0.0))
        else:
            knots.append(Knot(at, skew, (target - skew) / span))
        at, skew = at + span, target
    return Clock(random.uniform(10, 1_000_000), 1 + random.uniform(-rate_error, rate_error), tuple(knots))
