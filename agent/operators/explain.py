"""`lakewarden explain`: reads one transaction's history from Kafka. It asks no agent, so it works while none runs.

The log is read twice:

1. A search of all partitions of `writers` and `decisions` for the transaction, because only its own events name its table. It
   keeps names only.
2. The table's partition of both topics, from the beginning. The events and decisions of the table go to the explainer
   (`handlers/explain/transaction.py`); steps of the lock come from `audit`.
"""

import difflib
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from lakewarden import events
from lakewarden.agent.errors import AgentError
from lakewarden.agent.log import Log
from lakewarden.agent.serving.log_records import decoded
from lakewarden.agent.settings import KafkaSettings, Settings
from lakewarden.agent.time_text import utc_time
from lakewarden.handlers.explain.timeline import Explanation, RecordRef, TransactionRef
from lakewarden.handlers.explain.transaction import Explainer

MAX_CANDIDATES = 1_000
"""Matching transactions that the search keeps, for the list to choose from."""
MAX_NAMES = 10_000
"""Transaction names that are kept for a suggestion if the id was mistyped: the most recent ones."""
_INTENT = b"commit-intent"
_RENEWED = b"lock-renewed"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A transaction that matches the search."""

    transaction: str
    table: str
    writer: str
    batch_id: int | None
    partition: int
    at: datetime


@dataclass(slots=True)
class Search:
    """The result of the first reading, and how far back the log goes."""

    prefix: str
    """The id that was given, or its beginning."""
    found: dict[tuple[str, str], Candidate] = field(default_factory=dict)
    names: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_NAMES))
    records: int = 0
    partitions: int = 0
    oldest_ms: int | None = None

    def add(self, record: ConsumerRecord) -> None:
        """Add a record of `writers` or `decisions`. Most records can be skipped without decoding them."""
        self.records += 1
        if self.oldest_ms is None or record.timestamp < self.oldest_ms:
            self.oldest_ms = record.timestamp
        value = record.value or b""
        intent = _INTENT in value
        if not intent and self.prefix.isascii() and self.prefix.encode() not in value:
            return
        kind: Any = events.DECISION_RECORD if record.topic.endswith(".decisions") else events.WRITER_EVENT
        event: events.EventBase | None = decoded(kind, record)
        if event is None:
            return
        if isinstance(event, events.CommitIntent):
            self.names.append(event.transaction)
        if event.transaction.startswith(self.prefix) and len(self.found) < MAX_CANDIDATES:
            self._keep(record, event)

    def _keep(self, record: ConsumerRecord, event: events.EventBase) -> None:
        key = event.transaction, event.table
        if isinstance(event, events.CommitIntent) or key not in self.found:
            batch_id = getattr(event, "batch_id", None)
            self.found[key] = Candidate(*key, event.writer, batch_id, record.partition, event.at)

    def candidates(self, table: str | None) -> list[Candidate]:
        """The transaction with exactly this id, else all whose ids begin with it; oldest first."""
        matching = [each for each in self.found.values() if table in (None, each.table)]
        exact = [each for each in matching if each.transaction == self.prefix]
        return sorted(exact or matching, key=lambda each: each.at)


class NotInLogError(AgentError):
    """No transaction matches. The message says where the log was searched."""


class AmbiguousError(AgentError):
    """Several transactions match. Give more of the id, or the table."""

    def __init__(self, prefix: str, candidates: list[Candidate]) -> None:
        what, advice = "tables have a transaction whose id", "choose the table with --table"
        if len({each.transaction for each in candidates}) > 1:
            what, advice = "transactions have an id that", "give more of the id"
        super().__init__(f"{len(candidates)} {what} begins with {prefix!r}; {advice}")
        self.candidates = candidates


async def explain(settings: Settings, transaction: str, table: str | None = None) -> Explanation:
    """Explain the one transaction whose id begins so. Raises `NotInLogError` or `AmbiguousError`."""
    async with Log(settings) as log:
        search = await search_log(log, transaction)
        found = search.candidates(table)
        if not found:
            raise NotInLogError(not_found(settings, search, table))
        if len(found) > 1:
            raise AmbiguousError(transaction, found)
        return await _explanation(log, found[0], settings.max_losses)


async def search_log(log: Log, prefix: str) -> Search:
    """Search the log for the transactions whose ids begin with `prefix`."""
    search = Search(prefix)
    writers, decisions = [await log.partitions(each) for each in (log.topics.writers, log.topics.decisions)]
    search.partitions = len(writers)
    await log.read_into(dict.fromkeys([*writers, *decisions]), search.add)
    return search


def not_found(settings: KafkaSettings, search: Search, table: str | None) -> str:
    """The error for a search without a result: where the search looked, and similar ids."""
    topic = f"{settings.topics.writers} at {settings.bootstrap_servers}"
    if search.oldest_ms is None:
        return (
            f"no transaction {search.prefix!r}: {topic} holds no event at all; check the topic prefix "
            "($LAKEWARDEN_TOPIC_PREFIX), and whether retention has removed the events"
        )
    oldest = utc_time(search.oldest_ms).isoformat(timespec="seconds")
    searched = f"all {search.partitions} partitions of {topic}, back to {oldest}"
    elsewhere = sorted({each.table for each in search.found.values()})
    if table is not None and elsewhere:
        return f"no transaction {search.prefix!r} of table {table} in {searched}; it is one of {', '.join(elsewhere[:3])}"
    near = difflib.get_close_matches(search.prefix, dict.fromkeys(reversed(search.names)), n=3, cutoff=0.6)
    suggestion = f"did you mean {' or '.join(near)}? Otherwise it" if near else "it"
    return (
        f"no transaction {search.prefix!r} in {searched}; {suggestion} was never opened, was removed by retention, or is "
        "in another installation ($LAKEWARDEN_TOPIC_PREFIX, --bootstrap-servers)"
    )


# -- the second reading ------------------------------------------------------------------------------------------------


async def _explanation(log: Log, candidate: Candidate, max_losses: int) -> Explanation:
    topics, table = log.topics, candidate.table
    decisions: list[tuple[RecordRef, events.DecisionRecord]] = []
    began_ms: list[int] = []
    locks: list[tuple[RecordRef, events.AuditEventUnion]] = []

    def note_decision(record: ConsumerRecord) -> None:
        decision = decoded(events.DECISION_RECORD, record)
        if decision is not None and (decision.table == table or decision.type == "partition-taken"):
            decisions.append((_reference("decisions", record), decision))

    def add_event(record: ConsumerRecord) -> None:
        event = events.decode(events.WRITER_EVENT, record.value, key=record.key or b"")
        if record.key != table.encode() or isinstance(event, events.Undecodable):
            return
        if event.transaction == candidate.transaction:
            began_ms.append(record.timestamp)
        explainer.add(_reference("writers", record), event)

    def note_step(record: ConsumerRecord) -> None:
        renewed = _RENEWED in (record.value or b"")
        step = None if renewed or record.key != table.encode() else decoded(events.AUDIT_EVENT, record)
        if step is not None:
            locks.append((_reference("audit", record), step))

    # `decisions` is read first, to its end. A decision that an agent publishes after that is missing here; a later call has it.
    await log.read_into({TopicPartition(topics.decisions, candidate.partition): None}, note_decision)
    named = TransactionRef(candidate.transaction, candidate.writer, candidate.batch_id)
    explainer = Explainer(named, table, decisions, max_losses=max_losses)
    await log.read_into({TopicPartition(topics.writers, candidate.partition): None}, add_event)
    if began_ms:
        spans = await log.offsets_at(await log.partitions(topics.audit), began_ms[0])
        await log.read_into(spans, note_step)
    return explainer.explanation(locks)


def _reference(topic: Literal["writers", "decisions", "audit"], record: ConsumerRecord) -> RecordRef:
    return RecordRef(topic, record.offset, record.timestamp)
