"""What the agent knows about one table.

This module holds data only. `facts.py` applies events and decisions to it, `grants.py` the state of the lock, and `machine.py`
decides when.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

from lakewarden.events import Marker
from lakewarden.handlers.table.footprints import Footprints
from lakewarden.handlers.table.ledger import CommittedBatches
from lakewarden.handlers.table.transactions import (
    ADMITTED,
    LANDED,
    NEVER_FREED,
    OPEN,
    STOPPABLE,
    Closed,
    Freed,
    Phase,
    Transaction,
)

MAX_CLOSED = 1_000
"""Ended transactions kept per table. Late events arrive within seconds; the log has all others."""
MAX_KEPT_EVIDENCE = 3
"""Conflict entries kept of an ended transaction. Its abort in the log has all of them, and an entry may have several KB."""
LATE_COMPLETION_SECONDS = 600.0
"""After a lapse, how long a replay still finds the grant. A live writer reads its table and reports within seconds."""
MAX_LOST_ON = 100
"""Partitions kept per losing writer. Conflicts in more partitions are rare."""
MAX_LOST_ON_CHARACTERS = 100_000
"""Total length of their names. They fit into one record of 1 MB, even if each character takes six bytes in JSON."""


@dataclass(frozen=True, slots=True)
class TableSettings:
    """How the agent coordinates a table. Durations are in seconds."""

    early_detection: bool = True
    """Off: plain optimistic concurrency control. Conflicts are found when a transaction is about to be granted."""
    policy: Literal["first-intent", "first-committer"] = "first-intent"
    hold: Literal["while-active", "per-commit"] = "while-active"
    grant_lease: float = 20.0
    max_grant: float = 600.0
    """A grant as old as this is not extended any more."""
    max_transaction: float = 0.0
    """A transaction that has been open for longer, and is not granted, is aborted. 0: no limit."""
    heartbeat_misses: int = 3
    max_losses: int = 3
    max_priority: int = 0
    """The highest priority that an intent may have."""
    max_open: int = 1_000
    """Open transactions per table. Each sweep visits all of them."""
    max_markers: int = 2_000_000
    """Markers per transaction, about 200 bytes each."""
    entries_per_check: int = 4_000
    """Index entries per periodic invariant check, which takes about 1 ms. The next check continues where this one ended."""


@dataclass(frozen=True, slots=True)
class LockView:
    """The part of the lock's state on which grants depend. Times are monotonic seconds."""

    owner: str
    expires_at: float
    """End of the lock lease, with the drift subtracted."""
    quiet_until: float
    """After an adoption: no new grant, and no extension of one, before this time."""


@dataclass(frozen=True, slots=True)
class Lapsed:
    """A lapsed transaction whose writer may still report, or an observed one whose watcher may."""

    sequence: int
    until: float
    """Until when the checkpoint holds its intent, in monotonic seconds."""
    observed: bool


@dataclass(frozen=True, slots=True)
class UnknownRequest:
    """A `commit-requested` of a transaction that the state doesn't have, read in a replay and not answered in the log."""

    writer: str
    event_id: str


