"""The agent's log lines about what it decides. Locks have theirs in `agent/locks/table_locks.py`."""

import structlog

from lakewarden.events import (
    Abort,
    Admitted,
    AlreadyCommitted,
    CommitGranted,
    ConflictDetected,
    DecisionEventUnion,
    GrantRenewed,
)
from lakewarden.handlers.table.effects import Effect, Warn
from lakewarden.handlers.table.machine import EventRead, Input
from lakewarden.handlers.table.state import TableState
from lakewarden.handlers.table.transactions import Phase

log = structlog.get_logger()


def summary(step_input: Input) -> str:
    """One input, for the log line of a stopped table."""
    if isinstance(step_input, EventRead):
        event = step_input.event
        return f"{step_input.offset} {event.type} {event.transaction} of {event.writer}"
    return f"{step_input.offset} {type(step_input).__name__}"


def effect_name(effect: Effect) -> str:
    """One effect that is not published, for the log line of a stopped table."""
    return f"{type(effect).__name__} {getattr(effect, 'transaction', '')}".strip()


def log_effect(state: TableState, effect: Effect) -> None:
    """Log what was decided, if operators may want to read it. `state`: that of its table, after the step."""
    match effect:
        case ConflictDetected():
            log.info(
                "conflict.detected",
                table=state.uri,
                victim=effect.victim_writer,
                winner=effect.winner_writer,
                kind=effect.kind,
                overlaps=len(effect.conflicts),
                victim_age_seconds=effect.victim_age_seconds,
            )
        case Warn(event=event, transaction=transaction, writer=writer, detail=detail):
            log.warning(event, table=state.uri, transaction=transaction, writer=writer, detail=detail)
        case Admitted() | Abort() | CommitGranted() | GrantRenewed() | AlreadyCommitted():
            _log_decision(state, effect)
        case _:
            pass


def _log_decision(state: TableState, decision: DecisionEventUnion) -> None:
    fields = {"table": state.uri, "writer": decision.writer, "transaction": decision.transaction}
    match decision:
        case Admitted(reserved=reserved):
            log.debug("transaction.admitted", **fields, reserved=len(reserved))
        case Abort(reason=reason, retriable=retriable, detail=detail):
            ended = state.closed.get(decision.transaction)
            if ended is not None and ended.observed and ended.phase is Phase.ABORTED:
                log.warning("observed.forgotten", **fields, reason=reason, detail=detail)
            else:
                log.info("transaction.aborted", **fields, reason=reason, retriable=retriable, detail=detail)
        case CommitGranted(grant=grant, lease_seconds=lease_seconds):
            log.info("commit.granted", **fields, grant=grant, lease_seconds=round(lease_seconds, 3))
        case GrantRenewed():
            log.debug("grant.renewed", **fields)
        case AlreadyCommitted():
            log.warning(
                "batch.already-committed",
                **fields,
                batch_id=decision.batch_id,
                committed_batch_id=decision.committed_batch_id,
                committed_transaction=decision.committed_transaction,
                detail="the writer skips this batch; lakewarden ledger show prints what the answer relies on",
            )
