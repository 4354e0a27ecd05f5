"""The tables: their commits in order, and how a publish reaches them.

There are two kinds, as among the formats:

- *fenced*: the publish is conditional, as Paimon's is. It creates the snapshot with the next number, if no other commit has.
  Right before, the writer checks that what it replaces is unchanged since it read it.
- not fenced: the publish lands whenever it arrives. Only the grant lease protects such a table. A writer that is suspended
  beyond its lease, between its last check and the publish, can't be stopped: the *window*.

A table may record which writer committed which batch (`records_batches`). If it doesn't, a batch whose commit was never
reported is written again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from lakewarden.events import ConflictRule, Marker

ALL = "*"


@dataclass(frozen=True, slots=True)
class Commit:
    """What a transaction commits to its table."""

    transaction: str
    writer: str
    batch: int
    touched: frozenset[Marker]
    rule: ConflictRule
    began: float
    """When it read its base, in true time."""
    deadline: float
    """Deadline of its grant at its last check, in true time."""
    number: tuple[int, int] | None = None
    """Of an `ordered` one: by which its rows are newer or older than others. The version that it read, and its turn."""
    edition: str | None = None
    """Part of its writer's name in the table (decision 20)."""
    watched: bool = False
    """Whether its writer doesn't use the gate, and a watcher reports it."""


@dataclass(frozen=True, slots=True)
class Landed:
    """A commit in the table."""

    commit: Commit
    version: int
    at: float

    @property
    def late(self) -> bool:
        """Whether it landed after the end of its grant."""
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
        """Return the number of the newest snapshot; 0 if there is none."""
        return len(self.landed)

    def look_up_batch(self, writer: str, batch: int, edition: str | None) -> int | None:
        """Return the version of a batch as the writer that queries the table sees it."""
        return next(
            (each.version for each in self._of(writer, batch) if each.commit.edition == edition), None
        )

    def find(self, writer: str, batch: int) -> int | None:
        """Return the version that contains this writer's batch, in any edition."""
        return next((each.version for each in self._of(writer, batch)), None)

    def _of(self, writer: str, batch: int) -> Iterable[Landed]:
        return (each for each in self.landed if (each.commit.writer, each.commit.batch) == (writer, batch))

    def version_of(self, transaction: str) -> int | None:
        """Return the version that this transaction committed."""
        return next((each.version for each in self.landed if each.commit.transaction == transaction), None)

    def unchanged(
        self, since: int, touched: Iterable[Marker], rule: ConflictRule, number: tuple[int, int] | None
    ) -> bool:
        """Return whether no commit after version `since` conflicts with these markers, or has newer rows there."""
        mine = frozenset(touched)
        return not any(conflict(mine, rule, each.commit, number) for each in self.landed[since:])

    def publish(self, commit: Commit, after: int | None, now: float) -> int | None:
        """Commit, if no commit landed after version `after` (None: in any case). Return the new version."""
        if after is not None and after != self.version():
            return None
        landed = Landed(commit, self.version() + 1, now)
        self.landed.append(landed)
        self.on_landed(self, landed)
        return landed.version


def conflict(
    mine: frozenset[Marker], rule: ConflictRule, other: Commit, number: tuple[int, int] | None
) -> bool:
    """Return whether a footprint conflicts with an earlier commit. Written from design.md §4, not from the code under test.

    Of two `ordered` ones, the rows of the earlier commit must be older: it must have the smaller number.
    """
    in_turn = number is not None and other.number is not None and other.number < number
    lenient = rule == other.rule == "deleted-file" or in_turn
    for one in mine:
        for two in other.touched:
            same = one.file_group == two.file_group or ALL in (one.file_group, two.file_group)
            if one.partition != two.partition or not same:
                continue
            operations = {one.operation, two.operation}
            if not lenient or ("delete" in operations and operations <= {"merge", "delete"}):
                return True
    return False
