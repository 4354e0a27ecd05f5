"""One step's decisions: each is applied to the state as it is made, so that the next one sees it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from lakewarden.events import AbortReason, ConflictEntry
from lakewarden.handlers.table.facts import apply_verdict
from lakewarden.handlers.table.state import TableState
from lakewarden.handlers.table.transactions import Transaction
from lakewarden.handlers.table.verdicts import AbortTransaction, Cause, Effect, Verdict


@dataclass(slots=True)
class StepContext:
    """The state, the time, what led here, and what has been decided so far."""

    state: TableState
    now: float
    """Monotonic seconds."""
    read_at: float
    """When the event that is being decided upon was read; monotonic."""
    cause: Cause
    effects: list[Effect] = field(default_factory=list)

    def decide(self, verdict: Verdict) -> None:
        """Publish, and count as a fact from here on."""
        apply_verdict(self.state, verdict, self.now)
        self.effects.append(verdict)

    def emit(self, effects: Iterable[Effect]) -> None:
        """Ask the shell for something that is no verdict."""
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
        """Abort, with the reason and all the evidence."""
        losses = self.state.losses.get(transaction.writer, 0) + 1 if reason == "conflict" else None
        self.decide(
            AbortTransaction(
                transaction.id, transaction.writer, self.cause, reason, retriable, conflicts, detail, losses
            )
        )
