"""Writers that don't use the gate, and watchers that report them (docs/decisions/0033).

Such a writer begins when it wants, and commits by its table's own check alone. It reads no decision. What a watcher reports are
the production events (`agent/watching/watcher.py`). They are late, but in order. Some are published again, by a second watcher,
which is later still.

| what happens | how often |
| --- | --- |
| a commit is reported only when it is there, as of a table whose format shows no more | three of ten |
| the writer dies before it commits | one of ten |
| the watchers are gone before it commits, for longer than a silent transaction stays open, or for ever | one of ten |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from aiokafka.structs import TopicPartition

from lakewarden.agent.watching.follower import Seen
from lakewarden.agent.watching.watcher import reports
from lakewarden.events import CommitIntent, ConflictRule, Marker, Operation, WriterEventUnion, encode
from lakewarden.handlers.hudi.watching import Alive, Completed, Ended, Opened, Touched
from lakewarden.handlers.observations import ObservedCommit
from tests.simulation.whole.scenario import AT, TOPICS
from tests.simulation.whole.table import Commit, LakeTable

if TYPE_CHECKING:
    from tests.simulation.whole.run import World

HEARTBEAT_SECONDS = 1.5
"""A watched writer is silent for long after three of these. Production has a minute."""
REPORT_SECONDS = 0.4
"""Mean delay of a report."""
SECOND_WATCHER = 0.3
"""Probability that an event is published again."""
COMPUTE_SECONDS = (0.5, 3.0, 10.0)
"""Means."""


@dataclass(slots=True)
class _Write:
    """A write without the gate, from its beginning to its commit."""

    table: LakeTable
    instant: str
    touched: tuple[Marker, ...]
    rule: ConflictRule
    base: int
    began: float
    shown: bool
    """Whether the table shows it before its commit."""
    reported_at: float = 0.0
    """When its last report reaches the log."""
    unseen_until: float = 0.0
    """The watchers are gone until then."""
    over: bool = False


class WatchedWriters:
    """One writer for each table, without the gate."""

    def __init__(self, world: World, random: Random) -> None:
        scenario = world.scenario
        self._timeline = world.timeline
        self._broker = world.broker
        self._partition_of = world.partition_of
        self._random = random
        self._pause = scenario.additions.watched
        self._until = scenario.fault_free_from
        self._places = {plan.uri: plan.writers[0][1].places for plan in scenario.tables}
        self._count = 0
        for table in world.tables.values() if self._pause else ():
            self._plan(table)

    def _plan(self, table: LakeTable) -> None:
        self._timeline.after(self._random.expovariate(1 / self._pause), partial(self._begin, table))

    def _begin(self, table: LakeTable) -> None:
        if self._timeline.now >= self._until:
            return
        random, now = self._random, self._timeline.now
        self._count += 1
        places = self._places[table.uri]
        operation: Operation = random.choice(("merge", "merge", "append", "delete"))
        chosen = random.sample(places, k=random.randint(1, min(2, len(places))))
        shown = random.random() < 0.7
        write = _Write(
            table,
            f"{self._count:04}",
            tuple(Marker(partition=p, file_group=f, operation=operation) for p, f in chosen),
            # A commit that is reported once it is there has this rule.
            random.choice(("file-group", "file-group", "deleted-file")) if shown else "deleted-file",
            table.version(),
            now,
            shown,
        )
        self._timeline.log("table", f"{table.uri}: {self._name(write)} begins, without the gate")
        if shown:
            self._report(write, Opened(write.instant, write.rule))
            for each in write.touched:
                self._report(write, Touched(write.instant, (each,)))
            self._beat(write)
        fate = random.random()
        seconds = random.expovariate(1 / random.choice(COMPUTE_SECONDS))
        if fate < 0.1:
            self._timeline.after(seconds, partial(self._die, write))
        else:
            if fate < 0.2:
                write.unseen_until = now + random.choice((6.0, 15.0, math.inf))
            self._timeline.after(seconds, partial(self._commit, write))
        self._plan(table)

    def _beat(self, write: _Write) -> None:
        if not write.over:
            self._report(write, Alive(write.instant, self._timeline.now))
            self._timeline.after(HEARTBEAT_SECONDS, partial(self._beat, write))

    def _die(self, write: _Write) -> None:
        write.over = True
        self._timeline.log("table", f"{write.table.uri}: {self._name(write)} dies")

    def _commit(self, write: _Write) -> None:
        write.over = True
        touched = frozenset(write.touched)
        if not write.table.unchanged(write.base, touched, write.rule, None):
            if write.shown:
                self._report(write, Ended(write.instant, "its files are gone"))
            return
        name = self._name(write)
        commit = Commit(name, name, 0, touched, write.rule, write.began, math.inf, watched=True)
        version = write.table.publish(commit, None, self._timeline.now)
        seen: Seen = Completed(write.instant, write.touched)
        self._report(write, seen if write.shown else ObservedCommit(write.instant, write.touched), version)

    def _name(self, write: _Write) -> str:
        return f"{'hudi' if write.shown else 'delta'}:{write.instant}"

    def _report(self, write: _Write, seen: Seen, version: int | None = None) -> None:
        """Let the watchers report it, after what they have reported of this write before."""
        seen_at = max(self._timeline.now, write.unseen_until)
        if math.isinf(seen_at) or (write.unseen_until and isinstance(seen, Alive)):
            return
        at = max(seen_at + self._random.expovariate(1 / REPORT_SECONDS), write.reported_at)
        write.reported_at = at
        for event in reports(write.table.uri, self._name(write).partition(":")[0], seen, AT):
            self._publish(at, event)
            if self._random.random() < SECOND_WATCHER:
                self._publish(at + self._random.expovariate(1 / 3.0), event)

    def _publish(self, at: float, event: WriterEventUnion) -> None:
        if isinstance(event, CommitIntent):
            event = event.model_copy(update={"heartbeat_seconds": HEARTBEAT_SECONDS})
        where = TopicPartition(TOPICS.writers, self._partition_of(event.table))
        self._timeline.plan(at, partial(self._broker.append, where, event.table.encode(), encode(event)))
