"""The driver's line to the agent: one producer, and a reader for each `decisions` partition in use.

Rules, each with its reason:

- *A table's records have one place.* The partition is Kafka's default for the table's key, worked out once and used for
  both topics, which must have the same number of partitions: a writer that listened elsewhere would wait for ever.
- *Listen, then speak.* A reader is positioned at the end of its partition before the intent is produced, so that no
  answer is missed. It has no group and commits nothing: what it read means nothing to anybody else.
- *One consumer a partition.* `assign` replaces the whole assignment with its positions; adding a partition to a running
  consumer could skip records of the others.
- *A producer that failed is thrown away.* An idempotent producer that gave a batch up may be refused from then on
  (its sequence has a hole); the next send begins with a new one.
- *A reader never ends by an error.* It reports, waits and reads on from where it stood; deadlines bound those who wait.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

import anyio
import structlog
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

READ_RETRY_SECONDS = 0.5
"""Between two tries of a reader that failed: a broker that comes back is heard within a heartbeat."""

MAX_READ_BACK = 200_000
"""Records read back from `writers` at most: some 20 s of reading; what is beyond is left out (see `read_back`)."""

OnDecision: TypeAlias = Callable[[DecisionEventUnion, int], None]

T = TypeVar("T")

log = structlog.get_logger("lakewarden.channel")


class Channel:
    """Sends writer events and dispatches decisions by transaction id. Safe to use from many threads."""

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
        """The ownership whose decisions count, by partition, once one was heard to begin."""
        self.undecodable = UndecodableRecords()
        """Decisions that this writer could not decode; one of them may have been meant for it."""

    # called by any thread

    def subscribe(self, table: str, transaction: str, on_decision: OnDecision, *, facts: str) -> None:
        """From now on `on_decision` gets every decision about `transaction`, in the channel's own thread: it must not wait."""
        self._subscribers[transaction] = on_decision
        try:
            self.run(lambda: self._open_reader(table), doing="listening for decisions", facts=facts)
        except BaseException:
            self.unsubscribe(transaction)
            raise

    def unsubscribe(self, transaction: str) -> None:
        """Dispatch nothing more of `transaction`."""
        self._subscribers.pop(transaction, None)

    def send(self, event: WriterEventUnion) -> int:
        """Publish an event, wait until it is acknowledged, and return its offset in `writers`."""

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
        """Run an own coroutine in the channel's loop and wait for it, bounded as a send is."""
        return self._thread.call(function, timeout=timeout or self.timeout, doing=doing, facts=facts)

    def spawn(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `function` in the background until it ends by itself; it handles its own errors."""
        self._thread.spawn(function)

    def read_back(self, table: str, start: int, timeout: float) -> list[WriterEventUnion]:
        """What was really said about the table's partition of `writers`, from offset `start` to its present end.

        At most `MAX_READ_BACK` records: enough for any transaction that isn't lost among others for hours.
        """
        return self.run(
            lambda: self._read_back(table, start), doing="reading back the writers' topic", timeout=timeout
        )

    def close(self) -> None:
        """Say goodbye to Kafka and end the thread."""
        if not self._thread.started:
            return
        try:
            self.run(self._stop_clients, doing="closing the channel")
        except AgentUnreachable as error:
            log.warning("channel.close-failed", error=str(error))
        self._thread.close()

    # in the loop

    async def publish(self, event: WriterEventUnion) -> Awaitable[int]:
        """Hand an event to the producer: the order of these calls is the log's. The result waits for the ack."""
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
        # All topics at once: asking for one by name would create it, where the broker creates topics by itself.
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
                f"topics have different numbers of partitions: {counts}; an answer would go where nobody listens: "
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
                return  # by `close`
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
                detail="another agent has taken its tables over; what it says does not count",
            )
            return
        on_decision = self._subscribers.get(decision.transaction)
        if on_decision is None:
            return
        try:
            on_decision(decision, record.offset)
        except Exception as error:  # one transaction's failure must not deafen the others
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
