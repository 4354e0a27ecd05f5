"""`lakewarden lock hold`: acquire a table's lock, renew it, run a command under it, and release it.

- The command runs only while the lock is held. It is started after the lock was confirmed. The lock is released after the last
  process that the command has started; if these can't be killed, the lock is not released but left to expire.
- If the lease is lost, or not confirmed `margin` before its end, the command gets SIGTERM, and SIGKILL before the lease ends.
  A process that is suspended can't do that: docs/lock.md says what the command may do then.
- SIGINT, SIGTERM and SIGHUP are passed on to the command. This process exits when the command has ended. Without a command, a
  signal ends the hold.
- After `seconds` the command gets SIGTERM, and SIGKILL `GRACE_SECONDS` later. The lock is renewed until then.
- While another owner holds the lock, this process waits up to `wait` seconds; 0 means one try. An error that waiting does not
  resolve (an object that is not a lock record, a store that refuses access) is raised immediately.
"""

import os
import shutil
import signal
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import TypeAlias

import anyio
import anyio.abc

from lakewarden.agent.clock import monotonic
from lakewarden.agent.embedded.bound_child import bound
from lakewarden.agent.errors import AgentError
from lakewarden.agent.locks.commands import StoreUnavailableError, TableLock
from lakewarden.agent.locks.keeper import KeeperEvent, LockKeeper, Stores
from lakewarden.agent.settings import Settings
from lakewarden.agent.stores import ConditionalStore, StoreUnreachableError
from lakewarden.agent.time_text import when
from lakewarden.handlers.lease import machine as lease

EXIT_TIMED_OUT = 124
"""As timeout(1): the command was ended after `seconds`."""
EXIT_NOT_ACQUIRED = 75
"""EX_TEMPFAIL: the lock could not be acquired; try again later."""
EXIT_LOST = 76
"""The lock was lost, and the command was ended because of it."""

GRACE_SECONDS = 10.0
"""Between SIGTERM and SIGKILL, or less if the lease ends sooner."""
KILL_BEFORE_END_SECONDS = 0.5
"""How long before the end of a lost lease the command is killed."""
KILL_SECONDS = 5.0
"""The longest wait for killed processes to end."""
POLL_SECONDS = 0.05
"""The interval of checks for processes that the command has left running."""
ONE_TRY_REQUESTS = 6
"""Requests of one try: a probe, a read and a write. Each may take the request timeout."""


@dataclass(frozen=True, slots=True)
class Signalled:
    """This process received a signal."""

    number: signal.Signals


@dataclass(frozen=True, slots=True)
class CommandEnded:
    """The command itself has ended. Processes that it has started may still run."""

    status: int


@dataclass(frozen=True, slots=True)
class Unreachable:
    """The store did not answer."""

    why: str


HoldEvent: TypeAlias = KeeperEvent | Signalled | CommandEnded | Unreachable


class _Inbox:
    """A queue of events."""

    def __init__(self) -> None:
        self._events: deque[HoldEvent] = deque()
        self._woken = anyio.Event()

    def put(self, event: HoldEvent) -> None:
        self._events.append(event)
        self._woken.set()

    async def get(self, until: float) -> HoldEvent | None:
        if not self._events:
            self._woken = anyio.Event()
            with anyio.move_on_after(max(0.0, until - monotonic())):
                await self._woken.wait()
        return self._events.popleft() if self._events else None


@dataclass(frozen=True, slots=True)
class HoldOptions:
    """The command's options, and where it prints."""

    locate: Callable[[], Awaitable[TableLock]]
    seconds: float
    wait: float
    command: Sequence[str]
    warn: Callable[[str], None]
    """Prints a message."""
    inform: Callable[[str], None]
    """Prints the result of a successful step."""


async def hold(settings: Settings, options: HoldOptions) -> int:
    """Hold the lock. Return the exit status."""
    if options.command and shutil.which(options.command[0]) is None:
        raise CommandMissing(f"no such program: {options.command[0]}; the lock was not acquired")
    deadline = monotonic() + options.wait
    lock = await _located(options, deadline)
    if lock is None:
        return EXIT_NOT_ACQUIRED
    async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
        holder = _Holder(settings, options, lock, stack, tasks, deadline=deadline)
        await tasks.start(holder.receive_signals)
        try:
            status = await holder.run()
        finally:
            tasks.cancel_scope.cancel()
    return status


