"""The tables of one partition: their states, the steps that decide, and when a table is forgotten.

- `step` passes one input to the state machine of a table (`handlers/table/machine.py`), publishes the records of its effects, and
  then carries out those that concern the lock. A paused owner keeps the inputs of its locks until it resumes. In every other
  phase but `live`, an input changes nothing.
- An unexpected exception in one table stops that table (`stopped_tables.py`).
- Each table's memory is reported to the agent's budget (`memory_budget.py`), which may have some freed here.

**A quiet table is forgotten** (decision record 22): it is idle, its last event is `QUIET_SECONDS` old, and the committed
checkpoint is beyond that event. So a restarted agent would not have its state either. Its entries of the ledger are kept in a
compact form (`handlers/table/ledger.py`), and its next event finds them.
"""

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeVar

import anyio
import anyio.abc
import anyio.lowlevel
import structlog

from lakewarden.agent.clock import monotonic
from lakewarden.agent.locks.table_locks import Ownership, TableLocks
from lakewarden.agent.metrics.partition_metrics import PartitionMetrics
from lakewarden.agent.publisher import Outgoing
from lakewarden.agent.serving.memory_budget import MemoryBudget
from lakewarden.agent.serving.partition.log_seen import LogSeen, Progress
from lakewarden.agent.serving.partition.own_records import OwnRecords
from lakewarden.agent.serving.partition.stopped_tables import StoppedTables
from lakewarden.events import (
    Abort,
    Admitted,
    AlreadyCommitted,
    AuditEventUnion,
    CommitGranted,
    ConflictDetected,
    DecisionEventUnion,
    GrantRenewed,
    LedgerEventUnion,
)
from lakewarden.events.access import partition_of
from lakewarden.handlers.table.effects import AcquireLock, Effect, ReleaseLock, Warn
from lakewarden.handlers.table.facts import drop_index
from lakewarden.handlers.table.ledger import Kind, Ledger, LedgerEntries
from lakewarden.handlers.table.liveness import CaughtUp
from lakewarden.handlers.table.machine import (
    EntryTaken,
    Input,
    LockFailed,
    LockInput,
    OverBudget,
    Tick,
    repeat_entry,
    restore,
    step,
    take_entry,
)
from lakewarden.handlers.table.memory import Excess, largest_excess, used_bytes
from lakewarden.handlers.table.replay import Subject
from lakewarden.handlers.table.state import LATE_COMPLETION_SECONDS, TableState
from lakewarden.handlers.table.stopping import NO_STEP, FailedStep, answered_before, failed_step
from lakewarden.handlers.table.transactions import Phase

log = structlog.get_logger()

QUIET_SECONDS = LATE_COMPLETION_SECONDS
"""After so long without an event, a table is forgotten. Until then late events of ended transactions get their own answers."""

T = TypeVar("T")


