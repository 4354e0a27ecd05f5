"""True time, in seconds since the start of a run, and the queue of scheduled actions.

Actions run one after the other. Actions that are due at the same instant run in the order in which they were scheduled. An
action may schedule more, at the same instant or later. The trace has one line per logged action, in that order.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Line = tuple[float, str, str]
"""Time, source and text of a line."""


@dataclass(slots=True)
class Timeline:
    """The only clock and the only queue of a run."""

    now: float = 0.0
    trace: list[Line] = field(default_factory=list)
    _planned: list[tuple[float, int, Callable[[], object]]] = field(default_factory=list)
    _count: int = 0

    def plan(self, at: float, action: Callable[[], object]) -> None:
        """Schedule an action at a time, or now if that time is past."""
        self._count += 1
        heapq.heappush(self._planned, (max(at, self.now), self._count, action))

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Schedule an action so many seconds from now."""
        self.plan(self.now + seconds, action)

    def run(self, until: float, done: Callable[[], bool]) -> None:
        """Run all actions that are due before `until`, and stop early when `done`."""
        while self._planned and not done():
            at, _, action = self._planned[0]
            if at > until:
                self.now = until
                return
            heapq.heappop(self._planned)
            self.now = at
            action()

    def log(self, source: str, text: str) -> None:
        """Add a line to the trace."""
        self.trace.append((self.now, source, text))


def format_line(line: Line) -> str:
    """Return a line of the trace as it is printed."""
    at, source, text = line
    return f"{at:12.6f}  {source:<8} {text}"


def digest(trace: Sequence[Line]) -> str:
    """Return a digest that is equal exactly if two traces are equal byte for byte."""
    summary = hashlib.sha256()
    for at, source, text in trace:
        summary.update(f"{at!r} {source} {text}\n".encode())
    return summary.hexdigest()
