"""The memory budget that the partitions of an agent share."""

from typing import Self

import structlog

from lakewarden.agent.serving.memory_budget import MemoryBudget
from lakewarden.events import Abort, CommitIntent, Marker, MarkerCreated
from lakewarden.handlers.table.memory import used_bytes
from tests.unit.agent.serving.owner_in_memory import (
    BEGINNING,
    OTHER as TRIPS,
    TABLE as ORDERS,
    TOPICS,
    Log,
    Scene,
    offline_owner,
)

LIMIT = 100_000
PARTITION = {ORDERS: 0, TRIPS: 1}


class PeakBudget(MemoryBudget):
    """Remembers the largest sum that was left after an event."""

    peak = 0

    def __init__(self, limit: int) -> None:
        super().__init__(limit, on_eviction=self._count)
        self.evictions = 0

    def _count(self) -> None:
        self.evictions += 1

    def enforce(self) -> None:
        super().enforce()
        self.peak = max(self.peak, self.used)


class Agent:
    """The owners of two partitions with one budget, and their log."""

    def __init__(self, limit: int = LIMIT, log: Self | None = None) -> None:
        self.memory = PeakBudget(limit)
        self.log = Log()
        self.log.records += [] if log is None else log.log.records
        already = len(self.aborts())
        self.scenes: list[Scene] = [
            Scene(
                offline_owner(self.log, number=number, memory=self.memory, partitions=len(PARTITION)),
                self.log,
                now=0.0,
                events=[] if log is None else log.scenes[number].events,
            )
            for number in (0, 1)
        ]
        self.owners = [each.owner for each in self.scenes]
        for number, scene in enumerate(self.scenes):
            scene.owner.replay.read_decisions(BEGINNING, self.log.of(TOPICS.decisions, number))
            scene.owner.load(0, len(scene.events), BEGINNING)
        for scene in reversed(self.scenes):  # not in the order in which it was live
            scene.owner.consume(scene.events, 0.0)
            scene.owner.finish_replay(len(scene.events))
        self.decided = self.aborts()[already:]

    def send(self, table: str, transaction: str, markers: int = 0) -> None:
        """Publish an intent, or an event with so many markers."""
        scene = self.scenes[PARTITION[table]]
        if not markers:
            scene.send(CommitIntent, transaction, table)
            return
        start = len(scene.events) * 10_000
        places = tuple(
            Marker(partition=transaction, file_group=str(start + number), operation="merge")
            for number in range(markers)
        )
        scene.send(MarkerCreated, transaction, table, markers=places)

    def aborts(self) -> list[str]:
        """The aborted transactions, in the order of the decisions."""
        return [each.transaction for each in self.log.published(Abort)]

    def open(self) -> set[str]:
        return {
            each.id
            for owner in self.owners
            for state in owner.tables.states.values()
            for each in state.open()
        }

    def used(self) -> int:
        """The bytes of all tables, counted again."""
        return sum(used_bytes(state) for owner in self.owners for state in owner.tables.states.values())


def _busy() -> Agent:
    """Two tables in two partitions; A is the largest transaction. The budget has room for 500 markers."""
    agent = Agent()
    for table, transaction, markers in ((ORDERS, "A", 200), (ORDERS, "B", 100), (TRIPS, "C", 150)):
        agent.send(table, transaction)
        agent.send(table, transaction, markers)
    return agent


def test_at_the_budget_the_largest_transaction_of_all_partitions_is_aborted() -> None:
    """The one whose event came last is small, and not even in the same partition."""
    agent = _busy()
    assert agent.aborts() == []
    agent.send(TRIPS, "D")

    with structlog.testing.capture_logs() as logs:
        agent.send(TRIPS, "D", 140)

    assert agent.aborts() == ["A"]
    assert agent.open() == {"B", "C", "D"}
    assert agent.memory.used == agent.used() <= LIMIT
    assert agent.memory.evictions == 1
    assert [(each["event"], each["transaction"]) for each in logs if "memory" in each["event"]] == [
        ("memory.budget-reached", "A")
    ]


def test_a_replay_of_the_log_stays_within_the_budget_and_decides_nothing_anew() -> None:
    """The partitions are replayed one after the other, so transactions meet in memory that were never open together."""
    agent = _busy()
    for number in range(20):
        agent.send(TRIPS, f"T{number}")
        agent.send(TRIPS, f"T{number}", 220)
    assert len(agent.aborts()) > 15
    before = agent.open()

    replayed = Agent(log=agent)

    assert replayed.decided == []
    assert replayed.open() == before
    assert replayed.memory.peak <= LIMIT
    assert replayed.memory.used == replayed.used()


def test_a_replay_that_exceeds_a_smaller_budget_aborts_at_its_end() -> None:
    """Two agents kept to their budgets, and one of them takes over the partitions of the other."""
    agent = _busy()

    replayed = Agent(log=agent, limit=60_000)

    assert replayed.memory.peak <= 60_000
    assert set(replayed.decided) == {"A", "B"}
    assert replayed.open() == {"C"}

    again = Agent(log=replayed, limit=60_000)

    assert again.decided == []
    assert again.open() == {"C"}


def test_stopped_tables_and_released_partitions_need_no_memory() -> None:
    """Otherwise they would cost other tables their transactions."""
    agent = _busy()

    agent.owners[0].tables.stop(ORDERS, RuntimeError("a bug"))

    assert agent.memory.used == used_bytes(agent.owners[1].tables.states[TRIPS])

    agent.owners[1].stop_deciding()

    assert agent.memory.used == 0


def test_a_budget_below_one_transaction_aborts_it_and_the_agent_goes_on() -> None:
    """A misconfiguration must not end the process either."""
    agent = Agent(limit=1_000)

    agent.send(ORDERS, "A")
    agent.send(ORDERS, "B")

    assert agent.aborts() == ["A", "B"]
    assert agent.memory.evictions == 2
    assert agent.memory.used == 0
