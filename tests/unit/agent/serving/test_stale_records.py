"""A rebalance while the agent asks where a topic begins: fetched records belong to the owner that the partition had then."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from lakewarden.agent.serving.lasting import Lasting
from lakewarden.agent.serving.session import KafkaSession
from lakewarden.agent.settings import Settings

pytestmark = [pytest.mark.unit]

SETTINGS = Settings(allow=("s3://lake/*",))
TOPIC = SETTINGS.topics.writers


class Owner:
    """In place of a partition's owner: keeps the offsets that it consumes."""

    def __init__(self, number: int, phase: str = "live") -> None:
        self.number, self.phase, self.position = number, phase, 5
        self.consumed: list[int] = []

    def consume(self, records: list[ConsumerRecord], read_at: float) -> None:
        """Consume, unless released."""
        del read_at
        if self.phase != "released":
            self.consumed += [each.offset for each in records]

    def finish_replay(self, position: int) -> None:
        """Ends no replay."""


def record(number: int, offset: int) -> ConsumerRecord:
    made: Any = ConsumerRecord(TOPIC, number, offset, 0, 0, b"", b"", None, 0, 0, ())
    return made


async def test_records_that_were_fetched_before_a_rebalance_do_not_reach_the_next_owner() -> None:
    """It would start with them, and skip the events before them."""
    stores: Any = None
    session: Any = KafkaSession(Lasting(SETTINGS), stores)
    first, former, following = Owner(0), Owner(1), Owner(1, "loading")
    session._owners = {0: first, 1: former}

    class Consumer:
        async def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
            """Answer after partition 1 was revoked and assigned again."""
            former.phase = "released"
            session._owners[1] = following
            return dict.fromkeys(partitions, 0)

    session._consumer = Consumer()
    fetched = {
        TopicPartition(TOPIC, 0): [record(0, 7)],  # offsets 5 and 6 are a hole
        TopicPartition(TOPIC, 1): [record(1, 5), record(1, 6)],
    }

    await session._pass_to_owners(fetched, 0.0)

    assert first.consumed == [7]
    assert (former.consumed, following.consumed) == ([], [])
