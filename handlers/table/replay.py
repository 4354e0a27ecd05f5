"""Merges the published decisions of a partition into the replay of its events, and selects those that count.

Order
1. A decision is applied right after the event at its `cause_offset`, even if the record at that offset can't be decoded.
2. Decisions are applied in the order of their own topic.

Terms
3. An agent that takes a partition over publishes `partition-taken` with a new term, and only then reads `decisions`. From that
   record on, only decisions of that term count: for this agent, for later owners, and for writers that read the record. An
   agent that was suspended or cut off, and doesn't know that it lost the partition, publishes decisions that don't count.
4. The last `partition-taken` in the log counts, whichever agent Kafka's group names as owner: a record may reach the log late.
   So an owner reads `decisions` for later `partition-taken` records, and restarts its session when it finds one.

Ledger
5. A replaced agent may write to the ledger after the owner, or its entry may be the only one, and compaction keeps the last
   entry of a key. `entries_in_force` selects the entry that counts by its content. If that entry is not the last of its key,
   the agent records it again.
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
    """An offset in `decisions`, and the term in force there (None: unknown)."""

    offset: int
    term: str | None


class PublishedDecisions:
    """The decisions that count, to be applied in step with the events."""

    def __init__(self, start: Position, records: Iterable[tuple[int, DecisionRecord]]) -> None:
        term = start.term
        self.terms: dict[str, int] = {} if term is None else {term: start.offset - 1}
        """Each known term, with the offset at or before which it came into force."""
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
        """Transactions whose conflict aborts don't count, so that their writers lost nothing."""
        self._applied = 0
        self.term = term
        """The term in force at the end."""

    def __len__(self) -> int:
        return len(self._decisions)

    def all(self) -> list[DecisionEventUnion]:
        """Every decision that counts, applied or not."""
        return [decision for _, decision in self._decisions]

    def next_position(self) -> Position | None:
        """The position of the first decision that is not applied yet."""
        return self._decisions[self._applied][0] if self._applied < len(self._decisions) else None

    def pop_due(self, offset: int | None) -> list[DecisionEventUnion]:
        """Return the next decisions up to this offset in `writers` (None: all) and mark them as applied."""
        first = self._applied
        while self._applied < len(self._decisions):
            _, decision = self._decisions[self._applied]
            if offset is not None and decision.cause_offset > offset:
                break
            self._applied += 1
        return [decision for _, decision in self._decisions[first : self._applied]]


def entries_in_force(
    entries: Iterable[LedgerEventUnion], published: PublishedDecisions
) -> list[tuple[LedgerEventUnion, bool]]:
    """For each writer and kind of entry, return the entry that counts, and whether it is the last one.

    - `batch-committed`: the largest batch counts. A commit is a fact, whichever agent recorded it.
    - `conflicts-lost`: the entry of the latest term counts, unless the abort that it records is void. Unknown terms are older
      than all known ones. If no entry counts, the writer has lost nothing.
    """
    selected: dict[tuple[str, str, str], LedgerEventUnion] = {}
    last: dict[tuple[str, str, str], LedgerEventUnion] = {}
    for entry in entries:
        key = (entry.type, entry.table, entry.writer)
        last[key] = entry
        if isinstance(entry, ConflictsLost) and entry.transaction in published.void:
            no_losses = entry.model_copy(update={"losses": 0, "lost_on": (), "transaction": "", "term": ""})
            selected.setdefault(key, no_losses)
        elif key not in selected or _order(entry, published.terms) >= _order(selected[key], published.terms):
            selected[key] = entry
    return [(entry, last[key] is entry) for key, entry in selected.items()]


def _is_loss(decision: DecisionEventUnion) -> bool:
    return isinstance(decision, Abort) and decision.reason == "conflict"


def _order(entry: LedgerEventUnion, terms: Mapping[str, int]) -> int:
    return entry.batch_id if isinstance(entry, BatchCommitted) else terms.get(entry.term, -1)
