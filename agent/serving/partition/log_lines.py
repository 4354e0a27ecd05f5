"""The agent's log lines about what it decides. Locks have theirs in `agent/locks/table_locks.py`."""

from __future__ import annotations

import structlog

from lakewarden.handlers.table import verdicts
from lakewarden.handlers.table.machine import EventRead, Input

log = structlog.get_logger()


def summary(step_input: Input) -> str:
    """One input, for the log line of a stopped table."""
    if isinstance(step_input, EventRead):
        event = step_input.event
        return f"{step_input.offset} {event.type} {event.transaction} of {event.writer}"
    return f"{step_input.offset} {type(step_input).__name__}"


def effect_name(effect: verdicts.Effect) -> str:
    """One effect that is not published, for the log line of a stopped table."""
    return f"{type(effect).__name__} {getattr(effect, 'transaction', '')}".strip()


def log_effect(uri: str, effect: verdicts.Effect) -> None:
    """Log what was decided, if operators may want to read it."""
    match effect:
        case (
            verdicts.AcquireLock() | verdicts.ReleaseLock() | verdicts.RecordBatch() | verdicts.RecordLosses()
        ):
            pass
        case verdicts.ReportConflict():
            log.info(
                "conflict.detected",
                table=uri,
                victim=effect.victim_writer,
                winner=effect.winner_writer,
                kind=effect.kind,
                overlaps=len(effect.conflicts),
                victim_age_seconds=round(effect.victim_age_seconds, 3),
            )
        case verdicts.Warn(event=event, transaction=transaction, writer=writer, detail=detail):
            log.warning(event, table=uri, transaction=transaction, writer=writer, detail=detail)
        case _:
            _log_verdict(uri, effect)


def _log_verdict(uri: str, verdict: verdicts.Verdict) -> None:
    fields = {"table": uri, "writer": verdict.writer, "transaction": verdict.transaction}
    match verdict:
        case verdicts.Admit(reserved=reserved):
            log.debug("transaction.admitted", **fields, reserved=len(reserved))
        case verdicts.AbortTransaction(detail=str(detail), reason=reason) if detail.startswith(
            verdicts.FORGOTTEN
        ):
            log.warning("observed.forgotten", **fields, reason=reason, detail=detail)
        case verdicts.AbortTransaction(reason=reason, retriable=retriable, detail=detail):
            log.info("transaction.aborted", **fields, reason=reason, retriable=retriable, detail=detail)
        case verdicts.GrantCommit(grant=grant, lease_seconds=lease_seconds):
            log.info("commit.granted", **fields, grant=grant, lease_seconds=round(lease_seconds, 3))
        case verdicts.RenewGrant():
            log.debug("grant.renewed", **fields)
        case verdicts.SkipBatch():
            log.warning(
                "batch.already-committed",
                **fields,
                batch_id=verdict.batch_id,
                committed_batch_id=verdict.committed_batch_id,
                committed_transaction=verdict.committed_transaction,
                detail="the writer skips this batch; lakewarden ledger show prints what the answer relies on",
            )
