"""What happened to one transaction, as data: one class a kind of step, every fact in a field of its own.

`docs/conflicts.md` describes the fields for those who read them as JSON; `story.py` says how they are found.
Times are epoch milliseconds and informative: offsets order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from lakewarden.events import (
    AbortReason,
    Admission,
    ConflictEntry,
    ConflictKind,
    ConflictRule,
    Marker,
    Operation,
)
from lakewarden.handlers.table.transactions import Phase


@dataclass(frozen=True, slots=True)
class Where:
    """A record of the log."""

    topic: Literal["writers", "decisions", "audit"]
    offset: int
    at_ms: float
    """By the clock of whoever said it."""
    recorded_ms: int
    """By Kafka's record timestamp."""


@dataclass(frozen=True, slots=True)
class Who:
    """A transaction, and whose it is. `sequence` is None where its intent is not in the log any more."""

    transaction: str
    writer: str
    batch_id: int | None = None
    sequence: int | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """A writer's event that is named as a cause or as evidence; as evidence also an admission that reserved something."""

    type: str
    transaction: str
    writer: str
    where: Where


@dataclass(frozen=True, slots=True)
class Cause:
    """What a decision names: an event, or none for a clock or a periodic check; and how far the log had been read."""

    event: Event | None
    offset: int


@dataclass(frozen=True, slots=True)
class Shared:
    """One place that two transactions touched, as each had it: the file groups differ where one of them is `*`."""

    partition: str
    file_group: str
    operation: Operation
    other_file_group: str
    other_operation: Operation


@dataclass(frozen=True, slots=True)
class Fate:
    """How a transaction ended, or where it stands. `reason` of an abort; `abandoned` where its writer gave up."""

    phase: Phase | None
    """None where the log does not say: its intent is not in it any more."""
    reason: str | None = None
    version: str | None = None
    where: Where | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """Somebody's end that let somebody else go on."""

    who: Who
    fate: Fate


@dataclass(frozen=True, slots=True)
class Opened:
    """The intent; its offset is the transaction's place in the order."""

    where: Where
    batch_id: int | None
    admission: Admission
    priority: int
    conflict_rule: ConflictRule
    heartbeat_seconds: float
    lock: str | None
    scope: tuple[Marker, ...]
    """The first ones; `scope_size` counts them all."""
    scope_size: int
    alongside: tuple[Who, ...]
    """Who was open on the table at that moment, oldest first; the first ones of `open_before`."""
    open_before: int


WaitReason: TypeAlias = Literal["computing", "earlier in the line", "granted", "publishing"]


@dataclass(frozen=True, slots=True)
class Behind:
    """Somebody who was waited for: who computes, stands earlier in a line, holds the grant, or publishes for the same writer."""

    who: Who
    why: WaitReason
    shared: tuple[Shared, ...] = ()


@dataclass(frozen=True, slots=True)
class Waiting:
    """It waits for its admission or its grant, behind these; told again when somebody comes before it."""

    where: Where
    what: Literal["admission", "grant"]
    behind: tuple[Behind, ...]


@dataclass(frozen=True, slots=True)
class Admitted:
    """Start computing."""

    where: Where
    agent: str
    cause: Cause
    waited_ms: int
    freed_by: Ended | None
    reserved: tuple[str, ...] = ()
    """The first partitions that are kept for it, since its writer has lost so often."""


@dataclass(frozen=True, slots=True)
class Touched:
    """Markers, of several events where nothing came between them."""

    first: Where
    where: Where
    """The last of these events."""
    events: int
    markers: int
    new: int
    """File groups that it had not touched before."""
    partitions: tuple[str, ...]
    """The first ones of those that these markers name."""


@dataclass(frozen=True, slots=True)
class Met:
    """It and another transaction touched the same, and neither was aborted for it then."""

    where: Where
    who: Who
    phase: Phase
    came_second: Literal["mine", "other"]
    conflict: bool
    rule: ConflictRule
    shared: tuple[Shared, ...]
    places: int


VictimRule: TypeAlias = Literal["landed", "granted", "protected", "priority", "sequence"]
"""Why the victim was the victim.

`landed`: the other had committed, or might have, since the victim began. `granted`: the other held the grant. `protected`: the
other's writer had lost `max_losses` times in a row. `priority`: the other's is larger. `sequence`: the other came earlier.
"""


