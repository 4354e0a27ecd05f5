"""Runs both queries until each has written its whole feed.

A writer that fails is restarted with the same checkpoint, as an operator would do: Paimon expects a streaming job to fail and
restart after a conflict that it can't resolve. The number of restarts is limited, and each one is recorded in the report.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lakewarden.agent.attempts.trace import AttemptStep, StepsFile
from lakewarden.agent.demo.choices import DemoError
from lakewarden.agent.demo.flights import Feed
from lakewarden.agent.demo.processes import Child

QUIET_SECONDS = 600.0
"""Limit for the time in which neither writer records a step. Beside other work, a batch may take minutes."""

MAX_RESTARTS = 3
"""Limit per writer: the cause of repeated failures persists after another restart."""

Start = Callable[[Feed, Path, int], Child]
"""Starts the query of a feed with this events file; the number counts the restarts."""


@dataclass(frozen=True, slots=True)
class Restarted:
    """A writer failed and was restarted."""

    writer: str
    reason: str


class Writer:
    """The query of one feed: its current process, and the number of restarts."""

    def __init__(self, feed: Feed, events: Path, start: Start) -> None:
        self.feed = feed
        self.restarts = 0
        self.done = False
        self._events = events
        self._start = start
        self._child, self._steps = self._start_process()

    def _start_process(self) -> tuple[Child, StepsFile]:
        # A new file for each start, because a killed process may leave an incomplete line at the end.
        path = self._events / f"{self.feed.name}-{self.restarts}.jsonl"
        return self._start(self.feed, path, self.restarts), StepsFile(path)

    def poll(self) -> Iterator[AttemptStep | Restarted]:
        """The steps since the last call, and a restart if the process has failed."""
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
                f"the {self.feed.name} query failed {MAX_RESTARTS + 1} times; the last error: {reason}"
            )
        self.restarts += 1
        self._child, self._steps = self._start_process()
        yield Restarted(self.feed.name, f"code {code}: {reason}")


def follow(
    writers: Sequence[Writer], *, tick: Callable[[], None], every: float = 0.1
) -> Iterator[AttemptStep | Restarted]:
    """Yield the steps and restarts of all writers until all are done. `tick` is called between two polls."""
    last_event = time.monotonic()
    while True:
        events = [event for writer in writers for event in writer.poll()]
        # Only steps have a time. A restart comes last, because it is detected after the steps.
        yield from sorted(
            events, key=lambda event: event.at if isinstance(event, AttemptStep) else float("inf")
        )
        if all(writer.done for writer in writers):
            return
        if events:
            last_event = time.monotonic()
        if time.monotonic() - last_event > QUIET_SECONDS:
            raise DemoError(f"neither query made progress for {QUIET_SECONDS:.0f} s")
        tick()
        time.sleep(every)
