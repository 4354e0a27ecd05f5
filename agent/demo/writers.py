"""Both queries side by side, followed until each has brought its whole feed.

A writer that fails is started again with the same checkpoint, as an operator would do it: Paimon asks a streaming job
to fail and restart where a conflict can't be cured in place. That happens a bounded number of times and is noted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lakewarden.agent.demo.errors import DemoError
from lakewarden.agent.demo.flights import Feed
from lakewarden.agent.demo.processes import Child
from lakewarden.agent.demo.trace import Step, StepsFile

QUIET_SECONDS = 180.0
"""Both writers silent for this long: something hangs. Spark takes 20 s to start on a loaded machine."""

MAX_RESTARTS = 3
"""A writer that fails again and again has a reason that starting it once more won't cure."""

Start = Callable[[Feed, Path, int], Child]
"""Starts a feed's query with this events file, for the n-th time."""


@dataclass(frozen=True, slots=True)
class Restarted:
    """A writer failed and runs again."""

    writer: str
    reason: str


class Writer:
    """One feed's query: the process that runs it now, and how often it had to be started again."""

    def __init__(self, feed: Feed, events: Path, start: Start) -> None:
        self.feed = feed
        self.restarts = 0
        self.done = False
        self._events = events
        self._start = start
        self._child, self._steps = self._begin()

    def _begin(self) -> tuple[Child, StepsFile]:
        # A file a start: a line that a killed process left half written spoils nothing after it.
        path = self._events / f"{self.feed.name}-{self.restarts}.jsonl"
        return self._start(self.feed, path, self.restarts), StepsFile(path)

    def poll(self) -> Iterator[Step | Restarted]:
        """What has happened since the last look."""
        code = None if self.done else self._child.exit_code()
        yield from self._steps.read_new()
        if code is None:
            return
        if code == 0:
            self.done = True
            return
        reason = self._child.last_log_line()
        if self.restarts == MAX_RESTARTS:
            raise DemoError(
                f"the {self.feed.name} query failed {MAX_RESTARTS + 1} times, at last with: {reason}"
            )
        self.restarts += 1
        self._child, self._steps = self._begin()
        yield Restarted(self.feed.name, f"code {code}: {reason}")


def follow(
    writers: Sequence[Writer], *, tick: Callable[[], None], every: float = 0.1
) -> Iterator[Step | Restarted]:
    """Everything that the writers do, as it happens, until all are done. `tick` runs between two looks."""
    heard = time.monotonic()
    while True:
        news = [event for writer in writers for event in writer.poll()]
        # Only steps have a time; a restart goes last, as it was noticed last.
        yield from sorted(news, key=lambda event: event.at if isinstance(event, Step) else float("inf"))
        if all(writer.done for writer in writers):
            return
        if news:
            heard = time.monotonic()
        if time.monotonic() - heard > QUIET_SECONDS:
            raise DemoError(f"no writer did anything for {QUIET_SECONDS:.0f} s")
        tick()
        time.sleep(every)