@dataclass(slots=True)
class TableState:
    """One table: its transactions, their footprints, the last batch of each writer, and the lock."""

    uri: str
    settings: TableSettings
    term: str = ""
    """That of the ownership which decides here. Empty: this state only follows the log."""
    transactions: dict[str, Transaction] = field(default_factory=dict)
    """Open transactions, and landed ones that an open one may still conflict with. In the order of the log."""
    in_phase: dict[Phase, dict[str, Transaction]] = field(
        default_factory=lambda: {each: {} for each in (*OPEN, *LANDED)}
    )
    """The same by phase, in the order in which they got there."""
    of_writer: dict[str, dict[str, Transaction]] = field(default_factory=dict)
    """The same by writer."""
    closed: dict[str, Closed] = field(default_factory=dict)
    lapsed: dict[str, Lapsed] = field(default_factory=dict)
    """The last `MAX_CLOSED` transactions without a report, in the order of their ends."""
    footprints: Footprints = field(default_factory=Footprints)
    ledger: CommittedBatches = field(default_factory=CommittedBatches)
    unrecorded_batches: set[str] = field(default_factory=set)
    """Writers whose last batch is not yet recorded in the ledger topic."""
    losses: dict[str, int] = field(default_factory=dict)
    """Conflicts that each writer has lost in a row."""
    lost_on: dict[str, tuple[Marker, ...]] = field(default_factory=dict)
    """The partitions that the losing transactions of each such writer touched, the latest transaction's first."""
    unrecorded_losses: dict[str, str] = field(default_factory=dict)
    """Writers whose losses are not yet recorded in the ledger topic, each with its last losing transaction (empty: none)."""
    instants: dict[str, str] = field(default_factory=dict)
    """By instant, the transaction of the gate that announced it, for the last `MAX_CLOSED` instants."""
    grant_ended: Freed = NEVER_FREED
    """The last transaction that was granted and has ended."""
    moment: int = 0
    """Number of facts applied so far: the logical clock of `Transaction.began` and `ended`."""
    lock_location: str | None = None
    """URI of the table's lock object. None: the agent has not found it out yet (`lease/placement.py`)."""
    lock: LockView | None = None
    lock_requested: bool = False
    lock_used: bool = False
    """Whether a grant has been decided under the current lock lease."""
    unknown_requests: dict[str, UnknownRequest] = field(default_factory=dict)
    """By transaction, in the order of the log; only during a replay. The first `MAX_CLOSED` without an answer (`replay.py`)."""
    unseen_grant: bool = False
    """The log is incomplete, so a grant may run that this state doesn't have (`machine.py`)."""
    without_index: bool = False
    """During a replay: the index was dropped for want of memory (`memory.py`)."""
    recheck: set[str] | None = None
    """The queued transactions that something may have unblocked since the last admissions. None: all of them."""
    waiters: dict[str, set[str]] = field(default_factory=dict)
    """By transaction, those that wait for a change of it, for their admission or for their turn."""
    changed: bool = True
    """Whether something has changed from which decisions may follow, since they were last made."""
    next_entry_to_check: int = 0
    """Where the next invariant check continues."""

    def open(self) -> list[Transaction]:
        """The open transactions, oldest first."""
        return [each for each in self.transactions.values() if each.phase in OPEN]

    def stoppable(self) -> list[Transaction]:
        """The open transactions whose writers can be asked to stop: not a granted one, and none that a watcher reports."""
        return [each for each in self.open() if each.phase is Phase.QUEUED or each.phase in STOPPABLE]

    def count_open(self) -> int:
        return sum(len(self.in_phase[each]) for each in OPEN)

    def admitted(self) -> Iterator[Transaction]:
        return chain.from_iterable(self.in_phase[each].values() for each in ADMITTED)

    def landed(self) -> list[Transaction]:
        """The landed transactions that an open one may still conflict with."""
        return [*self.in_phase[Phase.COMMITTED].values(), *self.in_phase[Phase.UNKNOWN].values()]

    def running(self) -> Transaction | None:
        return next(iter(self.in_phase[Phase.GRANTED].values()), None)

    def enter(self, transaction: Transaction, phase: Phase) -> None:
        self.in_phase[transaction.phase].pop(transaction.id, None)
        transaction.phase = phase
        self.transactions[transaction.id] = self.in_phase[phase][transaction.id] = transaction
        self.of_writer.setdefault(transaction.writer, {})[transaction.id] = transaction

    def remove(self, transaction: Transaction) -> None:
        del self.transactions[transaction.id], self.in_phase[transaction.phase][transaction.id]
        others = self.of_writer[transaction.writer]
        del others[transaction.id]
        if not others:
            del self.of_writer[transaction.writer]

    def has_lost_enough(self, writer: str) -> bool:
        """Whether the writer has lost `max_losses` conflicts in a row and wins the next one."""
        return self.losses.get(writer, 0) >= self.settings.max_losses

    def is_protected(self, transaction: Transaction) -> bool:
        """Whether its writer has lost `max_losses` conflicts in a row, or it was overtaken as often in the admission queue."""
        return transaction.aged >= 0 or self.has_lost_enough(transaction.writer)

    def note_change(self, transaction: str) -> None:
        """Note that this transaction has begun, ended, or got another phase: others may wait for that."""
        self.changed = True
        waiters = self.waiters.pop(transaction, set())
        for each in waiters:
            if (waiter := self.transactions.get(each)) is not None:
                if waiter.blocker == transaction:
                    waiter.freed = Freed(self.moment, transaction)
                waiter.blocker = None
        if self.recheck is not None:
            self.recheck.add(transaction)
            self.recheck |= waiters

    def wait_for(self, waiter: Transaction, other: str) -> None:
        """Register a waiting transaction with one whose change may end its wait."""
        waiter.blocker, waiter.freed = other, NEVER_FREED
        self.waiters.setdefault(other, set()).add(waiter.id)

    def note_writer(self, writer: str) -> None:
        """Note that the losses or the last batch of a writer have changed, and with them the place of its queued transactions."""
        self.changed = True
        for each in self.of_writer.get(writer, ()):
            self.note_change(each)

    def recheck_all(self) -> None:
        """Note that any queued transaction may be unblocked."""
        self.changed, self.recheck = True, None
        self.waiters.clear()
        for each in self.transactions.values():
            each.blocker = None

    def idle(self) -> bool:
        """Whether nothing happens to this table until a writer's event arrives."""
        return not self.transactions and not self.lock_requested

    def settled(self) -> bool:
        """Whether a periodic check of this table would do nothing: it is idle, and nothing is left to record or to drop."""
        unrecorded = self.unrecorded_batches or self.unrecorded_losses
        return self.idle() and not unrecorded and not self.footprints.garbage

    def oldest_needed(self, now: float) -> int | None:
        """Offset of the oldest intent that a replay needs.

        Intents of open transactions are needed, of landed ones that still matter, and of those in `lapsed`.
        """
        needed = [each.sequence for each in self.transactions.values()]
        needed += [each.sequence for each in self.lapsed.values() if each.until >= now]
        return min(needed, default=None)
