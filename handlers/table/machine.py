"""The state machine of one table.

Only these functions change the facts in a `TableState`:

| function | when | effect |
| --- | --- | --- |
| `step` | live | applies one input and decides what follows |
| `replay_event`, `replay_decision` | during a replay | apply facts, decide nothing |
| `restore`, `repeat_entry` | before a replay | enter what the ledger contains |

The rules are in the modules that they call:

| module | question |
| --- | --- |
| `facts.py` | What does an event or a decision change? |
| `conflicts.py` | Do two transactions conflict, and which one loses? |
| `detection.py` | When is a conflict looked for, and which transaction is aborted? |
| `admission.py` | Which transaction may start to compute? |
| `grants.py` | Which transaction may commit, and for how long? |
| `liveness.py` | Which writers are lost, and which transactions are open for too long? |
| `memory.py` | What is aborted at the agent's memory budget? |
| `operators.py` | What follows from an operator's requests? |
| `invariants.py` | Does the state agree with itself? |

After each input that has changed something for others, `step` decides what the state leaves outstanding, in this order:
admissions, the lock, the next grant, and the records for the ledger. A heartbeat changes nothing, nor do markers without a
conflict; what becomes due with time alone is decided at the next periodic check. There is no list of pending work beside the
state. What is outstanding follows from the state alone, so a restarted agent makes the same decisions.

**If the log was incomplete** (`log_gaps.py`), the replayed state lacks facts. At the end of the replay:

1. Every open transaction that is not granted is aborted as `unknown-transaction`, retriable. Its markers, its admission or what
   committed beside it may be missing. An observed one stays open. A transaction whose grant is there stays granted. If several
   are, the last one does: a table has one grant at a time, so the events that ended the others are missing, and their outcome
   is unknown.
2. A grant may run that the state doesn't have. Nothing is admitted until the agent holds the table's lock and no lease of a
   former owner is left (`LockView.quiet_until`), because a grant never outlives the lock lease that covers it. Otherwise a
   transaction could begin before that commit lands and never meet it.
"""

from dataclasses import dataclass
from typing import TypeAlias, assert_never

from lakewarden import events
from lakewarden.handlers.table.admission import (
    abort_repeated_batches,
    admit_ready,
    judge_intent,
    judge_unanswered_intents,
    on_lock_located,
)
from lakewarden.handlers.table.conflicts import conflicting
from lakewarden.handlers.table.detection import (
    conflicts_at_admission,
    judge_landing,
    judge_markers,
    report_observed,
    sweep,
)
from lakewarden.handlers.table.effects import Effect, Warn
from lakewarden.handlers.table.facts import (
    ID_USED,
    apply_decision,
    apply_event,
    enter_batch,
    is_expected,
    why_ignored,
)
from lakewarden.handlers.table.grants import (
    LockFailure,
    extend_grant,
    grant_next,
    on_lock_confirmed,
    on_lock_failed,
    publish_lapse,
    request_or_release_lock,
)
from lakewarden.handlers.table.invariants import check_invariants
from lakewarden.handlers.table.ledger import Kind, LedgerEntries, batch_of, losses_entry
from lakewarden.handlers.table.liveness import CaughtUp, abort_overdue, abort_silent_writers
from lakewarden.handlers.table.memory import abort_over_budget
from lakewarden.handlers.table.state import MAX_CLOSED, LockView, TableSettings, TableState, UnknownRequest
from lakewarden.handlers.table.step_context import StepContext
from lakewarden.handlers.table.transactions import Phase


@dataclass(frozen=True, slots=True)
class EventRead:
    """The agent read a writer's event from the log. Times are monotonic seconds."""

    event: events.WriterEventUnion
    offset: int
    now: float
    read_at: float
    """When Kafka returned the record; `now` is later if the agent had a backlog."""


@dataclass(frozen=True, slots=True)
class Tick:
    """The periodic check is due."""

    now: float
    offset: int
    caught_up: CaughtUp | None
    """Until when the agent has read everything in the log (`liveness.py`). None while the agent lags."""


@dataclass(frozen=True, slots=True)
class LockLocated:
    """The agent has found out where the table's lock object is."""

    now: float
    offset: int
    location: str | None
    """Its URI. None: it is looked up again."""
    settings: TableSettings
    """The settings of a table whose lock is there."""


