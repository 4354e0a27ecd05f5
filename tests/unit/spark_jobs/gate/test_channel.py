"""Which decisions the channel dispatches. Its connection to Kafka is tested with a broker, in `tests/spark/gate/`."""

from __future__ import annotations

import asyncio
import itertools
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
from aiokafka.errors import ConsumerStoppedError, MessageSizeTooLargeError
from aiokafka.structs import ConsumerRecord, TopicPartition

from lakewarden.events import (
    Abort,
    Admitted,
    CommitIntent,
    DecisionEventUnion,
    PartitionTaken,
    Topics,
    counts,
    encode,
    partition_name,
)
from lakewarden.spark_jobs.gate import channel as channel_module
from lakewarden.spark_jobs.gate.channel import MAX_TERM_SEARCH, Channel
from lakewarden.spark_jobs.gate.refusals import ConnectionErrors, OverdueWait, not_granted
from tests.unit.events.building import AT, made
from tests.unit.stories import Language, Story

TABLE = "s3://lake/t"
ABORT = made(Abort, table=TABLE, transaction="t-1", reason="not-allowed", retriable=False)


@pytest.mark.parametrize("elsewhere", [0, 1])
def test_a_decision_is_dispatched_only_from_the_partition_of_its_table(elsewhere: int) -> None:
    """The agent answers a record with a wrong key in the partition to which a stranger sent it, with the names in it."""
    channel = Channel("nowhere:9092", topics=Topics("p"))
    channel._partitions = 12
    received: list[DecisionEventUnion] = []
    channel._subscribers["t-1"] = lambda decision, _: received.append(decision)

    partition = (channel._partition(TABLE) + elsewhere) % 12
    channel._dispatch(SimpleNamespace(value=encode(ABORT), key=TABLE.encode(), partition=partition, offset=7))

    assert received == [ABORT][elsewhere:]


class Decisions:
    """A consumer of one partition of `decisions`, at most 400 records at a time."""

    def __init__(self, takeovers: dict[int, str], end: int, beginning: int = 0) -> None:
        self.takeovers = takeovers
        self.end = end
        self.beginning = beginning
        self.at = 0
        self.read = 0

    def seek(self, _: TopicPartition, offset: int) -> None:
        self.at = offset

    async def position(self, _: TopicPartition) -> int:
        return self.at

    async def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self.beginning)

    async def getmany(self, where: TopicPartition, **_: object) -> dict[TopicPartition, list[Any]]:
        first, self.at = self.at, min(self.at + 400, self.end)
        self.read += self.at - first
        return {where: [self._record(offset) for offset in range(first, self.at)]}

    def _record(self, offset: int) -> Any:
        term = self.takeovers.get(offset)
        if term is None:
            return SimpleNamespace(offset=offset, value=b"{}", key=b"")
        taken = PartitionTaken(event_id="e", table=partition_name(3), at=AT, agent="a", term=term)
        return SimpleNamespace(offset=offset, value=encode(taken), key=partition_name(3).encode())


@pytest.mark.parametrize(
    ("takeovers", "beginning", "expected"),
    [
        ({}, 0, None),
        ({5: "one"}, 0, "one"),
        ({5: "one", 49_990: "two"}, 0, "two"),
        ({5: "one", 30_000: "two", 30_001: "three"}, 0, "three"),
        ({5: "one", 50_500: "later"}, 0, "one"),  # it is dispatched after the search
        ({5: "one"}, 6, None),
    ],
)
async def test_a_fresh_writer_finds_the_term_in_force(
    takeovers: dict[int, str], beginning: int, expected: str | None
) -> None:
    """Otherwise it would believe a replaced agent until the next take-over."""
    channel = Channel("nowhere:9092", topics=Topics("p"))

    channel._readers[3] = Decisions(takeovers, 51_000, beginning)

    await channel._find_term(TopicPartition("p.decisions", 3), 50_000)

    assert channel._terms.get(3) == expected


