"""The transactions of one table: under which name the log has them, and how each has ended so far.

- A transaction has its name (writer, batch, offset) from its intent, and its outcome from the events and decisions that count.
  A completion is final: a commit is a fact, also after an abort.
- The table's state forgets transactions, and an explanation names them long after. So `MAX_REMEMBERED` are kept, the latest ones,
  beside those that the explanation names and those that the state has.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from lakewarden import events
from lakewarden.handlers.explain.life import UNNAMED_COMMIT, made_by
from lakewarden.handlers.explain.timeline import Outcome, RecordRef, RelatedTransaction, TransactionRef
from lakewarden.handlers.table.state import TableState
from lakewarden.handlers.table.transactions import OPEN, Phase

MAX_REMEMBERED = 20_000
"""Transactions whose name and outcome are kept, beside those that the explanation names."""

UNKNOWN_OUTCOME = Outcome(None)


@dataclass(slots=True)
class _Remembered:
    """A transaction of the table; `named`: the explanation names it."""

    transaction: TransactionRef
    outcome: Outcome
    named: bool = False

    def related(self) -> RelatedTransaction:
        return RelatedTransaction(self.transaction, self.outcome)


def phase_of(state: TableState, transaction: str) -> Phase | None:
    """The phase of a transaction, open or ended, or None if the state doesn't have it."""
    known = state.transactions.get(transaction) or state.closed.get(transaction)
    return None if known is None else known.phase


class Outcomes:
    """Note each event and decision of the table after it was applied to `state`. `explained`: the transaction to explain."""

    def __init__(self, explained: TransactionRef, state: TableState) -> None:
        self.explained = explained
        self._id = explained.id
        self._state = state
        self._remembered: dict[str, _Remembered] = {}

    def note_event(self, record: RecordRef, event: events.WriterEventUnion) -> None:
        if isinstance(event, events.CommitIntent) and event.transaction not in self._remembered:
            opened = TransactionRef(event.transaction, event.writer, event.batch_id, record.offset)
            self._remembered[event.transaction] = _Remembered(opened, Outcome(Phase.QUEUED))
            if event.transaction == self._id:
                self.explained = opened
            self._forget()
        known = self._remembered.get(event.transaction)
        if known is None and event.transaction == self._id and isinstance(event, events.CommitCompleted):
            known = self._remembered[self._id] = _Remembered(self.explained, UNKNOWN_OUTCOME)
        if known is None or known.outcome.phase is Phase.COMMITTED:
            return
        if isinstance(event, events.CommitCompleted):
            known.outcome = Outcome(Phase.COMMITTED, None, event.version, record, made_by(event))
        elif isinstance(event, events.TransactionAbandoned) and known.outcome.record is None:
            lost_to = event.lost_to or (UNNAMED_COMMIT if event.cause == "base-changed" else None)
            known.outcome = Outcome(Phase.ABORTED, "abandoned", record=record, lost_to=lost_to)
        elif (kept := self._state.transactions.get(event.transaction)) is not None and kept.phase in OPEN:
            known.outcome = Outcome(kept.phase)

    def note_decision(
        self, record: RecordRef, decision: events.DecisionEventUnion, phase_before: Phase | None
    ) -> None:
        """Note a decision that counts. `phase_before`: of its transaction, before the decision was applied."""
        known = self._remembered.get(decision.transaction)
        if known is None and decision.transaction == self._id and isinstance(decision, events.Abort):
            aborted = Outcome(Phase.ABORTED, decision.reason, record=record)
            self._remembered[self._id] = _Remembered(self.explained, aborted)
            return
        if known is None or phase_before not in OPEN:
            return
        phase = phase_of(self._state, decision.transaction) or Phase.ABORTED
        match decision:
            case events.Abort(reason=reason):
                # A revoked grant stays granted until its writer reports the outcome, or its lease expires.
                known.outcome = Outcome(phase, reason, record=None if phase is Phase.GRANTED else record)
            case events.AlreadyCommitted(version=version):
                known.outcome = Outcome(Phase.COMMITTED, "already-committed", version, record)
            case _:
                known.outcome = Outcome(phase)

    def _forget(self) -> None:
        if len(self._remembered) <= MAX_REMEMBERED:
            return
        for name, each in self._remembered.items():
            if not each.named and name != self._id and name not in self._state.transactions:
                del self._remembered[name]
                return

    def refer_to(self, transaction: str, writer: str) -> TransactionRef:
        """The reference to a transaction that the explanation names."""
        known = self._remembered.setdefault(
            transaction, _Remembered(TransactionRef(transaction, writer), UNKNOWN_OUTCOME)
        )
        known.named = True
        return known.transaction

    def blocker(self, transaction: str) -> RelatedTransaction:
        known = self._remembered[transaction]
        return RelatedTransaction(known.transaction, known.outcome)

    @property
    def explained_outcome(self) -> Outcome:
        return self._remembered[self._id].outcome if self._id in self._remembered else UNKNOWN_OUTCOME

    def named(self) -> Iterator[RelatedTransaction]:
        for name, each in self._remembered.items():
            if each.named and name != self._id:
                yield each.related()

    def attempts(self) -> Iterator[RelatedTransaction]:
        """The attempts of the explained transaction's batch; without a batch id, itself and its writer's next transaction."""
        this = self.explained
        if this.sequence is None:
            return
        same = [each for each in self._remembered.values() if each.transaction.writer == this.writer]
        if this.batch_id is None:
            later = [each for each in same if (each.transaction.sequence or 0) > this.sequence]
            same = [each for each in same if each.transaction == this] + later[:1]
        else:
            same = [each for each in same if each.transaction.batch_id == this.batch_id]
        yield from (each.related() for each in same)
