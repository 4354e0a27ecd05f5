"""Kafka fails while writers with the product's client begin, wait for a grant or publish. No writer commits without a grant."""

import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import anyio
import pytest
import pytest_asyncio
from aiokafka import TopicPartition
from anyio import to_thread

from lakewarden.agent.embedded.kafka import EmbeddedKafka, free_port
from lakewarden.agent.kafka import ensure_topics, reader, start_client
from lakewarden.agent.settings import Settings
from lakewarden.events import Abort, CommitGranted
from lakewarden.events.access import stop_client
from lakewarden.spark_jobs.commit_gate import CommitGate
from lakewarden.spark_jobs.gate.errors import AgentUnreachable, GateError, GrantTimeout, LeaseLost
from lakewarden.spark_jobs.gate.observer import Observer
from lakewarden.spark_jobs.gate.transaction import Transaction
from tests.kafka_fixture import TAKES_KAFKA_AWAY
from tests.real.promises import check
from tests.real.writers import World, commit_through, world
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.wide, *TAKES_KAFKA_AWAY]

PATIENCE_SECONDS = 90.0
OUTAGE_SECONDS = 60.0
TIMEOUT_SECONDS = 20.0
"""The timeouts of the writers in the long outage, for their admission and their grant."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(tmp_path / "kafka", port=free_port()) as started:
        yield started


@pytest_asyncio.fixture
async def scene(broker: EmbeddedKafka, tmp_path: Path) -> AsyncIterator[World]:
    async with world(broker.bootstrap_servers, "outage", tmp_path) as made:
        yield made


async def test_locks_without_a_grant_are_released_and_a_waiting_writer_gets_an_error(
    broker: EmbeddedKafka, scene: World
) -> None:
    """An agent that can't know whether its partitions were assigned to another agent must not hold their locks."""
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
        await until(lambda: scene.lock_record(table).expired)
        held = scene.lock_record()
        assert (held.owner, held.expired) == (grant.lock_owner, False), (
            "the lock still covers the running grant"
        )

        broker.start()
        await to_thread.run_sync(commit_through, gate, table)
        await granted.complete(grant.grant)
        found = await scene.transactions()

    check(found)


async def test_a_grant_that_can_not_be_renewed_ends_by_the_writers_own_clock(
    broker: EmbeddedKafka, scene: World
) -> None:
    """The writer stops before its lease ends. After the outage the agent publishes the lapse, then the next grant."""
    with scene.process() as process, _gate(scene) as gate:
        await process.ready()
        checks = 0
        # In a thread of its own: on a busy machine the broker may need longer to stop than the grant lease lasts.
        stopping = threading.Thread(target=broker.stop)

        def publish() -> None:
            nonlocal checks
            with gate.transaction(table=scene.table, writer="publishing", batch_id=1) as txn:
                txn.touch("p", "x", "merge")
                with txn.commit() as grant:
                    stopping.start()
                    while True:
                        grant.check()
                        checks += 1
                        threading.Event().wait(0.05)

        with pytest.raises(LeaseLost):
            await to_thread.run_sync(publish)
        await to_thread.run_sync(stopping.join)
        broker.start()
        [lapse] = await scene.wait_for(Abort, lambda each: each.reason == "outcome-unknown")
        await to_thread.run_sync(commit_through, gate, scene.table)
        found = await scene.transactions()

    assert checks
    [first, second] = await scene.wait_for(CommitGranted, count=2)
    assert lapse.transaction == first.transaction != second.transaction
    check(found)


async def test_kafka_is_down_for_a_minute(broker: EmbeddedKafka, scene: World) -> None:
    """Writers get errors within their timeouts, no lock is held beyond its lease, and afterwards all continues without help."""
    steps: set[tuple[str, str]] = set()
    with (
        scene.process() as process,
        _gate(scene, TIMEOUT_SECONDS, lambda event: steps.add((event.writer, event.what))) as gate,
    ):
        await process.ready()
        minute = Minute(gate, scene.table)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(minute.write, "publishing")
            await until(lambda: ("publishing", "granted") in steps)
            for name in ("waiting", "computing", "beginning"):
                tasks.start_soon(minute.write, name)
            await until(lambda: {("waiting", "requested"), ("computing", "markers")} <= steps)
            broker.stop()
            back_at = time.monotonic() + OUTAGE_SECONDS
            minute.outage.set()
            silent = await process.logged("kafka.silent")
            waiting = await process.logged("kafka.waiting", count=3)
            await until(lambda: minute.errors.keys() == minute.writers.keys())
            await until(lambda: all(_free(scene, each) for each in minute.locked))
            lost_by = scene.lock_record(minute.tables["publishing"]).valid_until
            await anyio.sleep(max(0.0, back_at - time.monotonic()))

        broker.start()
        await process.logged("partitions.live", count=2)
        with _gate(scene) as patient:
            for table in minute.locked:
                await to_thread.run_sync(commit_through, patient, table)
        found = await scene.transactions()
        assert process.popen.poll() is None

    for line in (silent, waiting):
        assert line["bootstrap_servers"] == scene.bootstrap_servers
    assert "no Kafka broker answers" in waiting["problem"]
    kinds = {name: type(error) for name, error in minute.errors.items()}
    assert kinds == {
        "publishing": LeaseLost,
        "waiting": GrantTimeout,
        "computing": AgentUnreachable,
        "beginning": AgentUnreachable,
    }
    for name, error in minute.errors.items():
        assert f"table={minute.tables[name]}" in str(error)
        assert f"writer={name}" in str(error)
        if isinstance(error, AgentUnreachable):
            assert f"brokers={scene.bootstrap_servers}" in str(error)
    assert "this writer's heartbeats don't reach Kafka" in str(minute.errors["waiting"])
    assert minute.published_until * 1000 < lost_by, "it stopped before another agent could acquire its lock"
    check(found)


class Minute:
    """Four writers: one publishes, one waits for its grant, one computes, and one begins during the outage."""

    def __init__(self, gate: CommitGate, table: str) -> None:
        self.errors: dict[str, GateError] = {}
        self.outage = threading.Event()
        self.published_until = 0.0
        """The wall-clock time of the last check that allowed the publish to continue."""
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
        """Run one writer until it gets an error."""
        try:
            await to_thread.run_sync(self.writers[name])
        except GateError as error:
            self.errors[name] = error

    def _publish(self) -> None:
        with self._open("publishing") as txn:
            txn.touch("p", "x", "merge")
            with txn.commit() as grant:
                while True:
                    checked_at = time.time()
                    grant.check()
                    self.published_until = checked_at
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


async def test_a_consumer_whose_broker_is_down_can_be_stopped(
    broker: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """While aiokafka waits to retry a fetch, the cancellation of that fetch escapes from its `stop`."""
    settings = Settings.load(bootstrap_servers=broker.bootstrap_servers, topic_prefix="gone")
    await ensure_topics(settings, settings.topics, 1, 1)
    consumer = reader(settings)
    await start_client(consumer, settings)
    partition = TopicPartition(settings.topics.writers, 0)
    consumer.assign([partition])
    await consumer.position(partition)
    await until(lambda: consumer.highwater(partition) is not None)  # a new topic's first fetches may fail
    consumer._fetcher._retry_backoff = 60.0
    broker.kill()
    await until(lambda: "Failed fetch messages" in caplog.text)

    await stop_client(consumer)

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


def _free(scene: World, table: str) -> bool:
    """Whether any contender may acquire the table's lock: it was released, or its lease has ended."""
    return not scene.lock_record(table).held_at(int(time.time() * 1000), drift_ms=0)