async def test_the_search_for_the_term_is_bounded() -> None:
    """A busy partition may have had its last take-over days ago."""
    channel = Channel("nowhere:9092", topics=Topics("p"))
    decisions = Decisions({5: "one"}, 10_000_000)

    channel._readers[3] = decisions

    await channel._find_term(TopicPartition("p.decisions", 3), 10_000_000)

    assert channel._terms == {}
    assert decisions.read <= MAX_TERM_SEARCH + 3 * 400


def test_a_decision_without_a_term_counts_until_the_first_take_over() -> None:
    """It is one of an agent of before the terms, which does not know that it was replaced."""
    assert counts(ABORT, None)
    assert not counts(ABORT, "term")
    assert counts(ABORT.model_copy(update={"term": "term"}), "term")


# A channel goes on reading decisions through whatever its consumer, or a function of the user, raises.

READING_TABLE = "s3://lake/orders"
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
    beginning: int = 0

    def lose_next(self, number: int) -> None:
        """So many records are published and removed again, before a consumer has read them."""
        self.beginning = len(self.records) + number
        self.records.extend([b""] * number)

    def take_over(self, term: str) -> None:
        taken = PartitionTaken(
            event_id="p", table=partition_name(0), at=datetime.now(UTC), agent="a", term=term
        )
        self.records.append(encode(taken))

    def publish(self, transaction: str, term: str | None = None, cause_offset: int = 0) -> None:
        decision = made(
            Admitted, table=READING_TABLE, transaction=transaction, cause_offset=cause_offset, term=term
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
        return dict.fromkeys(partitions, self.broker.beginning)

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
        start = max(self.at, self.broker.beginning)
        found = [] if self.quiet else self.broker.records[start:]
        self.at = start + len(found)
        records: list[Any] = [
            ConsumerRecord(where.topic, 0, start + n, 0, 0, _key(value), value, None, 0, 0, ())
            for n, value in enumerate(found)
        ]
        return {where: records} if records else {}

    def _raise(self) -> None:
        if self.broker.errors:
            raise self.broker.errors.popleft()


def _key(value: bytes) -> bytes:
    return (partition_name(0) if channel_module.PARTITION_TAKEN in value else READING_TABLE).encode()


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

        self.channel.subscribe(READING_TABLE, transaction, on_decision, facts="")

    def quiet(self, *, refused: int) -> None:
        """The first consumer returns nothing any more, and so many of the next ones can't be started."""
        self.broker.consumers[0].quiet = True
        self.broker.refuses_new = refused

    def errors(self) -> None:
        self.broker.errors.extend([ValueError("no token"), KeyError("x"), RuntimeError(), AssertionError()])

    def holds(self, expected: str) -> bool:
        match expected.split():
            case ["received", *decisions]:
                with self.changed:
                    self.changed.wait_for(lambda: len(self.received) >= len(decisions), PATIENCE)
                    return [f"{transaction}:{offset}" for transaction, offset in self.received] == decisions
            case ["consumers", *states]:
                return ["stopped" if each.stopped else "running" for each in self.broker.consumers] == states
            case words:
                return str(self.channel.agent_read_up_to(READING_TABLE)) == words[-1]


LANGUAGE = Language(
    begin=lambda: None,
    effects=(),
    argument=str,
    holds=Scene.holds,
    verbs={
        "publish": lambda s, *words, **fields: s.broker.publish(*words, **fields),
        "take_over": lambda s, term: s.broker.take_over(term),
        "meanwhile": lambda s, transaction: s.broker.meanwhile.append(transaction),
        "lose_all": lambda s: s.broker.records.clear(),
        "lose_next": lambda s, number: s.broker.lose_next(int(number)),
    },
)


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


STORIES = """
decisions arrive after errors of any kind
    subscribe A; errors; publish A; publish A → received A:0 A:1

a consumer that went quiet is replaced and no decision is missed
    # aiokafka's own task ended by an error of a token provider. The consumer returns nothing and raises nothing.
    subscribe A; publish A → received A:0
    quiet refused=2; publish A; publish A → received A:0 A:1 A:2, consumers stopped running

a consumer whose partition is quiet is kept
    subscribe A; publish A → received A:0
    publish A → received A:0 A:1, consumers running

a consumer is kept if a decision arrives while it is compared with the end
    # The first query positions the consumer, the second one compares it.
    meanwhile A; meanwhile A; subscribe A → received A:1, consumers running

decisions about other transactions show how far an agent has read
    subscribe A → agent has read None
    publish B cause_offset=7; publish A cause_offset=5 → received A:1, agent has read 7

after a take-over only its own decisions show how far an agent has read
    # `writers` may have been created again meanwhile: its offsets then begin at 0.
    subscribe A; take_over one; publish A one cause_offset=900 → received A:1
    take_over two; publish A two cause_offset=3 → received A:1 A:3, agent has read 3

a take-over at an offset that was read before is found
    # Seed 2099 of the simulation: Kafka lost the end of the topic and went on. The writer believed no decision any more.
    take_over one; subscribe A; publish A one → received A:1
    lose_all; take_over two; publish B two; publish A two → received A:1 A:2

a take-over that Kafka has removed before it was read is not waited for
    # Seed 2017549 of the simulation: the writer was paused, and believed no decision any more.
    take_over one; subscribe A; publish A one → received A:1
    lose_next 2; publish A two → received A:1 A:4

a replaced agent is not believed and the term is searched once
    take_over one; take_over two; subscribe A; publish A one; publish A one; publish A two; publish A one; publish A two
    → received A:4 A:6, channel._doubted~{'one'}
"""


@pytest.mark.parametrize("story", LANGUAGE.stories(STORIES), ids=str)
def test_what_a_channel_reads(story: Story, scene: Scene) -> None:
    story.play(scene)


def test_the_error_of_a_timeout_names_why_decisions_could_not_be_read() -> None:
    error = not_granted(
        600.0, OverdueWait("t", "w", (), ()), ConnectionErrors(None, "no token today"), "table=t"
    )

    assert "this writer can't read decisions (no token today): check the brokers" in str(error)


def test_the_error_of_a_timeout_names_that_this_process_stood_still() -> None:
    """Its cause is then neither the agent nor Kafka."""
    errors = ConnectionErrors(None, None, "; this process itself did not run for 25 s")

    assert "no grant within 600 s; this process itself did not run for 25 s; nothing was committed" in str(
        not_granted(600.0, OverdueWait("t", "w", (), ()), errors, "table=t")
    )


@pytest.mark.parametrize("fails", ["an error", "no answer"])
async def test_what_else_a_discarded_producer_had_to_send_is_sent_again_at_once(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sends of other transactions don't run into their own timeouts."""
    channel = Channel("nowhere:9092", topics=Topics("p"))
    channel._partitions = 1
    loop = asyncio.get_running_loop()
    answers: list[asyncio.Future[Any]] = []

    class Producer:
        def __init__(self, number: int) -> None:
            self._number = number

        async def send(self, *_: Any, **__: Any) -> Any:
            answers.append(loop.create_future())
            if self._number:
                answers[-1].set_result(SimpleNamespace(offset=7))
            return answers[-1]

        async def stop(self) -> None:
            pass

    numbers = itertools.count()

    async def make(*_: Any, **__: Any) -> Any:
        return Producer(next(numbers))

    monkeypatch.setattr(channel_module, "make_producer", make)
    monkeypatch.setattr(
        channel._thread, "start_soon", lambda each, *given: asyncio.ensure_future(each(*given))
    )
    event = made(CommitIntent, table=TABLE, transaction="t-1")
    first, *others = [asyncio.ensure_future(await channel.publish(event)) for _ in range(3)]
    await asyncio.sleep(0)

    if fails == "no answer":
        first.cancel()
    else:
        answers[0].set_exception(MessageSizeTooLargeError())

    assert await asyncio.gather(*others) == [7, 7]
    assert next(numbers) == 2, "both were sent by one new producer"
    assert isinstance((await asyncio.gather(first, return_exceptions=True))[0], BaseException)
