"""An upgrade that is rolled back, and repeated later.

1. An operator stops the agents. A newer agent takes a partition over and publishes a decision that today's version doesn't know.
2. The operator stops it, and starts the older agents. They must refuse that partition: without the decision, they would rebuild
   another state.
3. The operator upgrades all agents. The newer version knows the decision, which changes no state.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from aiokafka.structs import ConsumerRecord, TopicPartition

from lakewarden.events import PartitionTaken, encode, partition_name
from tests.simulation.whole.broker import Record
from tests.simulation.whole.scenario import AT, TOPICS

if TYPE_CHECKING:
    from tests.simulation.whole.run import World

NEWER = "newer"
"""The agent, and its term."""
UNKNOWN = "of-a-newer-version"
"""Type of its decision."""

AnyRecord = TypeVar("AnyRecord", Record, ConsumerRecord)


class RolledBackUpgrade:
    """The newer agent, and the operator."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._timeline = world.timeline
        self.upgraded = False
        """Whether the agents that start are of the newer version."""

    def begin(self, partition: int, tried: float, upgraded: float) -> None:
        """Plan both."""
        self._timeline.plan(tried, partial(self._try, partition))
        self._timeline.plan(upgraded, self._upgrade)

    def _try(self, partition: int) -> None:
        self._timeline.log("log", "a newer agent is tried, and rolled back")
        self._world.restart_agents()
        table = partition_name(partition)
        taken = PartitionTaken(event_id=NEWER, table=table, at=AT, agent=NEWER, term=NEWER)
        unknown = {**json.loads(encode(taken)), "event_id": UNKNOWN, "type": UNKNOWN}
        where = TopicPartition(TOPICS.decisions, partition)
        self._world.broker.append(where, table.encode(), encode(taken))
        self._world.broker.append(where, table.encode(), json.dumps(unknown).encode())

    def _upgrade(self) -> None:
        self._timeline.log("log", "all agents are upgraded")
        self.upgraded = True
        self._world.restart_agents()


def is_unknown(value: bytes | None) -> bool:
    """Whether a record is the decision that today's version doesn't know."""
    return f'"{UNKNOWN}"'.encode() in (value or b"")


def without_unknown(records: Iterable[AnyRecord]) -> list[AnyRecord]:
    """The decisions as the newer version reads them."""
    return [each for each in records if not is_unknown(each.value)]
