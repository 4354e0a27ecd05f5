"""The owner of one partition of `writers`: replays the log into the states of its tables, then decides on each new event.

    loading ──ledger and decisions read──▶ replaying ──end of the log reached──▶ live ──stopped · another owner──▶ released
       │                                                                         │ ▲                             ▲
       │                                                                  revoked▼ │assigned again               │
       │                                                                        paused ──────────────────────────┤
       └──a decision that this version doesn't know──▶ refused ──────────────────────────────────────────────────┘

- The replay applies the events from the checkpoint's offset on, and each published decision after the event that its
  `cause_offset` names. It decides nothing. An event whose decision was not published before the crash is decided at the end of
  the replay.
- A checkpoint has the offset of the oldest intent that a replay must read, and a position in `decisions`. No decision before that
  position concerns the intent or a later event.
- A paused owner decides nothing. It resumes by the rules of `handlers/group/ownership.py`, with its state and its locks. What
  happens to its locks meanwhile is applied when it resumes.
- An event that can't be decoded, or that names a table that is not allowed, goes to the dead letters. If its
  transaction can be decoded, the owner publishes one `abort(not-allowed)`. An open transaction is aborted by it, because part of
  what it touches is unknown; a granted one is not.
- An event of a table whose place is another Kafka partition is refused in the same way, also in a replay: otherwise two owners
  would decide about one table. Its producer has another partitioner.

**A table is stopped** by any unexpected exception: in deciding, in building or encoding what was decided, in its lock's task, in
the replay, by a violated invariant, and by a record that is too large for Kafka. The agent and the other tables continue.

1. A step publishes all of its records or none. They are built, encoded and measured before the first of them is queued.
2. Verdicts are applied to the state while the step decides. So a step that fails leaves a state that is ahead of the log. That
   state is never used again, except for the names of its open transactions. What the failed step decided is not published, and
   the next owner rebuilds the state from the log, where it never happened.
3. Every transaction that is open in the log gets an abort: those that the state has as open, those about which the failed step
   had decided, and the one whose intent it was reading. The reason is `not-allowed`, of a granted transaction `lease-lost`,
   because its lock is not renewed any more. These records are written without models, so that what failed before can't fail
   again. Their `cause_offset` is that of the failed event: a replay applies the event, which is a fact, and then closes the
   transactions.
4. The lock is left to expire, as a grant may run under it.
5. The owner refuses later events of the table (dead letter, `abort(not-allowed)`).
6. The partition's checkpoint doesn't move while one of its tables is stopped. It stays where it was computed last, before the
   failed step. So the next owner finds every event since, also the completion of a commit that ran during the stop.
7. A table that fails during a replay is stopped too, and its transactions are aborted when the owner goes live.
8. A table whose record a *broker* refused for its size is stopped at the end of the next session's replay: the agent would
   decide the same again.

The next owner of the partition starts the table again: after a restart of the agent, or when the partition moves.

**A quiet table is forgotten** (decision record 22): it is idle, its last event is `QUIET_SECONDS` old, and the committed
checkpoint is beyond that event. So a restarted agent would not have its state either. Its entries of the ledger are kept in a
compact form (`handlers/table/ledger.py`), and its next event finds them.

**A partition is refused** if `decisions` has a record to be replayed that is an event and that this version can't decode: a newer
agent published it, and a state without it would be another one. The owner decides nothing there, and commits no checkpoint. The
agent's other partitions go on. A record that is no event at all (no JSON object with a `type`) is logged and skipped.

**If the log is incomplete** (decision record 16), the owner replays what is left, aborts what is open without a grant, and admits
nothing in a table before it has the table's lock. It commits no checkpoint before a lock lease has passed, so that an owner that
takes over meanwhile finds the same gap.

The rules about conflicts, grants and locks are in `handlers/`, the tables' locks in `agent/locks/table_locks.py`.
"""

from __future__ import annotations

import base64
import json
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, TypeAlias, TypeVar

import anyio
import anyio.abc
import anyio.lowlevel
import structlog
from aiokafka.structs import ConsumerRecord

