"""A transaction and its phases.

               commit-intent      admitted         commit-requested       commit-granted
    (unknown) ─────────────▶ QUEUED ──────▶ ACTIVE ───────────────▶ WAITING ───────────▶ GRANTED ─▶ COMMITTED
                                │             │                        │                    │ the grant lease expires
                                └─────────────┴─────── ABORTED ◀───────┘                    ▼ without a report
                                                                                         UNKNOWN

- Transactions are ordered by the log: `sequence` is the offset of the intent.
- `began` and `ended` are *moments*: the number of facts (events and decisions) that the table had applied by then. A replay
  applies the same facts in the same order, so it yields the same moments.
- A transaction begins when it is admitted, because its writer reads its base version only then. Everything that landed before
  is part of that base.
- Two committed transactions overlapped in time exactly if `other.ended > mine.began`.

What each phase means, and where the state has the transaction (`TableState.in_phase`, in the order in which they got there):

QUEUED
    The agent has read the intent and not answered it. Its scope is in the index, and counts only against later intents
    (`detection.py`). `waiters` has it under the transaction that it waits for. Its end is an admission, a skip or an abort.
ACTIVE
    Admitted: the writer computes. Its markers are in the index and conflict with those of others. `began` is its admission.
WAITING
    Its writer has requested the grant (`requested`). It is in the grant queue; `blocker` names the one for whose end it waits.
GRANTED
    Its writer may publish until `grant.deadline`. At most one transaction of a table is granted (`TableState.running`). It is
    never aborted for a conflict. Two things can befall it, and it stays granted, because its writer may be publishing:

    - The grant is *revoked* (`Grant.revoked`): the lock lease is lost, an operator or a newer transaction of its writer ends it.
      The agent extends it no more and grants no other until its writer reports the outcome or the deadline has passed.
    - It is *without index* (`Transaction.without_index`): its footprint was dropped for want of memory. No transaction is
      admitted while it runs, so none can miss a conflict with it.
COMMITTED
    Its writer reported the commit. It stays in the state and the index while an open transaction began before it `ended`.
UNKNOWN
    Its grant expired without a report, so it may have committed, and counts as if it had. `TableState.lapsed` holds its intent
    for `LATE_COMPLETION_SECONDS`: a report that comes later makes it COMMITTED.
ABORTED
    It has ended and nothing was committed. Only `TableState.closed` has it, as it has the others once nothing depends on them.

A transaction that a watcher reports (`Transaction.observed`) has a phase of its own while it is open (docs/decisions/0033):

    (unknown) ── commit-intent ──▶ OBSERVED ── commit-completed ──▶ COMMITTED
                                     │ └──── silent for too long ──▶ UNKNOWN ── commit-completed ──▶ COMMITTED
                                     └── abandoned, or the agent forgets it ──▶ ABORTED

OBSERVED
    Its writer knows nothing of lakewarden, and can't be asked to stop. Its markers conflict with those of others, and it wins
    every conflict. It is never queued or granted.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from enum import Enum
from operator import itemgetter
from typing import NamedTuple

from lakewarden.events import (
    DEFAULT_HEARTBEAT_SECONDS,
    WHOLE_TABLE,
    Admission,
    Admitted,
    ConflictEntry,
    ConflictRule,
    Operation,
)

MAX_SEARCHED = 2_000
"""File groups of a partition, the last ones, among which an abort looks for those that it names: 20 µs for each."""


class Phase(Enum):
    """The phase of a transaction."""

    QUEUED = "queued"
    ACTIVE = "active"
    WAITING = "waiting"
    GRANTED = "granted"
    OBSERVED = "observed"
    COMMITTED = "committed"
    UNKNOWN = "unknown"
    ABORTED = "aborted"

    __hash__ = object.__hash__
    """Hash by identity, which matches equality. Enum's own hash in Python 3.11 is Python code, run at each `phase in OPEN`."""


STOPPABLE = frozenset({Phase.ACTIVE, Phase.WAITING})
"""Admitted, and the agent can still stop it."""
ADMITTED = STOPPABLE | {Phase.GRANTED}
"""Admitted and not ended."""
COMPUTING = ADMITTED | {Phase.OBSERVED}
"""Begun and not ended: its markers conflict with those of others."""
OPEN = COMPUTING | {Phase.QUEUED}
"""Not ended."""
LANDED = frozenset({Phase.COMMITTED, Phase.UNKNOWN})
"""In the table, or possibly so: its markers conflict with those of every transaction that began before."""


class TouchKind(NamedTuple):
    """On what it depends which operations conflict with a touch."""

    rule: ConflictRule
    observed: bool
    operation: Operation
    priority: int


@dataclass(frozen=True, slots=True, eq=False)
class Touch:
    """One transaction's operation on a file group.

    All markers of a transaction with the same operation share one `Touch`, so a marker costs no object.
    """

    transaction: Transaction
    operation: Operation

    @property
    def kind(self) -> TouchKind:
        mine = self.transaction
        return TouchKind(mine.conflict_rule, mine.observed, self.operation, mine.priority)


