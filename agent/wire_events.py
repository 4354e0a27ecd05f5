"""Turns the core's verdicts and lock steps into wire events, with the ids, times and names that the core does not know.

Whatever the core decides about events that the decoder accepts becomes a record of at most `MAX_RECORD_BYTES`, key included.
Texts that may come from elsewhere (a store's answer, an entry of the ledger) are cut here.
"""

from __future__ import annotations

from typing import assert_never

from lakewarden.agent.clock import fresh_id, monotonic, utc_now
from lakewarden.events import (
    MAX_VERSION,
    PROTOCOL,
    PROTOCOL_WITH_TURNS,
    Abort,
    Admitted,
    AlreadyCommitted,
    AuditEventUnion,
    BatchCommitted,
    CommitGranted,
    ConflictDetected,
    ConflictEntry,
    ConflictsLost,
    DecisionEventUnion,
    GrantRenewed,
    LockAcquired,
    LockLost,
    LockRefused,
    LockReleased,
    LockRenewed,
)
from lakewarden.handlers.lease import machine as lease
from lakewarden.handlers.table.verdicts import (
    AbortTransaction,
    Admit,
    GrantCommit,
    RecordBatch,
    RecordLosses,
    RenewGrant,
    ReportConflict,
    SkipBatch,
    Verdict,
)

MAX_EVIDENCE_CHARACTERS = 128_000
"""Of all names in one record. In JSON a character has up to six bytes (a control character), so the record stays below 1 MB."""
MAX_DETAIL = 4_000
"""Characters of a text for people: a store's answer can be a page."""
MAX_RECORD_BYTES = 1_000_000
"""Of key and value. Kafka's default limit is 1,048,588 bytes of a batch, which adds less than 1 KB to one record."""


def decision(agent: str, term: str, table: str, verdict: Verdict) -> DecisionEventUnion:
    """The event of a verdict about a transaction."""
    common = {
        "event_id": fresh_id(),
        "table": table,
        "transaction": verdict.transaction,
        "writer": verdict.writer,
        "at": utc_now(),
        "agent": agent,
        "term": term,
        "cause": verdict.cause.event_id,
        "cause_offset": verdict.cause.offset,
    }
    match verdict:
        case Admit(reserved=reserved, turn=turn):
            protocol = PROTOCOL if turn is None else PROTOCOL_WITH_TURNS
            return Admitted.model_validate(
                common | {"reserved": reserved, "turn": turn, "protocol": protocol}
            )
        case AbortTransaction(
            reason=reason, retriable=retriable, conflicts=conflicts, detail=detail, losses=losses
        ):
            return Abort.model_validate(
                common
                | {
                    "reason": reason,
                    "retriable": retriable,
                    "conflicts": _fitting(conflicts),
                    "detail": _cut(detail),
                    "losses": losses,
                }
            )
        case GrantCommit(grant=grant, lease_seconds=lease_seconds, seq=seq, lock_owner=lock_owner):
            return CommitGranted.model_validate(
                common
                | {"grant": grant, "lease_seconds": lease_seconds, "seq": seq, "lock_owner": lock_owner}
            )
        case RenewGrant(grant=grant, lease_seconds=lease_seconds, seq=seq, lock_owner=lock_owner):
            return GrantRenewed.model_validate(
                common
                | {"grant": grant, "lease_seconds": lease_seconds, "seq": seq, "lock_owner": lock_owner}
            )
        case SkipBatch(committed_transaction=committed_transaction, version=version):
            return AlreadyCommitted.model_validate(
                common
                | {
                    "committed_transaction": committed_transaction,
                    "version": _cut(version, MAX_VERSION),
                    "batch_id": verdict.batch_id,
                    "committed_batch_id": verdict.committed_batch_id,
                }
            )
        case _:
            assert_never(verdict)


def _cut(text: str | None, limit: int = MAX_DETAIL) -> str | None:
    return text if text is None else text[:limit]


