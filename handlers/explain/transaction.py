"""Builds the explanation of one transaction from the log alone.

- The explainer replays the table with the code that a restarting agent uses (`facts.apply_event`, `machine.replay_decision`,
  `replay.PublishedDecisions`). After each event it reads the blockers from the replayed state: they are the blockers of that
  moment.
- Steps are in the order of offsets: a decision follows the event at its `cause_offset`, as in every replay. Lock steps come from
  another topic, and an agent takes a partition over between two decisions: these are placed by Kafka's record times.
- An event of another transaction is a step only if the transaction waits because of it.
- A transaction that is answered in the step that read its event did not wait.
- Why the victim of a conflict lost, with which events both sides touched the place, and what ended a wait, is what the decision
  says. One of an earlier release doesn't say it.
- A decision that doesn't count (`replay.py`) is a step without effect.
- Memory: the table's state, its decisions, and the name and outcome of a bounded number of transactions.
- A transaction has its name (writer, batch, offset) from its intent. Its life gets the events and decisions that count.
- While it is open, its phase is that of the replayed state; afterwards its outcome follows from its life.
- The table's state forgets transactions, and an explanation names them long after. So `MAX_REMEMBERED` are kept, the latest ones,
  beside those that the explanation names and those that the state has.

Times are epoch milliseconds.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from lakewarden import events
from lakewarden.handlers.explain import timeline
from lakewarden.handlers.explain.life import UNNAMED_COMMIT, End, Life
from lakewarden.handlers.explain.waits import waits
from lakewarden.handlers.table.conflicts import rule_for
from lakewarden.handlers.table.facts import apply_event, why_ignored
from lakewarden.handlers.table.footprints import Overlap
from lakewarden.handlers.table.machine import replay_decision
from lakewarden.handlers.table.replay import Position, PublishedDecisions
from lakewarden.handlers.table.state import TableSettings, TableState
from lakewarden.handlers.table.transactions import OPEN, Phase, Transaction

MOST_SHOWN = 20
"""Places, names and partitions that one step lists. Its counters count more of them."""
MAX_REMEMBERED = 20_000
"""Transactions whose name and life are kept, beside those that the explanation names."""
_ENDS = {
    End.COMMITTED: (Phase.COMMITTED, None),
    End.SKIPPED: (Phase.COMMITTED, "already-committed"),
    End.UNKNOWN: (Phase.UNKNOWN, "outcome-unknown"),
}
"""The phase and the reason of an outcome. Other ends are aborts."""


def phase_of(state: TableState, transaction: str) -> Phase | None:
    """The phase of a transaction, open or ended, or None if the state doesn't have it."""
    known = state.transactions.get(transaction) or state.closed.get(transaction)
    return None if known is None else known.phase


