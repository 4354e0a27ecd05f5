"""An upgrade that is rolled back, and repeated later.

1. An operator stops the agents. A newer agent takes a partition over and publishes a decision that today's version doesn't know.
2. The operator stops it, and starts the older agents. They must refuse that partition: without the decision, they would rebuild
   another state.
3. The operator upgrades all agents. The newer version knows the decision, which changes no state.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from aiokafka.structs import ConsumerRecord, TopicPartition

from lakewarden.events import PartitionTaken, encode, partition_name
from tests.simulation.timeline import Timeline
from tests.simulation.whole.broker import Broker, Record
from tests.simulation.whole.scenario import AT, TOPICS

NEWER = "newer"
"""The agent, and its term."""
UNKNOWN = "of-a-newer-version"
"""Type of its decision."""

AnyRecord = TypeVar("AnyRecord", Record, ConsumerRecord)


class RolledBackUpgrade:
    """The newer agent, and the operator."""

    def __init__(self, timeline: Timeline, broker: Broker, restart_agents: Callable[[], None]) -> None:
        """`restart_agents`: kills all agents, and starts them again some seconds later."""
        self._timeline = timeline
        self._broker = broker
        self._restart_agents = restart_agents
        self.upgraded = False
        """Whether the agents that start are of the newer version."""

    def begin(self, partition: int, tried: float, upgraded: float) -> None:
        """Plan both."""
        self._timeline.plan(tried, partial(self._try, partition))
        self._timeline.plan(upgraded, self._upgrade)

    def _try(self, partition: int) -> None:
        self._timeline.log("log", "a newer agent is tried, and rolled back")
        self._restart_agents()
        table = partition_name(partition)
        taken = PartitionTaken(event_id=NEWER, table=table, at=AT, agent=NEWER, term=NEWER)
        unknown = {**json.loads(encode(taken)), "event_id": UNKNOWN, "type": UNKNOWN}
        where = TopicPartition(TOPICS.decisions, partition)
        self._broker.append(where, table.encode(), encode(taken))
        self._broker.append(where, table.encode(), json.dumps(unknown).encode())

    def _upgrade(self) -> None:
        self._timeline.log("log", "all agents are upgraded")
        self.upgraded = True
        self._restart_agents()


def is_unknown(value: bytes | None) -> bool:
    """Whether a record is the decision that today's version doesn't know."""
    return f'"{UNKNOWN}"'.encode() in (value or b"")


def without_unknown(records: Iterable[AnyRecord]) -> list[AnyRecord]:
    """The decisions as the newer version reads them."""
    return [each for each in records if not is_unknown(each.value)]
