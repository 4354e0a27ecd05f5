"""The last transactions of each table with the times of their steps, and what has ended in it lately.

The page draws them; the condition of a table (`handlers/explain/condition.py`) follows from the ends.

Times are those of Kafka's records. The two topics are read in any order, so the steps of a transaction are sorted by time.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeAlias

from aiokafka.structs import ConsumerRecord

from lakewarden import events
from lakewarden.agent.clock import utc_now
from lakewarden.agent.log import Log, Readers
from lakewarden.agent.serving.log_records import decoded
from lakewarden.handlers.explain.life import (
    MAX_WRITERS,
    UNKNOWN_WINNER,
    UNNAMED_COMMIT,
    Ends,
    Life,
    Run,
    lane,
    made_by,
    made_name,
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
        self.tables: OrderedDict[str, dict[str, Life]] = OrderedDict()
        self._terms: dict[int, str] = {}
        self._size = 0
        self.ends: dict[str, Ends] = defaultdict(Ends)
        """By table."""
        self.writers: dict[str, dict[str, Ends]] = defaultdict(dict)
        """The same of each writer of a table with the gate, the last `MAX_WRITERS` that have committed."""
        self.forgotten = 0.0
        """Up to when (epoch seconds) a table may have had commits that were not read, or were dropped for want of room."""
        self.cut: set[int] = set()
        """Partitions of `writers` of which the beginning is not read, until their first record is."""

    def add_event(self, record: ConsumerRecord) -> None:
        if record.partition in self.cut:
            self.cut.discard(record.partition)
            self.forgotten = max(self.forgotten, record.timestamp / 1000)
        event = _decoded(events.WRITER_EVENT, record)
        if event is None:
            return
        new = self._note(event, record)
        if isinstance(event, events.CommitCompleted) and (maker := made_by(event)) is not None:
            self.ends[event.table].note_maker(event.transaction, made_name(event.writer, maker))
        if new and isinstance(event, events.TransactionAbandoned) and event.cause == "base-changed":
            self._count_bypassed(event, record)

    def add_decision(self, record: ConsumerRecord) -> None:
        """Add a record of `decisions`. Those of an agent that was replaced don't count."""
        decision = _decoded(events.DECISION_RECORD, record)
        if decision is None or isinstance(decision, events.LocksHandedOver):
            return
        if isinstance(decision, events.PartitionTaken):
            self._terms[record.partition] = decision.term
        elif events.counts(decision, self._terms.get(record.partition)):
            self._note(decision, record)

    def _note(
        self, event: events.WriterEventUnion | events.DecisionEventUnion, record: ConsumerRecord
    ) -> bool:
        at = record.timestamp / 1000
        known = self.tables.get(event.table, {}).get(event.transaction)
        life = known or Life(event.transaction, event.writer, event.table)
        if not life.note(event, at):
            return False
        lives = self.tables.setdefault(event.table, {})
        self.tables.move_to_end(event.table)
        if known is None:
            lives[event.transaction] = life
            self._size += 1
            self._forget(lives)
        makers = (lives[each].made_by for each in life.winners if each in lives)
        maker = next(filter(None, makers), None)
        self.ends[event.table].note(event, at, maker=maker, ends_itself=life.ends_itself)
        if isinstance(event, events.CommitCompleted) and not without_gate(event.writer):
            writers = self.writers[event.table]
            own = writers.pop(event.writer, Ends())
            own.note_commit(event, at, Run(at, at, life.ends_itself))
            writers[event.writer] = own
            if len(writers) > MAX_WRITERS:
                del writers[next(iter(writers))]
        return True

    def _count_bypassed(self, event: events.TransactionAbandoned, record: ConsumerRecord) -> None:
        if self._on_bypassed is not None:
            winner = UNNAMED_COMMIT if event.lost_to is None else UNKNOWN_WINNER
            seconds = record.timestamp / 1000 - self.tables[event.table][event.transaction].started
            self._on_bypassed(record.timestamp, event.table, winner, event.writer, seconds)

    def _forget(self, lives: dict[str, Life]) -> None:
        if len(lives) > MAX_OF_TABLE:
            del lives[next(iter(lives))]
            self._size -= 1
        while self._size > MAX_TRANSACTIONS:
            dropped = self._drop(next(iter(self.tables)))
            self.forgotten = max([self.forgotten, *(each.last for each in dropped.values())])

    def _drop(self, uri: str) -> dict[str, Life]:
        self.ends.pop(uri, None)
        self.writers.pop(uri, None)
        dropped = self.tables.pop(uri)
        self._size -= len(dropped)
        return dropped

    def drop_before(self, since: float) -> None:
        """Forget the tables without an event since then (epoch seconds)."""
        while self.tables:
            uri, lives = next(iter(self.tables.items()))
            if max((each.last for each in lives.values()), default=0.0) >= since:
                return
            self._drop(uri)

    def find(self, writer: str, batch_id: int | None, table: str | None) -> list[Life]:
        """The last transactions of the writers whose names contain `writer`, the latest first."""
        found = [
            each
            for uri, lives in self.tables.items()
            if table is None or uri == table
            for each in lives.values()
            if (writer in each.writer or writer == lane(each.writer)) and batch_id in (None, each.batch_id)
        ]
        return sorted(found, key=lambda each: -each.started)


async def read_timelines(log: Log) -> Timelines:
    """What the log has since `HISTORY`, but not more than the last `MAX_RECORDS` of each partition."""
    found = Timelines()
    await log.read_once(await readers_of(found, log))
    return found


async def readers_of(timelines: Timelines, log: Log, since_ms: int | None = None) -> Readers:
    """How the log is read into these timelines: as `read_timelines` reads it."""
    topics = log.topics
    since = round((utc_now() - HISTORY).timestamp() * 1000) if since_ms is None else since_ms
    starts = await log.starts_at(await log.partitions(topics.writers, topics.decisions), since)
    ends = await log.ends(starts)
    add = {topics.writers: timelines.add_event, topics.decisions: timelines.add_decision}
    found = {}
    for each, start in starts.items():
        first = max(start or 0, ends[each] - MAX_RECORDS)
        found[each] = first, add[each.topic]
        if each.topic == topics.writers and first > (start or 0):
            timelines.cut.add(each.partition)
    return found


def _decoded(kind: Any, record: ConsumerRecord) -> Any:
    skipped = any(each in (record.value or b"") for each in _SKIPPED)
    return None if skipped else decoded(kind, record)
