"""The footprints of all transactions of one table, indexed by partition and file group.

    index[partition][file_group] = (Touch, Touch, …)      the `*` of a partition is an entry like any other
    pairs[touch][other]          = (Place, …)             two touches that share a place, with the first places that they share

- Partition and file group are compared as a pair, never as one joined string.
- A marker is checked only against the entry of its own file group, so the cost doesn't depend on the size of the index.
- `*` overlaps every entry of its partition, and every entry overlaps the partition's `*`.
- The partition `*` is the whole table, whatever its file group: it overlaps every entry.
- A repeated marker changes nothing.
- Almost every entry has one touch. All markers of a transaction with the same operation share that one-element tuple, so a
  marker costs its two strings and one slot.

Every step is bounded (docs/decisions/0021):

- Whether two transactions conflict depends on their touches, not on the number of places that they share. So each pair of
  touches is found once, when its second touch arrives, and kept until one of the two transactions is removed. Later checks
  visit pairs of touches, never places.
- A touch that meets a thousand others at one place shares one tuple with all of them, and `Overlap`s are made when they are read.
- A `*` looks for the touches of its partition, or of the table, among the touches of the table (`first`), not among the entries.
- Entries that grew by the same event share one tuple. Of one tuple, an event visits the first `MAX_FOUND` places only.
- Removed touches stop counting immediately: they leave `first`. Their pairs, and their entries of the index, stay as garbage, and
  `collect` drops some of them after each step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from lakewarden.events import ALL_FILE_GROUPS, WHOLE_TABLE, Marker, Operation
from lakewarden.handlers.table.transactions import Touch, TouchKind, Transaction

MARKER_BYTES = 150
"""Bytes of a marker without the characters of its file group: its string, its entry in the index, its entry in the footprint."""
PARTITION_BYTES = 500
"""Bytes of a partition that a transaction touches, without the characters of its name."""
EVENT_BYTES = 130
"""Bytes of an event that touches new file groups of a partition: where they begin, and its offset."""
PAIR_BYTES = 150
"""Bytes of a pair of touches. It counts for the transaction that came second."""
MAX_FOUND = 100
"""Places of one combination of touches that an event reports: as many as an abort names (`conflicts.py`)."""
MAX_KEPT = 10
"""Places that are kept of a pair, for a conflict that is decided later."""
MANY_PAIRS = 100
"""If a touch is in more pairs than this, one place is kept of each further one."""
COLLECTED = 20_000
"""Pairs, and entries of the index, of removed transactions that are dropped after one step, which takes about 10 ms."""


class Place(NamedTuple):
    """A place that two touches share, from the side of one of them."""

    partition: str
    """If one of the two touches the whole table, the other's."""
    file_group: str
    other_file_group: str
    """It differs from `file_group` if one of the two is `*`."""

    def flipped(self) -> Place:
        partition, mine, theirs = self
        return self if mine == theirs else Place(partition, theirs, mine)


class Overlap(NamedTuple):
    """Two transactions that touch the same file group, from the side of `mine`."""

    partition: str
    file_group: str
    other_file_group: str
    mine: Touch
    other: Touch

    def flipped(self) -> Overlap:
        return Overlap(self.partition, self.other_file_group, self.file_group, self.other, self.mine)


_Met: TypeAlias = tuple[Place, Touch, list[Touch]]
"""A place, a touch of it, and others with which it shares it."""


@dataclass(slots=True)
class _Seen:
    """A tuple of touches that an event has met, and how many of its places it still visits."""

    touches: tuple[Touch, ...]
    left: int


@dataclass(slots=True)
class _Removed:
    """A removed transaction, with what is left of it."""

    transaction: Transaction
    footprint: dict[str, list[str]]
    """Its entries of the index."""
    pairs: list[dict[Touch, tuple[Place, ...]]]
    """Its pairs. They are out of the way, but freeing the pairs of a thousand transactions takes half a step's time."""


