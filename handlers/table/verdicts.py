"""The effects of a step: one class per case.

- A *verdict* is a decision that is published. The core applies it to its state when it decides, and again, by the same code,
  when it reads it back from the log. Therefore a restart doesn't change the state.
- The other effects are requests to the shell. They change no state.
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

FORGOTTEN = "the agent forgets this observed transaction, and nothing is stopped for it any more: "
"""Begins the detail of an abort of an observed transaction. Its writer goes on."""


@dataclass(frozen=True, slots=True)
class Cause:
    """The input that led to a verdict."""

    event_id: str | None
    """None for the periodic check and for changes of the lock."""
    offset: int
    """Offset in `writers` up to which the agent had read."""


@dataclass(frozen=True, slots=True)
class Admit:
    """The transaction may start to compute."""

    transaction: str
    writer: str
    cause: Cause
    reserved: tuple[Marker, ...] = ()
    """Partitions that count as touched from now on, although the writer has published no marker there."""
    turn: int | None = None
    """Of an `ordered` transaction (`conflicts.py`)."""


@dataclass(frozen=True, slots=True)
class AbortTransaction:
    """The transaction must stop and commit nothing."""

    transaction: str
    writer: str
    cause: Cause
    reason: AbortReason | str
    """Read back from the log, it may be one that a later version has added."""
    retriable: bool
    conflicts: tuple[ConflictEntry, ...] = ()
    detail: str | None = None
    losses: int | None = None
    """After a conflict: how many its writer has lost in a row, this one included."""


@dataclass(frozen=True, slots=True)
class GrantCommit:
    """The transaction may commit within the lease."""

    transaction: str
    writer: str
    cause: Cause
    grant: str
    lease_seconds: float
    seq: int
    lock_owner: str | None


@dataclass(frozen=True, slots=True)
class RenewGrant:
    """A running grant is extended, or another lock owner covers it from now on."""

    transaction: str
    writer: str
    cause: Cause
    grant: str
    lease_seconds: float
    seq: int
    lock_owner: str | None


@dataclass(frozen=True, slots=True)
class SkipBatch:
    """The batch is already committed."""

    transaction: str
    writer: str
    cause: Cause
    committed_transaction: str
    version: str | None
    batch_id: int | None = None
    """The batch that is skipped."""
    committed_batch_id: int | None = None
    """The writer's last committed batch: this one, or a later one."""


Verdict: TypeAlias = Admit | AbortTransaction | GrantCommit | RenewGrant | SkipBatch


@dataclass(frozen=True, slots=True)
class ReportConflict:
    """Report a conflict to operators: victim, winner and file groups."""

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
    """Record in the ledger how many conflicts a writer has lost in a row, and in which partitions."""

    writer: str
    losses: int
    lost_on: tuple[Marker, ...] = ()
    transaction: str = ""
    """The transaction that lost last."""


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Record a writer's last committed batch in the ledger."""

    transaction: str
    writer: str
    batch_id: int | None
    version: str | None
    corrected_at: int | None = None
    correction: str | None = None
    generation: int = 0


@dataclass(frozen=True, slots=True)
class AcquireLock:
    """Acquire the table's lock and keep it."""

    adopt: str | None = None
    """Owner of the lock that covers a running grant, according to the log. The agent replaces this owner."""


@dataclass(frozen=True, slots=True)
class ReleaseLock:
    """Release the table's lock."""


@dataclass(frozen=True, slots=True)
class Warn:
    """Warn operators of the event that was just read: the shell logs it, and keeps the record among the dead letters."""

    event: str
    """Name of the log event."""
    transaction: str
    writer: str
    detail: str


Effect: TypeAlias = Verdict | ReportConflict | RecordBatch | RecordLosses | AcquireLock | ReleaseLock | Warn


def verdict_of(event: DecisionEventUnion) -> Verdict:
    """The verdict in a published decision."""
    cause = Cause(event.cause, event.cause_offset)
    match event:
        case Admitted():
            return Admit(event.transaction, event.writer, cause, event.reserved, event.turn)
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
                event.transaction,
                event.writer,
                cause,
                event.committed_transaction,
                event.version,
                event.batch_id,
                event.committed_batch_id,
            )
        case _:
            assert_never(event)
