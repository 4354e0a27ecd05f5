"""The last transactions of each table with the times of their steps, to be drawn as the demo draws its own.

Times are those of Kafka's records. The two topics are read in any order, so the steps of a transaction are sorted by time.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from aiokafka.structs import ConsumerRecord

from lakewarden.agent.attempts.segments import segments
from lakewarden.agent.attempts.trace import Attempt, Outcome, Step
from lakewarden.events import (
    DECISION_RECORD,
    WRITER_EVENT,
    Abort,
    Admitted,
    AlreadyCommitted,
    CommitCompleted,
    CommitGranted,
    CommitIntent,
    CommitRequested,
    DecisionEventUnion,
    LocksHandedOver,
    PartitionTaken,
    TransactionAbandoned,
    Undecodable,
    WriterEventUnion,
    counts,
    decode,
)

MAX_OF_TABLE = 200
"""Transactions of one table, the last ones."""
MAX_TRANSACTIONS = 20_000
"""Transactions of all tables, about 3 KB each. Beyond, the table without an event for longest loses its own."""
MAX_WRITERS = 30
"""Rows of a drawing: the writers with the last transactions."""
_SKIPPED = (b'"type":"marker-created"', b'"type":"writer-heartbeat"', b'"type":"grant-renewed"')
"""Most records of a busy log. Those of a client that writes its JSON otherwise are decoded and skipped then."""


class Timelines:
    """The transactions of all tables."""

    def __init__(self) -> None:
        self._tables: OrderedDict[str, dict[str, Attempt]] = OrderedDict()
        self._terms: dict[int, str] = {}
        self._size = 0

    def add_event(self, record: ConsumerRecord) -> None:
        """Add a record of `writers`."""
        event = _decoded(WRITER_EVENT, record)
        if event is None:
            return
        match event:
            case CommitIntent(batch_id=batch_id):
                self._step(record, event, "intent", {}, batch_id)
            case CommitRequested():
                self._step(record, event, "requested", {})
            case CommitCompleted(version=version):
                self._step(record, event, "completed", {"version": version})
            case TransactionAbandoned(reason=reason):
                self._step(record, event, "abandoned", {"reason": reason})
            case _:
                pass

    def add_decision(self, record: ConsumerRecord) -> None:
        """Add a record of `decisions`. Those of an agent that was replaced don't count."""
        decision = _decoded(DECISION_RECORD, record)
        if decision is None or isinstance(decision, LocksHandedOver):
            return
        if isinstance(decision, PartitionTaken):
            self._terms[record.partition] = decision.term
            return
        if not counts(decision, self._terms.get(record.partition)):
            return
        match decision:
            case Admitted():
                self._step(record, decision, "admitted", {})
            case CommitGranted():
                self._step(record, decision, "granted", {})
            case AlreadyCommitted():
                self._step(record, decision, "already-committed", {})
            case Abort(reason=reason, conflicts=conflicts):
                others = list(dict.fromkeys(each.other_writer for each in conflicts))
                self._step(record, decision, "abort", {"reason": reason, "others": others})
            case _:
                pass

    def _step(
        self,
        record: ConsumerRecord,
        event: WriterEventUnion | DecisionEventUnion,
        what: str,
        detail: dict[str, Any],
        batch_id: int | None = None,
    ) -> None:
        attempts = self._tables.setdefault(event.table, {})
        self._tables.move_to_end(event.table)
        attempt = attempts.get(event.transaction)
        if attempt is None:
            attempt = attempts[event.transaction] = Attempt(event.transaction, event.writer, batch_id, 0)
            self._size += 1
            self._forget(attempts)
        if what == "intent":
            attempt.batch_id = batch_id
        if attempt.first(what) is None:
            step = Step(
                record.timestamp / 1000,
                what,
                event.table,
                event.writer,
                event.transaction,
                batch_id,
                0,
                detail,
            )
            attempt.steps.append(step)
            attempt.steps.sort(key=lambda each: each.at)

    def _forget(self, attempts: dict[str, Attempt]) -> None:
        if len(attempts) > MAX_OF_TABLE:
            del attempts[next(iter(attempts))]
            self._size -= 1
        while self._size > MAX_TRANSACTIONS:
            _, dropped = self._tables.popitem(last=False)
            self._size -= len(dropped)

    def drop_before(self, since: float) -> None:
        """Forget the tables without an event since then (epoch seconds)."""
        while self._tables:
            uri, attempts = next(iter(self._tables.items()))
            if max((each.steps[-1].at for each in attempts.values()), default=0.0) >= since:
                return
            del self._tables[uri]
            self._size -= len(attempts)

    def drawing(self, table: str, begin: float, end: float) -> dict[str, Any]:
        """What is drawn of a table between two times (epoch seconds): a row per writer, a bar per transaction."""
        shown = [
            each
            for each in self._tables.get(table, {}).values()
            if (each.ended or end) >= begin and each.started <= end
        ]
        writers = list(dict.fromkeys(each.writer for each in reversed(shown)))[:MAX_WRITERS]
        return {
            "begin": begin,
            "end": end,
            "writers": [
                {
                    "writer": name,
                    "attempts": [_bar(each, begin, end) for each in shown if each.writer == name],
                }
                for name in sorted(writers)
            ],
            "more_writers": len({each.writer for each in shown}) - len(writers),
        }


def _bar(attempt: Attempt, begin: float, end: float) -> dict[str, Any]:
    abort = attempt.first("abort")
    conflict = abort is not None and attempt.outcome is Outcome.CONFLICT
    return {
        "transaction": attempt.transaction,
        "batch_id": attempt.batch_id,
        "outcome": attempt.outcome.value,
        "started": attempt.started,
        "ended": attempt.ended,
        "aborted_at": abort.at if abort is not None and conflict else None,
        "lost_to": abort.detail["others"] if abort is not None and conflict else [],
        "segments": [
            {"begin": max(each.begin, begin), "end": each.end, "label": each.label, "colour": each.colour}
            for each in segments(attempt, end)
            if each.end >= begin
        ],
    }


def _decoded(kind: Any, record: ConsumerRecord) -> Any:
    value = record.value or b""
    if any(each in value for each in _SKIPPED):
        return None
    event = decode(kind, value)
    return None if isinstance(event, Undecodable) else event
