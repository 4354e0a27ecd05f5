"""Replays the log for operators' commands, with the code of a starting agent. It asks no agent, so it works while none runs."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from lakewarden import events as wire
from lakewarden.agent.clock import monotonic
from lakewarden.agent.kafka import require_equal_counts
from lakewarden.agent.log import Log, Readers
from lakewarden.agent.serving.log_records import decisions_in
from lakewarden.agent.serving.takeover import Start, find_starts
from lakewarden.events.access import partition_of
from lakewarden.handlers.table.machine import replay_decision, replay_event
from lakewarden.handlers.table.replay import PublishedDecisions
from lakewarden.handlers.table.state import TableSettings, TableState
from lakewarden.handlers.table.transactions import Phase


@dataclass(slots=True)
class Seen:
    """What the log says of a transaction besides its state."""

    opened: datetime | None = None
    """By its writer's clock, as the next one."""
    requested: datetime | None = None
    """When it first requested its grant."""
    granted: datetime | None = None
    """By the agent's clock."""
    runs_at: str | None = None
    """Where its writer runs, as its intent says."""
    revoked: str | None = None
    """Why its grant was withdrawn. Its lease still runs."""


@dataclass(slots=True)
class LogReplay:
    """The state of every table that the log has events of, since the last checkpoint."""

    starts: dict[int, Start]
    """Where the replay of each Kafka partition started, and what its log lacks."""
    tables: dict[str, TableState] = field(default_factory=dict)
    seen: dict[str, Seen] = field(default_factory=dict)
    """By transaction."""
    partition: dict[str, int] = field(default_factory=dict)
    """The Kafka partition of each table."""
    next_offsets: dict[TopicPartition, int | None] = field(default_factory=dict)
    """Where the replay ended in `writers` and `decisions`. None: at the beginning of an empty partition."""
    decisions: dict[int, list[ConsumerRecord]] = field(default_factory=dict)
    """The records of `decisions`, by Kafka partition."""
    refused: dict[int, str] = field(default_factory=dict)
    """The Kafka partitions that an agent of this version refuses, each with the reason."""

    def replay(
        self,
        number: int,
        events: Iterable[ConsumerRecord],
        decisions: PublishedDecisions,
        *,
        ahead: bool = True,
    ) -> None:
        """Replay a partition: its events, and each decision after the event that led to it.

        Like the agent, it ignores events of tables that belong to another partition. `ahead`: also apply the decisions that
        follow from events after these.
        """
        for record in events:
            self.apply_event(number, record)
            for decision in decisions.pop_due(record.offset):
                self.apply(decision)
        for decision in decisions.pop_due(None) if ahead else ():
            self.apply(decision)

    def apply_event(self, number: int, record: ConsumerRecord) -> str | None:
        """Apply a record of `writers`. Return the table of its event, or None if it is none."""
        event = wire.decode(wire.WRITER_EVENT, record.value, key=record.key or b"")
        if isinstance(event, wire.Undecodable):
            return None
        if event.table not in self.partition:
            self.partition[event.table] = partition_of(event.table, len(self.starts))
        if self.partition[event.table] != number:
            return None
        if isinstance(event, wire.CommitIntent | wire.CommitRequested):
            seen = self.seen.setdefault(event.transaction, Seen())
            seen.opened = seen.opened or event.at
            if isinstance(event, wire.CommitIntent):
                seen.runs_at = seen.runs_at or runs_at(event)
            else:
                seen.requested = seen.requested or event.at
        state = self.tables.setdefault(event.table, TableState(event.table, TableSettings()))
        replay_event(state, event, record.offset, monotonic())
        return event.table

    def apply(self, decision: wire.DecisionEventUnion) -> None:
        state = self.tables.get(decision.table)
        if state is None:
            return
        kept = state.transactions.get(decision.transaction)
        if isinstance(decision, wire.Abort) and kept is not None and kept.phase is Phase.GRANTED:
            seen = self.seen.setdefault(decision.transaction, Seen())
            seen.revoked = seen.revoked or ": ".join(filter(None, (decision.reason, decision.detail)))
        if isinstance(decision, wire.CommitGranted):
            seen = self.seen.setdefault(decision.transaction, Seen())
            seen.granted = seen.granted or decision.at
        replay_decision(state, decision, monotonic())


def runs_at(intent: wire.CommitIntent) -> str | None:
    """Where a writer runs, as text. None: its intent doesn't say it."""
    process = None if intent.pid is None else f"process {intent.pid}"
    application = None if intent.application_id is None else f"Spark application {intent.application_id}"
    parts = (intent.host and f"host {intent.host}", process, application, intent.application_ui)
    return ", ".join(filter(None, parts)) or None


async def replay_log(log: Log, *readers: Readers, ahead: bool = True) -> LogReplay:
    """Replay `writers` and `decisions` from the last checkpoint to their ends. `ahead`: as in `LogReplay.replay`.

    `readers` get what else they want, in the same reading of the log.
    """
    topics = log.topics
    partitions = [each.partition for each in await log.partitions(topics.writers)]
    # An error names the topic if it is missing or hidden.
    counts = {topics.decisions: len(await log.partitions(topics.decisions))}
    require_equal_counts({topics.writers: len(partitions), **counts})
    starts = await find_starts(log, partitions)
    spans: dict[TopicPartition, int | None] = {}
    for number, start in starts.items():
        spans[TopicPartition(topics.writers, number)] = start.offset
        spans[TopicPartition(topics.decisions, number)] = start.decisions.offset
    records: dict[TopicPartition, list[ConsumerRecord]] = {each: [] for each in spans}
    await log.read_once({each: (start, records[each].append) for each, start in spans.items()}, *readers)
    found = LogReplay(starts)
    for partition, offset in spans.items():
        read = records[partition]
        found.next_offsets[partition] = read[-1].offset + 1 if read else offset
    for number in partitions:
        decisions = records[TopicPartition(topics.decisions, number)]
        found.decisions[number] = decisions
        newer: list[str] = []
        published = PublishedDecisions(
            starts[number].decisions, decisions_in(decisions, on_newer=newer.append)
        )
        if newer:
            found.refused[number] = newer[0]
        found.replay(number, records[TopicPartition(topics.writers, number)], published, ahead=ahead)
    return found