@dataclass(slots=True)
class Footprints:
    """The index of one table."""

    index: dict[str, dict[str, tuple[Touch, ...]]] = field(default_factory=dict)
    first: dict[Touch, dict[str, str]] = field(default_factory=dict)
    """Every touch that counts, with its first file group in each partition."""
    pairs: dict[Touch, dict[Touch, tuple[Place, ...]]] = field(default_factory=dict)
    """The pairs of touches of different transactions that share a place, from both sides.

    A removed touch has no pairs of its own. It may still be in those of others, where it counts no more.
    """
    kinds: dict[TouchKind, dict[Touch, None]] = field(default_factory=dict)
    """The touches in `first`, by their kind, on which it depends whether two of them can conflict (`conflicts.py`)."""
    bytes: int = 0
    """Estimated bytes of all markers and pairs (`memory.py`), without garbage."""
    garbage: deque[_Removed] = field(default_factory=deque)

    def add(  # noqa: C901, PLR0912, PLR0915 - one loop over up to 10,000 markers, where calls would cost most of the time
        self, transaction: Transaction, markers: Iterable[Marker], offset: int | None = None
    ) -> Iterator[Overlap]:
        """Add markers. Return the first of their overlaps with each other transaction, whether or not they are conflicts.

        `offset`: of their event, if it is one.
        """
        found: list[_Met] = []
        seen: dict[tuple[int, Touch], _Seen] = {}
        # Consecutive markers mostly share partition, operation and the touches that they meet, so what follows from these is
        # found again only on a change.
        partition: str | None = None
        operation: Operation | None = None
        groups: dict[str, tuple[Touch, ...]] = {}
        stars: tuple[Touch, ...] | None = None
        single: tuple[Touch, ...] = ()
        mine: list[str] | None = None
        firsts: dict[str, str] = {}
        met: tuple[Touch, ...] | None = None
        met_with: tuple[Touch, ...] = ()
        known = owned = whole = False
        wholes = self.index.get(WHOLE_TABLE, {}).get(ALL_FILE_GROUPS)
        grown: tuple[Touch, ...] = ()
        begins: dict[str, int] = {}
        bytes_before = transaction.bytes
        for marker in markers:
            file_group = marker.file_group
            if marker.partition != partition:
                partition = marker.partition
                whole = partition == WHOLE_TABLE
                groups = self.index.setdefault(partition, {})
                stars = groups.get(ALL_FILE_GROUPS)
                mine = transaction.footprint.get(partition)
                begins.setdefault(partition, 0 if mine is None else len(mine))
            if marker.operation != operation:
                operation = marker.operation
                single = transaction.touch(operation)
                firsts = self._firsts(single[0])
            if whole:
                file_group = ALL_FILE_GROUPS
            count = len(groups)
            touches = groups.setdefault(file_group, single)
            new = len(groups) > count
            if not new:
                if touches is single:
                    continue
                if touches is not met or single is not met_with:
                    met, met_with = touches, single
                    known = single[0] in touches
                    owned = any(touch in touches for (touch,) in transaction.touches.values())
                    grown = touches if known else touches + single
                if known:
                    continue
                groups[file_group] = grown
            if new or not owned:
                if mine is None:
                    mine = transaction.footprint[partition] = []
                    transaction.bytes += PARTITION_BYTES + len(partition)
                mine.append(file_group)
                transaction.markers += 1
                transaction.bytes += MARKER_BYTES + len(file_group)
            if partition not in firsts:
                firsts[partition] = file_group
            if whole:
                self._meet_table(found, single[0])
                continue
            if wholes is not None:
                self._meet(found, seen, Place(partition, file_group, ALL_FILE_GROUPS), single[0], wholes)
            if file_group == ALL_FILE_GROUPS:
                self._meet_partition(found, partition, single[0])
                stars = groups[ALL_FILE_GROUPS]
                continue
            if not new:
                self._meet(found, seen, Place(partition, file_group, file_group), single[0], touches)
            if stars is not None:
                self._meet(found, seen, Place(partition, file_group, ALL_FILE_GROUPS), single[0], stars)
        for name, begin in begins.items():
            if len(transaction.footprint.get(name, ())) > begin:
                transaction.offsets.setdefault(name, []).append((begin, offset))
                transaction.bytes += EVENT_BYTES
        self.bytes += transaction.bytes - bytes_before
        return (Overlap(*place, mine, other) for place, mine, others in found for other in others)

    def _firsts(self, touch: Touch) -> dict[str, str]:
        firsts = self.first.get(touch)
        if firsts is None:
            firsts = self.first[touch] = {}
            self.kinds.setdefault(touch.kind, {})[touch] = None
        return firsts

    def overlaps(
        self,
        transaction: Transaction,
        where: Callable[[Touch, Touch], bool],
        *,
        newest_first: bool = False,
        likely: Transaction | None = None,
    ) -> Iterator[Overlap]:
        """The kept overlaps of this transaction, at least one of each pair of touches. `newest_first`: of the youngest pairs.

        `likely`: whose overlaps come first, and again in their place.

        `where` gets each pair, this transaction's touch first, and selects some. It is called for every transaction that shares a
        place, perhaps a thousand, so what most pairs fail comes first in it.
        """
        for (touch,) in transaction.touches.values():
            pairs = self.pairs.get(touch, {})
            guessed = [] if likely is None else [each for (each,) in likely.touches.values() if each in pairs]
            for other in chain(guessed, reversed(pairs) if newest_first else pairs):
                if where(touch, other) and other in self.first:
                    for place in pairs[other]:
                        yield Overlap(*place, touch, other)

    def overlaps_with(
        self, mine: Touch, among: Mapping[Touch, None], where: Callable[[Touch, Touch], bool]
    ) -> Iterator[Overlap]:
        """The kept overlaps of `mine` with those of these touches that `where` selects. The others that it meets cost nothing."""
        for other in self.partners(mine, among.keys()):
            if where(mine, other):
                for place in self.pairs[mine][other]:
                    yield Overlap(*place, mine, other)

    def partners(self, mine: Touch, among: AbstractSet[Touch]) -> Iterator[Touch]:
        """Those of these touches, all of which count, that share a place with `mine`."""
        partners = self.pairs.get(mine, {}).keys()
        few, many = sorted((partners, among), key=len)
        return (each for each in few if each in many)

    def remove(self, transaction: Transaction) -> None:
        """Remove the transaction's footprint. `collect` drops its entries of the index."""
        pairs: list[dict[Touch, tuple[Place, ...]]] = []
        for (touch,) in transaction.touches.values():
            if self.first.pop(touch, None) is not None:
                alike = self.kinds[touch.kind]
                del alike[touch]
                if not alike:
                    del self.kinds[touch.kind]
            if touch in self.pairs:
                pairs.append(self.pairs.pop(touch))
        if transaction.footprint:
            self.garbage.append(_Removed(transaction, transaction.footprint, pairs))
        self.bytes -= transaction.bytes
        transaction.footprint, transaction.offsets, transaction.touches = (
            {},
            {},
            {},
        )  # no cycle of references is left
        transaction.blocker = None
        transaction.markers = transaction.bytes = 0

    def collect(self, most: int = COLLECTED) -> None:
        """Drop about so many pairs of removed transactions, and of their entries of the index."""
        while self.garbage and most > 0:
            removed = self.garbage[0]
            while removed.pairs and most > 0:
                most -= len(removed.pairs.pop())
            while removed.footprint and most > 0:
                partition, file_groups = removed.footprint.popitem()
                dropped = file_groups[-most:]
                del file_groups[-most:]
                if file_groups:
                    removed.footprint[partition] = file_groups
                self._drop(removed.transaction, partition, dropped)
                most -= len(dropped)
            if not removed.pairs and not removed.footprint:
                self.garbage.popleft()

    def _drop(self, transaction: Transaction, partition: str, file_groups: Iterable[str]) -> None:
        groups = self.index[partition]
        last: tuple[Touch, ...] = ()
        left: tuple[Touch, ...] = ()
        for file_group in file_groups:
            touches = groups[file_group]
            if touches is not last:
                last, left = touches, tuple(each for each in touches if each.transaction is not transaction)
            if left:
                groups[file_group] = left
            else:
                del groups[file_group]
        if not groups:
            del self.index[partition]

    def _meet(
        self,
        found: list[_Met],
        seen: dict[tuple[int, Touch], _Seen],
        place: Place,
        mine: Touch,
        others: tuple[Touch, ...],
    ) -> None:
        visited = seen.get((id(others), mine))
        if visited is None:
            # The entry keeps the tuple alive, and with it the tuple's id.
            visited = seen[id(others), mine] = _Seen(others, max(1, MAX_FOUND // len(others)))
        if visited.left:
            visited.left -= 1
            own, first = mine.transaction, self.first
            met = [other for other in others if other.transaction is not own and other in first]
            self._enter(found, place, mine, met)

    def _meet_partition(self, found: list[_Met], partition: str, mine: Touch) -> None:
        """Enter that a `*` shares its partition with every touch there."""

        def met() -> Iterator[tuple[tuple[str, str], Touch]]:
            groups = self.index[partition]
            most = max(1, MAX_FOUND // len(self.first))
            for other, firsts in self.first.items():
                first = firsts.get(partition)
                if first is None or other.transaction is mine.transaction:
                    continue
                places = other.transaction.footprint[partition][:most] if most > 1 else [first]
                if len(other.transaction.touches) > 1:  # some of the places may be another touch's
                    places = [each for each in places if other in groups[each]] or [first]
                for place in places:
                    yield (partition, place), other

        self._enter_runs(found, mine, met())

    def _meet_table(self, found: list[_Met], mine: Touch) -> None:
        """Enter that the whole table shares its places with every touch."""
        most = max(1, MAX_FOUND // len(self.first))
        met = (
            (place, other)
            for other, firsts in self.first.items()
            if other.transaction is not mine.transaction
            for place in islice(firsts.items(), most)
        )
        self._enter_runs(found, mine, met)

    def _enter_runs(
        self, found: list[_Met], mine: Touch, met: Iterable[tuple[tuple[str, str], Touch]]
    ) -> None:
        """Enter touches that follow each other at one place, such as those of a crowd of `*`, together."""
        for (partition, place), run in groupby(met, key=itemgetter(0)):
            self._enter(found, Place(partition, ALL_FILE_GROUPS, place), mine, [other for _, other in run])

    def _enter(self, found: list[_Met], place: Place, mine: Touch, others: list[Touch]) -> None:
        """Report that `mine` shares a place with others, and keep it with each pair that has not enough places."""
        if not others:
            return
        found.append((place, mine, others))
        pairs = self.pairs
        partners = pairs.setdefault(mine, {})
        if len(partners) > 2 * len(self.first) + MANY_PAIRS:
            for gone in [each for each in partners if each not in self.first]:
                del partners[gone]
        known = len(partners)
        shared, flipped = (place,), (place.flipped(),)
        fresh = [other for other in others if other not in partners]
        partners.update(dict.fromkeys(fresh, shared))
        for other in fresh:
            if (theirs := pairs.get(other)) is None:
                pairs[other] = {mine: flipped}
            else:
                theirs[mine] = flipped
        if len(fresh) < len(others) and len(partners) <= MANY_PAIRS:
            for other in set(others).difference(fresh):
                if len(partners[other]) < MAX_KEPT:
                    partners[other] += shared
                    pairs[other][mine] += flipped
        mine.transaction.bytes += PAIR_BYTES * (len(partners) - known)