async def _located(options: HoldOptions, deadline: float) -> TableLock | None:
    """The location of the lock, or None if the store does not answer in time."""
    while True:
        try:
            return await options.locate()
        except StoreUnavailableError as error:
            if monotonic() >= deadline:
                options.warn(str(error))
                return None


class _Holder:
    """One lock and one command."""

    def __init__(
        self,
        settings: Settings,
        options: HoldOptions,
        lock: TableLock,
        stack: AsyncExitStack,
        tasks: anyio.abc.TaskGroup,
        *,
        deadline: float,
    ) -> None:
        self._settings = settings
        self._options = options
        self._table = lock.table
        self._uri = lock.location.uri
        self._deadline = deadline
        self._tasks = tasks
        self._inbox = _Inbox()
        self._stores = Stores(settings, stack)
        self._keeper = LockKeeper(
            lock.location,
            settings.lease(shared=lock.location.shared),
            self._store,
            lambda event, _: self._inbox.put(event),
        )
        self._command: HeldCommand | None = None
        self._lease: lease.Lease | None = None
        self._lost = False
        self._status: int | None = None
        """The exit status, once the reason of the end is known."""
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
        """Receive signals until cancelled. A signal that is ignored already (nohup, a shell's background job) stays ignored."""
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

    # -- acquire ---------------------------------------------------------------------------------------------------

    async def _acquire(self) -> int | None:
        """Acquire the lock. Return None, or the exit status if it could not be acquired."""
        options = self._options
        # There is always one complete try.
        until = max(self._deadline, monotonic() + ONE_TRY_REQUESTS * self._settings.request_timeout_seconds)
        printed = why = "the store did not answer"
        refused = False
        self._keeper.acquire(None)
        while True:
            match await self._inbox.get(until):
                case lease.Confirmed(lease=held):
                    self._lease = held
                    return None
                case lease.LockDenied(kind="unusable" | "refused-too-long", why=reason):
                    await self._release()
                    raise AgentError(f"the lock {self._uri} can't be acquired: {reason}")
                case lease.LockDenied() as denied:
                    why, until = describe_holder(denied), self._deadline
                    refused = denied.kind == "refused"
                case Unreachable(why=why):
                    until = self._deadline
                case Signalled(number=number):
                    return 128 + number
                case _:
                    pass
            if monotonic() >= until:
                if refused:
                    raise AgentError(f"the lock {self._uri} can't be acquired: {why}")
                options.warn(f"could not acquire {self._uri}: {why}")
                return EXIT_NOT_ACQUIRED
            if why != printed:
                options.warn(f"waiting for {self._uri}: {why}")
                printed = why

    # -- hold ---------------------------------------------------------------------------------------------------

    async def _hold(self) -> int:
        held = self._lease
        assert held is not None
        self._options.inform(f"holding {self._uri} as owner {held.record.owner}")
        if self._options.command:
            environment = {
                "LAKEWARDEN_LOCK_OWNER": held.record.owner,
                "LAKEWARDEN_LOCK_URI": self._uri,
                "LAKEWARDEN_TABLE": self._table,
            }
            self._command = await start(self._options.command, {**os.environ, **environment})
            self._tasks.start_soon(self._command.wait, lambda status: self._inbox.put(CommandEnded(status)))
        ends_at = monotonic() + self._options.seconds
        while True:
            wake_at = ends_at if self._status is None else monotonic() + POLL_SECONDS
            await self._handle(await self._inbox.get(wake_at))
            if self._status is None and monotonic() >= ends_at:
                self._time_is_up()
            if self._status is not None and await self._finished():
                return self._status

    async def _handle(self, event: HoldEvent | None) -> None:
        match event:
            case lease.Confirmed(lease=held) if not self._lost:
                self._lease = held
            case lease.LeaseEnded() if not self._lost:
                self._lease_lost(event)
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
        why = ended.why + (f"; the holder is owner {ended.holder}" if ended.holder else "")
        what = "" if self._command is None else "; the command is being ended"
        self._options.warn(f"lost {self._uri}: {why}{what}")
        self._lost, self._status = True, EXIT_LOST
        self._stop(min(GRACE_SECONDS, self._lease.expires_at - KILL_BEFORE_END_SECONDS - monotonic()))

    def _time_is_up(self) -> None:
        if self._command is not None:
            self._options.warn(f"ending the command after {self._options.seconds:g} s")
        self._status = EXIT_TIMED_OUT if self._command is not None else 0
        self._stop(GRACE_SECONDS)

    def _command_ended(self, status: int) -> None:
        if self._status is not None:
            return
        self._status = status
        if self._command is not None and not self._command.ended:
            self._options.warn("ending the processes that the command has left running")
            self._stop(GRACE_SECONDS)

    def _stop(self, grace_seconds: float) -> None:
        if self._command is not None:
            self._command.signal(signal.SIGTERM)
        self._kill_at = monotonic() + grace_seconds

    async def _finished(self) -> bool:
        """Whether the command has ended and the lock is released. Kills the command after its grace period."""
        command = self._command
        if command is not None and not command.ended:
            if monotonic() < self._kill_at:
                return False
            command.signal(signal.SIGKILL)
            if monotonic() < self._kill_at + KILL_SECONDS:
                return False
            self._options.warn(f"the command can't be killed; {self._uri} is not released, and expires")
            return True
        await self._release()
        return True

    async def _kill_now(self) -> None:
        """After an error: kill the command, then release the lock."""
        deadline = monotonic() + KILL_SECONDS
        while self._command is not None and not self._command.ended and monotonic() < deadline:
            self._command.signal(signal.SIGKILL)
            await anyio.sleep(POLL_SECONDS)
        if self._command is None or self._command.ended:
            await self._release()

    async def _release(self) -> None:
        self._keeper.release()
        with anyio.move_on_after(self._settings.shutdown_seconds) as time_limit:
            await self._keeper.wait_released()
        if time_limit.cancelled_caught:
            self._options.warn(f"{self._uri} could not be released in time; its lease expires")
        while (event := await self._inbox.get(0)) is not None:
            match event:
                case lease.Released(why=None):
                    self._options.inform(f"released {self._uri}")
                case lease.Released(why=why, valid_until=valid_until):
                    self._options.warn(
                        f"{self._uri} could not be released: {why}; the lease ends at {when(valid_until)}"
                    )
                case _:
                    pass


