"""Writers, a consumer of all topics, and agents, for tests over a real broker.

The writers implement the protocol with the events package and aiokafka. The product's client is `World.gate`.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.structs import ConsumerRecord

from lakewarden.agent.kafka import ensure_topics
from lakewarden.agent.serving.agent import Agent
from lakewarden.agent.settings import Settings
from lakewarden.events import (
    EVENT,
    Abort,
    Admitted,
    CommitCompleted,
    CommitGranted,
    CommitIntent,
    CommitRequested,
    DeadLetter,
    DecisionEvent,
    Event,
    Marker,
    MarkerCreated,
    Operation,
    PartitionTaken,
    TransactionAbandoned,
    Undecodable,
    WriterEvent,
    WriterHeartbeat,
    decode,
    encode,
)
from lakewarden.events.access import partition_of, stop_client
from lakewarden.events.decision import counts
from lakewarden.handlers.lease.lock_object import LockRecord, parse
from lakewarden.spark_jobs.commit_gate import CommitGate
from lakewarden.spark_jobs.gate.executor import ExecutorChannel
from tests.kafka_fixture import committed_offsets, read_to_end
from tests.processes import AgentProcess, run_command
from tests.real import promises
from tests.tuned import tuned
from tests.waiting import PATIENCE_SECONDS

QUICK: dict[str, Any] = {
    "partitions": 2,
    "replication": 1,
    "session_timeout_seconds": 6.0,  # the minimum that a broker allows
    "validity_seconds": 12.0,
    "drift_seconds": 0.2,
    "log_level": "debug",
}

SomeEvent = TypeVar("SomeEvent", bound=object)
Mine = TypeVar("Mine", bound=WriterEvent)
AnyEvent = Event | DeadLetter


@dataclass(slots=True)
class Received:
    """An event and its place in the log."""

    event: AnyEvent
    topic: str
    partition: int
    offset: int


TEST_CLIENT_ID = "test"
"""Of the producer and the consumer of a test's own."""


