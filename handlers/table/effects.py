"""The effects of a step.

- A *decision* is published. It is the event of `lakewarden.events` without the agent's stamp: id, time, agent and term. The core
  applies it to its state when it decides, and again, by the same code, when it reads it back from the log. Therefore a restart
  doesn't change the state.
- `conflict-detected` and the entries of the ledger are published, too.
- The other effects are requests to the shell. They change no state.

Events are built with `model_construct`, so no limit of their models can stop a table.
"""

from dataclasses import dataclass
from typing import TypeAlias

from lakewarden.events import ConflictDetected, DecisionEventUnion, LedgerEventUnion


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


Effect: TypeAlias = (
    DecisionEventUnion | ConflictDetected | LedgerEventUnion | AcquireLock | ReleaseLock | Warn
)
