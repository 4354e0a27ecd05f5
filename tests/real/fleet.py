"""Three agents of one group and fifty writers as processes, their faults, and samples of the group's checkpoints.

`tests/real/serving/test_scale_out.py` states the properties.
"""

import json
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import psutil
from aiokafka import TopicPartition

from tests.processes import AgentProcess
from tests.real.chaos import EvidenceProcess
from tests.real.storm_writers import WRITERS
from tests.real.writers import World, world
from tests.waiting import until

PARTITIONS = 12
AGENTS = ("agent-1", "agent-2", "agent-3")
PROCESSES = 2
"""Of writers. A fault kills one process with all its writers, as the failure of a machine does."""
SESSION_SECONDS = 6.0
"""The minimum that a broker allows by default."""
PAUSE_SECONDS = (SESSION_SECONDS + 0.5, SESSION_SECONDS + 3.0)
GAP_SECONDS = (1.0, 4.0)
"""Between the starts of two faults."""
DOWN_SECONDS = 2.0
LEAST_ROUNDS = 4
"""Of faults of every kind, so that writers are killed at both moments, twice."""
SAMPLE_SECONDS = 0.5
PATIENCE_SECONDS = 300.0
"""A time limit that ends a test which hangs. A busy machine may use most of it."""
FLEET: dict[str, Any] = {
    "partitions": PARTITIONS,
    "session_timeout_seconds": SESSION_SECONDS,
    "validity_seconds": 9.0,
    "drift_seconds": 0.2,
    "log_level": "info",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """The committed checkpoint of a partition, and the end offsets of its logs, which were requested later."""

    partition: int
    offset: int
    metadata: str
    ledger_end: int
    writers_end: int


@dataclass(slots=True)
class Fleet:
    """All processes, the faults so far, and the samples."""

    scene: World
    seed: int
    chance: random.Random
    faults: Counter[str] = field(default_factory=Counter)
    agents: dict[str, AgentProcess] = field(default_factory=dict)
    writers: list[EvidenceProcess] = field(default_factory=list)
    killed_writers: list[tuple[int, float]] = field(default_factory=list)
    """The numbers of the writers' processes that were killed, with the time of their end on CLOCK_MONOTONIC."""
    samples: list[Sample] = field(default_factory=list)
    _free: set[str] = field(default_factory=set)
    _started: int = 0
    _killing: anyio.Lock = field(default_factory=anyio.Lock)
    """Only one process of writers is killed at a time."""

    @property
    def tables(self) -> str:
        """The URI of the tables' folder."""
        return f"file://{self.scene.root}/tables"

    # -- processes ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start three agents and all writers."""
        for name in AGENTS:
            self._start_agent(name)
        for name in AGENTS:
            await self.agents[name].ready(patience=PATIENCE_SECONDS)
        self._free = set(AGENTS)
        for number in range(PROCESSES):
            self.writers.append(self._start_writers(number))

    def _start_agent(self, name: str) -> AgentProcess:
        self._started += 1
        log = self.scene.root / f"{name}-{self._started}.log"
        self.agents[name] = AgentProcess(self.scene.values(agent_id=name), log)
        return self.agents[name]

    def _start_writers(self, number: int) -> EvidenceProcess:
        names = [f"writer-{each}" for each in range(number, WRITERS, PROCESSES)]
        arguments = [
            *("--bootstrap", self.scene.bootstrap_servers, "--prefix", self.scene.prefix),
            *("--partitions", str(PARTITIONS), "--tables", self.tables),
            *("--names", ",".join(names), "--seed", str(self.seed)),
        ]
        return EvidenceProcess(
            "tests.real.storm_writers", self.scene.root / f"writers-{number}.jsonl", arguments
        )

    async def wait_for_progress(self, lines_before: list[int]) -> None:
        """Wait until every writer has committed a batch since `line_counts()` was `lines_before`."""
        with anyio.fail_after(PATIENCE_SECONDS):
            while True:
                later = zip(self.writers, lines_before, strict=True)
                lines = [line for process, before in later for line in process.lines[before:]]
                if len({each["writer"] for each in lines if each["what"] == "acknowledged"}) == WRITERS:
                    return
                for number in range(PROCESSES):
                    self._require_running(number)
                await anyio.sleep(0.5)

    def _require_running(self, number: int) -> None:
        log = self.scene.root / f"writers-{number}.log"
        running = self.writers[number].popen.poll() is None
        assert running, f"writers ended by themselves: {log.read_text()[-3000:]}"

    def line_counts(self) -> list[int]:
        """How many lines of evidence each process of writers has written."""
        return [len(process.lines) for process in self.writers]

    async def finish(self) -> None:
        """Stop the writers, each after its current batch is acknowledged, and then the agents."""
        for process in self.writers:
            process.send("finish")
        for process in self.writers:
            await process.ended(patience=PATIENCE_SECONDS)
        for name in AGENTS:
            await self.agents[name].stop(patience=PATIENCE_SECONDS)

    def kill(self) -> None:
        """Kill all processes."""
        for process in self.writers:
            process.kill()
        for agent in self.agents.values():
            agent.kill()

    # -- faults ------------------------------------------------------------------------------------------------------

    async def run_faults(self, seconds: float) -> None:
        """Inject faults of every kind in random order, in at most two agents at a time.

        It takes at least `seconds`, and at least `LEAST_ROUNDS` rounds: on a busy machine one round may take minutes.
        """
        kinds: list[Callable[[], Coroutine[Any, Any, None]]] = [
            self._kill_an_agent,
            self._stop_an_agent,
            self._pause_an_agent,
            self._kill_writers,
        ]
        ends_at = time.monotonic() + seconds
        rounds = 0
        async with anyio.create_task_group() as tasks:
            while time.monotonic() < ends_at or rounds < LEAST_ROUNDS:
                rounds += 1
                for kind in self.chance.sample(kinds, len(kinds)):
                    tasks.start_soon(kind)
                    await anyio.sleep(self.chance.uniform(*GAP_SECONDS))
                    await until(lambda: len(self._free) >= 2, seconds=PATIENCE_SECONDS)

    @asynccontextmanager
    async def _victim(self) -> AsyncGenerator[str]:
        name = self.chance.choice(sorted(self._free))
        self._free.remove(name)
        agent = self.agents[name]
        assert agent.popen.poll() is None, f"{name} ended by itself: {agent.log.read_text()[-3000:]}"
        yield name
        self._free.add(name)

    async def _kill_an_agent(self) -> None:
        async with self._victim() as name:
            self.agents[name].kill()
            self.faults["agent killed"] += 1
            await self._start_again(name)

    async def _stop_an_agent(self) -> None:
        async with self._victim() as name:
            await self.agents[name].stop(patience=PATIENCE_SECONDS)
            self.faults["agent stopped in order"] += 1
            await self._start_again(name)

    async def _start_again(self, name: str) -> None:
        await anyio.sleep(self.chance.uniform(0, DOWN_SECONDS))
        await self._start_agent(name).ready(patience=PATIENCE_SECONDS)

    async def _pause_an_agent(self) -> None:
        """Suspend a process for longer than the session timeout. After it resumes, it must serve again without help."""
        async with self._victim() as name:
            agent = self.agents[name]
            before = sum(line["event"] == "partitions.live" for line in agent.lines())
            agent.popen.send_signal(signal.SIGSTOP)
            await anyio.sleep(self.chance.uniform(*PAUSE_SECONDS))
            assert psutil.Process(agent.popen.pid).status() == psutil.STATUS_STOPPED
            agent.popen.send_signal(signal.SIGCONT)
            await agent.logged("partitions.live", count=before + 1, patience=PATIENCE_SECONDS)
            self.faults["agent paused"] += 1

    async def _kill_writers(self) -> None:
        """Kill a process of writers while one writer is between its publish and its completion, or after it, alternately."""
        async with self._killing:
            number = self.chance.randrange(PROCESSES)
            moment = ("published", "completed")[len(self.killed_writers) % 2]
            process = self.writers[number]
            self._require_running(number)
            past = len(process.lines)
            process.send(f"pause {moment}")
            await process.wait_for_line(
                lambda line: line["what"] == "pausing" and line["requested"],
                f"a writer that pauses after it has {moment}",
                after=past,
                patience=PATIENCE_SECONDS,
            )
            process.kill()
            self.killed_writers.append((number, time.monotonic()))
            self.faults["writers killed"] += 1
            self.writers[number] = self._start_writers(number)

    # -- evidence ---------------------------------------------------------------------------------------------------

    async def sample(self) -> None:
        """Sample the group's checkpoints repeatedly, until cancelled."""
        while True:
            await self.sample_once()
            await anyio.sleep(SAMPLE_SECONDS)

    async def sample_once(self) -> None:
        """Sample the group's checkpoints, then the end offsets of the logs, which are at or beyond the checkpoints."""
        committed = await self.scene.committed()
        topics = self.scene.settings().topics
        ledger, writers = [
            await self.scene.consumer.end_offsets([TopicPartition(topic, each) for each in range(PARTITIONS)])
            for topic in (topics.ledger, topics.writers)
        ]
        self.samples.extend(
            Sample(
                partition,
                offset,
                json.dumps(metadata),
                ledger[TopicPartition(topics.ledger, partition)],
                writers[TopicPartition(topics.writers, partition)],
            )
            for partition, (offset, metadata) in committed.items()
        )

    def evidence(self) -> list[dict[str, Any]]:
        """The evidence of all writers. A publish that was running when its process was killed counts as stopped then."""
        return [line for number in range(PROCESSES) for line in self._evidence_of(number)]

    def _evidence_of(self, number: int) -> list[dict[str, Any]]:
        path = self.scene.root / f"writers-{number}.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        open_ones = {line["transaction"]: line for line in lines if line["what"] == "publishing"}
        for line in lines:
            if line["what"] in ("published", "stopped"):
                open_ones.pop(line["transaction"])
        for line in open_ones.values():
            gone = min(at for which, at in self.killed_writers if which == number and at > line["t"])
            lines.append({**line, "what": "stopped", "t": gone})
        return lines


@asynccontextmanager
async def fleet(
    bootstrap_servers: str, prefix: str, root: Path, seed: int, **overrides: Any
) -> AsyncGenerator[Fleet]:
    """A world of its own. No process runs yet; all are killed at the end."""
    async with world(bootstrap_servers, prefix, root, **{**FLEET, **overrides}) as scene:
        made = Fleet(scene, seed, random.Random(seed))
        try:
            yield made
        finally:
            made.kill()
