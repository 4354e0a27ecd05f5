"""The state of one transaction, as its writer knows it. Every transition is in this file; no I/O, clock or lock.

    opening ──admitted──▶ computing ──request──▶ requested ──begin_publish──▶ publishing ──▶ ended
       │ already-committed    │ abort                │ abort, or no lease left        │ abort: recorded
       ▼                      ▼                      ▼                                ▼ only
     ended                  ended                  ended                          publishing

Rules, and the races that they settle (whoever calls holds the transaction's lock, so a step is one step):

1. *An answer can't be missed.* The reader stands at the end of `decisions` before the intent is produced; decisions
   that come early wait here. They are matched by transaction id: an older attempt's answer never counts for this one.
2. *An abort counts until the publish begins.* `begin_publish` looks at the verdict and at the deadline and moves on,
   in one step: an abort is either seen by it or comes after it. What comes after is recorded (`late_abort`), refuses
   every later `check`, and cleans nothing up: the outcome is then the table's to tell.
3. *The first verdict stands.* A second abort, a grant after an abort, another grant after a grant change nothing.
4. *A grant counts only while we wait for it.* Once we gave up (`end`), a grant that arrives is ignored, so saying
   "abandoned: nothing was committed" stays true.
5. *A grant without lease left is no grant.* See `lease.py`: deadline ≤ now, or a `seq` that we never sent.
6. *A renewal extends, never shortens*, and only the grant that it names.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import assert_never

from lakewarden.events import (
    Abort,
    Admitted,
    AlreadyCommitted,
    CommitGranted,
    DecisionEventUnion,
    GrantRenewed,
)
from lakewarden.spark_jobs.gate.grant_deadline import SendTimes


class Phase(Enum):
    """How far the transaction is."""

    OPENING = auto()
    COMPUTING = auto()
    REQUESTED = auto()
    PUBLISHING = auto()
    ENDED = auto()


class Change(Enum):
    """What a decision means for whoever waits."""

    NONE = auto()
    ANSWER = auto()
    ABORT = auto()
    LATE_ABORT = auto()


@dataclass(frozen=True, slots=True)
class GrantLease:
    """A grant in our hands, and until when on our own clock. No deadline: its `seq` was never ours."""

    grant: str
    token: int
    seq: int
    lease_seconds: float
    deadline: float | None


@dataclass(frozen=True, slots=True)
class ExpiredLease:
    """The grant that came too late, and by how much."""

    held: GrantLease
    late_seconds: float | None


class Progress:
    """One transaction's state; see the rules above."""

    __slots__ = ("abort", "committed", "late_abort", "lease", "phase", "send_times")

    def __init__(self, margin_seconds: float) -> None:
        self.phase = Phase.OPENING
        self.send_times = SendTimes(margin_seconds)
        self.abort: Abort | None = None
        self.late_abort: Abort | None = None
        self.committed: AlreadyCommitted | None = None
        self.lease: GrantLease | None = None

    def apply(self, decision: DecisionEventUnion, offset: int) -> Change:
        """Take one decision, read at `offset` of `decisions`."""
        if self.phase is Phase.ENDED:
            return Change.NONE
        match decision:
            case Admitted():
                if self.phase is not Phase.OPENING:
                    return Change.NONE
                self.phase = Phase.COMPUTING
                return Change.ANSWER
            case AlreadyCommitted():
                if self.phase is not Phase.OPENING:
                    return Change.NONE
                self.committed = decision
                self.phase = Phase.ENDED
                return Change.ANSWER
            case Abort():
                return self._apply_abort(decision)
            case CommitGranted():
                if self.phase is not Phase.REQUESTED or self.lease is not None or self.abort is not None:
                    return Change.NONE
                deadline = self.send_times.deadline(decision.seq, decision.lease_seconds)
                self.lease = GrantLease(
                    decision.grant, offset, decision.seq, decision.lease_seconds, deadline
                )
                return Change.ANSWER
            case GrantRenewed():
                self._renew(decision)
                return Change.NONE
            case _:
                assert_never(decision)

    def _apply_abort(self, abort: Abort) -> Change:
        if self.phase is Phase.PUBLISHING:
            if self.late_abort is not None:
                return Change.NONE
            self.late_abort = abort
            return Change.LATE_ABORT
        if self.abort is not None:
            return Change.NONE
        self.abort = abort
        return Change.ABORT

    def _renew(self, renewed: GrantRenewed) -> None:
        held = self.lease
        if held is None or held.grant != renewed.grant:
            return
        deadline = self.send_times.deadline(renewed.seq, renewed.lease_seconds)
        if deadline is None or (held.deadline is not None and deadline <= held.deadline):
            return
        self.lease = GrantLease(held.grant, held.token, renewed.seq, renewed.lease_seconds, deadline)

    def request(self) -> None:
        """The writer asks to commit; only once, and only from its body."""
        if self.phase is not Phase.COMPUTING:
            raise RuntimeError(
                f"commit() is asked for once, inside the transaction; it is {self.phase.name.lower()}"
            )
        self.phase = Phase.REQUESTED

    def begin_publish(self, now: float) -> GrantLease | ExpiredLease | Abort:
        """The last look before the publish; `GrantLease` means that it has begun."""
        if self.abort is not None:
            return self.abort
        assert self.phase is Phase.REQUESTED, self.phase
        assert self.lease is not None
        lapsed = self._expired(self.lease, now)
        if lapsed is not None:
            return lapsed
        self.phase = Phase.PUBLISHING
        return self.lease

    def check_lease(self, now: float) -> GrantLease | ExpiredLease | Abort:
        """Whether a publish that hasn't reached the table yet may still go on."""
        assert self.lease is not None
        if self.late_abort is not None:
            return self.late_abort
        return self._expired(self.lease, now) or self.lease

    @staticmethod
    def _expired(held: GrantLease, now: float) -> ExpiredLease | None:
        if held.deadline is None:
            return ExpiredLease(held, None)
        return ExpiredLease(held, now - held.deadline) if now >= held.deadline else None

    def end(self) -> None:
        """Nothing counts any more."""
        self.phase = Phase.ENDED
