"""What the core asks of the shell, and the facts that change its state: one class a case.

A `Verdict` is a published decision. The core applies it to its own state when it decides, and again, by the same code,
when it reads it back from the log: that is how a restart changes nothing. The rest only asks the shell for something.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, assert_never

from lakewarden.events import (
    Abort,
    AbortReason,
    Admitted,
    AlreadyCommitted,
    CommitGranted,
    ConflictEntry,
    ConflictKind,
    ConflictRule,
    DecisionEventUnion,
    GrantRenewed,
    Marker,
)


@dataclass(frozen=True, slots=True)
class Cause:
    """What led to a verdict: an event, or None for a clock or a periodic check; and how far the log had been read."""

    event_id: str | None
    offset: int


@dataclass(frozen=True, slots=True)
class Admit:
    """Start computing."""

    transaction: str
    writer: str
    cause: Cause
    reserved: tuple[Marker, ...] = ()
    """What counts as touched from here on, though its writer has not named it."""


@dataclass(frozen=True, slots=True)
class AbortTransaction:
    """Stop; commit nothing."""

    transaction: str
    writer: str
    cause: Cause
    reason: AbortReason
    retriable: bool
    conflicts: tuple[ConflictEntry, ...] = ()
    detail: str | None = None
    losses: int | None = None
    """Of a conflict: how many its writer has lost in a row, this one included."""


@dataclass(frozen=True, slots=True)
class GrantCommit:
    """Commit within the lease."""

    transaction: str
    writer: str
    cause: Cause
    grant: str
    lease_seconds: float
    seq: int
    lock_owner: str | None


@dataclass(frozen=True, slots=True)
class RenewGrant:
    """The lease of a running commit goes on, or is covered by another lock owner from now on."""

    transaction: str
    writer: str
    cause: Cause
    grant: str
    lease_seconds: float
    seq: int
    lock_owner: str | None


@dataclass(frozen=True, slots=True)
class SkipBatch:
    """The batch is committed already."""

    transaction: str
    writer: str
    cause: Cause
    committed_transaction: str
    version: str | None


Verdict: TypeAlias = Admit | AbortTransaction | GrantCommit | RenewGrant | SkipBatch


@dataclass(frozen=True, slots=True)
class ReportConflict:
    """Tell the operators who lost to whom on what."""

    victim: str
    victim_writer: str
    winner: str
    winner_writer: str
    rule: ConflictRule
    kind: ConflictKind
    conflicts: tuple[ConflictEntry, ...]
    detected_after_ms: float
    victim_age_seconds: float


@dataclass(frozen=True, slots=True)
class RecordLosses:
    """Put the conflicts that a writer lost in a row, and on what, into the ledger."""

    writer: str
    losses: int
    lost_on: tuple[Marker, ...] = ()
    transaction: str = ""
    """The one that lost last."""


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Put a writer's last committed batch into the ledger."""

    transaction: str
    writer: str
    batch_id: int
    version: str | None


@dataclass(frozen=True, slots=True)
class AcquireLock:
    """The table's lock is needed; `adopt` is the owner that covers a running grant which we found in the log."""

    adopt: str | None = None


@dataclass(frozen=True, slots=True)
class ReleaseLock:
    """The table's lock is needed no more."""


@dataclass(frozen=True, slots=True)
class Warn:
    """Something that people should know of and that changes nothing."""

    event: str
    transaction: str
    writer: str


Effect: TypeAlias = Verdict | ReportConflict | RecordBatch | RecordLosses | AcquireLock | ReleaseLock | Warn


def verdict_of(event: DecisionEventUnion) -> Verdict:
    """The fact that a published decision states."""
    cause = Cause(event.cause, event.cause_offset)
    match event:
        case Admitted():
            return Admit(event.transaction, event.writer, cause, event.reserved)
        case Abort():
            return AbortTransaction(
                event.transaction,
                event.writer,
                cause,
                event.reason,
                event.retriable,
                event.conflicts,
                event.detail,
                event.losses,
            )
        case CommitGranted():
            return GrantCommit(
                event.transaction,
                event.writer,
                cause,
                event.grant,
                event.lease_seconds,
                event.seq,
                event.lock_owner,
            )
        case GrantRenewed():
            return RenewGrant(
                event.transaction,
                event.writer,
                cause,
                event.grant,
                event.lease_seconds,
                event.seq,
                event.lock_owner,
            )
        case AlreadyCommitted():
            return SkipBatch(
                event.transaction, event.writer, cause, event.committed_transaction, event.version
            )
        case _:
            assert_never(event)
