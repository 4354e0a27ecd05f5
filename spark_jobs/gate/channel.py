"""The driver's connection to the agent: one producer, and one consumer for each Kafka partition of `decisions` in use.

- *A table has one Kafka partition.* It is Kafka's default partition for the table's name as key, computed once and used for
  `writers` and `decisions`. Both topics must have the same number of partitions, else the answers would arrive in a
  partition that this writer doesn't read.
- *Subscribe before you publish.* A consumer is positioned at the end of its partition before the intent is published, so no
  answer is missed. It has no group and commits no offsets: its position matters to no other process.
- *One consumer per partition.* `assign` replaces a consumer's whole assignment and its positions, so adding a partition to a
  running consumer could skip records of the others.
- *A producer that failed is replaced.* After an idempotent producer has dropped a batch, the broker may refuse its next ones,
  because a sequence number is missing.
- *A consumer survives errors.* It logs the error, waits and continues at its position. The callers' timeouts bound the wait.
- *Decisions of a replaced agent don't count.* Only those of the term that `partition-taken` last announced are dispatched.
- *A decision counts in its table's partition only.* The agent answers an unreadable record in the partition that has it, and
  any client can send such a record to any partition. (`progress.py` compares the names.)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

import anyio
from aiokafka.errors import ConsumerStoppedError, KafkaError
from aiokafka.partitioner import DefaultPartitioner
from aiokafka.structs import TopicPartition

from lakewarden.events import (
    DECISION_RECORD,
    WRITER_EVENT,
    DecisionEventUnion,
    PartitionTaken,
    Topics,
    Undecodable,
    UndecodableRecords,
    WriterEventUnion,
    counts,
    decode,
    encode,
)
from lakewarden.spark_jobs.gate.errors import AgentUnreachable
from lakewarden.spark_jobs.gate.kafka import (
    SEND_TIMEOUT_SECONDS,
    KafkaSettings,
    LoopThread,
    make_producer,
    settings,
    stop_quietly,
)
from lakewarden.spark_jobs.gate.logs import EventLogger

READ_RETRY_SECONDS = 0.5
"""Delay after a failed read: shorter than a heartbeat, so that a writer resumes soon after its broker."""

MAX_READ_BACK = 200_000
"""Records that `read_back` reads at most, in about 20 s. The rest is left out."""

OnDecision: TypeAlias = Callable[[DecisionEventUnion, int], None]
"""Receives a decision and its offset in `decisions`."""

T = TypeVar("T")

log = EventLogger("lakewarden.channel")


class Channel:
    """Publishes writer events, and dispatches decisions by transaction id. Thread-safe."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        topics: Topics,
        kafka: KafkaSettings | None = None,
        timeout: float = SEND_TIMEOUT_SECONDS,
    ) -> None:
        self.topics = topics
        self.timeout = timeout
        self.bootstrap_servers = bootstrap_servers
        self.kafka = kafka
        self._thread = LoopThread(bootstrap_servers, name="lakewarden-channel")
        self._opening = anyio.Lock()
        self._producer: Any = None
        self._partitions: int | None = None
        self._readers: dict[int, Any] = {}
        self._subscribers: dict[str, OnDecision] = {}
        self._terms: dict[int, str] = {}
        """The term whose decisions count, by partition. Before the first `partition-taken`, all decisions count."""
        self.undecodable = UndecodableRecords()
        """Decisions that this writer could not decode. One of them may have been for its transaction."""

    # for any thread

    def subscribe(self, table: str, transaction: str, on_decision: OnDecision, *, facts: str) -> None:
        """Call `on_decision` with every decision about `transaction` from now on, in the channel's thread: it must not wait."""
        self._subscribers[transaction] = on_decision
        try:
            self.run(lambda: self._open_reader(table), doing="subscribing to decisions", facts=facts)
        except BaseException:
            self.unsubscribe(transaction)
            raise

    def unsubscribe(self, transaction: str) -> None:
        """Dispatch no more decisions about `transaction`."""
        self._subscribers.pop(transaction, None)

    def send(self, event: WriterEventUnion) -> int:
        """Publish an event, wait for its acknowledgement, and return its offset in `writers`."""

        async def publish_and_wait() -> int:
            return await (await self.publish(event))

        facts = f"table={event.table} writer={event.writer} transaction={event.transaction}"
        return self.run(publish_and_wait, doing=f"publishing {event.type}", facts=facts)

    def run(
        self,
        function: Callable[[], Awaitable[T]],
        *,
        doing: str,
        facts: str = "",
        timeout: float | None = None,
    ) -> T:
        """Run a coroutine in the channel's loop and wait for its result, at most as long as for a send."""
        return self._thread.call(function, timeout=timeout or self.timeout, doing=doing, facts=facts)

    def spawn(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `function` in the background until it returns. It handles its own errors."""
        self._thread.spawn(function)

    def read_back(self, table: str, start: int, timeout: float) -> list[WriterEventUnion]:
        """Return the events of the table's partition of `writers`, from offset `start` to its present end.

        It reads at most `MAX_READ_BACK` records. A transaction has more only if it ran beside many others for hours.
        """
        return self.run(
            lambda: self._read_back(table, start), doing="reading back the writers' topic", timeout=timeout
        )

    def close(self) -> None:
        """Close the connection to Kafka and end the thread."""
        if not self._thread.started:
            return
        try:
            self.run(self._stop_clients, doing="closing the channel")
        except AgentUnreachable as error:
            log.warning("channel.close-failed", error=str(error))
        self._thread.close()

    # in the loop

    async def publish(self, event: WriterEventUnion) -> Awaitable[int]:
        """Pass an event to the producer: the order of these calls is the order in the log. Await the result for the offset."""
        producer = await self._ready_producer()
        partition = self._partition(event.table)
        try:
            acknowledged = await producer.send(
                self.topics.writers, encode(event), event.table.encode(), partition=partition
            )
        except BaseException:
            self._discard(producer)
            raise

        async def offset() -> int:
            try:
                return int((await acknowledged).offset)
            except BaseException:
                self._discard(producer)
                raise

        return offset()

    def _discard(self, producer: Any) -> None:
        if self._producer is producer:
            self._producer = None
            self._thread.tasks.start_soon(stop_quietly, producer)

    async def _ready_producer(self) -> Any:
        async with self._opening:
            if self._producer is None:
                producer = await make_producer(self.bootstrap_servers, self.kafka)
                try:
                    if self._partitions is None:
                        self._partitions = await self._count_partitions(producer)
                except BaseException:
                    await stop_quietly(producer)
                    raise
                self._producer = producer
            return self._producer

    async def _count_partitions(self, producer: Any) -> int:
        # Of all topics: a request for one by name would create it, if the broker creates topics automatically.
        cluster = await producer.client.fetch_all_metadata()
        counts = {
            topic: len(cluster.partitions_for_topic(topic) or ())
            for topic in (self.topics.writers, self.topics.decisions)
        }
        missing = [topic for topic, count in counts.items() if not count]
        if missing:
            raise AgentUnreachable(
                f"topics don't exist: {', '.join(missing)}; start an agent (it creates them) or correct "
                f"topic_prefix={self.topics.prefix!r}; brokers={self.bootstrap_servers}"
            )
        if len(set(counts.values())) != 1:
            raise AgentUnreachable(
                f"topics have different numbers of partitions: {counts}; this writer would miss the agent's answers: "
                f"give both the same number; brokers={self.bootstrap_servers}"
            )
        return counts[self.topics.writers]

    def _partition(self, table: str) -> int:
        assert self._partitions is not None
        every = list(range(self._partitions))
        return int(DefaultPartitioner()(table.encode(), every, every))

    async def _open_reader(self, table: str) -> None:
        await self._ready_producer()
        partition = self._partition(table)
        async with self._opening:
            if partition in self._readers:
                return
            where = TopicPartition(self.topics.decisions, partition)
            consumer = await self._consumer(where)
            try:
                end = (await consumer.end_offsets([where]))[where]
                consumer.seek(where, end)
            except BaseException:
                await stop_quietly(consumer)
                raise
            self._readers[partition] = consumer
            self._thread.tasks.start_soon(self._read_decisions, consumer, partition)

    async def _consumer(self, where: TopicPartition) -> Any:
        from aiokafka import AIOKafkaConsumer

        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap_servers,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            **settings(self.kafka),
        )
        try:
            await consumer.start()
            consumer.assign([where])
        except BaseException:
            await stop_quietly(consumer)
            raise
        return consumer

    async def _read_decisions(self, consumer: Any, partition: int) -> None:
        while True:
            try:
                record = await consumer.getone()
            except ConsumerStoppedError:
                return  # stopped by `close`
            except (KafkaError, OSError) as error:
                log.warning(
                    "channel.read-failed", topic=self.topics.decisions, partition=partition, error=repr(error)
                )
                await anyio.sleep(READ_RETRY_SECONDS)
                continue
            self._dispatch(record)

    def _dispatch(self, record: Any) -> None:
        decision = decode(DECISION_RECORD, record.value, key=record.key)
        if isinstance(decision, Undecodable):
            line = self.undecodable.add(record.topic, record.partition, record.offset, decision)
            if line is not None:
                log.warning("record.undecodable", **line)
            return
        if isinstance(decision, PartitionTaken):
            self._terms[record.partition] = decision.term
            return
        if not counts(decision, self._terms.get(record.partition)):
            log.warning(
                "channel.outdated-agent",
                transaction=decision.transaction,
                agent=decision.agent,
                detail="another agent took the partition over; this decision does not count",
            )
            return
        on_decision = self._subscribers.get(decision.transaction)
        if on_decision is None or self._partition(decision.table) != record.partition:
            return
        try:
            on_decision(decision, record.offset)
        except Exception as error:  # the other transactions must still get their decisions
            log.exception("channel.dispatch-failed", transaction=decision.transaction, error=repr(error))

    async def _read_back(self, table: str, start: int) -> list[WriterEventUnion]:
        await self._ready_producer()
        where = TopicPartition(self.topics.writers, self._partition(table))
        consumer = await self._consumer(where)
        found: list[WriterEventUnion] = []
        try:
            end = (await consumer.end_offsets([where]))[where]
            consumer.seek(where, start)
            position = start
            while position < min(end, start + MAX_READ_BACK):
                record = await consumer.getone()
                position = record.offset + 1
                event = decode(WRITER_EVENT, record.value)
                if not isinstance(event, Undecodable):
                    found.append(event)
        finally:
            await stop_quietly(consumer)
        return found

    async def _stop_clients(self) -> None:
        for client in (*self._readers.values(), self._producer):
            if client is not None:
                await stop_quietly(client)
        self._readers.clear()
        self._producer = None
