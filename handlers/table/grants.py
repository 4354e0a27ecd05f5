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

from lakewarden.handlers.table.detection import judge_grant, judge_landing, may_be_granted
from lakewarden.handlers.table.liveness import CaughtUp
from lakewarden.handlers.table.state import LockView, TableState
from lakewarden.handlers.table.step_context import Deciding
from lakewarden.handlers.table.transactions import OPEN, Phase, Transaction
from lakewarden.handlers.table.verdicts import (
    AbortTransaction,
    Cause,
    FreeLock,
    GrantCommit,
    NeedLock,
    RenewGrant,
)

WORTHWHILE = 0.5
"""Share of the configured lease below which a grant is not given."""


def grant_next(deciding: Deciding) -> None:
    """Grant the first in line for whom everything holds."""
    state = deciding.state
    while state.running() is None and (line := _line(state)):
        lease = _lease_left(deciding)
        lock = state.lock
        if lock is None or deciding.now < lock.quiet_until or lease < WORTHWHILE * state.settings.grant_lease:
            return
        first = line[0]
        if not may_be_granted(deciding, first):
            continue
        state.lock_used = True
        deciding.decide(
            GrantCommit(
                first.id,
                first.writer,
                Cause(first.requested_id, deciding.cause.offset),
                grant=f"{first.id}:{deciding.cause.offset}",
                lease_seconds=lease,
                seq=first.seq,
                lock_owner=lock.owner,
            )
        )
        judge_grant(deciding, first)


def extend(deciding: Deciding, transaction: Transaction) -> None:
    """A heartbeat of a granted writer: its lease goes on, as far as the lock reaches."""
    grant = transaction.grant
    lock = deciding.state.lock
    if grant is None or grant.revoked or lock is None or deciding.now < lock.quiet_until:
        return
    lease = _lease_left(deciding)
    if lease > 0 and deciding.now + lease > grant.deadline:
        deciding.decide(
            RenewGrant(
                transaction.id,
                transaction.writer,
                deciding.cause,
                grant.id,
                lease,
                transaction.seq,
                lock.owner,
            )
        )


def lapse(deciding: Deciding, caught_up: CaughtUp | None) -> None:
    """Publish that a grant's lease ran out unheard; `caught_up` is None while the agent lags."""
    running = deciding.state.running()
    if caught_up is None or running is None or running.grant is None:
        return
    if caught_up.until < running.grant.deadline:
        return
    deciding.decide(
        AbortTransaction(
            running.id,
            running.writer,
            deciding.cause,
            "outcome-unknown",
            retriable=True,
            detail="its lease ran out and nothing was heard: look for the commit in the table before writing again",
        )
    )
    judge_landing(deciding, running)


def lock_lost(deciding: Deciding, why: str) -> None:
    """Tell the running grant's writer that the lock is gone."""
    deciding.state.lock, deciding.state.lock_used = None, False
    running = deciding.state.running()
    if running is not None and running.grant is not None and not running.grant.revoked:
        deciding.abort(running, "lease-lost", detail=why)


def lock_forbidden(deciding: Deciding, why: str) -> None:
    """Nobody can be granted until a person has changed something: say so now."""
    for transaction in deciding.state.open():
        if transaction.phase is not Phase.GRANTED:
            deciding.abort(transaction, "not-allowed", retriable=False, detail=why)


def lock_confirmed(deciding: Deciding, lock: LockView) -> None:
    """The lock is ours, or still ours."""
    state = deciding.state
    if not state.lock_wanted:
        return
    state.lock = lock
    running = state.running()
    state.lock_used = state.lock_used or running is not None
    if running is not None:
        _cover(deciding, running, lock)


def _cover(deciding: Deciding, running: Transaction, lock: LockView) -> None:
    """Put into the log whose lock covers a running grant now: whoever comes after us must know it when it finds it."""
    grant = running.grant
    if grant is None or grant.revoked or grant.lock_owner == lock.owner or deciding.now >= grant.deadline:
        return
    left = grant.deadline - deciding.now
    deciding.decide(
        RenewGrant(running.id, running.writer, deciding.cause, grant.id, left, grant.seq, lock.owner)
    )


def want_lock(deciding: Deciding) -> None:
    """Ask for the lock, or give it back, as the hold policy says."""
    state = deciding.state
    if state.settings.hold == "while-active":
        wanted = any(each.phase in OPEN for each in state.transactions.values())
        if wanted and state.lock_wanted:
            return
        running = state.running()
    else:
        running = state.running()
        wanted = bool(_line(state)) or running is not None
        if state.lock_used and running is None:
            _release(deciding)
    if wanted and not state.lock_wanted:
        adopt = running.grant.lock_owner if running is not None and running.grant is not None else None
        deciding.ask([NeedLock(adopt)])
        state.lock_wanted = True
    elif not wanted and state.lock_wanted:
        _release(deciding)


def _release(deciding: Deciding) -> None:
    state = deciding.state
    state.lock, state.lock_wanted, state.lock_used = None, False, False
    deciding.ask([FreeLock()])


def _line(state: TableState) -> list[Transaction]:
    waiting = [each for each in state.transactions.values() if each.phase is Phase.WAITING]
    return sorted(waiting, key=lambda each: each.requested)


def _lease_left(deciding: Deciding) -> float:
    lock = deciding.state.lock
    return 0.0 if lock is None else min(deciding.state.settings.grant_lease, lock.expires_at - deciding.now)