class Explainer:
    """Create it with the table's decisions and take-overs, `add` every event of the table in order, then call `explanation`."""

    def __init__(
        self,
        transaction: timeline.TransactionRef,
        table: str,
        decisions: Iterable[tuple[timeline.RecordRef, events.DecisionRecord]],
        *,
        max_losses: int = 3,
    ) -> None:
        self._id, self._table = transaction.id, table
        self._state = TableState(table, TableSettings(max_losses=max_losses))
        self._outcomes = Outcomes(transaction, self._state)
        self._steps: list[timeline.Step] = []
        self._causes: set[str] = set()
        self._touched_at: set[int | None] = set()
        self._named: dict[str | int | None, timeline.EventRef] = {}
        """The events that decisions name, by id and by offset."""
        self._seen: set[str] = set()
        self._reading: tuple[timeline.RecordRef, events.WriterEventUnion] | None = None
        self._began = 0
        self._opened: timeline.RecordRef | None = None
        self._requested: timeline.RecordRef | None = None
        self._waited_for: set[str] = set()
        self._repeated = self._markers = 0
        self._load(decisions)

    def _load(self, decisions: Iterable[tuple[timeline.RecordRef, events.DecisionRecord]]) -> None:
        known = [(record, one) for record, one in decisions if not isinstance(one, events.LocksHandedOver)]
        self._published = PublishedDecisions(
            Position(0, None), ((record.offset, decision) for record, decision in known)
        )
        counting = {each.event_id for each in self._published.all()}
        self._records = {decision.event_id: record for record, decision in known}
        self._take_overs: deque[tuple[timeline.RecordRef, events.PartitionTaken]] = deque()
        void: list[tuple[int, timeline.Step]] = []
        take_over: tuple[timeline.RecordRef, events.PartitionTaken] | None = None
        for record, decision in known:
            if isinstance(decision, events.PartitionTaken):
                take_over = (record, decision)
                self._take_overs.append(take_over)
            elif decision.event_id not in counting:
                if decision.transaction == self._id:
                    because = timeline.Because(without_effect=True)
                    if take_over is not None:
                        because = replace(because, taken_by=take_over[1].agent, taken_at=take_over[0])
                    void.append((decision.cause_offset, timeline.Step.of(record, decision, because)))
            elif self._concerns(decision):
                self._causes.add(decision.cause or "")
                if isinstance(decision, events.Abort):
                    for each in decision.conflicts:
                        self._touched_at |= {each.touched_at, each.other_touched_at}
        self._void = deque(sorted(void, key=lambda each: each[0]))

    def _concerns(self, decision: events.DecisionEventUnion) -> bool:
        return decision.transaction == self._id or (
            isinstance(decision, events.Abort)
            and any(each.other_transaction == self._id for each in decision.conflicts)
        )

    # -- the log -----------------------------------------------------------------------------------------------------

    def add(self, record: timeline.RecordRef, event: events.WriterEventUnion) -> None:
        """Add the table's next event, and the decisions that are due with it."""
        self._add_take_overs(lambda taken: taken.recorded_ms <= record.recorded_ms)
        self._reading, self._began = (record, event), len(self._steps)
        reading = timeline.EventRef(event.type, event.transaction, event.writer, record)
        if event.event_id in self._causes:
            self._named.setdefault(event.event_id, reading)
        if record.offset in self._touched_at:
            self._named[record.offset] = reading
        own = event.transaction == self._id and not isinstance(event, events.LedgerCorrected)
        phase_before = phase_of(self._state, event.transaction)
        markers_before = self._marker_count()
        # An unknown transaction may have ended before the first event that was read.
        ignored = phase_before is not None and why_ignored(self._state, event) is not None
        apply_event(self._state, event, record.offset, record.recorded_ms / 1000)
        if not ignored:
            self._outcomes.note(record, event)
        if own and ignored:
            because = timeline.Because(phase_before=phase_before, without_effect=True)
            self._append(timeline.Step.of(record, event, because))
        elif own:
            self._add_event(record, event, phase_before, max(0, self._marker_count() - markers_before))
        self._apply_due(record.offset, event.event_id)

    def explanation(
        self, locks: Iterable[tuple[timeline.RecordRef, events.AuditEventUnion]] = ()
    ) -> timeline.Explanation:
        """The explanation, after all events were added. `locks`: from `audit`, for this table."""
        self._apply_due(None, None)
        outcomes, outcome = self._outcomes, self._outcomes.outcome(self._id)
        others = tuple(outcomes.named())
        kept = self._state.transactions.get(self._id)
        return timeline.Explanation(
            transaction=outcomes.explained,
            table=self._table,
            outcome=outcome,
            waits_for=() if kept is None else tuple(self._blockers(kept)),
            markers=self._markers,
            repeated=self._repeated,
            steps=tuple(timeline.with_locks(self._steps, locks, self._opened, outcome.record)),
            others=others,
            attempts=tuple(outcomes.attempts()),
        )

    def _apply_due(self, up_to: int | None, event_id: str | None) -> None:
        for decision in self._published.pop_due(up_to):
            record = self._records[decision.event_id]
            self._add_take_overs(lambda taken: taken.offset < record.offset)  # noqa: B023 - called before the next iteration
            if decision.cause != event_id:
                self._add_wait()
            self._add_decision(record, decision)
            before = phase_of(self._state, decision.transaction)
            replay_decision(self._state, decision, record.recorded_ms / 1000)
            if before in OPEN or before is None:
                self._outcomes.note(record, decision)
        self._add_wait()
        while self._void and (up_to is None or self._void[0][0] <= up_to):
            self._append(self._void.popleft()[1])

    def _marker_count(self) -> int:
        kept = self._state.transactions.get(self._id)
        return 0 if kept is None else kept.markers

    # -- its own events ----------------------------------------------------------------------------------------------

    def _append(self, step: timeline.Step) -> None:
        timeline.append(self._steps, step, MOST_SHOWN)

    def _add_event(
        self, record: timeline.RecordRef, event: events.WriterEventUnion, phase_before: Phase | None, new: int
    ) -> None:
        if event.event_id in self._seen:
            self._repeated += 1
            return
        self._seen.add(event.event_id)
        self._markers += new
        because = timeline.Because(phase_before=phase_before)
        match event:
            case events.CommitIntent() if phase_before is None:
                self._opened = record
                before = [each for each in self._state.open() if each.id != self._id]
                alongside = tuple(_reference(each) for each in before[:MOST_SHOWN])
                because = replace(because, open_before=len(before), alongside=alongside)
            case _ if phase_before not in OPEN and not _may_be_late(event, phase_before):
                because = replace(because, without_effect=True)
            case events.WriterHeartbeat():
                return
            case events.MarkerCreated(markers=markers):
                partitions = tuple(dict.fromkeys(each.partition for each in markers))[:MOST_SHOWN]
                because = replace(because, markers=len(markers), new=new, partitions=partitions)
            case events.CommitRequested() if self._requested is None:
                self._requested, self._waited_for = record, set()
        self._append(timeline.Step.of(record, event, because))

    # -- waits ------------------------------------------------------------------------------------------

    def _blockers(self, this: Transaction) -> Iterator[timeline.Blocker]:
        for each in waits(self._state, this):
            yield timeline.Blocker(
                self._outcomes.refer_to(each.other.id, each.other.writer), each.reason, _shared(each.overlaps)
            )

    def _add_wait(self) -> None:
        this = self._state.transactions.get(self._id)
        if this is None or this.phase not in (Phase.QUEUED, Phase.WAITING) or self._reading is None:
            return
        record, event = self._reading
        if isinstance(event, events.WriterHeartbeat):
            return
        blockers = tuple(self._blockers(this))
        names = {each.transaction.id for each in blockers}
        if names <= self._waited_for:
            return
        self._waited_for |= names
        # The event that is being read is among the last steps, unless it is another transaction's.
        last = range(max(0, self._began - 1), len(self._steps))
        at = next((each for each in reversed(last) if self._steps[each].record == record), len(self._steps))
        step = [*self._steps, timeline.Step.of(record, event)][at]
        awaited: timeline.Awaited = "admission" if this.phase is Phase.QUEUED else "grant"
        because = replace(step.because, awaited=awaited, waits_for=blockers)
        self._steps[at:] = [replace(step, because=because), *self._steps[at + 1 :]]

    def _freed_by(
        self, decision: events.Admitted | events.CommitGranted
    ) -> timeline.RelatedTransaction | None:
        """The transaction whose end freed this one, as the agent says."""
        if decision.freed_by is None:
            return None
        kept = self._state.transactions.get(decision.freed_by)
        self._outcomes.refer_to(decision.freed_by, "" if kept is None else kept.writer)
        return self._outcomes.related(decision.freed_by)

    def _add_take_overs(self, is_due: Callable[[timeline.RecordRef], bool]) -> None:
        while self._take_overs and is_due(self._take_overs[0][0]):
            record, taken = self._take_overs.popleft()
            if phase_of(self._state, self._id) in OPEN:
                self._append(timeline.Step.of(record, taken))

    # -- decisions ---------------------------------------------------------------------------------------------------

    def _add_decision(self, record: timeline.RecordRef, decision: events.DecisionEventUnion) -> None:
        because = timeline.Because(cause=self._named.get(decision.cause))
        if decision.transaction != self._id:
            if isinstance(decision, events.Abort) and decision.transaction in self._state.transactions:
                entries = [each for each in decision.conflicts if each.other_transaction == self._id]
                for each in self._lost_conflicts(decision, entries):
                    self._outcomes.refer_to(decision.transaction, decision.writer)
                    self._append(timeline.Step.of(record, decision, replace(because, lost_conflicts=(each,))))
            return
        match decision:
            case events.Admitted():
                waited, freed_by = _milliseconds_between(self._opened, record), self._freed_by(decision)
                self._waited_for = set()
                because = replace(because, waited_ms=waited, freed_by=freed_by)
            case events.CommitGranted():
                waited, freed_by = _milliseconds_between(self._requested, record), self._freed_by(decision)
                unblocked = waited
                if freed_by is not None:
                    unblocked = min(waited, _milliseconds_between(freed_by.outcome.record, record))
                because = replace(because, waited_ms=waited, freed_by=freed_by, unblocked_ms=unblocked)
            case events.Abort():
                because = replace(
                    because,
                    phase_before=phase_of(self._state, self._id),
                    lost_conflicts=tuple(self._lost_conflicts(decision, decision.conflicts)),
                )
            case events.GrantRenewed() | events.AlreadyCommitted():
                pass
        self._append(timeline.Step.of(record, decision, because))

    def _lost_conflicts(
        self, abort: events.Abort, entries: Iterable[events.ConflictEntry]
    ) -> Iterator[timeline.LostConflict]:
        """The conflicts of an abort, one for each winner. The abort is not applied to the state yet."""
        firsts: dict[str, events.ConflictEntry] = {}
        for entry in entries:
            firsts.setdefault(entry.other_transaction, entry)
        victim = self._state.transactions.get(abort.transaction)
        for winner_id, first in firsts.items():
            winner = self._state.transactions.get(winner_id)
            older = conflict_rule = None
            if victim is not None and winner is not None:
                older, conflict_rule = victim.sequence - winner.sequence, rule_for(victim, winner)
            yield timeline.LostConflict(
                self._outcomes.refer_to(winner_id, first.other_writer),
                phase_of(self._state, winner_id),
                self._named.get(first.touched_at),
                self._named.get(first.other_touched_at),
                first.rule,
                older,
                conflict_rule,
            )


