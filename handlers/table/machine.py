"""The machine of one table: `step` alone moves it live, `replay_*` alone in a replay.

The rules are in the files it calls.

    facts.py      what an event or a verdict changes
    detection.py  who is aborted for a conflict        conflicts.py   the rules and the victim
    admission.py  who may start                        grants.py      who may commit
    liveness.py   which writers live                   audit.py       does the state agree with itself

After every input the machine looks at what it owes: admissions, then the grant, then the lock. Nothing is
remembered as "to be done": what is owed follows from the state, so a restart owes the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, assert_never

from lakewarden.events import (
    CommitCompleted,
    CommitIntent,
    CommitRequested,
    WriterEventUnion,
    WriterHeartbeat,
)
from lakewarden.handlers.table.admission import admit_ready, drop_committed, judge_intent, judge_unanswered
from lakewarden.handlers.table.detection import judge_landing, judge_markers, sweep
from lakewarden.handlers.table.facts import apply_verdict, take_event
from lakewarden.handlers.table.grants import (
    extend,
    grant_next,
    lapse,
    lock_confirmed,
    lock_forbidden,
    lock_lost,
    want_lock,
)
from lakewarden.handlers.table.invariants import self_audit
from lakewarden.handlers.table.liveness import CaughtUp, abort_silent
from lakewarden.handlers.table.state import CommittedBatch, LockView, TableState
from lakewarden.handlers.table.step_context import Deciding
from lakewarden.handlers.table.transactions import Phase
from lakewarden.handlers.table.verdicts import (
    AbortTransaction,
    Cause,
    Effect,
    RecordBatch,
    RecordLosses,
    Verdict,
    Warn,
)


@dataclass(frozen=True, slots=True)
class Read:
    """A writer's event, as the log has it. Times are monotonic seconds."""

    event: WriterEventUnion
    offset: int
    now: float
    read_at: float


@dataclass(frozen=True, slots=True)
class Tick:
    """The periodic check. `caught_up`: the span for which the log is known (`liveness.py`); None while the agent lags."""

    now: float
    offset: int
    caught_up: CaughtUp | None


@dataclass(frozen=True, slots=True)
class LockConfirmed:
    """The lock was acquired or renewed."""

    now: float
    offset: int
    lock: LockView


@dataclass(frozen=True, slots=True)
class LockGone:
    """The lock is not ours any more."""

    now: float
    offset: int
    why: str


@dataclass(frozen=True, slots=True)
class LockForbidden:
    """The lock can't be had until a person has changed something."""

    now: float
    offset: int
    why: str


@dataclass(frozen=True, slots=True)
class Replayed:
    """The replay is over: decide what it left undecided."""

    now: float
    offset: int


Input: TypeAlias = Read | Tick | LockConfirmed | LockGone | LockForbidden | Replayed


def step(state: TableState, given: Input) -> list[Effect]:
    """Take one input; what follows from it, in order. The verdicts among it are already in the state."""
    event_id = given.event.event_id if isinstance(given, Read) else None
    read_at = given.read_at if isinstance(given, Read) else given.now
    offset = given.offset
    deciding = Deciding(state, given.now, read_at, Cause(event_id, offset))
    match given:
        case Read(event=event):
            _read(deciding, event)
        case Tick(caught_up=caught_up):
            lapse(deciding, caught_up)
            abort_silent(deciding, caught_up)
            self_audit(state)
        case LockConfirmed(lock=lock):
            lock_confirmed(deciding, lock)
        case LockGone(why=why):
            lock_lost(deciding, why)
        case LockForbidden(why=why):
            lock_lost(deciding, why)
            lock_forbidden(deciding, why)
        case Replayed():
            judge_unanswered(deciding)
            for writer in sorted(state.ledger):
                drop_committed(deciding, writer)
            sweep(deciding)
        case _:
            assert_never(given)
    _owed(deciding)
    return deciding.effects


def replay_event(state: TableState, event: WriterEventUnion, offset: int, now: float) -> None:
    """Enter an event during the replay: facts only."""
    take_event(state, event, offset, now)


def replay_verdict(state: TableState, verdict: Verdict, now: float) -> None:
    """Enter a published verdict during the replay."""
    apply_verdict(state, verdict, now)


