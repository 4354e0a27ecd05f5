"""The lock queue: the order in which contenders wait for one lock, derived from the events of the audit topic.

    event                              effect on the queue
    lock-refused, `waiting` is true    its contender joins the end, unless it is in the queue already
    lock-acquired                      its contender leaves the queue, and so does every contender before it
    any other                          none

- A contender is one agent for one table.
- Contenders before the new holder had their turn and did not use it: their agents are dead, or don't consume the audit topic. A
  live one rejoins with its next refusal.
- New contenders join the end of the queue; queued contenders keep their position.

All agents that consume the topic derive the same queue, because they read the same order. The queue makes waiting fair and
short. It protects nothing: a contender that doesn't know the queue just tries, and the store's conditions decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lakewarden.events import AuditEventUnion, LockAcquired, LockRefused

MAX_CONTENDERS = 1_000
"""Contenders in a queue: far more than agents that share a table. Any others poll the lock object."""


class Contender(NamedTuple):
    """An agent that wants a lock for a table. Several tables may name one lock object."""

    agent: str
    table: str


@dataclass(frozen=True, slots=True)
class LockQueue:
    """The waiting contenders, first come first."""

    waiting: tuple[Contender, ...] = ()

    def apply(self, event: AuditEventUnion) -> LockQueue:
        contender = Contender(event.agent, event.table)
        match event:
            case LockRefused(waiting=True) if (
                contender not in self.waiting and len(self.waiting) < MAX_CONTENDERS
            ):
                return LockQueue((*self.waiting, contender))
            case LockAcquired() if contender in self.waiting:
                return LockQueue(self.waiting[self.waiting.index(contender) + 1 :])
            case _:
                return self

    def others_waiting(self, contender: Contender) -> int:
        """The number of other contenders. All of them are ahead of a contender that starts to acquire the lock."""
        return len(self.waiting) - (contender in self.waiting)

    def ahead_of(self, contender: Contender) -> int:
        return self.waiting.index(contender) if contender in self.waiting else len(self.waiting)
