"""Kafka goes while writers of the product's own client begin, wait for a grant, or hold one. Nobody commits in the dark."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from pathlib import Path

import anyio
import pytest
import pytest_asyncio
from aiokafka import AIOKafkaConsumer, TopicPartition
from anyio import to_thread

from lakewarden.agent.embedded.kafka import EmbeddedKafka, free_port
from lakewarden.agent.kafka import ensure_topics, reader, start_client, stop_client
from lakewarden.agent.settings import Settings
from lakewarden.events import Abort, CommitGranted
from lakewarden.handlers.lease.lock_object import LockRecord, parse
from lakewarden.spark_jobs.commit_gate import CommitGate
from lakewarden.spark_jobs.gate.errors import AgentUnreachable, GateError, GrantTimeout, LeaseLost
from lakewarden.spark_jobs.gate.kafka import stop_quietly
from lakewarden.spark_jobs.gate.observer import Observer
from lakewarden.spark_jobs.gate.transaction import Transaction
from tests.kafka_fixture import TAKES_KAFKA_AWAY
from tests.real.promises import check, transactions
from tests.real.writers import World, world

pytestmark = [pytest.mark.real, *TAKES_KAFKA_AWAY]

PATIENCE_SECONDS = 90.0
OUTAGE_SECONDS = 60.0
TIMEOUT_SECONDS = 20.0
"""Of writers in the long outage: for an agent's word, and for their grant."""


@pytest.fixture
def broker(tmp_path: Path) -> EmbeddedKafka:
    return EmbeddedKafka(tmp_path / "kafka", port=free_port())


@pytest_asyncio.fixture
async def scene(broker: EmbeddedKafka, tmp_path: Path) -> AsyncIterator[World]:
    async with broker, world(broker.bootstrap_servers, "outage", tmp_path) as made:
        yield made


async def test_locks_without_a_grant_are_given_back_and_the_writer_that_waits_is_told(
    broker: EmbeddedKafka, scene: World
) -> None:
    """An agent that can't hear whether its tables are another's by now must not hold their locks."""
    table = f"{scene.table}-waiting"
    with scene.process() as process, _gate(scene) as gate:
        await process.ready()
        granted = scene.writer("granted")
        await granted.begin(heartbeat_seconds=100)
        grant = await granted.obtain_grant()

        def compute() -> None:
            with gate.transaction(table=table, writer="waiting", batch_id=1) as txn:
                txn.touch("p", "x", "merge")
                broker.stop()
                with txn.commit():
                    raise AssertionError("granted without Kafka")

        with pytest.raises(AgentUnreachable, match="nothing was committed"):
            await to_thread.run_sync(compute)
        await process.logged("kafka.silent")
        await process.logged("kafka.waiting")
        await _until(lambda: _lock(scene, table).expired)
        held = _lock(scene, scene.table)
        assert (held.owner, held.expired) == (grant.lock_owner, False), "the running grant is still covered"

        broker.start()
        await to_thread.run_sync(_commit, gate, table)
        await granted.complete(grant.grant)
        log = await scene.read_log()

    topics = scene.settings().topics
    check(transactions(log[topics.writers], log[topics.decisions]))


async def test_a_grant_that_nobody_can_extend_ends_by_the_writers_own_clock(
    broker: EmbeddedKafka, scene: World
) -> None:
    """It stops before its lease is over; when Kafka is back the lapse is told, and the next one is granted."""
    with scene.process() as process, _gate(scene) as gate:
        await process.ready()
        looked = 0

        def publish() -> None:
            nonlocal looked
            with gate.transaction(table=scene.table, writer="publishing", batch_id=1) as txn:
                txn.touch("p", "x", "merge")
                with txn.commit() as grant:
                    broker.stop()
                    while True:
                        grant.check()
                        looked += 1
                        threading.Event().wait(0.05)

        with pytest.raises(LeaseLost):
            await to_thread.run_sync(publish)
        broker.start()
        [lapse] = await scene.wait_for(Abort, lambda each: each.reason == "outcome-unknown")
        await to_thread.run_sync(_commit, gate, scene.table)
        log = await scene.read_log()

    assert looked
    [first, second] = await scene.wait_for(CommitGranted, count=2)
    assert lapse.transaction == first.transaction != second.transaction
    topics = scene.settings().topics
    check(transactions(log[topics.writers], log[topics.decisions]))


