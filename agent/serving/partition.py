"""One partition of `writers`, owned: its tables' states, rebuilt from the log and then moved by it.

    loading ──ledger and decisions read──▶ replaying ──end of the log reached──▶ live ──revoked · stopped──▶ gone

- The replay folds the events from the committed offset, and each published decision where its `cause_offset` says; nothing is
  decided. What crashed between an event and its decision is decided once the end of the log is reached.
- `checkpoint` is the oldest intent that a replay must see, with a position in `decisions` before which nothing concerns it or
  what came after it.
- An event that can't be read, or names what is not allowed, goes to the dead letters; if its transaction can be read, that is
  told (`not-allowed`), once. One that is open here is aborted by it, unless it is granted: part of what it does is unknown.
- A table whose state contradicts itself is stopped: it is not touched any more, its lock is left to lapse, its writers are told;
  the other tables go on.

There are no decisions on conflicts, grants or locks in this file: they are in `handlers/`. The tables' locks are kept in
`table_locks.py`.
"""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Literal, assert_never

import anyio
import anyio.abc
import anyio.lowlevel
import structlog
from aiokafka.structs import ConsumerRecord

from lakewarden.agent import wire_events
from lakewarden.agent.clock import fresh_id, monotonic, utc_now
from lakewarden.agent.locks.keeper import SleepWatch, Stores
from lakewarden.agent.locks.table_locks import TableLocks
from lakewarden.agent.publisher import Outgoing, Publisher
from lakewarden.agent.serving.checkpoint import Checkpoint
from lakewarden.agent.settings import Settings
from lakewarden.events import (
    DECISION_RECORD,
    LEDGER_EVENT,
    WRITER_EVENT,
    Abort,
    BatchCommitted,
    CommitIntent,
    ConflictsLost,
    DeadLetter,
    DecisionRecord,
    LedgerEventUnion,
    PartitionTaken,
    Undecodable,
    UndecodableRecords,
    WriterEventUnion,
    decode,
    encode,
    ledger_key,
    partition_name,
)
from lakewarden.handlers.table import verdicts
from lakewarden.handlers.table.invariants import InvariantBrokenError
from lakewarden.handlers.table.liveness import CaughtUp
from lakewarden.handlers.table.machine import (
    EventRead,
    Input,
    Replayed,
    Tick,
    replay_event,
    replay_verdict,
    restore_batch,
    restore_losses,
    step,
)
from lakewarden.handlers.table.replay import Position, PublishedDecisions, entries_in_force
from lakewarden.handlers.table.state import CommittedBatch, TableState
from lakewarden.handlers.table.transactions import OPEN, Phase

log = structlog.get_logger()

DEAD_LETTER_BYTES = 1024
MAX_REFUSED = 10_000
"""Transactions remembered as refused, so that each is told once."""
MAX_REASON = 1_000
"""Characters of a reason: it may quote what was sent, and must fit into a record with room to spare."""
MAX_KEY_BYTES = 4_096
"""Of a refused record's key in our answer: longer than any table's."""


