"""`lakewarden ledger show` reads the ledger as a stream: the topic may be far longer than what is in force."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime

import pytest
from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from lakewarden.agent.log import Log
from lakewarden.agent.operators.ledger import ledger
from lakewarden.agent.settings import KafkaSettings
from lakewarden.events import BatchCommitted, ConflictsLost, LedgerRecord, PartitionTaken, encode
from tests.unit.agent.serving.owner_in_memory import consumed

AT = datetime(2026, 11, 22, tzinfo=UTC)
PARTITIONS = [TopicPartition("lakewarden.ledger", number) for number in range(2)]
BATCHES, WRITERS = 50, 20


class Topic:
    """In place of Kafka: one batch after another, and how many of their records are still referenced."""

    def __init__(self, batches: list[tuple[int, Sequence[LedgerRecord]]]) -> None:
        self._batches = batches
        self.alive = 0
        self.most_alive = 0

    async def partitions(self, topic: str) -> list[TopicPartition]:
        assert topic == PARTITIONS[0].topic
        return PARTITIONS

    async def batches(
        self, *_: object, **__: object
    ) -> AsyncIterator[tuple[TopicPartition, list[ConsumerRecord]]]:
        for number, entries in self._batches:
            yield PARTITIONS[number], [self._record(number, entry) for entry in entries]

    def _record(self, number: int, entry: LedgerRecord) -> ConsumerRecord:
        record = consumed(encode(entry), partition=number)
        self.alive += 1
        self.most_alive = max(self.most_alive, self.alive)
        weakref.finalize(record, self._forget)
        return record

    def _forget(self) -> None:
        self.alive -= 1


def _batch(table: str, writer: str, batch_id: int) -> BatchCommitted:
    return BatchCommitted(
        event_id="e", table=table, transaction=f"T{batch_id}", writer=writer, at=AT, batch_id=batch_id
    )


def _lost(table: str, writer: str, losses: int, term: str = "") -> ConflictsLost:
    return ConflictsLost(
        event_id="e", table=table, transaction="L", writer=writer, at=AT, losses=losses, term=term
    )


def _use(monkeypatch: pytest.MonkeyPatch, *batches: tuple[int, Sequence[LedgerRecord]]) -> Topic:
    topic = Topic(list(batches))
    for name in ("partitions", "batches"):
        monkeypatch.setattr(Log, name, staticmethod(getattr(topic, name)))
    return topic


async def test_the_records_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million records of a hundred writers are a gigabyte."""
    topic = _use(
        monkeypatch,
        *(
            (0, [_batch("s3://lake/orders", f"w{writer}", batch) for writer in range(WRITERS)])
            for batch in range(BATCHES)
        ),
    )

    lines = await ledger(KafkaSettings())

    assert [(each.writer, each.batch_id) for each in lines] == [
        (writer, BATCHES - 1) for writer in sorted(f"w{number}" for number in range(WRITERS))
    ]
    assert topic.most_alive <= 2 * WRITERS


async def test_a_line_has_the_entries_in_force_of_a_table_and_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss that a replaced agent recorded doesn't count, and a writer without a batch and losses has no line."""
    taken = PartitionTaken(event_id="e", table="lakewarden://partition/0", at=AT, agent="a", term="now")
    _use(
        monkeypatch,
        (0, [_batch("s3://lake/b", "w", 8), _lost("s3://lake/b", "w", 2), _lost("s3://lake/b", "v", 1)]),
        (1, [_batch("s3://lake/a", "w", 3)]),
        (0, [taken, _lost("s3://lake/b", "w", 5, term="before"), _lost("s3://lake/b", "v", 0, term="now")]),
        (0, [_batch("s3://lake/b", "w", 7)]),
    )

    found = [(each.table, each.writer, each.batch_id, each.losses) for each in await ledger(KafkaSettings())]

    assert found == [("s3://lake/a", "w", 3, 0), ("s3://lake/b", "w", 8, 2)]
    assert [each.table for each in await ledger(KafkaSettings(), ["s3://lake/a"])] == ["s3://lake/a"]