from lakewarden.agent import wire_events
from lakewarden.agent.clock import fresh_id, monotonic, utc_now
from lakewarden.agent.errors import RecordTooLargeError
from lakewarden.agent.kafka import partition_of
from lakewarden.agent.locks.keeper import SleepWatch, Stores
from lakewarden.agent.locks.table_locks import LockInput, TableLocks
from lakewarden.agent.publisher import Outgoing, Publisher
from lakewarden.agent.serving.checkpoint import Checkpoint, FoundGap, LogSeen, digest, recent_gaps
from lakewarden.agent.serving.log_lines import effect_name, log_effect, summary
from lakewarden.agent.serving.log_records import decisions_in, decoded_ledger
from lakewarden.agent.serving.memory_budget import MemoryBudget
from lakewarden.agent.settings import Settings
from lakewarden.events import (
    PROTOCOL,
    WRITER_EVENT,
    Abort,
    CommitGranted,
    CommitIntent,
    CommitRequested,
    DeadLetter,
    DecisionEventUnion,
    HandedOverLock,
    LedgerEventUnion,
    LocksHandedOver,
    MarkerCreated,
    PartitionTaken,
    Undecodable,
    UndecodableRecords,
    WriterEventUnion,
    decode,
    encode,
    ledger_key,
    partition_name,
)
from lakewarden.handlers.group.ownership import TakeOvers, may_resume
from lakewarden.handlers.table import verdicts
from lakewarden.handlers.table.facts import drop_index
from lakewarden.handlers.table.ledger import Kind, Ledger, LedgerEntries
from lakewarden.handlers.table.liveness import CaughtUp
from lakewarden.handlers.table.log_gaps import Gap, LastRecord
from lakewarden.handlers.table.machine import (
    EventRead,
    Input,
    OverBudget,
    Replayed,
    Tick,
    record_again,
    repeat_entry,
    replay_event,
    replay_verdict,
    restore,
    step,
)
from lakewarden.handlers.table.memory import Excess, largest_index, largest_transaction, used_bytes
from lakewarden.handlers.table.replay import Position, PublishedDecisions
from lakewarden.handlers.table.state import LATE_COMPLETION_SECONDS, TableState
from lakewarden.handlers.table.transactions import OPEN, Phase

log = structlog.get_logger()

DEAD_LETTER_BYTES = 1024
MAX_REFUSED = 10_000
"""Refused transactions that are remembered, so that each gets one abort."""
MAX_REASON = 1_000
"""Characters of a reason, which may quote the event: it must fit into a record."""
MAX_KEY_BYTES = 4_096
"""Of a refused record's key, which is the key of the answer, too: longer than the URI of any table."""


QUIET_SECONDS = LATE_COMPLETION_SECONDS
"""After so long without an event, a table is forgotten. Until then late events of ended transactions get their own answers."""
MAX_HANDED_OVER_BYTES = 900_000
"""Of all locks in one `locks-handed-over`, so that it fits into a record. The others have a quiet time."""
MAX_RECENT = 200
"""Latest inputs of all tables that are kept for the log line of a stopped table."""
STOPPED = "table is stopped: "
"""Begins the `detail` of each abort because of a stopped table. `lakewarden status` finds stopped tables by it."""

_LOG_LOST = (
    "records that Kafka had acknowledged are lost, or were removed. Open transactions without a known grant are aborted "
    "(unknown-transaction) and start again; no table admits another before its lock is acquired. Check the topic's settings, "
    "recent leader elections, and whether the cluster was restored"
)
_LEDGER_LOST = (
    "the ledger has lost entries, so a batch whose sink can't ask its table may be written twice. Restore the topic from a "
    "backup if there is one"
)

_REFUSED = (
    "a newer version of the agent published it, so this version would rebuild another state; its tables are not served. "
    "Upgrade this agent, or stop it so that a newer one takes the partition over"
)

T = TypeVar("T")
_Subject: TypeAlias = tuple[str, str, str]
"""What a decision is about: table, transaction, writer. A stranger may use the same id with another table or writer."""


