"""Everything the agent publishes, in the order in which it was decided.

Effects are put into one queue without waiting, because the core decides synchronously; one task hands them to the Kafka
producer, which keeps the order of each partition (idempotent, one request a partition at a time). `flush` returns when
everything put before it is acknowledged: offsets are committed, and a partition is given up, only after that. A record that
Kafka does not take breaks the session (`PublishFailedError`): what is not in the log has not been decided.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from lakewarden.agent.errors import PublishFailedError

MAX_WAITING = 20_000
"""Records decided and not yet handed to the producer; beyond that the reading of events pauses."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One record; `partition` where it must not follow from the key."""

    topic: str
    key: bytes
    value: bytes
    partition: int | None = None
    on_offset: Callable[[int], None] | None = None


class Publisher:
    """The queue in front of the producer."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer
        self._waiting: deque[Outgoing] = deque()
        self._unacknowledged: set[asyncio.Future[Any]] = set()
        self._put = 0
        self._handed = 0
        self._wake = anyio.Event()
        self._progress = anyio.Event()
        self._failed: BaseException | None = None
        self._broken = anyio.Event()

    def put(self, record: Outgoing) -> None:
        """Queue a record; never waits."""
        self._waiting.append(record)
        self._put += 1
        self._wake.set()

    @property
    def full(self) -> bool:
        """Whether whoever feeds us should pause."""
        return len(self._waiting) + len(self._unacknowledged) > MAX_WAITING

    async def run(self) -> None:
        """Hand records to the producer until cancelled, or until Kafka does not take one."""
        while self._failed is None:
            if self._waiting:
                await self._send(self._waiting.popleft())
            else:
                self._wake = anyio.Event()
                await self._wake.wait()

    async def watch(self) -> None:
        """Wait for ever; raises `PublishFailedError` when Kafka did not take a record."""
        await self._broken.wait()
        self._check()

    async def flush(self) -> None:
        """Return when all that was put so far is acknowledged."""
        target = self._put
        while self._handed < target:
            self._check()
            await self._progress.wait()
        if self._unacknowledged:
            await asyncio.wait(list(self._unacknowledged))
        self._check()

    def _check(self) -> None:
        if self._failed is not None:
            raise PublishFailedError(f"a record could not be published: {self._failed!r}") from self._failed

    def _fail(self, error: BaseException) -> None:
        self._failed = self._failed or error
        self._broken.set()
        self._wake.set()
        self._moved()

    def _moved(self) -> None:
        self._progress.set()
        self._progress = anyio.Event()

    async def _send(self, record: Outgoing) -> None:
        try:
            future = await self._producer.send(
                record.topic, value=record.value, key=record.key, partition=record.partition
            )
        except KafkaError as error:
            self._fail(error)
            return
        self._unacknowledged.add(future)
        self._handed += 1
        self._moved()

        def acknowledged(done: asyncio.Future[Any]) -> None:
            self._unacknowledged.discard(done)
            if done.cancelled():
                self._fail(RuntimeError("the producer was closed"))
            elif (error := done.exception()) is not None:
                self._fail(error)
            elif record.on_offset is not None:
                record.on_offset(done.result().offset)

        future.add_done_callback(acknowledged)
