"""Who may start computing, and who is told that there is nothing to do.

- A batch that the ledger knows as committed is skipped: `already-committed`. Batch ids of a writer rise, so a
  smaller id than the last committed one is committed too (Delta's `txnVersion` works the same way). One that turns
  out to be committed while a later attempt computes it again aborts that attempt (`superseded`, retriable): its
  retry is told to skip.
- A new transaction of a writer supersedes its older open ones: it restarted. One of them that holds a grant may
  be in the middle of its publish: the new one waits until that is heard of or its lease has run out.
- `optimistic`: at once.
- `queued`: when nothing ahead overlaps the scope: nobody who computes, and nobody queued before it (a writer
  protected by its losses first, then the larger priority, then the order of the log). Disjoint scopes run side by
  side. A silent one at the head is in nobody's way for longer than its heartbeat limit (`liveness.py`).
- A protected writer's transaction that has named nothing: what the lost ones touched, whole partitions of it, is
  *reserved* for it with its admission, and counts as its markers. Otherwise it would lose to commits that land before it
  says where it writes, for ever. It waits for whoever it would lose to in those partitions: a running grant, or one
  that stands before it in the line; whoever else computes there loses to it.
- Bounds: a table takes `max_open` transactions; one more is refused, as is one that names a table or a lock
  out of bounds (the shell knows which: `placement.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from lakewarden.events import CommitIntent, Marker
from lakewarden.handlers.table.conflicts import operations_conflict, rule_for
from lakewarden.handlers.table.footprints import Overlap
from lakewarden.handlers.table.state import CommittedBatch, TableState
from lakewarden.handlers.table.step_context import StepContext
from lakewarden.handlers.table.transactions import COMPUTING, Phase, Transaction
from lakewarden.handlers.table.verdicts import Admit, Cause, SkipBatch


def judge_intent(context: StepContext, intent: CommitIntent) -> None:
    """What a new intent does to others, and whether it is within the bounds."""
    state = context.state
    transaction = state.transactions[intent.transaction]
    for older in state.open():
        if older.writer == transaction.writer and older.sequence < transaction.sequence:
            _supersede(context, older, transaction)
    if len(state.open()) > state.settings.max_open:
        _refuse_over_limit(context, transaction)


def judge_unanswered_intents(context: StepContext) -> None:
    """The same after a replay, of every intent that it left without an answer, in one pass over all that are open."""
    state = context.state
    last: dict[str, Transaction] = {}
    count = 0
    for each in state.open():
        older = last.get(each.writer)
        if older is not None:
            _supersede(context, older, each)
            count -= older.phase is Phase.ABORTED
        if count >= state.settings.max_open and each.phase is Phase.QUEUED:
            _refuse_over_limit(context, each)
            continue
        last[each.writer] = each
        count += 1


def _supersede(context: StepContext, older: Transaction, newer: Transaction) -> None:
    if older.grant is None or not older.grant.revoked:
        context.abort(older, "superseded", retriable=False, detail=f"its writer began {newer.id}")


def _refuse_over_limit(context: StepContext, transaction: Transaction) -> None:
    limit = context.state.settings.max_open
    context.abort(
        transaction, "not-allowed", detail=f"{limit} transactions of this table are open; try again later"
    )


def abort_repeated_batch(context: StepContext, writer: str) -> None:
    """Abort whoever computes a batch that has turned out to be committed; its retry is told to skip it."""
    done = context.state.ledger.get(writer)
    for each in context.state.open():
        computing = each.phase in (Phase.ACTIVE, Phase.WAITING)
        if computing and each.writer == writer and done is not None and _already_committed(each, done):
            detail = f"{done.transaction} has committed batch {done.batch_id}: begin again, and it is skipped"
            context.abort(each, "superseded", retriable=True, detail=detail)


def admit_ready(context: StepContext) -> list[Transaction]:
    """Answer every intent whose time has come; those that were admitted."""
    state = context.state
    line = [each for each in state.open() if each.phase is Phase.QUEUED]
    if not line:
        return []
    admitted: list[Transaction] = []
    running = state.running()
    for transaction in sorted(line, key=lambda each: _queue_position(state, each)):
        if running is not None and running.writer == transaction.writer:
            continue  # it may be in the middle of an older publish
        cause = Cause(transaction.intent_id, context.cause.offset)
        done = state.ledger.get(transaction.writer)
        if done is not None and _already_committed(transaction, done):
            context.decide(
                SkipBatch(transaction.id, transaction.writer, cause, done.transaction, done.version)
            )
            continue
        if next(blockers(state, transaction), None) is None:
            reserved = _markers_to_reserve(state, transaction)
            context.decide(Admit(transaction.id, transaction.writer, cause, reserved))
            admitted.append(transaction)
    return admitted


def _queue_position(state: TableState, transaction: Transaction) -> tuple[bool, int, int]:
    """The place in the line; smaller is earlier. The same order in which conflicts are won."""
    protected = state.is_protected(transaction.writer)
    return (not protected, 0 if protected else -transaction.priority, transaction.sequence)


def _already_committed(transaction: Transaction, done: CommittedBatch) -> bool:
    return transaction.batch_id is not None and transaction.batch_id <= done.batch_id


def _markers_to_reserve(state: TableState, transaction: Transaction) -> tuple[Marker, ...]:
    """What is to be kept for a transaction with its admission."""
    named = transaction.markers > 0
    return () if named or not state.is_protected(transaction.writer) else state.lost_on[transaction.writer]


def blocking_overlaps(state: TableState, transaction: Transaction) -> Iterator[Overlap]:
    """What holds a queued transaction back: its overlaps with those who compute, or stand before it in the line."""
    mine = _queue_position(state, transaction)
    for overlap in state.footprints.overlaps(transaction):
        other = overlap.other.transaction
        first = other.phase in COMPUTING or (
            other.phase is Phase.QUEUED and _queue_position(state, other) < mine
        )
        if first and operations_conflict(
            rule_for(transaction, other), overlap.mine.operation, overlap.other.operation
        ):
            yield overlap


def reservation_blockers(state: TableState, transaction: Transaction) -> Iterator[Transaction]:
    """Whom it would lose to in what is to be reserved for it."""
    mine, partitions = (
        _queue_position(state, transaction),
        {each.partition for each in _markers_to_reserve(state, transaction)},
    )
    for other in state.open() if partitions else ():
        if other.phase is Phase.GRANTED or _queue_position(state, other) < mine:
            theirs = [*other.footprint, *(each.partition for each in _markers_to_reserve(state, other))]
            if not partitions.isdisjoint(theirs):
                yield other


def blockers(state: TableState, transaction: Transaction) -> Iterator[Transaction]:
    """Whom a transaction that is not admitted yet waits for."""
    if transaction.admission == "queued":
        yield from (each.other.transaction for each in blocking_overlaps(state, transaction))
    yield from reservation_blockers(state, transaction)
