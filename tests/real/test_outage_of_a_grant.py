"""Kafka goes while writers of the product's own client wait for a grant, or hold one. Nobody commits in the dark."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from anyio import to_thread

from lakewarden.agent.embedded_kafka import EmbeddedKafka, _free_port
from lakewarden.agent.kafka import ensure_topics, reader, started, stopped
from lakewarden.agent.settings import Settings
from lakewarden.events import Abort, CommitGranted
from lakewarden.handlers.lock_object import LockRecord, parse
from lakewarden.spark_jobs.errors import AgentUnreachable, LeaseLost
from lakewarden.spark_jobs.gate import CommitGate
from lakewarden.spark_jobs.kafka import stop_quietly
from tests.real.promises import check, stories
from tests.real.writers import World, world

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

PATIENCE_SECONDS = 90.0


@pytest.fixture
def broker(tmp_path: Path) -> EmbeddedKafka:
    return EmbeddedKafka(tmp_path / "kafka", port=_free_port())


@pytest.fixture
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
        grant = await granted.granted()

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
        log = await scene.everything()

    topics = scene.settings().topics
    check(stories(log[topics.writers], log[topics.decisions]))


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
        [lapse] = await scene.hear(Abort, lambda each: each.reason == "outcome-unknown")
        await to_thread.run_sync(_commit, gate, scene.table)
        log = await scene.everything()

    assert looked
    [first, second] = await scene.hear(CommitGranted, count=2)
    assert lapse.transaction == first.transaction != second.transaction
    topics = scene.settings().topics
    check(stories(log[topics.writers], log[topics.decisions]))


@pytest.mark.parametrize("stop", [stopped, stop_quietly])
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
        await started(consumer, settings)
        partition = TopicPartition(settings.topics.writers, 0)
        consumer.assign([partition])
        await consumer.position(partition)
        consumer._fetcher._retry_backoff = 60.0  # only now: a new topic's first requests may fail
        await consumer.getmany(timeout_ms=1_000)
        broker.kill()
    await _until(lambda: "Failed fetch messages" in caplog.text)

    await stop(consumer)

    assert consumer._client._sync_task is None, "its connections are closed too"


def _gate(scene: World) -> CommitGate:
    return CommitGate(
        scene.bootstrap_servers,
        topic_prefix=scene.prefix,
        heartbeat_seconds=1.0,
        admission_timeout_seconds=PATIENCE_SECONDS,
        grant_timeout_seconds=PATIENCE_SECONDS,
    )


def _commit(gate: CommitGate, table: str) -> None:
    with gate.transaction(table=table, writer="after", batch_id=1) as txn:
        txn.touch("p", "y", "merge")
        with txn.commit() as grant:
            grant.version = "1"


def _lock(scene: World, table: str) -> LockRecord:
    record = parse(scene.lock_object(table).read_bytes())
    assert isinstance(record, LockRecord)
    return record


async def _until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        while not holds():
            await anyio.sleep(0.1)
