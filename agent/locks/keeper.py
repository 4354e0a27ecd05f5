"""Runs the lock's state machine (`handlers/lease/machine.py`) in one task per table, so that a slow store delays no other table.

The task waits for the next input: a call of `acquire` or `release`, the answer of the store, or the state machine's own deadline.
It passes the input to the state machine and starts the requests that the step asks for. Requests run in tasks of their own, so
that a hanging request does not delay the end of a lease. A synchronous callback reports each step, and whether the lease may be
relied upon. This file decides nothing.

After a suspension of the machine, a keeper must notice that its lease has ended before it does anything else:

- Every input carries the time of `agent/clock.py`, and a step ends an expired lease first (`lease.step`).
- The event loop's timers don't run during the suspension; the agent's clock does. A `SleepWatch`, one for all keepers of an
  agent, compares deadlines with that clock every `SLEEP_CHECK_SECONDS`, and wakes the keepers that are late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import anyio
import anyio.abc
import anyio.lowlevel
import structlog

from lakewarden.agent.clock import moment, monotonic
from lakewarden.agent.errors import TaskEndedError
from lakewarden.agent.stores import (
    ConditionalStore,
    LocationError,
    StoreProbeError,
    StoreRefusedError,
    StoreUnreachableError,
)
from lakewarden.agent.unrequested import guarded
from lakewarden.events import AuditEventUnion, LockAcquired, LockReleased
from lakewarden.handlers.lease import machine as lease
from lakewarden.handlers.lease.conditional import Refused, Unknown
from lakewarden.handlers.lease.lock_queue import Contender, LockQueue
from lakewarden.handlers.lease.placement import LockLocation

log = structlog.get_logger()

KeeperEvent = lease.Confirmed | lease.Released | lease.LeaseEnded | lease.LockDenied
SLEEP_CHECK_SECONDS = 1.0
"""The longest time from the end of a suspension until a keeper notices it. `margin_seconds` must leave room for it."""


class SleepWatch:
    """Wakes the keepers whose timers are late because the machine was suspended."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self.keepers: dict[LockKeeper, None] = {}

    @contextmanager
    def watching(self, keeper: LockKeeper) -> Iterator[None]:
        self.keepers[keeper] = None
        try:
            yield
        finally:
            del self.keepers[keeper]

    async def run(self) -> None:
        """Compare the deadlines with the clock until cancelled."""
        while True:
            await anyio.sleep(SLEEP_CHECK_SECONDS)
            now = self._clock()
            for keeper in self.keepers:
                keeper.wake_if_due(now)


