"""The demo's child processes: each in its own POSIX session, with its output in log files, and bound to the demo.

A Spark driver has a child, the JVM, and grandchildren, Python workers that move to their own process groups. So the demo ends
all processes of a child's session: it sends SIGTERM to the leader and waits for an orderly end, then sends SIGTERM to the
remaining processes, then SIGKILL. If the demo itself is killed, the kernel ends the leaders (`bound_child.py`), and the JVMs
end with them.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TypeVar

from lakewarden.agent.demo.choices import DemoError
from lakewarden.agent.embedded.bound_child import bound
from lakewarden.agent.locks.posix_session import posix_session_members, signal_posix_session

ORDERLY_SECONDS = 15.0
"""Limit for an orderly end: the agent releases its locks and stops Kafka. A Spark driver needs about two seconds."""

LEFTOVER_SECONDS = 3.0
"""Limit for the remaining processes. A JVM ends soon after its driver."""

_POLL_SECONDS = 0.05

T = TypeVar("T")


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
        """The process id of the leader, which is also the id of the session."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """The leader's exit code; None while it runs."""
        return self._process.poll()

    def last_log_line(self) -> str:
        """The last line of the log that is not blank, for error messages."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return "no log"
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "the log is empty")

    def terminate(self) -> None:
        """Send SIGTERM to the leader, without waiting for its end."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                self._process.terminate()

    def remaining(self) -> list[int]:
        """The processes of the session that still run, including the leader."""
        leader = [self.pid] if self._process.poll() is None else []
        return leader + [pid for pid in posix_session_members(self.pid) if pid != self.pid]


def wait_for(child: Child, find: Callable[[], T | None], seconds: float) -> T | None:
    """Return what `find` returns, once it isn't None. Return None if the child ends before, or the time is up."""
    deadline = time.monotonic() + seconds
    while True:
        last = child.exit_code() is not None or time.monotonic() > deadline
        if (found := find()) is not None or last:
            return found
        time.sleep(_POLL_SECONDS)


def wait_until_ready(child: Child, find: Callable[[], T | None], seconds: float, what: str) -> T:
    """Return what `find` returns, once it isn't None. Raises `DemoError` if the child ends before, or the time is up."""
    found = wait_for(child, find, seconds)
    if found is not None:
        return found
    why = "did not start" if child.exit_code() is not None else f"was not ready after {seconds:.0f} s"
    raise DemoError(f"{what} {why}: {child.last_log_line()}")


def stop_all(children: Iterable[Child], orderly_seconds: float = ORDERLY_SECONDS) -> None:
    """End all children together, in bounded time: SIGTERM to the leaders, SIGTERM to the others, SIGKILL."""
    running = list(children)
    for child in running:
        child.terminate()
    if _wait_until_gone(running, orderly_seconds, leaders_only=True) and _wait_until_gone(
        running, LEFTOVER_SECONDS
    ):
        return
    _signal_sessions(running, signal.SIGTERM)
    if not _wait_until_gone(running, LEFTOVER_SECONDS):
        _signal_sessions(running, signal.SIGKILL)
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


def _signal_sessions(children: Sequence[Child], number: signal.Signals) -> None:
    for child in children:
        if child.remaining():
            signal_posix_session(child.pid, number)


@contextmanager
def signals_raise() -> Iterator[None]:
    """Raise `KeyboardInterrupt` for SIGTERM and SIGHUP, as for Ctrl-C."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled_by(interrupt, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore signals while processes are being stopped, so that a second Ctrl-C leaves none of them running."""
    with _handled_by(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def _handled_by(
    handler: Callable[[int, FrameType | None], object] | signal.Handlers, *numbers: signal.Signals
) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
