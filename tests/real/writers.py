"""Writers, listeners and agents for tests over a real broker.

Writers speak the protocol themselves, over the events package and aiokafka; nothing of the product's client is in here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import anyio
import psutil
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.structs import ConsumerRecord

from lakewarden.agent.kafka import committed_offsets, ensure_topics, read_to_end, stop_client
from lakewarden.agent.serving.agent import Agent
from lakewarden.agent.settings import ENV_PREFIX, Settings
from lakewarden.events import (
    EVENT,
    Abort,
    Admitted,
    CommitCompleted,
    CommitGranted,
    CommitIntent,
    CommitRequested,
    DeadLetter,
    Event,
    Marker,
    MarkerCreated,
    Operation,
    TransactionAbandoned,
    Undecodable,
    WriterEvent,
    WriterHeartbeat,
    decode,
    encode,
)

PATIENCE_SECONDS = 60.0
"""For what will come; never measured, only there so that a test that waits in vain ends."""
QUICK: dict[str, Any] = {
    "partitions": 2,
    "replication": 1,
    "session_timeout_seconds": 6.0,  # the least that a broker allows
    "validity_seconds": 12.0,
    "renew_seconds": 1.2,
    "drift_seconds": 0.2,
    "margin_seconds": 1.0,
    "request_timeout_seconds": 1.0,
    "grant_seconds": 8.0,
    "check_seconds": 0.2,
    "log_level": "debug",
}

SomeEvent = TypeVar("SomeEvent", bound=object)
Mine = TypeVar("Mine", bound=WriterEvent)
AnyEvent = Event | DeadLetter


@dataclass(slots=True)
class Received:
    """An event as it was heard, and where."""

    event: AnyEvent
    topic: str
    partition: int
    offset: int


@dataclass(slots=True)
class World:
    """One test's topics, tables and locks."""

    bootstrap_servers: str
    prefix: str
    root: Path
    producer: AIOKafkaProducer
    consumer: AIOKafkaConsumer
    received: list[Received] = field(default_factory=list)
    overrides: dict[str, Any] = field(default_factory=dict)

    @property
    def table(self) -> str:
        """The table that most tests are about."""
        return f"file://{self.root}/tables/t"

    @property
    def locks(self) -> Path:
        """The lock root."""
        return self.root / "lock-root"

    def lock_object(self, table: str | None = None) -> Path:
        """The file that is the table's lock."""
        place = self.settings().placement().locate(table or self.table, None)
        return Path(getattr(place, "uri", "").removeprefix("file://"))

    def values(self, **more: Any) -> dict[str, Any]:
        """Settings as keyword arguments."""
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "topic_prefix": self.prefix,
            "group": self.prefix,
            "allow": (f"file://{self.root}/tables/*",),
            "lock_root": f"file://{self.locks}",
            **QUICK,
            **self.overrides,
            **more,
        }

    def settings(self, **more: Any) -> Settings:
        """Settings of an agent for this world."""
        return Settings.load(**self.values(**more))

    @asynccontextmanager
    async def agent(self, **more: Any) -> AsyncIterator[Agent]:
        """An agent in this process, ready; stopped in order at the end."""
        agent = Agent(self.settings(**more))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.run)
            try:
                with anyio.fail_after(PATIENCE_SECONDS):
                    await agent.ready.wait()
                yield agent
            finally:
                agent.stop()

    @contextmanager
    def process(self, **more: Any) -> Iterator[AgentProcess]:
        """`lakewarden agent` as a process of its own; killed at the end if it still runs."""
        process = AgentProcess(self.values(**more), self.root / f"agent-{uuid.uuid4().hex[:6]}.log")
        try:
            yield process
        finally:
            process.kill()

    def writer(self, name: str, table: str | None = None) -> Writer:
        """A writer about to begin a transaction."""
        return Writer(self, name, table or self.table, f"{name}-{uuid.uuid4().hex[:8]}")

    async def send(self, event: WriterEvent, *, key: str | None = None) -> int:
        """Publish a writer's event; its offset."""
        return await self.send_raw(encode(event), (key or event.table).encode())

    async def send_raw(self, value: bytes, key: bytes) -> int:
        """Publish any bytes to `writers`; their offset."""
        done = await self.producer.send_and_wait(f"{self.prefix}.writers", value, key=key)
        return int(done.offset)

    async def poll(self, *, timeout_ms: int = 200) -> None:
        """Hear what has been said meanwhile."""
        for partition, records in (await self.consumer.getmany(timeout_ms=timeout_ms)).items():
            for record in records:
                self.received.append(
                    Received(_read(record), partition.topic, partition.partition, record.offset)
                )

    async def wait_for(
        self,
        kind: type[SomeEvent],
        matches: Callable[[SomeEvent], bool] = lambda _: True,
        *,
        count: int = 1,
    ) -> list[SomeEvent]:
        """Wait until that many such events have been said; all of them so far."""
        try:
            with anyio.fail_after(PATIENCE_SECONDS):
                while len(found := self.events(kind, matches)) < count:
                    await self.poll()
        except TimeoutError:
            told = "\n".join(repr(each.event)[:300] for each in self.received)
            raise AssertionError(f"no {kind.__name__} was heard, only:\n{told}") from None
        return found

    def events(
        self, kind: type[SomeEvent], matches: Callable[[SomeEvent], bool] = lambda _: True
    ) -> list[SomeEvent]:
        """Such events among those heard so far."""
        return [each.event for each in self.received if isinstance(each.event, kind) and matches(each.event)]

    async def settle(self, table: str | None = None) -> None:
        """Wait until all that was sent of a table has been decided on: a stranger's heartbeat is answered after it."""
        last = self.writer("last", table)
        await last.heartbeat()
        await self.wait_for(Abort, lambda abort: abort.transaction == last.transaction)

    async def read_log(self) -> dict[str, list[ConsumerRecord]]:
        """All records of `writers`, `decisions` and `audit`, in the order of their partitions."""
        settings = self.settings()
        topics = (settings.topics.writers, settings.topics.decisions, settings.topics.audit)
        spans = {
            TopicPartition(topic, number): None for topic in topics for number in range(settings.partitions)
        }
        found = await read_to_end(settings, dict(spans))
        return {
            topic: [
                record for each, records in sorted(found.items()) if each.topic == topic for record in records
            ]
            for topic in topics
        }

    async def committed(self) -> dict[int, tuple[int, dict[str, Any]]]:
        """Offset and metadata that the group has committed, by partition."""
        settings = self.settings()
        found = await committed_offsets(settings, settings.group)
        return {
            each.partition: (at.offset, json.loads(at.metadata) if at.metadata else {})
            for each, at in found.items()
            if each.topic == settings.topics.writers and at.offset >= 0
        }


