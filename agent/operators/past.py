"""What happened in the last hours: the lives of transactions, what conflicts have cost, and the events that agents refused.

Times are those of Kafka's records.

- **Timelines.** The last transactions of each table with the times of their steps, and what has ended in it lately. The page
  draws them; the condition of a table (`handlers/explain/condition.py`) follows from the ends. `writers` and `decisions` are read
  in any order, so the steps of a transaction are sorted by time.
- **Losses.** A conflict costs the age of the victim: the seconds since the agent read its intent. If it was about several
  partitions, each of them counts it, with an equal share of the seconds. Who loses to several writers at once has a conflict with
  each, and its seconds count once, for the first of them.
- **Refused events**, from the dead letters, each with the reason.
"""

import base64
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from typing import Any, TypeAlias, TypeVar

from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from lakewarden import events
from lakewarden.agent.clock import moment, utc_now
from lakewarden.agent.log import Log, Readers
from lakewarden.agent.serving.log_records import decoded
from lakewarden.agent.settings import KafkaSettings
from lakewarden.agent.time_text import timestamp
from lakewarden.events.codec import json_object
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

# -- losses ------------------------------------------------------------------------------------------------------------

HOUR_MS = 3_600_000
MAX_ENTRIES = 20_000
"""Partitions, and pairs of writers, that are counted per hour. What exceeds them is counted as `OTHERS`."""
OTHERS = "(others)"
MAX_LINES = 200
"""Lines of each list of a report."""

_Row = TypeVar("_Row")

Key: TypeAlias = tuple[str, ...]
"""The table of a loss; and its partition, or the writers that won and lost."""


@dataclass(frozen=True, slots=True)
class LossRow:
    """What conflicts have cost a table. The field names are JSON, as those of the next ones."""

    table: str
    conflicts: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PartitionLoss(LossRow):
    """The same of a partition."""

    partition: str


@dataclass(frozen=True, slots=True)
class PairLoss(LossRow):
    """The same of two writers."""

    winner: str
    loser: str


@dataclass(frozen=True, slots=True)
class LossReport:
    """What conflicts have cost in the last hours, each list with the largest first."""

    table: str | None
    """The only one that counts. None: all."""
    hours: int
    conflicts: int
    seconds: float
    tables: list[LossRow]
    partitions: list[PartitionLoss]
    pairs: list[PairLoss]


@dataclass(slots=True)
class _Loss:
    conflicts: int = 0
    seconds: float = 0.0

    def add(self, conflicts: int, seconds: float) -> None:
        self.conflicts += conflicts
        self.seconds += seconds


