"""The driver's connection to the agent: one producer, and one consumer for each Kafka partition of `decisions` in use.

- *A table has one Kafka partition.* It is Kafka's default partition for the table's name as key, computed once and used for
  `writers` and `decisions`. Both topics must have the same number of partitions, else the answers would arrive in a
  partition that this writer doesn't read.
- *Subscribe before you publish.* A consumer is positioned at the end of its partition before the intent is published, so no
  answer is missed. It has no group and commits no offsets: its position matters to no other process.
- *One consumer per partition.* `assign` replaces a consumer's whole assignment and its positions, so adding a partition to a
  running consumer could skip records of the others.
- *A producer that failed is replaced* (`SharedProducer`).
- *Reading survives every error.* Whatever a client, a token provider or a user's function raises is logged, and the reading
  continues at its position. A client may also go quiet: aiokafka's own background task ends by an unexpected error, and then
  its consumer returns nothing, without an error. So a consumer that returned nothing for `QUIET_SECONDS` is compared with the
  end of its partition. It is replaced if it is behind, or the end can't be read, and it returns nothing for as long again. The
  callers' timeouts bound the wait, and their errors name the last error of the reading (`reading_error`).
- *Decisions of a replaced agent don't count.* Only those of the term that `partition-taken` last announced are dispatched. The
  consumer finds the term in force before it dispatches any decision: it reads its partition backwards, in windows that grow,
  to the last `partition-taken`, at most `MAX_TERM_SEARCH` records. Beyond that, all decisions count until the next take-over.
  It searches again before it ignores the first decision of a term: if Kafka has lost records that this writer had read, a
  `partition-taken` may be among those at the same offsets, and the writer would wait for a replaced agent. If Kafka has removed
  records that it had not read, it forgets the term, and searches likewise.
- *A decision counts in its table's partition only.* The agent answers an unreadable record in the partition that has it, and
  any client can send such a record to any partition. (`progress.py` compares the names.)
"""

import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

import anyio
from aiokafka.errors import ConsumerStoppedError
from aiokafka.structs import TopicPartition

from lakewarden import events as wire
from lakewarden.events.access import partition_of, stop_client
from lakewarden.spark_jobs.gate.errors import AgentUnreachable
from lakewarden.spark_jobs.gate.kafka import (
    NEEDED_RIGHTS,
    SEND_TIMEOUT_SECONDS,
    LoopThread,
    SharedProducer,
    make_consumer,
    make_producer,
)
from lakewarden.spark_jobs.gate.kafka_options import WRITER_CLIENT_ID, KafkaSettings, client_options
from lakewarden.spark_jobs.gate.logs import EventLogger

QUIET_SECONDS = 5.0
"""Without a record, before a consumer is compared with the end of its partition. Usually a table's decisions pause for longer."""

READ_RETRY_SECONDS = 0.5
"""Delay after a failed read: shorter than a heartbeat, so that a writer resumes soon after its broker."""

MAX_READ_BACK = 200_000
"""Records that `read_back` reads at most, in about 20 s. The rest is left out."""
READ_BACK_POLL_MS = 200

MAX_TERM_SEARCH = 100_000
"""Decisions in which the last `partition-taken` is looked for: a few seconds' reading."""
TERM_WINDOW = 1_000
"""Decisions in the first window. Each further window is `TERM_WINDOW_GROWTH` times as large."""
TERM_WINDOW_GROWTH = 10
PARTITION_TAKEN = b'"type":"partition-taken"'
"""Identifies a take-over without decoding the record."""

OnDecision: TypeAlias = Callable[[wire.DecisionEventUnion, int], None]
"""Receives a decision and its offset in `decisions`."""

T = TypeVar("T")

log = EventLogger("lakewarden.channel")


