"""In which order contenders wait for one lock, folded from what agents tell of it in the audit log.

- A contender is one agent for one table. `lock-refused` of a contender that goes on waiting puts it at the end of the line,
  unless it stands there already.
- `lock-acquired` takes the contender out of the line, and everybody before it: they had their turn and did not use it (dead,
  or not told). Whoever still wants it stands in line again with its next refusal.
- Whoever wants the lock anew comes after everybody in the line; whoever stands in it, after those before it.

The order is the log's, so all who listen see the same line. It makes waiting fair and short; it protects nothing: a
contender that never heard of it just tries, and the store's conditions decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lakewarden.events import AuditEventUnion, LockAcquired, LockRefused

MAX_CONTENDERS = 1_000
"""Contenders remembered: far more than agents that share a table; the rest polls."""


class Contender(NamedTuple):
    """Who wants a lock: an agent, for a table (several tables may name one lock object)."""

    agent: str
    table: str


@dataclass(frozen=True, slots=True)
class LockQueue:
    """Who waits, the first in front."""

    waiting: tuple[Contender, ...] = ()

    def apply(self, event: AuditEventUnion) -> LockQueue:
        """The line after this event."""
        who = Contender(event.agent, event.table)
        match event:
            case LockRefused(waiting=True) if who not in self.waiting and len(self.waiting) < MAX_CONTENDERS:
                return LockQueue((*self.waiting, who))
            case LockAcquired() if who in self.waiting:
                return LockQueue(self.waiting[self.waiting.index(who) + 1 :])
            case _:
                return self

    def others_waiting(self, me: Contender) -> int:
        """How many are waiting besides me: all of them come before me if I want the lock anew."""
        return len(self.waiting) - (me in self.waiting)

    def ahead_of(self, me: Contender) -> int:
        """How many come before me while I wait."""
        return self.waiting.index(me) if me in self.waiting else len(self.waiting)
