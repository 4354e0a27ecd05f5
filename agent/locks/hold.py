"""`lakewarden lock hold`: take a table's lock, renew it, run a command under it, give it back.

Rules
- The command runs only while the lock is held. It is started after the lock was confirmed, and the lock is given back after all
  that it started has ended; if that can't be ended, the lock is left to lapse and not given back.
- A lease that is lost, or can't be confirmed `margin` before its end: the command is told (SIGTERM), and killed before the lease
  has ended. `lock_guard.py` does that if we can't.
- SIGINT, SIGTERM and SIGHUP are passed on to the command; when it ends, so do we. Without a command they end the holding.
- After `seconds` the command is told, and killed `GRACE_SECONDS` later; the lock is renewed until then.
- A lock that can't be had: given up after `wait` seconds; with none, as soon as it is known to be somebody else's. What no
  waiting mends (an object that is no lock record, a store that refuses) is an error.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TypeAlias

import anyio
import anyio.abc

from lakewarden.agent.clock import monotonic
from lakewarden.agent.errors import AgentError
from lakewarden.agent.locks import held_command
from lakewarden.agent.locks.commands import StoreUnavailableError, TableLock
from lakewarden.agent.locks.held_command import HeldCommand
from lakewarden.agent.locks.keeper import KeeperEvent, LockKeeper, Stores
from lakewarden.agent.settings import Settings
from lakewarden.agent.stores import ConditionalStore, StoreUnreachableError
from lakewarden.agent.time_text import when
from lakewarden.handlers.lease import machine as lease

EXIT_TIMED_OUT = 124
"""As timeout(1): the command was ended because its time was up."""
EXIT_NOT_ACQUIRED = 75
"""EX_TEMPFAIL: try again later."""
EXIT_LOST = 76
"""The lock was lost while it was held; a command was ended for it."""

GRACE_SECONDS = 10.0
"""Between SIGTERM and SIGKILL, where the lease allows it."""
KILL_BEFORE_END_SECONDS = 0.5
"""Before the end of a lost lease we kill; the guard, if we didn't, at `GUARD_BEFORE_END_SECONDS`."""
GUARD_BEFORE_END_SECONDS = 0.2
KILL_SECONDS = 5.0
"""For killed processes to be gone."""
POLL_SECONDS = 0.05
"""Between looks at what a command has left running."""
ONE_TRY_REQUESTS = 6
"""Request timeouts that one try may take: a probe, a read and a write."""


@dataclass(frozen=True, slots=True)
class Signalled:
    """We were sent a signal."""

    number: signal.Signals


@dataclass(frozen=True, slots=True)
class CommandEnded:
    """The command itself has ended; what it started may go on."""

    status: int


@dataclass(frozen=True, slots=True)
class Unreachable:
    """The store gave no answer."""

    why: str


HoldEvent: TypeAlias = KeeperEvent | Signalled | CommandEnded | Unreachable


class _Inbox:
    """What happened, in its order."""

    def __init__(self) -> None:
        self._news: deque[HoldEvent] = deque()
        self._woken = anyio.Event()

    def put(self, news: HoldEvent) -> None:
        self._news.append(news)
        self._woken.set()

    async def get(self, until: float) -> HoldEvent | None:
        """The next, or None at `until` (monotonic)."""
        if not self._news:
            self._woken = anyio.Event()
            with anyio.move_on_after(max(0.0, until - monotonic())):
                await self._woken.wait()
        return self._news.popleft() if self._news else None


@dataclass(frozen=True, slots=True)
class HoldOptions:
    """What was asked for."""

    locate: Callable[[], Awaitable[TableLock]]
    seconds: float
    wait: float
    command: Sequence[str]
    warn: Callable[[str], None]
    """Prints a line on stderr."""
    inform: Callable[[str], None]
    """Prints what went as it should."""


async def hold(settings: Settings, order: HoldOptions) -> int:
    """Do as ordered; the exit status."""
    if order.command:
        held_command.require_program(order.command)
    deadline = monotonic() + order.wait
    lock = await _located(order, deadline)
    if lock is None:
        return EXIT_NOT_ACQUIRED
    async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
        holder = _Holder(settings, order, lock, stack, tasks, deadline=deadline)
        await tasks.start(holder.receive_signals)
        try:
            status = await holder.run()
        finally:
            tasks.cancel_scope.cancel()
    return status


