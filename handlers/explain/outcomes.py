"""The transactions of one table: under which name the log has them, and their lives (`life.py`).

- A transaction has its name (writer, batch, offset) from its intent. Its life gets the events and decisions that count.
- While it is open, its phase is that of the replayed state; afterwards its outcome follows from its life.
- The table's state forgets transactions, and an explanation names them long after. So `MAX_REMEMBERED` are kept, the latest ones,
  beside those that the explanation names and those that the state has.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from lakewarden import events
from lakewarden.handlers.explain.life import UNNAMED_COMMIT, End, Life
from lakewarden.handlers.explain.timeline import Outcome, RecordRef, RelatedTransaction, TransactionRef
from lakewarden.handlers.table.state import TableState
from lakewarden.handlers.table.transactions import OPEN, Phase

MAX_REMEMBERED = 20_000
"""Transactions whose name and life are kept, beside those that the explanation names."""
_ENDS = {
    End.COMMITTED: (Phase.COMMITTED, None),
    End.SKIPPED: (Phase.COMMITTED, "already-committed"),
    End.UNKNOWN: (Phase.UNKNOWN, "outcome-unknown"),
}
"""The phase and the reason of an outcome. Other ends are aborts."""


@dataclass(slots=True)
class _Remembered:
    """A transaction of the table."""

    ref: TransactionRef
    life: Life
    record: RecordRef | None = None
    """The record that ended it."""
    named: bool = False
    """Whether the explanation names it."""


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

    def note(self, record: RecordRef, event: events.WriterEventUnion | events.DecisionEventUnion) -> None:
        """Note an event or a decision that counts."""
        name = event.transaction
        if isinstance(event, events.CommitIntent) and name not in self._remembered:
            self._keep(TransactionRef(name, event.writer, event.batch_id, record.offset))
            self._forget()
        if name == self._id and isinstance(event, events.CommitCompleted | events.Abort):
            self._keep(self.explained)  # its intent is no longer in the log
        known = self._remembered.get(name)
        if known is None or not known.life.note(event, record.recorded_ms / 1000):
            return
        ended = known.record is None and phase_of(self._state, name) not in OPEN
        if ended or isinstance(event, events.CommitCompleted):
            known.record = record

    def _keep(self, ref: TransactionRef) -> _Remembered:
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

    def refer_to(self, transaction: str, writer: str) -> TransactionRef:
        """The reference to a transaction that the explanation names."""
        known = self._remembered.get(transaction) or self._keep(TransactionRef(transaction, writer))
        known.named = True
        return known.ref

    def outcome(self, transaction: str) -> Outcome:
        """How a transaction has ended, or its phase."""
        known, phase = self._remembered.get(transaction), phase_of(self._state, transaction)
        if known is None:
            return Outcome(None)
        life, record = known.life, known.record
        if record is None:
            return Outcome(phase, life.reason)  # the reason of a withdrawn grant
        ended, reason = _ENDS.get(life.end, (Phase.ABORTED, life.reason))
        lost_to = None
        if ended is Phase.ABORTED and "abandoned" in life.times:
            reason, lost_to = "abandoned", life.lost_commit
            if life.cause == "base-changed":
                lost_to = lost_to or UNNAMED_COMMIT
        return Outcome(ended, reason, life.version, record, life.made_by, lost_to)

    def related(self, transaction: str) -> RelatedTransaction:
        """A transaction that the explanation names, and its outcome."""
        return RelatedTransaction(self._remembered[transaction].ref, self.outcome(transaction))

    def named(self) -> Iterator[RelatedTransaction]:
        """The other transactions that the explanation names."""
        for name, each in self._remembered.items():
            if each.named and name != self._id:
                yield self.related(name)

    def attempts(self) -> Iterator[RelatedTransaction]:
        """The attempts of the explained transaction's batch; without a batch id, itself and its writer's next transaction."""
        this = self.explained
        if this.sequence is None:
            return
        same = [each.ref for each in self._remembered.values() if each.ref.writer == this.writer]
        if this.batch_id is None:
            later = [each for each in same if (each.sequence or 0) > this.sequence]
            same = [each for each in same if each == this] + later[:1]
        else:
            same = [each for each in same if each.batch_id == this.batch_id]
        yield from (self.related(each.id) for each in same)
