"""What the logs have, from which the oracles judge: transactions, take-overs, completions, and what Kafka has lost of them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from lakewarden.events import (
    LEDGER_EVENT,
    AbortRequested,
    BatchCommitted,
    CommitCompleted,
    CommitGranted,
    CommitIntent,
    CommitRequested,
    LedgerCorrected,
    MarkerCreated,
    TransactionAbandoned,
    WriterEventUnion,
    WriterHeartbeat,
    decode,
)
from tests.simulation.timeline import Timeline
from tests.simulation.whole.broker import Record
from tests.simulation.whole.histories import History, TakeOver, forget_events
from tests.simulation.whole.ledger_knowledge import Completion, LedgerKnowledge
from tests.simulation.whole.scenario import TOPICS
from tests.simulation.whole.table import LakeTable


class LogKnowledge:
    """What the logs have. `partition_of`: the partition of a table."""

    def __init__(
        self, timeline: Timeline, tables: Mapping[str, LakeTable], partition_of: Callable[[str], int]
    ) -> None:
        self._timeline = timeline
        self._tables = tables
        self.partition_of = partition_of
        self.lacking: Callable[[int], str | None] = lambda _: None
        """The topic of which a partition lacks something that its checkpoint relies on."""
        self.ledger_lacks: Callable[[int], bool] = lambda _: False
        """Whether a partition's ledger lacks something that its checkpoint relies on."""
        self.unsure: Callable[[int], bool] = lambda _: False
        """Whether `writers` was deleted since a partition's last checkpoint: what is left may show that, or may not."""
        self.histories: dict[str, History] = {}
        self.takeovers: dict[str, TakeOver] = {}
        """By term."""
        self._takes: dict[int, list[tuple[int, str]]] = defaultdict(list)
        """By partition: the offset and the term of each `partition-taken`."""
        self.terms: dict[int, str] = {}
        """By partition: the term in force."""
        self._back_in_force: dict[int, str] = {}
        """By partition that has lost a `partition-taken`: the last term that is left."""
        self.taken_over_at: dict[int, float] = {}
        self.committed: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        """By table and writer: the offset of each completion in the log, and its batch."""
        self.ledger = LedgerKnowledge(partition_of, self._completions)
        self.losses: dict[tuple[str, str], tuple[int, int]] = {}
        """By table and writer: losses in a row as last published, and that decision's `cause_offset`."""
        self.unclear_losses: set[tuple[str, str]] = set()
        """By table and writer: those whose losses in a row the ledger may have lost, or may never have got."""
        self.lost_at: dict[int, float] = {}
        """By partition: when records were lost last."""
        self.editions: dict[tuple[str, str], tuple[int, str, int]] = {}
        """Of writers whose last batch was lowered: the offset of the correction, the edition, and the batch that it states."""
        self.overlooked: set[str] = set()
        """Transactions with an event that its owner can't read."""

    def on_writer_event(self, event: WriterEventUnion, record: Record) -> None:
        """An honest event was written to `writers`."""
        if isinstance(event, CommitIntent):
            self.histories.setdefault(
                event.transaction,
                History(
                    event.table,
                    event.writer,
                    event.batch_id,
                    record.offset,
                    event.priority,
                    len(self.histories),
                    record.at,
                    observed=event.observed,
                    strict=event.conflict_rule == "file-group",
                    ordered=event.conflict_rule == "ordered",
                    other_lock=event.lock not in (None, self._tables[event.table].lock),
                ),
            ).touch(event.scope, record.offset)
        if isinstance(event, LedgerCorrected) and event.edition is not None:
            key, last = (event.table, event.writer), -1 if event.batch_id is None else event.batch_id
            self.editions[key] = record.offset, event.edition, last
            self.committed[key][:] = [each for each in self.committed[key] if each[1] <= last]
        history = self.histories.get(event.transaction)
        if history is None:
            return
        if isinstance(event, AbortRequested):
            if history.is_open() and history.abort_requested is None:
                history.abort_requested = record.offset
            return
        history.events.append((record.offset, record.at))
        if isinstance(event, CommitRequested | WriterHeartbeat):
            history.seqs.append((record.offset, event.seq))
        if isinstance(event, CommitRequested | MarkerCreated | CommitCompleted):
            history.touch(event.markers, record.offset)
        if isinstance(event, CommitRequested) and history.requested is None:
            history.requested = record.offset
        history.abandoned = history.abandoned or isinstance(event, TransactionAbandoned)
        if isinstance(event, TransactionAbandoned | CommitCompleted) and history.gone_at is None:
            history.gone_at = record.offset
        if isinstance(event, CommitCompleted):
            history.completed = history.completed or record.offset
            overlooked = event.transaction in self.overlooked or history.granted_at == -1
            history.unreported = history.unreported or overlooked or history.intent_lost
            if event.batch_id is not None and not history.unreported:
                self.committed[history.table, history.writer].append((record.offset, event.batch_id))

    def on_taken(self, term: str, record: Record) -> None:
        """An agent has taken a partition over, or has published that again."""
        if term not in self.takeovers:
            self.takeovers[term] = TakeOver(record.partition, record.at, self.lacking(record.partition))
        self._takes[record.partition].append((record.offset, term))
        self.terms[record.partition] = term
        self._back_in_force.pop(record.partition, None)
        self.taken_over_at[record.partition] = record.at

    def counts(self, partition: int, term: str | None) -> bool:
        """Whether decisions of this term count: the log announced it last, or does so since it has lost records."""
        in_force = self.terms.get(partition)
        return term in {in_force, self._back_in_force.get(partition, in_force)}

    def on_ledger_record(self, record: Record) -> None:
        event = decode(LEDGER_EVENT, record.value)
        if isinstance(event, BatchCommitted) and event.batch_id is not None:
            self.ledger.on_entry((event.table, event.writer), event.batch_id)
            self._on_reported(event.table, event.writer, event.batch_id)

    def on_ledger_loss(self, partition: int, left: Iterable[Record]) -> None:
        """The ledger has lost all records but these."""
        entries: list[tuple[tuple[str, str], int]] = []
        for record in left:
            entry = decode(LEDGER_EVENT, record.value)
            if isinstance(entry, BatchCommitted) and entry.batch_id is not None:
                entries.append(((entry.table, entry.writer), entry.batch_id))
        self.ledger.on_loss(partition, self._timeline.now, entries)
        self._losses_are_unclear(partition)

    def _losses_are_unclear(self, partition: int) -> None:
        self.unclear_losses |= {each for each in self.losses if self.partition_of(each[0]) == partition}

    def on_loss(self, topic: str, partition: int, beginning: int, end: int) -> None:
        """`writers` or `decisions` has lost its records before `beginning` and from `end` on."""
        self.lost_at[partition] = self._timeline.now
        if topic == TOPICS.decisions:
            self._losses_are_unclear(partition)
            left = [each for each in self._takes[partition] if beginning <= each[0] < end]
            if left:
                self._back_in_force[partition] = left[-1][1]
            self._takes[partition] = left
        for history in self.histories.values():
            if self.partition_of(history.table) != partition:
                continue
            if topic == TOPICS.writers:
                forget_events(history, beginning, end)
            else:
                if history.granted_at is not None and not beginning <= history.granted_at < end:
                    history.granted_at = -1
                if history.ended_at is not None and not beginning <= history.ended_at < end:
                    history.ended = history.ended_at = None
            key = history.table, history.writer
            if history.completed is not None and -1 in (history.completed, history.granted_at):
                history.unreported = (history.batch or 0) > self.ledger.in_ledger.get(key, -1)
        for key, committed in self.committed.items():
            if self.partition_of(key[0]) == partition:
                known = self.ledger.in_ledger.get(key, -1)
                reported = {
                    each.batch
                    for each in self.histories.values()
                    if (each.table, each.writer) == key and each.completed is not None and not each.unreported
                }
                kept = [each for each in committed if each[1] <= known or each[1] in reported]
                gone = topic == TOPICS.writers
                committed[:] = [
                    (-1 if gone and offset >= end and batch <= known else offset, batch)
                    for offset, batch in kept
                ]

    def last_batch(self, table: str, writer: str) -> int:
        """The last batch that is committed according to the logs, or the ledger, which may not have the last correction yet."""
        found = [batch for _, batch in self.committed[table, writer]]
        lowered = self.editions.get((table, writer))
        stated = self.ledger.in_ledger.get((table, writer), -1) if lowered is None else lowered[2]
        return max([stated, *found])

    def on_overlooked(self, transaction: str) -> None:
        """The owner of the partition has already read another record at the offset of an event of this transaction."""
        self.overlooked.add(transaction)

    def on_start(self, partition: int, start: int) -> None:
        """An owner reads `writers` from here on. Intents that came to lower offsets after a loss are overlooked."""
        lost_at = self.lost_at.get(partition, math.inf)
        self.overlooked |= {
            name
            for name, each in self.histories.items()
            if self.partition_of(each.table) == partition
            and each.sequence < start
            and each.opened_at >= lost_at
            and not each.answered
        }

    def on_loaded(self, term: str, end: int) -> None:
        """An owner has read decisions and ledger, and replays `writers` up to its end."""
        taken = self.takeovers.get(term or "")
        if taken is not None:
            taken.end = end
            lost_since = self.lost_at.get(taken.partition, -1.0) >= taken.at
            same = self.lacking(taken.partition) == taken.lacking
            taken.sure = same and not (lost_since or self.unsure(taken.partition))

    def may_lack(self, term: str | None) -> bool:
        """Whether the owner of this term may lack something that was in the log."""
        taken = self.takeovers.get(term or "")
        return taken is not None and (taken.lacking is not None or not taken.sure)

    def must_know(self, grant: CommitGranted, history: History, batch: int, offset: int) -> bool:
        """Whether the agent that granted must know of this committed batch, whose completion is at this offset."""
        return self.ledger.must_know(grant.term, (history.table, history.writer), batch, offset)

    def overtaken(self, history: History) -> int:
        """How many transactions with a later intent may have computed on its places and ended while it waited in the queue."""
        return sum(
            other.table == history.table
            and other.order > history.order
            and other.admitted
            and not (history.admitted and other.admitted_at > history.admitted_at)
            and history.meets(other, 2**62)
            for other in self.histories.values()
        )

    def losses_of(self, history: History) -> int:
        """The losses in a row of a transaction's writer."""
        return self.losses.get((history.table, history.writer), (0, 0))[0]

    def has_committed_since(self, history: History) -> bool:
        """Whether the writer has committed after these losses."""
        _, since = self.losses[history.table, history.writer]
        return any(offset >= since for offset, _ in self.committed[history.table, history.writer])

    def _on_reported(self, table: str, writer: str, batch: int) -> None:
        for history in self.histories.values():
            known = (history.table, history.writer, history.batch) == (table, writer, batch)
            if known and history.unreported and history.completed is not None:
                history.unreported = False
                self.committed[table, writer].append((history.completed, batch))

    def _completions(self) -> Iterable[Completion]:
        for history in self.histories.values():
            if history.completed is not None and history.batch is not None and not history.unreported:
                key = history.table, history.writer
                yield Completion(key, history.batch, history.sequence, history.completed)
