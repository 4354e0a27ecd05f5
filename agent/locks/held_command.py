"""A command that runs under a lock, in a POSIX session of its own and with a guard process (`guard.py`).

- The command has ended when no process of its session is left. Background processes count, because the lock protects them too.
- The command does not outlive the deadline that the guard has, even if this process is stopped or killed.
- The command starts when the guard has been sent its session. If this process is killed before that, the command never runs:
  the guard couldn't end what it had started.
- The command uses this process's stdin, stdout and stderr. A terminal sends Ctrl-C to this process only, which passes it on.
"""

from __future__ import annotations

import os
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
    """The program is not on the PATH. Nothing was started, and the lock was not acquired."""


class HeldCommand:
    """A running command."""

    def __init__(self, process: anyio.abc.Process, guard: anyio.abc.Process) -> None:
        self._process = process
        self._guard = guard
        self._session = process.pid

    @property
    def ended(self) -> bool:
        """Whether no process of the command's session is left."""
        return self._process.returncode is not None and not posix_session_members(self._session)

    async def wait(self, report: Callable[[int], None]) -> None:
        """Report the command's exit status (128 + signal if a signal ended it) once the command itself has ended."""
        code = await self._process.wait()
        report(code if code >= 0 else 128 - code)

    async def set_deadline(self, until: float) -> None:
        """Send the guard the time at which it must kill the command, in seconds of `clock.monotonic`."""
        await self._send_to_guard(f"{self._session} {until!r}\n".encode())

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every process of the command's session."""
        signal_posix_session(self._session, number)

    async def stop_guard(self) -> None:
        """Stop the guard, after the command has ended."""
        await self._send_to_guard(b"done\n")
        with anyio.move_on_after(1):
            await self._guard.wait()

    async def _send_to_guard(self, line: bytes) -> None:
        assert self._guard.stdin is not None
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._guard.stdin.send(line)


def require_program(argv: Sequence[str]) -> None:
    """Raise `CommandMissing` if the program does not exist."""
    if shutil.which(argv[0]) is None:
        raise CommandMissing(f"no such program: {argv[0]}; the lock was not acquired")


async def start(argv: Sequence[str], environment: Mapping[str, str], until: float) -> HeldCommand:
    """Start the command and its guard. Call it from the main thread only (`bound_child.py`).

    A cancellation waits until both run, so that the lock is not released while an unknown command runs.
    """
    with anyio.CancelScope(shield=True):
        guard = await anyio.open_process(
            [sys.executable, "-m", "lakewarden.agent.locks.guard"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=None,
            start_new_session=True,
        )
        may_start, start_it = os.pipe()
        try:
            process = await anyio.open_process(
                bound(argv, after=may_start),
                stdin=None,
                stdout=None,
                stderr=None,
                env=environment,
                start_new_session=True,
                pass_fds=[may_start],
            )
            command = HeldCommand(process, guard)
            await command.set_deadline(until)
            os.write(start_it, b"\n")
        finally:
            os.close(may_start)
            os.close(start_it)
    return command
