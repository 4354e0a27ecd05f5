"""Which transaction may commit, for how long, and what happens if its writer doesn't report.

Granting
1. A table has at most one granted transaction. Others are granted in the order of their `commit-requested` events, except that
   an `ordered` transaction waits for the end of each one that comes before it and shares a file group (`conflicts.py`). No
   transaction waits for a later one, so each wait ends with a first one: it commits, abandons, is aborted, or is silent
   (`liveness.py`).
2. A grant needs the table's lock. `lease_seconds` is at most the rest of the lock lease, whose end has the drift subtracted.
3. If less than half of the configured grant lease would remain, the agent waits for the next renewal of the lock.
4. The grant names the writer's latest `seq` that the agent has read. The writer counts its lease from when it *sent* that
   `seq`, so its deadline is never later than the agent's, whatever their clocks show. Its id is short whatever the
   transaction is called: the offset of the intent, the offset up to which the agent had read, and the agent's term. Without
   the term, an agent that was replaced could publish a late grant under the id of its successor's.
5. A heartbeat extends the running grant, as far as the lock lease reaches. It extends no grant that is `max_grant` old:
   heartbeats come from a thread of their own, so they continue while the publish hangs. A grant ends after `max_grant` and one
   grant lease at the latest.
6. After an adoption of the lock (`lease/machine.py`), nothing is granted or extended before `quiet_until`. The former owner
   may still be running. It would not know of an extension, and could grant another transaction after the first lease. If it is
   fenced, there is no quiet time.

Lapse
7. A grant whose lease expires without a report is published as `abort(outcome-unknown)` of its own transaction. That record is
   the lapse. From then on the footprint counts as committed.
8. The lapse is published only when the agent has read everything that was in the log at the end of the lease (`CaughtUp` in
   `liveness.py`). The completion may be among it. Nothing else is granted before that.

Lock
9. The agent requests the lock while the table has open transactions (`while-active`), or only while one waits for a grant or
   is granted (`per-commit`). With `per-commit` it also releases the lock between two grants, so that foreign writers can
   acquire it. After an incomplete log it also acquires the lock before it admits anything (`machine.py`). It needs no lock for
   observed transactions: their writers have locks of their own, and would wait for it.
10. If the lock is lost, the granted transaction gets `abort(lease-lost)`. Its writer may already be publishing, so nothing else
    is granted before the grant's own end, even if the agent acquires the lock again sooner.
11. If the lock is unusable (the object is no lock, or the store ignores conditions), the agent also aborts all other open
    transactions (`not-allowed`). Their compute would be wasted.
12. If the store refuses the lock (a session expired, a permission is missing), open transactions wait. They are aborted
    (`lock-refused`, retriable) when it is refused for too long (`lease/machine.py`). A granted one is not: its own lease ends.
13. An adopted lock has another owner. The agent publishes `grant-renewed` for the running grant, with the same `seq` and the
    rest of the lease. So the log names the new owner, and the next agent can adopt the lock again.
"""

from collections.abc import Iterator
from typing import Literal, TypeAlias

from lakewarden.events import IN_TURN, CommitGranted
from lakewarden.handlers.table.conflicts import waits_for_turn
from lakewarden.handlers.table.detection import judge_grant, judge_landing, validate_for_grant
from lakewarden.handlers.table.effects import AcquireLock, ReleaseLock
from lakewarden.handlers.table.footprints import Overlap
from lakewarden.handlers.table.liveness import CaughtUp
from lakewarden.handlers.table.state import LockView, TableState
from lakewarden.handlers.table.step_context import StepContext
from lakewarden.handlers.table.transactions import OPEN, Phase, Transaction

LockFailure: TypeAlias = Literal["lost", "unusable", "refused-too-long"]
"""Why the agent doesn't have the lock, in the words of `handlers/lease/types.py`."""
MIN_LEASE_SHARE = 0.5
"""The smallest share of the configured grant lease for which a grant is decided."""


def grant_next(context: StepContext) -> None:
    """Grant the first transaction of the queue that passes the check before a grant."""
    state = context.state
    while state.running() is None and (first := next_granted(state)) is not None:
        lease = _available_lease(context)
        lock = state.lock
        if (
            lock is None
            or context.now < lock.quiet_until
            or lease < MIN_LEASE_SHARE * state.settings.grant_lease
        ):
            return
        if not validate_for_grant(context, first):
            continue
        state.lock_used = True
        context.decide(
            CommitGranted.model_construct(
                **context.about(first.id, first.writer, first.requested_id),
                grant=f"{first.sequence}:{context.offset}:{state.term}",
                lease_seconds=lease,
                seq=first.seq,
                lock_owner=lock.owner,
                freed_by=_freed_by(state, first),
            )
        )
        judge_grant(context, first)


def _freed_by(state: TableState, transaction: Transaction) -> str | None:
    """The transaction whose end was the last that this one waited for since its request, as far as the state knows it."""
    last = max(state.grant_ended, transaction.freed)
    return last.by if last.moment > transaction.requested else None


