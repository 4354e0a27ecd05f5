"""The owner of one partition of `writers`: replays the log into the states of its tables, then decides on each new event.

    loading ──ledger and decisions read──▶ replaying ──end of the log reached──▶ live ──stopped · another owner──▶ released
       │                                                                         │ ▲                             ▲
       │                                                                  revoked▼ │assigned again               │
       │                                                                        paused ──────────────────────────┤
       └──a decision that this version doesn't know──▶ refused ──────────────────────────────────────────────────┘

An owner consists of these parts, each with its rules in its own file:

| part | file |
| --- | --- |
| replays the log; refuses a partition that it can't replay | `replay.py` |
| passes events, time and locks to the tables' state machines; forgets quiet tables | `tables.py` |
| stops a table after an unexpected exception | `stopped_tables.py` |
| answers events that can't be decoded, or of tables that are not allowed or belong to another partition | `refused_events.py` |
| publishes take-overs, decisions, ledger entries and dead letters | `own_records.py` |
| notes what the log must still have at the next take-over, and what it lacked at this one | `log_seen.py` |

- A checkpoint has the offset of the oldest intent that a replay must read, and a position in `decisions`. No decision before that
  position concerns the intent or a later event (`handlers/table/replay.py`). It doesn't move while a table is stopped.
- A paused owner decides nothing. It resumes by the rules of `handlers/group/ownership.py`, with its state and its locks. What
  happens to its locks during the pause is applied when it resumes.

The rules about conflicts, grants and locks are in `handlers/`, the tables' locks in `agent/locks/table_locks.py`.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

import structlog
from aiokafka.structs import ConsumerRecord

from lakewarden import events
from lakewarden.agent.clock import monotonic
from lakewarden.agent.locks.table_locks import Ownership
from lakewarden.agent.metrics.partition_metrics import PartitionMetrics
from lakewarden.agent.serving.checkpoint import Checkpoint
from lakewarden.agent.serving.lasting import Lasting
from lakewarden.agent.serving.memory_budget import MemoryBudget
from lakewarden.agent.serving.partition.log_seen import LogSeen, Phase, Progress
from lakewarden.agent.serving.partition.own_records import OwnRecords
from lakewarden.agent.serving.partition.refused_events import RefusedEvents
from lakewarden.agent.serving.partition.replay import Replay
from lakewarden.agent.serving.partition.tables import Tables
from lakewarden.handlers.group.ownership import may_resume
from lakewarden.handlers.group.readiness import Lag, OwnedPartition
from lakewarden.handlers.table.liveness import CaughtUp
from lakewarden.handlers.table.log_gaps import Gap
from lakewarden.handlers.table.machine import EventRead
from lakewarden.handlers.table.replay import CheckpointPositions, Position

log = structlog.get_logger()

_REFUSED = (
    "a newer version of the agent published it, so this version would rebuild another state; its tables are not served. "
    "Upgrade this agent, or stop it so that a newer one takes the partition over"
)


class PartitionOwner:
    """The owner of one partition, from its take-over to its release."""

    def __init__(self, ownership: Ownership, lasting: Lasting, memory: MemoryBudget) -> None:
        """`memory`: of all partitions."""
        self.ownership = ownership
        self.number = number = ownership.number
        settings = ownership.shared.settings
        self.follows_paused = False
        """Whether it replaces an owner that was paused and could not resume: the consumer may have passed the checkpoint."""
        self.committed = 0
        """Offset of the checkpoint that is committed."""
        self.lag = Lag()
        """The periodic check notes the ends of the log there."""
        self._progress = Progress()
        self.seen = LogSeen(number, settings)
        self.records = OwnRecords(ownership, self.seen, lasting.unpublishable)
        self._takeovers = self.records.takeovers
        self.observer = observer = PartitionMetrics(lasting.metrics)
        self.tables = Tables(ownership, self._progress, self.records, self.seen, memory, observer=observer)
        self.replay = Replay(self._progress, self.tables, self.records, self.seen, lasting.undecodable)
        self._refused = RefusedEvents(self.tables, self.records, observer)
        self._positions = CheckpointPositions()
        self._safe = Checkpoint(0, Position(0, None))
        """The last checkpoint that was computed."""
        self._caught_up: CaughtUp | None = None
        self._was_live = False

    @property
    def phase(self) -> Phase:
        """How far the owner is: see the figure at the top of the file."""
        return self._progress.phase

    @property
    def position(self) -> int:
        return self._progress.position

    def facts(self) -> OwnedPartition:
        if self.phase in ("replaying", "live"):
            self.lag.note_position(self.position)
        unread = max(0, self.lag.end - self.position)
        return OwnedPartition(self.number, self.phase, unread, self.lag.reached_at)

    # -- take-over ---------------------------------------------------------------------------------------------------

    def publish_takeover(self) -> None:
        """Publish `partition-taken` to the ledger and to the decisions. Both must be read only after it is in the log.

        A paused owner publishes it again, before it resumes.
        """
        self.records.takeover(first=self.phase != "paused")

    @property
    def takeover_in_ledger(self) -> int:
        """Offset of this owner's `partition-taken` in the ledger, -1 until Kafka has acknowledged it."""
        return self._takeovers.own_in_ledger

    def on_partition_taken(self, taken: events.PartitionTaken, offset: int) -> None:
        """Record the take-over of another owner; this owner's own event is ignored."""
        if taken.term != self.records.term:
            self._takeovers.others = max(self._takeovers.others, offset)

    @property
    def replaced(self) -> bool:
        """Whether another agent took the partition over after this owner did. A paused owner is judged when it resumes."""
        return self.phase != "paused" and self._takeovers.replaced

    def on_others_entry(self, entry: events.LedgerRecord, offset: int) -> None:
        """Apply another agent's ledger entry, and record again what it may have replaced there.

        Records before this owner's `partition-taken` are part of its replay. After a later one of another agent, the losses that
        this owner records don't count. So it publishes its own again. If it is the one that was replaced, it reads that in
        `decisions` soon, and the other has the last word.
        """
        if self.phase in ("released", "refused") or -1 < offset < self._takeovers.own_in_ledger:
            return
        if self.phase == "loading":
            self.replay.others_entries.append(entry)
        elif not isinstance(entry, events.PartitionTaken):
            self.tables.take_entry(entry)
        elif self.phase != "paused" and not self.replaced:  # a paused one publishes it again when it resumes
            self.records.take_ledger_over()
            self.tables.repeat_losses()

    # -- replay ------------------------------------------------------------------------------------------------------

    def load(
        self,
        start: int,
        end: int,
        decisions: Position,
        *,
        checkpoint: Checkpoint | None = None,
        gaps: Sequence[Gap] = (),
        ledger_beginning: int = 0,
    ) -> None:
        """Start the replay of `writers` from `start` to `end`. `replay` has read the ledger, and decisions from `decisions` on.

        `checkpoint`: the one of the former owner. `gaps`: what the log lacks of what that relies on. `ledger_beginning`: where
        the ledger begins.
        """
        replay, takeovers = self.replay, self._takeovers
        self._progress.position = self.committed = start
        replay.read_decisions(decisions, ())
        if replay.newer is not None:
            self._refuse_partition(replay.newer, _REFUSED)
            return
        self.seen.compare(checkpoint, gaps, replay.published.all(), end, ledger_beginning)
        self._safe = self.seen.checkpoint(start, decisions)
        if self.seen.writers_replaced:
            self.tables.ledger.drop_offsets()
        self.tables.repeat_entries()
        if replay.published.term not in (None, self.records.term):
            takeovers.others = max(takeovers.others, takeovers.own + 1)
        replay.start(end, self.seen.lost_ends)
        self._progress.phase = "replaying"
        for entry in replay.others_entries:
            self.on_others_entry(entry, takeovers.own_in_ledger)
        replay.others_entries.clear()
        backlog, replay.backlog = replay.backlog, []
        self.consume(backlog, monotonic())
        self.finish_replay(self.position)

    def _refuse_partition(self, reason: str, detail: str) -> None:
        self._progress.phase = "refused"
        self.replay.backlog.clear()
        log.error("partition.refused", partition=self.number, reason=reason, detail=detail)

    def finish_replay(self, position: int) -> None:
        """Go live if `position` has reached the end of the replay."""
        if self.phase == "replaying" and position >= self.replay.until:
            self.replay.apply_decisions(None)
            self._progress.phase = "live"
            self.replay.finish()

    def advance_to(self, position: int) -> None:
        """Skip to `position`, the consumer's own: the last records of the log may be no events (the markers of a transaction)."""
        if self.phase in ("replaying", "live"):
            self._progress.position = max(self.position, position)
            self.finish_replay(self.position)

    # -- events and time ---------------------------------------------------------------------------------------------

    def consume(self, records: Iterable[ConsumerRecord], read_at: float) -> None:
        """Apply records in the order of the log. While loading, the owner queues them; paused or released, it ignores them.

        The consumer must be set back to `position` when the owner resumes.
        """
        for record in records:
            if self.phase == "loading":
                self.replay.backlog.append(record)
                continue
            if self.phase in ("paused", "refused", "released"):
                return
            if record.offset < self.position:
                continue
            if self.phase == "replaying" and record.offset >= self.replay.until:
                self.finish_replay(record.offset)
            self._progress.record = record
            event = events.decode(events.WRITER_EVENT, record.value, key=record.key or b"")
            if isinstance(event, events.Undecodable):
                self._refused.refuse(record, event, self.replay.aborted)
            else:
                self._consume_event(record, event, read_at)
            self._progress.position, self._progress.record = record.offset + 1, None
            self.seen.on_event(record)
            if self.phase == "replaying":
                self.replay.apply_decisions(record.offset)

    def _consume_event(self, record: ConsumerRecord, event: events.WriterEventUnion, read_at: float) -> None:
        state = self.tables.find(event.table)
        if isinstance(state, str):
            bad = events.Undecodable(state, event.table, event.transaction, event.writer, event.event_id)
            self._refused.refuse(record, bad, self.replay.aborted)
            return
        self.tables.note_event(event.table, record.offset)
        if isinstance(event, events.CommitIntent):
            self._positions.on_intent(
                record.offset, self.replay.published.next_position() or self._decisions_end()
            )
        if self.phase == "replaying":
            self.replay.apply_event(state, event, record.offset)
            return
        if isinstance(event, events.CommitIntent):
            self.tables.locks.locate(state)
        self.tables.step(event.table, EventRead(event, record.offset, monotonic(), read_at))

    def _decisions_end(self) -> Position:
        return Position(self.seen.decisions_end, self.records.term)

    async def tick(self, now: float, asked_at: float, end: int | None, *, stalled: bool) -> None:
        """Run the periodic check.

        `end` is the end offset of the log, which was requested at `asked_at`, or None if Kafka did not answer.
        `stalled`: the last check was so long ago that this process must have been suspended.
        """
        if self.phase != "live":
            return
        if end is None or self.position < end:
            self._caught_up = None
        elif self._caught_up is None or stalled:
            self._caught_up = CaughtUp(now, asked_at)
        else:
            self._caught_up = CaughtUp(self._caught_up.since, asked_at)
        await self.tables.check(self._caught_up, self.committed)

    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint that may be committed now, or None before the end of the replay."""
        if self.phase != "live" or self.replaced or not self.seen.checkpoint_allowed:
            return None
        if not self.tables.stopped.reasons:
            needed = self.tables.oldest_needed()
            offset = self.position if needed is None else needed
            self._safe = self.seen.checkpoint(offset, self._positions.at(offset, self._decisions_end()))
        return self._safe

    # -- pause and release -------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Decide nothing until `resume`, and keep the locks. Only for a live or paused owner without a stopped table."""
        assert self.phase in ("live", "paused")
        self._progress.phase = "paused"
        self._takeovers.again = -1
        self._caught_up = None

    def may_resume(self, read_until: int) -> Literal["yes", "no", "unknown yet"]:
        """Whether this paused owner may resume, after `publish_takeover`. `decisions` is read up to `read_until`, exclusive."""
        if self.tables.stopped.reasons:
            return "no"
        return may_resume(self._takeovers, read_until)

    def resume(self) -> None:
        """Decide again. The locks' inputs of the meantime come first, and then what has become due."""
        assert self.phase == "paused"
        self._progress.phase = "live"
        self.tables.resume()

    def stop_deciding(self) -> None:
        self._was_live = self.phase in ("live", "paused")
        self._progress.phase = "released"
        self.tables.memory.forget(self.tables)

    async def release(self) -> None:
        """Release every lock under which no grant runs. Call it after `stop_deciding`."""
        await self.tables.locks.release(self._releasable())

    def unreleased(self) -> list[str]:
        return self.tables.locks.unreleased(self._releasable())

    def _releasable(self) -> set[str]:
        return self.tables.without_grant() if self._was_live else set()
