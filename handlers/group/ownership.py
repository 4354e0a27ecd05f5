"""Which agent owns which partition, and when an owner may keep it: docs/decisions/0018-a-partition-that-stays-keeps-its-owner.md.

    live ──revoked──▶ paused ──assigned again──▶ paused, `partition-taken` published again ──read up to it──▶ live
                        │                                                    │
                        └──assigned to another agent──▶ released ◀──another agent took the partition over──┘

1. A paused owner consumes and decides nothing.
2. Before it resumes, it publishes its `partition-taken` again, and reads `decisions` up to that record.
3. It resumes only if no other agent's `partition-taken` lies between its own two. Then a replay of the log would apply exactly
   the decisions that its state has, because only those of the term in force count (`handlers/table/replay.py`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Claim:
    """The partitions of a member's last assignment, and the number of the round in which it got them (0: unknown)."""

    round: int = 0
    partitions: tuple[int, ...] = ()


def assign(partitions: Iterable[int], claims: Mapping[str, Claim]) -> dict[str, list[int]]:
    """The partitions of each member, in ascending order. `claims` has all members by name, at least one.

    1. A partition stays with the member whose claim has the highest round. Two members can claim one partition if one of them
       missed a round. Claims of the same round can't be both right; the member whose name comes first keeps the partition.
    2. The members get equal shares: with p partitions and n members, `p % n` members get one partition more than the others.
       These are the members that keep most, so that they move least.
    3. A member that keeps more than its share loses its highest partitions. Everything without a member goes to those below
       their share.

    So a member that joins gets only its share, and one that leaves moves only its own partitions. The result depends on the
    input alone, in no order of sets. It is not a matter of safety: an owner never relies on the group.
    """
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


@dataclass(slots=True)
class TakeOvers:
    """What an owner knows of the take-overs of its partition. Offsets in `decisions`, except `own_in_ledger`; -1: none yet."""

    own: int = -1
    """Offset of its own `partition-taken`, with which it became the owner."""
    own_in_ledger: int = -1
    """Offset of that `partition-taken` in `ledger`."""
    again: int = -1
    """Offset of its own `partition-taken` with which it wants to resume."""
    others: int = -1
    """Offset of the last `partition-taken` of another owner."""

    @property
    def replaced(self) -> bool:
        """Whether another owner took the partition over after this one did."""
        return -1 < self.own < self.others


def may_resume(takeovers: TakeOvers, read_until: int) -> Literal["yes", "no", "unknown yet"]:
    """Whether a paused owner may resume (rule 3). `read_until`: up to which `decisions` has been read, exclusive."""
    if takeovers.others > takeovers.own:
        return "no"
    if takeovers.again < 0 or read_until <= takeovers.again:
        return "unknown yet"
    return "yes"
