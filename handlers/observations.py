"""The files of a watched table, and what a watcher reports of a commit that it finds there.

docs/decisions/0046-observed-commits.md has the rules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from lakewarden.events import Marker, Operation
from lakewarden.events.tables import MAX_PATH
from lakewarden.handlers.maker import UNKNOWN_MAKER, Maker

INVALIDATES: Final[Operation] = "delete"
"""Operation of a file whose removal or arrival refutes a rewrite that has read its partition before.

Observed commits have the rule `deleted-file`, by which it conflicts with `merge` and `delete`, and never with an append.
"""
ADDS: Final[Operation] = "create"
"""Operation of a file that refutes nothing."""


class UnreadableCommit(Exception):
    """A file of the table says something that this version doesn't understand, or is damaged. The text is for operators."""


class UnknownVersion(UnreadableCommit):
    """The whole table is of a version that isn't known, so nothing of it can be read from here on."""


class File(NamedTuple):
    """One file of a listing. Thousands are made a second, which a tuple makes cheap."""

    path: str
    """Relative to the table's root."""
    size: int
    version: str
    """Changes with the content: an ETag."""
    modified: float
    """By the store's clock, in seconds."""


Place: TypeAlias = tuple[str, str]
"""Partition, as the sinks spell it, and name of a file."""


@dataclass(frozen=True, slots=True)
class ObservedCommit:
    """A commit by a writer that doesn't use the gate."""

    version: str
    """As the format's sink names it in its completions."""
    markers: tuple[Marker, ...]
    made_by: Maker = UNKNOWN_MAKER


@dataclass(slots=True)
class LogPosition:
    """A position in a log whose commits have consecutive numbers."""

    number: int
    """The newest commit that was seen. It, and all before it, are not reported any more."""
    identity: str | None = None
    """What the store calls the file of that commit, as of the last listing. None: it was not listed since."""
    stuck: bool = False
    """The next commit can't be read."""

    def advance(self) -> None:
        self.number, self.identity, self.stuck = self.number + 1, None, False

    def why_lost(self, newest: int | None, *, identity: str | None, has_next: bool) -> str | None:
        """Return why the position is lost, or None, from a listing: `identity` is that of the file of commit `number`."""
        if newest is None or newest < self.number:
            return f"commit {self.number} is gone: the table was removed, or replaced by another one"
        if newest > self.number and not has_next:
            return f"commit {self.number + 1} is missing, and {newest} exists"
        if newest > self.number + 1 and self.stuck:
            return f"commit {self.number + 1} can't be read, and {newest} exists"
        if None not in (identity, self.identity) and identity != self.identity:
            return f"commit {self.number} is another one than before: the table was replaced"
        self.identity = identity
        return None


def observed_commit(
    version: str,
    refuting: Collection[Place],
    added: Iterable[Place],
    *,
    additions_refute: bool,
    rearranged: Iterable[Place] = (),
    made_by: Maker = UNKNOWN_MAKER,
) -> ObservedCommit | None:
    """Return a commit with its markers, each file once, or None if it has changed no file.

    The `refuting` files refute a rewrite of their partition. So does an added file, if the format says so, unless another file
    of its partition does it already. A `rearranged` file refutes nothing.
    """
    refuted = {partition for partition, _ in refuting}
    operations: dict[Place, Operation] = {}
    for place in rearranged:
        operations[_bounded(place)] = ADDS
    for place in added:
        alone = additions_refute and place[0] not in refuted
        operations[_bounded(place)] = INVALIDATES if alone else ADDS
    operations |= dict.fromkeys(map(_bounded, refuting), INVALIDATES)
    return ObservedCommit(version, tuple(_markers(operations)), made_by) if operations else None


def _bounded(place: Place) -> Place:
    return place[0], place[1][-MAX_PATH:]


def _markers(operations: dict[Place, Operation]) -> Iterator[Marker]:
    for (partition, name), operation in sorted(operations.items()):
        if len(partition) <= MAX_PATH:  # no writer can declare a longer one
            yield Marker(partition=partition, file_group=name, operation=operation)
