"""The context of one step: the state, the time, the cause, and the effects so far."""

from dataclasses import dataclass, field

from lakewarden import events
from lakewarden.handlers.table.effects import Effect
from lakewarden.handlers.table.facts import apply_decision
from lakewarden.handlers.table.state import TableState
from lakewarden.handlers.table.transactions import Transaction

FORGOTTEN = "the agent no longer tracks this observed transaction; conflicts with it are not detected: "
"""Begins the detail of an abort of an observed transaction. Its writer goes on."""


class DecisionFields(events.Stamp):
    """The fields that all decisions have."""

    table: str
    transaction: str
    writer: str
    agent: str
    cause: str | None
    cause_offset: int


@dataclass(slots=True)
class StepContext:
    """Collects the effects of one step. Each decision is applied to the state at once, so the next one sees it."""

    state: TableState
    now: float
    """Monotonic seconds."""
    read_at: float
    """When Kafka returned the event that is being processed, in monotonic seconds."""
    cause: str | None
    """`event_id` of the event that is being decided. None for the periodic check and for changes of the lock."""
    offset: int
    """Offset in `writers` up to which the agent had read."""
    effects: list[Effect] = field(default_factory=list)

    def about(self, transaction: str, writer: str, cause: str | None) -> DecisionFields:
        """The common fields of a decision about a transaction, which follows from the event `cause`."""
        return {
            **events.UNSTAMPED,
            "table": self.state.uri,
            "transaction": transaction,
            "writer": writer,
            "agent": "",
            "cause": cause,
            "cause_offset": self.offset,
        }

    def decide(self, decision: events.DecisionEventUnion) -> None:
        """Publish a decision and apply it to the state."""
        apply_decision(self.state, decision, self.now)
        self.effects.append(decision)

    def abort(
        self,
        transaction: Transaction,
        reason: events.AbortReason,
        *,
        retriable: bool = True,
        conflicts: tuple[events.ConflictEntry, ...] = (),
        detail: str | None = None,
        cause: str | None = None,
    ) -> None:
        """Abort a transaction. After a conflict, the abort carries how many its writer has lost in a row.

        `cause`: the event that it follows from, if that is not the one that is being decided.

        Of an observed transaction, it is for the log only: its outcome is unknown from now on, or the agent forgets it.
        """
        if transaction.observed and reason != "outcome-unknown":
            detail = FORGOTTEN + (detail or reason)
        losses = self.state.losses.get(transaction.writer, 0) + 1 if reason == "conflict" else None
        self.decide(
            events.Abort.model_construct(
                **self.about(transaction.id, transaction.writer, cause or self.cause),
                reason=reason,
                retriable=retriable,
                conflicts=conflicts,
                detail=detail,
                losses=losses,
            )
        )

    def renew(self, transaction: Transaction, lease_seconds: float, seq: int, lock_owner: str) -> None:
        """Extend the running grant of a transaction, or name the lock owner that covers it."""
        assert transaction.grant is not None
        self.decide(
            events.GrantRenewed.model_construct(
                **self.about(transaction.id, transaction.writer, self.cause),
                grant=transaction.grant.id,
                lease_seconds=lease_seconds,
                seq=seq,
                lock_owner=lock_owner,
            )
        )
