"""What a machine believes the time to be.

- The monotonic clock starts anywhere and runs a little fast or slow, always by the same factor.
- The wall clock is off by a skew that wanders, or jumps when somebody corrects it, and stays within a band: two
  machines whose bands are the same never differ by more than its width.

Both are known for the whole run in advance, so an oracle can ask what a clock *will* show.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from random import Random

EPOCH_MS = 1_800_000_000_000
"""January 2027: where the wall clocks start."""


@dataclass(frozen=True, slots=True)
class Knot:
    """From here on the skew is `skew`, changing by `slope` a second."""

    at: float
    skew: float
    slope: float


@dataclass(frozen=True, slots=True)
class Clock:
    """One machine's clocks, as functions of the true time."""

    offset: float
    rate: float
    knots: tuple[Knot, ...]

    def monotonic(self, true: float) -> float:
        """Seconds that never go back."""
        return self.offset + self.rate * true

    def when(self, monotonic: float) -> float:
        """The true time at which the monotonic clock shows that."""
        return (monotonic - self.offset) / self.rate

    def wall(self, true: float) -> float:
        """Seconds since the epoch of the runs."""
        knot = self.knots[bisect_right(self.knots, true, key=lambda knot: knot.at) - 1]
        return true + knot.skew + knot.slope * (true - knot.at)

    def wall_ms(self, true: float) -> int:
        """Epoch milliseconds, as a program reads them."""
        return EPOCH_MS + int(self.wall(true) * 1000)


def draw_clock(
    random: Random, *, until: float, band: tuple[float, float], rate_error: float, jumps: float
) -> Clock:
    """A clock whose skew stays within the band, and whose rate is off by at most `rate_error`."""
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