class PartitionOwner:
    """All that concerns one partition's tables."""

    def __init__(  # noqa: PLR0917 - what an agent's partitions share
        self,
        number: int,
        settings: Settings,
        publisher: Publisher,
        stores: Stores,
        tasks: anyio.abc.TaskGroup,
        watch: SleepWatch | None = None,
        *,
        undecodable: UndecodableRecords | None = None,
    ) -> None:
        self.number = number
        self.phase: Literal["loading", "replaying", "live", "gone"] = "loading"
        self._was_live = False
        self.position = 0
        """Offset of the next event to be read."""
        self.term = fresh_id()
        """This ownership: what is decided under another one does not count (`handlers/table/replay.py`)."""
        self.tables: dict[str, TableState] = {}
        self.stopped: dict[str, str] = {}
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
        )
        self._backlog: list[ConsumerRecord] = []
        self._replay_until = 0
        self._published = PublishedDecisions(Position(0, None), ())
        self._aborted: set[str] = set()
        self._refused: OrderedDict[str, None] = OrderedDict()
        self._decisions_next = 0
        self._decisions_at: dict[int, Position] = {}
        self._caught_up: CaughtUp | None = None
        self._own_takeover = -1
        """Offset of our `partition-taken`, once it is known."""
        self._others_takeover = -1
        """Offset of the last one of anybody else that was heard."""

    # -- replay ------------------------------------------------------------------------------------------------------

    def publish_takeover(self) -> None:
        """Say that the partition is ours; what is decided must be read only after this is in the log."""
        taken = PartitionTaken(
            event_id=fresh_id(),
            table=partition_name(self.number),
            at=utc_now(),
            agent=self._settings.agent_id,
            term=self.term,
        )
        self._publisher.put(
            Outgoing(
                self._topics.decisions,
                taken.table.encode(),
                encode(taken),
                self.number,
                on_offset=self._takeover_acknowledged,
            )
        )

    def on_partition_taken(self, taken: PartitionTaken, offset: int) -> None:
        """Somebody, perhaps we, took the partition."""
        if taken.term != self.term:
            self._others_takeover = max(self._others_takeover, offset)

    @property
    def replaced(self) -> bool:
        """Whether another took the partition after we did."""
        return -1 < self._own_takeover < self._others_takeover

    def _takeover_acknowledged(self, offset: int) -> None:
        self._own_takeover = offset
        self._decision_acknowledged(offset)

    def load(
        self,
        start: int,
        end: int,
        decisions_position: Position,
        decisions: Iterable[ConsumerRecord],
        ledger: Iterable[ConsumerRecord],
    ) -> None:
        """Begin the replay: from `start` to `end` of `writers`, with what was decided and committed before."""
        self.position, self._replay_until = start, end
        self._published = decoded_decisions(decisions_position, decisions, self._undecodable)
        for entry, is_last in entries_in_force(decoded_ledger(ledger, self._undecodable), self._published):
            self._remember(entry, again=not is_last)
        if self._published.term not in (None, self.term):
            self._others_takeover = max(self._others_takeover, self._own_takeover + 1)
        self._aborted = {each.transaction for each in self._published.all() if isinstance(each, Abort)}
        self.phase = "replaying"
        backlog, self._backlog = self._backlog, []
        self.consume(backlog, monotonic())
        self.finish_replay(self.position)

    def _remember(self, entry: LedgerEventUnion, *, again: bool) -> None:
        """Enter what the ledger says; `again`: it is to say so once more."""
        state = self._table(entry.table, known=True)
        if isinstance(state, str):
            return
        match entry:
            case BatchCommitted(batch_id=batch_id, transaction=transaction, version=version):
                restore_batch(
                    state, entry.writer, CommittedBatch(batch_id, transaction, version), record_again=again
                )
            case ConflictsLost(losses=losses, lost_on=lost_on, transaction=transaction):
                lost = verdicts.RecordLosses(entry.writer, losses, lost_on, transaction)
                restore_losses(state, lost, record_again=again)
            case _:
                assert_never(entry)

    def finish_replay(self, position: int) -> None:
        """Go live, if everything up to the end of the log has been read."""
        if self.phase != "replaying" or position < self._replay_until:
            return
        self._apply_decisions(None)
        replayed = len(self._published)
        self._published = PublishedDecisions(Position(0, None), ())
        self._aborted.clear()
        self.phase = "live"
        for uri in list(self.tables):
            self._step(uri, Replayed(monotonic(), self.position - 1))
        log.debug(
            "partition.live",
            partition=self.number,
            offset=self.position,
            tables=len(self.tables),
            decisions_replayed=replayed,
            open=sum(len(state.open()) for state in self.tables.values()),
        )

    def advance_to(self, position: int) -> None:
        """All below `position` has been taken. The log's last records may be no events (Kafka's own marks): they count too."""
        if self.phase in ("replaying", "live"):
            self.position = max(self.position, position)
            self.finish_replay(self.position)

    def _apply_decisions(self, up_to: int | None) -> None:
        for decision in self._published.pop_due(up_to):
            state = self.tables.get(decision.table)
            if state is not None:
                replay_verdict(state, verdicts.verdict_of(decision), monotonic())

    # -- events ------------------------------------------------------------------------------------------------------

    def consume(self, records: Iterable[ConsumerRecord], read_at: float) -> None:
        """Take records in the order of the log. They wait while the partition is loading, and are ignored once it is gone."""
        for record in records:
            if self.phase == "loading":
                self._backlog.append(record)
                continue
            if self.phase == "gone":
                return
            if record.offset < self.position:
                continue
            if self.phase == "replaying" and record.offset >= self._replay_until:
                self.finish_replay(record.offset)
            event = decode(WRITER_EVENT, record.value, key=record.key or b"")
            if isinstance(event, Undecodable):
                self._refuse(record, event)
            else:
                self._consume_event(record, event, read_at)
            self.position = record.offset + 1
            if self.phase == "replaying":
                self._apply_decisions(record.offset)

    def _consume_event(self, record: ConsumerRecord, event: WriterEventUnion, read_at: float) -> None:
        state = self._table(event.table)
        why = state if isinstance(state, str) else None
        if isinstance(state, TableState) and isinstance(event, CommitIntent):
            why = self.locks.resolve_place(state, event.lock)
        if why is not None or isinstance(state, str):
            bad = Undecodable(why or "", event.table, event.transaction, event.writer, event.event_id)
            self._refuse(record, bad)
            return
        if isinstance(event, CommitIntent):
            self._decisions_at.setdefault(record.offset, self._decisions_seen())
        if self.phase == "replaying":
            replay_event(state, event, record.offset, monotonic())
        else:
            self._step(event.table, EventRead(event, record.offset, monotonic(), read_at))

    def _decisions_seen(self) -> Position:
        """Position in `decisions` before which nothing concerns what is read from now on."""
        return self._published.next_position() or Position(self._decisions_next, self.term)

    def _table(self, uri: str, *, known: bool = False) -> TableState | str:
        """The table's state, or why it is not touched; `known` where the ledger names it, which is bounded already."""
        if uri in self.stopped:
            return (
                f"table {uri} is stopped: {self.stopped[uri]}; restart the agent to rebuild it from the log"
            )
        if uri not in self.tables:
            if not self._placement.allows(uri):
                return f"table {uri} is not among the allowed ones; start the agent with --allow {uri}"
            limit = self._settings.max_tables
            if len(self.tables) >= limit and not known:
                return (
                    f"table {uri} would be one more than the {limit} that a partition takes; raise max_tables"
                )
            self.tables[uri] = TableState(uri, self._settings.table(shared=False))
        return self.tables[uri]

    def _refuse(self, record: ConsumerRecord, bad: Undecodable) -> None:
        value = record.value or b""
        reason, key = bad.reason[:MAX_REASON], (record.key or b"")[:MAX_KEY_BYTES]
        letter = DeadLetter(
            reason=reason,
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            value=base64.b64encode(value[:DEAD_LETTER_BYTES]).decode(),
        )
        log.warning("event.refused", partition=record.partition, offset=record.offset, reason=reason)
        self._publisher.put(Outgoing(self._topics.dead_letters, key, encode(letter)))
        if bad.transaction is None or bad.table is None or bad.transaction in self._aborted:
            return
        state = None if bad.table in self.stopped else self.tables.get(bad.table)
        transaction = None if state is None else state.transactions.get(bad.transaction)
        if transaction is None:
            if bad.transaction in self._refused or (state is not None and bad.transaction in state.closed):
                return
            self._refused[bad.transaction] = None
            if len(self._refused) > MAX_REFUSED:
                self._refused.popitem(last=False)
        elif transaction.phase not in OPEN - {Phase.GRANTED}:
            # A granted one is nobody's victim: if this was its completion, its lease lapses unheard, and that is told.
            return
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
        # Where the record was found is where its writer listens, whatever key it used.
        self._publish_decision(key or bad.table.encode(), encode(abort))
        if state is not None and transaction is not None:
            replay_verdict(state, verdicts.verdict_of(abort), monotonic())
            self._step(bad.table, Tick(monotonic(), record.offset, None))

    # -- time --------------------------------------------------------------------------------------------------------

    async def tick(self, now: float, asked_at: float, end: int | None, *, stalled: bool) -> None:
        """The periodic check, table by table; what is read meanwhile is decided in between.

        `end` is the log's end, of which Kafka was asked at `asked_at`; None where it did not answer.
        `stalled`: so much time has passed since the last check that this process must have stood still.
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
            if not state.idle() and uri not in self.stopped:
                self._step(uri, Tick(monotonic(), self.position - 1, self._caught_up))
                await anyio.lowlevel.checkpoint()

    # -- effects -----------------------------------------------------------------------------------------------------

    def _step(self, uri: str, given: Input) -> None:
        if self.phase != "live" or uri in self.stopped:
            return
        state = self.tables[uri]
        try:
            effects = step(state, given)
        except (InvariantBrokenError, AssertionError) as error:
            self._stop_table(uri, state, error)
            return
        for effect in effects:
            self._run(uri, effect)

    def _run(self, uri: str, effect: verdicts.Effect) -> None:
        key, agent = uri.encode(), self._settings.agent_id
        match effect:
            case verdicts.AcquireLock(adopt=adopt):
                self.locks.start_acquire(uri, adopt)
            case verdicts.ReleaseLock():
                self.locks.start_release(uri)
            case verdicts.ReportConflict():
                event = wire_events.conflict(uri, effect)
                log.info(
                    "conflict.detected",
                    table=uri,
                    victim=effect.victim_writer,
                    winner=effect.winner_writer,
                    kind=effect.kind,
                    overlaps=len(effect.conflicts),
                    victim_age_seconds=event.victim_age_seconds,
                )
                self._publisher.put(Outgoing(self._topics.conflicts, key, encode(event)))
            case verdicts.RecordBatch():
                entry = encode(wire_events.ledger_entry(uri, effect))
                self._publisher.put(
                    Outgoing(self._topics.ledger, ledger_key(uri, effect.writer), entry, self.number)
                )
            case verdicts.RecordLosses(writer=writer):
                entry = encode(wire_events.losses_entry(self.term, uri, effect))
                self._publisher.put(
                    Outgoing(self._topics.ledger, ledger_key(uri, writer, "losses"), entry, self.number)
                )
            case verdicts.Warn(event=event, transaction=transaction, writer=writer):
                log.warning(event, table=uri, transaction=transaction, writer=writer)
            case _:
                _log_verdict(uri, effect)
                self._publish_decision(key, encode(wire_events.decision(agent, self.term, uri, effect)))

    def _publish_decision(self, key: bytes, value: bytes) -> None:
        self._publisher.put(
            Outgoing(self._topics.decisions, key, value, self.number, on_offset=self._decision_acknowledged)
        )

    def _decision_acknowledged(self, offset: int) -> None:
        self._decisions_next = max(self._decisions_next, offset + 1)

    def _stop_table(self, uri: str, state: TableState, error: Exception) -> None:
        reason = str(error) or repr(error)
        self.stopped[uri] = reason
        log.error("table.stopped", table=uri, reason=reason, open=[each.id for each in state.open()])
        self.locks.leave_to_expire(uri)

    # -- the end -----------------------------------------------------------------------------------------------------

    def checkpoint(self) -> Checkpoint | None:
        """What may be committed now; nothing before the replay is over."""
        if self.phase != "live" or self.replaced:
            return None
        needed = [oldest for state in self.tables.values() if (oldest := state.oldest_needed()) is not None]
        offset = min(needed, default=self.position)
        last = Position(self._decisions_next, self.term)
        decided = self._decisions_at.get(offset, last) if needed else last
        for old in [each for each in self._decisions_at if each < offset]:
            del self._decisions_at[old]
        return Checkpoint(offset, decided)

    def stop_deciding(self) -> None:
        """Decide nothing more."""
        self._was_live = self.phase == "live"
        self.phase = "gone"

    async def release(self) -> None:
        """Give back every lock under which no grant runs; called after `leave`."""
        await self.locks.release(self._free())

    def unreleased(self) -> list[str]:
        """Tables whose lock was to be given back by `release`, and is not."""
        return self.locks.unreleased(self._free())

    def _free(self) -> set[str]:
        return {uri for uri, state in self.tables.items() if self._was_live and state.running() is None}


def _log_verdict(uri: str, verdict: verdicts.Verdict) -> None:
    fields = {"table": uri, "writer": verdict.writer, "transaction": verdict.transaction}
    match verdict:
        case verdicts.Admit(reserved=reserved):
            log.debug("transaction.admitted", **fields, reserved=len(reserved))
        case verdicts.AbortTransaction(reason=reason, retriable=retriable, detail=detail):
            log.info("transaction.aborted", **fields, reason=reason, retriable=retriable, detail=detail)
        case verdicts.GrantCommit(grant=grant, lease_seconds=lease_seconds):
            log.info("commit.granted", **fields, grant=grant, lease_seconds=round(lease_seconds, 3))
        case verdicts.RenewGrant():
            log.debug("grant.renewed", **fields)
        case verdicts.SkipBatch(committed_transaction=committed):
            log.info("batch.already-committed", **fields, committed_transaction=committed)


def decoded_decisions(
    start: Position, records: Iterable[ConsumerRecord], undecodable: UndecodableRecords | None = None
) -> PublishedDecisions:
    """The records of `decisions`, for a replay. Undecodable ones are counted in `undecodable`, logged and skipped."""
    decoded: list[tuple[int, DecisionRecord]] = []
    for record in records:
        decision = decode(DECISION_RECORD, record.value)
        if isinstance(decision, Undecodable):
            skip_undecodable(record, decision, undecodable)
        else:
            decoded.append((record.offset, decision))
    return PublishedDecisions(start, decoded)


def decoded_ledger(
    records: Iterable[ConsumerRecord], undecodable: UndecodableRecords | None = None
) -> Iterator[LedgerEventUnion]:
    """The entries of `ledger`. Undecodable ones are counted in `undecodable`, logged and skipped."""
    for record in records:
        entry = decode(LEDGER_EVENT, record.value)
        if isinstance(entry, Undecodable):
            skip_undecodable(record, entry, undecodable)
        else:
            yield entry


def skip_undecodable(
    record: ConsumerRecord, reason: Undecodable, undecodable: UndecodableRecords | None
) -> None:
    """Count a record that an agent skips, and log it unless many have been logged (`UndecodableRecords`)."""
    if undecodable is None:
        return
    line = undecodable.add(record.topic, record.partition, record.offset, reason)
    if line is not None:
        log.warning("record.undecodable", **line)
