"""`lakewarden lock hold`: acquire a table's lock, run a command while it is renewed, release it.

- The command starts after the lock was confirmed, in a process group of its own. When it has ended, what it has left running in
  its group is killed, and the lock is released. SIGINT, SIGTERM and SIGHUP are passed on to the group.
- If the lease is lost, or not confirmed `margin` before its end, the group gets SIGTERM, and SIGKILL before the lease ends. After
  `seconds` it gets SIGTERM, and SIGKILL `GRACE_SECONDS` later; the lock is renewed until then. A process that is suspended can
  do neither: docs/lock.md says what the command may do then.
- While another owner holds the lock, this process waits up to `wait` seconds; 0 means one try. An error that waiting does not
  resolve (an object that is not a lock record, a store that refuses access) is raised immediately.
"""

import math
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import anyio
import anyio.abc

from lakewarden.agent.bound_child import bound
from lakewarden.agent.clock import monotonic
from lakewarden.agent.errors import AgentError
from lakewarden.agent.locks.commands import StoreUnavailableError, TableLock
from lakewarden.agent.locks.keeper import KeeperEvent, LockKeeper
from lakewarden.agent.settings import Settings
from lakewarden.agent.stores import Stores
from lakewarden.agent.time_text import when
from lakewarden.handlers.lease import machine as lease

EXIT_NOT_ACQUIRED = 75
"""EX_TEMPFAIL: the lock could not be acquired; try again later."""
EXIT_ENDED = 76
"""The command was ended, because the lock was lost or its time was over."""

GRACE_SECONDS = 10.0
"""Between SIGTERM and SIGKILL, or less if the lease ends sooner."""
KILL_BEFORE_END_SECONDS = 0.5
"""How long before the end of a lost lease the command is killed."""
ONE_TRY_REQUESTS = 6
"""Requests of one try: a probe, a read and a write. Each may take the request timeout."""

HoldEvent: TypeAlias = KeeperEvent | signal.Signals | anyio.abc.Process
"""What happens while a lock is held. A process: it has ended."""


@dataclass(frozen=True, slots=True)
class HoldOptions:
    """The command's options, and where it prints."""

    locate: Callable[[], Awaitable[TableLock]]
    seconds: float
    wait: float
    command: Sequence[str]
    warn: Callable[[str], None]


async def hold(settings: Settings, options: HoldOptions) -> int:
    """Hold the lock while the command runs. Return the exit status."""
    if shutil.which(options.command[0]) is None:
        raise AgentError(f"no such program: {options.command[0]}; the lock was not acquired")
    try:
        lock = await options.locate()
    except StoreUnavailableError as error:
        options.warn(str(error))
        return EXIT_NOT_ACQUIRED
    async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
        holder = _Holder(settings, options, lock, Stores(settings, stack))
        stack.callback(holder.close)
        await tasks.start(holder.receive_signals)
        tasks.start_soon(holder.keeper.run)
        try:
            held = await holder.acquire()
            status = await holder.run(held, tasks) if isinstance(held, lease.Lease) else held
        finally:
            with anyio.CancelScope(shield=True):
                await holder.release()
            tasks.cancel_scope.cancel()
    return status