def extend_grant(context: StepContext, transaction: Transaction) -> None:
    """Extend a running grant after a heartbeat, as far as the lock lease reaches."""
    grant = transaction.grant
    lock = context.state.lock
    if grant is None or grant.revoked or lock is None or context.now < lock.quiet_until:
        return
    if context.now - grant.since >= context.state.settings.max_grant:
        return
    lease = _available_lease(context)
    if lease > 0 and context.now + lease > grant.deadline:
        context.renew(transaction, lease, transaction.seq, lock.owner)


def publish_lapse(context: StepContext, caught_up: CaughtUp | None) -> None:
    """Publish the lapse of a grant whose lease expired without a report."""
    running = context.state.running()
    if caught_up is None or running is None or running.grant is None:
        return
    if caught_up.until < running.grant.deadline:
        return
    limit = context.state.settings.max_grant
    too_old = context.now - running.grant.since >= limit and not running.grant.revoked
    ended = (
        f"the grant was not extended beyond {limit:g} s, the limit of max_grant_seconds, and its lease expired"
        if too_old
        else "the grant lease expired"
    )
    detail = f"{ended} without a report; check whether the table contains the batch before writing it again"
    context.abort(running, "outcome-unknown", detail=detail)
    judge_landing(context, running)


def on_lock_failed(context: StepContext, failure: LockFailure, detail: str) -> None:
    """Abort what can't be granted without the lock (rules 10 to 12)."""
    state = context.state
    if failure != "refused-too-long":
        state.lock, state.lock_used = None, False
        running = state.running()
        if running is not None and running.grant is not None and not running.grant.revoked:
            context.abort(running, "lease-lost", detail=detail)
    for transaction in state.stoppable() if failure != "lost" else ():
        if failure == "unusable":
            context.abort(transaction, "not-allowed", retriable=False, detail=detail)
        else:
            context.abort(transaction, "lock-refused", detail=detail)


def on_lock_confirmed(context: StepContext, lock: LockView) -> None:
    """Enter an acquired or renewed lock lease."""
    state = context.state
    if not state.lock_requested:
        return
    state.lock = lock
    if context.now >= lock.quiet_until:
        state.unseen_grant = False
    running = state.running()
    state.lock_used = state.lock_used or running is not None
    if running is not None:
        _publish_lock_owner(context, running, lock)


def _publish_lock_owner(context: StepContext, running: Transaction, lock: LockView) -> None:
    """Publish the lock owner that now covers a running grant, so that the next agent recognises the lock."""
    grant = running.grant
    if grant is None or grant.revoked or grant.lock_owner == lock.owner or context.now >= grant.deadline:
        return
    context.renew(running, grant.deadline - context.now, grant.seq, lock.owner)


def request_or_release_lock(context: StepContext) -> None:
    """Request or release the lock as the hold policy requires."""
    state = context.state
    if state.settings.hold == "while-active":
        needed = any(state.in_phase[phase] for phase in OPEN - {Phase.OBSERVED})
        if needed and state.lock_requested:
            return
        running = state.running()
    else:
        running = state.running()
        needed = running is not None or next_granted(state) is not None
        needed = needed or (state.unseen_grant and state.count_open() > 0)
        if state.lock_used and running is None:
            _release_lock(context)
    if needed and not state.lock_requested:
        adopt = running.grant.lock_owner if running is not None and running.grant is not None else None
        context.effects.append(AcquireLock(adopt))
        state.lock_requested = True
    elif not needed and state.lock_requested:
        _release_lock(context)


def _release_lock(context: StepContext) -> None:
    state = context.state
    state.lock, state.lock_requested, state.lock_used = None, False, False
    context.effects.append(ReleaseLock())


def earlier_turns(state: TableState, transaction: Transaction) -> Iterator[Overlap]:
    """The overlaps with the transactions for whose end this one has to wait before it may be granted."""
    if transaction.conflict_rule in IN_TURN:
        yield from state.footprints.overlaps(
            transaction, lambda _, touch: waits_for_turn(transaction, touch.transaction), newest_first=True
        )


def _has_turn(state: TableState, transaction: Transaction) -> bool:
    """Whether a waiting transaction may be granted next. It is looked for again when the one that it waits for changes."""
    overlap = next(earlier_turns(state, transaction), None)
    if overlap is None:
        return True
    state.wait_for(transaction, overlap.other.transaction.id)
    return False


def grant_queue(state: TableState) -> Iterator[Transaction]:
    """The transactions that may be granted next, in their order."""
    ready = [each for each in state.in_phase[Phase.WAITING].values() if each.blocker is None]
    ready.sort(key=lambda each: each.requested)
    return (each for each in ready if _has_turn(state, each))


def next_granted(state: TableState) -> Transaction | None:
    """The first transaction of the grant queue."""
    return next(grant_queue(state), None)


def _available_lease(context: StepContext) -> float:
    lock = context.state.lock
    return 0.0 if lock is None else min(context.state.settings.grant_lease, lock.expires_at - context.now)
