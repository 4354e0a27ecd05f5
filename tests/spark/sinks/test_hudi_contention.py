"""Ten minutes of everything on one Hudi table on a real S3 server, with kills and pauses.

Two streaming queries write through the gate, an unmodified Hudi job writes beside them, and another job compacts. All update
rows in the same file groups. Two agents watch the table and hold its lock, which is Hudi's own. Every half a minute one of these
six processes is killed or suspended.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.bench.peers.workload import Workload
from tests.kafka_fixture import KafkaServer
from tests.processes import ask, start_agent, start_program
from tests.servers.hudi import lock_client_jars
from tests.servers.s3 import S3Server
from tests.spark import hudi_contender

SECONDS = float(os.environ.get("LAKEWARDEN_TEST_CONTENTION_SECONDS", "") or 600)
END_SECONDS = 900.0
"""In which a party must end when it is asked to. It only ends a hang: Hudi takes a killed writer for dead after two minutes."""

pytestmark = [pytest.mark.real, pytest.mark.matrix, pytest.mark.timeout(3_600 + SECONDS)]

GATE = ("a", "b")
WORKLOAD = Workload(
    writers=3, overlap=True, batches=400, rows_per_day=300, rows_per_batch=40, days_per_batch=2
)
"""The third writer is the unmodified one."""

GRANT_SECONDS = 20
SHORT_PAUSE, LONG_PAUSE = 8.0, 1.5 * GRANT_SECONDS
"""Within the lease and beyond it. An unmodified writer is suspended for a short time only: Hudi's provider goes on after a pause
that was longer than its lock's validity."""


@dataclass(slots=True)
class Process:
    """A process that is started again after a kill."""

    name: str
    begin: Callable[[], subprocess.Popen[bytes]]
    running: subprocess.Popen[bytes] | None = None
    suffered: list[str] = field(default_factory=list)

    def start(self) -> None:
        self.running = self.begin()

    def kill(self) -> None:
        assert self.running is not None
        self.suffered.append("kill")
        self.running.kill()
        self.running.wait()
        self.start()

    def pause(self, seconds: float) -> None:
        """Suspend the process with all that it has started."""
        assert self.running is not None
        self.suffered.append(f"pause of {seconds:.0f} s")
        family = _family(self.running.pid)
        for each in family:
            _signal(each, signal.SIGSTOP)
        time.sleep(seconds)
        for each in family:
            _signal(each, signal.SIGCONT)

    def end(self) -> None:
        if self.running is not None:
            self.running.kill()
            self.running.wait()


def _signal(process: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has ended
        os.kill(process, number)


def _family(process: int) -> list[int]:
    """The process and all its descendants: Spark's JVM and Python workers."""
    listed = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)
    pairs = [tuple(map(int, line.split())) for line in listed.stdout.splitlines()]
    found = [process]
    for each in found:
        found += [child for child, parent in pairs if parent == each]
    return found


class Scene:
    """The table, and the programs around it."""

    def __init__(self, kafka: KafkaServer, prefix: str, folder: Path, server: S3Server) -> None:
        self.bucket = server.bucket()
        self.folder = folder
        self.jars = ",".join(lock_client_jars(folder))
        self._kafka, self._prefix, self._server = kafka, prefix, server

    def agent(self, name: str) -> subprocess.Popen[bytes]:
        return start_agent(
            self._kafka,
            self._prefix,
            self.folder,
            name=name,
            S3_ENDPOINT=self._server.endpoint,
            WATCH=f"s3://{self.bucket}/trips",
        ).popen

    def contender(self, role: str, name: str, number: int = 0) -> subprocess.Popen[bytes]:
        program = [
            sys.executable,
            str(hudi_contender.__file__),
            role,
            "--name",
            name,
            "--number",
            str(number),
        ]
        program += ["--bucket", self.bucket, "--jars", self.jars, "--folder", str(self.folder)]
        program += ["--bootstrap-servers", self._kafka.bootstrap_servers, "--topic-prefix", self._prefix]
        return start_program(program, self.folder / f"{name}.log")

    def run(self, role: str) -> None:
        """Run a role to its end."""
        assert self.contender(role, role).wait(END_SECONDS) == 0, self.log(role)

    def ask(self, *command: str) -> Any:
        """What a command of the agent's prints as JSON."""
        return ask(self._kafka, self._prefix, *command)

    def wait_until_started(self, names: Sequence[str]) -> None:
        deadline = time.monotonic() + END_SECONDS
        while not all(self.count(name, "started") for name in names):
            assert time.monotonic() < deadline, [self.log(name) for name in names]
            time.sleep(0.5)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()[-4000:]

    def count(self, name: str, what: str) -> int:
        file = self.folder / f"{name}.{what}"
        return len(file.read_text().splitlines()) if file.exists() else 0