class Channel:
    """Publishes writer events, and dispatches decisions by transaction id. Thread-safe."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        topics: wire.Topics,
        kafka: KafkaSettings | None = None,
        timeout: float = SEND_TIMEOUT_SECONDS,
    ) -> None:
        self.topics = topics
        self.timeout = timeout
        self.bootstrap_servers = bootstrap_servers
        if not callable(kafka):
            client_options(kafka)  # raises now, not in a query
        self.kafka = kafka
        self.share = uuid.uuid4().hex
        """What the executors' channels of this gate have in common: they connect with the same options (`executor.py`)."""
        self._thread = LoopThread(bootstrap_servers, name="lakewarden-channel")
        self._producer = SharedProducer(self._thread, self._make_producer)
        self._opening_reader: defaultdict[int, anyio.Lock] = defaultdict(anyio.Lock)
        """By partition: a client that starts slowly delays its own partition only."""
        self._partitions: int | None = None
        self._readers: dict[int, Any] = {}
        self._subscribers: dict[str, OnDecision] = {}
        self._terms: dict[int, str] = {}
        """The term whose decisions count, by partition. Before the first `partition-taken`, all decisions count."""
        self._agent_read: dict[int, int] = {}
        """The offset in `writers` up to which the agent has read, by partition, as the decisions of the term in force say."""
        self._doubted: set[str | None] = set()
        """Terms that were not in force when a decision of theirs was read, and for which the log was searched again."""
        self.reading_error: str | None = None
        """The last error of reading decisions; None since a read succeeded."""
        self.undecodable = wire.UndecodableRecords()
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
        self._subscribers.pop(transaction, None)

    def send(self, event: wire.WriterEventUnion) -> int:
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

    def spawn(self, function: Callable[[], Coroutine[Any, Any, None]], *, name: str) -> None:
        """Run `function` in the background until it returns. If it raises, log the error and run it again."""
        self._thread.spawn(function, name=name)

    def read_back(self, table: str, start: int, timeout: float) -> list[wire.WriterEventUnion]:
        """Return the events of the table's partition of `writers`, from offset `start` to its present end.

        It reads at most `MAX_READ_BACK` records. A transaction has more only if it ran beside many others for hours.
        """
        return self.run(
            lambda: self._read_back(table, start), doing="reading back the writers' topic", timeout=timeout
        )

    def agent_read_up_to(self, table: str) -> int | None:
        """Return the offset in the table's partition of `writers` up to which an agent has read, by the decisions read here."""
        return self._agent_read.get(self._partition(table))

    def stood_still(self, seconds: float) -> str:
        """As `LoopThread.stood_still`."""
        return self._thread.stood_still(seconds)

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

    async def publish(self, event: wire.WriterEventUnion) -> Awaitable[int]:
        """Pass an event to the producer: the order of these calls is the order in the log. Await the result for the offset.

        The log may have the event twice (`SharedProducer.send`); the second one changes nothing.
        """
        return await self._producer.send(
            self.topics.writers,
            event.table.encode(),
            wire.encode(event),
            lambda: self._partition(event.table),
        )

    async def _make_producer(self) -> Any:
        producer = await make_producer(
            self.bootstrap_servers,
            self.kafka,
            topic=self.topics.writers,
            client_id=WRITER_CLIENT_ID,
            timeout=self.timeout,
        )
        try:
            if self._partitions is None:
                self._partitions = await self._count_partitions(producer)
        except BaseException:
            await stop_client(producer)
            raise
        return producer

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
                f"topics don't exist, or Kafka hides them: {', '.join(missing)}; start an agent (it creates them), correct "
                f"topic_prefix={self.topics.prefix!r}, or grant the rights: {NEEDED_RIGHTS}; brokers={self.bootstrap_servers}"
            )
        if len(set(counts.values())) != 1:
            raise AgentUnreachable(
                f"topics have different numbers of partitions: {counts}; this writer would miss the agent's answers: "
                f"give both the same number; brokers={self.bootstrap_servers}"
            )
        return counts[self.topics.writers]

    def _partition(self, table: str) -> int:
        assert self._partitions is not None
        return partition_of(table, self._partitions)

    async def _open_reader(self, table: str) -> None:
        await self._producer.ready()
        partition = self._partition(table)
        async with self._opening_reader[partition]:
            if partition in self._readers:
                return
            where = TopicPartition(self.topics.decisions, partition)
            consumer = await self._consumer(where)
            try:
                end = (await consumer.end_offsets([where]))[where]
            except BaseException:
                await stop_client(consumer)
                raise
            self._readers[partition] = consumer
            self._thread.spawn_inside(lambda: self._read_decisions(where, end), name=f"decisions of {where}")

    async def _consumer(self, where: TopicPartition) -> Any:
        consumer = await make_consumer(self.bootstrap_servers, self.kafka, client_id=WRITER_CLIENT_ID)
        consumer.assign([where])
        return consumer

    async def _read_decisions(self, where: TopicPartition, start: int) -> None:
        """Find the term in force at `start`, then read and dispatch from there until `close` stops the consumer."""
        position, knows_term = start, False
        while where.partition in self._readers:
            try:
                if not knows_term:
                    await self._find_term(where, position)
                    self._readers[where.partition].seek(where, position)
                    knows_term = True
                position, knows_term = await self._read_some(where, position)
                self.reading_error = None
            except ConsumerStoppedError:
                return  # stopped by `close`
            except Exception as error:  # noqa: BLE001 - a token provider and a user's function may raise anything
                self.reading_error = " ".join(str(error).split()) or type(error).__name__
                log.warning(
                    "channel.read-failed", topic=where.topic, partition=where.partition, error=repr(error)
                )
                await anyio.sleep(READ_RETRY_SECONDS)

    async def _read_some(self, where: TopicPartition, position: int) -> tuple[int, bool]:
        """Dispatch the next records. Return the position after them, and whether the term there is known.

        A consumer that went quiet is replaced.
        """
        consumer = self._readers[where.partition]
        quiet = round(QUIET_SECONDS * 1000)
        batches = await consumer.getmany(where, timeout_ms=quiet)
        if (
            not batches
            and self._is_used(where, consumer)
            and await self._is_behind(where, consumer, position)
        ):
            # It may be behind only because of what arrived since.
            batches = await consumer.getmany(where, timeout_ms=quiet)
            if not batches:
                await self._replace(where, consumer, position)
        for record in batches.get(where, ()):
            if record.offset > position:  # Kafka has lost what was there, perhaps a `partition-taken`
                self._terms.pop(where.partition, None)
                return record.offset, False
            if not self._dispatch(record):
                return record.offset, False
            position = record.offset + 1
        return position, True

    def _is_used(self, where: TopicPartition, consumer: Any) -> bool:
        """Whether `close` has not taken this consumer out of use."""
        return self._readers.get(where.partition) is consumer

    async def _is_behind(self, where: TopicPartition, consumer: Any, position: int) -> bool:
        try:
            with anyio.fail_after(self.timeout):
                return bool((await consumer.end_offsets([where]))[where] > position)
        except Exception as error:  # noqa: BLE001 - it is replaced, whatever is wrong with it
            log.warning(
                "channel.read-failed", topic=where.topic, partition=where.partition, error=repr(error)
            )
            return True

    async def _replace(self, where: TopicPartition, consumer: Any, position: int) -> None:
        with anyio.fail_after(self.timeout):
            replacement = await self._consumer(where)
        if not self._is_used(where, consumer):
            await stop_client(replacement)
            return
        replacement.seek(where, position)
        self._readers[where.partition] = replacement
        await stop_client(consumer)
        log.warning(
            "channel.consumer-replaced", topic=where.topic, partition=where.partition, position=position
        )

    async def _find_term(self, where: TopicPartition, end: int) -> None:
        """Find the term in force at offset `end` of the partition. If the search finds none, the known one stays."""
        beginnings = await self._readers[where.partition].beginning_offsets([where])
        first = max(beginnings[where], end - MAX_TERM_SEARCH)
        stop, window = end, TERM_WINDOW
        while stop > first:
            begin = max(first, stop - window)
            term = await self._read_term(where, begin, stop)
            if term is not None:
                self._terms[where.partition] = term
                return
            stop, window = begin, window * TERM_WINDOW_GROWTH

    async def _read_term(self, where: TopicPartition, begin: int, stop: int) -> str | None:
        """The last term that `partition-taken` announces between two offsets, if any does."""
        self._readers[where.partition].seek(where, begin)
        position, term = begin, None
        while position < stop:
            consumer = self._readers[where.partition]
            batches = await consumer.getmany(where, timeout_ms=round(QUIET_SECONDS * 1000))
            for record in batches.get(where, ()):
                if record.offset < stop and PARTITION_TAKEN in (record.value or b""):
                    taken = wire.decode(wire.DECISION_RECORD, record.value, key=record.key)
                    if isinstance(taken, wire.PartitionTaken):
                        term = taken.term
            position = max(position, await consumer.position(where))
            if not batches and position < stop:
                await self._replace(where, consumer, position)
        return term

    def _dispatch(self, record: Any) -> bool:
        """Dispatch a record. Return False if the log must be searched for the term in force first."""
        decision = wire.decode(wire.DECISION_RECORD, record.value, key=record.key)
        if isinstance(decision, wire.Undecodable):
            line = self.undecodable.add(record.topic, record.partition, record.offset, decision)
            if line is not None:
                log.warning("record.undecodable", **line)
            return True
        if isinstance(decision, wire.PartitionTaken):
            self._terms[record.partition] = decision.term
            self._agent_read.pop(record.partition, None)  # `writers` may be a new topic, with lower offsets
            return True
        if isinstance(decision, wire.LocksHandedOver):
            return True  # concerns agents only
        if not wire.counts(decision, self._terms.get(record.partition)):
            if decision.term not in self._doubted:
                self._doubted.add(decision.term)
                return False
            log.warning(
                "channel.outdated-agent",
                transaction=decision.transaction,
                agent=decision.agent,
                detail="another agent took the partition over; this decision does not count",
            )
            return True
        self._agent_read[record.partition] = max(
            decision.cause_offset, self._agent_read.get(record.partition, 0)
        )
        on_decision = self._subscribers.get(decision.transaction)
        if on_decision is None or self._partition(decision.table) != record.partition:
            return True
        try:
            on_decision(decision, record.offset)
        except Exception as error:  # the other transactions must still get their decisions
            log.exception("channel.dispatch-failed", transaction=decision.transaction, error=repr(error))
        return True

    async def _read_back(self, table: str, start: int) -> list[wire.WriterEventUnion]:
        await self._producer.ready()
        where = TopicPartition(self.topics.writers, self._partition(table))
        consumer = await self._consumer(where)
        found: list[wire.WriterEventUnion] = []
        try:
            end = (await consumer.end_offsets([where]))[where]
            consumer.seek(where, start)
            position = start
            while position < min(end, start + MAX_READ_BACK):
                batches = await consumer.getmany(where, timeout_ms=READ_BACK_POLL_MS)
                for record in batches.get(where, ()):
                    event = wire.decode(wire.WRITER_EVENT, record.value)
                    if not isinstance(event, wire.Undecodable):
                        found.append(event)
                # Beyond the last record there may be offsets without one: the ends of a client's Kafka transactions.
                position = await consumer.position(where)
        finally:
            await stop_client(consumer)
        return found

    async def _stop_clients(self) -> None:
        consumers = list(self._readers.values())
        self._readers.clear()
        for consumer in consumers:
            await stop_client(consumer)
        await self._producer.stop()
