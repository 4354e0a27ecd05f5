"""The footprints of all transactions of one table, indexed by partition and file group.

    index[partition][file_group] = (Touch, Touch, …)      the `*` of a partition is an entry like any other

- Partition and file group are compared as a pair, never as one joined string.
- A marker is checked only against the entry of its own file group, so the cost doesn't depend on the size of the index.
- `*` overlaps every entry of its partition, and every entry overlaps the partition's `*`.
- A repeated marker changes nothing.
- Almost every entry has one touch. All markers of a transaction with the same operation share that one-element tuple, so a
  marker costs its two strings and one slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from lakewarden.events import ALL_FILE_GROUPS, Marker, Operation
from lakewarden.handlers.table.transactions import Touch, Transaction

MARKER_BYTES = 150
"""Of a marker without the characters of its file group: its string, its entry in the index, its entry in the footprint."""
PARTITION_BYTES = 500
"""Of a partition that a transaction touches, without the characters of its name."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two transactions that touch the same file group, from the side of `mine`."""

    partition: str
    file_group: str
    """The file group in the marker of `mine`. It differs from `other_file_group` if one of the two is `*`."""
    other_file_group: str
    mine: Touch
    other: Touch

    def flipped(self) -> Overlap:
        """The same overlap from the side of `other`."""
        return Overlap(self.partition, self.other_file_group, self.file_group, self.other, self.mine)


@dataclass(slots=True)
class Footprints:
    """The index of one table."""

    index: dict[str, dict[str, tuple[Touch, ...]]] = field(default_factory=dict)
    bytes: int = 0
    """Estimated bytes of all markers (`memory.py`)."""

    def add(self, transaction: Transaction, markers: Iterable[Marker]) -> list[Overlap]:
        """Add markers and return their overlaps with other transactions, whether or not they are conflicts."""
        overlaps: list[Overlap] = []
        # Consecutive markers mostly share partition and operation, so their look-ups are repeated only on a change.
        partition: str | None = None
        operation: Operation | None = None
        groups: dict[str, tuple[Touch, ...]] = {}
        single: tuple[Touch, ...] = ()
        mine: list[str] | None = None
        bytes_before = transaction.bytes
        for marker in markers:
            file_group = marker.file_group
            if marker.partition != partition:
                partition = marker.partition
                groups = self.index.setdefault(partition, {})
                mine = transaction.footprint.get(partition)
            if marker.operation != operation:
                operation = marker.operation
                single = transaction.touch(operation)
            count = len(groups)
            touches = groups.setdefault(file_group, single)
            new = len(groups) > count
            if not new:
                if touches is single or single[0] in touches:
                    continue
                groups[file_group] = touches + single
            if new or all(touch.transaction is not transaction for touch in touches):
                if mine is None:
                    mine = transaction.footprint[partition] = []
                    transaction.bytes += PARTITION_BYTES + len(partition)
                mine.append(file_group)
                transaction.markers += 1
                transaction.bytes += MARKER_BYTES + len(file_group)
            if not new or file_group == ALL_FILE_GROUPS or ALL_FILE_GROUPS in groups:
                overlaps.extend(self._overlaps_at(partition, file_group, single[0]))
        self.bytes += transaction.bytes - bytes_before
        return overlaps

    def overlaps(self, transaction: Transaction) -> Iterator[Overlap]:
        """All overlaps of this transaction with others."""
        for partition, file_groups in transaction.footprint.items():
            groups = self.index[partition]
            starred = ALL_FILE_GROUPS in groups
            for file_group in file_groups:
                touches = groups[file_group]
                if len(touches) > 1 or starred:
                    for touch in touches:
                        if touch.transaction is transaction:
                            yield from self._overlaps_at(partition, file_group, touch)

    def touch_combinations(self) -> set[tuple[Touch, ...]]:
        """Each distinct combination of touches that share a place. A sweep checks these instead of every place."""
        found: set[tuple[Touch, ...]] = set()
        for groups in self.index.values():
            starred = groups.get(ALL_FILE_GROUPS, ())
            for touches in groups.values():
                if len(touches) > 1 or starred:
                    found.add(starred + touches)
        return found

    def remove(self, transaction: Transaction) -> None:
        """Remove the transaction's footprint from the index."""
        for partition, file_groups in transaction.footprint.items():
            groups = self.index[partition]
            for file_group in file_groups:
                touches = groups[file_group]
                alone = len(touches) == 1
                left = () if alone else tuple(each for each in touches if each.transaction is not transaction)
                if left:
                    groups[file_group] = left
                else:
                    del groups[file_group]
            if not groups:
                del self.index[partition]
        self.bytes -= transaction.bytes
        transaction.footprint = {}
        transaction.markers = transaction.bytes = 0

    def _overlaps_at(self, partition: str, file_group: str, mine: Touch) -> Iterator[Overlap]:
        groups = self.index[partition]
        places: Iterable[str]
        if file_group == ALL_FILE_GROUPS:
            places = groups
        else:
            places = (file_group, ALL_FILE_GROUPS) if ALL_FILE_GROUPS in groups else (file_group,)
        for place in places:
            for other in groups[place]:
                if other.transaction is not mine.transaction:
                    yield Overlap(partition, file_group, place, mine, other)
