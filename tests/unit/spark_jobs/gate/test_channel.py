"""Which decisions the channel dispatches. Its connection to Kafka is tested with a broker, in `tests/spark/gate/`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.structs import TopicPartition

from lakewarden.events import (
    Abort,
    DecisionEventUnion,
    PartitionTaken,
    Topics,
    counts,
    encode,
    partition_name,
)
from lakewarden.spark_jobs.gate.channel import MAX_TERM_SEARCH, Channel
from tests.unit.events.building import AT

TABLE = "s3://lake/t"
ABORT = Abort(
    event_id="e",
    table=TABLE,
    transaction="t-1",
    writer="w",
    at=AT,
    agent="a",
    cause_offset=0,
    reason="not-allowed",
    retriable=False,
)


@pytest.mark.parametrize("elsewhere", [0, 1])
def test_a_decision_is_dispatched_only_from_the_partition_of_its_table(elsewhere: int) -> None:
    """The agent answers a record with a wrong key in the partition to which a stranger sent it, with the names in it."""
    channel = Channel("nowhere:9092", topics=Topics("p"))
    channel._partitions = 12
    received: list[DecisionEventUnion] = []
    channel._subscribers["t-1"] = lambda decision, _: received.append(decision)

    partition = (channel._partition(TABLE) + elsewhere) % 12
    channel._dispatch(SimpleNamespace(value=encode(ABORT), key=TABLE.encode(), partition=partition, offset=7))

    assert received == [ABORT][elsewhere:]


class Decisions:
    """A consumer of one partition of `decisions`, at most 400 records at a time."""

    def __init__(self, takeovers: dict[int, str], end: int, beginning: int = 0) -> None:
        self.takeovers = takeovers
        self.end = end
        self.beginning = beginning
        self.at = 0
        self.read = 0

    def seek(self, _: TopicPartition, offset: int) -> None:
        self.at = offset

    async def position(self, _: TopicPartition) -> int:
        return self.at

    async def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self.beginning)

    async def getmany(self, where: TopicPartition, **_: object) -> dict[TopicPartition, list[Any]]:
        first, self.at = self.at, min(self.at + 400, self.end)
        self.read += self.at - first
        return {where: [self._record(offset) for offset in range(first, self.at)]}

    def _record(self, offset: int) -> Any:
        term = self.takeovers.get(offset)
        if term is None:
            return SimpleNamespace(offset=offset, value=b"{}", key=b"")
        taken = PartitionTaken(event_id="e", table=partition_name(3), at=AT, agent="a", term=term)
        return SimpleNamespace(offset=offset, value=encode(taken), key=partition_name(3).encode())


@pytest.mark.parametrize(
    ("takeovers", "beginning", "expected"),
    [
        ({}, 0, None),
        ({5: "one"}, 0, "one"),
        ({5: "one", 49_990: "two"}, 0, "two"),
        ({5: "one", 30_000: "two", 30_001: "three"}, 0, "three"),
        ({5: "one", 50_500: "later"}, 0, "one"),  # it is dispatched after the search
        ({5: "one"}, 6, None),
    ],
)
async def test_a_fresh_writer_finds_the_term_in_force(
    takeovers: dict[int, str], beginning: int, expected: str | None
) -> None:
    """Otherwise it would believe a replaced agent until the next take-over."""
    channel = Channel("nowhere:9092", topics=Topics("p"))

    channel._readers[3] = Decisions(takeovers, 51_000, beginning)

    await channel._find_term(TopicPartition("p.decisions", 3), 50_000)

    assert channel._terms.get(3) == expected


async def test_the_search_for_the_term_is_bounded() -> None:
    """A busy partition may have had its last take-over days ago."""
    channel = Channel("nowhere:9092", topics=Topics("p"))
    decisions = Decisions({5: "one"}, 10_000_000)

    channel._readers[3] = decisions

    await channel._find_term(TopicPartition("p.decisions", 3), 10_000_000)

    assert channel._terms == {}
    assert decisions.read <= MAX_TERM_SEARCH + 3 * 400


def test_a_decision_without_a_term_counts_until_the_first_take_over() -> None:
    """It is one of an agent of before the terms, which does not know that it was replaced."""
    assert counts(ABORT, None)
    assert not counts(ABORT, "term")
    assert counts(ABORT.model_copy(update={"term": "term"}), "term")
