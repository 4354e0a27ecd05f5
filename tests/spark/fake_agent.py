"""An agent that answers as a test's script says, over the real broker.

It creates the topics, reads `writers` from their beginning, and answers each event with the decisions that the script returns
for it. It contains nothing of the product's agent: it only uses the protocol.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import NewTopic
from aiokafka.structs import TopicPartition

from lakewarden.events import (
    WRITER_EVENT,
    Abort,
    AbortReason,
    Admitted,
    AlreadyCommitted,
    CommitGranted,
    CommitIntent,
    CommitRequested,
    ConflictEntry,
    DecisionEventUnion,
    DecisionRecord,
    GrantRenewed,
    LocksHandedOver,
    Marker,
    PartitionTaken,
    Topics,
    Undecodable,
    WriterEventUnion,
    decode,
    encode,
    partition_name,
)
from lakewarden.spark_jobs.gate.kafka import LoopThread
from tests.kafka_fixture import administering

Script = Callable[[WriterEventUnion, int], Iterable[DecisionRecord]]
"""Returns the decisions that answer an event, which was read at the given offset."""

PARTITIONS = 3

LEASE_SECONDS = 600.0
"""Of a grant, unless a test is about leases: longer than any stall of a busy machine."""

PATIENCE_SECONDS = 120.0
"""For a step of another thread or process. It only ends a hang: a busy machine is ten times slower."""


@dataclass
class FakeAgent:
    """Reads the writers' events, answers by `script`, and keeps all events and decisions in the log's order."""

    bootstrap_servers: str
    topics: Topics
    script: Script
    partitions: int = PARTITIONS
    events: list[WriterEventUnion] = field(default_factory=list)
    decisions: list[DecisionEventUnion] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def wait_for(self, kind: str, count: int = 1) -> list[Any]:
        """Wait until `count` events of one type have arrived; return the events of this type."""
        return self.wait_for_events(lambda event: event.type == kind, f"{count} x {kind}", count)

    def wait_for_events(
        self, matches: Callable[[WriterEventUnion], bool], what: str, count: int = 1
    ) -> list[Any]:
        """Wait until `count` events match; return all that do. `what` describes them if they don't arrive."""

        def found() -> list[Any]:
            return [event for event in self.events if matches(event)]

        with self._changed:
            assert self._changed.wait_for(lambda: len(found()) >= count, PATIENCE_SECONDS), (
                f"waited for {what}; arrived: {[event.type for event in self.events]}"
            )
            return found()

    def types(self, *, heartbeats: bool = False) -> list[str]:
        """Return the types of the events that arrived, in order."""
        with self._changed:
            return [event.type for event in self.events if heartbeats or event.type != "writer-heartbeat"]

    def publish(self, decision: DecisionEventUnion) -> int:
        """Publish a decision that answers no event; return its offset."""
        return self._thread.call(
            lambda: self._publish(decision), timeout=PATIENCE_SECONDS, doing="publishing a decision"
        )

    def __post_init__(self) -> None:
        self._thread = LoopThread(self.bootstrap_servers, name="fake-agent")

    def start(self) -> None:
        self._thread.call(self._start, timeout=PATIENCE_SECONDS, doing="starting the fake agent")

    def stop(self) -> None:
        self._thread.call(self._stop, timeout=PATIENCE_SECONDS, doing="stopping the fake agent")
        self._thread.close()

    async def _start(self) -> None:
        names = (self.topics.writers, self.topics.decisions)
        async with administering(self.bootstrap_servers) as admin:
            while admin._client.cluster.controller is None:  # a broker that has just started
                await admin._client.force_metadata_update()
            # An answer doesn't mean that the broker has them.
            while not {*names} <= {*await admin.list_topics()}:
                await admin.create_topics([NewTopic(name, self.partitions, 1) for name in names])
        self._producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap_servers)
        await self._producer.start()
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap_servers, enable_auto_commit=False, auto_offset_reset="earliest"
        )
        await self._consumer.start()
        self._consumer.assign([TopicPartition(self.topics.writers, p) for p in range(self.partitions)])
        self._thread.start_soon(self._read)

    async def _stop(self) -> None:
        self._thread._task_group.cancel_scope.cancel()
        await self._consumer.stop()
        await self._producer.stop()

    async def _read(self) -> None:
        while True:
            record = await self._consumer.getone()
            event = decode(WRITER_EVENT, record.value, key=record.key)
            assert not isinstance(event, Undecodable), event
            with self._changed:
                self.events.append(event)
                self._changed.notify_all()
            for decision in self.script(event, record.offset):
                await self._publish(decision)

    async def _publish(self, decision: DecisionRecord) -> int:
        partition = int(decision.table.rpartition("/")[2]) if isinstance(decision, PartitionTaken) else None
        record = await self._producer.send_and_wait(
            self.topics.decisions, encode(decision), decision.table.encode(), partition=partition
        )
        if not isinstance(decision, PartitionTaken | LocksHandedOver):
            with self._changed:
                self.decisions.append(decision)
        return int(record.offset)