def disturb(processes: Sequence[Process], chosen: random.Random, seconds: float) -> None:
    """Kill or suspend one of the processes, again and again. None is left out for long."""
    deadline = time.monotonic() + seconds
    turns: list[Process] = []
    while time.monotonic() < deadline:
        time.sleep(chosen.uniform(15, 35))
        turns = turns or chosen.sample(processes, len(processes))
        victim = turns.pop()
        ours = victim.name in GATE or victim.name.startswith("agent")
        action = chosen.choice(("kill", "short", "long" if ours else "short"))
        print(f"{time.strftime('%T')} {victim.name}: {action}", flush=True)
        if action == "kill":
            victim.kill()
        else:
            victim.pause(LONG_PAUSE if action == "long" else SHORT_PAUSE)


@contextmanager
def running(processes: Sequence[Process]) -> Iterator[None]:
    """Run them all. Whatever is left of them at the end is killed."""
    with ExitStack() as stack:
        for each in processes:
            stack.callback(each.end)
            each.start()
        yield


def test_gate_writers_an_unmodified_writer_and_a_compaction_lose_no_row(
    kafka: KafkaServer,
    topic_prefix: str,
    tmp_path: Path,
    s3_credentials: S3Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rows, Hudi's timeline, the ledger and the audit of the lock agree."""
    seed = int(os.environ.get("LAKEWARDEN_TEST_CHAOS_SEED", "") or random.SystemRandom().randrange(1_000_000))
    print(f"LAKEWARDEN_TEST_CHAOS_SEED={seed}")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_credentials.endpoint)
    scene = Scene(kafka, topic_prefix, tmp_path, s3_credentials)
    WORKLOAD.write_files(tmp_path / "source")
    scene.run("create")
    agents = [Process(name, partial(scene.agent, name)) for name in ("agent-1", "agent-2")]
    parties = [
        Process(name, partial(scene.contender, role, name, number))
        for role, name, number in (
            ("gate", "a", 0),
            ("gate", "b", 1),
            ("plain", "plain", 2),
            ("compact", "compact", 0),
        )
    ]

    with running(agents), running(parties):
        scene.wait_until_started([each.name for each in parties])
        disturb([*agents, *parties], random.Random(seed), SECONDS)
        (tmp_path / "stop").touch()
        for each in parties:
            assert each.running is not None
            assert each.running.wait(END_SECONDS) == 0, scene.log(each.name)
        scene.run("check")
        ledger = scene.ask("ledger", "show")
        locks = scene.ask("lock", "audit")["locks"]

    found = json.loads((tmp_path / "found.json").read_text())
    commits = Counter((writer.partition(":")[0], batch) for writer, batch, _ in found["commits"])
    numbers = [sum(writer == name for writer, _ in commits) for name in GATE]
    plain = int((tmp_path / "plain.progress").read_text())
    (lock,) = [each for each in locks if each["lock"] == found["lock"]]
    for each in (*agents, *parties):
        whats = ("abort", "failed", "completed", "refused", "died", "compacted")
        counts = {what: scene.count(each.name, what) for what in whats if scene.count(each.name, what)}
        print(f"{each.name}: {'; '.join(each.suffered)}; {counts}")
    print(f"commits: a {numbers[0]}, b {numbers[1]}, plain {plain}; lock {lock}; pending {found['pending']}")

    assert set(commits.values()) == {1}, "each batch of the gate is on the timeline once"
    assert sorted(commits) == [
        (name, batch) for name, number in zip(GATE, numbers, strict=True) for batch in range(number)
    ]
    last = {each["writer"].partition(":")[0]: each["batch_id"] for each in ledger}
    assert last == {name: number - 1 for name, number in zip(GATE, numbers, strict=True) if number}
    rows = {(writer, batch): count for writer, batch, count in found["rows"]}
    assert rows == WORKLOAD.expected([*numbers, plain])
    assert lock["violations"] == 0
    assert lock["acquisitions"] >= sum(numbers)
    assert scene.count("compact", "compacted") > 0
    assert plain > 0
