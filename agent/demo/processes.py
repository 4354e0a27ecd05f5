"""The demo's child processes: each in a session of its own, its output in a log file, gone when the demo is gone.

A Spark driver has children (a JVM) and grandchildren (Python workers, which move to a process group of their own), so
a child is ended as a whole session: its leader is asked first and gets time for an orderly end, then whatever is left
of the session is told, then killed. If the demo itself is killed, the kernel ends the leaders (`bound_child`), and
the JVMs end with them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from lakewarden.agent.embedded.bound_child import bound
from lakewarden.agent.locks.posix_session import posix_session_members

ORDERLY_SECONDS = 15.0
"""The agent releases its locks and stops Kafka in this time; a Spark driver needs about two seconds."""

LEFTOVER_SECONDS = 3.0
"""A JVM ends by itself soon after its driver; then it is killed."""

_POLL_SECONDS = 0.05


class Child:
    """One running process."""

    def __init__(
        self, name: str, argv: Sequence[str], logs: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.out = logs / f"{name}.out"
        self.log = logs / f"{name}.log"
        with self.out.open("ab") as out, self.log.open("ab") as log:
            self._process = subprocess.Popen(
                bound(argv),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                env=env,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The leader's process id, which is also the session's."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def last_log_line(self) -> str:
        """The last line of its log that says something, for a message of one line."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return "no log"
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "its log is empty")

    def terminate(self) -> None:
        """SIGTERM to the leader; returns at once."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                self._process.terminate()

    def remaining(self) -> list[int]:
        """Every process of its session that still runs, the leader included."""
        leader = [self.pid] if self._process.poll() is None else []
        return leader + [pid for pid in posix_session_members(self.pid) if pid != self.pid]


def stop_all(children: Iterable[Child], orderly_seconds: float = ORDERLY_SECONDS) -> None:
    """End all of them together, in bounded time: ask, wait, tell what is left, wait, kill."""
    running = list(children)
    for child in running:
        child.terminate()
    if _wait_until_gone(running, orderly_seconds, leaders_only=True) and _wait_until_gone(
        running, LEFTOVER_SECONDS
    ):
        return
    _signal(running, signal.SIGTERM)
    if not _wait_until_gone(running, LEFTOVER_SECONDS):
        _signal(running, signal.SIGKILL)
        _wait_until_gone(running, LEFTOVER_SECONDS)


def _wait_until_gone(children: Sequence[Child], seconds: float, *, leaders_only: bool = False) -> bool:
    deadline = time.monotonic() + seconds
    while True:
        left = [
            child for child in children if (child.exit_code() is None if leaders_only else child.remaining())
        ]
        if not left:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)


def _signal(children: Sequence[Child], number: signal.Signals) -> None:
    for child in children:
        for pid in child.remaining():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