class _Holder:
    """One lock and one command."""

    def __init__(self, settings: Settings, options: HoldOptions, lock: TableLock, stores: Stores) -> None:
        self._settings, self._options = settings, options
        self._table, self._uri = lock.table, lock.location.uri
        self._send, self._events = anyio.create_memory_object_stream[HoldEvent](math.inf)
        self.keeper = LockKeeper(
            lock.location,
            settings.lease(shared=lock.location.shared),
            partial(stores.for_lock, self._uri),
            lambda event, _: self._send.send_nowait(event),
        )

    def close(self) -> None:
        self._send.close()
        self._events.close()

    async def receive_signals(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Receive signals until cancelled. A signal that is ignored already (nohup, a shell's background job) stays ignored."""
        wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        heeded = [number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN]
        with anyio.open_signal_receiver(*heeded) as signals:
            task_status.started()
            async for number in signals:
                self._send.send_nowait(number)

    async def _next(self, until: float) -> HoldEvent | None:
        """The next event, or None at this time."""
        with anyio.move_on_after(max(0.0, until - monotonic())):
            return await self._events.receive()
        return None

    async def acquire(self) -> lease.Lease | int:
        """Acquire the lock. Return its lease, or the exit status if it could not be acquired."""
        deadline = monotonic() + self._options.wait
        # There is always one complete try.
        until = max(deadline, monotonic() + ONE_TRY_REQUESTS * self._settings.request_timeout_seconds)
        printed = why = "the store did not answer"
        refused = False
        self.keeper.acquire(None)
        while True:
            match await self._next(until):
                case lease.Confirmed(lease=held):
                    return held
                case signal.Signals() as number:
                    return 128 + number
                case lease.LockDenied(kind="unusable" | "refused-too-long", why=reason):
                    raise AgentError(f"the lock {self._uri} can't be acquired: {reason}")
                case lease.LockDenied() as denied:
                    why, until, refused = _holder(denied), deadline, denied.kind == "refused"
                case _:
                    pass
            if monotonic() >= until:
                if refused:
                    raise AgentError(f"the lock {self._uri} can't be acquired: {why}")
                self._options.warn(f"could not acquire {self._uri}: {why}")
                return EXIT_NOT_ACQUIRED
            if why != printed:
                self._options.warn(f"waiting for {self._uri}: {why}")
                printed = why

    async def run(self, held: lease.Lease, tasks: anyio.abc.TaskGroup) -> int:
        """Run the command. Return the exit status."""
        environment = {
            **os.environ,
            "LAKEWARDEN_LOCK_OWNER": held.record.owner,
            "LAKEWARDEN_LOCK_URI": self._uri,
            "LAKEWARDEN_TABLE": self._table,
        }
        argv = bound(self._options.command)
        # A cancellation waits until the command runs, so that the lock is not released while an unknown command runs.
        with anyio.CancelScope(shield=True):
            process = await anyio.open_process(
                argv, stdin=None, stdout=None, stderr=None, env=environment, start_new_session=True
            )
        try:
            tasks.start_soon(self._await_end, process)
            return await self._attend(process.pid, held)
        finally:
            _signal(process.pid, signal.SIGKILL)
            with anyio.CancelScope(shield=True):
                await process.wait()

    async def _await_end(self, process: anyio.abc.Process) -> None:
        await process.wait()
        self._send.send_nowait(process)

    async def _attend(self, group: int, held: lease.Lease) -> int:
        """Follow lock and command until the command has ended."""
        ends_at, kill_at = monotonic() + self._options.seconds, math.inf
        ended = False
        while True:
            match await self._next(kill_at if ended else ends_at):
                case anyio.abc.Process(returncode=int(code)):
                    of_command = code if code >= 0 else 128 - code  # as a shell has it
                    return EXIT_ENDED if ended else of_command
                case lease.Confirmed(lease=held):
                    continue
                case signal.Signals() as number:
                    _signal(group, number)
                    continue
                case lease.LeaseEnded(why=why, holder=holder):
                    named = f"; the holder is owner {holder}" if holder else ""
                    self._options.warn(f"lost {self._uri}: {why}{named}; the command is being ended")
                    kill_at = min(kill_at, held.expires_at - KILL_BEFORE_END_SECONDS)
                case None if ended:
                    _signal(group, signal.SIGKILL)
                    kill_at = math.inf
                    continue
                case None:
                    self._options.warn(f"ending the command after {self._options.seconds:g} s")
                case _:
                    continue
            _signal(group, signal.SIGTERM)
            ended, kill_at = True, min(kill_at, monotonic() + GRACE_SECONDS)

    async def release(self) -> None:
        """Release the lock, or what was requested of it."""
        self.keeper.release()
        with anyio.move_on_after(self._settings.shutdown_seconds) as time_limit:
            await self.keeper.wait_released()
        if time_limit.cancelled_caught:
            self._options.warn(f"{self._uri} could not be released in time; its lease expires")
        with suppress(anyio.WouldBlock):
            while True:
                event = self._events.receive_nowait()
                if isinstance(event, lease.Released) and event.why is not None:
                    ends = f"the lease ends at {when(event.valid_until)}"
                    self._options.warn(f"{self._uri} could not be released: {event.why}; {ends}")


def _holder(denied: lease.LockDenied) -> str:
    """The reason of a denial, with the holder and the end of its lease if they are known."""
    if denied.holder is None or denied.held_until is None:
        return denied.why
    return f"{denied.why}: {denied.holder}, until {when(denied.held_until)}"


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