def remember_batch(state: TableState, writer: str, batch: CommittedBatch, *, again: bool = False) -> None:
    """Enter what the ledger says, before the replay; `again`: it is to be told so once more."""
    known = state.ledger.get(writer)
    if known is None or known.batch_id < batch.batch_id:
        state.ledger[writer] = batch
    if again:
        state.unrecorded.add(writer)


def remember_losses(state: TableState, lost: RecordLosses, *, again: bool = False) -> None:
    """Enter what the ledger says, before the replay; `again`: it is to be told so once more."""
    if again:
        state.unrecorded_losses[lost.writer] = lost.transaction
    state.losses.pop(lost.writer, None)
    state.lost_on.pop(lost.writer, None)
    if lost.losses:
        state.losses[lost.writer], state.lost_on[lost.writer] = lost.losses, lost.lost_on


def _read(deciding: Deciding, event: WriterEventUnion) -> None:
    state = deciding.state
    before = state.transactions.get(event.transaction)
    phase_before = before.phase if before is not None else None
    seq_before = before.seq if before is not None else -1
    overlaps = take_event(state, event, deciding.cause.offset, deciding.now)
    transaction = state.transactions.get(event.transaction)
    if isinstance(event, CommitIntent):
        if before is None and transaction is not None:
            judge_intent(deciding, event)
    elif before is None:
        _answer_stranger(deciding, event)
    if isinstance(event, CommitCompleted):
        if phase_before in (Phase.QUEUED, Phase.ACTIVE, Phase.WAITING):
            deciding.ask([Warn("commit-without-grant", event.transaction, event.writer)])
        if transaction is not None and phase_before is not Phase.COMMITTED:
            judge_landing(deciding, transaction)
        drop_committed(deciding, event.writer)
        return
    if transaction is None or transaction.id not in state.transactions:
        return
    if transaction.markers > state.settings.max_markers and transaction.phase is not Phase.GRANTED:
        limit = state.settings.max_markers
        deciding.abort(transaction, "not-allowed", retriable=False, detail=f"more than {limit} markers")
        return
    if isinstance(event, WriterHeartbeat) and event.seq > seq_before:
        extend(deciding, transaction)
    if overlaps:
        judge_markers(deciding, transaction, overlaps)


def _answer_stranger(deciding: Deciding, event: WriterEventUnion) -> None:
    """An event of a transaction that is not open here: ended, or never heard of."""
    state = deciding.state
    closed = state.closed.get(event.transaction)
    if isinstance(event, CommitCompleted):
        if closed is None or closed.phase is Phase.ABORTED:
            deciding.ask([Warn("commit-without-grant", event.transaction, event.writer)])
        return
    if closed is None:
        if isinstance(event, CommitRequested | WriterHeartbeat) or event.type == "marker-created":
            detail = "no intent of it is known here: it may be older than the log; begin a new transaction"
            verdict = AbortTransaction(
                event.transaction,
                event.writer,
                deciding.cause,
                "unknown-transaction",
                retriable=True,
                detail=detail,
            )
            deciding.decide(verdict)
    elif isinstance(event, CommitRequested) and closed.reason is not None:
        deciding.decide(
            AbortTransaction(
                event.transaction,
                event.writer,
                deciding.cause,
                closed.reason,
                closed.retriable,
                closed.conflicts,
                closed.detail,
            )
        )


def _owed(deciding: Deciding) -> None:
    """What the state owes now.

    Answers to intents, judgement of what the admitted named beforehand, the lock, the grant.
    """
    state = deciding.state
    while True:
        decided = len(deciding.effects)
        phases = state.phases()
        if Phase.QUEUED in phases:
            for transaction in admit_ready(deciding):
                judge_markers(deciding, transaction, list(state.footprints.overlaps(transaction)))
            phases = state.phases()
        want_lock(deciding)
        if Phase.WAITING in phases:
            grant_next(deciding)
        if len(deciding.effects) == decided:
            break
        # Each round ends or starts somebody, which may let somebody else in: as many rounds as there are transactions.
    for writer in sorted(state.unrecorded):
        batch = state.ledger[writer]
        deciding.ask([RecordBatch(batch.transaction, writer, batch.batch_id, batch.version)])
    state.unrecorded.clear()
    for writer, lost_last in sorted(state.unrecorded_losses.items()):
        losses, lost_on = state.losses.get(writer, 0), state.lost_on.get(writer, ())
        deciding.ask([RecordLosses(writer, losses, lost_on, lost_last)])
    state.unrecorded_losses.clear()
