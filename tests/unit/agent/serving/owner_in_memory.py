"""The owner of one partition with its log in memory: no Kafka, no store, no event loop."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from aiokafka.structs import ConsumerRecord
from pydantic import TypeAdapter

from lakewarden.agent.locks.keeper import Stores
from lakewarden.agent.metrics.agent_metrics import AgentMetrics
from lakewarden.agent.publisher import Outgoing
from lakewarden.agent.serving.partition.owner import PartitionOwner
from lakewarden.agent.settings import Settings
from lakewarden.events import (
    AUDIT_EVENT,
    CONFLICT_EVENT,
    DECISION_RECORD,
    LEDGER_EVENT,
    WRITER_EVENT,
    CommitGranted,
    DeadLetter,
    Undecodable,
    decode,
)
from lakewarden.handlers.table.machine import LockConfirmed, LockForbidden, LockGone
from lakewarden.handlers.table.replay import Position
from lakewarden.handlers.table.state import LockView

RECORD_BYTES = 1_000_000
CONFIGURED = Settings(
    allow=("s3://*",), lock_places=("s3://*=>usual",), agent_id="\U0001f40b" * 200, max_losses=1
)
TOPICS = CONFIGURED.topics
READERS: dict[str, TypeAdapter[Any]] = {
    TOPICS.decisions: DECISION_RECORD,
    TOPICS.conflicts: CONFLICT_EVENT,
    TOPICS.audit: AUDIT_EVENT,
    TOPICS.ledger: LEDGER_EVENT,
    TOPICS.dead_letters: TypeAdapter(DeadLetter),
}


def filled(start: str, filler: str, limit: int) -> str:
    """A text of at most `limit` bytes, as long as possible."""
    return start + filler * ((limit - len(start.encode())) // len(filler.encode()))


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

    def of(self, topic: str) -> list[ConsumerRecord]:
        """The records of a topic, as Kafka returns them."""
        found = [each for each in self.records if each.topic == topic]
        return [_consumed(topic, offset, each.key, each.value) for offset, each in enumerate(found)]


def _consumed(topic: str, offset: int, key: bytes, value: bytes) -> ConsumerRecord:
    record: Any = ConsumerRecord(topic, 0, offset, 0, 0, key, value, None, len(key), len(value), ())
    return record


class Table:
    """One table of an owner, three writers, and the clock."""

    def __init__(self, uri: str, names: list[tuple[str, str]]) -> None:
        self.uri = uri
        self.names = names
        self.now = 1_000.0
        self.log = Log()
        self.events: list[ConsumerRecord] = []
        self.accepted = 0
        self.unpublishable: dict[str, str] = {}
        self.metrics = AgentMetrics()
        self.start()

    def start(self, start_acquire: Callable[..., None] = lambda *_, **__: None) -> None:
        """A new owner replays everything. It requests locks by `start_acquire`."""
        publisher: Any = self.log
        no_tasks: Any = None
        stores = Stores(CONFIGURED, AsyncExitStack())
        self.owner = PartitionOwner(
            0,
            CONFIGURED,
            publisher,
            stores,
            no_tasks,
            unpublishable=self.unpublishable,
            metrics=self.metrics,
        )
        for name, request in (("start_acquire", start_acquire), ("start_release", lambda *_: None)):
            setattr(self.owner.locks, name, request)
        end = len(self.events)
        self.owner.publish_takeover()
        decisions, ledger = self.log.of(TOPICS.decisions), self.log.of(TOPICS.ledger)
        self.owner.load(0, end, Position(0, None), decisions, ledger)
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
        record = _consumed("writers", offset, content["table"].encode(), value)
        self.events.append(record)
        found: Any = decode(WRITER_EVENT, value, key=record.key)
        self.accepted += not isinstance(found, Undecodable)
        self.owner.consume([record], self.now)

    def lock(self, change: str) -> None:
        """The table's lock was acquired, lost or refused."""
        offset = self.owner.position - 1
        why = "\x01" * 100_000
        inputs: dict[str, LockConfirmed | LockGone | LockForbidden] = {
            "confirmed": LockConfirmed(self.now, offset, LockView("o" * 36, self.now + 29.0, 0.0)),
            "gone": LockGone(self.now, offset, why),
            "forbidden": LockForbidden(self.now, offset, why),
        }
        if self.uri in self.owner.tables:
            self.owner._tables.step(self.uri, inputs[change])

    def grant_of(self, which: int) -> str | None:
        """The id of the transaction's grant, if it has one."""
        for record in self.log.of(TOPICS.decisions):
            found = decode(DECISION_RECORD, record.value)
            if isinstance(found, CommitGranted) and found.transaction == self.names[which][0]:
                return found.grant
        return None
