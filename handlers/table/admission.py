"""Which transactions may start to compute, and which batches are skipped.

Each intent is answered by the first rule that applies:

| case | answer |
| --- | --- |
| its priority is above `max_priority` | `abort` (`not-allowed`, not retriable); the writer's older transactions stay |
| it names another lock than the table's | the same |
| the table has more than `max_open` open transactions | `abort` (`not-allowed`, retriable) |
| after an incomplete log, the lock is not acquired yet | none yet: a grant may run that the log doesn't have (`machine.py`) |
| an older transaction of its writer is granted | none yet: it waits until that one ends or its grant lapses |
| a granted transaction's footprint was dropped for want of memory (`memory.py`) | none yet: it waits until that one ends |
| the ledger has this batch, or a later one of the writer, as committed | `already-committed` |
| `queued`, and its scope conflicts with a transaction ahead | none yet: it waits |
| it gets a reservation, and another transaction blocks that | none yet: it waits |
| otherwise | `admitted` |

The shell refuses tables outside its configuration before the core reads their intents (`lease/placement.py`). It finds out where
a table's lock is. Until then, an intent that names a lock is answered as one that names none, and judged afterwards.

- **Ahead** of a queued transaction are those that compute, and those before it in the admission queue. Disjoint scopes run
  side by side. A silent transaction at the head blocks the queue until its heartbeats are missed (`liveness.py`).
- **Queue order:** protected transactions, then larger priority, then earlier intent.
- **Bounded wait:** a queued transaction is *overtaken* when one with a later intent, which has computed on its scope, ends,
  unless by `not-allowed`. When it was overtaken `max_losses` times it is protected, whatever its priority. Of the protected
  ones the earlier intent is first, so queued ones that come later wait. Optimistic ones wait for no queue: one that is admitted
  later, and touches its scope, loses to it (`conflicts.py`). So it waits only for those that computed already, for granted ones
  and for protected ones with earlier intents, and these end. The count is a fact of the log, so a replay finds the same.
  One that was aborted for a conflict has overtaken no other: the winner, which goes on, counts.
  Observed ones are no part of this: they can't be stopped, and one that overlaps the next for ever keeps it waiting.
- **What is looked at again:** a blocked transaction is registered with one that it waits for, the youngest one. It is looked
  at again when that one ends or gets another phase, when the place in the queue of one of the two changes, or when a batch of
  its writer turns out to be committed. Time alone admits none. So an input costs what it changes, however many wait; only the
  end of a replay, of a grant without index, and of `unseen_grant` look at all (`TableState.recheck`).
- **Batch ids** of a writer rise, so a smaller id than the last committed one is committed too, as with Delta's `txnVersion`.
- **Namesakes:** an admission names other writers of the ledger with the same job name or query id, if the ledger doesn't know
  this one and its batch isn't the first. The writer decides what follows: its checkpoint may have lost its query id.
- **Restarted writer:** a new transaction aborts the older open ones of its writer (`superseded`).
- **Late completion:** if a batch turns out to be committed while another transaction computes it again, that transaction is
  aborted (`superseded`, retriable). Its retry gets `already-committed`.
- **Reservation:** a protected writer's transaction that has touched nothing gets, with its admission, the partitions in which
  the writer lost before. They count as its markers. Without them, it would lose to every commit that lands before its first
  marker. It is blocked by a grant that runs in these partitions, by observed transactions there, and by transactions before it in
  the queue order. The others that compute there lose to it.
- **Protected writer with a declared scope:** an `optimistic` one waits, too, for those that it would lose to: otherwise it would
  lose its place with each attempt.
- **`ordered` transactions** don't wait here for each other: the later one waits for its grant (`conflicts.py`). Its admission
  has its turn, greater than those of all that are open, so that the writers of two that read one base number their rows apart.
- **Observed transactions** get no answer: they compute already. Others queue behind them as behind any that computes, until they
  end or have been silent for too long (`liveness.py`).
"""

import sys
from collections.abc import Collection, Iterator

from lakewarden import events
from lakewarden.handlers.table.conflicts import outranks, touches_meet
from lakewarden.handlers.table.effects import Warn
from lakewarden.handlers.table.footprints import Overlap
from lakewarden.handlers.table.state import TableState
from lakewarden.handlers.table.step_context import StepContext
from lakewarden.handlers.table.transactions import COMPUTING, OPEN, Phase, Touch, Transaction
from lakewarden.handlers.writers_log import namesakes


