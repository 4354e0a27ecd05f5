"""A simulated process: an event loop of its own, which runs until the process is paused or killed.

- Computing takes no time. Callbacks that are ready run one after the other at the same instant; only waiting takes time.
- *Paused* is SIGSTOP. It takes effect between any two callbacks. Clocks continue and responses queue up. On resumption, timers
  that came due and responses that arrived meanwhile run in a random order.
- *Suspended* is a machine that sleeps: like paused, but the loop's timers stop, as Linux's CLOCK_MONOTONIC does, while the
  clock that programs read (CLOCK_BOOTTIME) continues.
- *Dead* is SIGKILL: nothing runs any more, and nothing is cleaned up.

Tasks, futures and anyio's primitives are asyncio's own. Only the loop (`loop.py`) is replaced. There are no threads or sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Literal

from tests.simulation.clocks import Clock
from tests.simulation.loop import NodeLoop, enter
from tests.simulation.timeline import Timeline

MAX_CALLBACKS_AT_ONCE = 100_000
"""Number of callbacks at one instant after which a program counts as a busy loop."""
MAX_UNWINDING = 100_000
"""Callbacks after which a cancelled program counts as never ending."""

TIMER_LATENESS_SECONDS = 1e-6
"""Delay of each timer: rounding must not make it early."""
SLEEP_NOTICE_SECONDS = 1.0
"""`SLEEP_CHECK_SECONDS` of `agent/locks/keeper.py`: within this time an agent notices that its machine was suspended."""


class BusyLoopError(Exception):
    """A program runs without ever waiting."""


class Node:
    """A process on a machine with these clocks."""

    def __init__(self, name: str, clock: Clock, timeline: Timeline, random: Random) -> None:
        self.name = name
        self.clock = clock
        self.timeline = timeline
        self.state: Literal["running", "paused", "dead"] = "running"
        self.running_since = timeline.now
        """Since when it has run without a pause. After a suspension, its timers may be late for a while."""
        self._random = random
        self._suspended_seconds = 0.0
        self._pending_deliveries: list[Callable[[], None]] = []
        self._stop_in: tuple[int, Callable[[], None]] | None = None
        self._planned_for: float | None = None
        self._stepping = False
        self.loop = NodeLoop(self._loop_time)
        self._main: asyncio.Task[None] | None = None

    def now(self) -> float:
        """Return the monotonic time that a program reads."""
        return self.clock.monotonic(self.timeline.now)

    def wall_ms(self) -> int:
        """Return the wall-clock time that a program reads."""
        return self.clock.wall_ms(self.timeline.now)

    def _loop_time(self) -> float:
        return self.now() - self._suspended_seconds

    def true_time(self, loop_time: float) -> float:
        """Return the true time at which the loop's clock shows this."""
        return self.clock.when(loop_time + self._suspended_seconds)

    def log(self, text: str) -> None:
        """Add a line to the trace."""
        self.timeline.log(self.name, text)

    # -- control ---------------------------------------------------------------------------------------------------

    def start(self, program: Coroutine[Any, Any, None]) -> None:
        self._main = self.loop.create_task(program, name=self.name)
        self._step()

    def stop_within(self, callbacks: int, until: float | None, *, suspended: bool = False) -> None:
        """Pause the process until a time, after so many more callbacks. Without a time, kill it then."""
        if self.state != "running" or self._stop_in is not None:
            return
        self._stop_in = (callbacks, lambda: self._stop(until, suspended=suspended))
        if callbacks == 0 and not self._stepping:
            self._count_down()

    def kill(self) -> None:
        if self.state != "dead":
            self.state = "dead"
            self.log("is killed")

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
            # The loop's timers did not advance, so a program notices the suspension at its next look at the clock.
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
        """Run a callback now, or when the process is resumed."""
        if self.state == "running":
            self.loop.call_soon(callback)
            self._step()
        elif self.state == "paused":
            self._pending_deliveries.append(callback)

    # -- running -----------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Run all due callbacks, until the program waits or the process is stopped."""
        if self._stepping or self.state != "running":
            return
        self._stepping = True
        outer_loop = enter(self.loop)
        try:
            self._run_due()
        finally:
            enter(outer_loop)
            self._stepping = False
        self._plan()

    def _run_due(self) -> None:
        self.loop.queue_due_timers()
        for _ in range(MAX_CALLBACKS_AT_ONCE):
            if self._stop_in is not None and self._count_down():
                return
            if not self.loop.run_one():
                return
        raise BusyLoopError(f"{self.name} runs without ever waiting")

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
        at = max(self.true_time(when), self.timeline.now) + TIMER_LATENESS_SECONDS
        if self._planned_for is None or at < self._planned_for or self._planned_for <= self.timeline.now:
            self._planned_for = at
            self.timeline.plan(at, lambda: self._wake(at))

    def _wake(self, at: float) -> None:
        if self._planned_for == at:
            self._planned_for = None
        self._step()

    # -- end ---------------------------------------------------------------------------------------------------------

    def failure(self) -> str | None:
        """Return the error that ended the program, if there is one."""
        if self._main is not None and self._main.done() and (error := self._main.exception()):
            return _innermost(error)
        if self.loop.failures:
            return str(self.loop.failures[0].get("exception") or self.loop.failures[0].get("message"))
        return None

    @property
    def ended(self) -> bool:
        """Whether the program has ended or never will."""
        return self.state == "dead" or (self._main is not None and self._main.done())

    def dispose(self) -> None:
        """Cancel what is left of the program after the run. Its time advances until it has ended."""
        tasks = [each for each in asyncio.all_tasks(self.loop) if not each.done()]
        outer_loop = enter(self.loop)
        try:
            if self._main is not None:
                self._main.cancel()
                self._unwind([self._main])
            for each in tasks:
                each.cancel()
            self._unwind(tasks)
            for each in tasks:
                if each.done() and not each.cancelled():
                    each.exception()
        finally:
            enter(outer_loop)
            self.loop.close()

    def _unwind(self, tasks: list[asyncio.Task[Any]]) -> None:
        for _ in range(MAX_UNWINDING):
            if self.loop.run_one():
                continue
            when = self.loop.next_timer()
            if when is None or all(each.done() for each in tasks):
                return
            self.timeline.now = max(self.timeline.now, self.true_time(when)) + TIMER_LATENESS_SECONDS
            self.loop.queue_due_timers()


def _innermost(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
