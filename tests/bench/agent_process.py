"""`lakewarden agent` as a separate process, configured by its documented settings alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from lakewarden.agent.embedded.bound_child import bound
from tests.bench.writer_events import TABLES

READY_SECONDS = 600
"""Generous: the machine may be busy, and a large log takes its time."""
STOP_SECONDS = 30
POLL_SECONDS = 0.005


class AgentProcess:
    """Runs and is ready inside the `with`; gets SIGTERM at its end. If this process is killed, it is killed, too."""

    def __init__(self, bootstrap_servers: str, prefix: str, folder: Path, **settings: str) -> None:
        self._folder = folder
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("LAKEWARDEN_")}
        self._environment = inherited | {
            "LAKEWARDEN_BOOTSTRAP_SERVERS": bootstrap_servers,
            "LAKEWARDEN_TOPIC_PREFIX": prefix,
            "LAKEWARDEN_TABLES": f"{TABLES}/*",
            "LAKEWARDEN_LOCK_ROOT": (folder / "locks").as_uri(),
            "LAKEWARDEN_LOCK_PLACES": f"{TABLES}/*=>default",  # there is no such folder to look into
            **{f"LAKEWARDEN_{name.upper()}": value for name, value in settings.items()},
        }
        self.log_lines: list[dict[str, Any]] = []
        """Its log until it was ready."""
        self.started_at = 0.0
        """Wall clock time just before the launch, as in the log."""

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._log = self._folder / "agent.log"
        with self._log.open("wb") as log:
            self.started_at = time.time()
            self._process = subprocess.Popen(
                bound([str(Path(sys.executable).with_name("lakewarden")), "--verbose", "agent"]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self._end(signal.SIGKILL)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(signal.SIGTERM if kind is None else signal.SIGKILL)

    @property
    def ready_seconds(self) -> float:
        """Seconds from the launch to `agent.ready`."""
        return self.seconds_to("agent.ready")

    def seconds_to(self, event: str) -> float:
        """Seconds from the launch to the first log line with this event name."""
        line = next(line for line in self.log_lines if line["event"] == event)
        return datetime.fromisoformat(line["timestamp"]).timestamp() - self.started_at

    def pause(self) -> None:
        """Suspend the process (SIGSTOP). Its connections stay open."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the process like a crash (SIGKILL)."""
        self._process.kill()
        self._process.wait()

    def memory(self) -> dict[str, float]:
        """Resident memory now and its peak, in MB (10⁶ bytes)."""
        now = psutil.Process(self._process.pid).memory_info().rss / 1e6
        peak = now
        status = Path(f"/proc/{self._process.pid}/status")
        if status.exists():
            peak = (
                next(int(x.split()[1]) for x in status.read_text().splitlines() if x[:6] == "VmHWM:")
                / 976.5625
            )
        return {"resident_mb": round(now, 1), "peak_mb": round(peak, 1)}

    def cpu_seconds(self) -> float:
        """CPU time since its start. A busy machine doesn't increase it."""
        times = psutil.Process(self._process.pid).cpu_times()
        return times.user + times.system

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while True:
            complete = [
                line for line in self._log.read_text().splitlines(keepends=True) if line.endswith("\n")
            ]
            self.log_lines = [json.loads(line) for line in complete if line.startswith("{")]
            if any(line["event"] == "agent.ready" for line in self.log_lines):
                return
            if self._process.poll() is not None:
                raise RuntimeError(f"the agent ended before it was ready: {self._log.read_text()[-5000:]}")
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"the agent was not ready in {READY_SECONDS} s: {self._log.read_text()[-5000:]}"
                )
            time.sleep(POLL_SECONDS)

    def _end(self, number: signal.Signals) -> None:
        self._process.send_signal(signal.SIGCONT)
        self._process.send_signal(number)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
