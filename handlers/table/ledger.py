"""What the ledger says of one partition's tables: the entries in force, in a compact form.

One record of the ledger after another is added, so the memory depends on the number of tables and writers, not on the length of
the topic. An entry takes about 250 bytes, with names of 50 characters.

1. An agent publishes its `partition-taken` to the ledger too. From that record on, a `conflicts-lost` of another term doesn't
   count: a replaced agent published it. A `batch-committed` always counts. The entry with the latest correction
   by an operator wins; among equals, the one with the largest batch id (`CommittedBatch.rank`).
2. Compaction keeps the last entry of a key, which may be one of a replaced agent. So the owner records an entry again when the
   entry in force is not the last of its key: at the end of its replay, and when it reads a replaced agent's entry later. A
   replaced agent's `partition-taken` may come late, too. Then the owner publishes its own again, and all its losses.
3. A writer without a `conflicts-lost` that counts has lost nothing.
4. If Kafka has lost entries, a process that knew them records them again (docs/decisions/0050-a-lost-ledger.md).
5. A correction names its offset in `writers`, and orders facts only as long as that topic exists. If `writers` is a new one, or
   has lost its end (`log_gaps.py`), the owner drops the offset of each correction and raises the entry's `generation`, by which
   the entry replaces those before. A correction that is still in the log is applied again by the replay, in its place.
6. A correction that lowers the last batch gives the writer a new *edition*. From then on its transactions commit to the table
   under another name, and look for that name there: former commits of the same batches don't count. An entry keeps the edition
   until another correction states one.
"""

import json
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from lakewarden.events import (
    UNSTAMPED,
    BatchCommitted,
    ConflictsLost,
    LedgerEventUnion,
    LedgerRecord,
    Marker,
    PartitionTaken,
)

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""One encoder: `json.dumps` with options makes another one each time."""
Kind: TypeAlias = Literal["batch-committed", "conflicts-lost"]


@dataclass(frozen=True, slots=True)
class Correction:
    """A `ledger-corrected` of an operator."""

    offset: int
    """In `writers`."""
    event_id: str


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """The last batch of a writer that is known to be committed."""

    batch_id: int | None
    """None: an operator stated that no batch is."""
    transaction: str
    version: str | None
    correction: Correction | None = None
    """The writer's last correction. Facts before its offset don't count."""
    generation: int = 0
    """How often the offset of a correction was dropped, because `writers` was replaced (rule 5)."""
    edition: str | None = None
    """Part of the writer's name in the table, since a correction that lowered its last batch (rule 6)."""

    @property
    def rank(self) -> tuple[int, int, bool, int]:
        """The entry of a writer with the largest rank is in force."""
        corrected_at = -1 if self.correction is None else self.correction.offset
        return (self.generation, corrected_at, self.batch_id is not None, self.batch_id or 0)

    def to_entry(self, table: str, writer: str) -> BatchCommitted:
        """The entry of its writer, not stamped."""
        correction = self.correction
        return BatchCommitted.model_construct(
            **UNSTAMPED,
            table=table,
            transaction=self.transaction,
            writer=writer,
            batch_id=self.batch_id,
            version=self.version,
            corrected_at=None if correction is None else correction.offset,
            correction=None if correction is None else correction.event_id,
            generation=self.generation,
            edition=self.edition,
        )

    def covers(self, batch_id: int | None) -> bool:
        """Whether this batch of the writer is committed: batch ids rise, so smaller ones are, too."""
        return batch_id is not None and self.batch_id is not None and batch_id <= self.batch_id


class CommittedBatches(MutableMapping[str, CommittedBatch]):
    """The last committed batch of each writer of a table, the last one entered last. Each is kept as one string of bytes."""

    __slots__ = ("_packed",)

    def __init__(self) -> None:
        self._packed: dict[str, bytes] = {}

    def __getitem__(self, writer: str) -> CommittedBatch:
        batch_id, transaction, version, generation, *more = json.loads(self._packed[writer])
        offset, event_id, edition = (*more, None, None, None)[:3]
        corrected = None if event_id is None else Correction(offset, event_id)
        return CommittedBatch(batch_id, transaction, version, corrected, generation, edition)

    def __setitem__(self, writer: str, batch: CommittedBatch) -> None:
        fields = [batch.batch_id, batch.transaction, batch.version, batch.generation]
        if batch.correction is not None:
            fields += [batch.correction.offset, batch.correction.event_id]
        elif batch.edition is not None:
            fields += [None, None]
        if batch.edition is not None:
            fields.append(batch.edition)
        self._packed.pop(writer, None)
        self._packed[writer] = _encode(fields).encode()

    def __contains__(self, writer: object) -> bool:
        return writer in self._packed

    def __delitem__(self, writer: str) -> None:
        del self._packed[writer]

    def __iter__(self) -> Iterator[str]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)

    def __repr__(self) -> str:
        return f"CommittedBatches({dict(self)})"