@dataclass(slots=True)
class Grant:
    """A running grant."""

    id: str
    since: float
    """When it was applied, in the agent's monotonic time."""
    deadline: float
    """When it expires, in the agent's monotonic time. Never earlier than the writer's own deadline."""
    lock_owner: str | None
    seq: int
    """The writer counts the grant lease from when it sent this `seq`."""
    revoked: bool = False
    moment: int = 0
    """When it was applied, in the table's moments."""


class Freed(NamedTuple):
    """A transaction whose end, or another change of it, ended a wait of others."""

    moment: int
    by: str


NEVER_FREED = Freed(-1, "")


@dataclass(frozen=True, slots=True)
class AbortRequest:
    """An operator's request to end a transaction."""

    event_id: str
    operator: str
    reason: str


@dataclass(slots=True, eq=False)
class Transaction:
    """One attempt of a writer to commit a batch."""

    id: str
    writer: str
    sequence: int
    intent_id: str
    began: int
    opened_at: float
    """When the intent was applied, in monotonic seconds."""
    last_event_at: float
    """When the last event of this transaction was applied, in monotonic seconds."""
    batch_id: int | None = None
    priority: int = 0
    admission: Admission = "optimistic"
    conflict_rule: ConflictRule = "file-group"
    heartbeat_seconds: float = DEFAULT_HEARTBEAT_SECONDS
    lock: str | None = None
    """Where the intent believes the table's lock to be."""
    phase: Phase = Phase.QUEUED
    ended: int = -1
    seq: int = 0
    requested: int = -1
    """Moment of the first `commit-requested`: its place in the grant queue. -1: none yet."""
    requested_id: str | None = None
    grant: Grant | None = None
    granted: str | None = None
    """Id of its grant, kept after the grant's end: a completion counts only if it names it."""
    abort_request: AbortRequest | None = None
    """The first request of an operator to end it, if there was one while it was open."""
    footprint: dict[str, list[str]] = field(default_factory=dict)
    """File groups by partition, each once, in the order of their first markers."""
    offsets: dict[str, list[tuple[int, int | None]]] = field(default_factory=dict)
    """The events that brought them, by partition: the place of its first one among the file groups, and the event's offset."""
    markers: int = 0
    bytes: int = 0
    """Estimated bytes of its markers (`memory.py`)."""
    without_index: bool = False
    """It is granted, and its footprint was dropped for want of memory (`memory.py`)."""
    touches: dict[Operation, tuple[Touch]] = field(default_factory=dict)
    observed: bool = False
    """A watcher reported it, also if it has ended."""
    overtaken: int = 0
    """While it was queued: how many transactions with a later intent have computed on its scope and ended (`admission.py`)."""
    aged: int = -1
    """Moment since which it is protected, because it was overtaken `max_losses` times. -1: it isn't."""
    blocker: str | None = None
    """While it waits: a transaction for whose end it waits. None: it has its turn, or no step has looked since a change."""
    freed: Freed = NEVER_FREED
    """The change that ended its last wait for another one."""
    turn: int | None = None
    """For an `ordered` transaction: its place among those that were open at its admission (`conflicts.py`)."""
    reported: set[str] = field(default_factory=set)
    """For an observed one: the other observed transactions whose conflict with it was reported."""

    def admit(self, decision: Admitted, moment: int) -> None:
        self.began, self.turn, self.blocker = moment, decision.turn, None

    def touched_at(self, partition: str, file_group: str) -> int | None:
        """Offset of the event with which it touched a file group first. None: an admission did, or it is not one of the last."""
        for name in (partition, WHOLE_TABLE):
            touched = self.footprint.get(name, [])
            last = max(0, len(touched) - MAX_SEARCHED)
            if file_group in touched[last:]:
                events = self.offsets[name]
                return events[bisect_right(events, touched.index(file_group, last), key=itemgetter(0)) - 1][1]
        return None

    def touch(self, operation: Operation) -> tuple[Touch]:
        """The shared touch of an operation, as the one-element tuple that the index stores."""
        found = self.touches.get(operation)
        if found is None:
            found = self.touches[operation] = (Touch(self, operation),)
        return found


@dataclass(frozen=True, slots=True)
class Closed:
    """How a transaction ended. A late event gets the same answer from it."""

    phase: Phase
    writer: str
    batch_id: int | None
    reason: str | None = None
    retriable: bool = False
    conflicts: tuple[ConflictEntry, ...] = ()
    detail: str | None = None
    granted: str | None = None
    """Id of its grant, if it had one. A late completion that names it still counts, once."""
    reported: bool = False
    """A completion has counted after its end. A repeated one changes nothing: an operator may have corrected the ledger since."""
    observed: bool = False
    """A watcher reported it. A late completion of it still counts, whatever the agent decided about it."""
    intent_id: str | None = None
    """`event_id` of its intent, as far as the state has it."""
    duplicate_of: str | None = None
    """For an instant that a watcher reported: the transaction of the gate that has it. Nothing about the instant counts."""


def observed_instant(transaction: str) -> str:
    """The instant in the id of an observed transaction, `<format>:<instant>`."""
    return transaction.partition(":")[2]
