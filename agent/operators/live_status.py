"""What `status` shows, kept up to date while the log grows (docs/decisions/0039-the-page.md).

It begins with the replay of `status`, and goes on with the same functions, in rounds: the caller passes the new events of a
partition together with all decisions that were published before it asked for their end. This module does no I/O.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from aiokafka.structs import ConsumerRecord

from lakewarden import events as wire
from lakewarden.agent.clock import moment
from lakewarden.agent.operators import status
from lakewarden.agent.operators.log_replay import LogReplay
from lakewarden.handlers.table.facts import drop_index
from lakewarden.handlers.table.memory import largest_excess, used_bytes
from lakewarden.handlers.table.state import TableState

MAX_IDLE = 1_000
"""Tables without an open transaction of which something is kept, the last ones: events may be delivered again within seconds."""
MAX_ENDED = 100
"""Ended transactions that are kept of such a table."""
_LATE_NAMES = 1_000
"""Times of ended transactions that may be kept until the next clean-up."""


class LiveStatus:
    """The tables of one installation. `replay` is one without the decisions that are ahead of its events."""

    def __init__(self, replay: LogReplay, locks: status.Locks) -> None:
        self._replay = replay
        self._locks = locks
        self._views: dict[str, tuple[wire.AuditEventUnion | None, status.TableView]] = {}
        """Each with the step of the lock that it shows."""
        self._idle: dict[str, None] = {}
        """The tables without an open transaction, in the order of their last events."""
        self._clean_up_at = _LATE_NAMES
        self._without_waits: set[str] = set()
        """Tables whose footprints were dropped at the memory budget: it is unknown who waits for whom."""
        for each in replay.partitions.values():
            each.taken_over = False
        self._drop_ended(list(replay.tables))

    @property
    def taken_over(self) -> bool:
        """Whether an agent has taken a partition over since the replay."""
        return any(each.taken_over for each in self._replay.partitions.values())

    def add(self, number: int, events: Sequence[ConsumerRecord], decisions: Sequence[ConsumerRecord]) -> None:
        touched = self._replay.add(number, events, decisions)
        self._drop_ended(touched)
        for uri in touched:
            self._views.pop(uri, None)

    # -- what is shown -----------------------------------------------------------------------------------------------

    def views(self) -> list[status.TableView]:
        now_ms = moment().wall_ms
        oldest = now_ms - status.AUDIT_WINDOW.total_seconds() * 1000
        for uri in [each for each, step in self._locks.items() if step.at.timestamp() * 1000 < oldest]:
            del self._locks[uri]
            self._views.pop(uri, None)
        refused = self._replay.refused
        open_tables = {uri for uri, state in self._replay.tables.items() if state.open()}
        troubles = list(status.partition_views(self._replay.starts, self._replay.newer, {}).values())
        return troubles + [
            self._view(uri, refused.get(uri), now_ms)
            for uri in sorted(open_tables | set(self._locks) | set(refused))
        ]

    def view(self, table: str) -> status.TableView:
        return self._view(table, self._replay.refused.get(table), moment().wall_ms)

    def _view(self, uri: str, refused: str | None, now_ms: int) -> status.TableView:
        lock = self._locks.get(uri)
        shown, known = self._views.get(uri, (None, None))
        lapsed = known is not None and known.lock is not None and known.lock.held
        if known is None or shown is not lock or (lapsed and lock is not None and lock.valid_until <= now_ms):
            known = status.table_view(uri, self._replay, lock, refused)
            known = replace(known, waits_known=uri not in self._without_waits)
            if lock is not None or uri in self._replay.tables or refused is not None:
                self._views[uri] = lock, known
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
            self._without_waits.discard(uri)
            fresh = replay.tables[uri] = TableState(uri, state.settings)
            fresh.losses, fresh.lost_on = state.losses, state.lost_on
            fresh.closed = dict(list(state.closed.items())[-MAX_ENDED:])
            self._idle[uri] = None
        while len(self._idle) > MAX_IDLE:
            oldest = next(iter(self._idle))
            del self._idle[oldest], replay.tables[oldest]
        if len(replay.lives) > self._clean_up_at:
            kept = {each.id for state in replay.tables.values() for each in state.open()}
            replay.lives = {name: each for name, each in replay.lives.items() if name in kept}
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
            self._without_waits.add(uri)
            self._views.pop(uri, None)
