"""The tables: what was committed to them, in order, and how a publish reaches them.

Two kinds, as formats are:

- *fenced*: the publish is conditional, as Paimon's is. It writes the snapshot with the next number, if nobody else has, and its
  writer has looked right before whether what it replaces is still what it read.
- not fenced: the publish lands, whenever it arrives. Nothing but the grant's lease protects such a table, and a writer that is
  paused between its last look at the lease and the publish, beyond the lease, can't be stopped: the *window*.

A table may be able to tell who committed which batch (`tells`); where it can't, a batch that was committed without anybody's
hearing of it is written again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from lakewarden.events import ConflictRule, Marker

ALL = "*"


@dataclass(frozen=True, slots=True)
class Commit:
    """What a transaction puts into its table."""

    transaction: str
    writer: str
    batch: int
    touched: frozenset[Marker]
    rule: ConflictRule
    began: float
    """When it read its base; true time."""
    deadline: float
    """Of its grant, as it was when it looked last; true time."""


@dataclass(frozen=True, slots=True)
class Landed:
    """A commit in the table."""

    commit: Commit
    version: int
    at: float

    @property
    def late(self) -> bool:
        """It landed when its grant had run out."""
        return self.at >= self.commit.deadline


@dataclass(slots=True)
class LakeTable:
    """One table."""

    uri: str
    fenced: bool
    records_batches: bool
    lock: str | None
    landed: list[Landed] = field(default_factory=list)
    on_landed: Callable[[LakeTable, Landed], None] = lambda _, __: None

    def version(self) -> int:
        """Of the newest snapshot; 0 where there is none."""
        return len(self.landed)

    def look_up_batch(self, writer: str, batch: int) -> int | None:
        """What a writer that asks for its batch is told."""
        return self.find(writer, batch)

    def find(self, writer: str, batch: int) -> int | None:
        """The version that holds this writer's batch."""
        return next(
            (
                each.version
                for each in self.landed
                if each.commit.writer == writer and each.commit.batch == batch
            ),
            None,
        )

    def version_of(self, transaction: str) -> int | None:
        """The version that this transaction made."""
        return next((each.version for each in self.landed if each.commit.transaction == transaction), None)

    def unchanged(self, since: int, touched: Iterable[Marker], rule: ConflictRule) -> bool:
        """Whether nothing has landed after version `since` that conflicts with this."""
        mine = frozenset(touched)
        return not any(conflict(mine, rule, each.commit) for each in self.landed[since:])

    def publish(self, commit: Commit, after: int | None, now: float) -> int | None:
        """Land, if nothing has landed after version `after` (None: in any case); the new version."""
        if after is not None and after != self.version():
            return None
        landed = Landed(commit, self.version() + 1, now)
        self.landed.append(landed)
        self.on_landed(self, landed)
        return landed.version


def conflict(mine: frozenset[Marker], rule: ConflictRule, other: Commit) -> bool:
    """Whether two footprints exclude one another; written from design.md §4, not from the code that is tested."""
    lenient = rule == other.rule == "deleted-file"
    for one in mine:
        for two in other.touched:
            same = one.file_group == two.file_group or ALL in (one.file_group, two.file_group)
            if one.partition != two.partition or not same:
                continue
            operations = {one.operation, two.operation}
            if not lenient or ("delete" in operations and operations <= {"merge", "delete"}):
                return True
    return False