@dataclass(frozen=True, slots=True)
class Against:
    """Whom a victim lost to, on what, and by which rule; None where the log does not have the other one any more."""

    winner: Who
    phase: Phase | None
    """Where the winner stood at that moment."""
    by: VictimRule | None
    offsets_older: int | None
    """By how many offsets the winner's intent is older; negative where it is younger."""
    rule: ConflictRule | None
    kind: ConflictKind
    entries: tuple[ConflictEntry, ...]
    """The first ones of `places`."""
    places: int
    mine: Event | None
    """The event by which the victim first touched the first of the entries, and that of the winner."""
    theirs: Event | None


@dataclass(frozen=True, slots=True)
class Aborted:
    """Stop. `stood` is where it was before: a granted one's `outcome-unknown` is the lapse of its lease."""

    where: Where
    agent: str
    reason: AbortReason
    retriable: bool
    detail: str | None
    losses: int | None
    stood: Phase | None
    cause: Cause
    against: tuple[Against, ...]
    detected_after_ms: float | None = None
    age_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Won:
    """Another transaction was aborted because of this one. `against` is seen from that other one, the victim."""

    where: Where
    victim: Who
    reason: AbortReason
    cause: Cause
    against: Against


@dataclass(frozen=True, slots=True)
class Asked:
    """It asked for its grant."""

    where: Where
    seq: int
    markers: int


@dataclass(frozen=True, slots=True)
class Granted:
    """Commit now; `where.offset` is the fencing token."""

    where: Where
    agent: str
    grant: str
    lease_seconds: float
    seq: int
    lock_owner: str | None
    cause: Cause
    waited_ms: int
    freed_by: Ended | None
    alone_ms: int
    """Of the wait, with nobody before it any more: for the table's lock, or for an agent."""


@dataclass(frozen=True, slots=True)
class Renewed:
    """The lease was extended, or covered by another lock owner; several where nothing came between them."""

    first: Where
    where: Where
    agent: str
    times: int
    lease_seconds: float
    seq: int
    lock_owner: str | None


@dataclass(frozen=True, slots=True)
class Completed:
    """Its writer says that the commit is durable."""

    where: Where
    grant: str
    version: str | None
    batch_id: int | None
    stood: Phase | None


@dataclass(frozen=True, slots=True)
class Skipped:
    """Nothing to do: its batch is committed."""

    where: Where
    agent: str
    committed_transaction: str
    version: str | None


@dataclass(frozen=True, slots=True)
class Abandoned:
    """Its writer gave up."""

    where: Where
    reason: str


@dataclass(frozen=True, slots=True)
class Ignored:
    """Events that changed nothing: it had ended, or no intent of it was known."""

    first: Where
    where: Where
    type: str
    events: int
    stood: Phase | None


@dataclass(frozen=True, slots=True)
class Void:
    """A decision that counts for nobody: another agent had taken the partition over before it was published."""

    where: Where
    agent: str
    type: str
    reason: str | None
    taken_by: str | None
    taken_at: Where | None


@dataclass(frozen=True, slots=True)
class Taken:
    """An agent took the partition over while this transaction was open."""

    where: Where
    agent: str


@dataclass(frozen=True, slots=True)
class Lock:
    """A step in the life of the table's lock, placed among the others by time alone. `times` where it was refused again."""

    where: Where
    type: str
    agent: str
    lock: str
    owner: str
    holder: str | None
    valid_until: int
    detail: str | None
    adopted: str | None = None
    """The owner whose running lease was taken over."""
    times: int = 1


Step: TypeAlias = (
    Opened
    | Waiting
    | Admitted
    | Touched
    | Met
    | Aborted
    | Won
    | Asked
    | Granted
    | Renewed
    | Completed
    | Skipped
    | Abandoned
    | Ignored
    | Void
    | Taken
    | Lock
)


@dataclass(frozen=True, slots=True)
class Beats:
    """Signs of life: its heartbeats, and the longest time without any event of it while it was open."""

    count: int
    first: Where | None
    last: Where | None
    longest_gap_ms: int
    gap_after: Where | None


@dataclass(frozen=True, slots=True)
class Other:
    """Another transaction of this story, and how it ended."""

    who: Who
    fate: Fate
    places: int
    """Where the two met, conflicts or not."""


@dataclass(frozen=True, slots=True)
class Story:
    """All of it."""

    who: Who
    table: str
    fate: Fate
    waits_for: tuple[Behind, ...]
    """At the end of the log, where it is still open."""
    markers: int
    beats: Beats
    repeated: int
    """Deliveries of an event that had been read already."""
    steps: tuple[Step, ...]
    others: tuple[Other, ...]
    attempts: tuple[Other, ...]
    """Transactions of the same writer for the same batch, oldest first; without a batch, the writer's next one."""