def _may_be_late(event: events.WriterEventUnion, phase: Phase | None) -> bool:
    """Whether an event counts after the end of its transaction."""
    abandoned = isinstance(event, events.TransactionAbandoned) and phase is Phase.UNKNOWN
    return abandoned or isinstance(event, events.CommitCompleted)


def _reference(transaction: Transaction) -> timeline.TransactionRef:
    return timeline.TransactionRef(
        transaction.id, transaction.writer, transaction.batch_id, transaction.sequence
    )


def _shared(overlaps: Iterable[Overlap]) -> tuple[events.Marker, ...]:
    found = dict.fromkeys((each.partition, each.file_group, each.mine.operation) for each in overlaps)
    return tuple(
        events.Marker.model_construct(partition=partition, file_group=file_group, operation=operation)
        for partition, file_group, operation in list(found)[:MOST_SHOWN]
    )


def _milliseconds_between(first: timeline.RecordRef | None, last: timeline.RecordRef) -> int:
    return 0 if first is None else max(0, last.recorded_ms - first.recorded_ms)


# -- the transactions of the table -------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Remembered:
    """A transaction of the table."""

    ref: timeline.TransactionRef
    life: Life
    record: timeline.RecordRef | None = None
    """The record that ended it."""
    named: bool = False
    """Whether the explanation names it."""


