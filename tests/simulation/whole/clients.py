"""aiokafka's clients, as far as the agent and the writers use them, over a simulated connection.

They reproduce this behaviour of aiokafka 0.12 (`consumer/group_coordinator.py`, `consumer/fetcher.py`, `producer/sender.py`):

- A consumer of a group revokes its partitions (`on_partitions_revoked`) before it joins a round. It continues its heartbeats
  meanwhile, and returns no records until it is assigned again. `on_partitions_assigned` is called with the assignment and the
  group's committed positions in place. The consumer fetches ahead, and drops what it fetched when it is assigned again.
- A consumer whose position is out of the log's range continues at the log's beginning.
- An idempotent producer sends one batch per partition at a time, and retries until Kafka has it or refuses its number. `stop`
  waits for that. If the wait is cut short, the producer continues to send in the background.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import anyio
from aiokafka.admin import NewTopic
from aiokafka.errors import CommitFailedError, IllegalStateError, OutOfOrderSequenceNumber
from aiokafka.partitioner import DefaultPartitioner
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from tests.simulation.whole.broker import FETCH_WAIT_SECONDS, FetchAnswer, Fetched, Joined, Record, Sent
from tests.simulation.whole.connection import ANSWER_SECONDS, RETRY_SECONDS
from tests.simulation.whole.processes import current_process

BATCH = 50
"""Records per batch of a producer."""


class Written(NamedTuple):
    """The result of a send."""

    offset: int


class _Connections:
    """`_client` of aiokafka's clients, which is closed if `stop` did not finish."""

    send = None  # fetches don't go through it
    cluster = SimpleNamespace(controller="the broker")

    def __init__(self, tasks: Callable[[], Iterable[asyncio.Task[None]]]) -> None:
        self._tasks = tasks

    async def close(self) -> None:
        for task in list(self._tasks()):
            task.cancel()


class SimAdmin:
    """`AIOKafkaAdminClient`."""

    def __init__(self, **_: Any) -> None:
        self._kafka = current_process().kafka
        self._client = _Connections(tuple)

    async def start(self) -> None:
        await self._kafka.call_until_answered(lambda: "here")

    async def close(self) -> None:
        return

    async def describe_cluster(self) -> dict[str, Any]:
        cluster = current_process().cluster
        return await self._kafka.call_until_answered(lambda: {"cluster_id": cluster})

    async def list_topics(self) -> list[str]:
        broker = self._kafka.broker
        return await self._kafka.call_until_answered(
            lambda: [each for each in broker.counts if each not in broker.missing]
        )

    async def create_topics(self, topics: list[NewTopic], *, validate_only: bool) -> SimpleNamespace:
        names = [each.name for each in topics]
        if not validate_only:
            await self._kafka.call_until_answered(lambda: self._kafka.broker.create(names))
        return SimpleNamespace(topic_errors=[(name, 0, None) for name in names])

    async def describe_topics(self, topics: list[str]) -> list[dict[str, Any]]:
        broker = self._kafka.broker

        def describe() -> list[dict[str, Any]]:
            return [
                {"topic": topic, "error_code": 0, "partitions": [{"replicas": [0]}] * broker.counts[topic]}
                for topic in topics
                if topic not in broker.missing
            ]

        return await self._kafka.call_until_answered(describe)

    async def describe_configs(self, _: object) -> list[object]:
        return []  # no topic has settings

    async def list_consumer_group_offsets(self, _: str) -> dict[TopicPartition, OffsetAndMetadata]:
        group = self._kafka.broker.group
        return await self._kafka.call_until_answered(lambda: dict(group.committed))


