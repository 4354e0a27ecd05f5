"""A process of the simulation: an event loop of its own that runs only while nobody has stopped it.

- Computing takes no time: callbacks that are ready run one after the other at the same instant. Only waiting takes time.
- *Paused* is SIGSTOP: it takes hold between two callbacks, anywhere. Clocks run on, answers queue up; when it is over,
  timers that came due meanwhile and answers that deliveries meanwhile are served in an order that chance decides.
- *Suspended* is a machine that sleeps: as paused, but the loop's own timers stand still meanwhile, as Linux's
  CLOCK_MONOTONIC does, while the clock that programs read (CLOCK_BOOTTIME) runs on.
- *Dead* is SIGKILL: nothing runs any more and nothing is cleaned up.

Tasks, futures and anyio's primitives are asyncio's own: the loop (`loop.py`) is all that is replaced. No threads, no sockets.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Literal

from tests.simulation.clocks import Clock
from tests.simulation.loop import NodeLoop
from tests.simulation.timeline import Timeline

MAX_CALLBACKS_AT_ONCE = 100_000
"""Callbacks at one instant after which a program is taken to spin."""

TIMER_LATENESS_SECONDS = 1e-6
"""A timer is late by this much: no program is so quick, and rounding can't make it early."""
SLEEP_NOTICE_SECONDS = 1.0
"""`SLEEP_CHECK_SECONDS` of agent/locks/keeper.py: within that a suspended machine's timers are noticed to be late."""


class BusyLoopError(Exception):
    """A program goes round without waiting."""


class Node:
    """A process on a machine with these clocks. It begins to run when its program is started."""

    def __init__(self, name: str, clock: Clock, timeline: Timeline, random: Random) -> None:
        self.name = name
        self.clock = clock
        self.timeline = timeline
        self.state: Literal["running", "paused", "dead"] = "running"
        self.running_since = timeline.now
        """Since when it has run without a pause, late timers of a suspended machine included."""
        self._random = random
        self._suspended_seconds = 0.0
        self._pending_deliveries: list[Callable[[], None]] = []
        self._stop_in: tuple[int, Callable[[], None]] | None = None
        self._planned_for: float | None = None
        self._stepping = False
        self.loop = NodeLoop(self._loop_time)
        self._main: asyncio.Task[None] | None = None

    def now(self) -> float:
        """What a program reads as monotonic time."""
        return self.clock.monotonic(self.timeline.now)

    def wall_ms(self) -> int:
        """What a program reads as the time of day."""
        return self.clock.wall_ms(self.timeline.now)

    def _loop_time(self) -> float:
        return self.now() - self._suspended_seconds

    def log(self, text: str) -> None:
        """A line of the trace."""
        self.timeline.log(self.name, text)

    # -- what is done to it ------------------------------------------------------------------------------------------

    def start(self, program: Coroutine[Any, Any, None]) -> None:
        """Run the program."""
        self._main = self.loop.create_task(program, name=self.name)
        self._step()

    def stop_within(self, callbacks: int, until: float | None, *, suspended: bool = False) -> None:
        """Pause it, once so many more callbacks have run, until that time; without a time, kill it there."""
        if self.state != "running" or self._stop_in is not None:
            return
        self._stop_in = (callbacks, lambda: self._stop(until, suspended=suspended))
        if callbacks == 0 and not self._stepping:
            self._count_down()

    def kill(self) -> None:
        """Let it be dead now, whatever it was."""
        if self.state != "dead":
            self.state = "dead"
            self.log("dies")

    def _stop(self, until: float | None, *, suspended: bool) -> None:
        if until is None:
            self.kill()
            return
        seconds = until - self.timeline.now
        if seconds > 0:
            self.state = "paused"
            self.log(f"{'suspended' if suspended else 'paused'} for {seconds:.3f}")
            self.timeline.plan(until, lambda: self._resume(seconds, suspended=suspended))

    def _resume(self, seconds: float, *, suspended: bool) -> None:
        if self.state == "dead":
            return
        self.state = "running"
        self.running_since = self.timeline.now
        if suspended:
            # The loop's timers have stood still; a program that looks at the clock now and then is late by that much.
            self._suspended_seconds += seconds * self.clock.rate
            self.running_since += SLEEP_NOTICE_SECONDS
        self.log("resumes")
        deliveries, self._pending_deliveries = self._pending_deliveries, []
        timers_first = self._random.random() < 0.5
        if timers_first:
            self.loop.queue_due_timers()
        for each in deliveries:
            self.loop.call_soon(each)
        self._step()

    def deliver(self, callback: Callable[[], None]) -> None:
        """Something arrives from outer_loop: served now, or when it runs again."""
        if self.state == "running":
            self.loop.call_soon(callback)
            self._step()
        elif self.state == "paused":
            self._pending_deliveries.append(callback)

    # -- running -----------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Run whatever is due, until it waits or is stopped."""
        if self._stepping or self.state != "running":
            return
        self._stepping = True
        outer_loop = events._get_running_loop()
        events._set_running_loop(self.loop)
        try:
            self._run_due()
        finally:
            events._set_running_loop(outer_loop)
            self._stepping = False
        self._plan()

    def _run_due(self) -> None:
        self.loop.queue_due_timers()
        for _ in range(MAX_CALLBACKS_AT_ONCE):
            if self._stop_in is not None and self._count_down():
                return
            if not self.loop.run_one():
                return
        raise BusyLoopError(f"{self.name} goes round without ever waiting")

    def _count_down(self) -> bool:
        assert self._stop_in is not None
        left, stop = self._stop_in
        if left > 0:
            self._stop_in = (left - 1, stop)
            return False
        self._stop_in = None
        stop()
        return self.state != "running"

    def _plan(self) -> None:
        when = self.loop.next_timer()
        if when is None or self.state != "running":
            return
        at = max(self.clock.when(when + self._suspended_seconds), self.timeline.now) + TIMER_LATENESS_SECONDS
        if self._planned_for is None or at < self._planned_for or self._planned_for <= self.timeline.now:
            self._planned_for = at
            self.timeline.plan(at, lambda: self._wake(at))

    def _wake(self, at: float) -> None:
        if self._planned_for == at:
            self._planned_for = None
        self._step()

    # -- its end -----------------------------------------------------------------------------------------------------

    def failure(self) -> str | None:
        """Why its program broke, if it did."""
        if self._main is not None and self._main.done() and (error := self._main.exception()):
            return _innermost(error)
        if self.loop.failures:
            return str(self.loop.failures[0].get("exception") or self.loop.failures[0].get("message"))
        return None

    @property
    def ended(self) -> bool:
        """Whether its program has come to its end, or never will."""
        return self.state == "dead" or (self._main is not None and self._main.done())

    def dispose(self) -> None:
        """Unwind what is left of the program, after the run: nobody looks at it any more."""
        outer_loop = events._get_running_loop()
        events._set_running_loop(self.loop)
        try:
            if self._main is not None and not self._main.done():
                self._main.cancel()
            while self.loop.run_one():
                pass
            if self._main is not None and not self._main.cancelled():
                self._main.exception()
        finally:
            events._set_running_loop(outer_loop)
            self.loop.close()


def _innermost(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
