"""A partition's published decisions, brought back to where they were facts, and which of them count.

- A decision is a fact right after the event at its `cause_offset`: the log has both, and the one names the other. What
  stands at that offset may be no event that can be read; the decision is due all the same.
- Decisions become facts in the order of their own log.
- Whoever takes a partition over publishes `partition-taken` with a term of its own, and only then reads what was decided. From
  that record on, only decisions of that term count: for it, for whoever comes after it, and for writers that heard it. An
  agent that slept, or was cut off, and does not know that it lost the partition, publishes nothing that counts.
- The last one in the log counts, whoever Kafka's group thinks the owner is: a take may reach the log late. So an owner listens
  for takes after its own, and begins anew when there is one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lakewarden.events import DecisionEventUnion, DecisionRecord, PartitionTaken, counts


@dataclass(frozen=True, slots=True)
class Position:
    """A place in `decisions`, and the term in force there (None: none is known)."""

    offset: int
    term: str | None


class PublishedDecisions:
    """What was decided, to be taken in step with the events."""

    def __init__(self, start: Position, records: Iterable[tuple[int, DecisionRecord]]) -> None:
        term = start.term
        self._decisions: list[tuple[Position, DecisionEventUnion]] = []
        for offset, record in records:
            if isinstance(record, PartitionTaken):
                term = record.term
            elif counts(record, term):
                self._decisions.append((Position(offset, term), record))
        self._taken = 0
        self.term = term
        """In force at the end."""

    def __len__(self) -> int:
        return len(self._decisions)

    def all(self) -> list[DecisionEventUnion]:
        """Every decision that counts, taken or not."""
        return [decision for _, decision in self._decisions]

    def next_position(self) -> Position | None:
        """Where the first decision that was not taken stands."""
        return self._decisions[self._taken][0] if self._taken < len(self._decisions) else None

    def due(self, offset: int | None) -> list[DecisionEventUnion]:
        """Take what became a fact up to this offset in `writers`; None: all that is left."""
        began = self._taken
        while self._taken < len(self._decisions):
            _, decision = self._decisions[self._taken]
            if offset is not None and decision.cause_offset > offset:
                break
            self._taken += 1
        return [decision for _, decision in self._decisions[began : self._taken]]