class PartitionOwner:
    """The states and locks of one partition's tables."""

    def __init__(  # noqa: PLR0917 - the objects that all owners of an agent share
        self,
        number: int,
        settings: Settings,
        publisher: Publisher,
        stores: Stores,
        tasks: anyio.abc.TaskGroup,
        watch: SleepWatch | None = None,
        *,
        undecodable: UndecodableRecords | None = None,
        unpublishable: dict[str, str] | None = None,
        memory: MemoryBudget | None = None,
        partitions: int = 1,
    ) -> None:
        """An agent's owners share the last four.

        `unpublishable`: tables whose record a broker refused for its size, with the reason. `partitions`: their number in
        `writers`, by which each table has its place.
        """
        self.number = number
        self._partitions = partitions
        self.phase: Literal["loading", "replaying", "live", "paused", "refused", "released"] = "loading"
        self.follows_paused = False
        """Whether it replaces an owner that was paused and could not resume: the consumer may have passed the checkpoint."""
        self._was_live = False
        self.position = 0
        """Offset of the next event."""
        self.term = fresh_id()
        """Identifies this ownership: after its `partition-taken`, decisions of other terms don't count."""
        self.tables: dict[str, TableState] = {}
        self.stopped: dict[str, str] = {}
        """The stopped tables, each with the reason."""
        self._unpublishable = {} if unpublishable is None else unpublishable
        self._memory = memory or MemoryBudget(settings.memory_bytes)
        self._recent: deque[str] = deque(maxlen=MAX_RECENT)
        self._safe = Checkpoint(0, Position(0, None))
        """The last checkpoint that was computed."""
        self._seen = LogSeen()
        self._settings = settings
        self._topics = settings.topics
        self._placement = settings.placement()
        self._publisher = publisher
        self._undecodable = undecodable or UndecodableRecords()
        self.locks = TableLocks(
            settings,
            publisher,
            stores,
            tasks,
            watch,
            step_table=self._step,
            last_offset=lambda: self.position - 1,
            on_failure=lambda uri, error: self._stop_table(uri, self.tables[uri], error),
        )
        self._backlog: list[ConsumerRecord] = []
        self._record: ConsumerRecord | None = None
        """The record whose event is being decided."""
        self._replay_until = 0
        self._published = PublishedDecisions(Position(0, None), ())
        self._ledger = Ledger()
        self._last_events: dict[str, tuple[int, float]] = {}
        """Offset and time of each table's last event."""
        self.committed = 0
        """Offset of the checkpoint that is committed."""
        self._aborted: set[_Subject] = set()
        """During a replay: what the log has an abort of."""
        self._doomed: set[_Subject] = set()
        """During a replay: those aborted with `not-allowed` and never granted."""
        self._refused: OrderedDict[_Subject, None] = OrderedDict()
        self._decisions_next = 0
        self._decisions_at: dict[int, Position] = {}
        self._caught_up: CaughtUp | None = None
        self._takeovers = TakeOvers()
        """This owner's own, once Kafka has acknowledged them, and those of others."""
        self._deferred: list[tuple[str, LockInput]] = []
        """What has happened to the locks since the owner was paused."""
        self._others_entries: list[LedgerEventUnion] = []
        """Entries of other agents that were read while this owner was loading."""

    # -- replay ------------------------------------------------------------------------------------------------------

    def publish_takeover(self) -> None:
        """Publish `partition-taken` to the ledger and to the decisions. Both must be read only after it is in the log.

        A paused owner publishes it again, before it resumes.
        """
        first = self.phase != "paused"
        taken = PartitionTaken(
            event_id=fresh_id(),
            table=partition_name(self.number),
            at=utc_now(),
            agent=self._settings.agent_id,
            term=self.term,
            instance=self._settings.instance,
        )
        key, value = taken.table.encode(), encode(taken)
        for topic, acknowledged in (
            (
                self._topics.ledger,
                self._takeover_in_ledger_acknowledged if first else self._ledger_acknowledged,
            ),
            (
                self._topics.decisions,
                partial(self._takeover_acknowledged if first else self._taken_again_acknowledged, value),
            ),
        ):
            self._publisher.put(Outgoing(topic, key, value, self.number, on_offset=acknowledged))

    @property
    def cut(self) -> str | None:
        """How the log has lost records while this owner was running, once it has noticed."""
        return self._seen.cut

    @property
    def takeover_in_ledger(self) -> int:
        """Offset of this owner's `partition-taken` in the ledger, -1 until Kafka has acknowledged it."""
        return self._takeovers.own_in_ledger

    def on_partition_taken(self, taken: PartitionTaken, offset: int) -> None:
        """Record the take-over of another owner; this owner's own event is ignored."""
        if taken.term != self.term:
            self._takeovers.others = max(self._takeovers.others, offset)

    @property
    def replaced(self) -> bool:
        """Whether another agent took the partition over after this owner did. A paused owner is judged when it resumes."""
        return self.phase != "paused" and self._takeovers.replaced

    def on_others_entry(self, entry: LedgerEventUnion, offset: int) -> None:
        """Record in the ledger again what another agent's entry may have replaced there.

        Entries before this owner's `partition-taken` are part of its replay.
        """
        if self.phase in ("released", "refused") or -1 < offset < self._takeovers.own_in_ledger:
            return
        if self.phase == "loading":
            self._others_entries.append(entry)
            return
        known = entry.table in self.tables or entry.table in self._ledger.tables
        state = self._table(entry.table, known=True) if known else None
        if isinstance(state, TableState):
            record_again(state, entry)
            self._step(entry.table, Tick(monotonic(), self.position - 1, None))

    def _takeover_in_ledger_acknowledged(self, offset: int) -> None:
        self._takeovers.own_in_ledger = offset
        self._ledger_acknowledged(offset)

    def _taken_again_acknowledged(self, value: bytes, offset: int) -> None:
        self._takeovers.again = max(self._takeovers.again, offset)
        self._decision_acknowledged(value, offset)

    def _takeover_acknowledged(self, value: bytes, offset: int) -> None:
        self._takeovers.own = offset
        self._decision_acknowledged(value, offset)

    def read_decisions(self, start: Position, records: Iterable[ConsumerRecord]) -> None:
        """Read the next decisions while loading. `start`: the position of the first of all."""
        if self._published.start != start:
            self._published = PublishedDecisions(start, ())
        for offset, decision in decisions_in(records, self._undecodable, self._on_newer_decision):
            self._published.add(offset, decision)

    def _on_newer_decision(self, reason: str) -> None:
        self._seen.newer = self._seen.newer or reason

    def read_ledger(self, records: Iterable[ConsumerRecord]) -> None:
        """Read the next entries of the ledger while loading."""
        for entry in decoded_ledger(records, self._undecodable):
            self._ledger.add(entry)

    def load(
        self,
        start: int,
        end: int,
        decisions_position: Position,
        decisions: Iterable[ConsumerRecord],
        ledger: Iterable[ConsumerRecord],
        *,
        checkpoint: Checkpoint | None = None,
        gaps: Sequence[Gap] = (),
    ) -> None:
        """Start the replay of `writers` from `start` to `end`.

        `decisions` and `ledger`: the records that `read_decisions` and `read_ledger` have not been given yet.
        `checkpoint`: the one of the former owner. `gaps`: what the log lacks of what that relies on.
        """
        self.position, self._replay_until, self.committed = start, end, start
        self.read_decisions(decisions_position, decisions)
        self.read_ledger(ledger)
        if self._seen.newer is not None:
            self.phase = "refused"
            self._backlog.clear()
            log.error("partition.refused", partition=self.number, reason=self._seen.newer, detail=_REFUSED)
            return
        self._note_gaps(end, checkpoint, gaps)
        self._safe = Checkpoint(start, decisions_position, self._seen.read, gaps=self._seen.reported)
        for kind, uri, writer in self._ledger.to_repeat:
            self._guard(uri, partial(self._repeat_entry, kind, uri, writer))
        self._ledger.to_repeat.clear()
        if self._published.term not in (None, self.term):
            self._takeovers.others = max(self._takeovers.others, self._takeovers.own + 1)
        decided = self._published.all()
        self._aborted = {_subject(each) for each in decided if isinstance(each, Abort)}
        self._doomed = {
            _subject(each) for each in decided if isinstance(each, Abort) and each.reason == "not-allowed"
        }
        self._doomed -= {_subject(each) for each in decided if isinstance(each, CommitGranted)}
        self.phase = "replaying"
        for entry in self._others_entries:
            self.on_others_entry(entry, self._takeovers.own_in_ledger)
        self._others_entries.clear()
        backlog, self._backlog = self._backlog, []
        self.consume(backlog, monotonic())
        self.finish_replay(self.position)

    def _note_gaps(self, end: int, checkpoint: Checkpoint | None, gaps: Sequence[Gap]) -> None:
        reach = max((each.cause_offset + 1 for each in self._published.all()), default=0)
        if reach > end and not any(each.topic == self._topics.writers for each in gaps):
            gaps = [*gaps, Gap(self._topics.writers, "end-lost", reach, end)]
        now = utc_now()
        earlier = () if checkpoint is None else recent_gaps(checkpoint.gaps, now)
        self._seen.reported = (*earlier, *(FoundGap(each, now) for each in gaps))
        self._seen.gaps = tuple(each for each in gaps if each.topic != self._topics.ledger)
        if self._seen.gaps:
            self._seen.no_checkpoint_before = monotonic() + self._settings.validity_seconds
        elif checkpoint is not None:
            self._seen.read = checkpoint.read
        for gap in gaps:
            lost_ledger = gap.topic == self._topics.ledger
            log.error(
                "log.incomplete",
                partition=self.number,
                topic=gap.topic,
                problem=gap.problem,
                expected=gap.expected,
                found=gap.found,
                detail=_LEDGER_LOST if lost_ledger else _LOG_LOST,
            )

    def _repeat_entry(self, kind: Kind, uri: str, writer: str) -> None:
        """Have a ledger entry recorded once more, because a replaced owner has published a later one."""
        state = self._table(uri, known=True)
        if isinstance(state, TableState):
            repeat_entry(state, kind, writer)

    def finish_replay(self, position: int) -> None:
        """Go live if `position` has reached the end of the replay."""
        if self.phase != "replaying" or position < self._replay_until:
            return
        self._apply_decisions(None)
        replayed = len(self._published)
        if not self._seen.gaps:  # otherwise the end of a hand-over may be what the log lacks
            for uri, owner in self._published.handed_over.items():
                if uri in self.tables:
                    self.tables[uri].handed_over = owner
        self._published = PublishedDecisions(Position(0, None), ())
        self.phase = "live"
        missing = "; ".join(each.description for each in self._seen.gaps) or None
        with self._memory.held():
            for uri, state in list(self.tables.items()):
                if uri in self.stopped:
                    self._abort_open(uri, state, (), unless=self._aborted)
                elif uri in self._unpublishable:
                    self._stop_table(uri, state, RecordTooLargeError(self._unpublishable[uri]))
            self._aborted.clear()
            self._doomed.clear()
            for uri, state in list(self.tables.items()):
                if state.open() and uri not in self.stopped:
                    self.locks.find_place(state)
                self._step(uri, Replayed(monotonic(), self.position - 1, missing, self._memory.limit))
        self._memory.enforce()
        log.debug(
            "partition.live",
            partition=self.number,
            offset=self.position,
            tables=len(self.tables),
            decisions_replayed=replayed,
            open=sum(len(state.open()) for state in self.tables.values()),
        )

    def advance_to(self, position: int) -> None:
        """Skip to `position`, the consumer's own: the last records of the log may be no events (the markers of a transaction)."""
        if self.phase in ("replaying", "live"):
            self.position = max(self.position, position)
            self.finish_replay(self.position)

    def _apply_decisions(self, up_to: int | None) -> None:
        for decision in self._published.pop_due(up_to):
            state = self.tables.get(decision.table)
            if state is not None and decision.table not in self.stopped:
                apply = partial(replay_verdict, state, verdicts.verdict_of(decision), monotonic())
                self._guard(decision.table, apply)
                self._note_memory(decision.table)

    # -- events ------------------------------------------------------------------------------------------------------

    def consume(self, records: Iterable[ConsumerRecord], read_at: float) -> None:
        """Apply records in the order of the log. While loading, the owner queues them; paused or released, it ignores them.

        The consumer must be set back to `position` when the owner resumes.
        """
        for record in records:
            if self.phase == "loading":
                self._backlog.append(record)
                continue
            if self.phase in ("paused", "refused", "released"):
                return
            if record.offset < self.position:
                continue
            if self.phase == "replaying" and record.offset >= self._replay_until:
                self.finish_replay(record.offset)
            self._record = record
            event = decode(WRITER_EVENT, record.value, key=record.key or b"")
            if isinstance(event, Undecodable):
                self._refuse(record, event)
            else:
                self._consume_event(record, event, read_at)
            self.position, self._record = record.offset + 1, None
            self._seen.read = LastRecord(record.offset, digest(record.value))
            if self.phase == "replaying":
                self._apply_decisions(record.offset)

    def _consume_event(self, record: ConsumerRecord, event: WriterEventUnion, read_at: float) -> None:
        state = self._table(event.table)
        if isinstance(state, str):
            bad = Undecodable(state, event.table, event.transaction, event.writer, event.event_id)
            self._refuse(record, bad)
            return
        self._last_events[event.table] = record.offset, monotonic()
        if isinstance(event, CommitIntent):
            self._decisions_at.setdefault(record.offset, self._decisions_seen())
        if self.phase == "replaying":
            if _subject(event) in self._doomed:
                event = _without_markers(event)
            ignored = self._guard(
                event.table, partial(replay_event, state, event, record.offset, monotonic())
            )
            self._note_memory(event.table)
            if ignored is not None:
                log.warning("event.ignored", table=event.table, offset=record.offset, detail=ignored)
            return
        if isinstance(event, CommitIntent):
            self.locks.find_place(state)
        self._step(event.table, EventRead(event, record.offset, monotonic(), read_at))

    def _decisions_seen(self) -> Position:
        """A position in `decisions` before which no decision concerns the events from now on."""
        return self._published.next_position() or Position(self._decisions_next, self.term)

    def _table(self, uri: str, *, known: bool = False) -> TableState | str:
        """The table's state, or why its events are refused. `known`: it is in the ledger, so `max_tables` does not apply."""
        if uri in self.stopped:
            return f"{STOPPED}{self.stopped[uri][: MAX_REASON // 2]}; restart the agent to rebuild it from the log; table={uri}"
        if uri not in self.tables:
            if (place := partition_of(uri, self._partitions)) != self.number:
                return (
                    f"table {uri} belongs to partition {place} of {self._topics.writers}, and this record is in partition "
                    f"{self.number}; set the partitioner of its producer (murmur2_random in librdkafka)"
                )
            if not self._placement.allows(uri):
                return f"table {uri} is not among the allowed ones; start the agent with --allow {uri}"
            limit = self._settings.max_tables
            if len(self.tables) >= limit and not known:
                return f"table {uri} exceeds the limit of {limit} tables per partition; increase max_tables"
            self.tables[uri] = self._restored(uri)
        return self.tables[uri]

    def _restored(self, uri: str) -> TableState:
        """The state of a table without transactions, with what the ledger has of it."""
        state = self.locks.new_table(uri)
        state.unseen_grant = bool(self._seen.gaps)
        restore(state, self._ledger.tables.setdefault(uri, LedgerEntries()))
        return state

    def _dead_letter(self, record: ConsumerRecord, reason: str) -> Outgoing:
        letter = DeadLetter(
            reason=reason[:MAX_REASON],
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            value=base64.b64encode((record.value or b"")[:DEAD_LETTER_BYTES]).decode(),
        )
        key = (record.key or b"")[:MAX_KEY_BYTES]
        return Outgoing(self._topics.dead_letters, key, encode(letter))

    def _refuse(self, record: ConsumerRecord, bad: Undecodable) -> None:
        reason, key = bad.reason[:MAX_REASON], (record.key or b"")[:MAX_KEY_BYTES]
        log.warning(
            "event.refused",
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            table=bad.table,
            reason=reason,
        )
        self._publisher.put(self._dead_letter(record, reason))
        if bad.transaction is None or bad.table is None:
            return
        subject = bad.table, bad.transaction, bad.writer or ""
        if subject in self._aborted:
            return
        state = self.tables.get(bad.table)
        if state is not None and bad.transaction in state.closed:
            return  # It has its answer, also if the table has been stopped since.
        state = None if bad.table in self.stopped else state
        transaction = None if state is None else state.transactions.get(bad.transaction)
        if transaction is None:
            if subject in self._refused:
                return
            self._refused[subject] = None
            if len(self._refused) > MAX_REFUSED:
                self._refused.popitem(last=False)
        elif transaction.phase not in OPEN - {Phase.GRANTED}:
            # A granted transaction is never aborted for it. If this was its completion, its grant lease lapses.
            return
        elif bad.writer != transaction.writer:
            return  # The record is not of this transaction: its writer is another one, or can't be read.
        abort = Abort(
            event_id=fresh_id(),
            table=bad.table,
            transaction=bad.transaction,
            writer=bad.writer or "",
            at=utc_now(),
            agent=self._settings.agent_id,
            term=self.term,
            cause=bad.event_id,
            cause_offset=record.offset,
            reason="not-allowed",
            retriable=False,
            detail=reason,
        )
        # The answer goes to this partition: its writer consumes the partition that it sent the record to.
        self._publish_decision(key or bad.table.encode(), encode(abort))
        if state is not None and transaction is not None:
            self._guard(bad.table, partial(replay_verdict, state, verdicts.verdict_of(abort), monotonic()))
            self._step(bad.table, Tick(monotonic(), record.offset, None))

    # -- time --------------------------------------------------------------------------------------------------------

    async def tick(self, now: float, asked_at: float, end: int | None, *, stalled: bool) -> None:
        """Run the periodic check, table by table. Between two tables, the agent decides the events that have arrived meanwhile.

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
        for uri, state in list(self.tables.items()):
            if uri in self.stopped:
                continue
            if state.settled():
                self._forget_if_quiet(uri, state)
            else:
                self._step(uri, Tick(monotonic(), self.position - 1, self._caught_up))
                await anyio.lowlevel.checkpoint()

    def _forget_if_quiet(self, uri: str, state: TableState) -> None:
        """Forget an idle table, as described at the top of the file. Its entries of the ledger stay."""
        offset, at = self._last_events.get(uri, (-1, 0.0))
        if self.committed <= offset or monotonic() - at < QUIET_SECONDS or not self.locks.forget(uri):
            return
        entries = self._ledger.tables.get(uri)
        if entries is not None:
            entries.keep_all_losses(state.losses, state.lost_on)
            if not entries:
                del self._ledger.tables[uri]
        del self.tables[uri]
        self._last_events.pop(uri, None)
        self._memory.note(self, uri, 0)

    # -- effects -----------------------------------------------------------------------------------------------------

    def _step(self, uri: str, step_input: Input) -> None:
        if self.phase == "paused" and isinstance(step_input, LockInput):
            self._defer(uri, step_input)
        if self.phase != "live" or uri in self.stopped:
            return
        state = self.tables[uri]
        self._recent.append(f"{uri} {summary(step_input)}")
        effects: list[verdicts.Effect] = []
        # The answer to a transaction that had ended repeats one in the log.
        repeated = step_input.event.transaction if isinstance(step_input, EventRead) else None
        repeated = repeated if repeated in state.closed else None
        try:
            step(state, step_input, effects)
            records = [self._record_of(uri, each) for each in effects]
        except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this table alone
            opened = step_input.event if isinstance(step_input, EventRead) else None
            undecided = [
                each for each in effects if repeated is None or getattr(each, "transaction", None) != repeated
            ]
            intent = opened if isinstance(opened, CommitIntent) else None
            self._stop_table(uri, state, error, undecided, intent)
            return
        for effect, record in zip(effects, records, strict=True):
            if record is not None:
                self._publish(record)
            log_effect(uri, effect)
        self._guard(uri, partial(self._run_lock_effects, uri, effects))
        self._note_memory(uri)

    def _note_memory(self, uri: str) -> None:
        used = 0 if uri in self.stopped else used_bytes(self.tables[uri])
        self._memory.note(self, uri, used)

    def largest(self, *, last_resort: bool) -> tuple[str, Excess] | None:
        """The table in which this owner can free most memory, and what (`handlers/table/memory.py`).

        A paused owner can free nothing, because it aborts nothing.
        """
        if self.phase == "paused":
            return None
        live = self.phase == "live" and not last_resort
        candidates = [
            (used_bytes(state), uri) for uri, state in self.tables.items() if uri not in self.stopped
        ]
        largest: tuple[str, Excess] | None = None
        for used, uri in sorted(candidates, reverse=True):
            if largest is not None and used <= largest[1].freed:
                break
            found = largest_transaction(self.tables[uri]) if live else largest_index(self.tables[uri])
            if found is not None and (largest is None or found.freed > largest[1].freed):
                largest = uri, found
        return largest

    def free(self, uri: str, excess: Excess) -> None:
        """Free memory as `largest` has proposed."""
        if self.phase == "live":
            offset = self._last_applied()
            self._step(uri, OverBudget(monotonic(), offset, excess.transaction, self._memory.limit))
        else:
            drop_index(self.tables[uri])
            self._note_memory(uri)

    def _last_applied(self) -> int:
        """Offset of the last event that was applied: of the one that is being decided, if there is one."""
        return self.position - 1 if self._record is None else self._record.offset

    def _guard(self, uri: str, action: Callable[[], T]) -> T | None:
        """Do something with one table. An exception stops the table."""
        try:
            return action()
        except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this table alone
            if uri not in self.tables:
                self.tables[uri] = TableState(uri, self._settings.table(shared=False))
            self._stop_table(uri, self.tables[uri], error)
            return None

    def _run_lock_effects(self, uri: str, effects: Iterable[verdicts.Effect]) -> None:
        for effect in effects:
            match effect:
                case verdicts.AcquireLock(adopt=adopt, handed_over=handed_over):
                    self.locks.start_acquire(self.tables[uri], adopt, handed_over=handed_over)
                case verdicts.ReleaseLock():
                    self.locks.start_release(uri)
                case _:
                    pass

    def _record_of(self, uri: str, effect: verdicts.Effect) -> Outgoing | None:
        """The record of an effect, or None if it has none. Raises `RecordTooLargeError`."""
        key, agent = uri.encode(), self._settings.agent_id
        too_large = partial(self._refused_by_broker, uri)
        match effect:
            case verdicts.AcquireLock() | verdicts.ReleaseLock():
                return None
            case verdicts.ReportConflict():
                value = encode(wire_events.conflict(uri, effect))
                record = Outgoing(self._topics.conflicts, key, value, on_too_large=too_large)
            case verdicts.RecordBatch(writer=writer):
                value = encode(wire_events.ledger_entry(self.term, uri, effect))
                key, acknowledged = ledger_key(uri, writer), self._ledger_acknowledged
                record = Outgoing(self._topics.ledger, key, value, self.number, acknowledged, too_large)
            case verdicts.RecordLosses(writer=writer):
                value = encode(wire_events.losses_entry(self.term, uri, effect))
                key, acknowledged = ledger_key(uri, writer, "losses"), self._ledger_acknowledged
                record = Outgoing(self._topics.ledger, key, value, self.number, acknowledged, too_large)
            case verdicts.Warn(event=event, detail=detail):
                return None if self._record is None else self._dead_letter(self._record, f"{event}: {detail}")
            case _:
                value = encode(wire_events.decision(agent, self.term, uri, effect))
                acknowledged = partial(self._decision_acknowledged, value)
                record = Outgoing(self._topics.decisions, key, value, self.number, acknowledged, too_large)
        size = len(record.key) + len(record.value)
        if size > wire_events.MAX_RECORD_BYTES:
            raise RecordTooLargeError(
                f"a record for {record.topic} would have {size} bytes, at most {wire_events.MAX_RECORD_BYTES} are sent"
            )
        return record

    def _refused_by_broker(self, uri: str, error: Exception) -> None:
        self._unpublishable[uri] = (
            f"a broker refuses a record for its size: {error!r}; raise max.message.bytes"
        )

    def _publish_decision(self, key: bytes, value: bytes) -> None:
        acknowledged = partial(self._decision_acknowledged, value)
        self._publish(Outgoing(self._topics.decisions, key, value, self.number, on_offset=acknowledged))

    def _publish(self, record: Outgoing) -> None:
        self._publisher.put(record)

    def _decision_acknowledged(self, value: bytes, offset: int) -> None:
        if offset < self._decisions_next:
            self._seen.cut = (
                f"topic {self._topics.decisions} has lost records of partition {self.number}: a decision was acknowledged at "
                f"offset {offset}, an earlier one at {self._decisions_next - 1}"
            )
        self._decisions_next = max(self._decisions_next, offset + 1)
        self._seen.published = LastRecord(offset, digest(value))

    def _ledger_acknowledged(self, offset: int) -> None:
        self._seen.ledger_end = max(self._seen.ledger_end, offset + 1)

    def _stop_table(
        self,
        uri: str,
        state: TableState,
        error: Exception,
        undecided: Sequence[verdicts.Effect] = (),
        intent: CommitIntent | None = None,
    ) -> None:
        """Stop a table, as described at the top of the file.

        `undecided`: what the failed step decided and the owner doesn't publish; `intent`: the one that it was reading.
        """
        if uri in self.stopped:
            return
        reason = str(error) or repr(error)
        self.stopped[uri] = reason
        log.error(
            "table.stopped",
            table=uri,
            reason=reason,
            open=[each.id for each in state.open()],
            unpublished=[effect_name(each) for each in undecided],
            recent=[each for each in self._recent if each.startswith(f"{uri} ")],
            exc_info=error,
        )
        self.locks.leave_to_expire(uri)
        if self.phase == "live":
            self._abort_open(uri, state, undecided, intent)
        drop_index(state)
        self._note_memory(uri)

    def _abort_open(
        self,
        uri: str,
        state: TableState,
        undecided: Sequence[verdicts.Effect],
        intent: CommitIntent | None = None,
        *,
        unless: Container[_Subject] = (),
    ) -> None:
        """Abort the transactions of a stopped table that are open in the log."""
        decided = [
            each
            for each in undecided
            if not isinstance(each, verdicts.AcquireLock | verdicts.ReleaseLock | verdicts.Warn)
            and not isinstance(each, verdicts.ReportConflict | verdicts.RecordBatch | verdicts.RecordLosses)
        ]
        granting = {each.transaction for each in decided if isinstance(each, verdicts.GrantCommit)}
        lapsing = {
            each.transaction
            for each in decided
            if isinstance(each, verdicts.AbortTransaction) and each.transaction in state.lapsed
        }
        writers = {each.transaction: each.writer for each in decided}
        writers.update((each.id, each.writer) for each in state.open())
        if intent is not None and intent.transaction not in state.closed:
            writers.setdefault(intent.transaction, intent.writer)
        offset = self._last_applied()
        for transaction, writer in writers.items():
            if (uri, transaction, writer) in unless:
                continue
            kept = state.transactions.get(transaction)
            running = kept is not None and kept.phase is Phase.GRANTED and transaction not in granting
            running = running or transaction in lapsing
            self._publish_decision(
                uri.encode(),
                json.dumps(
                    {
                        "protocol": PROTOCOL,
                        "event_id": fresh_id(),
                        "table": uri,
                        "transaction": transaction,
                        "writer": writer,
                        "at": utc_now().isoformat(),
                        "agent": self._settings.agent_id,
                        "term": self.term,
                        "cause": None,
                        "cause_offset": offset,
                        "type": "abort",
                        "reason": "lease-lost" if running else "not-allowed",
                        "retriable": running,
                        "conflicts": [],
                        "detail": STOPPED + self.stopped[uri][:MAX_REASON],
                        "losses": None,
                    }
                ).encode(),
            )

    # -- pause and release -------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Decide nothing until `resume`, and keep the locks. Only for a live or paused owner without a stopped table."""
        assert self.phase in ("live", "paused")
        self.phase = "paused"
        self._hand_over_locks()
        self._takeovers.again = -1
        self._caught_up = None

    def may_resume(self, read_until: int) -> Literal["yes", "no", "unknown yet"]:
        """Whether this paused owner may resume, after `publish_takeover`. `decisions` is read up to `read_until`, exclusive."""
        if self.stopped:
            return "no"
        return may_resume(self._takeovers, read_until)

    def resume(self) -> None:
        """Decide again. The locks' inputs of the meantime come first, and then what has become due."""
        assert self.phase == "paused"
        self.phase = "live"
        deferred, self._deferred = self._deferred, []
        for uri, step_input in deferred:
            self._step(uri, replace(step_input, now=monotonic()))
        for uri in list(self.tables):
            self._step(uri, Tick(monotonic(), self.position - 1, None))

    def _hand_over_locks(self) -> None:
        """Publish that this owner relies on the locks of running grants no more (`handlers/table/replay.py`).

        It is the last record of an owner that leaves, and of one that is paused until it resumes. A lock in its own quiet time
        is left out: the owner before may still rely on it.
        """
        now, budget = monotonic(), MAX_HANDED_OVER_BYTES
        locks: list[HandedOverLock] = []
        for uri, state in self.tables.items():
            quiet = state.lock is None or now < state.lock.quiet_until
            if state.lock is None or quiet or state.running() is None or uri in self.stopped:
                continue
            each = HandedOverLock(table=uri, owner=state.lock.owner)
            budget -= len(encode(each)) + 1
            if budget < 0:
                break
            locks.append(each)
        if not locks:
            return
        event = LocksHandedOver(
            event_id=fresh_id(),
            table=partition_name(self.number),
            at=utc_now(),
            agent=self._settings.agent_id,
            term=self.term,
            locks=tuple(locks),
        )
        key, value = event.table.encode(), encode(event)
        acknowledged = partial(self._decision_acknowledged, value)
        self._publisher.put(Outgoing(self._topics.decisions, key, value, self.number, on_offset=acknowledged))
        log.info("locks.handed-over", partition=self.number, tables=len(locks))

    def _defer(self, uri: str, step_input: LockInput) -> None:
        """Keep a lock's input. A renewal replaces the one before it."""
        repeated = [
            number
            for number, (other, earlier) in enumerate(self._deferred)
            if other == uri and isinstance(earlier, type(step_input))
        ]
        if repeated and not any(other == uri for other, _ in self._deferred[repeated[-1] + 1 :]):
            del self._deferred[repeated[-1]]
        self._deferred.append((uri, step_input))

    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint that may be committed now, or None before the end of the replay."""
        if self.phase != "live" or self.replaced or monotonic() < self._seen.no_checkpoint_before:
            return None
        if self.stopped:
            return self._safe
        now = monotonic()
        needed = [
            oldest for state in self.tables.values() if (oldest := state.oldest_needed(now)) is not None
        ]
        offset = min(needed, default=self.position)
        last = Position(self._decisions_next, self.term)
        decisions = self._decisions_at.get(offset, last) if needed else last
        for old in [each for each in self._decisions_at if each < offset]:
            del self._decisions_at[old]
        self._safe = Checkpoint(
            offset,
            decisions,
            self._seen.read,
            self._seen.published,
            self._seen.ledger_end,
            self._seen.reported,
        )
        return self._safe

    def stop_deciding(self) -> None:
        """Decide on no further event."""
        if self.phase == "live":
            self._hand_over_locks()
        self._was_live = self.phase in ("live", "paused")
        self.phase = "released"
        self._memory.forget(self)

    async def release(self) -> None:
        """Release every lock under which no grant runs. Call it after `stop_deciding`."""
        await self.locks.release(self._without_grant())

    def unreleased(self) -> list[str]:
        """Tables whose lock `release` has not released yet."""
        return self.locks.unreleased(self._without_grant())

    def _without_grant(self) -> set[str]:
        return {uri for uri, state in self.tables.items() if self._was_live and state.running() is None}


def _subject(event: WriterEventUnion | DecisionEventUnion) -> _Subject:
    return event.table, event.transaction, event.writer


def _without_markers(event: WriterEventUnion) -> WriterEventUnion:
    match event:
        case CommitIntent():
            return event.model_copy(update={"scope": ()})
        case MarkerCreated() | CommitRequested():
            return event.model_copy(update={"markers": ()})
        case _:
            return event
