"""`lakewarden` as a process: agents and commands. Of this process's environment they get all but the product's settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import anyio
import psutil

from lakewarden.agent.bound_child import bound
from lakewarden.agent.variables import ENV_PREFIX
from tests.kafka_fixture import KafkaServer
from tests.waiting import PATIENCE_SECONDS, wait_until

AGENT_PROGRAM = "lakewarden.agent"


def processes_with(word: str) -> list[str]:
    """The command lines of other processes that contain the word."""
    others = (each for each in psutil.process_iter(["cmdline"]) if each.pid != os.getpid())
    lines = (" ".join(each.info["cmdline"] or ()) for each in others)
    return [line for line in lines if word in line]


def environment(values: dict[str, Any]) -> dict[str, str]:
    """The environment of a child process: this one's without settings of the product, and with these."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
    settings = {
        f"{ENV_PREFIX}{name.upper()}": ",".join(value) if isinstance(value, tuple) else str(value)
        for name, value in values.items()
        if value is not None
    }
    return {**inherited, **settings, "PYTHONUNBUFFERED": "1"}


def run_command(*arguments: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run `lakewarden` as a process with these settings, and no others of the product."""
    return subprocess.run(
        [sys.executable, "-m", AGENT_PROGRAM, *arguments],
        env=environment(settings),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def ask(kafka: KafkaServer, topic_prefix: str, *command: str) -> Any:
    """What a command of `lakewarden` prints as JSON."""
    settings = {"bootstrap_servers": kafka.bootstrap_servers, "topic_prefix": topic_prefix}
    done = run_command(*command, "--output", "json", **settings)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def start_program(
    program: Sequence[str], log: Path, variables: dict[str, str] | None = None, **options: Any
) -> subprocess.Popen[Any]:
    """Start a program of the tests, which imports what this process can, and ends with it. Its output goes to the log."""
    path = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with log.open("ab") as out:
        env = os.environ | path | (variables or {})
        return subprocess.Popen(bound(list(program)), stdout=out, stderr=out, env=env, **options)


class AgentProcess:
    """A process of `lakewarden agent`, which appends its log to a file."""

    command: ClassVar[str] = "agent"

    def __init__(
        self,
        values: dict[str, Any],
        log: Path,
        program: str = AGENT_PROGRAM,
        *,
        options: Sequence[str] = (),
        launched: Callable[[Sequence[str]], list[str]] = list,
    ) -> None:
        """`program`: the module that runs as `lakewarden`, with these options. `launched` may put a launcher before it."""
        self.log = log
        with log.open("ab") as out:
            self._log_begins = out.tell()
            self.started_at = time.time()
            self.popen = subprocess.Popen(
                launched([sys.executable, "-m", program, *options, self.command]),
                env=environment(values),
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def text(self) -> str:
        """What it has logged so far."""
        return self.log.read_bytes()[self._log_begins :].decode()

    def lines(self) -> list[dict[str, Any]]:
        """The complete lines that it has logged so far."""
        text = [line for line in self.text().splitlines(keepends=True) if line.endswith("\n")]
        return [json.loads(line) if line.startswith("{") else {"event": line.rstrip("\n")} for line in text]

    def find(self, event: str, count: int = 1) -> dict[str, Any] | None:
        """The last line of this event, if it was logged `count` times. Raises if the process ended before."""
        ended = self.popen.poll() is not None
        found = [line for line in self.lines() if line["event"] == event]
        assert len(found) >= count or not ended, f"the agent never logged {event}:\n{self.text()}"
        return found[-1] if len(found) >= count else None

    async def logged(
        self, event: str, *, count: int = 1, patience: float = PATIENCE_SECONDS
    ) -> dict[str, Any]:
        """Wait until it has logged the event `count` times. Return the last line."""
        with anyio.move_on_after(patience):
            while (line := self.find(event, count)) is None:
                await anyio.sleep(0.05)
            return line
        raise AssertionError(f"the agent never logged {event}:\n{self.text()}")

    async def ready(self, *, patience: float = PATIENCE_SECONDS) -> None:
        """Wait until it is ready."""
        await self.logged("agent.ready", patience=patience)

    def wait_ready(self, patience: float = PATIENCE_SECONDS) -> None:
        """The same in a thread."""
        wait_until(lambda: self.find("agent.ready"), patience)

    def seconds_to(self, event: str) -> float:
        """Seconds from the launch to the first log line with this event name."""
        line = next(line for line in self.lines() if line["event"] == event)
        return datetime.fromisoformat(line["timestamp"]).timestamp() - self.started_at

    async def ended(self, *, patience: float = PATIENCE_SECONDS) -> int:
        """Wait until it has ended. Return the exit status."""
        with anyio.fail_after(patience):
            while self.popen.poll() is None:
                await anyio.sleep(0.02)
        assert self.popen.returncode is not None
        return int(self.popen.returncode)

    async def stop(self, *, patience: float = PATIENCE_SECONDS) -> None:
        """Stop it in order. It must exit with 0."""
        self.popen.terminate()
        assert await self.ended(patience=patience) == 0, self.text()[-3000:]

    def kill(self) -> None:
        """Kill it, if it still runs."""
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()

    def memory_mb(self, *, peak: bool = False) -> float:
        """Resident memory in MB (10⁶ bytes), now or, where the system reports it, its maximum."""
        if peak and (status := Path(f"/proc/{self.popen.pid}/status")).exists():
            [line] = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
            return int(line.split()[1]) * 1024 / 1e6
        return float(psutil.Process(self.popen.pid).memory_info().rss / 1e6)

    def cpu_seconds(self) -> float:
        """CPU time since its start. A busy machine doesn't increase it."""
        times = psutil.Process(self.popen.pid).cpu_times()
        return float(times.user + times.system)


def start_agent(
    kafka: KafkaServer, topic_prefix: str, folder: Path, *, name: str = "agent", **settings: str
) -> AgentProcess:
    """Start an agent for tables in all folders and buckets. Its log and its locks are in `folder`."""
    values = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "topic_prefix": topic_prefix,
        "replication": 1,
        "tables": ("file:///*", "s3://*"),
        "lock_root": (folder / "locks").as_uri(),
    }
    return AgentProcess(values | settings, folder / f"{name}.log")


@contextmanager
def running_agent(
    kafka: KafkaServer, topic_prefix: str, folder: Path, **settings: str
) -> Iterator[AgentProcess]:
    """Run an agent that answers, as `start_agent` does. It must exit with 0."""
    agent = start_agent(kafka, topic_prefix, folder, **settings)
    try:
        agent.wait_ready()
        yield agent
    finally:
        agent.popen.terminate()
        assert agent.popen.wait(PATIENCE_SECONDS) == 0, agent.text()[-3000:]