class Losses:
    """The conflicts of the last hours, added up by hour."""

    def __init__(self, hours: int) -> None:
        self.hours = hours
        self._counted: dict[tuple[int, int], dict[Key, _Loss]] = {}
        """By hour, and by the length of the key."""
        self._last_victims: dict[str, str] = {}
        """By table. The conflicts of one victim follow each other."""

    def add(self, record: ConsumerRecord) -> None:
        """Add a record of `conflicts`."""
        event = decoded(events.CONFLICT_EVENT, record)
        if event is None:
            return
        first = self._last_victims.pop(event.table, None) != event.victim
        seconds = event.victim_age_seconds * first
        self._last_victims[event.table] = event.victim
        if len(self._last_victims) > MAX_ENTRIES:
            del self._last_victims[next(iter(self._last_victims))]
        self.count(record.timestamp, (event.table, lane(event.winner_writer), event.victim_writer), seconds)
        partitions = list(dict.fromkeys(each.partition for each in event.conflicts))
        for each in partitions:
            self.count(record.timestamp, (event.table, each), seconds / len(partitions))

    def count(self, at_ms: int, key: Key, seconds: float) -> None:
        """Count a loss."""
        known = self._counted.setdefault((at_ms // HOUR_MS, len(key)), {})
        if key not in known and len(known) >= MAX_ENTRIES:
            key = (OTHERS,) * len(key)
        known.setdefault(key, _Loss()).add(1, seconds)
        for old in [each for each in self._counted if each[0] < max(self._counted)[0] - self.hours]:
            del self._counted[old]

    def report(self, table: str | None = None) -> LossReport:
        """What was counted. `table`: of this table only."""
        since = moment().wall_ms // HOUR_MS - self.hours
        sums: dict[Key, _Loss] = defaultdict(_Loss)
        counted = (known for (hour, _), known in self._counted.items() if hour > since)
        for key, loss in chain.from_iterable(each.items() for each in counted):
            if table in (None, key[0]):
                sums[key].add(loss.conflicts, loss.seconds)
                if len(key) == 3:  # who lost to whom, each conflict once
                    sums[key[:1]].add(loss.conflicts, loss.seconds)
        tables = [loss for key, loss in sums.items() if len(key) == 1]
        return LossReport(
            table,
            self.hours,
            sum(each.conflicts for each in tables),
            round(sum(each.seconds for each in tables), 3),
            _rows(sums, 1, LossRow),
            _rows(sums, 2, PartitionLoss),
            _rows(sums, 3, PairLoss),
        )


def _rows(sums: dict[Key, _Loss], size: int, row: Callable[..., _Row]) -> list[_Row]:
    found = [each for each in sums.items() if len(each[0]) == size]
    found.sort(key=lambda each: (-each[1].seconds, each[0]))
    return [row(key[0], loss.conflicts, round(loss.seconds, 3), *key[1:]) for key, loss in found[:MAX_LINES]]


async def losses(settings: KafkaSettings, hours: int, table: str | None) -> LossReport:
    """The report of the last `hours`, the current one included. Of what no conflict shows, it has what `read_timelines` reads."""
    found = Losses(hours)
    since_ms = (moment().wall_ms // HOUR_MS - hours + 1) * HOUR_MS
    async with Log(settings) as log:
        conflicts = await log.offsets_at(await log.partitions(log.topics.conflicts), since_ms)
        readers = {each: (start, found.add) for each, start in conflicts.items()}
        await log.read_once(readers, await readers_of(Timelines(found), log, since_ms))
    return found.report(table)


# -- timelines ---------------------------------------------------------------------------------------------------------

MAX_OF_TABLE = 200
"""Transactions of one table, the last ones."""
MAX_TRANSACTIONS = 20_000
"""Transactions of all tables, about 3 KB each. Beyond, the table without an event for longest loses its own."""
HISTORY = timedelta(hours=6)
MAX_RECORDS = 20_000
"""Records of each partition that `status` reads for what is past: with 12 partitions about 5 s."""
_SKIPPED = (b'"type":"marker-created"', b'"type":"writer-heartbeat"', b'"type":"grant-renewed"')
"""Most records of a busy log. Those of a client that writes its JSON otherwise are decoded and skipped then."""


class Timelines:
    """The transactions of all tables."""

    def __init__(self, losses: Losses | None = None) -> None:
        self._losses = losses
        """Counts each transaction that is lost to a commit which no conflict shows."""
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
        match event:
            case events.CommitCompleted() if (maker := made_by(event)) is not None:
                self.ends[event.table].note_maker(event.transaction, made_name(event.writer, maker))
            case events.TransactionAbandoned(cause="base-changed") if new and self._losses is not None:
                winner = UNNAMED_COMMIT if event.lost_to is None else UNKNOWN_WINNER
                began = self.tables[event.table][event.transaction].started
                key = event.table, winner, event.writer
                self._losses.count(record.timestamp, key, record.timestamp / 1000 - began)

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

    def _forget(self, lives: dict[str, Life]) -> None:
        if len(lives) > MAX_OF_TABLE:
            del lives[next(iter(lives))]
            self._size -= 1
        while self._size > MAX_TRANSACTIONS:
            dropped = self._drop(next(iter(self.tables))).values()
            self.forgotten = max([self.forgotten, *(each.last for each in dropped)])

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
    since = since_ms or round((utc_now() - HISTORY).timestamp() * 1000)
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


# -- refused events ----------------------------------------------------------------------------------------------------

MAX_REFUSED = 500
"""Refused events that are listed, the last ones."""
MAX_VALUE = 300
"""Characters of a refused record that are shown."""


@dataclass(frozen=True, slots=True)
class RefusedEvent:
    """A refused record. The field names are the JSON of `lakewarden refused`."""

    at: str
    """When the agent refused it, by Kafka's record."""
    reason: str
    topic: str
    partition: int
    offset: int
    """Offset of the refused record."""
    table: str | None
    """What could be read of it, as it stands there."""
    transaction: str | None
    writer: str | None
    type: str | None
    value: str
    """Its beginning."""


def refused_event(record: ConsumerRecord) -> RefusedEvent | None:
    """The event of a record of `dead-letters`. None: the record is no dead letter."""
    try:
        letter = events.DeadLetter.model_validate_json(record.value or b"", extra="ignore")
        value = base64.b64decode(letter.value)
    except ValueError:  # no JSON, other fields, or no base64
        return None
    # As far as it can be read: a long record is cut, and no JSON any more.
    names = {name: each for name, each in json_object(value).items() if isinstance(each, str)}
    return RefusedEvent(
        timestamp(record.timestamp),
        letter.reason,
        letter.topic,
        letter.partition,
        letter.offset,
        names.get("table"),
        names.get("transaction"),
        names.get("writer"),
        names.get("type"),
        value.decode(errors="replace")[:MAX_VALUE],
    )


async def refused(settings: KafkaSettings) -> list[RefusedEvent]:
    """The last `MAX_REFUSED` refused events, the latest first."""
    async with Log(settings) as log:
        records = [each for found in (await log.read(await last_spans(log))).values() for each in found]
    records.sort(key=lambda each: -each.timestamp)
    return [event for each in records[:MAX_REFUSED] if (event := refused_event(each)) is not None]


async def last_spans(log: Log) -> dict[TopicPartition, int]:
    """Where the last `MAX_REFUSED` records of each partition of `dead-letters` begin."""
    ends = await log.ends(await log.partitions(log.topics.dead_letters))
    return {each: max(0, end - MAX_REFUSED) for each, end in ends.items()}
