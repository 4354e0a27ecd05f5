"""True time, in seconds from the start of a run, and what happens when.

Things happen one after the other: what is due at the same instant happens in the order in which it was planned. Whatever
happens may plan more, at the same instant or later, never earlier. The trace tells it in that order, one line each.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Line = tuple[float, str, str]
"""When, who, what."""


@dataclass(slots=True)
class Timeline:
    """The one clock and the one queue of a run."""

    now: float = 0.0
    trace: list[Line] = field(default_factory=list)
    _planned: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _count: int = 0

    def plan(self, at: float, action: Callable[[], None]) -> None:
        """Let it happen at that time, or now if that is past."""
        self._count += 1
        heapq.heappush(self._planned, (max(at, self.now), self._count, action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Let it happen so many seconds from now."""
        self.plan(self.now + seconds, action)

    def run(self, until: float, done: Callable[[], bool]) -> None:
        """Let everything happen that is due before `until`; end early when `done`."""
        while self._planned and not done():
            at, _, action = self._planned[0]
            if at > until:
                self.now = until
                return
            heapq.heappop(self._planned)
            self.now = at
            action()

    def log(self, source: str, text: str) -> None:
        """A line of the trace."""
        self.trace.append((self.now, source, text))


def format_line(line: Line) -> str:
    """A line of the trace as it is printed."""
    at, source, text = line
    return f"{at:12.6f}  {source:<8} {text}"


def digest(trace: Sequence[Line]) -> str:
    """What two runs have in common if they are the same, byte for byte."""
    summary = hashlib.sha256()
    for at, source, text in trace:
        summary.update(f"{at!r} {source} {text}\n".encode())
    return summary.hexdigest()
