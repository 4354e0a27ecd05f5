"""The state of one transaction, as its writer knows it. Every transition is in this file; no I/O, clock or lock.

    opening ──admitted──▶ computing ──request──▶ requested ──begin_publish──▶ publishing ──▶ ended
       │ already-committed    │ abort                │ abort, or no lease left        │ abort: recorded
       ▼                      ▼                      ▼                                ▼ only
     ended                  ended                  ended                          publishing

The caller holds the transaction's lock during each call, so each transition is atomic. Six rules settle the races between
decisions, which arrive at any time, and the body:

1. *No answer is missed, and no other counts.* The channel subscribes before the intent is published. A decision counts only
   if it names the transaction, its table and its writer, so an answer to an earlier attempt doesn't. The id alone is no proof:
   any client can read it in the log, open a transaction with the same id on another table, and get it granted or aborted.
2. *An abort counts until the publish begins.* `begin_publish` checks for an abort and for the deadline in one step, so an
   abort is either found by it or arrives after it. A later abort is only recorded (`late_abort`): `check_lease` then
   returns it, and only the table knows the outcome.
3. *The first decision wins.* A second abort, a grant after an abort and a second grant change nothing.
4. *A grant counts only while the writer waits for it.* After `end` it is ignored, so that "abandoned: nothing was
   committed" stays true.
5. *A grant without lease gives no permission.* Its deadline has passed, or it names a `seq` that this writer never sent
   (`grant.py`). The agent may have granted the commit to another writer.
6. *A renewal only extends* the lease, and only that of the grant that it names. Renewals may arrive late.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import assert_never

from lakewarden import events
from lakewarden.spark_jobs.gate.grant import SendTimes


class GatePhase(Enum):
    """How far the transaction is."""

    OPENING = auto()
    COMPUTING = auto()
    REQUESTED = auto()
    PUBLISHING = auto()
    ENDED = auto()


class Change(Enum):
    """What a decision changed."""

    NONE = auto()
    ANSWER = auto()
    """It answers the intent or the request."""
    ABORT = auto()
    LATE_ABORT = auto()
    """An abort after the publish began."""


@dataclass(frozen=True, slots=True)
class GrantLease:
    """A grant, and until when it counts."""

    grant: str
    token: int
    seq: int
    lease_seconds: float
    deadline: float | None
    """On this writer's clock. None if this writer never sent `seq`."""


@dataclass(frozen=True, slots=True)
class ExpiredLease:
    """A grant that gives no permission."""

    lease: GrantLease
    late_seconds: float | None
    """Since its deadline. None if it has no deadline."""


class GateProgress:
    """The state of one transaction; the module has the rules."""

    __slots__ = ("_names", "abort", "admitted", "committed", "late_abort", "lease", "phase", "send_times")

    def __init__(self, table: str, writer: str, margin_seconds: float) -> None:
        self._names = (table, writer)
        self.phase = GatePhase.OPENING
        self.send_times = SendTimes(margin_seconds)
        self.abort: events.Abort | None = None
        self.admitted: events.Admitted | None = None
        """With the offset in `writers` of its cause: that of its own intent, unless the transaction waited."""
        self.late_abort: events.Abort | None = None
        self.committed: events.AlreadyCommitted | None = None
        self.lease: GrantLease | None = None

    def apply(self, decision: events.DecisionEventUnion, offset: int) -> Change:
        """Apply a decision on this transaction's id, which was read at `offset` of `decisions`."""
        if self.phase is GatePhase.ENDED or not self._concerns(decision):
            return Change.NONE
        match decision:
            case events.Admitted():
                if self.phase is not GatePhase.OPENING:
                    return Change.NONE
                self.phase = GatePhase.COMPUTING
                self.admitted = decision
                return Change.ANSWER
            case events.AlreadyCommitted():
                if self.phase is not GatePhase.OPENING:
                    return Change.NONE
                self.committed = decision
                self.phase = GatePhase.ENDED
                return Change.ANSWER
            case events.Abort():
                return self._apply_abort(decision)
            case events.CommitGranted():
                if self.phase is not GatePhase.REQUESTED or self.lease is not None or self.abort is not None:
                    return Change.NONE
                deadline = self.send_times.deadline(decision.seq, decision.lease_seconds)
                self.lease = GrantLease(
                    decision.grant, offset, decision.seq, decision.lease_seconds, deadline
                )
                return Change.ANSWER
            case events.GrantRenewed():
                self._renew(decision)
                return Change.NONE
            case _:
                assert_never(decision)

    def _concerns(self, decision: events.DecisionEventUnion) -> bool:
        table, writer = self._names
        unread = isinstance(decision, events.Abort) and not decision.writer
        return decision.table == table and (unread or decision.writer == writer)

    def _apply_abort(self, abort: events.Abort) -> Change:
        if self.phase is GatePhase.PUBLISHING:
            if self.late_abort is not None:
                return Change.NONE
            self.late_abort = abort
            return Change.LATE_ABORT
        if self.abort is not None:
            return Change.NONE
        self.abort = abort
        return Change.ABORT

    def _renew(self, renewed: events.GrantRenewed) -> None:
        lease = self.lease
        if lease is None or lease.grant != renewed.grant:
            return
        deadline = self.send_times.deadline(renewed.seq, renewed.lease_seconds)
        if deadline is None or (lease.deadline is not None and deadline <= lease.deadline):
            return
        self.lease = GrantLease(lease.grant, lease.token, renewed.seq, renewed.lease_seconds, deadline)

    def request(self) -> None:
        if self.phase is not GatePhase.COMPUTING:
            raise RuntimeError(
                f"call commit() once, inside the transaction; its phase is {self.phase.name.lower()}"
            )
        self.phase = GatePhase.REQUESTED

    def begin_publish(self, now: float) -> GrantLease | ExpiredLease | events.Abort:
        """Begin the publish, if nothing forbids it. It has begun only if the result is a `GrantLease`."""
        if self.abort is not None:
            return self.abort
        assert self.phase is GatePhase.REQUESTED, self.phase
        assert self.lease is not None
        expired = self._expired(self.lease, now)
        if expired is not None:
            return expired
        self.phase = GatePhase.PUBLISHING
        return self.lease

    def check_lease(self, now: float) -> GrantLease | ExpiredLease | events.Abort:
        """Return what a running publish may rely on: it may continue only with a `GrantLease`."""
        assert self.lease is not None
        if self.late_abort is not None:
            return self.late_abort
        return self._expired(self.lease, now) or self.lease

    @staticmethod
    def _expired(lease: GrantLease, now: float) -> ExpiredLease | None:
        if lease.deadline is None:
            return ExpiredLease(lease, None)
        return ExpiredLease(lease, now - lease.deadline) if now >= lease.deadline else None

    def end(self) -> None:
        self.phase = GatePhase.ENDED