def judge_intent(context: StepContext, intent: events.CommitIntent) -> None:
    """Refuse a priority above the limit, and another lock. Else abort the writer's older transactions; refuse one too many."""
    state = context.state
    transaction = state.transactions[intent.transaction]
    if transaction.phase is Phase.OBSERVED:
        if state.count_open() > state.settings.max_open:
            _refuse_over_limit(context, transaction)
        return
    if transaction.priority > state.settings.max_priority:
        _refuse_priority(context, transaction)
        return
    if _names_another_lock(state, transaction):
        _refuse_lock(context, transaction)
        return
    for older in list(state.of_writer[transaction.writer].values()):
        if older.phase in OPEN - {Phase.OBSERVED} and older.sequence < transaction.sequence:
            _supersede(context, older, transaction)
    if state.count_open() > state.settings.max_open:
        _refuse_over_limit(context, transaction)


def judge_unanswered_intents(context: StepContext) -> None:
    """Do the same for every intent that a replay left unanswered, in one pass over the open transactions."""
    state = context.state
    last: dict[str, Transaction] = {}
    count = 0
    for each in state.open():
        if each.phase is Phase.OBSERVED:
            count += 1
            continue
        if each.priority > state.settings.max_priority and each.phase is Phase.QUEUED:
            _refuse_priority(context, each)
            continue
        if each.phase is Phase.QUEUED and _names_another_lock(state, each):
            _refuse_lock(context, each)
            continue
        older = last.get(each.writer)
        if older is not None:
            _supersede(context, older, each)
            count -= older.phase is Phase.ABORTED
        if count >= state.settings.max_open and each.phase is Phase.QUEUED:
            _refuse_over_limit(context, each)
            continue
        last[each.writer] = each
        count += 1


def on_lock_located(context: StepContext, location: str | None) -> None:
    """Enter where the table's lock is, and refuse the open transactions that name another one. A granted one is left alone."""
    state = context.state
    state.lock_location = location
    for transaction in state.stoppable():
        if _names_another_lock(state, transaction):
            _refuse_lock(context, transaction)


def _names_another_lock(state: TableState, transaction: Transaction) -> bool:
    named, location = transaction.lock, state.lock_location
    if named is None or location is None or named == location:
        return False
    try:
        return events.canonical_location(named) != location
    except ValueError:
        return True


def _refuse_lock(context: StepContext, transaction: Transaction) -> None:
    location = context.state.lock_location
    detail = (
        f"its intent names the lock {transaction.lock}, and the lock of this table is {location}; name that one or none; "
        "an operator can change it with the agent's setting lock_places"
    )
    context.effects.append(Warn("lock.another-named", transaction.id, transaction.writer, detail))
    context.abort(transaction, "not-allowed", retriable=False, detail=detail)


def _supersede(context: StepContext, older: Transaction, newer: Transaction) -> None:
    if older.grant is None or not older.grant.revoked:
        context.abort(older, "superseded", retriable=False, detail=f"the newer transaction is {newer.id}")


def _refuse_priority(context: StepContext, transaction: Transaction) -> None:
    limit = context.state.settings.max_priority
    detail = (
        f"its priority {transaction.priority} is above {limit}, the limit of the agent's setting max_priority; "
        "lower the priority, or have an operator raise the setting"
    )
    context.abort(transaction, "not-allowed", retriable=False, detail=detail)


def _refuse_over_limit(context: StepContext, transaction: Transaction) -> None:
    limit = context.state.settings.max_open
    detail = (
        f"{limit} transactions of this table are open, and more are not allowed; retry when some have ended"
    )
    context.abort(transaction, "not-allowed", detail=detail)


def abort_repeated_batches(context: StepContext, writer: str | None = None) -> None:
    """Abort the transactions, of this writer or of all, that compute a batch which is committed by now.

    Their retries get `already-committed`.
    """
    state = context.state
    candidates = state.transactions if writer is None else state.of_writer.get(writer, {})
    for each in list(candidates.values()):
        done = state.ledger.get(each.writer) if each.phase in (Phase.ACTIVE, Phase.WAITING) else None
        if done is not None and done.covers(each.batch_id):
            detail = (
                f"transaction {done.transaction} committed batch {done.batch_id}; a retry skips this batch"
            )
            context.abort(each, "superseded", retriable=True, detail=detail)


