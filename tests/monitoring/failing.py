"""Real agents with writers, scraped each second while something fails.

The agents' times are shortened by about as much as a scrape is stretched (`recording.py`), as far as Kafka and the leases allow.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import aiohttp
import anyio
import anyio.to_thread
from aiokafka import TopicPartition
from aiokafka.admin.records_to_delete import RecordsToDelete

from lakewarden.agent.embedded.kafka import free_port
from lakewarden.spark_jobs.commit_gate import CommitGate
from lakewarden.spark_jobs.gate.errors import GateError
from tests.kafka_fixture import administering
from tests.monitoring.recording import Recording, Selectors
from tests.processes import AgentProcess, environment
from tests.real.writers import World, world
from tests.servers.proxy import Proxy
from tests.servers.s3 import S3Server
from tests.waiting import PATIENCE_SECONDS, until

BEFORE_SCRAPES = 20
SCRAPE_SECONDS = 1.0
SCRAPE_TIMEOUT_SECONDS = 5.0
WRITERS = 2
PAUSE_SECONDS = 0.3


@dataclass(slots=True)
class Publish:
    """A publish that lasts."""

    WRITER: ClassVar = "publishing"
    transaction: str = ""
    lost: bool = False
    """Whether its grant ended before the publish."""


@dataclass(slots=True)
class Failing:
    """The agents, the writers and the recording of one failure."""

    scene: World
    proxy: Proxy
    bucket: str
    wanted: Selectors
    """The series that are kept."""
    recording: Recording
    patience_seconds: float = PATIENCE_SECONDS
    """How long a writer waits for an agent before it begins again."""
    agents: dict[str, AgentProcess] = field(default_factory=dict)
    """By instance. The agent `a` owns the table."""
    commits: int = 0
    """Of the writers, so far."""
    _values: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The settings of each agent."""
    _ports: dict[str, int] = field(default_factory=dict)
    _writing: threading.Event = field(default_factory=threading.Event)

    @property
    def table(self) -> str:
        return f"s3://{self.bucket}/orders"

    # -- agents and writers ------------------------------------------------------------------------------------------

    async def start_agents(self, count: int, program: str) -> None:
        """Start agents, and name the one that owns the table `a`."""
        started = []
        for number in range(count):
            port = free_port()
            values = self.scene.values(agent_id=f"agent-{number}", http_listen=f"127.0.0.1:{port}")
            agent = AgentProcess(values, self.scene.root / f"agent-{number}.log", program)
            started.append((agent, values, port))
            self.agents[f"started-{number}"] = agent
            await agent.ready()
        await anyio.to_thread.run_sync(self._commit_first)
        owners = [port for _, _, port in started if await self._has_granted(port)]
        started.sort(key=lambda each: each[2] not in owners)
        self.agents.clear()
        for name, (agent, values, port) in zip("abc", started, strict=False):
            self.agents[name], self._values[name], self._ports[name] = agent, values, port

    async def stop(self, instance: str) -> None:
        """Stop an agent in order: it releases its locks."""
        self.agents[instance].popen.terminate()
        await self.agents[instance].ended()

    async def start_again(self, *instances: str) -> None:
        """Start agents that have ended, with the same settings."""
        for name in instances:
            log = self.agents[name].log.with_suffix(".again.log")
            self.agents[name] = AgentProcess(self._values[name], log)
        for name in instances:
            await self.agents[name].ready()

    async def _has_granted(self, port: int) -> bool:
        async with aiohttp.ClientSession() as session:
            text = await _scraped(session, port)
        return text is not None and "lakewarden_grants_total{" in text

    def gate(self) -> CommitGate:
        """A gate that waits for agents as long as the writers do."""
        return CommitGate(
            self.scene.bootstrap_servers,
            topic_prefix=self.scene.prefix,
            heartbeat_seconds=1.0,
            admission_timeout_seconds=self.patience_seconds,
            grant_timeout_seconds=self.patience_seconds,
        )

    def _commit(self, gate: CommitGate, writer: str, number: int) -> None:
        with gate.transaction(table=self.table, writer=writer, batch_id=number) as txn:
            txn.touch(writer, "*", "merge")
            with txn.commit() as grant:
                grant.version = str(number)

    def _commit_first(self) -> None:
        with self.gate() as gate:
            self._commit(gate, "first", 1)

    async def next_commits(self) -> None:
        """Wait until the writers have committed again."""
        before = self.commits
        await until(lambda: self.commits >= before + 3)

    def _write(self, name: str) -> None:
        """Commit one batch after another. An error is a reason to begin the next one, as it is for a streaming query."""
        number = 0
        with self.gate() as gate:
            while self._writing.is_set():
                number += 1
                try:
                    self._commit(gate, name, number)
                    self.commits += 1
                except GateError:
                    pass
                threading.Event().wait(PAUSE_SECONDS)

    @asynccontextmanager
    async def writing(self) -> AsyncGenerator[None]:
        """Writers commit while the block runs."""
        self._writing.set()
        threads = [
            threading.Thread(target=self._write, args=(f"writer-{number}",), daemon=True)
            for number in range(WRITERS)
        ]
        for each in threads:
            each.start()
        try:
            yield
        finally:
            self._writing.clear()
            for each in threads:
                await anyio.to_thread.run_sync(each.join, PATIENCE_SECONDS)

    @asynccontextmanager
    async def publishing(self) -> AsyncGenerator[Publish]:
        """A writer publishes while the block runs: its grant, and the lock, stay."""
        publish, granted, over = Publish(), threading.Event(), threading.Event()

        def write() -> None:
            with (
                self.gate() as gate,
                gate.transaction(table=self.table, writer=Publish.WRITER, batch_id=1) as txn,
            ):
                txn.touch(Publish.WRITER, "*", "merge")
                publish.transaction = txn.id
                with txn.commit() as grant:
                    granted.set()
                    over.wait(PATIENCE_SECONDS * 4)
                    grant.check()

        async def run() -> None:
            try:
                await anyio.to_thread.run_sync(write)
            except GateError:
                publish.lost = True

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await anyio.to_thread.run_sync(granted.wait, PATIENCE_SECONDS)
            try:
                yield publish
            finally:
                over.set()

    @asynccontextmanager
    async def holding_the_lock(self) -> AsyncGenerator[None]:
        """An operator holds the table's lock while the block runs."""
        command = [sys.executable, "-m", "lakewarden.agent", "lock", "hold", self.table, "--seconds", "600"]
        command += ["--wait", "60", "--s3-endpoint", self.proxy.endpoint, "--", "sleep", "600"]
        async with await anyio.open_process(
            command, env=environment(self.scene.values()), stdout=None, stderr=None
        ) as holder:
            yield
            holder.send_signal(signal.SIGINT)
            await holder.wait()

    # -- recording ---------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def recorded(self) -> AsyncGenerator[None]:
        """Scrape all agents each second while the block runs."""

        async def scrape() -> None:
            async with aiohttp.ClientSession() as session:
                while True:
                    due = anyio.current_time() + SCRAPE_SECONDS
                    texts = await asyncio.gather(*(_scraped(session, each) for each in self._ports.values()))
                    answers = dict(zip(self._ports, texts, strict=True))
                    self.recording.add(answers, self.wanted, {self.bucket: "lake"})
                    await anyio.sleep_until(due)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(scrape)
            await self.mark("before", BEFORE_SCRAPES)
            yield
            tasks.cancel_scope.cancel()

    async def mark(self, name: str, scrapes: int = 0, *, since: int | None = None) -> None:
        """Note the last scrape under a name, after so many."""
        await self.scrapes(scrapes, since=since)
        self.recording.mark(name)

    async def scrapes(self, count: int, *, since: int | None = None) -> None:
        """Wait for so many scrapes, from now or from an earlier one on."""
        until = (self.recording.scrapes if since is None else since) + count
        while self.recording.scrapes < until:
            await anyio.sleep(0.05)

    # -- Kafka -------------------------------------------------------------------------------------------------------

    async def delete_records(self, topic: str, partition: int | None = None) -> None:
        """Delete what a topic has now, or one partition of it."""
        chosen = range(self.scene.settings().partitions) if partition is None else [partition]
        ends = await self.scene.consumer.end_offsets([TopicPartition(topic, each) for each in chosen])
        async with administering(self.scene.bootstrap_servers) as client:
            await client.delete_records(
                {each: RecordsToDelete(before_offset=end) for each, end in ends.items()}
            )

    # -- an operator -------------------------------------------------------------------------------------------------

    async def run(self, *arguments: str, check: bool = True) -> str:
        """What a command of `lakewarden` prints, with the agents' settings. `check`: it must succeed, otherwise it must fail."""
        done = await self.scene.run(*arguments, **self.scene.values())
        text = done.stdout + done.stderr
        assert (done.returncode == 0) is check, text
        return text

    async def status(self) -> dict[str, Any]:
        """What `lakewarden status` shows of the table."""
        [found] = json.loads(await self.run("status", "--table", self.table, "--output", "json"))
        return dict(found)


