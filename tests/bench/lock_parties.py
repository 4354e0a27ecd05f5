"""The participants of the lock benchmarks: production keepers and stores, connected by the audit topic.

Only the observers are not the product's: a store that records when a write began, and a callback that records
each keeper event with its time. Events are published and consumed as in `agent/locks/table_locks.py` and
`agent/serving/peer_listener.py`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio
import anyio.abc

from lakewarden.agent import wire_events
from lakewarden.agent.kafka import BATCH_BYTES, producer, reader, start_client
from lakewarden.agent.locks.keeper import KeeperEvent, LockKeeper
from lakewarden.agent.log import Log
from lakewarden.agent.publisher import Outgoing, Publisher
from lakewarden.agent.serving.peer_listener import RENEWAL
from lakewarden.agent.settings import Settings
from lakewarden.agent.stores import ConditionalStore
from lakewarden.agent.stores.s3 import S3Options, S3Store
from lakewarden.events import AUDIT_EVENT, AuditEventUnion, Undecodable, decode, encode
from lakewarden.events.access import stop_client
from lakewarden.handlers.lease import machine as lease
from lakewarden.handlers.lease.conditional import Condition, ReadOutcome, WriteOutcome
from lakewarden.handlers.lease.lock_queue import Contender
from lakewarden.handlers.lease.placement import LockLocation
from tests.bench.writer_events import TABLES
from tests.servers.s3 import S3Server

PATIENCE_SECONDS = 60.0
REQUEST_TIMEOUT_SECONDS = 2.0
"""The setting's default."""

SomeKeeperEvent = TypeVar("SomeKeeperEvent", bound=KeeperEvent)


@dataclass(slots=True)
class Timed:
    """Records when the last write to a store began, by `time.perf_counter`."""

    store: ConditionalStore
    wrote_at: float = 0.0

    async def read(self, uri: str) -> ReadOutcome:
        return await self.store.read(uri)

    async def write(self, uri: str, body: bytes, condition: Condition) -> WriteOutcome:
        self.wrote_at = time.perf_counter()
        return await self.store.write(uri, body, condition)


class Party:
    """A contender: a keeper with its own store client, and the keeper's events with their times."""

    def __init__(
        self,
        name: str,
        uri: str,
        store: Timed,
        settings: lease.LeaseSettings,
        publish: Callable[[AuditEventUnion], None] | None = None,
    ) -> None:
        self.name, self.uri, self.store = name, uri, store
        self._publish = publish
        self._events: list[tuple[float, KeeperEvent]] = []
        self._more = anyio.Event()
        place = LockLocation(uri, shared=False)
        self.keeper = LockKeeper(
            place, settings, self._opened, self._record, name=Contender(name, f"{TABLES}/locked")
        )

    async def wait_for(
        self, kind: type[SomeKeeperEvent], what: str | None = None
    ) -> tuple[float, SomeKeeperEvent]:
        """The next keeper event of this kind, with its time. Events before it are dropped."""
        passed = []
        with anyio.move_on_after(PATIENCE_SECONDS):
            while True:
                while self._events:
                    at, event = self._events.pop(0)
                    passed.append(event)
                    if isinstance(event, kind) and what in (None, getattr(event, "what", None)):
                        return at, event
                self._more = anyio.Event()
                await self._more.wait()
        raise AssertionError(f"{self.name}: no {kind.__name__} {what or ''}, only {passed[-5:]}")

    async def acquired(self) -> float:
        """Wait until it holds the lock. Returns since when."""
        return (await self.wait_for(lease.Confirmed, "acquired"))[0]

    async def release(self) -> None:
        """Release the lock, and wait until it is released."""
        self.keeper.release()
        await self.keeper.wait_released()

    def observe(self, event: AuditEventUnion) -> None:
        """Pass an audit event to the keeper."""
        if event.lock == self.uri:
            self.keeper.hint(event)

    async def _opened(self) -> Any:
        return self.store

    def _record(self, event: KeeperEvent, relied_on: bool) -> None:
        self._events.append((time.perf_counter(), event))
        self._more.set()
        if self._publish is not None:
            self._publish(wire_events.lock_event(self.name, f"{TABLES}/locked", self.uri, event))


class AuditLog:
    """One agent's producer and consumer of the audit topic."""

    def __init__(self, settings: Settings, publisher: Publisher) -> None:
        self._topic = settings.topics.audit
        self._publisher = publisher
        self.listeners: list[Callable[[AuditEventUnion], None]] = []

    def publish(self, event: AuditEventUnion) -> None:
        """Publish a step of a lock, as the agent does."""
        self._publisher.put(Outgoing(self._topic, event.table.encode(), encode(event)))

    async def listen(self, consumer: Any) -> None:
        """Consume the topic, as the agent does."""
        while True:
            for records in (await consumer.getmany(timeout_ms=1_000)).values():
                for record in records:
                    if RENEWAL in record.value:
                        continue
                    event = decode(AUDIT_EVENT, record.value)
                    assert not isinstance(event, Undecodable)
                    for listener in self.listeners:
                        listener(event)


@asynccontextmanager
async def audit_log(settings: Settings) -> AsyncGenerator[AuditLog]:
    """A new producer and consumer, as an agent has them. The consumer starts at the end of the topic."""
    async with Log(settings) as reading:
        partitions = await reading.partitions(settings.topics.audit)
    sender, consumer = producer(settings), reader(settings)
    await start_client(sender, settings)
    try:
        await start_client(consumer, settings)
        consumer.assign(partitions)
        await consumer.seek_to_end(*partitions)
        for partition in partitions:
            await consumer.position(partition)  # fixes the start before any event is published
        publisher = Publisher(sender, batch_bytes=BATCH_BYTES)
        log = AuditLog(settings, publisher)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(publisher.run)
            tasks.start_soon(log.listen, consumer)
            yield log
            tasks.cancel_scope.cancel()
    finally:
        await stop_client(consumer)
        await stop_client(sender)


@asynccontextmanager
async def s3_store(server: S3Server, uri: str, endpoint: str | None = None) -> AsyncGenerator[Timed]:
    """A new client, connected to the server or to a proxy before it. It has read `uri` once."""
    options = S3Options(endpoint_url=endpoint or server.endpoint)
    async with S3Store(options, request_timeout_seconds=REQUEST_TIMEOUT_SECONDS) as store:
        # The first request loads the client's modules. An agent has done that at its start, when it probed the store.
        await store.read(uri)
        yield Timed(store)


@asynccontextmanager
async def keeping(*parties: Party) -> AsyncGenerator[None]:
    """Run the keepers of these parties."""
    async with anyio.create_task_group() as tasks:
        for party in parties:
            tasks.start_soon(party.keeper.run)
        yield
        tasks.cancel_scope.cancel()
