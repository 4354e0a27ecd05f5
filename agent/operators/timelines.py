"""The last transactions of each table with the times of their steps, and what has ended in it lately.

The page draws them as the demo draws its own; the condition of a table (`handlers/explain/condition.py`) follows from the ends.

Times are those of Kafka's records. The two topics are read in any order, so the steps of a transaction are sorted by time.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from contextlib import aclosing
from datetime import timedelta
from typing import Any, TypeAlias

from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from lakewarden import events
from lakewarden.agent.attempts.trace import Attempt, AttemptStep, drawing
from lakewarden.agent.clock import utc_now
from lakewarden.agent.log import Log
from lakewarden.agent.serving.log_records import decoded
from lakewarden.handlers.explain.condition import (
    UNKNOWN_WINNER,
    UNNAMED_COMMIT,
    Recent,
    lane,
    lost_commit,
    made_by,
)
from lakewarden.handlers.writers_log import without_gate

MAX_OF_TABLE = 200
"""Transactions of one table, the last ones."""
MAX_TRANSACTIONS = 20_000
"""Transactions of all tables, about 3 KB each. Beyond, the table without an event for longest loses its own."""
HISTORY = timedelta(hours=6)
MAX_RECORDS = 20_000
"""Records of each partition that `status` reads for what is past: with 12 partitions about 5 s."""
_SKIPPED = (b'"type":"marker-created"', b'"type":"writer-heartbeat"', b'"type":"grant-renewed"')
"""Most records of a busy log. Those of a client that writes its JSON otherwise are decoded and skipped then."""

OnBypassed: TypeAlias = Callable[[int, str, str, str, float], None]
"""Gets each transaction that is lost to a commit which no conflict shows: when it ended (epoch milliseconds), table, who won,
writer, and its seconds."""


class Timelines:
    """The transactions of all tables."""

    def __init__(self, on_bypassed: OnBypassed | None = None) -> None:
        self._on_bypassed = on_bypassed
        self._tables: OrderedDict[str, dict[str, Attempt]] = OrderedDict()
        self._terms: dict[int, str] = {}
        self._size = 0
        self.recent: dict[str, Recent] = defaultdict(Recent)
        """By table."""

    def add_event(self, record: ConsumerRecord) -> None:
        event = _decoded(events.WRITER_EVENT, record)
        if event is None:
            return
        match event:
            case events.CommitIntent(batch_id=batch_id):
                self._step(record, event, "intent", {}, batch_id)
            case events.CommitRequested():
                self._step(record, event, "requested", {})
            case events.CommitCompleted(version=version):
                maker, recent = made_by(event), self.recent[event.table]
                if self._step(record, event, "completed", {"version": version, "made_by": maker}):
                    recent.note_commit(event.writer, record.timestamp / 1000)
                if maker is not None:
                    recent.note_maker(event.transaction, _bypassing(event.writer, maker))
            case events.TransactionAbandoned(cause=cause, lost_to=winner):
                new = self._step(record, event, "abandoned", {"cause": cause, "lost_to": winner})
                if new and cause == "base-changed":
                    at = record.timestamp / 1000
                    self.recent[event.table].note_loss(
                        event.writer, at, lost_commit(winner), event.transaction
                    )
                    if self._on_bypassed is not None:
                        who = UNNAMED_COMMIT if winner is None else UNKNOWN_WINNER
                        began = self._tables[event.table][event.transaction].started
                        self._on_bypassed(record.timestamp, event.table, who, event.writer, at - began)
            case _:
                pass

    def add_decision(self, record: ConsumerRecord) -> None:
        """Add a record of `decisions`. Those of an agent that was replaced don't count."""
        decision = _decoded(events.DECISION_RECORD, record)
        if decision is None or isinstance(decision, events.LocksHandedOver):
            return
        if isinstance(decision, events.PartitionTaken):
            self._terms[record.partition] = decision.term
            return
        if not events.counts(decision, self._terms.get(record.partition)):
            return
        match decision:
            case events.Admitted() | events.AlreadyCommitted():
                self._step(record, decision, decision.type, {})
            case events.CommitGranted():
                self._step(record, decision, "granted", {})
            case events.Abort(reason=reason, conflicts=conflicts):
                others = list(dict.fromkeys(each.other_writer for each in conflicts))
                if reason == "outcome-unknown" and not conflicts:
                    # With conflicts, the lease of another one expired.
                    self._step(record, decision, "lapse", {})
                    return
                self._step(record, decision, "abort", {"reason": reason, "others": others})
                if lost_to := next(filter(without_gate, others), None):  # its transaction has the same name
                    winner = self._tables[decision.table].get(lost_to)
                    to = _bypassing(lost_to, None if winner is None else winner.made_by)
                    at, recent = record.timestamp / 1000, self.recent[decision.table]
                    recent.note_loss(decision.writer, at, to, decision.transaction, lost_to)
            case _:
                pass

    def _step(
        self,
        record: ConsumerRecord,
        event: events.WriterEventUnion | events.DecisionEventUnion,
        what: str,
        detail: dict[str, Any],
        batch_id: int | None = None,
    ) -> bool:
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
            at, names = record.timestamp / 1000, (event.table, event.writer, event.transaction)
            attempt.steps.append(AttemptStep(at, what, *names, batch_id, 0, detail))
            attempt.steps.sort(key=lambda each: each.at)
        return new

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
        """What is drawn of a table between two times (epoch seconds)."""
        return drawing(self._tables.get(table, {}).values(), begin, end)

    def find(self, writer: str, batch_id: int | None, table: str | None) -> list[dict[str, Any]]:
        """The last transactions of the writers whose names contain `writer`, the latest first."""
        found = [
            {"table": uri, "writer": each.writer, **each.fields}
            for uri, attempts in self._tables.items()
            if table is None or uri == table
            for each in attempts.values()
            if (writer in each.writer or writer == lane(each.writer)) and batch_id in (None, each.batch_id)
        ]
        return sorted(found, key=lambda each: -float(each["started"]))


async def read_timelines(
    log: Log, since_ms: int | None = None, on_bypassed: OnBypassed | None = None
) -> Timelines:
    """What the log has since then (`HISTORY`), but not more than the last `MAX_RECORDS` of each partition."""
    found, topics = Timelines(on_bypassed), log.topics
    since = round((utc_now() - HISTORY).timestamp() * 1000) if since_ms is None else since_ms
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


def _bypassing(writer: str, maker: str | None) -> str:
    """A writer without the gate, and who it is as far as the table says it."""
    return lane(writer) if maker is None else f"{lane(writer)} ({maker})"


def _decoded(kind: Any, record: ConsumerRecord) -> Any:
    skipped = any(each in (record.value or b"") for each in _SKIPPED)
    return None if skipped else decoded(kind, record)
