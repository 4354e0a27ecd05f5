"""What `status` shows, kept up to date while the log grows (docs/decisions/0039-the-page.md).

It begins with the replay of `status`, and goes on with the same functions, in rounds: the caller passes the new events of a
partition together with all decisions that were published before it asked for their end. This module does no I/O.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from lakewarden import events as wire
from lakewarden.agent.clock import moment
from lakewarden.agent.operators import status
from lakewarden.agent.operators.log_replay import LogReplay
from lakewarden.agent.serving.log_records import decisions_in
from lakewarden.handlers.table.facts import drop_index
from lakewarden.handlers.table.memory import largest_excess, used_bytes
from lakewarden.handlers.table.replay import Position, PublishedDecisions
from lakewarden.handlers.table.state import TableState

MAX_IDLE = 1_000
"""Tables without an open transaction of which something is kept, the last ones: events may be delivered again within seconds."""
MAX_ENDED = 100
"""Ended transactions that are kept of such a table."""
_LATE_NAMES = 1_000
"""Times of ended transactions that may be kept until the next clean-up."""


class LiveStatus:
    """The tables of one installation. `replay` is one without the decisions that are ahead of its events."""

    def __init__(self, replay: LogReplay, writers_topic: str) -> None:
        self._replay = replay
        self._partitions = {
            number: _Partition(start.decisions.term) for number, start in replay.starts.items()
        }
        self._locks: dict[str, wire.AuditEventUnion] = {}
        self._views: dict[str, status.TableView] = {}
        self._idle: dict[str, None] = {}
        """The tables without an open transaction, in the order of their last events."""
        self._clean_up_at = _LATE_NAMES
        self.without_waits: set[str] = set()
        """Tables whose footprints were dropped at the memory budget: it is unknown who waits for whom."""
        self.taken_over = False
        """Whether an agent has taken a partition over since the replay."""
        for number, start in replay.starts.items():
            partition = self._partitions[number]
            end = replay.next_offsets.get(TopicPartition(writers_topic, number))
            partition.read = -1 if end is None else end - 1
            records = replay.decisions.pop(number, [])
            published = PublishedDecisions(start.decisions, decisions_in(records))
            published.pop_due(partition.read)
            partition.pending.extend(published.pop_due(None))
            partition.note(records)
        self._drop_ended(list(replay.tables))

    def add(self, number: int, events: Sequence[ConsumerRecord], decisions: Sequence[ConsumerRecord]) -> None:
        partition = self._partitions[number]
        refused = dict(partition.refused)
        decided, taken_over = partition.note(decisions)
        self.taken_over = self.taken_over or taken_over
        partition.pending.extend(decided)
        touched = set(refused) ^ set(partition.refused)
        for decision in partition.due():
            self._apply(decision, touched)
        for record in events:
            partition.read = record.offset
            if (table := self._replay.apply_event(number, record)) is not None:
                touched.add(table)
            for decision in partition.due():
                self._apply(decision, touched)
        self._drop_ended(touched)
        for uri in touched:
            self._views.pop(uri, None)

    def _apply(self, decision: wire.DecisionEventUnion, touched: set[str]) -> None:
        self._replay.apply(decision)
        touched.add(decision.table)

    def add_lock_step(self, step: wire.AuditEventUnion) -> None:
        self._locks[step.table] = step
        self._views.pop(step.table, None)

    # -- what is shown -----------------------------------------------------------------------------------------------

    def views(self) -> list[status.TableView]:
        now_ms = moment().wall_ms
        oldest = now_ms - status.AUDIT_WINDOW.total_seconds() * 1000
        for uri in [each for each, step in self._locks.items() if step.at.timestamp() * 1000 < oldest]:
            del self._locks[uri]
            self._views.pop(uri, None)
        refused = {
            uri: why for partition in self._partitions.values() for uri, why in partition.refused.items()
        }
        open_tables = {uri for uri, state in self._replay.tables.items() if state.open()}
        troubles = list(status.partition_views(self._replay.starts, self._replay.refused, {}).values())
        return troubles + [
            self._view(uri, refused.get(uri), now_ms)
            for uri in sorted(open_tables | set(self._locks) | set(refused))
        ]

    def view(self, table: str) -> status.TableView:
        refused = (found for each in self._partitions.values() if (found := each.refused.get(table)))
        return self._view(table, next(refused, None), moment().wall_ms)

    def _view(self, uri: str, refused: str | None, now_ms: int) -> status.TableView:
        known, lock = self._views.get(uri), self._locks.get(uri)
        expired = known is not None and known.lock is not None and known.lock.held
        if known is None or (expired and lock is not None and lock.valid_until <= now_ms):
            known = status.table_view(uri, self._replay, lock, refused)
            if uri in self._locks or uri in self._replay.tables or refused is not None:
                self._views[uri] = known
        return known

    # -- bounds ------------------------------------------------------------------------------------------------------

    def _drop_ended(self, tables: Iterable[str]) -> None:
        """Keep of tables without an open transaction what repeated events and the order of a queue need; drop old ones."""
        replay = self._replay
        for uri in tables:
            state = replay.tables.get(uri)
            self._idle.pop(uri, None)
            if state is None or state.open():
                continue
            self.without_waits.discard(uri)
            fresh = replay.tables[uri] = TableState(uri, state.settings)
            fresh.losses, fresh.lost_on = state.losses, state.lost_on
            fresh.closed = dict(list(state.closed.items())[-MAX_ENDED:])
            self._idle[uri] = None
        while len(self._idle) > MAX_IDLE:
            oldest = next(iter(self._idle))
            del self._idle[oldest], replay.tables[oldest]
        if len(replay.seen) > self._clean_up_at:
            kept = {each.id for state in replay.tables.values() for each in state.open()}
            replay.seen = {name: each for name, each in replay.seen.items() if name in kept}
            replay.partition = {uri: each for uri, each in replay.partition.items() if uri in replay.tables}
            self._clean_up_at = 2 * len(kept) + _LATE_NAMES

    def limit_memory(self, limit_bytes: int) -> None:
        """Drop the largest footprints until all of them together fit."""
        states = self._replay.tables
        used = sum(used_bytes(each) for each in states.values())
        while used > limit_bytes and (found := largest_excess(states.values(), live=False)) is not None:
            uri, _ = found
            used -= used_bytes(states[uri])
            drop_index(states[uri])
            used += used_bytes(states[uri])
            self.without_waits.add(uri)
            self._views.pop(uri, None)


class _Partition:
    """What is known of one Kafka partition."""

    def __init__(self, term: str | None) -> None:
        self.term = term
        self.read = -1
        """Offset of the last event that was applied."""
        self.pending: deque[wire.DecisionEventUnion] = deque()
        """Decisions that follow from later events."""
        self.refused: dict[str, str] = {}

    def note(self, records: Sequence[ConsumerRecord]) -> tuple[list[wire.DecisionEventUnion], bool]:
        """Note the next decisions. Return those that count, and whether an agent took the partition over."""
        published = PublishedDecisions(Position(0, self.term), ())
        taken_over = False
        for record in records:
            decision = wire.decode(wire.DECISION_RECORD, record.value)
            if not isinstance(decision, wire.Undecodable):
                status.note_refusal(self.refused, decision)
                taken_over = taken_over or isinstance(decision, wire.PartitionTaken)
                published.add(record.offset, decision)
        self.term = published.term
        return published.all(), taken_over

    def due(self) -> list[wire.DecisionEventUnion]:
        """The decisions that follow from the events that were applied, and mark them as applied."""
        found: list[wire.DecisionEventUnion] = []
        while self.pending and self.pending[0].cause_offset <= self.read:
            found.append(self.pending.popleft())
        return found
