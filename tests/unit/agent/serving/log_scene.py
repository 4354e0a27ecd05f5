"""One partition of an agent in memory: Kafka, which tests cut, truncate and create again, and the agents that take it over."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord, OffsetAndMetadata

from lakewarden.agent import clock
from lakewarden.agent.locks.keeper import Stores
from lakewarden.agent.publisher import Outgoing
from lakewarden.agent.serving import takeover
from lakewarden.agent.serving.partition.owner import PartitionOwner
from lakewarden.agent.settings import Settings
from lakewarden.events import (
    DECISION_RECORD,
    Admitted,
    CommitCompleted,
    CommitGranted,
    CommitIntent,
    CommitRequested,
    DecisionEvent,
    LedgerCorrected,
    Marker,
    MarkerCreated,
    WriterEvent,
    decode,
    encode,
)
from lakewarden.handlers.table.machine import LockConfirmed
from lakewarden.handlers.table.state import LockView
from tests.unit.agent.serving.set_clock import SetClock

TABLE = "s3://lake/orders"
SETTINGS = Settings(allow=("s3://*",), lock_places=("s3://*=>usual",), agent_id="agent-1")
TOPICS = SETTINGS.topics


@dataclass
class Topic:
    """One partition of a topic."""

    name: str
    beginning: int = 0
    records: list[ConsumerRecord] = field(default_factory=list)
    compacted: int = 0
    """Records that compaction has removed."""

    @property
    def end(self) -> int:
        return self.beginning + len(self.records) + self.compacted

    def append(self, key: bytes, value: bytes) -> int:
        record: Any = ConsumerRecord(self.name, 0, self.end, 0, 0, key, value, None, len(key), len(value), ())
        self.records.append(record)
        return int(record.offset)

    def cut(self, beginning: int) -> None:
        """Retention removes what is older."""
        del self.records[: beginning - self.beginning]
        self.beginning = beginning

    def truncate(self, end: int) -> None:
        """A broker that lacked the newest records became the leader."""
        del self.records[end - self.beginning :]

    def create_again(self) -> None:
        self.beginning = 0
        self.records.clear()


class Kafka:
    """The topics of one partition and the group's checkpoint. It takes the place of publisher, consumer and reader."""

    def __init__(self) -> None:
        self.topics = {each.name: Topic(each.name) for each in TOPICS.settings(1)}
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self.moved_to: list[int] = []

    def put(self, record: Outgoing) -> None:
        offset = self.topics[record.topic].append(record.key, record.value)
        if record.on_offset is not None:
            record.on_offset(offset)

    async def flush(self) -> None:
        """All is acknowledged."""

    def partitions_for_topic(self, _: str) -> set[int]:
        return {0}

    async def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {each: self.topics[each.topic].beginning for each in partitions}

    async def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return {each: self.topics[each.topic].end for each in partitions}

    def seek(self, _: TopicPartition, offset: int) -> None:
        self.moved_to.append(offset)

    async def committed_offsets(self, *_: object) -> dict[TopicPartition, OffsetAndMetadata]:
        return self.committed

    async def read_to_end(
        self,
        _: object,
        starts: dict[TopicPartition, int | None],
        stops: dict[TopicPartition, int] | None = None,
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        return {
            each: [
                record
                for record in self.topics[each.topic].records
                if (start or 0) <= record.offset < (stops or {}).get(each, 1_000_000)
            ]
            for each, start in starts.items()
        }

    async def batches_to_end(
        self, settings: object, starts: dict[TopicPartition, int | None], *, max_records: int, complete: bool
    ) -> AsyncGenerator[tuple[TopicPartition, list[ConsumerRecord]]]:
        assert complete
        for partition, records in (await self.read_to_end(settings, starts)).items():
            for start in range(0, len(records), max_records):
                yield partition, records[start : start + max_records]


@dataclass
class Scene:
    """Writers and the agents that take the partition over, one after the other."""

    kafka: Kafka
    clock: list[float]

    def send(self, kind: Callable[..., WriterEvent | LedgerCorrected], transaction: str, **more: Any) -> None:
        event = kind(
            event_id=uuid.uuid4().hex,
            table=TABLE,
            transaction=transaction,
            at=datetime.now(UTC),
            **{"writer": f"w-{transaction}", **more},
        )
        self.kafka.topics[TOPICS.writers].append(TABLE.encode(), encode(event))

    async def take_over(self) -> PartitionOwner:
        """A new agent takes the partition over, and consumes to the end."""
        publisher: Any = self.kafka
        no_tasks: Any = None
        owner = PartitionOwner(0, SETTINGS, publisher, Stores(SETTINGS, AsyncExitStack()), no_tasks)
        for name in ("start_acquire", "start_release"):
            setattr(owner.locks, name, lambda *_, **__: None)
        consumer: Any = self.kafka
        await takeover.load([owner], SETTINGS, consumer, publisher, 1, asking=consumer)
        self.consume(owner)
        assert owner.phase == "live"
        return owner

    def consume(self, owner: PartitionOwner) -> None:
        records = [
            each for each in self.kafka.topics[TOPICS.writers].records if each.offset >= owner.position
        ]
        owner.consume(records, self.clock[0])
        owner.finish_replay(owner.position)

    def lock(self, owner: PartitionOwner) -> None:
        now = self.clock[0]
        owner._tables.step(TABLE, LockConfirmed(now, owner.position - 1, LockView("owner", now + 29.0, 0.0)))

    def commit(self, owner: PartitionOwner) -> None:
        checkpoint = owner.checkpoint()
        assert checkpoint is not None
        self.kafka.committed[TopicPartition(TOPICS.writers, 0)] = OffsetAndMetadata(
            checkpoint.offset, checkpoint.metadata(1)
        )

    def decisions(self, kind: type, after: int = 0) -> list[str]:
        """The transactions of which a decision of this kind is in the log, from an offset on."""
        return [
            found.transaction
            for each in self.kafka.topics[TOPICS.decisions].records
            if each.offset >= after
            and isinstance(found := decode(DECISION_RECORD, each.value), kind)
            and isinstance(found, DecisionEvent)
        ]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = Scene(Kafka(), [1_000.0])
    monkeypatch.setattr(takeover, "committed_offsets", made.kafka.committed_offsets)
    monkeypatch.setattr(takeover, "read_to_end", made.kafka.read_to_end)
    monkeypatch.setattr(takeover, "batches_to_end", made.kafka.batches_to_end)
    monkeypatch.setattr(clock, "time", SetClock(lambda: made.clock[0]))
    return made


def marker() -> tuple[Marker, ...]:
    return (Marker(partition="p", file_group="f", operation="merge"),)


def only_grant(scene: Scene) -> str:
    """The grant in the log, which has one."""
    [granted] = [
        each
        for record in scene.kafka.topics[TOPICS.decisions].records
        if isinstance(each := decode(DECISION_RECORD, record.value), CommitGranted)
    ]
    return granted.grant


async def with_history(scene: Scene) -> PartitionOwner:
    """T1 and T3 are open, T2 has committed beside them. The checkpoint is at T1's intent."""
    owner = await scene.take_over()
    scene.send(CommitIntent, "T1")
    scene.send(CommitIntent, "T2", batch_id=1)
    scene.send(MarkerCreated, "T2", markers=marker())
    scene.send(CommitRequested, "T2", seq=1)
    scene.consume(owner)
    scene.lock(owner)
    scene.send(CommitIntent, "T3")
    scene.send(CommitCompleted, "T2", grant=only_grant(scene), version="1")
    scene.consume(owner)
    assert scene.decisions(Admitted) == ["T1", "T2", "T3"]
    scene.commit(owner)
    return owner
