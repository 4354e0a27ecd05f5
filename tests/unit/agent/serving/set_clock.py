"""A clock that a test sets, in the one place where the agent reads it (`agent/clock.py`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class SetClock:
    """Replaces the module `time` of `agent/clock.py`: the monotonic time is what `now` returns."""

    now: Callable[[], float]

    def clock_gettime(self, _: int) -> float:
        return self.now()

    def time_ns(self) -> int:
        return time.time_ns()
