"""When an owner may keep its partition through a rebalance (docs/decisions/0018-a-partition-that-stays-keeps-its-owner.md).

    live ──revoked──▶ paused ──assigned again──▶ paused, `partition-taken` published again ──read up to it──▶ live
                        │                                                    │
                        └──assigned to another agent──▶ released ◀──another agent took the partition over──┘

1. A paused owner consumes and decides nothing.
2. Before it resumes, it publishes its `partition-taken` again, and reads `decisions` up to that record.
3. It resumes only if no other agent's `partition-taken` lies between its own two. Then a replay of the log would apply exactly
   the decisions that its state has, because only those of the term in force count (`handlers/table/replay.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(slots=True)
class TakeOvers:
    """What an owner knows of the take-overs of its partition. Offsets in `decisions`, except `own_in_ledger`; -1: none yet."""

    own: int = -1
    """Of its own `partition-taken`, with which it became the owner."""
    own_in_ledger: int = -1
    """Of that `partition-taken` in `ledger`."""
    again: int = -1
    """Of its own `partition-taken` with which it wants to resume."""
    others: int = -1
    """Of the last `partition-taken` of another owner."""

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
