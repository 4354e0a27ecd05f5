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
5. The agent publishes its `partition-taken` to the ledger too. From that record on, a `conflicts-lost` of another term doesn't
   count: a replaced agent published it. A `batch-committed` always counts. In force is the one that knows of the later
   correction by an operator, and among these the one with the largest batch (`CommittedBatch.rank`).
6. Compaction keeps the last entry of a key, which may be one of a replaced agent. So the owner records an entry again when the
   entry in force is not the last of its key: at the end of its replay, and when it reads a replaced agent's entry later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lakewarden.events import (
    BatchCommitted,
    ConflictsLost,
    DecisionEventUnion,
    DecisionRecord,
    LedgerEventUnion,
    LedgerRecord,
    PartitionTaken,
    counts,
)
from lakewarden.handlers.table.state import CommittedBatch, Correction


@dataclass(frozen=True, slots=True)
class Position:
    """An offset in `decisions`, and the term in force there (None: unknown)."""

    offset: int
    term: str | None


class PublishedDecisions:
    """The decisions that count, to be applied in step with the events."""

    def __init__(self, start: Position, records: Iterable[tuple[int, DecisionRecord]]) -> None:
        term = start.term
        self._decisions: list[tuple[Position, DecisionEventUnion]] = []
        for offset, record in records:
            if isinstance(record, PartitionTaken):
                term = record.term
            elif counts(record, term):
                self._decisions.append((Position(offset, term), record))
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


def batch_of(entry: BatchCommitted) -> CommittedBatch:
    """The batch of a ledger entry."""
    known = entry.corrected_at is not None and entry.correction is not None
    correction = Correction(entry.corrected_at or 0, entry.correction or "") if known else None
    return CommittedBatch(entry.batch_id, entry.transaction, entry.version, correction)


def entries_in_force(records: Iterable[LedgerRecord]) -> list[tuple[LedgerEventUnion, bool]]:
    """For each writer and kind of entry, return the entry in force (rule 5), and whether it is the last of its key.

    A writer of whose `conflicts-lost` none counts has lost nothing: its entry in force says so.
    """
    term: str | None = None
    in_force: dict[tuple[str, str, str], LedgerEventUnion] = {}
    last: dict[tuple[str, str, str], LedgerEventUnion] = {}
    for record in records:
        if isinstance(record, PartitionTaken):
            term = record.term
            continue
        key = (record.type, record.table, record.writer)
        last[key] = record
        known = in_force.get(key)
        if isinstance(record, ConflictsLost):
            if record.term in ("", term) or term is None:
                in_force[key] = record
            elif known is None:
                in_force[key] = record.model_copy(update=_NO_LOSSES)
        elif not isinstance(known, BatchCommitted) or batch_of(record).rank >= batch_of(known).rank:
            in_force[key] = record
    return [(entry, last[key] is entry) for key, entry in in_force.items()]


_NO_LOSSES: Mapping[str, object] = {"losses": 0, "lost_on": (), "transaction": "", "term": ""}