class SimProducer:
    """`AIOKafkaProducer`, idempotent."""

    def __init__(self, **_: Any) -> None:
        self._kafka = current_process().kafka
        self._id = self._kafka.broker.new_producer()
        self._next: dict[TopicPartition, int] = {}
        self._queued: dict[TopicPartition, deque[tuple[Sent, asyncio.Future[Written]]]] = {}
        self._sending: dict[TopicPartition, asyncio.Task[None]] = {}
        self._client = self.client = _Connections(self._sending.values)

    async def start(self) -> None:
        await self._kafka.call_until_answered(lambda: "here")

    async def stop(self) -> None:
        while self._sending:
            await asyncio.wait(list(self._sending.values()))

    async def send(
        self, topic: str, value: bytes, key: bytes | None = None, partition: int | None = None
    ) -> asyncio.Future[Written]:
        where = TopicPartition(topic, self._partition(topic, key) if partition is None else partition)
        number = self._next.get(where, 0)
        self._next[where] = number + 1
        future: asyncio.Future[Written] = asyncio.get_running_loop().create_future()
        self._queued.setdefault(where, deque()).append((Sent(number, key, value), future))
        if where not in self._sending:
            self._sending[where] = asyncio.create_task(self._send(where))
        return future

    def _partition(self, topic: str, key: bytes | None) -> int:
        every = list(range(self._kafka.broker.counts[topic]))
        return int(DefaultPartitioner()(key, every, every))

    async def _send(self, where: TopicPartition) -> None:
        broker, queue = self._kafka.broker, self._queued[where]
        try:
            while queue:
                entries = [queue.popleft() for _ in range(min(BATCH, len(queue)))]
                batch = [sent for sent, _ in entries]
                offsets = await self._kafka.call_until_answered(
                    partial(broker.produce, self._id, where, batch), direction="writes"
                )
                for place, (_, future) in enumerate(entries):
                    if future.done():
                        continue
                    if offsets:
                        future.set_result(Written(offsets[place]))
                    else:
                        future.set_exception(OutOfOrderSequenceNumber())
        finally:
            del self._sending[where]


