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
from lakewarden.handlers.table.admission import (
    abort_repeated_batch,
    admit_ready,
    judge_intent,
    judge_unanswered_intents,
)
from lakewarden.handlers.table.detection import judge_landing, judge_markers, sweep
from lakewarden.handlers.table.facts import apply_event, apply_verdict
from lakewarden.handlers.table.grants import (
    extend_grant,
    grant_next,
    on_lock_confirmed,
    on_lock_forbidden,
    on_lock_gone,
    publish_lapse,
    request_or_release_lock,
)
from lakewarden.handlers.table.invariants import check_invariants
from lakewarden.handlers.table.liveness import CaughtUp, abort_silent_writers
from lakewarden.handlers.table.state import CommittedBatch, LockView, TableState
from lakewarden.handlers.table.step_context import StepContext
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
class EventRead:
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
    detail: str


@dataclass(frozen=True, slots=True)
class LockForbidden:
    """The lock can't be had until a person has changed something."""

    now: float
    offset: int
    detail: str


@dataclass(frozen=True, slots=True)
class Replayed:
    """The replay is over: decide what it left undecided."""

    now: float
    offset: int


Input: TypeAlias = EventRead | Tick | LockConfirmed | LockGone | LockForbidden | Replayed


def step(state: TableState, input_: Input) -> list[Effect]:
    """Take one input; what follows from it, in order. The verdicts among it are already in the state."""
    event_id = input_.event.event_id if isinstance(input_, EventRead) else None
    read_at = input_.read_at if isinstance(input_, EventRead) else input_.now
    offset = input_.offset
    context = StepContext(state, input_.now, read_at, Cause(event_id, offset))
    match input_:
        case EventRead(event=event):
            _apply_and_judge(context, event)
        case Tick(caught_up=caught_up):
            publish_lapse(context, caught_up)
            abort_silent_writers(context, caught_up)
            check_invariants(state)
        case LockConfirmed(lock=lock):
            on_lock_confirmed(context, lock)
        case LockGone(detail=detail):
            on_lock_gone(context, detail)
        case LockForbidden(detail=detail):
            on_lock_gone(context, detail)
            on_lock_forbidden(context, detail)
        case Replayed():
            judge_unanswered_intents(context)
            for writer in sorted(state.ledger):
                abort_repeated_batch(context, writer)
            sweep(context)
        case _:
            assert_never(input_)
    _decide_outstanding(context)
    return context.effects


def replay_event(state: TableState, event: WriterEventUnion, offset: int, now: float) -> None:
    """Enter an event during the replay: facts only."""
    apply_event(state, event, offset, now)


def replay_verdict(state: TableState, verdict: Verdict, now: float) -> None:
    """Enter a published verdict during the replay."""
    apply_verdict(state, verdict, now)


def restore_batch(
    state: TableState, writer: str, batch: CommittedBatch, *, record_again: bool = False
) -> None:
    """Enter what the ledger says, before the replay; `again`: it is to be told so once more."""
    known = state.ledger.get(writer)
    if known is None or known.batch_id < batch.batch_id:
        state.ledger[writer] = batch
    if record_again:
        state.unrecorded_batches.add(writer)


def restore_losses(state: TableState, lost: RecordLosses, *, record_again: bool = False) -> None:
    """Enter what the ledger says, before the replay; `again`: it is to be told so once more."""
    if record_again:
        state.unrecorded_losses[lost.writer] = lost.transaction
    state.losses.pop(lost.writer, None)
    state.lost_on.pop(lost.writer, None)
    if lost.losses:
        state.losses[lost.writer], state.lost_on[lost.writer] = lost.losses, lost.lost_on


def _apply_and_judge(context: StepContext, event: WriterEventUnion) -> None:
    state = context.state
    before = state.transactions.get(event.transaction)
    phase_before = before.phase if before is not None else None
    seq_before = before.seq if before is not None else -1
    overlaps = apply_event(state, event, context.cause.offset, context.now)
    transaction = state.transactions.get(event.transaction)
    if isinstance(event, CommitIntent):
        if before is None and transaction is not None:
            judge_intent(context, event)
    elif before is None:
        _answer_unknown_transaction(context, event)
    if isinstance(event, CommitCompleted):
        if phase_before in (Phase.QUEUED, Phase.ACTIVE, Phase.WAITING):
            context.emit([Warn("commit-without-grant", event.transaction, event.writer)])
        if transaction is not None and phase_before is not Phase.COMMITTED:
            judge_landing(context, transaction)
        abort_repeated_batch(context, event.writer)
        return
    if transaction is None or transaction.id not in state.transactions:
        return
    if transaction.markers > state.settings.max_markers and transaction.phase is not Phase.GRANTED:
        limit = state.settings.max_markers
        context.abort(transaction, "not-allowed", retriable=False, detail=f"more than {limit} markers")
        return
    if isinstance(event, WriterHeartbeat) and event.seq > seq_before:
        extend_grant(context, transaction)
    if overlaps:
        judge_markers(context, transaction, overlaps)


def _answer_unknown_transaction(context: StepContext, event: WriterEventUnion) -> None:
    """An event of a transaction that is not open here: ended, or never heard of."""
    state = context.state
    closed = state.closed.get(event.transaction)
    if isinstance(event, CommitCompleted):
        if closed is None or closed.phase is Phase.ABORTED:
            context.emit([Warn("commit-without-grant", event.transaction, event.writer)])
        return
    if closed is None:
        if isinstance(event, CommitRequested | WriterHeartbeat) or event.type == "marker-created":
            detail = "no intent of it is known here: it may be older than the log; begin a new transaction"
            verdict = AbortTransaction(
                event.transaction,
                event.writer,
                context.cause,
                "unknown-transaction",
                retriable=True,
                detail=detail,
            )
            context.decide(verdict)
    elif isinstance(event, CommitRequested) and closed.reason is not None:
        context.decide(
            AbortTransaction(
                event.transaction,
                event.writer,
                context.cause,
                closed.reason,
                closed.retriable,
                closed.conflicts,
                closed.detail,
            )
        )


def _decide_outstanding(context: StepContext) -> None:
    """What the state owes now.

    Answers to intents, judgement of what the admitted named beforehand, the lock, the grant.
    """
    state = context.state
    while True:
        decided = len(context.effects)
        phases = state.phases()
        if Phase.QUEUED in phases:
            for transaction in admit_ready(context):
                judge_markers(context, transaction, list(state.footprints.overlaps(transaction)))
            phases = state.phases()
        request_or_release_lock(context)
        if Phase.WAITING in phases:
            grant_next(context)
        if len(context.effects) == decided:
            break
        # Each round ends or starts somebody, which may let somebody else in: as many rounds as there are transactions.
    for writer in sorted(state.unrecorded_batches):
        batch = state.ledger[writer]
        context.emit([RecordBatch(batch.transaction, writer, batch.batch_id, batch.version)])
    state.unrecorded_batches.clear()
    for writer, lost_last in sorted(state.unrecorded_losses.items()):
        losses, lost_on = state.losses.get(writer, 0), state.lost_on.get(writer, ())
        context.emit([RecordLosses(writer, losses, lost_on, lost_last)])
    state.unrecorded_losses.clear()
