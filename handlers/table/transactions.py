"""A transaction and its phases.

               commit-intent      admitted         commit-requested       commit-granted
    (unknown) ─────────────▶ QUEUED ──────▶ ACTIVE ───────────────▶ WAITING ───────────▶ GRANTED ─▶ COMMITTED
                                │             │                        │                    │ its lease ran out
                                └─────────────┴─────── ABORTED ◀───────┘                    ▼ unheard
                                                                                         UNKNOWN

- Order is the log's: `sequence` is the offset of the intent.
- `began` and `ended` are *moments*: the table's own count of the facts it has taken (events and verdicts alike),
  the same after a replay because the facts and their order are the same. A transaction began when it was
  admitted, for its writer reads its base only then: what had landed before is in that base.
- Two committed transactions overlap in time exactly if `other.ended > mine.began`.
- `revoked`: its grant was taken back (lease lost, superseded), but its writer may be in the middle of its
  publish. It still counts as granted until it is heard of or its lease has run out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from lakewarden.events import AbortReason, Admission, ConflictEntry, ConflictRule, Operation


class Phase(Enum):
    """Where a transaction stands."""

    QUEUED = "queued"
    ACTIVE = "active"
    WAITING = "waiting"
    GRANTED = "granted"
    COMMITTED = "committed"
    UNKNOWN = "unknown"
    ABORTED = "aborted"

    __hash__ = object.__hash__
    """By identity, which is what equality is: Python 3.11's hashes the name, in Python, at each `phase in OPEN`."""


COMPUTING = frozenset({Phase.ACTIVE, Phase.WAITING, Phase.GRANTED})
"""Admitted and not ended: what it touches counts against others."""
OPEN = frozenset({Phase.QUEUED, Phase.ACTIVE, Phase.WAITING, Phase.GRANTED})
"""Not ended."""
LANDED = frozenset({Phase.COMMITTED, Phase.UNKNOWN})
"""In the table, or perhaps: what it touched counts against all who began before."""


@dataclass(frozen=True, slots=True, eq=False)
class Touch:
    """One transaction's use of a file group. Shared by all its markers of the operation: a marker costs no object."""

    transaction: Transaction
    operation: Operation


@dataclass(slots=True)
class Grant:
    """A running grant as the agent counts it."""

    id: str
    deadline: float
    """Monotonic; never before the writer's own."""
    lock_owner: str | None
    seq: int
    """The writer's count from which its lease runs."""
    revoked: bool = False


@dataclass(slots=True, eq=False)
class Transaction:
    """What is known of one attempt to commit."""

    id: str
    writer: str
    sequence: int
    intent_id: str
    batch_id: int | None
    priority: int
    admission: Admission
    conflict_rule: ConflictRule
    heartbeat_seconds: float
    began: int
    opened_at: float
    """When the intent was read; monotonic."""
    last_event_at: float
    """When the writer's last event was read; monotonic."""
    phase: Phase = Phase.QUEUED
    ended: int = -1
    seq: int = 0
    requested: int = -1
    """Moment of the first `commit-requested`: the place in the line for the grant."""
    requested_id: str | None = None
    grant: Grant | None = None
    footprint: dict[str, list[str]] = field(default_factory=dict)
    """File groups by partition, each once, in the order in which they were touched."""
    markers: int = 0
    touches: dict[Operation, tuple[Touch]] = field(default_factory=dict)

    def touch(self, operation: Operation) -> tuple[Touch]:
        """This transaction's shared touch, in the form that the index stores."""
        found = self.touches.get(operation)
        if found is None:
            found = self.touches[operation] = (Touch(self, operation),)
        return found


@dataclass(frozen=True, slots=True)
class Closed:
    """What is remembered of a transaction that ended, so that a late event finds the same answer."""

    phase: Phase
    writer: str
    batch_id: int | None
    reason: AbortReason | None = None
    retriable: bool = False
    conflicts: tuple[ConflictEntry, ...] = ()
    detail: str | None = None