async def _scraped(session: aiohttp.ClientSession, port: int) -> str | None:
    limit = aiohttp.ClientTimeout(total=SCRAPE_TIMEOUT_SECONDS)
    try:
        async with session.get(f"http://127.0.0.1:{port}/metrics", timeout=limit) as answer:
            return await answer.text()
    except (aiohttp.ClientError, TimeoutError):
        return None


@asynccontextmanager
async def failing(
    bootstrap_servers: str,
    prefix: str,
    root: Path,
    s3: S3Server,
    *,
    recording: Recording,
    wanted: Selectors,
    patience_seconds: float = PATIENCE_SECONDS,
    **settings: Any,
) -> AsyncGenerator[Failing]:
    """A world without agents. Its tables' locks are on S3, behind a proxy that injects faults.

    `patience_seconds`: of the writers. `settings`: of the agents.
    """
    bucket = s3.bucket()
    with Proxy(s3.endpoint, seed=1, keep_alive=False) as proxy:
        async with world(
            bootstrap_servers,
            prefix,
            root,
            **{"lock_root": None, "log_level": "info", **settings},
            tables=(f"s3://{bucket}/*",),
            lock_places=(f"s3://{bucket}/*=>default",),
            s3_endpoint=proxy.endpoint,
        ) as scene:
            made = Failing(scene, proxy, bucket, wanted, recording, patience_seconds)
            try:
                yield made
            finally:
                for agent in made.agents.values():
                    agent.kill()