@dataclass(slots=True)
class LedgerEntries:
    """The entries in force of one table."""

    batches: CommittedBatches = field(default_factory=CommittedBatches)
    _losses: dict[str, bytes] = field(default_factory=dict)

    def losses(self) -> Iterator[tuple[str, int, tuple[Marker, ...]]]:
        """Each writer that has lost conflicts, how many in a row, and in which partitions."""
        for writer, packed in self._losses.items():
            losses, places = json.loads(packed)
            lost_on = tuple(
                Marker(partition=partition, file_group=file_group, operation=operation)
                for partition, file_group, operation in places
            )
            yield writer, losses, lost_on

    def keep_losses(self, writer: str, losses: int, lost_on: tuple[Marker, ...]) -> None:
        """Keep what a writer has lost. With no losses, forget the writer."""
        if not losses:
            self._losses.pop(writer, None)
            return
        places = [[each.partition, each.file_group, each.operation] for each in lost_on]
        self._losses[writer] = _encode([losses, places]).encode()

    def keep_all_losses(self, losses: Mapping[str, int], lost_on: Mapping[str, tuple[Marker, ...]]) -> None:
        """Keep what the table's state has, in place of what is kept."""
        self._losses.clear()
        for writer, count in losses.items():
            self.keep_losses(writer, count, lost_on.get(writer, ()))

    def __bool__(self) -> bool:
        return bool(self.batches) or bool(self._losses)


class Ledger:
    """The entries in force of one partition."""

    def __init__(self) -> None:
        self.tables: dict[str, LedgerEntries] = {}
        self.to_repeat: dict[tuple[Kind, str, str], None] = {}
        """Kind, table and writer of the entries in force that are not the last of their keys, in the order of the topic."""
        self._term: str | None = None
        self._corrected = False
        """Whether an entry has a correction: most ledgers have none, and a pass over a million entries takes a second."""

    def add(self, record: LedgerRecord) -> None:
        if isinstance(record, PartitionTaken):
            self._term = record.term
            return
        entries = self.tables.get(record.table)
        if entries is None:
            entries = self.tables[record.table] = LedgerEntries()
        key: tuple[Kind, str, str] = (record.type, record.table, record.writer)
        if isinstance(record, BatchCommitted):
            batch = batch_of(record)
            known = record.writer in entries.batches
            in_force = not known or batch.rank >= entries.batches[record.writer].rank
            if in_force:
                entries.batches[record.writer] = batch
                self._corrected = self._corrected or batch.correction is not None
        else:
            in_force = _losses_count(record, self._term)
            if in_force:
                entries.keep_losses(record.writer, record.losses, record.lost_on)
        if not in_force:
            self.to_repeat[key] = None
        elif self.to_repeat:
            self.to_repeat.pop(key, None)

    def last_correction(self) -> Correction | None:
        """The correction with the largest offset among the entries in force."""
        if not self._corrected:
            return None
        found = (
            batch.correction
            for entries in self.tables.values()
            for batch in entries.batches.values()
            if batch.correction
        )
        return max(found, key=lambda each: each.offset, default=None)

    def drop_offsets(self) -> None:
        """Drop the offsets of all corrections, and have their entries recorded again (rule 5)."""
        for uri, entries in self.tables.items() if self._corrected else ():
            for writer, batch in list(entries.batches.items()):
                if batch.correction is not None:
                    entries.batches[writer] = replace(batch, correction=None, generation=batch.generation + 1)
                    self.to_repeat["batch-committed", uri, writer] = None

    def entries(self) -> Iterator[BatchCommitted]:
        for uri, entries in list(self.tables.items()):
            for writer, batch in list(entries.batches.items()):
                yield batch.to_entry(uri, writer)


def losses_entry(
    table: str, writer: str, losses: int, lost_on: tuple[Marker, ...] = (), transaction: str = ""
) -> ConflictsLost:
    """The entry of what a writer has lost in a row, not stamped. `transaction`: the one that lost last."""
    return ConflictsLost.model_construct(
        **UNSTAMPED, table=table, transaction=transaction, writer=writer, losses=losses, lost_on=lost_on
    )


def batch_of(entry: BatchCommitted) -> CommittedBatch:
    """The batch of a ledger entry."""
    known = entry.corrected_at is not None and entry.correction is not None
    correction = Correction(entry.corrected_at or 0, entry.correction or "") if known else None
    return CommittedBatch(
        entry.batch_id, entry.transaction, entry.version, correction, entry.generation, entry.edition
    )


class InForce:
    """Selects the entries in force of one partition as they were published, for a reader that keeps them in its own form."""

    def __init__(self) -> None:
        self._ranks: dict[tuple[str, str], tuple[int, int, bool, int]] = {}
        self._term: str | None = None

    def replaces(self, record: LedgerRecord) -> LedgerEventUnion | None:
        """The next record of the topic, if it is in force now, in place of the earlier one of its type, table and writer."""
        if isinstance(record, PartitionTaken):
            self._term = record.term
            return None
        if isinstance(record, ConflictsLost):
            return record if _losses_count(record, self._term) else None
        key, rank = (record.table, record.writer), batch_of(record).rank
        if key in self._ranks and rank < self._ranks[key]:
            return None
        self._ranks[key] = rank
        return record


def _losses_count(record: ConflictsLost, term: str | None) -> bool:
    return term is None or record.term in ("", term)
