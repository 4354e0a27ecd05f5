"""What there is: a table with its log and its lock, the writers, and the agents that own its partition."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO
from typing import cast

from lakewarden import events
from lakewarden.events import DecisionRecord, WriterEventUnion
from lakewarden.handlers.table.ledger import Ledger
from lakewarden.handlers.table.replay import CheckpointPositions
from lakewarden.handlers.table.state import LockView, TableSettings, TableState
from lakewarden.handlers.table.transactions import Closed, Phase, Transaction
from lakewarden.spark_jobs.gate.progress import GateProgress, GrantLease
from tests.unit.handlers.table.world import m

SCALED = TableSettings(grant_lease=3.3, heartbeat_misses=2, max_losses=2, max_priority=9)
LOCK_SECONDS = 4.5
RENEWED_BELOW = 2.0
"""Seconds that a lock lease has left when it may be renewed."""
HEARTBEAT = 1.2
PASSES = "a second passes"
MARGIN = 0.1
"""By which a writer's lease ends early."""
SERVES = "reports its commit"
"""The step with which a writer has got what it wants."""
EVER = 1_000_000
"""Batches of a writer that never ends."""


@dataclass(frozen=True, slots=True)
class Job:
    """What one writer commits, batch after batch."""

    touches: tuple[str, ...] = ("p/f",)
    """Places, with `:operation` if it isn't a merge."""
    rule: events.ConflictRule = "file-group"
    admission: events.Admission = "optimistic"
    priority: int = 0
    batches: int = 1
    attempts: int = 2
    """Transactions for each batch."""
    retries: events.Admission = "queued"
    observed: bool = False
    recorded: bool = True
    """The table records which batches it has."""

    @property
    def markers(self) -> tuple[events.Marker, ...]:
        parts = [each.partition(":") for each in self.touches]
        return tuple(
            m(place, cast("events.Operation", operation or "merge")) for place, _, operation in parts
        )


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit in the table."""

    writer: int
    transaction: str
    batch: int
    order: int
    """Its place among the admissions."""
    beside: int = -1
    """An observed one: the writer whose grant ran."""


@dataclass(slots=True)
class Writer:
    """One writer's process."""

    batch: int = 0
    attempt: int = 0
    transaction: str = ""
    progress: GateProgress | None = None
    """Of the open transaction."""
    decisions_read: int = 0
    """Decisions that it has read."""
    term: str | None = None
    """The last take-over among them."""
    touched: bool = False
    base: int = 0
    """Commits that it has read."""
    order: int = -1
    landed: bool = False
    observed: bool = False
    """It has a transaction, which a watcher reports."""
    dead: bool = False
    last: WriterEventUnion | None = None

    def leave(self) -> None:
        """The process has no transaction any more."""
        self.progress, self.touched, self.landed, self.observed, self.dead = None, False, False, False, False


class Watched(TableState):
    """Counts how often a queued transaction is looked at and stays blocked. No part of the form."""

    looks = 0

    def wait_for(self, waiter: Transaction, other: str) -> None:
        self.looks += waiter.phase is Phase.QUEUED
        super().wait_for(waiter, other)


@dataclass(slots=True)
class Owner:
    """One agent's ownership of the table's partition."""

    term: str
    state: Watched
    read: int = 0
    """Events that it has read."""
    since: float = 0.0
    """Since when it has read the whole log."""
    unpublished: list[events.DecisionEventUnion] = field(default_factory=list)
    live: bool = True
    """It has replayed the log."""
    behind: bool = False
    """The log has another term after its own."""
    positions: CheckpointPositions = field(default_factory=CheckpointPositions)


@dataclass(slots=True)
class World:
    """The table, its log and its writers."""

    owners: list[Owner]
    writers: list[Writer]
    faults: int
    now: float = 0.0
    events: list[WriterEventUnion] = field(default_factory=list)
    decisions: list[DecisionRecord] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    commits: list[Commit] = field(default_factory=list)
    admissions: int = 0
    lock: tuple[str, float] | None = None
    """The term of the lock's holder, and the end of its lease."""

    def in_table(self, number: int) -> bool:
        """Whether the table has the batch of this writer. Its sink can look that up."""
        batch = self.writers[number].batch
        return any(each.writer == number and each.batch == batch for each in self.commits)


class _Packer(pickle.Pickler):
    """Packs a world. What never changes is not copied: worlds share it."""

    def __init__(self, file: BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.dispatch_table = _SHARED


def _share(value: object) -> tuple[Callable[[int], object], tuple[int]]:
    _VALUES[id(value)] = value
    return _shared, (id(value),)


def _shared(number: int) -> object:
    return _VALUES[number]


_VALUES: dict[int, object] = {}
_SHARED = dict.fromkeys(
    [
        *(
            each
            for each in vars(events).values()
            if isinstance(each, type) and issubclass(each, events.EventBase)
        ),
        *(Closed, Commit, GrantLease, LockView, TableSettings),
    ],
    _share,
)


def pack(world: World) -> bytes:
    file = BytesIO()
    _Packer(file).dump(world)
    return file.getvalue()