@dataclass(slots=True)
class Writer:
    """One transaction of one writing job."""

    world: World
    name: str
    table: str
    transaction: str
    seq: int = 0

    def event(self, kind: type[Mine], **more: Any) -> Mine:
        """An event of this transaction, not sent."""
        return kind(
            event_id=uuid.uuid4().hex,
            table=self.table,
            transaction=self.transaction,
            writer=self.name,
            at=datetime.now(UTC),
            **more,
        )

    async def send_intent(self, **more: Any) -> int:
        """Open the transaction; its sequence."""
        return await self.world.send(self.event(CommitIntent, **more))

    async def begin(self, **more: Any) -> None:
        """Open the transaction, and wait to be admitted."""
        await self.send_intent(**more)
        await self.wait_for(Admitted)

    async def touch(self, *file_groups: str, operation: Operation = "merge", partition: str = "p") -> int:
        """Publish markers."""
        return await self.world.send(
            self.event(MarkerCreated, markers=markers(*file_groups, operation=operation, partition=partition))
        )

    async def heartbeat(self) -> int:
        """Say that the writer lives."""
        self.seq += 1
        return await self.world.send(self.event(WriterHeartbeat, seq=self.seq))

    async def request_commit(self) -> int:
        """Ask for the grant."""
        self.seq += 1
        return await self.world.send(self.event(CommitRequested, seq=self.seq))

    async def obtain_grant(self) -> CommitGranted:
        """Ask for the grant, and wait for it."""
        await self.request_commit()
        return await self.wait_for(CommitGranted)

    async def complete(self, grant: str = "g", version: str | None = "1") -> int:
        """Say that the commit is durable."""
        return await self.world.send(self.event(CommitCompleted, grant=grant, version=version))

    async def abandon(self) -> int:
        """Give up."""
        return await self.world.send(self.event(TransactionAbandoned, reason="the test says so"))

    async def wait_for(self, kind: type[SomeEvent], *, count: int = 1) -> SomeEvent:
        """Wait for such a decision on this transaction; the last one."""
        return (await self.world.wait_for(kind, self.mine, count=count))[-1]

    def mine(self, event: Any) -> bool:
        """Whether an event is about this transaction."""
        return bool(event.transaction == self.transaction)


