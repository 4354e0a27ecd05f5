"""`lakewarden agent` as a separate process, configured by its documented settings alone."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lakewarden.agent.bound_child import bound
from tests import processes
from tests.bench.writer_events import TABLES

READY_SECONDS = 600
"""Generous: the machine may be busy, and a large log takes its time."""
STOP_SECONDS = 30


class AgentProcess(processes.AgentProcess):
    """Runs and is ready inside the `with`; gets SIGTERM at its end. If this process is killed, it is killed, too."""

    def __init__(self, bootstrap_servers: str, prefix: str, folder: Path, **settings: str) -> None:
        self._folder = folder
        self._values: dict[str, Any] = {
            "bootstrap_servers": bootstrap_servers,
            "topic_prefix": prefix,
            "tables": f"{TABLES}/*",
            "lock_root": (folder / "locks").as_uri(),
            "lock_places": f"{TABLES}/*=>default",  # there is no such folder to look into
            **settings,
        }

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        super().__init__(self._values, self._folder / "agent.log", options=["--verbose"], launched=bound)
        try:
            self.wait_ready(READY_SECONDS)
        except BaseException:
            self._end(signal.SIGKILL)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(signal.SIGTERM if kind is None else signal.SIGKILL)

    def pause(self) -> None:
        """Suspend the process (SIGSTOP). Its connections stay open."""
        self.popen.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.popen.send_signal(signal.SIGCONT)

    def memory(self) -> dict[str, float]:
        """Resident memory now and its peak, in MB (10⁶ bytes)."""
        return {"resident_mb": round(self.memory_mb(), 1), "peak_mb": round(self.memory_mb(peak=True), 1)}

    def _end(self, number: signal.Signals) -> None:
        self.popen.send_signal(signal.SIGCONT)
        self.popen.send_signal(number)
        try:
            self.popen.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
