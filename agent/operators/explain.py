"""`lakewarden explain`: one transaction's story, read from Kafka alone: no agent is asked, so it works while one is down.

Two readings. The first looks for the transaction in all partitions of `writers` and `decisions`, because nothing but its own
events says which table it concerns, and keeps names only. The second reads its table's partition from the beginning, keeps what
concerns the table, and hands it to `handlers/explain/transaction.py`.
"""

from __future__ import annotations

import difflib
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord
from pydantic import TypeAdapter

from lakewarden.agent.errors import AgentError
from lakewarden.agent.kafka import batches_to_end, partitions_of, reader, started, stopped
from lakewarden.agent.settings import Settings
from lakewarden.events import (
    AUDIT_EVENT,
    CONFLICT_EVENT,
    DECISION_RECORD,
    WRITER_EVENT,
    AuditEventUnion,
    CommitIntent,
    ConflictDetected,
    DecisionRecord,
    EventBase,
    Undecodable,
    decode,
)
from lakewarden.handlers.explain.timeline import Story, Where, Who
from lakewarden.handlers.explain.transaction import Storyteller

MAX_CANDIDATES = 1_000
"""Transactions that begin like what was asked for; more are not worth a list."""
MAX_NAMES = 10_000
"""Of the last transactions, for a name that was mistyped."""
_INTENT = b"commit-intent"
_RENEWED = b"lock-renewed"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A transaction that may be meant."""

    transaction: str
    table: str
    writer: str
    batch_id: int | None
    partition: int
    at: datetime


@dataclass(slots=True)
class Search:
    """What the first reading found, and how far back it looked."""

    wanted: str
    found: dict[tuple[str, str], Candidate] = field(default_factory=dict)
    names: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_NAMES))
    records: int = 0
    partitions: int = 0
    oldest_ms: int | None = None

    def note(self, record: ConsumerRecord) -> None:
        """Look at a record of `writers` or `decisions`; most can be told apart without being decoded."""
        self.records += 1
        if self.oldest_ms is None or record.timestamp < self.oldest_ms:
            self.oldest_ms = record.timestamp
        value = record.value or b""
        intent = _INTENT in value
        if not intent and self.wanted.isascii() and self.wanted.encode() not in value:
            return
        kind = DECISION_RECORD if record.topic.endswith(".decisions") else WRITER_EVENT
        event: EventBase | Undecodable = decode(kind, value)  # type: ignore[arg-type]  # both are adapters of events
        if isinstance(event, Undecodable):
            return
        if isinstance(event, CommitIntent):
            self.names.append(event.transaction)
        if event.transaction.startswith(self.wanted) and len(self.found) < MAX_CANDIDATES:
            self._keep(record, event)

    def _keep(self, record: ConsumerRecord, event: EventBase) -> None:
        key = (event.transaction, event.table)
        if isinstance(event, CommitIntent):
            batch_id, first = event.batch_id, True
        else:
            batch_id, first = None, key not in self.found
        if first:
            self.found[key] = Candidate(
                event.transaction, event.table, event.writer, batch_id, record.partition, event.at
            )

    def only(self, table: str | None) -> list[Candidate]:
        """Those that are meant: the very name, or else all that begin with it."""
        fitting = [each for each in self.found.values() if table in (None, each.table)]
        exact = [each for each in fitting if each.transaction == self.wanted]
        return sorted(exact or fitting, key=lambda each: each.at)


class AmbiguousError(AgentError):
    """Several transactions begin so. Say more of the name, or the table."""

    def __init__(self, wanted: str, candidates: list[Candidate]) -> None:
        several = len({each.transaction for each in candidates}) > 1
        how = "say more of its name" if several else "name one with --table"
        what = "transactions begin" if several else "tables have a transaction that begins"
        super().__init__(f"{len(candidates)} {what} with {wanted!r}; {how}")
        self.candidates = candidates


async def explain(settings: Settings, wanted: str, table: str | None = None) -> Story:
    """The story of the one transaction that begins with `wanted`; `AgentError` where there is none, or more."""
    search = await _search(settings, wanted)
    found = search.only(table)
    if not found:
        raise AgentError(_unknown(settings, search, table))
    if len(found) > 1:
        raise AmbiguousError(wanted, found)
    return await _story(settings, found[0])


def story_json(story: Story) -> str:
    """One JSON object; each step names its `kind`."""
    fields = _STORY.dump_python(story, mode="json")
    fields["steps"] = [
        {"kind": _kind(type(step).__name__), **told}
        for step, told in zip(story.steps, fields["steps"], strict=True)
    ]
    return json.dumps(fields)


_STORY: TypeAdapter[Story] = TypeAdapter(Story)


def _kind(name: str) -> str:
    return name.lower()


async def _search(settings: Settings, wanted: str) -> Search:
    topics = settings.topics
    search = Search(wanted)
    partitions = await partitions_of(settings, topics.writers)
    search.partitions = len(partitions)
    spans: dict[TopicPartition, int | None] = dict.fromkeys(partitions)
    spans |= dict.fromkeys(await partitions_of(settings, topics.decisions))
    async with aclosing(batches_to_end(settings, spans)) as batches:
        async for _, records in batches:
            for record in records:
                search.note(record)
    return search


def _unknown(settings: Settings, search: Search, table: str | None) -> str:
    where = f"{settings.topics.writers} at {settings.bootstrap_servers}"
    if search.oldest_ms is None:
        return (
            f"no transaction {search.wanted!r}: {where} holds no event at all; is the prefix right ($LAKEWARDEN_TOPIC_PREFIX)? "
            "Kafka may have removed the events (retention)"
        )
    back = datetime.fromtimestamp(search.oldest_ms / 1000, tz=UTC).isoformat(timespec="seconds")
    looked = f"all {search.partitions} partitions of {where}, back to {back}"
    elsewhere = sorted({each.table for each in search.found.values()})
    if table is not None and elsewhere:
        return f"no transaction {search.wanted!r} of table {table} in {looked}; it is one of {', '.join(elsewhere[:3])}"
    near = difflib.get_close_matches(search.wanted, dict.fromkeys(reversed(search.names)), n=3, cutoff=0.6)
    meant = f"did you mean {' or '.join(near)}? Else it" if near else "it"
    return (
        f"no transaction {search.wanted!r} in {looked}; {meant} may be older than that (retention), never have been opened, or "
        "be in another installation ($LAKEWARDEN_TOPIC_PREFIX, --bootstrap-servers)"
    )


# -- the second reading ------------------------------------------------------------------------------------------------


async def _story(settings: Settings, meant: Candidate) -> Story:
    topics, key = settings.topics, meant.table.encode()
    decisions: list[tuple[Where, DecisionRecord]] = []
    # `decisions` first, and to its end: what decided events that are read after it is in the story of a later call.
    async for record in _records(settings, TopicPartition(topics.decisions, meant.partition)):
        decision = decode(DECISION_RECORD, record.value)
        if not isinstance(decision, Undecodable) and (
            decision.table == meant.table or decision.type == "partition-taken"
        ):
            decisions.append((_where("decisions", record, decision), decision))
    who = Who(meant.transaction, meant.writer, meant.batch_id)
    teller = Storyteller(who, meant.table, decisions, max_losses=settings.max_losses)
    began_ms: int | None = None
    async for record in _records(settings, TopicPartition(topics.writers, meant.partition)):
        if record.key != key:
            continue
        event = decode(WRITER_EVENT, record.value, key=record.key)
        if isinstance(event, Undecodable):
            continue
        if event.transaction == meant.transaction and began_ms is None:
            began_ms = record.timestamp
        teller.read(_where("writers", record, event), event)
    if began_ms is None:
        return teller.story()
    locks, reports = await _told_to_operators(settings, meant.table, began_ms)
    return teller.story(locks, reports)


async def _told_to_operators(
    settings: Settings, table: str, since_ms: int
) -> tuple[list[tuple[Where, AuditEventUnion]], list[ConflictDetected]]:
    """Steps of the table's lock but for renewals, and its conflicts, since then."""
    locks: list[tuple[Where, AuditEventUnion]] = []
    reports: list[ConflictDetected] = []
    spans: dict[TopicPartition, int | None] = {}
    topics = settings.topics
    for topic in (topics.audit, topics.conflicts):
        spans |= await _since(settings, await partitions_of(settings, topic), since_ms)
    async with aclosing(batches_to_end(settings, spans)) as batches:
        async for partition, records in batches:
            for record in records:
                value = record.value or b""
                if record.key != table.encode() or _RENEWED in value:
                    continue
                if partition.topic == topics.conflicts:
                    report = decode(CONFLICT_EVENT, value)
                    if not isinstance(report, Undecodable):
                        reports.append(report)
                else:
                    step = decode(AUDIT_EVENT, value)
                    if not isinstance(step, Undecodable):
                        locks.append((_where("audit", record, step), step))
    return locks, reports


async def _since(
    settings: Settings, partitions: list[TopicPartition], since_ms: int
) -> dict[TopicPartition, int | None]:
    consumer = reader(settings)
    await started(consumer, settings)
    try:
        found = await consumer.offsets_for_times(dict.fromkeys(partitions, since_ms))
    finally:
        await stopped(consumer)
    return {partition: at.offset for partition, at in found.items() if at is not None}


async def _records(settings: Settings, partition: TopicPartition) -> AsyncIterator[ConsumerRecord]:
    async with aclosing(batches_to_end(settings, {partition: None})) as batches:
        async for _, records in batches:
            for record in records:
                yield record


def _where(
    topic: Literal["writers", "decisions", "audit"], record: ConsumerRecord, event: EventBase
) -> Where:
    return Where(topic, record.offset, event.at.timestamp() * 1000, record.timestamp)
