"""The last transactions of each table with the times of their steps, and what has ended in it lately.

The page draws them as the demo draws its own; the condition of a table (`handlers/explain/condition.py`) follows from the ends.

Times are those of Kafka's records. The two topics are read in any order, so the steps of a transaction are sorted by time.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import aclosing
from datetime import timedelta
from typing import Any

from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from lakewarden.agent.attempts.segments import segments
from lakewarden.agent.attempts.trace import Attempt, AttemptOutcome, AttemptStep
from lakewarden.agent.clock import utc_now
from lakewarden.agent.log import Log
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
from lakewarden.handlers.explain.condition import BYPASSED, Recent, lane, made_by, without_gate

MAX_OF_TABLE = 200
"""Transactions of one table, the last ones."""
MAX_TRANSACTIONS = 20_000
"""Transactions of all tables, about 3 KB each. Beyond, the table without an event for longest loses its own."""
TICKS = (5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
MAX_WRITERS = 30
"""Rows of a drawing: the writers with the last transactions."""
HISTORY = timedelta(hours=6)
MAX_RECORDS = 20_000
"""Of each partition, that `status` reads for what is past: with 12 partitions about 5 s."""
_SKIPPED = (b'"type":"marker-created"', b'"type":"writer-heartbeat"', b'"type":"grant-renewed"')
"""Most records of a busy log. Those of a client that writes its JSON otherwise are decoded and skipped then."""


class Timelines:
    """The transactions of all tables."""

    def __init__(self) -> None:
        self._tables: OrderedDict[str, dict[str, Attempt]] = OrderedDict()
        self._terms: dict[int, str] = {}
        self._size = 0
        self.recent: dict[str, Recent] = {}
        """By table."""

    def add_event(self, record: ConsumerRecord) -> None:
        event = _decoded(WRITER_EVENT, record)
        if event is None:
            return
        match event:
            case CommitIntent(batch_id=batch_id):
                self._step(record, event, "intent", {}, batch_id)
            case CommitRequested():
                self._step(record, event, "requested", {})
            case CommitCompleted(version=version):
                maker, recent = made_by(event), self._recent_of(event.table)
                if self._step(record, event, "completed", {"version": version, "made_by": maker}):
                    recent.note_commit(event.writer, record.timestamp / 1000)
                if maker is not None:
                    recent.note_maker(event.transaction, _bypassing(event.writer, maker))
            case TransactionAbandoned(reason=reason):
                new = self._step(record, event, "abandoned", {"reason": reason})
                if new and reason.startswith(BYPASSED):
                    self._lost(record, event, "a writer without the gate")
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
                if lost_to := next(filter(without_gate, others), None):  # its transaction has the same name
                    winner = self._tables[decision.table].get(lost_to)
                    maker = None if winner is None else _made_by(winner)
                    self._lost(record, decision, _bypassing(lost_to, maker), lost_to)
            case _:
                pass

    def _step(
        self,
        record: ConsumerRecord,
        event: WriterEventUnion | DecisionEventUnion,
        what: str,
        detail: dict[str, Any],
        batch_id: int | None = None,
    ) -> bool:
        """Add a step. Return whether the attempt has none of this kind yet."""
        attempts = self._tables.setdefault(event.table, {})
        self._tables.move_to_end(event.table)
        attempt = attempts.get(event.transaction)
        if attempt is None:
            attempt = attempts[event.transaction] = Attempt(event.transaction, event.writer, batch_id, 0)
            self._size += 1
            self._forget(attempts)
        if what == "intent":
            attempt.batch_id = batch_id
        new = attempt.first(what) is None
        if new:
            step = AttemptStep(
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
        return new

    def _recent_of(self, table: str) -> Recent:
        return self.recent.setdefault(table, Recent())

    def _lost(
        self,
        record: ConsumerRecord,
        event: WriterEventUnion | DecisionEventUnion,
        to: str,
        winner: str = "",
    ) -> None:
        at = record.timestamp / 1000
        self._recent_of(event.table).note_loss(event.writer, at, to, event.transaction, winner)

    def _forget(self, attempts: dict[str, Attempt]) -> None:
        if len(attempts) > MAX_OF_TABLE:
            del attempts[next(iter(attempts))]
            self._size -= 1
        while self._size > MAX_TRANSACTIONS:
            uri, dropped = self._tables.popitem(last=False)
            self.recent.pop(uri, None)
            self._size -= len(dropped)

    def drop_before(self, since: float) -> None:
        """Forget the tables without an event since then (epoch seconds)."""
        while self._tables:
            uri, attempts = next(iter(self._tables.items()))
            if max((each.steps[-1].at for each in attempts.values()), default=0.0) >= since:
                return
            del self._tables[uri]
            self.recent.pop(uri, None)
            self._size -= len(attempts)

    def drawing(self, table: str, begin: float, end: float) -> dict[str, Any]:
        """What is drawn of a table between two times (epoch seconds): a row per writer, a bar per transaction."""
        shown = [
            each
            for each in self._tables.get(table, {}).values()
            if (each.ended or end) >= begin and each.started <= end
        ]
        lanes = {each.transaction: lane(each.writer) for each in shown}
        writers = list(dict.fromkeys(lanes[each.transaction] for each in reversed(shown)))[:MAX_WRITERS]
        return {
            "begin": begin,
            "end": end,
            "writers": [
                {
                    "writer": name,
                    "attempts": [_bar(each, begin, end) for each in shown if lanes[each.transaction] == name],
                }
                for name in sorted(writers)
            ],
            "more_writers": len(set(lanes.values())) - len(writers),
            "ticks": _ticks(begin, end),
        }

    def find(self, writer: str, batch_id: int | None, table: str | None) -> list[dict[str, Any]]:
        """The last transactions of the writers whose names contain `writer`, the latest first."""
        found = [
            {
                "table": uri,
                "transaction": each.transaction,
                "writer": each.writer,
                "batch_id": each.batch_id,
                "outcome": each.outcome.value,
                "started": each.started,
                "ended": each.ended,
                "lost_to": _lost_to(each),
            }
            for uri, attempts in self._tables.items()
            if table is None or uri == table
            for each in attempts.values()
            if writer in each.writer and batch_id in (None, each.batch_id)
        ]
        return sorted(found, key=lambda each: -float(each["started"]))


async def read_timelines(log: Log) -> Timelines:
    """What the log has of the last `HISTORY`, but not more than the last `MAX_RECORDS` of each partition."""
    found, topics = Timelines(), log.topics
    since = round((utc_now() - HISTORY).timestamp() * 1000)
    starts = await log.offsets_at(await log.partitions(topics.writers, topics.decisions), since)
    ends = await log.ends(starts)
    spans: dict[TopicPartition, int | None] = {
        each: max(start or 0, ends[each] - MAX_RECORDS) for each, start in starts.items()
    }
    async with aclosing(log.batches(spans)) as batches:
        async for partition, records in batches:
            add = found.add_event if partition.topic == topics.writers else found.add_decision
            for record in records:
                add(record)
    return found


def _ticks(begin: float, end: float) -> list[float]:
    """Times at which the axis has a tick: five to twelve of them."""
    step = next((each for each in TICKS if (end - begin) / each <= 12), TICKS[-1])
    first = begin - begin % step + step
    return [first + number * step for number in range(int((end - first) // step) + 1)]


def _lost_to(attempt: Attempt) -> list[str]:
    abort = attempt.first("abort")
    conflict = abort is not None and attempt.outcome is AttemptOutcome.CONFLICT
    return list(abort.detail["others"]) if abort is not None and conflict else []


def _made_by(attempt: Attempt) -> str | None:
    completed = attempt.first("completed")
    return None if completed is None else completed.detail["made_by"]


def _bypassing(writer: str, maker: str | None) -> str:
    """A writer without the gate, and who it is as far as the table says it."""
    return lane(writer) if maker is None else f"{lane(writer)} ({maker})"


def _bar(attempt: Attempt, begin: float, end: float) -> dict[str, Any]:
    abort = attempt.first("abort")
    conflict = abort is not None and attempt.outcome is AttemptOutcome.CONFLICT
    return {
        "transaction": attempt.transaction,
        "batch_id": attempt.batch_id,
        "outcome": attempt.outcome.value,
        "started": attempt.started,
        "ended": attempt.ended,
        "aborted_at": abort.at if abort is not None and conflict else None,
        "lost_to": _lost_to(attempt),
        "made_by": _made_by(attempt),
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