def admit_ready(context: StepContext) -> list[Transaction]:
    """Answer every intent that nothing blocks, and return the transactions that were admitted."""
    state = context.state
    running = state.running()
    if state.unseen_grant or (running is not None and running.without_index):
        state.recheck_all()  # later
        return []
    if state.recheck is None:
        queue = list(state.in_phase[Phase.QUEUED].values())
    else:
        changed = (state.transactions.get(each) for each in state.recheck)
        queue = [each for each in changed if each is not None and each.phase is Phase.QUEUED]
    state.recheck = set()
    admitted: list[Transaction] = []
    ahead: Transaction | None = None
    for transaction in sorted(queue, key=lambda each: _queue_position(state, each)):
        if running is not None and running.writer == transaction.writer:
            # The writer's older transaction may be publishing.
            state.wait_for(transaction, running.id)
            continue
        about = context.about(transaction.id, transaction.writer, transaction.intent_id)
        done = state.ledger.get(transaction.writer)
        if done is not None and done.covers(transaction.batch_id):
            context.decide(
                events.AlreadyCommitted.model_construct(
                    **about,
                    committed_transaction=done.transaction,
                    version=done.version,
                    batch_id=transaction.batch_id,
                    committed_batch_id=done.batch_id,
                )
            )
            continue
        blocker = next(blockers(state, transaction, newest_first=True, likely=ahead), None)
        if blocker is not None:
            ahead = transaction
            state.wait_for(transaction, blocker.id)
        else:
            reserved = _markers_to_reserve(state, transaction)
            turn = _next_turn(state) if transaction.conflict_rule in events.IN_TURN else None
            known = done is not None or not transaction.batch_id
            context.decide(
                events.Admitted.model_construct(
                    **about,
                    protocol=1 if turn is None else 2,
                    reserved=reserved,
                    turn=turn,
                    edition=None if done is None else done.edition,
                    freed_by=transaction.freed.by or None,
                    namesakes=None if known else namesakes(transaction.writer, state.ledger),
                )
            )
            admitted.append(transaction)
    return admitted


def _next_turn(state: TableState) -> int:
    """The turn after those of the open `ordered` transactions; 0 if there are none."""
    turns = [each.turn for each in state.admitted() if each.turn is not None]
    return max(turns, default=-1) + 1


def _queue_position(state: TableState, transaction: Transaction) -> tuple[bool, int, int]:
    """Sort key in the admission queue, earliest first. The order is that in which conflicts are won."""
    protected = state.is_protected(transaction)
    return (not protected, 0 if protected else -transaction.priority, transaction.sequence)


def _markers_to_reserve(state: TableState, transaction: Transaction) -> tuple[events.Marker, ...]:
    if transaction.markers > 0 or not state.has_lost_enough(transaction.writer):
        return ()
    return state.lost_on[transaction.writer]


def waits_in_queue(state: TableState, transaction: Transaction) -> bool:
    """Whether a transaction waits for those that its scope meets."""
    return transaction.admission == "queued" or state.has_lost_enough(transaction.writer)


def blocking_overlaps(
    state: TableState,
    transaction: Transaction,
    *,
    newest_first: bool = False,
    likely: Transaction | None = None,
) -> Iterator[Overlap]:
    """The overlaps that block a queued transaction: with transactions that compute, or precede it in the queue."""
    mine = _queue_position(state, transaction)
    sequence, priority = transaction.sequence, transaction.priority
    losses, most = state.losses, state.settings.max_losses
    beside = sys.maxsize  # admitted later than this, one that it outranks doesn't block it
    if transaction.admission == "optimistic" or transaction.aged >= 0:
        beside = transaction.aged

    def blocks(touch: Touch, theirs: Touch) -> bool:
        other = theirs.transaction
        if other.phase is Phase.QUEUED:
            behind = other.sequence > sequence and other.priority <= priority
            if behind and other.aged < 0 and losses.get(other.writer, 0) < most:
                return False  # the usual case, without the calls below
            if _queue_position(state, other) >= mine:
                return False
        elif other.phase not in COMPUTING or (
            other.began > beside and outranks(transaction, other, losses, most)
        ):
            return False
        return touches_meet(touch, theirs)

    yield from state.footprints.overlaps(transaction, blocks, newest_first=newest_first, likely=likely)


def reservation_blockers(state: TableState, transaction: Transaction) -> Iterator[Transaction]:
    """The transactions that block the reservation of a transaction."""
    mine = _queue_position(state, transaction)
    partitions = {each.partition for each in _markers_to_reserve(state, transaction)}
    for other in state.open() if partitions else ():
        if other.phase in (Phase.GRANTED, Phase.OBSERVED) or _queue_position(state, other) < mine:
            reserved = {each.partition for each in _markers_to_reserve(state, other)}
            if _share_a_partition(partitions, other.footprint) or _share_a_partition(partitions, reserved):
                yield other


def _share_a_partition(few: Collection[str], many: Collection[str]) -> bool:
    if events.WHOLE_TABLE in few:
        return bool(many)
    return events.WHOLE_TABLE in many or any(each in many for each in few)


def blockers(
    state: TableState,
    transaction: Transaction,
    *,
    newest_first: bool = False,
    likely: Transaction | None = None,
) -> Iterator[Transaction]:
    """The transactions for which a transaction waits before it is admitted. `likely`: one that may be the first."""
    if waits_in_queue(state, transaction):
        overlaps = blocking_overlaps(state, transaction, newest_first=newest_first, likely=likely)
        yield from (each.other.transaction for each in overlaps)
    yield from reservation_blockers(state, transaction)