class SimConsumer:
    """`AIOKafkaConsumer`, in a group or with assigned partitions."""

    def __init__(
        self,
        *,
        group_id: str | None = None,
        session_timeout_ms: int = 10_000,
        heartbeat_interval_ms: int = 3_000,
        **_: Any,
    ) -> None:
        process = current_process()
        self._kafka, self._name = process.kafka, process.node.name
        self._grouped = group_id is not None
        self._session = session_timeout_ms / 1000
        self._beat_every = heartbeat_interval_ms / 1000
        self._listener: Any = None
        self._member: str | None = None
        self._generation = -1
        self._positions: dict[TopicPartition, int | None] = {}
        """Next offset by partition. None while it is unknown."""
        self._fetched: dict[TopicPartition, deque[Record]] = {}
        self._round = 0
        self._reassigning = False
        self._assigned = anyio.Event()
        self._rejoin = anyio.Event()
        self._arrived = anyio.Event()
        self._wanted = anyio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._beating: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._client = _Connections(lambda: self._tasks)

    @property
    def _coordinator(self) -> Any:
        return SimpleNamespace(generation=self._generation)

    # -- start and stop --------------------------------------------------------------------------------------------------------

    def subscribe(self, topics: list[str], listener: Any) -> None:
        del topics  # the group has one
        self._listener = listener

    async def start(self) -> None:
        await self._kafka.call_until_answered(lambda: "here")
        self._spawn(self._fetch())
        if self._grouped:
            self._reassigning = True
            self._spawn(self._take_part())
            await self._assigned.wait()

    async def stop(self) -> None:
        for task in (*self._tasks, self._beating, self._refreshing):
            if task is not None:
                task.cancel()
        member, self._member = self._member, None
        if member is not None:
            await self._kafka.call(lambda: self._kafka.broker.group.leave(member))

    def _spawn(self, program: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(program))

    # -- reading ------------------------------------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self._assign(dict.fromkeys(partitions, 0))

    def unsubscribe(self) -> None:
        self._assign({})

    def _assign(self, positions: Mapping[TopicPartition, int | None]) -> None:
        self._round += 1
        self._positions = dict(positions)
        self._fetched.clear()
        self._wanted.set()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        if partition not in self._positions:
            raise IllegalStateError(f"No current assignment for partition {partition}")
        self._round += 1
        self._positions[partition] = offset
        self._fetched.pop(partition, None)
        self._wanted.set()

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        for partition, end in (await self.end_offsets(list(partitions))).items():
            self.seek(partition, end)

    async def position(self, partition: TopicPartition) -> int:
        while True:
            if partition not in self._positions:
                raise IllegalStateError(f"Partition {partition} is not assigned")
            position = self._positions[partition]
            if position is not None:
                return position
            await anyio.sleep(RETRY_SECONDS)

    async def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        beginnings = self._kafka.broker.beginnings
        return await self._kafka.call_until_answered(lambda: {each: beginnings[each] for each in partitions})

    async def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._kafka.call_until_answered(lambda: self._kafka.broker.ends(partitions))

    async def topics(self) -> set[str]:
        broker = self._kafka.broker
        return await self._kafka.call_until_answered(lambda: broker.counts.keys() - broker.missing)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        broker = self._kafka.broker
        return None if topic in broker.missing else set(range(broker.counts[topic]))

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> Fetched:
        while True:
            if self._reassigning:
                await self._assigned.wait()
            found = self._drain(partitions or tuple(self._fetched), max_records)
            if found:
                return found
            with anyio.move_on_after(timeout_ms / 1000) as waiting:
                await self._arrived.wait()
            if waiting.cancelled_caught:
                return {}

    def _drain(self, partitions: tuple[TopicPartition, ...], max_records: int | None) -> Fetched:
        found: Fetched = {}
        left = max_records if max_records is not None else 1_000_000
        for partition in partitions:
            queue = self._fetched.get(partition)
            if not queue or not left:
                continue
            records = [queue.popleft() for _ in range(min(left, len(queue)))]
            left -= len(records)
            found[partition] = records
            self._positions[partition] = records[-1].offset + 1
            if not queue:
                self._wanted.set()
        return found

    async def _fetch(self) -> None:
        while True:
            positions = {
                partition: position
                for partition, position in self._positions.items()
                if position is not None and not self._fetched.get(partition)
            }
            if not positions:
                self._wanted = anyio.Event()
                await self._wanted.wait()
                continue
            began = self._round
            found: FetchAnswer | None = await self._kafka.request(
                partial(self._kafka.broker.fetch, positions),
                wait=FETCH_WAIT_SECONDS + ANSWER_SECONDS,
                direction="reads",
            )
            if found is None:
                await anyio.sleep(RETRY_SECONDS)
            elif began == self._round:
                for partition, records in found.items():
                    if isinstance(records, int):  # as with `auto_offset_reset="earliest"`
                        self._positions[partition] = records
                    else:
                        self._fetched[partition] = deque(records)
                if found:
                    self._arrived.set()
                    self._arrived = anyio.Event()

    # -- the group ---------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        for partition in offsets:
            if partition not in self._positions:
                raise IllegalStateError(f"Partition {partition} is not assigned")
        member, generation = self._member, self._generation
        group = self._kafka.broker.group
        committed = await self._kafka.call_until_answered(
            lambda: group.commit(member or "", generation, offsets)
        )
        if not committed:
            self._forget_membership()
            raise CommitFailedError

    def _forget_membership(self) -> None:
        self._member, self._generation = None, -1
        self._rejoin.set()

    async def _take_part(self) -> None:
        """As aiokafka's `_coordination_routine`."""
        while True:
            self._reassigning = True
            if self._assigned.is_set():
                self._assigned = anyio.Event()
            await self._listener.on_partitions_revoked(set(self._positions))
            joined = None
            while joined is None:
                joined = await self._join()
            self._rejoin = anyio.Event()
            self._member, self._generation = joined.member, joined.generation
            self._assign(dict.fromkeys(joined.partitions))
            self._reassigning = False
            self._assigned.set()
            if self._refreshing is not None:
                self._refreshing.cancel()
            self._refreshing = asyncio.create_task(self._refresh())
            await self._listener.on_partitions_assigned(set(joined.partitions))
            self._beating = asyncio.create_task(self._beat())
            await self._rejoin.wait()

    async def _join(self) -> Joined | None:
        if self._beating is not None:
            self._beating.cancel()
        group, member = self._kafka.broker.group, self._member

        def join(reply: Callable[[Joined | str], None]) -> None:
            group.join(
                member,
                self._name,
                lambda joined: reply("unknown" if joined is None else joined),
                session=self._session,
                rebalance=self._session,
            )

        joined = await self._kafka.request(join, wait=self._session + 5.0)
        if joined == "unknown":
            self._member = None
        if joined is None:
            await anyio.sleep(RETRY_SECONDS)
        return joined if isinstance(joined, Joined) else None

    async def _refresh(self) -> None:
        """Fetch the group's committed positions. A partition without one is read from its beginning."""
        group = self._kafka.broker.group
        known = await self._kafka.call_until_answered(lambda: dict(group.committed))
        for partition, position in self._positions.items():
            if position is None:
                self._positions[partition] = known[partition].offset if partition in known else 0
        self._wanted.set()

    async def _beat(self) -> None:
        group = self._kafka.broker.group
        while (member := self._member) is not None:
            await anyio.sleep(self._beat_every)
            response = await self._kafka.call(partial(group.heartbeat, member, self._generation))
            if response == "unknown":
                self._forget_membership()
            elif response == "rebalancing":
                self._rejoin.set()
