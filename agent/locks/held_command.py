"""A command that runs under a lock: in a session of its own, bound to our life, and guarded by `lock_guard.py`.

- It is over when its whole session is: what it left running in the background still counts, since the lock covers that too.
- It never outlives the lease that the guard was told of, whatever becomes of us.
- It has our stdin, stdout and stderr; a terminal's Ctrl-C reaches us alone, and is passed on.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import anyio
import anyio.abc

from lakewarden.agent.embedded.bound_child import bound
from lakewarden.agent.errors import AgentError
from lakewarden.agent.locks.posix_session import posix_session_members, signal_posix_session


class CommandMissing(AgentError):
    """There is no such program on the PATH. Nothing was started, and no lock taken."""


class HeldCommand:
    """The command, once it runs."""

    def __init__(self, process: anyio.abc.Process, guard: anyio.abc.Process) -> None:
        self._process = process
        self._guard = guard
        self._session = process.pid

    @property
    def ended(self) -> bool:
        """Whether nothing of it runs any more."""
        return self._process.returncode is not None and not posix_session_members(self._session)

    async def wait(self, report: Callable[[int], None]) -> None:
        """Tell the exit status, as a shell gives it, once the command itself has ended."""
        code = await self._process.wait()
        report(code if code >= 0 else 128 - code)

    async def set_deadline(self, until: float) -> None:
        """Tell the guard how long the lock is held, in seconds of `clock.monotonic`."""
        await self._send_to_guard(f"{self._session} {until!r}\n".encode())

    def signal(self, number: signal.Signals) -> None:
        """Tell all of it, as a terminal or a supervisor does."""
        signal_posix_session(self._session, number)

    async def stop_guard(self) -> None:
        """It is over: nothing is left to be guarded."""
        await self._send_to_guard(b"done\n")
        with anyio.move_on_after(1):
            await self._guard.wait()

    async def _send_to_guard(self, line: bytes) -> None:
        assert self._guard.stdin is not None
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._guard.stdin.send(line)


def require_program(argv: Sequence[str]) -> None:
    """`CommandMissing` where there is nothing to start."""
    if shutil.which(argv[0]) is None:
        raise CommandMissing(f"no such program: {argv[0]}; the lock was not taken")


async def start(argv: Sequence[str], environment: Mapping[str, str], until: float) -> HeldCommand:
    """Start the command and its guard. From the main thread only (`bound_child.py`).

    Not to be cancelled in between: whoever gives the lock back must know of a command that runs.
    """
    with anyio.CancelScope(shield=True):
        guard = await anyio.open_process(
            [sys.executable, "-m", "lakewarden.agent.locks.guard"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=None,
            start_new_session=True,
        )
        process = await anyio.open_process(
            bound(argv), stdin=None, stdout=None, stderr=None, env=environment, start_new_session=True
        )
        command = HeldCommand(process, guard)
        await command.set_deadline(until)
    return command
