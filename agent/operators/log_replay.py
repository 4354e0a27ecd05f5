"""Replays the log for operators' commands and the page, with the code of a starting agent. It asks no agent.

A command replays the log once, to its end. The page goes on in rounds: it passes new events of a partition together with all
decisions that were published before it asked for their end. Like an agent, the replay ignores events of tables that belong to
another partition, and applies a decision after the event that led to it. This module does no I/O but in `replay_log`.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from lakewarden import events as wire
from lakewarden.agent.clock import monotonic
from lakewarden.agent.kafka import require_equal_counts
from lakewarden.agent.log import Log, Reader, Readers
from lakewarden.agent.serving.log_records import decisions_in
from lakewarden.agent.serving.takeover import Start, find_starts
from lakewarden.events.access import partition_of
from lakewarden.handlers.explain.life import Life
from lakewarden.handlers.table.machine import replay_decision, replay_event
from lakewarden.handlers.table.replay import Position, PublishedDecisions
from lakewarden.handlers.table.state import TableSettings, TableState

MAX_REFUSED = 1_000
"""Tables of a partition whose last refusal is kept."""


@dataclass(slots=True)
class Partition:
    """One Kafka partition of `writers` and `decisions`."""

    term: str | None
    read: int
    """Offset of the last event that was applied."""
    pending: deque[wire.DecisionEventUnion] = field(default_factory=deque)
    """Decisions that follow from later events."""
    refused: dict[str, str] = field(default_factory=dict)
    """Tables whose last transaction the present owner has refused, each with the reason."""
    newer: str | None = None
    """Why an agent of this version refuses the partition."""
    taken_over: bool = False
    """Whether an agent has taken it over, as the log says."""

    def note(self, records: Iterable[ConsumerRecord]) -> None:
        """Note the next records of `decisions`. Those of an agent that was replaced don't count."""
        published = PublishedDecisions(Position(0, self.term), ())
        for offset, decision in decisions_in(records, on_newer=self._refuse):
            note_refusal(self.refused, decision)
            self.taken_over |= isinstance(decision, wire.PartitionTaken)
            published.add(offset, decision)
        self.term = published.term
        self.pending.extend(published.all())

    def _refuse(self, why: str) -> None:
        self.newer = self.newer or why

    def due(self, offset: int) -> Iterator[wire.DecisionEventUnion]:
        """The decisions that follow from events up to this one."""
        while self.pending and self.pending[0].cause_offset <= offset:
            yield self.pending.popleft()


class LogReplay:
    """The state of every table that the log has events of, since the last checkpoint."""

    def __init__(self, starts: dict[int, Start]) -> None:
        self.starts = starts
        """Where the replay of each Kafka partition started, and what its log lacks."""
        self.partitions = {
            number: Partition(start.decisions.term, (start.offset or 0) - 1)
            for number, start in starts.items()
        }
        self.tables: dict[str, TableState] = {}
        self.lives: dict[str, Life] = {}
        """By transaction, with the times of its events: by its writer's clock, and by the agent's."""
        self.partition: dict[str, int] = {}
        """The Kafka partition of each table."""
        self.next_offsets: dict[TopicPartition, int] = {}
        """Where the reading of the log ended."""

    @property
    def newer(self) -> dict[int, str]:
        """The Kafka partitions that an agent of this version refuses, each with the reason."""
        return {number: each.newer for number, each in self.partitions.items() if each.newer is not None}

    @property
    def refused(self) -> dict[str, str]:
        """The tables whose last transaction was refused, each with the reason."""
        return {uri: why for each in self.partitions.values() for uri, why in each.refused.items()}

    def add(
        self, number: int, events: Sequence[ConsumerRecord], decisions: Sequence[ConsumerRecord]
    ) -> set[str]:
        """Apply the next records of a partition. Return the tables that they concern.

        A decision waits for its event, which a later round may have.
        """
        partition = self.partitions[number]
        refused = set(partition.refused)
        partition.note(decisions)
        touched = refused ^ set(partition.refused)
        touched |= self._apply(partition.due(partition.read))
        for record in events:
            partition.read = record.offset
            touched |= self._event(number, record)
            touched |= self._apply(partition.due(record.offset))
        return touched

    def apply_ahead(self) -> None:
        """Apply the decisions whose events the log doesn't have."""
        for partition in self.partitions.values():
            self._apply(partition.pending)
            partition.pending.clear()

    def _event(self, number: int, record: ConsumerRecord) -> set[str]:
        event = wire.decode(wire.WRITER_EVENT, record.value, key=record.key or b"")
        if isinstance(event, wire.Undecodable):
            return set()
        if event.table not in self.partition:
            self.partition[event.table] = partition_of(event.table, len(self.starts))
        if self.partition[event.table] != number:
            return set()
        if isinstance(event, wire.CommitIntent | wire.CommitRequested):
            life = self.lives.setdefault(event.transaction, Life(event.transaction, event.writer))
            life.note(event, event.at.timestamp())
        state = self.tables.setdefault(event.table, TableState(event.table, TableSettings()))
        replay_event(state, event, record.offset, monotonic())
        return {event.table}

    def _apply(self, decisions: Iterable[wire.DecisionEventUnion]) -> set[str]:
        touched = set()
        for decision in decisions:
            touched.add(decision.table)
            if decision.transaction in self.lives:
                self.lives[decision.transaction].note(decision, decision.at.timestamp())
            if decision.table in self.tables:
                replay_decision(self.tables[decision.table], decision, monotonic())
        return touched


def note_refusal(refused: dict[str, str], decision: wire.DecisionRecord) -> None:
    """Note the next record of `decisions` of a partition: a new owner starts each stopped table again."""
    match decision:
        case wire.PartitionTaken():
            refused.clear()
        case wire.Abort(reason="not-allowed", retriable=False):
            refused.pop(decision.table, None)
            refused[decision.table] = decision.detail or decision.reason
            if len(refused) > MAX_REFUSED:
                del refused[next(iter(refused))]
        case wire.Abort() | wire.LocksHandedOver():
            pass
        case _:
            refused.pop(decision.table, None)


async def replay_log(log: Log, *readers: Readers, ahead: bool = True) -> LogReplay:
    """Replay `writers` and `decisions` from the last checkpoint to their ends.

    `readers` get what else they want, in the same reading of the log. `ahead`: also apply the decisions whose events are missing.
    """
    topics = log.topics
    partitions = [each.partition for each in await log.partitions(topics.writers)]
    # An error names the topic if it is missing or hidden.
    counts = {topics.decisions: len(await log.partitions(topics.decisions))}
    require_equal_counts({topics.writers: len(partitions), **counts})
    found = LogReplay(await find_starts(log, partitions))
    spans: dict[TopicPartition, Reader] = {}
    records: dict[TopicPartition, list[ConsumerRecord]] = defaultdict(list)
    for number, start in found.starts.items():
        for topic, offset in ((topics.writers, start.offset), (topics.decisions, start.decisions.offset)):
            each = TopicPartition(topic, number)
            spans[each] = offset, records[each].append
    found.next_offsets = await log.read_once(spans, *readers)
    for number in partitions:
        events, decisions = (
            records[TopicPartition(each, number)] for each in (topics.writers, topics.decisions)
        )
        found.add(number, events, decisions)
    if ahead:
        found.apply_ahead()
    return found
