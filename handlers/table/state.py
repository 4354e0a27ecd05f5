"""What the agent knows of one table. Data only: `facts.py` alone changes it, `table.py` decides when."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lakewarden.events import Marker
from lakewarden.handlers.table.footprints import Footprints
from lakewarden.handlers.table.transactions import LANDED, OPEN, Closed, Phase, Transaction

MAX_CLOSED = 1_000
"""Ended transactions remembered a table: late events come within seconds, and the log has the rest."""
MAX_LOST_ON = 100
"""Partitions remembered of a writer that loses: more are rarely contended for."""
MAX_LOST_ON_CHARACTERS = 100_000
"""Of their names: they travel in one record of less than 1 MB, even where each character takes six bytes in JSON."""


@dataclass(frozen=True, slots=True)
class TableSettings:
    """How a table is coordinated. Durations in seconds."""

    early_detection: bool = True
    """Off: plain optimistic control, judged when the commit is requested."""
    policy: Literal["first-intent", "first-committer"] = "first-intent"
    hold: Literal["while-active", "per-commit"] = "while-active"
    grant_lease: float = 20.0
    heartbeat_misses: int = 3
    max_losses: int = 3
    max_open: int = 1_000
    """Open transactions a table: each costs a place in every sweep."""
    max_markers: int = 2_000_000
    """Markers a transaction: about 200 bytes each."""
    entries_per_check: int = 4_000
    """Index entries that one periodic self-audit looks at, about 1 ms; the next goes on where it ended."""


@dataclass(frozen=True, slots=True)
class LockView:
    """The lock as far as grants depend on it. Times are monotonic."""

    owner: str
    expires_at: float
    quiet_until: float


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """A writer's last batch known to be committed."""

    batch_id: int
    transaction: str
    version: str | None


@dataclass(slots=True)
class TableState:
    """One table: its transactions, what they touch, who committed what, and the lock."""

    uri: str
    settings: TableSettings
    transactions: dict[str, Transaction] = field(default_factory=dict)
    """The open ones, and the landed ones that an open one may still conflict with; in the order of the log."""
    closed: dict[str, Closed] = field(default_factory=dict)
    footprints: Footprints = field(default_factory=Footprints)
    ledger: dict[str, CommittedBatch] = field(default_factory=dict)
    unrecorded_batches: set[str] = field(default_factory=set)
    """Writers whose last batch the ledger topic has not been told of."""
    losses: dict[str, int] = field(default_factory=dict)
    """Conflicts lost in a row, by writer."""
    lost_on: dict[str, tuple[Marker, ...]] = field(default_factory=dict)
    """By writer with such losses: the partitions that its losing transactions touched, the last one's first."""
    unrecorded_losses: dict[str, str] = field(default_factory=dict)
    """Writers of whose losses the ledger topic has not been told, and the transaction that lost last (empty: none)."""
    moment: int = 0
    """Facts taken so far: the clock by which transactions began and ended."""
    lock: LockView | None = None
    lock_requested: bool = False
    lock_used: bool = False
    """A grant was given under the lock as it is held now."""
    next_entry_to_check: int = 0
    """Where the next self-audit goes on."""

    def open(self) -> list[Transaction]:
        """The transactions that have not ended, oldest first."""
        return [each for each in self.transactions.values() if each.phase in OPEN]

    def phases(self) -> set[Phase]:
        """Where its transactions stand: one pass, for who only asks whether there is any."""
        return {each.phase for each in self.transactions.values()}

    def landed(self) -> list[Transaction]:
        """The ended ones that still count as evidence."""
        return [each for each in self.transactions.values() if each.phase in LANDED]

    def running(self) -> Transaction | None:
        """The transaction whose grant runs."""
        return next((each for each in self.transactions.values() if each.phase is Phase.GRANTED), None)

    def is_protected(self, writer: str) -> bool:
        """Whether it has lost so often in a row that it wins next."""
        return self.losses.get(writer, 0) >= self.settings.max_losses

    def idle(self) -> bool:
        """Whether nothing can happen here without an event."""
        return not self.transactions and not self.lock_requested

    def oldest_needed(self) -> int | None:
        """Offset of the oldest intent that a replay must see: of an open transaction, or of evidence against one."""
        return min((each.sequence for each in self.transactions.values()), default=None)
