"""An event loop that is stepped from outside, one callback at a time, with a given clock.

It implements only what tasks, futures and anyio's primitives need: callbacks and timers. It has no selector, never sleeps, and
runs nothing by itself.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from types import SimpleNamespace
from typing import Any, TypeAlias, TypeVar, TypeVarTuple

try:
    from sniffio import thread_local as library
except ImportError:  # then anyio doesn't ask it
    library = SimpleNamespace()  # type: ignore[assignment]

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")
_Program: TypeAlias = Generator[Any, None, _T] | Coroutine[Any, Any, _T]


def enter(loop: asyncio.AbstractEventLoop | None) -> asyncio.AbstractEventLoop | None:
    """Make this the running loop. Return the previous one."""
    previous = events._get_running_loop()
    events._set_running_loop(loop)
    # So that anyio needn't find out at each call.
    library.name = None if loop is None else "asyncio"
    return previous


class NodeLoop(asyncio.BaseEventLoop):
    """Callbacks and timers, stepped from outside."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._due: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._count = 0
        self.failures: list[dict[str, Any]] = []
        self.set_task_factory(_NumberedTasks())

    def time(self) -> float:
        return self._clock()

    def is_running(self) -> bool:
        return events._get_running_loop() is self

    def call_soon(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._due.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: cancelled timers are skipped when they are due."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.failures.append(context)

    def next_timer(self) -> float | None:
        """Return when the next timer is due, in this loop's time."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def queue_due_timers(self) -> None:
        now = self.time()
        while (when := self.next_timer()) is not None and when <= now:
            self._due.append(heapq.heappop(self._timers)[2])

    def run_one(self) -> bool:
        """Run the next due callback. Return False if there is none."""
        while self._due:
            handle = self._due.popleft()
            if handle.cancelled():
                continue
            handle._run()
            return True
        return False


class _NumberedTasks:
    """Makes tasks whose order in sets is the same in every run. The default hash of a task is its memory address."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(
        self, loop: asyncio.AbstractEventLoop, program: _Program[_T], /, **more: Any
    ) -> asyncio.Future[_T]:
        self._count += 1
        return _Task(self._count, program, loop=loop, **more)


class _Task(asyncio.Task[_T]):
    def __init__(self, number: int, program: _Program[_T], **more: Any) -> None:
        self.number = number  # before the base class adds the task to any set
        super().__init__(program, **more)

    def __hash__(self) -> int:
        return self.number
