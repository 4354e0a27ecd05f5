"""Writers as aiokafka clients in this process, apart from the agent's: they publish events and record when answers arrive."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Any, Self

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from lakewarden.events import (
    DECISION_RECORD,
    DecisionEventUnion,
    LocksHandedOver,
    PartitionTaken,
    Topics,
    Undecodable,
    WriterEventUnion,
    decode,
    encode,
)
from tests.bench import writer_events

ANSWER_SECONDS = 60


class Writers:
    """A producer and a consumer with the settings of the product's client: no linger, all replicas acknowledge."""

    def __init__(self, bootstrap_servers: str, prefix: str) -> None:
        self._servers, self._topics = bootstrap_servers, Topics(prefix)
        self._answers: dict[tuple[str, str], asyncio.Future[tuple[float, DecisionEventUnion]]] = {}

    async def __aenter__(self) -> Self:
        self._producer = AIOKafkaProducer(
            bootstrap_servers=self._servers,
            acks="all",
            enable_idempotence=True,
            linger_ms=0,
            max_batch_size=900_000,
        )
        await self._producer.start()
        self._consumer = await self._reader()
        self._consuming = asyncio.create_task(self._consume())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consuming.cancel()
        await self._consumer.stop()
        await self._producer.stop()

    async def send(self, event: WriterEventUnion) -> float:
        """Pass an event to the producer. Returns the time just before."""
        return await self.put(event.table, encode(event))

    async def put(self, table: str, value: bytes) -> float:
        """The same with an event that is encoded already."""
        began = time.perf_counter()
        await self._producer.send(self._topics.writers, value=value, key=table.encode())
        return began

    async def flush(self) -> None:
        """Returns when all events are acknowledged."""
        await self._producer.flush()

    async def ask(self, event: WriterEventUnion, kind: str) -> tuple[float, float, Any]:
        """Send an event. Returns when it was sent, when this decision on its transaction arrived, and the decision."""
        began = await self.send(event)
        return began, *await self.answer(event.transaction, kind)

    async def begin(self, *transactions: tuple[str, str]) -> None:
        """Open these transactions of these tables at once."""
        for table, transaction in transactions:
            await self.send(writer_events.intent(table, transaction))
        for _, transaction in transactions:
            await self.answer(transaction, "admitted")

    async def answer(self, transaction: str, kind: str) -> tuple[float, Any]:
        """The decision of this type on a transaction, and when it arrived."""
        async with asyncio.timeout(ANSWER_SECONDS):
            return await asyncio.shield(self._answer(transaction, kind))  # others may wait for it, too

    async def _reader(self) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._servers, auto_offset_reset="earliest", enable_auto_commit=False
        )
        await consumer.start()
        partitions = await self._producer.partitions_for(self._topics.decisions)
        consumer.assign([TopicPartition(self._topics.decisions, number) for number in partitions])
        for partition in consumer.assignment():
            await consumer.position(partition)  # fixes the start before any event is sent
        return consumer

    def _answer(self, transaction: str, kind: str) -> asyncio.Future[tuple[float, DecisionEventUnion]]:
        key = (transaction, kind)
        if key not in self._answers:
            self._answers[key] = asyncio.get_running_loop().create_future()
        return self._answers[key]

    async def _consume(self) -> None:
        async for record in self._consumer:
            arrived = time.perf_counter()
            decision = decode(DECISION_RECORD, record.value)
            assert not isinstance(decision, Undecodable)
            if isinstance(decision, PartitionTaken | LocksHandedOver):
                continue
            answer = self._answer(decision.transaction, decision.type)
            if not answer.done():
                answer.set_result((arrived, decision))
