"""Who takes part when a lock is measured: production keepers and stores, and the audit log between them.

What is not the product's here is only what looks: a store that notes when each request began and ended, and a keeper's
`tell` that notes what it was told when. Events are published and read
as `agent/locks/table_locks.py` and `agent/serving/peer_listener.py` do.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
import anyio.abc

from lakewarden.agent import wire_events
from lakewarden.agent.kafka import BATCH_BYTES, partitions_of, producer, reader, start_client, stop_client
from lakewarden.agent.locks.keeper import KeeperEvent, LockKeeper
from lakewarden.agent.publisher import Outgoing, Publisher
from lakewarden.agent.serving.peer_listener import RENEWAL
from lakewarden.agent.settings import Settings
from lakewarden.agent.stores import ConditionalStore
from lakewarden.agent.stores.s3 import S3Options, S3Store
from lakewarden.events import AUDIT_EVENT, AuditEventUnion, Undecodable, decode, encode
from lakewarden.handlers.lease import machine as lease
from lakewarden.handlers.lease.conditional import Condition, ReadOutcome, WriteOutcome
from lakewarden.handlers.lease.lock_queue import Contender
from lakewarden.handlers.lease.placement import LockPlace
from tests.bench.words import TABLES
from tests.servers.s3 import S3Server

PATIENCE_SECONDS = 60.0
REQUEST_TIMEOUT_SECONDS = 2.0
"""The setting's default."""

SomeKeeperEvent = TypeVar("SomeKeeperEvent", bound=KeeperEvent)


@dataclass(slots=True)
class Timed:
    """A store's requests and their times: (began, ended), by `time.perf_counter`."""

    store: ConditionalStore
    reads: list[tuple[float, float]] = field(default_factory=list)
    writes: list[tuple[float, float]] = field(default_factory=list)

    async def read(self, uri: str) -> ReadOutcome:
        began = time.perf_counter()
        outcome = await self.store.read(uri)
        self.reads.append((began, time.perf_counter()))
        return outcome

    async def write(self, uri: str, body: bytes, condition: Condition) -> WriteOutcome:
        began = time.perf_counter()
        outcome = await self.store.write(uri, body, condition)
        self.writes.append((began, time.perf_counter()))
        return outcome

    @property
    def requests(self) -> int:
        """How many there were: the store sends each once."""
        return len(self.reads) + len(self.writes)


class Party:
    """One who wants a lock: a keeper, with a store client of its own, and what it was told when."""

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
        self._told: list[tuple[float, KeeperEvent]] = []
        self._more = anyio.Event()
        place = LockPlace(uri, shared=False)
        self.keeper = LockKeeper(
            place, settings, self._opened, self._note, name=Contender(name, f"{TABLES}/locked")
        )

    async def told(
        self, kind: type[SomeKeeperEvent], what: str | None = None
    ) -> tuple[float, SomeKeeperEvent]:
        """The next such, and when it was told; what was told before it is forgotten."""
        passed = []
        with anyio.move_on_after(PATIENCE_SECONDS):
            while True:
                while self._told:
                    at, told = self._told.pop(0)
                    passed.append(told)
                    if isinstance(told, kind) and what in (None, getattr(told, "what", None)):
                        return at, told
                self._more = anyio.Event()
                await self._more.wait()
        raise AssertionError(f"{self.name} was not told {kind.__name__} {what or ''}, only {passed[-5:]}")

    async def acquired(self) -> float:
        """Wait to hold it; since when."""
        return (await self.told(lease.Confirmed, "acquired"))[0]

    def hear(self, event: AuditEventUnion) -> None:
        """What somebody told of a lock."""
        if event.lock == self.uri:
            self.keeper.observe(event)

    async def _opened(self) -> Any:
        return self.store

    def _note(self, told: KeeperEvent, relied_on: bool) -> None:
        self._told.append((time.perf_counter(), told))
        self._more.set()
        if self._publish is not None:
            self._publish(wire_events.lock_event(self.name, f"{TABLES}/locked", self.uri, told))


class AuditLog:
    """One agent's way to the audit topic and back."""

    def __init__(self, settings: Settings, publisher: Publisher) -> None:
        self._topic = settings.topics.audit
        self._publisher = publisher
        self.listeners: list[Callable[[AuditEventUnion], None]] = []

    def publish(self, event: AuditEventUnion) -> None:
        """As the agent tells what became of a lock."""
        self._publisher.put(Outgoing(self._topic, event.table.encode(), encode(event)))

    async def listen(self, consumer: Any) -> None:
        """As the agent hears it."""
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
    """A producer and a consumer of its own, as an agent has them; it hears what is told from now on."""
    partitions = await partitions_of(settings, settings.topics.audit)
    sender, consumer = producer(settings), reader(settings)
    await start_client(sender, settings)
    try:
        await start_client(consumer, settings)
        consumer.assign(partitions)
        await consumer.seek_to_end(*partitions)
        for partition in partitions:
            await consumer.position(partition)  # where it starts is settled before anything is told
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
    """A client of its own, straight to the server or to a proxy in front of it; it has asked once for `uri`."""
    options = S3Options(endpoint_url=endpoint or server.endpoint, region=server.region)
    async with S3Store(options, request_timeout_seconds=REQUEST_TIMEOUT_SECONDS) as store:
        # The first request loads what the client is made of: an agent's start, where the store is probed, has that behind it.
        await store.read(uri)
        yield Timed(store)


@asynccontextmanager
async def keeping(*parties: Party) -> AsyncGenerator[None]:
    """Their keepers run."""
    async with anyio.create_task_group() as tasks:
        for party in parties:
            tasks.start_soon(party.keeper.run)
        yield
        tasks.cancel_scope.cancel()
