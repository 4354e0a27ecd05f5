"""The owner of one partition in memory: its log, and what is sent to it. It needs no Kafka, no store and no event loop."""

import json
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

import pytest
from aiokafka.structs import ConsumerRecord
from pydantic import TypeAdapter

from lakewarden.agent import clock
from lakewarden.agent.locks.table_locks import Ownership, Shared
from lakewarden.agent.publisher import Outgoing
from lakewarden.agent.serving.lasting import Lasting
from lakewarden.agent.serving.memory_budget import MemoryBudget
from lakewarden.agent.serving.partition.owner import PartitionOwner
from lakewarden.agent.settings import Settings
from lakewarden.agent.stores import Stores
from lakewarden.events import (
    AUDIT_EVENT,
    CONFLICT_EVENT,
    DECISION_RECORD,
    LEDGER_EVENT,
    WRITER_EVENT,
    CommitGranted,
    DeadLetter,
    Undecodable,
    WriterEvent,
    decode,
    encode,
)
from lakewarden.handlers.table.machine import LockConfirmed, LockFailed
from lakewarden.handlers.table.replay import Position
from lakewarden.handlers.table.state import LockView
from tests.tuned import tuned

RECORD_BYTES = 1_000_000
TABLE, OTHER = "s3://lake/orders", "s3://lake/trips"
SETTINGS = Settings(tables=("s3://*",), lock_places=("s3://*=>default",))
CONFIGURED = tuned(
    tables=("s3://*",), lock_places=("s3://*=>default",), agent_id="\U0001f40b" * 200, max_losses=1
)
TOPICS = SETTINGS.topics
READERS: dict[str, TypeAdapter[Any]] = {
    TOPICS.decisions: DECISION_RECORD,
    TOPICS.conflicts: CONFLICT_EVENT,
    TOPICS.audit: AUDIT_EVENT,
    TOPICS.ledger: LEDGER_EVENT,
    TOPICS.dead_letters: TypeAdapter(DeadLetter),
}
BEGINNING = Position(0, None)
CONSUMED = -1
"""An end of the log up to which the owner has consumed."""

E = TypeVar("E")