def _fitting(conflicts: tuple[ConflictEntry, ...]) -> tuple[ConflictEntry, ...]:
    """The first entries whose names fit into a record (`MAX_EVIDENCE_CHARACTERS`), at least one."""
    left = MAX_EVIDENCE_CHARACTERS
    for count, each in enumerate(conflicts):
        left -= (
            len(each.partition) + len(each.file_group) + len(each.other_transaction) + len(each.other_writer)
        )
        if left < 0 and count:
            return conflicts[:count]
    return conflicts


def conflict(table: str, report: ReportConflict) -> ConflictDetected:
    """The event of a conflict, for operators (topic `conflicts`)."""
    return ConflictDetected(
        event_id=fresh_id(),
        table=table,
        transaction=report.victim,
        writer=report.victim_writer,
        at=utc_now(),
        victim=report.victim,
        victim_writer=report.victim_writer,
        winner=report.winner,
        winner_writer=report.winner_writer,
        rule=report.rule,
        kind=report.kind,
        conflicts=_fitting(report.conflicts),
        detected_after_ms=round(report.detected_after_ms, 3),
        victim_age_seconds=round(report.victim_age_seconds, 3),
    )


def ledger_entry(term: str, table: str, batch: RecordBatch) -> BatchCommitted:
    """The ledger entry of a writer's last committed batch."""
    return BatchCommitted(
        event_id=fresh_id(),
        table=table,
        transaction=batch.transaction,
        writer=batch.writer,
        at=utc_now(),
        batch_id=batch.batch_id,
        version=_cut(batch.version, MAX_VERSION),
        corrected_at=batch.corrected_at,
        correction=batch.correction,
        generation=batch.generation,
        term=term,
    )


def losses_entry(term: str, table: str, lost: RecordLosses) -> ConflictsLost:
    """The ledger entry of a writer's conflicts lost in a row."""
    return ConflictsLost(
        event_id=fresh_id(),
        table=table,
        transaction=lost.transaction,
        writer=lost.writer,
        at=utc_now(),
        losses=lost.losses,
        lost_on=lost.lost_on,
        term=term,
    )


def lock_event(
    agent: str,
    table: str,
    lock: str,
    step: lease.Confirmed | lease.Released | lease.LeaseEnded | lease.LockDenied,
) -> AuditEventUnion:
    """The audit event of a lock's step, with the number of requests and the time that it took."""
    common = {
        "event_id": fresh_id(),
        "table": table,
        "at": utc_now(),
        "agent": agent,
        "lock": lock,
        "requests": step.cost.requests,
        "duration_ms": round(max(0.0, monotonic() - step.cost.since) * 1000, 3),
    }
    match step:
        case lease.Confirmed(what="acquired", lease=held):
            former = held.former
            return LockAcquired.model_validate(
                common
                | {
                    "owner": held.record.owner,
                    "valid_until": held.record.valid_until,
                    "adopted": None if former is None else former.owner,
                    "fenced": former is not None and former.fenced,
                }
            )
        case lease.Confirmed(lease=held):
            return LockRenewed.model_validate(
                common | {"owner": held.record.owner, "valid_until": held.record.valid_until}
            )
        case lease.Released(owner=owner, valid_until=valid_until, why=why):
            return LockReleased.model_validate(
                common | {"owner": owner, "valid_until": valid_until, "detail": _cut(why)}
            )
        case lease.LeaseEnded(owner=owner, valid_until=valid_until, why=why, holder=holder):
            return LockLost.model_validate(
                common
                | {
                    "owner": owner,
                    "valid_until": valid_until,
                    "detail": _cut(why),
                    "holder": _cut(holder),
                }
            )
        case lease.LockDenied(why=why, kind=kind, holder=holder, held_until=held_until):
            return LockRefused.model_validate(
                common
                | {
                    "owner": "",
                    "valid_until": held_until or 0,
                    "detail": _cut(why),
                    "holder": _cut(holder),
                    "waiting": kind == "waiting",
                }
            )
        case _:
            assert_never(step)
