"""The context of one step: the state, the time, the cause, and the effects so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from lakewarden.events import AbortReason, ConflictEntry
from lakewarden.handlers.table.facts import apply_verdict
from lakewarden.handlers.table.state import TableState
from lakewarden.handlers.table.transactions import Transaction
from lakewarden.handlers.table.verdicts import FORGOTTEN, AbortTransaction, Cause, Effect, Verdict


@dataclass(slots=True)
class StepContext:
    """Collects the effects of one step. Each verdict is applied to the state at once, so the next decision sees it."""

    state: TableState
    now: float
    """Monotonic seconds."""
    read_at: float
    """When Kafka returned the event that is being processed, in monotonic seconds."""
    cause: Cause
    effects: list[Effect] = field(default_factory=list)

    def decide(self, verdict: Verdict) -> None:
        """Publish a verdict and apply it to the state."""
        apply_verdict(self.state, verdict, self.now)
        self.effects.append(verdict)

    def emit(self, effects: Iterable[Effect]) -> None:
        """Add effects that are not verdicts."""
        self.effects.extend(effects)

    def abort(
        self,
        transaction: Transaction,
        reason: AbortReason,
        *,
        retriable: bool = True,
        conflicts: tuple[ConflictEntry, ...] = (),
        detail: str | None = None,
    ) -> None:
        """Abort a transaction. After a conflict, the verdict carries how many its writer has lost in a row.

        Of an observed transaction, it is for the log only: its outcome is unknown from now on, or the agent forgets it.
        """
        if transaction.observed and reason != "outcome-unknown":
            detail = FORGOTTEN + (detail or reason)
        losses = self.state.losses.get(transaction.writer, 0) + 1 if reason == "conflict" else None
        self.decide(
            AbortTransaction(
                transaction.id, transaction.writer, self.cause, reason, retriable, conflicts, detail, losses
            )
        )
