"""A channel goes on reading decisions through whatever its consumer, or a function of the user, raises."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import aiokafka
import anyio
import pytest
from aiokafka.errors import ConsumerStoppedError
from aiokafka.structs import ConsumerRecord, TopicPartition

from lakewarden.events import (
    Admitted,
    DecisionEventUnion,
    PartitionTaken,
    Topics,
    encode,
    partition_name,
)
from lakewarden.spark_jobs.gate import channel as channel_module
from lakewarden.spark_jobs.gate.channel import Channel
from lakewarden.spark_jobs.gate.refusals import ConnectionErrors, not_granted

TABLE = "s3://lake/orders"
PATIENCE = 60.0


@dataclass
class Broker:
    """One partition of `decisions`, and what goes wrong with its consumers."""

    records: list[bytes] = field(default_factory=list)
    consumers: list[FakeConsumer] = field(default_factory=list)
    errors: deque[Exception] = field(default_factory=deque)
    """Each is raised once, by the next call of a consumer."""
    meanwhile: deque[str] = field(default_factory=deque)
    """Transactions with a decision that arrives while a consumer asks for the end, one each time."""
    refuses_new: int = 0
    """How many of the next consumers can't be started."""

    def take_over(self, term: str) -> None:
        taken = PartitionTaken(
            event_id="p", table=partition_name(0), at=datetime.now(UTC), agent="a", term=term
        )
        self.records.append(encode(taken))

    def publish(self, transaction: str, term: str | None = None, cause_offset: int = 0) -> None:
        decision = Admitted(
            event_id="d",
            table=TABLE,
            transaction=transaction,
            writer="w",
            at=datetime.now(UTC),
            agent="a",
            cause_offset=cause_offset,
            term=term,
        )
        self.records.append(encode(decision))


class FakeConsumer:
    """Returns the broker's records. One that is `quiet` returns nothing, as aiokafka's after an unexpected error of its own."""

    broker: Broker

    def __init__(self, **_: Any) -> None:
        self.at = 0
        self.quiet = self.stopped = False

    async def start(self) -> None:
        if self.broker.refuses_new:
            self.broker.refuses_new -= 1
            raise ValueError("no token today")
        self.broker.consumers.append(self)

    async def stop(self) -> None:
        self.stopped = True

    def assign(self, _: list[TopicPartition]) -> None:
        return

    def seek(self, _: TopicPartition, position: int) -> None:
        self.at = position

    async def position(self, _: TopicPartition) -> int:
        return self.at

    async def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        self._raise()
        return dict.fromkeys(partitions, 0)

    async def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        self._raise()
        if self.broker.meanwhile:
            self.broker.publish(self.broker.meanwhile.popleft())
        return dict.fromkeys(partitions, len(self.broker.records))

    async def getmany(self, where: TopicPartition, *, timeout_ms: int) -> dict[TopicPartition, list[Any]]:
        if self.stopped:
            raise ConsumerStoppedError
        self._raise()
        await anyio.sleep(0.001)
        found = [] if self.quiet else self.broker.records[self.at :]
        start, self.at = self.at, self.at + len(found)
        records: list[Any] = [
            ConsumerRecord(where.topic, 0, start + n, 0, 0, _key(value), value, None, 0, 0, ())
            for n, value in enumerate(found)
        ]
        return {where: records} if records else {}

    def _raise(self) -> None:
        if self.broker.errors:
            raise self.broker.errors.popleft()


def _key(value: bytes) -> bytes:
    return (partition_name(0) if channel_module.PARTITION_TAKEN in value else TABLE).encode()


@dataclass
class Scene:
    channel: Channel
    broker: Broker
    received: deque[tuple[str, int]] = field(default_factory=deque)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def subscribe(self, transaction: str) -> None:
        def on_decision(decision: DecisionEventUnion, offset: int) -> None:
            with self.changed:
                self.received.append((decision.transaction, offset))
                self.changed.notify_all()

        self.channel.subscribe(TABLE, transaction, on_decision, facts="")

    def require(self, *expected: tuple[str, int]) -> None:
        with self.changed:
            self.changed.wait_for(lambda: len(self.received) >= len(expected), PATIENCE)
            assert list(self.received) == list(expected)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    broker = Broker()

    class Consumer(FakeConsumer):
        _client = SimpleNamespace(send=None)

    Consumer.broker = broker

    async def no_producer(*_: Any, **__: Any) -> Any:
        async def stop() -> None:
            return

        return SimpleNamespace(stop=stop, client=None)

    async def one_partition(*_: Any) -> int:
        return 1

    monkeypatch.setattr(aiokafka, "AIOKafkaConsumer", Consumer)
    monkeypatch.setattr(channel_module, "make_producer", no_producer)
    monkeypatch.setattr(Channel, "_count_partitions", one_partition)
    monkeypatch.setattr(channel_module, "READ_RETRY_SECONDS", 0.001)
    made = Channel("kafka-1:9092", topics=Topics("p"), timeout=PATIENCE)
    yield Scene(made, broker)
    made.close()


