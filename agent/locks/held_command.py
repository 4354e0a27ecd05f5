"""A command that runs under a lock, in a session and a process group of its own.

- The command has ended when no process of its group is left. Background processes count, because the lock protects them too.
- It dies with this process on Linux (`bound_child.py`); what it has started then lives on.
- It uses this process's stdin, stdout and stderr. A terminal sends Ctrl-C to this process only, which passes it on.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import anyio
import anyio.abc

from lakewarden.agent.embedded.bound_child import bound
from lakewarden.agent.errors import AgentError


class CommandMissing(AgentError):
    """The program is not on the PATH. Nothing was started, and the lock was not acquired."""


class HeldCommand:
    """A running command."""

    def __init__(self, process: anyio.abc.Process) -> None:
        self._process = process

    @property
    def ended(self) -> bool:
        """Whether no process of the command's group is left."""
        if self._process.returncode is None:
            return False
        self._reap()
        return not self._signalled(0)

    def _reap(self) -> None:
        """Reap what the command has left: in a container, the first process adopts it."""
        with suppress(ChildProcessError):
            while os.waitpid(-self._process.pid, os.WNOHANG)[0]:
                pass

    def _signalled(self, number: int) -> bool:
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

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every process of the command's group."""
        self._signalled(number)


def require_program(argv: Sequence[str]) -> None:
    """Raise `CommandMissing` if the program does not exist."""
    if shutil.which(argv[0]) is None:
        raise CommandMissing(f"no such program: {argv[0]}; the lock was not acquired")


async def start(argv: Sequence[str], environment: Mapping[str, str]) -> HeldCommand:
    """Start the command. Call it from the main thread only (`bound_child.py`).

    A cancellation waits until it runs, so that the lock is not released while an unknown command runs.
    """
    with anyio.CancelScope(shield=True):
        process = await anyio.open_process(
            bound(argv), stdin=None, stdout=None, stderr=None, env=environment, start_new_session=True
        )
    return HeldCommand(process)
