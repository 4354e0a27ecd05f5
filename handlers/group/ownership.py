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


@dataclass(frozen=True, slots=True)
class TakeOvers:
    """What an owner knows of the take-overs of its partition. Offsets in `decisions`; -1: none yet."""

    own: int
    """Of its own `partition-taken`, with which it became the owner."""
    again: int
    """Of its own `partition-taken` with which it wants to resume."""
    others: int
    """Of the last `partition-taken` of another owner."""
    read_until: int
    """Up to which the log has been read, exclusive."""


def may_resume(takeovers: TakeOvers) -> Literal["yes", "no", "unknown yet"]:
    """Whether a paused owner may resume (rule 3)."""
    if takeovers.others > takeovers.own:
        return "no"
    if takeovers.again < 0 or takeovers.read_until <= takeovers.again:
        return "unknown yet"
    return "yes"
