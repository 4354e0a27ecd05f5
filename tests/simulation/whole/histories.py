"""Transactions and take-overs according to the logs, from which the oracles judge."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from lakewarden.events import Abort, CommitGranted, Marker
from tests.simulation.node import Node


@dataclass(slots=True)
class Held:
    """A grant that a writer holds, in true time."""

    node: Node
    until: float


@dataclass(slots=True)
class History:
    """A transaction according to the logs."""

    table: str
    writer: str
    batch: int | None
    sequence: int
    priority: int
    order: int
    """Its place among all transactions, in the order of their intents."""
    opened_at: float
    observed: bool = False
    """Whether a watcher reports it."""
    strict: bool = True
    """Whether its rule is `file-group`."""
    begins_at: int = 0
    """The end of `writers` when it was admitted: a commit from there on is missing in its base."""
    ordered: bool = False
    """Whether its rule is `ordered`."""
    other_lock: bool = False
    """Whether it names another lock than its table's."""
    abort_requested: int | None = None
    """Offset of an operator's first request to end it, while it was open."""
    revoked: bool = False
    """Whether an abort in the log withdrew its grant, which is not extended any more."""
    admitted_at: int = -1
    """Offset of its admission in `decisions`."""
    intent_lost: bool = False
    unreported: bool = False
    """No agent can know of its completion."""
    granted_at: int | None = None
    """Offset of the grant in `decisions`, -1 once it is lost."""
    requested: int | None = None
    admitted: bool = False
    granted: CommitGranted | None = None
    ended: Abort | None = None
    """The abort that ended it."""
    ended_at: int | None = None
    """Its offset in `decisions`."""
    answered: bool = False
    """Whether the log has had an abort of it, even if that is lost."""
    lost_to: set[str] = field(default_factory=set)
    events: list[tuple[int, float]] = field(default_factory=list)
    """Offset and time of all its writer's events."""
    seqs: list[tuple[int, int]] = field(default_factory=list)
    """Offset and `seq` of its writer's events that have one."""
    touched: dict[tuple[str, str], int] = field(default_factory=dict)
    """What its writer declared, or the agent reserved for it, with the offset from which on an agent knows it."""
    skipped: bool = False
    completed: int | None = None
    abandoned: bool = False
    gone_at: int | None = None
    """Of an observed one: offset in `writers` of what ended it, or of the end when the log had its abort."""

    def touch(self, markers: Iterable[Marker], offset: int) -> None:
        """Add markers to its footprint, known from this offset in `writers` on."""
        for each in markers:
            self.touched.setdefault((each.partition, each.file_group), offset)

    def touched_at(self, offset: int) -> int:
        """The number of its markers, according to the log up to this offset."""
        return sum(known <= offset for known in self.touched.values())

    def is_open(self) -> bool:
        """Whether nothing in the log ends it."""
        over = self.ended or self.skipped or self.abandoned or self.completed is not None
        return not over

    def meets(self, other: History, offset: int) -> bool:
        """Whether both touch one place, according to the log up to this offset."""
        return any(
            mine[0] == theirs[0] and (mine[1] == theirs[1] or "*" in (mine[1], theirs[1]))
            for mine, known in self.touched.items()
            for theirs, also_known in other.touched.items()
            if max(known, also_known) <= offset
        )


@dataclass(slots=True)
class TakeOver:
    """The first `partition-taken` of an owner."""

    partition: int
    at: float
    lacking: str | None
    """The topic that lacks something which the checkpoint relies on."""
    sure: bool = False
    """Whether the owner has read the log, and that was the same until then."""
    end: int = 0
    """The end of its replay in `writers`."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How far a live owner has read its partition."""

    partition: int
    position: int
    decided: Collection[str]
    """Transactions that it has ended or granted, in the log or on the way to it."""


def forget_events(history: History, beginning: int, end: int) -> None:
    """Forget the events that `writers` has lost. Those whose offsets matter later count as read long ago."""
    history.intent_lost = history.intent_lost or not beginning <= history.sequence < end
    history.events = [each for each in history.events if beginning <= each[0] < end]
    history.seqs = [(offset if offset < end else -1, seq) for offset, seq in history.seqs]
    if history.requested is not None and history.requested >= end:
        history.requested = -1
    if history.completed is not None and not beginning <= history.completed < end:
        history.completed = -1