@dataclass(frozen=True, slots=True)
class LockConfirmed:
    """The agent acquired or renewed the table's lock."""

    now: float
    offset: int
    lock: LockView


@dataclass(frozen=True, slots=True)
class LockFailed:
    """The agent doesn't have the table's lock (`LockFailure` in `grants.py`)."""

    now: float
    offset: int
    failure: LockFailure
    detail: str


@dataclass(frozen=True, slots=True)
class OverBudget:
    """The agent's tables together exceed its memory budget, and this table must free some (`memory.py`)."""

    now: float
    offset: int
    transaction: str | None
    """The transaction to abort. None: the table loses its index."""
    limit: int
    """The budget, in bytes."""


@dataclass(frozen=True, slots=True)
class EntryTaken:
    """Another agent's ledger entry of this writer has been read, and applied by `take_entry`."""

    now: float
    offset: int
    writer: str


@dataclass(frozen=True, slots=True)
class Replayed:
    """The replay has ended. Everything that it left undecided is decided now."""

    now: float
    offset: int
    incomplete: str | None = None
    """What is missing in the log, as text; None if it is complete."""
    memory_limit: int = 0
    """The agent's memory budget, in bytes."""


LockInput: TypeAlias = LockConfirmed | LockFailed | LockLocated
"""The inputs that concern the table's lock."""
Input: TypeAlias = EventRead | Tick | LockInput | OverBudget | EntryTaken | Replayed


def step(state: TableState, input_: Input, effects: list[Effect] | None = None) -> list[Effect]:
    """Apply one input and return its effects in order. The decisions among them are already applied to the state.

    `effects`: the list to fill. If the step raises, it has what was decided until then, and the state must not be used any more.
    """
    event_id = input_.event.event_id if isinstance(input_, EventRead) else None
    read_at = input_.read_at if isinstance(input_, EventRead) else input_.now
    decided: list[Effect] = [] if effects is None else effects
    context = StepContext(state, input_.now, read_at, event_id, input_.offset, decided)
    match input_:
        case EventRead(event=event):
            _apply_and_judge(context, event)
        case Tick(caught_up=caught_up):
            publish_lapse(context, caught_up)
            abort_silent_writers(context, caught_up)
            abort_overdue(context)
            check_invariants(state)
        case LockConfirmed(lock=lock):
            on_lock_confirmed(context, lock)
        case LockFailed(failure=failure, detail=detail):
            on_lock_failed(context, failure, detail)
        case LockLocated(location=location, settings=settings):
            state.settings = settings
            on_lock_located(context, location)
        case OverBudget(transaction=transaction, limit=limit):
            abort_over_budget(context, transaction, limit)
        case EntryTaken(writer=writer):
            abort_repeated_batches(context, writer)
        case Replayed(incomplete=missing, memory_limit=limit):
            if missing is not None:
                _abort_after_incomplete_replay(context, missing)
            _answer_unknown_requests(context)
            if state.without_index:
                abort_over_budget(context, None, limit)
            judge_unanswered_intents(context)
            abort_as_requested(context)
            abort_repeated_batches(context)
            sweep(context)
        case _:
            assert_never(input_)
    if state.changed or not isinstance(input_, EventRead):
        state.changed = False
        _decide_outstanding(context)
    state.footprints.collect()
    return context.effects


def replay_event(state: TableState, event: events.WriterEventUnion, offset: int, now: float) -> str | None:
    """Apply an event during a replay: its facts, without decisions. Returns why it doesn't count (`facts.py`), if it doesn't.

    In a replay, an event of an unknown transaction is usual: its intent may be older than the checkpoint.
    """
    known = event.transaction in state.transactions or event.transaction in state.closed
    ignored = why_ignored(state, event) if known else None
    if not known and isinstance(event, events.CommitRequested):
        if len(state.unknown_requests) < MAX_CLOSED:
            state.unknown_requests.setdefault(event.transaction, UnknownRequest(event.writer, event.event_id))
    elif isinstance(event, events.CommitIntent | events.CommitCompleted | events.TransactionAbandoned):
        state.unknown_requests.pop(event.transaction, None)
    apply_event(state, event, offset, now)
    state.footprints.collect()
    return ignored