class LockKeeper:
    """One table's lock. Without a `watch`, which its owner runs, the keeper runs one of its own."""

    def __init__(
        self,
        location: LockLocation,
        settings: lease.LeaseSettings,
        store: Callable[[], Awaitable[ConditionalStore]],
        report: Callable[[KeeperEvent, bool], None],
        *,
        name: Contender | None = None,
        clock: Callable[[], lease.Moment] = moment,
        watch: SleepWatch | None = None,
    ) -> None:
        self.location = location
        self._settings = settings
        self._open_store = store
        self._report = report
        self._state: lease.State = lease.Idle()
        self._name = name
        self._queue = LockQueue()
        self._clock = clock
        self._watch = watch
        self._due: float | None = None
        self._inbox: deque[lease.Input] = deque()
        self._woken = anyio.Event()
        self._idle = anyio.Event()
        self._idle.set()
        self.denied_since: float | None = None
        """Since when the lock that its owner requests is denied, in monotonic seconds. None: it isn't."""

    def acquire(self, adopt: str | None) -> None:
        """Request the lock. `adopt` names the former owner whose lock covers a running grant."""
        ahead = 0 if self._name is None else self._queue.others_waiting(self._name)
        self._submit(lease.Acquire(self._clock(), adopt, ahead))

    def release(self) -> None:
        self.denied_since = None
        self._submit(lease.Release(self._clock()))

    def hint(self, event: AuditEventUnion) -> None:
        """Use an agent's audit event of this lock object as a hint (`handlers/lease/lock_queue.py`).

        A lost hint costs waiting time, nothing else.
        """
        self._queue = self._queue.apply(event)
        if self._name is None or (event.agent, event.table) == self._name:
            return
        match event:
            case LockReleased(detail=None):
                self._enqueue(lease.ReleaseHint(self._clock(), self._queue.ahead_of(self._name)))
            case LockAcquired(valid_until=valid_until):
                self._enqueue(lease.AcquisitionHint(self._clock(), valid_until))
            case _:
                pass

    def wake_if_due(self, now: float) -> None:
        """Wake the task if the state machine's deadline has passed."""
        if self._due is not None and now >= self._due:
            self._woken.set()

    @property
    def idle(self) -> bool:
        return self._idle.is_set()

    async def wait_released(self) -> None:
        """Return when no lock is held and no request is outstanding."""
        await self._idle.wait()

    def _submit(self, request: lease.Acquire | lease.Release) -> None:
        if self._idle.is_set():
            self._idle = anyio.Event()
        self._enqueue(request)

    def _enqueue(self, step_input: lease.Input) -> None:
        self._inbox.append(step_input)
        self._woken.set()

    async def run(self) -> None:
        watch = self._watch or SleepWatch(lambda: self._clock().now)
        async with anyio.create_task_group() as tasks:
            if self._watch is None:
                tasks.start_soon(watch.run)
            with watch.watching(self):
                while True:
                    self._step(await self._next(), tasks)

    def _step(self, step_input: lease.Input, requests: anyio.abc.TaskGroup) -> None:
        self._state, effects = lease.step(self._state, step_input, self._settings)
        for effect in effects:
            match effect:
                case lease.Get() | lease.Put():
                    requests.start_soon(self._request, effect)
                case _:
                    # A lease that is confirmed while its release is queued may not be relied upon.
                    relied_on = not any(isinstance(each, lease.Release) for each in self._inbox)
                    if not isinstance(effect, lease.LockDenied):
                        self.denied_since = None
                    elif self.denied_since is None and relied_on:
                        self.denied_since = self._clock().now
                    self._report(effect, relied_on)
        self._due = lease.deadline(self._state, self._settings)
        if isinstance(self._state, lease.Idle) and not self._inbox:
            self._idle.set()

    async def _next(self) -> lease.Input:
        if not self._inbox:
            self._woken = anyio.Event()
            wait = None if self._due is None else max(0.0, self._due - self._clock().now)
            with anyio.move_on_after(wait):
                await self._woken.wait()
        return self._inbox.popleft() if self._inbox else lease.Timer(self._clock())

    async def _request(self, effect: lease.Get | lease.Put) -> None:
        done = lease.ReadDone if isinstance(effect, lease.Get) else lease.WriteDone
        try:
            with guarded(f"a request for {self.location.uri}"):
                store = await self._open_store()
                if isinstance(effect, lease.Get):
                    found = await store.read(self.location.uri)
                    self._enqueue(lease.ReadDone(self._clock(), found))
                else:
                    written = await store.write(self.location.uri, effect.body, effect.condition)
                    self._enqueue(lease.WriteDone(self._clock(), written))
        except (StoreProbeError, LocationError) as error:
            self._enqueue(done(self._clock(), _not_opened(error)))
        except TaskEndedError as error:
            # The store's client has cancelled it. As after any lost answer, it may have arrived.
            log.warning("lock.request-cancelled", lock=self.location.uri, problem=str(error))
            self._enqueue(done(self._clock(), Unknown(str(error))))


def _not_opened(error: StoreProbeError | LocationError) -> Unknown | Refused:
    """The outcome of a request whose store could not be opened."""
    if isinstance(error, StoreUnreachableError):
        return Unknown(str(error))
    return Refused(str(error), unusable=not isinstance(error, StoreRefusedError))