@contextmanager
def fake_agent(
    bootstrap_servers: str, topic_prefix: str, script: Script, partitions: int = PARTITIONS
) -> Iterator[FakeAgent]:
    agent = FakeAgent(bootstrap_servers, Topics(topic_prefix), script, partitions)
    agent.start()
    try:
        yield agent
    finally:
        agent.stop()


def _common(event: WriterEventUnion, offset: int = 0) -> dict[str, Any]:
    return {
        "event_id": uuid.uuid4().hex,
        "table": event.table,
        "transaction": event.transaction,
        "writer": event.writer,
        "at": datetime.now(UTC),
        "agent": "fake",
        "cause": event.event_id,
        "cause_offset": offset,
    }


def partition_taken(term: str, partition: int) -> PartitionTaken:
    return PartitionTaken(
        event_id=uuid.uuid4().hex,
        table=partition_name(partition),
        at=datetime.now(UTC),
        agent="fake-agent",
        term=term,
    )


def admitted(event: WriterEventUnion) -> Admitted:
    return Admitted(**_common(event))


def granted(
    event: CommitRequested, *, lease_seconds: float = LEASE_SECONDS, seq: int | None = None
) -> CommitGranted:
    return CommitGranted(
        **_common(event),
        grant=f"g-{event.transaction[:6]}",
        lease_seconds=lease_seconds,
        seq=event.seq if seq is None else seq,
    )


def renewed(event: Any, *, lease_seconds: float = LEASE_SECONDS) -> GrantRenewed:
    return GrantRenewed(
        **_common(event), grant=f"g-{event.transaction[:6]}", lease_seconds=lease_seconds, seq=event.seq
    )


def already_committed(event: WriterEventUnion) -> AlreadyCommitted:
    return AlreadyCommitted(**_common(event), committed_transaction="earlier", version="7")


def aborted(
    event: WriterEventUnion,
    *markers: Marker,
    reason: AbortReason = "conflict",
    retriable: bool = True,
    other: str = "arrivals:q2",
) -> Abort:
    return Abort(
        **_common(event),
        reason=reason,
        retriable=retriable,
        conflicts=tuple(
            ConflictEntry(
                partition=marker.partition,
                file_group=marker.file_group,
                operation=marker.operation,
                other_operation="merge",
                other_transaction="other-txn",
                other_writer=other,
                kind="marker",
            )
            for marker in markers
        ),
    )


def grant_everything(event: WriterEventUnion, _offset: int = 0) -> list[DecisionEventUnion]:
    """A script that admits and grants every transaction."""
    match event:
        case CommitIntent():
            return [admitted(event)]
        case CommitRequested():
            return [granted(event)]
        case _:
            return []


def in_edition(edition: str | None, decisions: list[DecisionEventUnion]) -> list[DecisionEventUnion]:
    """Return the decisions, an admission with the writer's edition."""
    return [
        each.model_copy(update={"edition": edition}) if isinstance(each, Admitted) else each
        for each in decisions
    ]


def answer_nothing(_event: WriterEventUnion, _offset: int = 0) -> list[DecisionEventUnion]:
    """A script that never answers."""
    return []


class At:
    """A script that runs `action` once, when the first event of a type arrives, and admits and grants everything else.

    If the action returns decisions, they are the answer to that event.
    """

    def __init__(
        self, kind: str, action: Callable[[WriterEventUnion], list[DecisionEventUnion] | None]
    ) -> None:
        self.kind, self.action, self.done = kind, action, False

    def __call__(self, event: WriterEventUnion, offset: int) -> list[DecisionEventUnion]:
        if event.type == self.kind and not self.done:
            self.done = True
            answer = self.action(event)
            if answer is not None:
                return answer
        return grant_everything(event, offset)