def test_decisions_arrive_after_errors_of_any_kind(scene: Scene) -> None:
    scene.subscribe("A")
    scene.broker.errors.extend([ValueError("no token"), KeyError("x"), RuntimeError(), AssertionError()])

    scene.broker.publish("A")
    scene.broker.publish("A")

    scene.require(("A", 0), ("A", 1))


def test_a_consumer_that_went_quiet_is_replaced_and_no_decision_is_missed(scene: Scene) -> None:
    """aiokafka's own task ended by an error of a token provider. The consumer returns nothing and raises nothing."""
    scene.subscribe("A")
    scene.broker.publish("A")
    scene.require(("A", 0))

    scene.broker.consumers[0].quiet = True
    scene.broker.refuses_new = 2
    scene.broker.publish("A")
    scene.broker.publish("A")

    scene.require(("A", 0), ("A", 1), ("A", 2))
    assert len(scene.broker.consumers) == 2
    assert scene.broker.consumers[0].stopped


def test_a_consumer_whose_partition_is_quiet_is_kept(scene: Scene) -> None:
    scene.subscribe("A")
    scene.broker.publish("A")
    scene.require(("A", 0))
    scene.broker.publish("A")
    scene.require(("A", 0), ("A", 1))

    assert len(scene.broker.consumers) == 1


def test_a_consumer_is_kept_if_a_decision_arrives_while_it_is_compared_with_the_end(scene: Scene) -> None:
    scene.broker.meanwhile.extend(
        ["A", "A"]
    )  # the first query positions the consumer, the second one compares it

    scene.subscribe("A")

    scene.require(("A", 1))
    assert len(scene.broker.consumers) == 1


def test_decisions_about_other_transactions_show_how_far_an_agent_has_read(scene: Scene) -> None:
    scene.subscribe("A")
    assert scene.channel.agent_read_up_to(TABLE) is None
    scene.broker.publish("B", cause_offset=7)
    scene.broker.publish("A", cause_offset=5)

    scene.require(("A", 1))

    assert scene.channel.agent_read_up_to(TABLE) == 7


def test_after_a_take_over_only_its_own_decisions_show_how_far_an_agent_has_read(scene: Scene) -> None:
    """`writers` may have been created again meanwhile: its offsets then begin at 0."""
    scene.subscribe("A")
    scene.broker.take_over("one")
    scene.broker.publish("A", "one", cause_offset=900)
    scene.require(("A", 1))

    scene.broker.take_over("two")
    scene.broker.publish("A", "two", cause_offset=3)
    scene.require(("A", 1), ("A", 3))

    assert scene.channel.agent_read_up_to(TABLE) == 3


def test_a_take_over_at_an_offset_that_was_read_before_is_found(scene: Scene) -> None:
    """Seed 2099 of the simulation: Kafka lost the end of the topic and went on. The writer believed no decision any more."""
    scene.broker.take_over("one")
    scene.subscribe("A")
    scene.broker.publish("A", "one")
    scene.require(("A", 1))

    del scene.broker.records[:]
    scene.broker.take_over("two")
    scene.broker.publish("B", "two")
    scene.broker.publish("A", "two")

    scene.require(("A", 1), ("A", 2))


def test_a_replaced_agent_is_not_believed_and_the_term_is_searched_once(scene: Scene) -> None:
    scene.broker.take_over("one")
    scene.broker.take_over("two")
    scene.subscribe("A")
    for term in ("one", "one", "two", "one", "two"):
        scene.broker.publish("A", term)

    scene.require(("A", 4), ("A", 6))
    assert scene.channel._doubted == {"one"}


def test_the_error_of_a_timeout_names_why_decisions_could_not_be_read() -> None:
    error = not_granted(600.0, ConnectionErrors(None, "no token today"), "table=t")

    assert "this writer can't read decisions (no token today): check the brokers" in str(error)