def describe_holder(denied: lease.LockDenied) -> str:
    """The reason of a denial, with the holder and the end of its lease if they are known."""
    if denied.holder is None or denied.held_until is None:
        return denied.why
    return f"{denied.why}: {denied.holder}, until {when(denied.held_until)}"


# -- the command -------------------------------------------------------------------------------------------------------


class CommandMissing(AgentError):
    """The program is not on the PATH. Nothing was started, and the lock was not acquired."""


class HeldCommand:
    """A command that runs under a lock, in a session and a process group of its own.

    - It has ended when no process of its group is left. Background processes count, because the lock protects them too.
    - It dies with this process on Linux (`bound_child.py`); what it has started then lives on.
    - It uses this process's stdin, stdout and stderr. A terminal sends Ctrl-C to this process only, which passes it on.
    """

    def __init__(self, process: anyio.abc.Process) -> None:
        self._process = process

    @property
    def ended(self) -> bool:
        if self._process.returncode is None:
            return False
        # In a container, the first process adopts what the command has left.
        with suppress(ChildProcessError):
            while os.waitpid(-self._process.pid, os.WNOHANG)[0]:
                pass
        return not self.signal(0)

    def signal(self, number: int) -> bool:
        """Send a signal to the group; 0 sends none. Returns whether it has a process."""
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True

    async def wait(self, report: Callable[[int], None]) -> None:
        """Report the command's exit status (128 + signal if a signal ended it) once the command itself has ended."""
        code = await self._process.wait()
        report(code if code >= 0 else 128 - code)


async def start(argv: Sequence[str], environment: Mapping[str, str]) -> HeldCommand:
    """Start the command. Call it from the main thread only (`bound_child.py`).

    A cancellation waits until it runs, so that the lock is not released while an unknown command runs.
    """
    with anyio.CancelScope(shield=True):
        process = await anyio.open_process(
            bound(argv), stdin=None, stdout=None, stderr=None, env=environment, start_new_session=True
        )
    return HeldCommand(process)