@dataclass(slots=True)
class World:
    """The topics, tables and locks of one test."""

    bootstrap_servers: str
    prefix: str
    root: Path
    producer: AIOKafkaProducer
    consumer: AIOKafkaConsumer
    received: list[Received] = field(default_factory=list)
    overrides: dict[str, Any] = field(default_factory=dict)
    decisions: dict[str, list[Received]] = field(default_factory=dict)
    """Those that count, by transaction."""
    terms: dict[int, str] = field(default_factory=dict)
    """The term in force, by partition."""
    changed: anyio.Event = field(default_factory=anyio.Event)

    @property
    def table(self) -> str:
        """The table that most tests use."""
        return f"file://{self.root}/tables/t"

    @property
    def locks(self) -> Path:
        """The folder of the lock objects."""
        return self.root / "lock-root"

    def lock_object(self, table: str | None = None) -> Path:
        """The file of the table's lock object."""
        place = self.settings().placement().location(table or self.table, hudi=False)
        return Path(getattr(place, "uri", "").removeprefix("file://"))

    def lock_record(self, table: str | None = None) -> LockRecord:
        record = parse(self.lock_object(table).read_bytes())
        assert isinstance(record, LockRecord)
        return record

    def values(self, **more: Any) -> dict[str, Any]:
        """The settings of an agent as keyword arguments."""
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "topic_prefix": self.prefix,
            "tables": (f"file://{self.root}/tables/*",),
            "lock_root": f"file://{self.locks}",
            "http_listen": "off",
            **QUICK,
            **self.overrides,
            **more,
        }

    def settings(self, **more: Any) -> Settings:
        return tuned(**self.values(**more))

    @asynccontextmanager
    async def agent(self, **more: Any) -> AsyncIterator[Agent]:
        """Run an agent in this process. It is ready at the start of the block, and stopped in order at its end."""
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
        """Start `lakewarden agent` as a process. It is killed at the end of the block."""
        process = AgentProcess(self.values(**more), self.root / f"agent-{uuid.uuid4().hex[:6]}.log")
        try:
            yield process
        finally:
            process.kill()

    @asynccontextmanager
    async def running(self, **more: Any) -> AsyncIterator[AgentProcess]:
        """The same, and it is ready at the start of the block."""
        with self.process(**more) as process:
            await process.ready()
            yield process

    async def run(self, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run a command on the topics of this test."""
        values = self.values()
        settings = {name: values[name] for name in ("bootstrap_servers", "topic_prefix")} | more
        return await anyio.to_thread.run_sync(lambda: run_command(*arguments, **settings))

    async def answer(self, *arguments: str) -> str:
        """What a command prints, which must succeed."""
        done = await self.run(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def gate(self, servers: str | None = None, **options: Any) -> CommitGate:
        """The product's client. It waits for a busy machine."""
        patience = dict.fromkeys(("admission_timeout_seconds", "send_timeout_seconds"), PATIENCE_SECONDS)
        return CommitGate(servers or self.bootstrap_servers, topic_prefix=self.prefix, **patience | options)

    def writer(self, name: str, table: str | None = None) -> Writer:
        """A new transaction of the writer `name`; nothing is sent yet."""
        return Writer(self, name, table or self.table, f"{name}-{uuid.uuid4().hex[:8]}")

    async def send(self, event: WriterEvent, *, key: str | None = None) -> int:
        """Publish a writer's event. Return its offset."""
        return await self.send_raw(encode(event), (key or event.table).encode())

    async def send_raw(self, value: bytes, key: bytes) -> int:
        """Publish any bytes to `writers`. Return their offset."""
        done = await self.producer.send_and_wait(f"{self.prefix}.writers", value, key=key)
        return int(done.offset)

    async def poll(self, *, timeout_ms: int = 200) -> None:
        """Consume the events that have arrived meanwhile."""
        for partition, records in (await self.consumer.getmany(timeout_ms=timeout_ms)).items():
            for record in records:
                received = Received(_read(record), partition.topic, partition.partition, record.offset)
                self.received.append(received)
                if isinstance(received.event, PartitionTaken):
                    self.terms[received.partition] = received.event.term
                elif isinstance(received.event, DecisionEvent) and counts(
                    received.event, self.terms.get(received.partition)
                ):
                    self.decisions.setdefault(received.event.transaction, []).append(received)

    async def consume(self) -> None:
        """Consume until cancelled, for writers that run at the same time (`Writer.answer`)."""
        while True:
            await self.poll()
            self.notify()

    @asynccontextmanager
    async def consuming(self) -> AsyncIterator[None]:
        """Consume while the block runs."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.consume)
            yield
            tasks.cancel_scope.cancel()

    def notify(self) -> None:
        """Wake those that wait for `changed`."""
        self.changed.set()
        self.changed = anyio.Event()

    async def wait_for(
        self, kind: type[SomeEvent], matches: Callable[[SomeEvent], bool] = lambda _: True, *, count: int = 1
    ) -> list[SomeEvent]:
        """Wait for `count` events of this type that match. Return all of them so far."""
        try:
            with anyio.fail_after(PATIENCE_SECONDS):
                while len(found := self.events(kind, matches)) < count:
                    await self.poll()
        except TimeoutError:
            received = "\n".join(repr(each.event)[:300] for each in self.received)
            raise AssertionError(f"no {kind.__name__} was received, only:\n{received}") from None
        return found

    def events(
        self, kind: type[SomeEvent], matches: Callable[[SomeEvent], bool] = lambda _: True
    ) -> list[SomeEvent]:
        """The events of this type that match, among those received so far."""
        return [each.event for each in self.received if isinstance(each.event, kind) and matches(each.event)]

    async def settle(self, table: str | None = None) -> None:
        """Wait until the agent has decided on all events of the table: it answers an unknown writer's heartbeat after them."""
        last = self.writer("last", table)
        await last.heartbeat()
        await self.wait_for(Abort, lambda abort: abort.transaction == last.transaction)

    async def read_log(self) -> dict[str, list[ConsumerRecord]]:
        """All records of `writers`, `decisions` and `audit`, by topic, in the order of their partitions."""
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

    async def transactions(self) -> dict[promises.Id, promises.TransactionLog]:
        """All transactions in the log, for `promises.check`."""
        log, topics = await self.read_log(), self.settings().topics
        return promises.transactions(log[topics.writers], log[topics.decisions])

    async def wait_for_checkpoint(
        self, matches: Callable[[int, dict[str, Any]], Any] = lambda _, __: True
    ) -> tuple[int, dict[str, Any]]:
        """Wait until a partition has a matching checkpoint. Return its offset and metadata."""
        with anyio.fail_after(PATIENCE_SECONDS):
            while not (found := [each for each in (await self.committed()).values() if matches(*each)]):
                await anyio.sleep(0.2)
        return found[0]

    async def committed(self) -> dict[int, tuple[int, dict[str, Any]]]:
        """The group's committed offsets and metadata, by partition."""
        settings = self.settings()
        found = await committed_offsets(settings)
        return {
            each.partition: (at.offset, json.loads(at.metadata) if at.metadata else {})
            for each, at in found.items()
            if each.topic == settings.topics.writers and at.offset >= 0
        }


@dataclass(slots=True)
class Writer:
    """One transaction of one writer."""

    world: World
    name: str
    table: str
    transaction: str
    seq: int = 0

    def event(self, kind: type[Mine], **more: Any) -> Mine:
        """Create an event of this transaction without sending it."""
        return kind(
            event_id=uuid.uuid4().hex,
            table=self.table,
            transaction=self.transaction,
            writer=self.name,
            at=datetime.now(UTC),
            **more,
        )

    async def send_intent(self, **more: Any) -> int:
        """Send the intent. Return its offset. The default heartbeat interval lets no slow test lose its writer."""
        return await self.world.send(self.event(CommitIntent, **{"heartbeat_seconds": 100, **more}))

    async def begin(self, **more: Any) -> None:
        """Send the intent, and wait for the admission."""
        await self.send_intent(**more)
        await self.wait_for(Admitted)

    async def touch(self, *file_groups: str, operation: Operation = "merge", partition: str = "p") -> int:
        """Send markers."""
        return await self.world.send(
            self.event(MarkerCreated, markers=markers(*file_groups, operation=operation, partition=partition))
        )

    async def heartbeat(self) -> int:
        self.seq += 1
        return await self.world.send(self.event(WriterHeartbeat, seq=self.seq))

    async def request_commit(self) -> int:
        self.seq += 1
        return await self.world.send(self.event(CommitRequested, seq=self.seq))

    async def obtain_grant(self) -> CommitGranted:
        """Request the grant, and wait for it."""
        await self.request_commit()
        return await self.wait_for(CommitGranted)

    async def complete(self, grant: str | None = None, version: str | None = "1") -> int:
        """Report that the commit is durable, under this grant or the one that was received last."""
        if grant is None:
            received = [each for each in self.world.events(CommitGranted) if self.mine(each)]
            grant = received[-1].grant if received else "none"
        return await self.world.send(self.event(CommitCompleted, grant=grant, version=version))

    async def abandon(self, reason: str = "requested by the test", cause: str | None = None) -> int:
        return await self.world.send(self.event(TransactionAbandoned, reason=reason, cause=cause))

    async def wait_for(self, kind: type[SomeEvent], *, count: int = 1) -> SomeEvent:
        """Wait for `count` decisions of this type on this transaction. Return the last one."""
        return (await self.world.wait_for(kind, self.mine, count=count))[-1]

    def decisions(self) -> list[Received]:
        """The decisions on this transaction. Its id is no proof: strangers use it on other tables, or have it refused."""
        partition = partition_of(self.table, self.world.values()["partitions"])
        return [
            each
            for each in self.world.decisions.get(self.transaction, ())
            if isinstance(each.event, DecisionEvent)
            and (each.event.table, each.event.writer, each.partition) == (self.table, self.name, partition)
        ]

    async def answer(self, *kinds: type[DecisionEvent]) -> Received:
        """Wait for the first decision of these kinds while `World.consume` runs. Return the abort instead, if there is one."""
        while True:
            for kind in ((Abort,), kinds):
                if found := next((each for each in self.decisions() if isinstance(each.event, kind)), None):
                    return found
            await self.world.changed.wait()

    def mine(self, event: Any) -> bool:
        """Whether an event is about this transaction."""
        return bool(event.transaction == self.transaction)


@asynccontextmanager
async def world(bootstrap_servers: str, prefix: str, root: Path, **overrides: Any) -> AsyncIterator[World]:
    """A world whose topics exist. Its consumer reads them from their beginnings."""
    root = root.resolve()
    (root / "tables").mkdir(parents=True, exist_ok=True)
    client: dict[str, Any] = {"bootstrap_servers": bootstrap_servers, "client_id": TEST_CLIENT_ID}
    producer = AIOKafkaProducer(**client, acks="all", max_request_size=4_000_000)
    consumer = AIOKafkaConsumer(**client, auto_offset_reset="earliest", enable_auto_commit=False)
    made = World(bootstrap_servers, prefix, root, producer, consumer, overrides=overrides)
    try:
        settings = made.settings()
        await ensure_topics(settings, settings.topics, settings.partitions, settings.replication)
        consumed = [
            TopicPartition(topic.name, number)
            for topic in settings.topics.settings(settings.partitions)
            if topic.name != settings.topics.writers
            for number in range(topic.partitions)
        ]
        await producer.start()
        await consumer.start()
        consumer.assign(consumed)
        await consumer.seek_to_beginning(*consumed)
        yield made
    finally:
        await stop_client(consumer)  # aiokafka's own `stop` may cancel the calling task
        await stop_client(producer)


def commit_through(gate: CommitGate, table: str, batch_id: int = 1) -> None:
    """Commit a batch of the writer `w`, whose driver and executor touch a file group each."""
    with gate.transaction(table=table, writer="w", batch_id=batch_id) as txn:
        txn.touch("p", "from-the-driver", "merge")
        channel: ExecutorChannel = pickle.loads(pickle.dumps(txn.executor_channel()))  # noqa: S301 - its own bytes
        channel.touch("p", "from-an-executor", "merge")
        with txn.commit() as grant:
            grant.version = "1"


def markers(*file_groups: str, operation: Operation = "merge", partition: str = "p") -> tuple[Marker, ...]:
    """Markers in one partition."""
    return tuple(Marker(partition=partition, file_group=each, operation=operation) for each in file_groups)


def _read(record: ConsumerRecord) -> AnyEvent:
    if record.topic.endswith(".dead-letters"):
        return DeadLetter.model_validate_json(record.value)
    event = decode(EVENT, record.value)
    assert not isinstance(event, Undecodable), event
    return event
