"""The assignment of partitions to the members of the consumer group, so that as few as possible move.

Each member claims the partitions of its last assignment, with the number of the round in which it got them.

1. A partition stays with the member whose claim has the highest round. Two members can claim one partition if one of them missed
   a round. Claims of the same round can't be both right; the member whose name comes first keeps the partition.
2. The members get equal shares: with p partitions and n members, `p % n` members get one partition more than the others. These
   are the members that keep most, so that they move least.
3. A member that keeps more than its share loses its highest partitions. Everything without a member goes to those below their
   share.

So a member that joins gets only its share, and one that leaves moves only its own partitions. The result depends on the input
alone, in no order of sets. It is not a matter of safety: an owner never relies on the group (`ownership.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """The partitions of a member's last assignment, and the number of the round in which it got them (0: unknown)."""

    round: int = 0
    partitions: tuple[int, ...] = ()


def assign(partitions: Iterable[int], claims: Mapping[str, Claim]) -> dict[str, list[int]]:
    """The partitions of each member, in ascending order. `claims` has all members by name, at least one."""
    every = sorted(set(partitions))
    kept = _kept(every, claims)
    shares = _shares(len(every), kept)
    assigned = {name: kept[name][: shares[name]] for name in sorted(claims)}
    taken = {partition for mine in assigned.values() for partition in mine}
    free = [partition for partition in every if partition not in taken]
    for name, mine in assigned.items():
        missing = shares[name] - len(mine)
        mine.extend(free[:missing])
        del free[:missing]
    return {name: sorted(mine) for name, mine in assigned.items()}


def _kept(every: list[int], claims: Mapping[str, Claim]) -> dict[str, list[int]]:
    """What each member claims and no member claims with a higher round, in ascending order."""
    keepers: dict[int, str] = {}
    for name in sorted(claims, key=lambda each: (-claims[each].round, each)):
        for partition in claims[name].partitions:
            keepers.setdefault(partition, name)
    return {name: [each for each in every if keepers.get(each) == name] for name in claims}


def _shares(count: int, kept: Mapping[str, list[int]]) -> dict[str, int]:
    share, larger = divmod(count, len(kept))
    by_size = sorted(kept, key=lambda name: (-len(kept[name]), name))
    return {name: share + (place < larger) for place, name in enumerate(by_size)}
