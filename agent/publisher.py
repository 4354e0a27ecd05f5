"""Publishes the agent's records to Kafka in the order of the decisions.

- `put` queues a record without waiting, because the core decides synchronously. One task passes the queue to the producer, which
  keeps the order of each partition (idempotent, one request per partition at a time).
- `flush` returns when Kafka has acknowledged every record that was queued before the call. Offsets are committed, and partitions
  released, only after a flush.
- A record that Kafka does not accept ends the session (`PublishFailedError`): a decision that is not in the log does not count.
- The agent measures each record before it queues it. If a broker accepts less (`max.message.bytes`), `on_too_large` names the
  record to its owner, which stops the table in the next session. This session ends: the producer has given the record a
  sequence number, and the broker would refuse what follows it.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from lakewarden.agent.clock import monotonic
from lakewarden.agent.errors import PublishFailedError

MAX_WAITING = 20_000
"""Records queued or not yet acknowledged; the agent pauses the consumption of events above this."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One record. `partition` overrides the partitioner; `on_offset` gets the record's offset when it is acknowledged."""

    topic: str
    key: bytes
    value: bytes
    partition: int | None = None
    on_offset: Callable[[int], None] | None = None
    on_too_large: Callable[[Exception], None] | None = None
    """Called if Kafka refuses this record for its size."""


class Publisher:
    """The queue in front of the producer, whose batches have at most `batch_bytes`."""

    def __init__(
        self,
        producer: AIOKafkaProducer,
        *,
        batch_bytes: int,
        on_queued: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`on_queued` is called with the topic of each record."""
        self._producer = producer
        self._on_queued = on_queued
        self._batch_bytes = batch_bytes
        self._waiting: deque[tuple[Outgoing, float]] = deque()
        self._unacknowledged: dict[asyncio.Future[Any], float] = {}
        """In the order of the queue, each with the time at which it was queued. So have those that wait."""
        self._queued = 0
        self._sent = 0
        self._wake = anyio.Event()
        self._progress = anyio.Event()
        self._failed: BaseException | None = None
        self._broken = anyio.Event()

    def put(self, record: Outgoing) -> None:
        """Queue a record without waiting."""
        self._waiting.append((record, monotonic()))
        self._queued += 1
        self._on_queued(record.topic)
        self._wake.set()

    @property
    def full(self) -> bool:
        """Whether the caller should pause until more records are acknowledged."""
        return self.unacknowledged > MAX_WAITING

    @property
    def unacknowledged(self) -> int:
        return len(self._waiting) + len(self._unacknowledged)

    @property
    def oldest_queued_at(self) -> float | None:
        """When the oldest of these was queued, in monotonic seconds. None: there is none."""
        if self._unacknowledged:
            return next(iter(self._unacknowledged.values()))
        return self._waiting[0][1] if self._waiting else None

    async def run(self) -> None:
        """Pass records to the producer until cancelled, or until Kafka rejects one."""
        while self._failed is None:
            if self._waiting:
                await self._send(*self._waiting[0])
            else:
                self._wake = anyio.Event()
                await self._wake.wait()

    async def watch(self) -> None:
        """Wait until cancelled; raises `PublishFailedError` when Kafka has rejected a record."""
        await self._broken.wait()
        self._raise_if_failed()

    async def flush(self) -> None:
        """Return when Kafka has acknowledged every record that was queued before this call."""
        target = self._queued
        while self._sent < target:
            self._raise_if_failed()
            await self._progress.wait()
        if self._unacknowledged:
            await asyncio.wait(list(self._unacknowledged))
        self._raise_if_failed()

    def _raise_if_failed(self) -> None:
        if self._failed is not None:
            raise PublishFailedError(f"a record could not be published: {self._failed!r}") from self._failed

    def _fail(self, error: BaseException) -> None:
        self._failed = self._failed or error
        self._broken.set()
        self._wake.set()
        self._notify_progress()

    def _notify_progress(self) -> None:
        self._progress.set()
        self._progress = anyio.Event()

    async def _send(self, record: Outgoing, queued_at: float) -> None:
        try:
            future = await self._producer.send(
                record.topic, value=record.value, key=record.key, partition=record.partition
            )
        except KafkaError as error:
            self._report_too_large(record, error)
            self._fail(error)
            return
        self._waiting.popleft()
        self._unacknowledged[future] = queued_at
        self._sent += 1
        self._notify_progress()

        def acknowledged(done: asyncio.Future[Any]) -> None:
            self._unacknowledged.pop(done, None)
            if done.cancelled():
                self._fail(RuntimeError("the producer was closed"))
            elif (error := done.exception()) is not None:
                self._report_too_large(record, error)
                self._fail(error)
            elif record.on_offset is not None:
                record.on_offset(done.result().offset)

        future.add_done_callback(acknowledged)

    def _report_too_large(self, record: Outgoing, error: BaseException) -> None:
        alone = len(record.key) + len(record.value) >= self._batch_bytes
        if alone and record.on_too_large is not None and isinstance(error, MessageSizeTooLargeError):
            record.on_too_large(error)