def replay_decision(state: TableState, decision: events.DecisionEventUnion, now: float) -> None:
    """Apply a published decision during a replay, unless its cause is older than the transaction's intent.

    Then it is about an earlier transaction whose id a stranger has used again: the answer to an event that was refused.
    """
    if not isinstance(decision, events.Admitted):
        state.unknown_requests.pop(decision.transaction, None)
    transaction = state.transactions.get(decision.transaction)
    if transaction is None or decision.cause_offset >= transaction.sequence:
        apply_decision(state, decision, now)
    state.footprints.collect()


def restore(state: TableState, entries: LedgerEntries, *, complete: bool = True) -> None:
    """Enter what the ledger has of this table, before the replay. The state keeps the batches in `entries` up to date.

    `complete`: whether the log is. Otherwise a grant may run that the state doesn't have.
    """
    state.ledger, state.unseen_grant = entries.batches, not complete
    for writer, losses, lost_on in entries.losses():
        state.losses[writer], state.lost_on[writer] = losses, lost_on


def repeat_entry(state: TableState, kind: Kind, writer: str) -> None:
    """Have an entry recorded once more, because compaction would keep another one (`ledger.py`)."""
    if kind == "conflicts-lost":
        state.unrecorded_losses.setdefault(writer, "")
    elif writer in state.ledger:
        state.unrecorded_batches.add(writer)


def take_entry(state: TableState, entry: events.LedgerEventUnion) -> None:
    """Apply what another agent has written into the ledger after this one read it. A step with `EntryTaken` must follow.

    A larger batch than the known one counts from here on, as in a replay: it was committed, and the ledger may have lost it until
    now. Otherwise the entry changes nothing, and this agent's own is recorded once more.
    """
    writer, known = entry.writer, state.ledger.get(entry.writer)
    if isinstance(entry, events.ConflictsLost):
        repeat_entry(state, entry.type, writer)
    elif known is None or known.rank < batch_of(entry).rank:
        enter_batch(state, writer, batch_of(entry))
    elif batch_of(entry).rank < known.rank:
        repeat_entry(state, entry.type, writer)


def _abort_after_incomplete_replay(context: StepContext, missing: str) -> None:
    state = context.state
    detail = f"the agent can't rebuild this transaction, because {missing}; start it again"
    for transaction in state.stoppable():
        context.abort(transaction, "unknown-transaction", detail=detail)
    granted = [(each.grant.moment, each) for each in state.open() if each.grant is not None]
    last = max((moment for moment, _ in granted), default=0)
    detail = f"the log has a later grant, and lacks how this one ended, because {missing}; check whether the table has the batch"
    for moment, transaction in granted:
        if moment < last:
            context.abort(transaction, "outcome-unknown", detail=detail)


def _apply_and_judge(context: StepContext, event: events.WriterEventUnion) -> None:
    state = context.state
    before = state.transactions.get(event.transaction)
    phase_before = before.phase if before is not None else None
    seq_before = before.seq if before is not None else -1
    ignored = why_ignored(state, event)
    overlaps = apply_event(state, event, context.offset, context.now)
    if ignored is not None:
        if not is_expected(state, event):
            kind = _kind_of_ignored(event, ignored)
            context.effects.append(Warn(kind, event.transaction, event.writer, ignored))
        return
    transaction = state.transactions.get(event.transaction)
    if isinstance(event, events.CommitIntent):
        if before is None and transaction is not None:
            judge_intent(context, event)
    elif before is None and not isinstance(event, events.LedgerCorrected):
        _answer_unknown_transaction(context, event)
    if isinstance(event, events.LedgerCorrected):
        abort_repeated_batches(context, event.writer)
        return
    if isinstance(event, events.AbortRequested):
        abort_as_requested(context)
        return
    if isinstance(event, events.CommitCompleted):
        if transaction is not None and phase_before is not Phase.COMMITTED:
            judge_landing(context, transaction)
        report_observed(context, conflicting(overlaps))
        abort_repeated_batches(context, event.writer)
        return
    if transaction is None or transaction.id not in state.transactions:
        return
    if transaction.markers > state.settings.max_markers and transaction.phase is not Phase.GRANTED:
        limit = state.settings.max_markers
        detail = f"it published more than {limit} markers, and more are not allowed; split the batch"
        context.abort(transaction, "not-allowed", retriable=False, detail=detail)
        return
    if isinstance(event, events.WriterHeartbeat) and event.seq > seq_before:
        extend_grant(context, transaction)
    judge_markers(context, transaction, overlaps)


