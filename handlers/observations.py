"""The files of a watched table, and what a watcher reports of a commit that it finds there.

docs/decisions/0046-observed-commits.md has the rules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from lakewarden.events import ALL_FILE_GROUPS, WHOLE_TABLE, Marker, Operation
from lakewarden.events.tables import MAX_PATH
from lakewarden.handlers import unreadable
from lakewarden.handlers.assessment import Lack, Unread
from lakewarden.handlers.maker import UNKNOWN_MAKER, Maker
from lakewarden.handlers.unreadable import Failed, Unreadable, read_each

INVALIDATES: Final[Operation] = "delete"
"""Operation of a file whose removal or arrival refutes a rewrite that has read its partition before.

Observed commits have the rule `deleted-file`, by which it conflicts with `merge` and `delete`, and never with an append.
"""
ADDS: Final[Operation] = "create"
"""Operation of a file that refutes nothing."""
EVERYTHING: Final = Marker(partition=WHOLE_TABLE, file_group=ALL_FILE_GROUPS, operation=INVALIDATES)
"""What a commit counts as having touched of which a piece can't be read."""


class UnreadableCommit(Unreadable):
    """A file of the table says something that this version doesn't understand, or is damaged. The text is for operators."""


reading = partial(unreadable.reading, raised=UnreadableCommit)


class UnknownVersion(UnreadableCommit):
    """The whole table is of a version that isn't known, so nothing of it can be read from here on."""


UNREADABLE_SECONDS: Final = 5.0
"""For so long, a commit that can't be read is read again: it may still be written, or copied. Then it counts as read."""

Piece: TypeAlias = bytes | UnreadableCommit
"""The content of a file, or why it isn't to be had."""


def content_of(piece: Piece) -> bytes:
    """Return the content, or raise why it isn't to be had."""
    if isinstance(piece, UnreadableCommit):
        raise piece
    return piece


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
    unread: tuple[Unread, ...] = ()
    """Its pieces that can't be read. It counts as one that has touched the whole table (`EVERYTHING`)."""


@dataclass(slots=True)
class LogPosition:
    """A position in a log whose commits have consecutive numbers."""

    number: int
    """The newest commit that was seen. It, and all before it, are not reported any more."""
    identity: str | None = None
    """What the store calls the file of that commit, as of the last listing. None: it was not listed since."""

    def advance(self) -> None:
        self.number, self.identity = self.number + 1, None

    def why_lost(self, newest: int | None, *, identity: str | None, has_next: bool) -> str | None:
        """Return why the position is lost, or None, from a listing: `identity` is that of the file of commit `number`."""
        if newest is None or newest < self.number:
            return f"commit {self.number} is gone: the table was removed, or replaced by another one"
        if newest > self.number and not has_next:
            return f"commit {self.number + 1} is missing, and {newest} exists"
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
    unread: Sequence[Unread] = (),
) -> ObservedCommit | None:
    """Return a commit with its markers, each file once, or None if it has changed no file.

    The `refuting` files refute a rewrite of their partition. So does an added file, if the format says so, unless another file
    of its partition does it already. A `rearranged` file refutes nothing. What is `unread` may have refuted any rewrite.
    """
    refuted = {partition for partition, _ in refuting}
    operations: dict[Place, Operation] = {}
    for place in rearranged:
        operations[_bounded(place)] = ADDS
    for place in added:
        alone = additions_refute and place[0] not in refuted
        operations[_bounded(place)] = INVALIDATES if alone else ADDS
    operations |= dict.fromkeys(map(_bounded, refuting), INVALIDATES)
    shortened = (
        (place, operation) for place, operation in sorted(operations.items()) if len(place[0]) <= MAX_PATH
    )
    markers, failed = read_each(shortened, _marker)
    unread = (*unread, *unread_of("file", version, failed, len(operations)))
    if unread:
        markers.insert(0, EVERYTHING)
    return ObservedCommit(version, tuple(markers), made_by, unread) if operations or unread else None


def unread_commit(version: str, why: str) -> ObservedCommit:
    """Return a commit of which nothing can be read."""
    return ObservedCommit(version, (EVERYTHING,), unread=(Unread(f"commit {version}", why),))


def unread_of(kind: str, version: str, failed: Failed[Any], total: int) -> tuple[Unread, ...]:
    """Return what is to be said of pieces of a commit that can't be read: how many, and why the first one."""
    if not failed:
        return ()
    what = f"{len(failed)} of {total} {kind}s of commit {version}"
    number = int(version) if version.isdecimal() else None
    return (Unread(what, failed[0][1], frozenset({Lack.PARTITIONS, Lack.NAMES}), number),)


def _bounded(place: Place) -> Place:
    return place[0], place[1][-MAX_PATH:]


def _marker(touched: tuple[Place, Operation]) -> Marker:
    (partition, name), operation = touched
    return Marker(partition=partition, file_group=name, operation=operation)