async def _located(order: HoldOptions, deadline: float) -> TableLock | None:
    """Where the lock is, or None if the store gives no answer in time."""
    while True:
        try:
            return await order.locate()
        except StoreUnavailableError as error:
            if monotonic() >= deadline:
                order.warn(str(error))
                return None


class _Holder:
    """One lock, one command."""

    def __init__(
        self,
        settings: Settings,
        order: HoldOptions,
        lock: TableLock,
        stack: AsyncExitStack,
        tasks: anyio.abc.TaskGroup,
        *,
        deadline: float,
    ) -> None:
        self._settings = settings
        self._order = order
        self._table = lock.table
        self._uri = lock.place.uri
        self._deadline = deadline
        self._tasks = tasks
        self._inbox = _Inbox()
        self._stores = Stores(settings, stack)
        self._keeper = LockKeeper(
            lock.place,
            settings.lease(shared=lock.place.shared),
            self._store,
            lambda told, _: self._inbox.put(told),
        )
        self._command: HeldCommand | None = None
        self._lease: lease.Lease | None = None
        self._lost = False
        self._status: int | None = None
        """What we end with; set once it is known why we end."""
        self._kill_at = 0.0

    async def run(self) -> int:
        self._tasks.start_soon(self._keeper.run)
        refused = await self._acquire()
        if refused is not None:
            await self._release()
            return refused
        try:
            status = await self._hold()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._kill_now()
            raise
        return status

    async def receive_signals(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """A signal that we were started to ignore (nohup, a shell's background) stays ignored."""
        numbers = [
            number
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            if signal.getsignal(number) is not signal.SIG_IGN
        ]
        with anyio.open_signal_receiver(*numbers) as signals:
            task_status.started()
            async for number in signals:
                self._inbox.put(Signalled(signal.Signals(number)))

    async def _store(self) -> ConditionalStore:
        try:
            return await self._stores.for_lock(self._uri)
        except StoreUnreachableError as error:
            self._inbox.put(Unreachable(str(error)))
            raise

    # -- taking it ---------------------------------------------------------------------------------------------------

    async def _acquire(self) -> int | None:
        """None once it is ours, else the exit status."""
        order = self._order
        # One try is always made, and waited for.
        until = max(self._deadline, monotonic() + ONE_TRY_REQUESTS * self._settings.request_timeout_seconds)
        said = why = "the store did not answer"
        self._keeper.acquire(None)
        while True:
            match await self._inbox.get(until):
                case lease.Confirmed(lease=held):
                    self._lease = held
                    return None
                case lease.LockDenied(fatal=True, why=reason):
                    await self._release()
                    raise AgentError(f"the lock {self._uri} can't be taken: {reason}")
                case lease.LockDenied() as denied:
                    why, until = describe_holder(denied), self._deadline
                case Unreachable(why=why):
                    until = self._deadline
                case Signalled(number=number):
                    return 128 + number
                case _:
                    pass
            if monotonic() >= until:
                order.warn(f"could not take {self._uri}: {why}")
                return EXIT_NOT_ACQUIRED
            if why != said:
                order.warn(f"waiting for {self._uri}: {why}")
                said = why

    # -- having it ---------------------------------------------------------------------------------------------------

    async def _hold(self) -> int:
        held = self._lease
        assert held is not None
        self._order.inform(f"holding {self._uri} as owner {held.record.owner}")
        if self._order.command:
            environment = {
                "LAKEWARDEN_LOCK_OWNER": held.record.owner,
                "LAKEWARDEN_LOCK_URI": self._uri,
                "LAKEWARDEN_TABLE": self._table,
            }
            self._command = await held_command.start(
                self._order.command, {**os.environ, **environment}, held.expires_at - GUARD_BEFORE_END_SECONDS
            )
            self._tasks.start_soon(self._command.wait, lambda status: self._inbox.put(CommandEnded(status)))
        ends_at = monotonic() + self._order.seconds
        while True:
            look_at = ends_at if self._status is None else monotonic() + POLL_SECONDS
            await self._handle(await self._inbox.get(look_at))
            if self._status is None and monotonic() >= ends_at:
                self._time_is_up()
            if self._status is not None and await self._finished():
                return self._status

    async def _handle(self, news: HoldEvent | None) -> None:
        match news:
            case lease.Confirmed(lease=held) if not self._lost:
                self._lease = held
                if self._command is not None:
                    await self._command.set_deadline(held.expires_at - GUARD_BEFORE_END_SECONDS)
            case lease.LeaseEnded() if not self._lost:
                self._lease_lost(news)
            case Signalled(number=number) if self._command is not None:
                self._command.signal(number)
            case Signalled():
                self._status = self._status or 0
            case CommandEnded(status=status):
                self._command_ended(status)
            case _:
                pass

    def _lease_lost(self, ended: lease.LeaseEnded) -> None:
        assert self._lease is not None
        why = ended.why + (f"; owner {ended.holder} has it" if ended.holder else "")
        what = "" if self._command is None else "; the command is being ended"
        self._order.warn(f"lost {self._uri}: {why}{what}")
        self._lost, self._status = True, EXIT_LOST
        self._stop(min(GRACE_SECONDS, self._lease.expires_at - KILL_BEFORE_END_SECONDS - monotonic()))

    def _time_is_up(self) -> None:
        if self._command is not None:
            self._order.warn(f"ending the command: its {self._order.seconds:g} s are up")
        self._status = EXIT_TIMED_OUT if self._command is not None else 0
        self._stop(GRACE_SECONDS)

    def _command_ended(self, status: int) -> None:
        if self._status is not None:
            return
        self._status = status
        assert self._lease is not None
        if (
            status == 128 + signal.SIGKILL
            and monotonic() >= self._lease.expires_at - GUARD_BEFORE_END_SECONDS
        ):
            self._order.warn(
                f"lost {self._uri}: we were stopped for too long; the guard has ended the command"
            )
            self._lost, self._status = True, EXIT_LOST
        if self._command is not None and not self._command.ended:
            self._order.warn("ending what the command has left running")
            self._stop(GRACE_SECONDS)

    def _stop(self, grace_seconds: float) -> None:
        if self._command is not None:
            self._command.signal(signal.SIGTERM)
        self._kill_at = monotonic() + grace_seconds

    async def _finished(self) -> bool:
        """Whether all has ended and the lock is given back; kills what is due to be killed."""
        command = self._command
        if command is not None and not command.ended:
            if monotonic() < self._kill_at:
                return False
            command.signal(signal.SIGKILL)
            if monotonic() < self._kill_at + KILL_SECONDS:
                return False
            self._order.warn(
                f"the command can't be killed; {self._uri} is not given back, and lapses by itself"
            )
            return True
        if command is not None:
            await command.stop_guard()
        await self._release()
        return True

    async def _kill_now(self) -> None:
        """On the way out of an error: first the command, then the lock."""
        give_up = monotonic() + KILL_SECONDS
        while self._command is not None and not self._command.ended and monotonic() < give_up:
            self._command.signal(signal.SIGKILL)
            await anyio.sleep(POLL_SECONDS)
        if self._command is None or self._command.ended:
            await self._release()

    async def _release(self) -> None:
        self._keeper.release()
        with anyio.move_on_after(self._settings.shutdown_seconds) as patience:
            await self._keeper.wait_released()
        if patience.cancelled_caught:
            self._order.warn(
                f"{self._uri} could not be given back in time; what we had of it lapses by itself"
            )
        while (news := await self._inbox.get(0)) is not None:
            match news:
                case lease.Released(why=None):
                    self._order.inform(f"released {self._uri}")
                case lease.Released(why=why, valid_until=valid_until):
                    self._order.warn(
                        f"{self._uri} could not be given back: {why}; the lease ends at {when(valid_until)}"
                    )
                case _:
                    pass


def describe_holder(denied: lease.LockDenied) -> str:
    """Who has it and until when, in words."""
    if denied.holder is None or denied.held_until is None:
        return denied.why
    return f"{denied.why}: owner {denied.holder}, until {when(denied.held_until)}"