async def test_kafka_is_gone_for_a_minute(broker: EmbeddedKafka, scene: World) -> None:
    """Writers are told within their own timeouts, no lock is held beyond its lease, and all goes on without a hand."""
    steps: set[tuple[str, str]] = set()
    with (
        scene.process() as process,
        _gate(scene, TIMEOUT_SECONDS, lambda event: steps.add((event.writer, event.what))) as gate,
    ):
        await process.ready()
        minute = Minute(gate, scene.table)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(minute.write, "publishing")
            await _until(lambda: ("publishing", "granted") in steps)
            for name in ("waiting", "computing", "beginning"):
                tasks.start_soon(minute.write, name)
            await _until(lambda: {("waiting", "requested"), ("computing", "markers")} <= steps)
            broker.stop()
            back_at = time.monotonic() + OUTAGE_SECONDS
            minute.outage.set()
            silent = await process.logged("kafka.silent")
            waiting = await process.logged("kafka.waiting", count=3)
            await _until(lambda: minute.told.keys() == minute.writers.keys())
            await _until(lambda: all(_free(scene, each) for each in minute.locked))
            lost_by = _lock(scene, minute.tables["publishing"]).valid_until
            await anyio.sleep(back_at - time.monotonic())

        broker.start()
        await process.logged("partitions.live", count=2)
        for table in minute.locked:
            await to_thread.run_sync(_commit, gate, table)
        log = await scene.read_log()
        assert process.popen.poll() is None

    for line in (silent, waiting):
        assert line["bootstrap_servers"] == scene.bootstrap_servers
    assert "no Kafka broker answers" in waiting["problem"]
    kinds = {name: type(error) for name, error in minute.told.items()}
    assert kinds == {
        "publishing": LeaseLost,
        "waiting": GrantTimeout,
        "computing": AgentUnreachable,
        "beginning": AgentUnreachable,
    }
    for name, error in minute.told.items():
        assert f"table={minute.tables[name]}" in str(error)
        assert f"writer={name}" in str(error)
        if isinstance(error, AgentUnreachable):
            assert f"brokers={scene.bootstrap_servers}" in str(error)
    assert "this writer's heartbeats don't reach Kafka" in str(minute.told["waiting"])
    assert minute.published_until * 1000 < lost_by, "it stopped before its lock could be another's"
    topics = scene.settings().topics
    check(transactions(log[topics.writers], log[topics.decisions]))


class Minute:
    """Writers, each where the outage finds it: in its publish, in the line behind that, computing, and not begun yet."""

    def __init__(self, gate: CommitGate, table: str) -> None:
        self.told: dict[str, GateError] = {}
        self.outage = threading.Event()
        self.published_until = 0.0
        """When the publish was last allowed to go on; wall clock."""
        self.writers = {
            "publishing": self._publish,
            "waiting": self._wait,
            "computing": self._compute,
            "beginning": self._begin,
        }
        shared = f"{table}-shared"
        self.tables = {name: f"{table}-{name}" for name in self.writers}
        self.tables |= {"publishing": shared, "waiting": shared}
        self.locked = (shared, self.tables["computing"])
        self._gate = gate

    async def write(self, name: str) -> None:
        """One writer, until it is told that it can't."""
        try:
            await to_thread.run_sync(self.writers[name])
        except GateError as error:
            self.told[name] = error

    def _publish(self) -> None:
        with self._open("publishing") as txn:
            txn.touch("p", "x", "merge")
            with txn.commit() as grant:
                while True:
                    looked_at = time.time()
                    grant.check()
                    self.published_until = looked_at
                    threading.Event().wait(0.05)

    def _wait(self) -> None:
        with self._open("waiting") as txn:
            txn.touch("p", "z", "merge")
            self._never(txn)

    def _compute(self) -> None:
        with self._open("computing") as txn:
            txn.touch("p", "x", "merge")
            self.outage.wait()
            self._never(txn)

    def _begin(self) -> None:
        self.outage.wait()
        with self._open("beginning"):
            raise AssertionError("admitted without Kafka")

    def _open(self, name: str) -> AbstractContextManager[Transaction]:
        return self._gate.transaction(table=self.tables[name], writer=name, batch_id=1)

    def _never(self, txn: Transaction) -> None:
        with txn.commit():
            raise AssertionError("granted without Kafka")


@pytest.mark.parametrize("stop", [stop_client, stop_quietly])
async def test_a_reader_whose_broker_has_gone_can_be_stopped(
    broker: EmbeddedKafka,
    stop: Callable[[AIOKafkaConsumer], Awaitable[None]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """aiokafka lets the cancellation of its own fetch escape, for as long as it waits to try that fetch again."""
    async with broker:
        settings = Settings.load(bootstrap_servers=broker.bootstrap_servers, topic_prefix="gone")
        await ensure_topics(settings, settings.topics, 1, 1)
        consumer = reader(settings)
        await start_client(consumer, settings)
        partition = TopicPartition(settings.topics.writers, 0)
        consumer.assign([partition])
        await consumer.position(partition)
        consumer._fetcher._retry_backoff = 60.0  # only now: a new topic's first requests may fail
        await consumer.getmany(timeout_ms=1_000)
        broker.kill()
    await _until(lambda: "Failed fetch messages" in caplog.text)

    await stop(consumer)

    assert consumer._client._sync_task is None, "its connections are closed too"


def _gate(scene: World, timeout: float = PATIENCE_SECONDS, observer: Observer | None = None) -> CommitGate:
    return CommitGate(
        scene.bootstrap_servers,
        topic_prefix=scene.prefix,
        heartbeat_seconds=1.0,
        admission_timeout_seconds=timeout,
        grant_timeout_seconds=timeout,
        observer=observer,
    )


def _commit(gate: CommitGate, table: str) -> None:
    with gate.transaction(table=table, writer="after", batch_id=1) as txn:
        txn.touch("p", "y", "merge")
        with txn.commit() as grant:
            grant.version = "1"


def _free(scene: World, table: str) -> bool:
    """Whether anybody may take the table's lock: given back, or lapsed."""
    return not _lock(scene, table).held_at(int(time.time() * 1000), drift_ms=0)


def _lock(scene: World, table: str) -> LockRecord:
    record = parse(scene.lock_object(table).read_bytes())
    assert isinstance(record, LockRecord)
    return record


async def _until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        while not holds():
            await anyio.sleep(0.1)