class AgentProcess:
    """`lakewarden agent`, started."""

    def __init__(self, values: dict[str, Any], log: Path) -> None:
        self.log = log
        with log.open("wb") as out:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "lakewarden.agent", "agent"],
                env=environment(values),
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def lines(self) -> list[dict[str, Any]]:
        """What it has logged so far."""
        text = self.log.read_text().splitlines()
        return [json.loads(line) if line.startswith("{") else {"event": line} for line in text]

    async def logged(
        self, event: str, *, count: int = 1, patience: float = PATIENCE_SECONDS
    ) -> dict[str, Any]:
        """Wait until it has logged this so many times; the last of them."""
        with anyio.move_on_after(patience):
            while len(found := [line for line in self.lines() if line["event"] == event]) < count:
                if self.popen.poll() is not None:
                    break
                await anyio.sleep(0.05)
            else:
                return found[-1]
        raise AssertionError(f"the agent never logged {event}:\n{self.log.read_text()}")

    async def ready(self, *, patience: float = PATIENCE_SECONDS) -> None:
        """Wait until it serves."""
        await self.logged("agent.ready", patience=patience)

    async def ended(self) -> int:
        """Wait for its end; the exit status."""
        with anyio.fail_after(PATIENCE_SECONDS):
            while self.popen.poll() is None:
                await anyio.sleep(0.02)
        assert self.popen.returncode is not None
        return int(self.popen.returncode)

    def kill(self) -> None:
        """As a crash would."""
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()


@asynccontextmanager
async def world(bootstrap_servers: str, prefix: str, root: Path, **overrides: Any) -> AsyncIterator[World]:
    """A world with its topics made and heard from their beginnings."""
    root = root.resolve()
    (root / "tables").mkdir(parents=True, exist_ok=True)
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers, acks="all", max_request_size=4_000_000)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest", enable_auto_commit=False
    )
    made = World(bootstrap_servers, prefix, root, producer, consumer, overrides=overrides)
    settings = made.settings()
    await ensure_topics(settings, settings.topics, settings.partitions, settings.replication)
    topics = settings.topics
    spans = {topic.name: topic.partitions for topic in topics.settings(settings.partitions)}
    heard = [
        TopicPartition(name, number)
        for name, count in spans.items()
        if name != topics.writers
        for number in range(count)
    ]
    try:
        await producer.start()
        await consumer.start()
        consumer.assign(heard)
        await consumer.seek_to_beginning(*heard)
        yield made
    finally:
        await stop_client(consumer)  # its own `stop` may end as a cancellation of ours
        await stop_client(producer)


def markers(*file_groups: str, operation: Operation = "merge", partition: str = "p") -> tuple[Marker, ...]:
    """Markers in one partition."""
    return tuple(Marker(partition=partition, file_group=each, operation=operation) for each in file_groups)


def environment(values: dict[str, Any]) -> dict[str, str]:
    """A child's environment: ours without settings of the product, and these settings."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
    given = {
        f"{ENV_PREFIX}{name.upper()}": ",".join(value) if isinstance(value, tuple) else str(value)
        for name, value in values.items()
        if value is not None
    }
    return {**own, **given, "PYTHONUNBUFFERED": "1"}


def descendants(pid: int) -> list[psutil.Process]:
    """Everything that a process has started."""
    return psutil.Process(pid).children(recursive=True)


def _read(record: ConsumerRecord) -> AnyEvent:
    if record.topic.endswith(".dead-letters"):
        return DeadLetter.model_validate_json(record.value)
    event = decode(EVENT, record.value)
    assert not isinstance(event, Undecodable), event
    return event
