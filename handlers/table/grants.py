"""Who may commit, for how long, and what happens when nothing is heard of it.

- One grant a table at a time, in the order in which the commits were requested.
- Only under the table's lock, and only for what is left of it: `lease_seconds` ≤ end of the lock lease minus now (the
  drift is already taken off that end). Less than half of the configured lease is not worth a grant: the renewal of
  the lock is waited for. After an adoption nothing new is granted before `quiet_until` (`lease.py`).
- The grant names the writer's latest `seq` that was read. The writer counts from when it *sent* that one, so its
  deadline is never later than ours, whatever their clocks say.
- A heartbeat of the writer extends a running grant, as far as the lock reaches; after an adoption not before
  `quiet_until`: a former owner that woke up would not know of it, and could grant another when the grant's first
  lease is over.
- A lock that was adopted has another owner: the grant that it covers now is published once more, with what is left of
  its lease from the same `seq`, so that the log names the owner and the next agent can adopt the lock again.
- A grant whose lease ran out unheard is published as `abort(outcome-unknown)` of its own transaction, before
  anything follows from it: from then on its footprint counts as committed. Not before all has been read that was in the log
  when the lease ended (`CaughtUp`, `liveness.py`): the completion may be in it, unread, and nobody else is granted meanwhile.
- The lock is lost: the running grant's writer is told at once (`lease-lost`). It may be in the middle of its
  publish, so nobody else is granted before the grant's own end, even if the lock is back sooner.
- The lock is forbidden (an object that is no lock, a store that refuses): whoever is open and not granted is
  aborted with the reason; computing on would be in vain.
- The lock is wanted while the table has open transactions (`while-active`), or only while one waits or is granted
  (`per-commit`: then it is also released between two grants, so that a foreign writer gets its turn).
"""

from __future__ import annotations

from lakewarden.handlers.table.detection import judge_grant, judge_landing, validate_for_grant
from lakewarden.handlers.table.liveness import CaughtUp
from lakewarden.handlers.table.state import LockView, TableState
from lakewarden.handlers.table.step_context import StepContext
from lakewarden.handlers.table.transactions import OPEN, Phase, Transaction
from lakewarden.handlers.table.verdicts import (
    AbortTransaction,
    AcquireLock,
    Cause,
    GrantCommit,
    ReleaseLock,
    RenewGrant,
)

MIN_LEASE_SHARE = 0.5
"""Share of the configured lease below which a grant is not given."""


def grant_next(context: StepContext) -> None:
    """Grant the first in line for whom everything holds."""
    state = context.state
    while state.running() is None and (line := _grant_queue(state)):
        lease = _available_lease(context)
        lock = state.lock
        if (
            lock is None
            or context.now < lock.quiet_until
            or lease < MIN_LEASE_SHARE * state.settings.grant_lease
        ):
            return
        first = line[0]
        if not validate_for_grant(context, first):
            continue
        state.lock_used = True
        context.decide(
            GrantCommit(
                first.id,
                first.writer,
                Cause(first.requested_id, context.cause.offset),
                grant=f"{first.id}:{context.cause.offset}",
                lease_seconds=lease,
                seq=first.seq,
                lock_owner=lock.owner,
            )
        )
        judge_grant(context, first)


def extend_grant(context: StepContext, transaction: Transaction) -> None:
    """A heartbeat of a granted writer: its lease goes on, as far as the lock reaches."""
    grant = transaction.grant
    lock = context.state.lock
    if grant is None or grant.revoked or lock is None or context.now < lock.quiet_until:
        return
    lease = _available_lease(context)
    if lease > 0 and context.now + lease > grant.deadline:
        context.decide(
            RenewGrant(
                transaction.id,
                transaction.writer,
                context.cause,
                grant.id,
                lease,
                transaction.seq,
                lock.owner,
            )
        )


def publish_lapse(context: StepContext, caught_up: CaughtUp | None) -> None:
    """Publish that a grant's lease ran out unheard; `caught_up` is None while the agent lags."""
    running = context.state.running()
    if caught_up is None or running is None or running.grant is None:
        return
    if caught_up.until < running.grant.deadline:
        return
    context.decide(
        AbortTransaction(
            running.id,
            running.writer,
            context.cause,
            "outcome-unknown",
            retriable=True,
            detail="its lease ran out and nothing was heard: look for the commit in the table before writing again",
        )
    )
    judge_landing(context, running)


def on_lock_gone(context: StepContext, detail: str) -> None:
    """Tell the running grant's writer that the lock is gone."""
    context.state.lock, context.state.lock_used = None, False
    running = context.state.running()
    if running is not None and running.grant is not None and not running.grant.revoked:
        context.abort(running, "lease-lost", detail=detail)


def on_lock_forbidden(context: StepContext, detail: str) -> None:
    """Nobody can be granted until a person has changed something: say so now."""
    for transaction in context.state.open():
        if transaction.phase is not Phase.GRANTED:
            context.abort(transaction, "not-allowed", retriable=False, detail=detail)


def on_lock_confirmed(context: StepContext, lock: LockView) -> None:
    """The lock is ours, or still ours."""
    state = context.state
    if not state.lock_requested:
        return
    state.lock = lock
    running = state.running()
    state.lock_used = state.lock_used or running is not None
    if running is not None:
        _publish_lock_owner(context, running, lock)


def _publish_lock_owner(context: StepContext, running: Transaction, lock: LockView) -> None:
    """Put into the log whose lock covers a running grant now: whoever comes after us must know it when it finds it."""
    grant = running.grant
    if grant is None or grant.revoked or grant.lock_owner == lock.owner or context.now >= grant.deadline:
        return
    left = grant.deadline - context.now
    context.decide(
        RenewGrant(running.id, running.writer, context.cause, grant.id, left, grant.seq, lock.owner)
    )


def request_or_release_lock(context: StepContext) -> None:
    """Ask for the lock, or give it back, as the hold policy says."""
    state = context.state
    if state.settings.hold == "while-active":
        wanted = any(each.phase in OPEN for each in state.transactions.values())
        if wanted and state.lock_requested:
            return
        running = state.running()
    else:
        running = state.running()
        wanted = bool(_grant_queue(state)) or running is not None
        if state.lock_used and running is None:
            _release_lock(context)
    if wanted and not state.lock_requested:
        adopt = running.grant.lock_owner if running is not None and running.grant is not None else None
        context.emit([AcquireLock(adopt)])
        state.lock_requested = True
    elif not wanted and state.lock_requested:
        _release_lock(context)


def _release_lock(context: StepContext) -> None:
    state = context.state
    state.lock, state.lock_requested, state.lock_used = None, False, False
    context.emit([ReleaseLock()])


def _grant_queue(state: TableState) -> list[Transaction]:
    waiting = [each for each in state.transactions.values() if each.phase is Phase.WAITING]
    return sorted(waiting, key=lambda each: each.requested)


def _available_lease(context: StepContext) -> float:
    lock = context.state.lock
    return 0.0 if lock is None else min(context.state.settings.grant_lease, lock.expires_at - context.now)
