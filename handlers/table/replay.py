"""A partition's published decisions, brought back to where they were facts, and which of them count.

- A decision is a fact right after the event at its `cause_offset`: the log has both, and the one names the other. What
  stands at that offset may be no event that can be read; the decision is due all the same.
- Decisions become facts in the order of their own log.
- Whoever takes a partition over publishes `partition-taken` with a term of its own, and only then reads what was decided. From
  that record on, only decisions of that term count: for it, for whoever comes after it, and for writers that heard it. An
  agent that slept, or was cut off, and does not know that it lost the partition, publishes nothing that counts.
- The last one in the log counts, whoever Kafka's group thinks the owner is: a take may reach the log late. So an owner listens
  for takes after its own, and begins anew when there is one.
- What such an agent writes to the ledger may come after what the owner wrote, or be all that is there, and compaction keeps the
  last entry of a key. Which one counts is told by what it says (`entries_in_force`); where the last one doesn't, what is true is written
  once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lakewarden.events import (
    Abort,
    BatchCommitted,
    ConflictsLost,
    DecisionEventUnion,
    DecisionRecord,
    LedgerEventUnion,
    PartitionTaken,
    counts,
)


@dataclass(frozen=True, slots=True)
class Position:
    """A place in `decisions`, and the term in force there (None: none is known)."""

    offset: int
    term: str | None


class PublishedDecisions:
    """What was decided, to be taken in step with the events."""

    def __init__(self, start: Position, records: Iterable[tuple[int, DecisionRecord]]) -> None:
        term = start.term
        self.terms: dict[str, int] = {} if term is None else {term: start.offset - 1}
        """Those that were in force from the start on, and since which offset at the latest."""
        self._decisions: list[tuple[Position, DecisionEventUnion]] = []
        void: set[str] = set()
        for offset, record in records:
            if isinstance(record, PartitionTaken):
                term = record.term
                self.terms[term] = offset
            elif counts(record, term):
                self._decisions.append((Position(offset, term), record))
            elif _is_loss(record):
                void.add(record.transaction)
        self.void = void - {each.transaction for each in self.all() if _is_loss(each)}
        """Transactions that lost a conflict in vain: no such decision on them counts."""
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

    def pop_due(self, offset: int | None) -> list[DecisionEventUnion]:
        """Take what became a fact up to this offset in `writers`; None: all that is left."""
        began = self._taken
        while self._taken < len(self._decisions):
            _, decision = self._decisions[self._taken]
            if offset is not None and decision.cause_offset > offset:
                break
            self._taken += 1
        return [decision for _, decision in self._decisions[began : self._taken]]


def entries_in_force(
    entries: Iterable[LedgerEventUnion], published: PublishedDecisions
) -> list[tuple[LedgerEventUnion, bool]]:
    """Of each writer's entries of a kind the one that counts, and whether it is the last one.

    A commit is a fact, whoever heard of it: the largest batch counts. Conflicts lost follow from decisions: those said under the
    latest term count, unless the abort that they follow from is void; terms that are not known any more are older than all
    that are. Where nothing counts, nothing was lost.
    """
    counted: dict[tuple[str, str, str], LedgerEventUnion] = {}
    last: dict[tuple[str, str, str], LedgerEventUnion] = {}
    for entry in entries:
        key = (entry.type, entry.table, entry.writer)
        last[key] = entry
        if isinstance(entry, ConflictsLost) and entry.transaction in published.void:
            nothing = entry.model_copy(update={"losses": 0, "lost_on": (), "transaction": "", "term": ""})
            counted.setdefault(key, nothing)
        elif key not in counted or _order(entry, published.terms) >= _order(counted[key], published.terms):
            counted[key] = entry
    return [(entry, last[key] is entry) for key, entry in counted.items()]


def _is_loss(decision: DecisionEventUnion) -> bool:
    return isinstance(decision, Abort) and decision.reason == "conflict"


def _order(entry: LedgerEventUnion, terms: Mapping[str, int]) -> int:
    return entry.batch_id if isinstance(entry, BatchCommitted) else terms.get(entry.term, -1)