class Tables:
    """The states and locks of one partition's tables."""

    def __init__(
        self,
        ownership: Ownership,
        progress: Progress,
        records: OwnRecords,
        seen: LogSeen,
        memory: MemoryBudget,
        *,
        observer: PartitionMetrics,
    ) -> None:
        """`observer`: counts what is decided. The others are those of the owner."""
        settings = ownership.shared.settings
        self.number = ownership.number
        self._partitions = ownership.partitions
        self.states: dict[str, TableState] = {}
        self.stopped = StoppedTables(progress, records)
        self.ledger = Ledger()
        self.memory = memory
        self.locks = TableLocks(ownership, self)
        self.deferred = DeferredInputs()
        """What has happened to the locks since the owner was paused."""
        self._observer = observer
        self._progress = progress
        self._settings = settings
        self._placement = settings.placement()
        self._records = records
        self._seen = seen
        self._last_events: dict[str, tuple[int, float]] = {}
        """Offset and time of each table's last event."""

    @property
    def last_offset(self) -> int:
        """That of the last consumed event."""
        return self._progress.position - 1

    def on_lock_event(self, event: AuditEventUnion, renew_interval: float) -> None:
        self._observer.on_lock_event(event, renew_interval)

    # -- states ------------------------------------------------------------------------------------------------------

    def find(self, uri: str, *, known: bool = False) -> TableState | str:
        """The table's state, or why its events are refused. `known`: it is in the ledger, so `max_tables` does not apply."""
        if uri in self.stopped:
            return self.stopped.why(uri)
        if uri not in self.states:
            if (place := partition_of(uri, self._partitions)) != self.number:
                return (
                    f"table {uri} belongs to partition {place} of {self._settings.topics.writers}, and this record is in "
                    f"partition {self.number}; set the partitioner of its producer (murmur2_random in librdkafka)"
                )
            if not self._placement.allows(uri):
                return f"table {uri} is not among the allowed ones; start the agent with --tables {uri}"
            limit = self._settings.max_tables
            if len(self.states) >= limit and not known:
                return (
                    f"table {uri} exceeds the limit of {limit} tables of a partition; see docs/operating.md"
                )
            self.states[uri] = self.restored(uri)
        return self.states[uri]

    def restored(self, uri: str) -> TableState:
        """The state of a table without transactions, with what the ledger has of it."""
        state = self.locks.new_table(uri)
        entries = self.ledger.tables.setdefault(uri, LedgerEntries())
        restore(state, entries, complete=self._seen.missing is None)
        return state

    def repeat_entries(self) -> None:
        """Have ledger entries recorded once more that a replaced owner's later ones would replace."""
        for kind, uri, writer in self.ledger.to_repeat:
            self.attempt(uri, partial(self._repeat_entry, kind, uri, writer))
        self.ledger.to_repeat.clear()

    def ledger_records(self) -> Iterator[Outgoing]:
        for entry in self.ledger.entries():
            record = self._records.of_effect(entry.table, entry, None)
            assert record is not None
            yield record

    def _repeat_entry(self, kind: Kind, uri: str, writer: str) -> None:
        state = self.find(uri, known=True)
        if isinstance(state, TableState):
            repeat_entry(state, kind, writer)

    def take_entry(self, entry: LedgerEventUnion) -> None:
        """Apply another agent's ledger entry, and record again what it may have replaced there."""
        if entry.table not in self.states:
            self.ledger.add(entry)
            if not self.ledger.to_repeat:
                return  # it is in force, and the table needs no state for that
            self.ledger.to_repeat.clear()
        state = self.find(entry.table, known=True)
        if isinstance(state, TableState):
            take_entry(state, entry)
            self.step(entry.table, EntryTaken(monotonic(), self._progress.position - 1, entry.writer))

    def repeat_losses(self) -> None:
        """Record the losses of all writers again."""
        for uri, entries in list(self.ledger.tables.items()):
            known = self.states.get(uri)
            losing = list(known.losses) if known is not None else [writer for writer, *_ in entries.losses()]
            if losing and isinstance(state := self.find(uri, known=True), TableState):
                for writer in losing:
                    repeat_entry(state, "conflicts-lost", writer)
                self.tick(uri, None)

    def note_event(self, uri: str, offset: int) -> None:
        self._last_events[uri] = offset, monotonic()

    def oldest_needed(self) -> int | None:
        """Offset of the oldest intent that a replay needs, of all tables."""
        now = monotonic()
        needed = (state.oldest_needed(now) for state in self.states.values())
        return min((each for each in needed if each is not None), default=None)

    def without_grant(self) -> set[str]:
        return {uri for uri, state in self.states.items() if state.running() is None}

    def _forget_if_quiet(self, uri: str, state: TableState, committed: int) -> None:
        offset, at = self._last_events.get(uri, (-1, 0.0))
        if committed <= offset or monotonic() - at < QUIET_SECONDS or not self.locks.forget(uri):
            return
        entries = self.ledger.tables.get(uri)
        if entries is not None:
            entries.keep_all_losses(state.losses, state.lost_on)
            if not entries:
                del self.ledger.tables[uri]
        del self.states[uri]
        self._last_events.pop(uri, None)
        self.memory.note(self, uri, 0)

    # -- steps -------------------------------------------------------------------------------------------------------

    def step(self, uri: str, step_input: Input) -> None:
        if self._progress.phase == "paused" and isinstance(step_input, LockInput):
            self.deferred.add(uri, step_input)
        if self._progress.phase != "live" or uri in self.stopped:
            return
        state = self.states[uri]
        self.stopped.note(uri, step_input)
        effects: list[Effect] = []
        answered = answered_before(state, step_input)
        try:
            step(state, step_input, effects)
            records = [self._records.of_effect(uri, each, self._progress.record) for each in effects]
        except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this table alone
            self.stop(uri, error, failed_step(step_input, effects, answered))
            return
        for effect, record in zip(effects, records, strict=True):
            if record is not None:
                self._records.put(record)
            _log_effect(state, effect)
        self._observer.on_step(state, step_input, effects)
        self.attempt(uri, partial(self._run_lock_effects, uri, effects))
        self.note_memory(uri)

    def tick(self, uri: str, caught_up: CaughtUp | None) -> None:
        self.step(uri, Tick(monotonic(), self._progress.position - 1, caught_up))

    async def check(self, caught_up: CaughtUp | None, committed: int) -> None:
        """Run the periodic check, table by table. Between two tables, the agent decides the events that have arrived.

        `committed`: the offset of the checkpoint that is committed.
        """
        for uri, state in list(self.states.items()):
            if uri in self.stopped:
                continue
            if state.settled():
                self._forget_if_quiet(uri, state, committed)
            else:
                self.tick(uri, caught_up)
                await anyio.lowlevel.checkpoint()

    def attempt(self, uri: str, action: Callable[[], T]) -> T | None:
        """Do something with one table. An exception stops the table."""
        try:
            return action()
        except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this table alone
            if uri not in self.states:
                self.states[uri] = TableState(uri, self._settings.table(shared=False))
            self.stop(uri, error)
            return None

    def stop(self, uri: str, error: Exception, failed: FailedStep = NO_STEP) -> None:
        """Stop a table, as described in `stopped_tables.py`. `failed`: the step that raised `error`, if one did."""
        if uri in self.stopped:
            return
        state = self.states[uri]
        self.stopped.add(uri, state, error, failed)
        self.locks.leave_to_expire(uri)
        if self._progress.phase == "live":
            self.abort_open(uri, failed)
        self._observer.forget_table(uri)
        drop_index(state)
        self.note_memory(uri)

    def abort_open(self, uri: str, failed: FailedStep = NO_STEP, *, unless: Container[Subject] = ()) -> None:
        """Abort what is open in a stopped table. `unless`: what the log has an abort of."""
        self._observer.on_stop(uri, self.stopped.abort_open(uri, self.states[uri], failed, unless=unless))

    def _run_lock_effects(self, uri: str, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case AcquireLock(adopt=adopt):
                    self.locks.start_acquire(self.states[uri], adopt)
                case ReleaseLock():
                    self.locks.start_release(uri)
                case _:
                    pass

    # -- pause -------------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Decide again: first on the inputs of the locks since the pause, then on what has become due."""
        for uri, step_input in self.deferred.take():
            self.step(uri, replace(step_input, now=monotonic()))
        for uri in list(self.states):
            self.tick(uri, None)

    # -- memory ------------------------------------------------------------------------------------------------------

    def note_memory(self, uri: str) -> None:
        used = 0 if uri in self.stopped else used_bytes(self.states[uri])
        self.memory.note(self, uri, used)

    def largest(self, *, last_resort: bool) -> tuple[str, Excess] | None:
        """The table in which this owner can free most memory, and what (`handlers/table/memory.py`).

        A paused owner can free nothing, because it aborts nothing.
        """
        if self._progress.phase == "paused":
            return None
        live = self._progress.phase == "live" and not last_resort
        return largest_excess(
            (state for uri, state in self.states.items() if uri not in self.stopped), live=live
        )

    def free(self, uri: str, excess: Excess) -> None:
        if self._progress.phase == "live":
            offset = self._progress.last_applied
            self.step(uri, OverBudget(monotonic(), offset, excess.transaction, self.memory.limit))
        else:
            drop_index(self.states[uri])
            self.note_memory(uri)


class DeferredInputs:
    """What happens to the locks of a paused owner, until it resumes (`handlers/group/ownership.py`): the inputs, in their order.

    One that follows an input of the same kind of the same table replaces it: of several renewals in a row, the last one has the
    lease in force.
    """

    def __init__(self) -> None:
        self._inputs: list[tuple[str, LockInput]] = []

    def __len__(self) -> int:
        return len(self._inputs)

    def add(self, uri: str, input_: LockInput) -> None:
        of_table = [number for number, (other, _) in enumerate(self._inputs) if other == uri]
        if of_table and _kind(self._inputs[of_table[-1]][1]) == _kind(input_):
            del self._inputs[of_table[-1]]
        self._inputs.append((uri, input_))

    def take(self) -> list[tuple[str, LockInput]]:
        inputs, self._inputs = self._inputs, []
        return inputs


def _kind(input_: LockInput) -> str:
    return input_.failure if isinstance(input_, LockFailed) else type(input_).__name__


def _log_effect(state: TableState, effect: Effect) -> None:
    """Log what was decided, if operators may want to read it. `state`: that of its table, after the step."""
    match effect:
        case ConflictDetected():
            log.info(
                "conflict.detected",
                table=state.uri,
                victim=effect.victim_writer,
                winner=effect.winner_writer,
                kind=effect.kind,
                overlaps=len(effect.conflicts),
                victim_age_seconds=effect.victim_age_seconds,
            )
        case Warn(event=event, transaction=transaction, writer=writer, detail=detail):
            log.warning(event, table=state.uri, transaction=transaction, writer=writer, detail=detail)
        case Admitted() | Abort() | CommitGranted() | GrantRenewed() | AlreadyCommitted():
            _log_decision(state, effect)
        case _:
            pass


def _log_decision(state: TableState, decision: DecisionEventUnion) -> None:
    fields = {"table": state.uri, "writer": decision.writer, "transaction": decision.transaction}
    match decision:
        case Admitted(reserved=reserved):
            log.debug("transaction.admitted", **fields, reserved=len(reserved))
        case Abort(reason=reason, retriable=retriable, detail=detail):
            ended = state.closed.get(decision.transaction)
            if ended is not None and ended.observed and ended.phase is Phase.ABORTED:
                log.warning("observed.forgotten", **fields, reason=reason, detail=detail)
            else:
                log.info("transaction.aborted", **fields, reason=reason, retriable=retriable, detail=detail)
        case CommitGranted(grant=grant, lease_seconds=lease_seconds):
            log.info("commit.granted", **fields, grant=grant, lease_seconds=round(lease_seconds, 3))
        case GrantRenewed():
            log.debug("grant.renewed", **fields)
        case AlreadyCommitted():
            log.warning(
                "batch.already-committed",
                **fields,
                batch_id=decision.batch_id,
                committed_batch_id=decision.committed_batch_id,
                committed_transaction=decision.committed_transaction,
                detail="the writer skips this batch; lakewarden ledger show prints what the answer relies on",
            )