class Outcomes:
    """Note each event and decision of the table after it was applied to `state`. `explained`: the transaction to explain."""

    def __init__(self, explained: timeline.TransactionRef, state: TableState) -> None:
        self.explained = explained
        self._id = explained.id
        self._state = state
        self._remembered: dict[str, _Remembered] = {}

    def note(
        self, record: timeline.RecordRef, event: events.WriterEventUnion | events.DecisionEventUnion
    ) -> None:
        """Note an event or a decision that counts."""
        name = event.transaction
        if isinstance(event, events.CommitIntent) and name not in self._remembered:
            self._keep(timeline.TransactionRef(name, event.writer, event.batch_id, record.offset))
            self._forget()
        if name == self._id and isinstance(event, events.CommitCompleted | events.Abort):
            self._keep(self.explained)  # its intent is no longer in the log
        known = self._remembered.get(name)
        if known is None or not known.life.note(event, record.recorded_ms / 1000):
            return
        ended = known.record is None and phase_of(self._state, name) not in OPEN
        if ended or isinstance(event, events.CommitCompleted):
            known.record = record

    def _keep(self, ref: timeline.TransactionRef) -> _Remembered:
        if ref.id == self._id:
            self.explained = ref
        return self._remembered.setdefault(ref.id, _Remembered(ref, Life(ref.id, ref.writer)))

    def _forget(self) -> None:
        if len(self._remembered) <= MAX_REMEMBERED:
            return
        for name, each in self._remembered.items():
            if not each.named and name != self._id and name not in self._state.transactions:
                del self._remembered[name]
                return

    def refer_to(self, transaction: str, writer: str) -> timeline.TransactionRef:
        """The reference to a transaction that the explanation names."""
        known = self._remembered.get(transaction) or self._keep(timeline.TransactionRef(transaction, writer))
        known.named = True
        return known.ref

    def outcome(self, transaction: str) -> timeline.Outcome:
        """How a transaction has ended, or its phase."""
        known, phase = self._remembered.get(transaction), phase_of(self._state, transaction)
        if known is None:
            return timeline.Outcome(None)
        life, record = known.life, known.record
        if record is None:
            return timeline.Outcome(phase, life.reason)  # the reason of a withdrawn grant
        ended, reason = _ENDS.get(life.end, (Phase.ABORTED, life.reason))
        lost_to = None
        if ended is Phase.ABORTED and "abandoned" in life.times:
            reason, lost_to = "abandoned", life.lost_commit
            if life.cause == "base-changed":
                lost_to = lost_to or UNNAMED_COMMIT
        return timeline.Outcome(ended, reason, life.version, record, life.made_by, lost_to)

    def related(self, transaction: str) -> timeline.RelatedTransaction:
        """A transaction that the explanation names, and its outcome."""
        return timeline.RelatedTransaction(self._remembered[transaction].ref, self.outcome(transaction))

    def named(self) -> Iterator[timeline.RelatedTransaction]:
        """The other transactions that the explanation names."""
        for name, each in self._remembered.items():
            if each.named and name != self._id:
                yield self.related(name)

    def attempts(self) -> Iterator[timeline.RelatedTransaction]:
        """The attempts of the explained transaction's batch; without a batch id, itself and its writer's next transaction."""
        this = self.explained
        if this.sequence is None:
            return
        same = [each.ref for each in self._remembered.values() if each.ref.writer == this.writer]
        if this.batch_id is not None:
            same = [each for each in same if each.batch_id == this.batch_id]
        else:
            same = [this, *(each for each in same if (each.sequence or 0) > this.sequence)][:2]
        yield from (self.related(each.id) for each in same)