def filled(start: str, filler: str, limit: int) -> str:
    """A text of at most `limit` bytes, as long as possible."""
    return start + filler * ((limit - len(start.encode())) // len(filler.encode()))


def consumed(
    value: bytes,
    offset: int = 0,
    *,
    topic: str = "t",
    partition: int = 0,
    key: str | bytes = b"",
    at_ms: int = 0,
) -> ConsumerRecord:
    """A record as Kafka returns it."""
    key = key.encode() if isinstance(key, str) else key
    record: Any = ConsumerRecord(
        topic, partition, offset, at_ms, 0, key, value, None, len(key), len(value), ()
    )
    return record


class Log:
    """In place of the publisher: keeps what is published, and checks it."""

    def __init__(self) -> None:
        self.records: list[Outgoing] = []

    def put(self, record: Outgoing) -> None:
        """Each record fits into Kafka, and its own reader reads it."""
        assert len(record.key) + len(record.value) <= RECORD_BYTES, record.topic
        found = decode(READERS[record.topic], record.value)
        assert not isinstance(found, Undecodable), (record.topic, found.reason)
        self.records.append(record)

    def ledger_entries(self) -> list[ConsumerRecord]:
        """The records of the ledger without the take-overs."""
        return [each for each in self.of(TOPICS.ledger) if b'"type":"partition-taken"' not in each.value]

    def of(self, topic: str, partition: int | None = None) -> list[ConsumerRecord]:
        """The records of a topic, as Kafka returns them."""
        found = [each for each in self.records if each.topic == topic and partition in (None, each.partition)]
        return [
            consumed(each.value, offset, topic=topic, partition=each.partition or 0, key=each.key)
            for offset, each in enumerate(found)
        ]

    def published(self, kind: type[E]) -> list[E]:
        """The events of this type, of all topics."""
        found = [decode(READERS[each.topic], each.value) for each in self.records]
        return [each for each in found if isinstance(each, kind)]


def made_owner(
    log: Any,
    lasting: Lasting,
    stores: Stores,
    tasks: Any,
    number: int = 0,
    *,
    memory: MemoryBudget | None = None,
    **more: Any,
) -> PartitionOwner:
    """An owner that publishes to `log`, with the memory of one agent to itself. `more`: fields of its `Ownership`."""
    shared = Shared(lasting.settings, log, stores, tasks)
    memory = memory or MemoryBudget(lasting.settings.memory_bytes)
    return PartitionOwner(Ownership(number, shared, **more), lasting, memory)


def offline_owner(log: Log, lasting: Lasting | None = None, number: int = 0, **more: Any) -> PartitionOwner:
    """An owner that requests and releases no lock, because it has no store."""
    lasting = lasting or Lasting(SETTINGS)
    stores = Stores(lasting.settings, AsyncExitStack())
    owner = made_owner(log, lasting, stores, None, number, **more)
    for name in ("start_acquire", "start_release"):
        setattr(owner.tables.locks, name, lambda *_, **__: None)
    return owner


@dataclass
class Scene:
    """An owner, its log and its clock: the machine's (None), or the one that a test sets."""

    owner: PartitionOwner
    log: Log
    now: float | None = 1_000.0
    events: list[ConsumerRecord] = field(default_factory=list)
    """What was sent."""

    def time(self) -> float:
        return clock.monotonic() if self.now is None else self.now

    def send(
        self, kind: type[WriterEvent], transaction: str = "T", table: str = TABLE, **fields: Any
    ) -> None:
        """Publish an event of the writer `w-<transaction>`."""
        offset = self.owner.position
        values: dict[str, Any] = {
            "event_id": f"e{offset}",
            "table": table,
            "transaction": transaction,
            "writer": f"w-{transaction}",
            "at": datetime.now(UTC),
        }
        record = consumed(encode(kind(**{**values, **fields})), offset, topic="writers", key=table)
        self.events.append(record)
        self.owner.consume([record], self.time())

    def published(self, kind: type[E]) -> list[E]:
        return self.log.published(kind)

    async def check(
        self, *, after: float, asked: float = 0.0, end: int | None = CONSUMED, stalled: bool = False
    ) -> None:
        """Let `after` seconds pass, then check. The end offset (default: the owner's position) is `asked` seconds old."""
        self.now = self.time() + after
        end = self.owner.position if end == CONSUMED else end
        await self.owner.tick(self.now, self.now - asked, end, stalled=stalled)


@dataclass
class SetClock:
    """Replaces the module `time` of `agent/clock.py`: the monotonic time is what `now` returns."""

    now: Callable[[], float]

    def clock_gettime(self, _: int) -> float:
        return self.now()

    def time_ns(self) -> int:
        return time.time_ns()


class Table:
    """One table of an owner, three writers, and the clock."""

    def __init__(self, uri: str, names: list[tuple[str, str]]) -> None:
        self.uri = uri
        self.names = names
        self.now = 1_000.0
        self.log = Log()
        self.events: list[ConsumerRecord] = []
        self.accepted = 0
        self.lasting = Lasting(CONFIGURED)
        self.metrics = self.lasting.metrics
        self.start()

    def start(self, start_acquire: Callable[..., None] = lambda *_, **__: None) -> None:
        """A new owner replays everything. It requests locks by `start_acquire`."""
        self.owner = offline_owner(self.log, self.lasting)
        setattr(self.owner.tables.locks, "start_acquire", start_acquire)  # noqa: B010 - mypy refuses the assignment to a method
        end = len(self.events)
        self.owner.publish_takeover()
        self.owner.replay.read_decisions(BEGINNING, self.log.of(TOPICS.decisions))
        self.owner.replay.read_ledger(self.log.of(TOPICS.ledger))
        self.owner.load(0, end, BEGINNING)
        self.owner.consume(self.events, self.now)
        self.owner.finish_replay(end)
        assert self.owner.phase == "live"

    def send(self, kind: str, which: int, **fields: Any) -> None:
        """Publish an event as a client in any language would: the decoder alone refuses it."""
        transaction, writer = self.names[which]
        offset = len(self.events)
        content: dict[str, Any] = {
            "type": kind,
            "event_id": filled(f"e{offset}", "\x01", 512),
            "table": self.uri,
            "transaction": transaction,
            "writer": writer,
            "at": "2026-03-01T00:00:00Z",
            **fields,
        }
        content = {name: value for name, value in content.items() if value is not None}
        value = json.dumps(content, ensure_ascii=False).encode()
        record = consumed(value, offset, topic="writers", key=content["table"])
        self.events.append(record)
        found: Any = decode(WRITER_EVENT, value, key=record.key)
        self.accepted += not isinstance(found, Undecodable)
        self.owner.consume([record], self.now)

    def lock(self, change: str) -> None:
        """The table's lock was acquired, lost or refused."""
        offset = self.owner.position - 1
        why = "\x01" * 100_000
        inputs: dict[str, LockConfirmed | LockFailed] = {
            "confirmed": LockConfirmed(self.now, offset, LockView("o" * 36, self.now + 29.0, 0.0)),
            "gone": LockFailed(self.now, offset, "lost", why),
            "forbidden": LockFailed(self.now, offset, "unusable", why),
        }
        if self.uri in self.owner.tables.states:
            self.owner.tables.step(self.uri, inputs[change])

    def grant_of(self, which: int) -> str | None:
        """The id of the transaction's grant, if it has one."""
        granted = self.log.published(CommitGranted)
        return next((each.grant for each in granted if each.transaction == self.names[which][0]), None)

    def decisions(self) -> list[Any]:
        """What is in `decisions`, take-overs included."""
        return [decode(DECISION_RECORD, record.value) for record in self.log.of(TOPICS.decisions)]


NAMES = [("A", "w-A"), ("B", "w-B"), ("C", "w-C")]


@pytest.fixture
def memory_table(monkeypatch: pytest.MonkeyPatch) -> Table:
    """A table with three writers, and its clock as the agent's."""
    made = Table(TABLE, NAMES)
    monkeypatch.setattr(clock, "time", SetClock(lambda: made.now))
    return made