def _kind_of_ignored(event: events.WriterEventUnion, why: str) -> str:
    if isinstance(event, events.CommitCompleted):
        return "commit-without-grant"
    return "transaction.repeated" if why == ID_USED else "event.another-writer"


def _answer_unknown_transaction(context: StepContext, event: events.WriterEventUnion) -> None:
    """Answer an event of a transaction that has ended, or whose intent the agent never read."""
    state = context.state
    closed = state.closed.get(event.transaction)
    if isinstance(event, events.CommitCompleted):
        if closed is not None and closed.phase is Phase.ABORTED:
            detail = "the writer had abandoned this transaction; the ledger has its batch as committed now"
            context.effects.append(Warn("commit-after-abandonment", event.transaction, event.writer, detail))
        return
    if isinstance(event, events.AbortRequested):
        if closed is None:
            detail = "the agent knows no intent of the transaction that an operator wants to abort"
            context.effects.append(Warn("abort-request.unknown", event.transaction, event.writer, detail))
        return
    if closed is None:
        if (
            isinstance(event, events.CommitRequested | events.WriterHeartbeat)
            or event.type == "marker-created"
        ):
            _abort_unknown(context, event.transaction, event.writer, context.cause)
    elif isinstance(event, events.CommitRequested) and closed.reason is not None:
        context.decide(
            events.Abort.model_construct(
                **context.about(event.transaction, event.writer, context.cause),
                reason=closed.reason,
                retriable=closed.retriable,
                conflicts=closed.conflicts,
                detail=closed.detail,
            )
        )


def _answer_unknown_requests(context: StepContext) -> None:
    """Answer the requests that the replay found unanswered (`replay.py`)."""
    state = context.state
    unknown = dict(state.unknown_requests)
    state.unknown_requests.clear()
    for transaction, request in unknown.items():
        committed = state.ledger.get(request.writer)
        if committed is None or committed.transaction != transaction:
            _abort_unknown(context, transaction, request.writer, request.event_id)


def _abort_unknown(context: StepContext, transaction: str, writer: str, cause: str | None) -> None:
    context.decide(
        events.Abort.model_construct(
            **context.about(transaction, writer, cause),
            reason="unknown-transaction",
            retriable=True,
            detail="the log no longer contains its intent, or the intent was never published",
        )
    )


def _decide_outstanding(context: StepContext) -> None:
    """Decide what follows from the state: admissions, the lock, the next grant, records for the ledger."""
    state = context.state
    while True:
        decided = len(context.effects)
        if state.in_phase[Phase.QUEUED]:
            for transaction in admit_ready(context):
                judge_markers(context, transaction, conflicts_at_admission(state, transaction))
        request_or_release_lock(context)
        if state.in_phase[Phase.WAITING]:
            grant_next(context)
        if len(context.effects) == decided:
            break
        # Each round ends or starts a transaction, which may unblock another: at most one round per transaction.
    for writer in sorted(state.unrecorded_batches):
        context.effects.append(state.ledger[writer].to_entry(state.uri, writer))
    state.unrecorded_batches.clear()
    for writer, lost_last in sorted(state.unrecorded_losses.items()):
        losses, lost_on = state.losses.get(writer, 0), state.lost_on.get(writer, ())
        context.effects.append(losses_entry(state.uri, writer, losses, lost_on, lost_last))
    state.unrecorded_losses.clear()


def abort_as_requested(context: StepContext) -> None:
    """Answer the requests of operators to end a transaction that are not answered yet (docs/decisions/0020).

    - `abort-requested` of an open transaction that is not granted: the agent aborts it (`operator`).
    - `abort-requested` of a granted one: the agent publishes `lease-lost`. Its writer may be publishing, so the grant is not
      extended, and nothing else is granted before its lease is over.
    - `abort-requested` of one that has ended: nothing follows.
    - `ledger-corrected`: a transaction that computes a batch which is committed now is aborted (`superseded`), as after a late
      completion (`admission.py`).

    All of these aborts are retriable: the request frees the table, and the job may compute again behind the others.

    The request is a fact of the transaction (`facts.py`). So one that was read and not answered is answered after the replay.
    """
    for transaction in context.state.open():
        request, grant = transaction.abort_request, transaction.grant
        if request is None or (grant is not None and grant.revoked):
            continue
        context.abort(
            transaction,
            "operator" if grant is None else "lease-lost",
            detail=f"requested by operator {request.operator!r}: {request.reason}",
            cause=request.event_id,
        )
