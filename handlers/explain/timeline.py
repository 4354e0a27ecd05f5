"""The explanation of one transaction, as data: a class for each kind of step, a field for each fact.

The `kind` of a step that is a record of the log is the record's `type`, and a field that repeats one of the record has its name.

- `transaction.py` builds it from the log, with the evidence of `evidence.py`.
- `agent/operators/explain.py` prints it as JSON, under the names of these classes' fields; `docs/explain.md` describes that JSON.
- `agent/operators/explain_text.py` prints it as text.

Times are epoch milliseconds. They are informative: offsets define the order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from lakewarden.events import (
    Admission,
    ConflictEntry,
    ConflictKind,
    ConflictRule,
    Marker,
    Operation,
)
from lakewarden.handlers.table.transactions import Phase

# -- references --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecordRef:
    """A record of the log."""

    topic: Literal["writers", "decisions", "audit"]
    offset: int
    at_ms: float
    """By the clock of the process that published it."""
    recorded_ms: int
    """Kafka's record timestamp."""


@dataclass(frozen=True, slots=True)
class TransactionRef:
    """A transaction and its writer. `sequence` is None if the log no longer has its intent."""

    id: str
    writer: str
    batch_id: int | None = None
    sequence: int | None = None


@dataclass(frozen=True, slots=True)
class EventRef:
    """A writer's event, named as a cause or as evidence. As evidence it can also be an admission that reserved partitions."""

    type: str
    transaction: str
    writer: str
    record: RecordRef


@dataclass(frozen=True, slots=True)
class Cause:
    """What led to a decision: an event, or None for a timer or a periodic check; and how far the agent had read the log."""

    event: EventRef | None
    offset: int


@dataclass(frozen=True, slots=True)
class SharedPlace:
    """A place that two transactions touched, as each of them named it: the file groups differ if one of them is `*`."""

    partition: str
    file_group: str
    operation: Operation
    other_file_group: str
    other_operation: Operation


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a transaction ended, or its phase if it is open.

    `reason` is the reason of an abort, or `abandoned` if the writer ended the transaction.
    """

    phase: Phase | None
    """None if the log no longer has the intent."""
    reason: str | None = None
    version: str | None = None
    record: RecordRef | None = None
    """The record that ended it."""


@dataclass(frozen=True, slots=True)
class RelatedTransaction:
    """Another transaction that the explanation names, or another attempt, with its outcome."""

    transaction: TransactionRef
    outcome: Outcome
    places: int
    """Number of places that both transactions touched, with or without a conflict. Of one event, at most 100 are counted."""


# -- waiting -----------------------------------------------------------------------------------------------------------

WaitReason: TypeAlias = Literal["computing", "ahead in the queue", "granted", "publishing", "earlier turn"]
"""Why a transaction has to wait for another one. The values are part of the JSON.

| value | the other transaction |
| --- | --- |
| `computing` | is admitted and touches the same places |
| `ahead in the queue` | comes before it in the admission queue, or requested its grant earlier |
| `granted` | holds the grant |
| `publishing` | is an older one of the same writer, which may still be publishing |
| `earlier turn` | comes before it in the order of `ordered` transactions, touches the same places, and has not ended |
"""


Awaited: TypeAlias = Literal["admission", "grant"]


@dataclass(frozen=True, slots=True)
class Blocker:
    """A transaction for which another one waits."""

    transaction: TransactionRef
    reason: WaitReason
    shared: tuple[SharedPlace, ...] = ()


@dataclass(frozen=True, slots=True)
class LastBlocker:
    """The last blocker that ended before a wait was over, and how it ended."""

    transaction: TransactionRef
    outcome: Outcome


# -- conflicts ---------------------------------------------------------------------------------------------------------

VictimRule: TypeAlias = Literal["landed", "observed", "granted", "protected", "priority", "sequence"]
"""Why the agent chose the victim.

| value | the winner |
| --- | --- |
| `landed` | has committed since the victim began, or may have committed |
| `granted` | holds the grant |
| `protected` | belongs to a writer that lost `max_losses` conflicts in a row |
| `priority` | has the higher priority |
| `sequence` | opened earlier |
"""


@dataclass(frozen=True, slots=True)
class LostConflict:
    """A conflict with one winner, seen from the victim. Fields are None if the log no longer has the winner."""

    winner: TransactionRef
    winner_phase: Phase | None
    """The phase of the winner when the victim was aborted."""
    victim_rule: VictimRule | None
    offsets_older: int | None
    """By how many offsets the winner's intent is older than the victim's; negative if it is younger."""
    conflict_rule: ConflictRule | None
    kind: ConflictKind
    entries: tuple[ConflictEntry, ...]
    """The first ones of `places`."""
    places: int
    victim_event: EventRef | None
    """The event with which the victim first touched the place of the first entry."""
    winner_event: EventRef | None
    """The event with which the winner first touched it."""


# -- steps -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Opened:
    """The writer opened the transaction. The offset of its intent is its place in the order."""

    kind: ClassVar = "commit-intent"
    record: RecordRef
    batch_id: int | None
    admission: Admission
    priority: int
    conflict_rule: ConflictRule
    heartbeat_seconds: float
    lock: str | None
    scope: tuple[Marker, ...]
    """The first ones of `scope_size`."""
    scope_size: int
    alongside: tuple[TransactionRef, ...]
    """The table's open transactions at that moment, oldest first; the first ones of `open_before`."""
    open_before: int
    admission_reason: str | None = None
    """Why the writer chose the admission, as the writer says."""
    observed: bool = False
    """A watcher reported the transaction; its writer knows nothing of lakewarden."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """It waits for its admission or its grant. The step is repeated when another blocker comes before it."""

    kind: ClassVar = "waiting"
    record: RecordRef
    awaited: Awaited
    blockers: tuple[Blocker, ...]


@dataclass(frozen=True, slots=True)
class Admitted:
    """The agent admitted it: its writer may compute."""

    kind: ClassVar = "admitted"
    record: RecordRef
    agent: str
    cause: Cause
    waited_ms: int
    freed_by: LastBlocker | None
    reserved: tuple[str, ...] = ()
    """The first partitions that the agent reserved for it, because its writer is protected."""
    turn: int | None = None
    """Of an `ordered` transaction: its place among those that are open at the same time."""


@dataclass(frozen=True, slots=True)
class Touched:
    """The writer published markers. Consecutive events are one step."""

    kind: ClassVar = "marker-created"
    first: RecordRef
    record: RecordRef
    """The last of these events."""
    events: int
    markers: int
    new: int
    """File groups that the transaction had not touched before."""
    partitions: tuple[str, ...]
    """The first partitions that these markers name."""


@dataclass(frozen=True, slots=True)
class Met:
    """It and another transaction touched the same places, and the agent aborted neither of them at that moment."""

    kind: ClassVar = "met"
    record: RecordRef
    other: TransactionRef
    phase: Phase
    """The phase of the other one."""
    came_second: Literal["mine", "other"]
    conflict: bool
    """Whether the two conflict by `rule`."""
    rule: ConflictRule
    shared: tuple[SharedPlace, ...]
    places: int
    """As in `RelatedTransaction`."""


@dataclass(frozen=True, slots=True)
class Aborted:
    """The agent aborted it. An abort of a granted transaction with `outcome-unknown` is the lapse of its grant lease."""

    kind: ClassVar = "abort"
    record: RecordRef
    agent: str
    reason: str
    retriable: bool
    detail: str | None
    losses: int | None
    phase_before: Phase | None
    cause: Cause
    lost_conflicts: tuple[LostConflict, ...]
    detected_after_ms: float | None = None
    age_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Won:
    """The agent aborted another transaction, the victim, because of a conflict with this one."""

    kind: ClassVar = "won"
    record: RecordRef
    victim: TransactionRef
    reason: str
    cause: Cause
    lost_conflict: LostConflict


@dataclass(frozen=True, slots=True)
class GrantRequested:
    """The writer requested the grant."""

    kind: ClassVar = "commit-requested"
    record: RecordRef
    seq: int
    markers: int
    """Number of markers in the request."""


@dataclass(frozen=True, slots=True)
class Granted:
    """The agent granted the commit. `record.offset` is the fencing token."""

    kind: ClassVar = "commit-granted"
    record: RecordRef
    agent: str
    grant: str
    lease_seconds: float
    seq: int
    lock_owner: str | None
    cause: Cause
    waited_ms: int
    freed_by: LastBlocker | None
    unblocked_ms: int
    """The part of the wait without a blocker: it waited for the table's lock, or for an agent."""


@dataclass(frozen=True, slots=True)
class Renewed:
    """The agent extended the grant lease, or another lock owner covers it now. Consecutive renewals are one step."""

    kind: ClassVar = "grant-renewed"
    first: RecordRef
    record: RecordRef
    agent: str
    times: int
    lease_seconds: float
    seq: int
    lock_owner: str | None


@dataclass(frozen=True, slots=True)
class Completed:
    """The writer reported that the commit is durable."""

    kind: ClassVar = "commit-completed"
    record: RecordRef
    grant: str | None
    """None: the transaction is observed, and has none."""
    version: str | None
    batch_id: int | None
    phase_before: Phase | None


@dataclass(frozen=True, slots=True)
class Skipped:
    """The agent answered that the batch is already committed."""

    kind: ClassVar = "already-committed"
    record: RecordRef
    agent: str
    committed_transaction: str
    version: str | None


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The writer ended the transaction."""

    kind: ClassVar = "transaction-abandoned"
    record: RecordRef
    reason: str


@dataclass(frozen=True, slots=True)
class AbortRequested:
    """An operator requested its end."""

    kind: ClassVar = "abort-requested"
    record: RecordRef
    operator: str
    reason: str


@dataclass(frozen=True, slots=True)
class Ignored:
    """Events without effect, because the transaction had ended or its intent isn't in the log."""

    kind: ClassVar = "ignored"
    first: RecordRef
    record: RecordRef
    type: str
    events: int
    phase_before: Phase | None


@dataclass(frozen=True, slots=True)
class Void:
    """A decision that doesn't count: another agent had taken the partition over before it was published."""

    kind: ClassVar = "void"
    record: RecordRef
    agent: str
    type: str
    reason: str | None
    taken_by: str | None
    taken_at: RecordRef | None


@dataclass(frozen=True, slots=True)
class TakenOver:
    """An agent took the partition over while the transaction was open."""

    kind: ClassVar = "partition-taken"
    record: RecordRef
    agent: str


@dataclass(frozen=True, slots=True)
class LockStep:
    """A step of the table's lock, placed among the others by time alone. `times` counts repeated refusals."""

    kind: ClassVar = "lock"
    record: RecordRef
    type: str
    agent: str
    lock: str
    owner: str
    holder: str | None
    valid_until: int
    detail: str | None
    adopted: str | None = None
    """The owner whose live lease the agent adopted."""
    times: int = 1


Step: TypeAlias = (
    Opened
    | Waiting
    | Admitted
    | Touched
    | Met
    | Aborted
    | Won
    | GrantRequested
    | Granted
    | Renewed
    | Completed
    | Skipped
    | Abandoned
    | AbortRequested
    | Ignored
    | Void
    | TakenOver
    | LockStep
)


# -- all of it ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Heartbeats:
    """The transaction's heartbeats, and the longest time without any of its events while it was open."""

    count: int
    first: RecordRef | None
    last: RecordRef | None
    longest_gap_ms: int
    gap_after: RecordRef | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The whole explanation."""

    transaction: TransactionRef
    table: str
    outcome: Outcome
    waits_for: tuple[Blocker, ...]
    """Its blockers at the end of the log, if it is still open."""
    markers: int
    heartbeats: Heartbeats
    repeated: int
    """Number of events that Kafka delivered more than once."""
    steps: tuple[Step, ...]
    others: tuple[RelatedTransaction, ...]
    attempts: tuple[RelatedTransaction, ...]
    """All transactions of this writer for this batch, oldest first. Without a batch: this one and the writer's next one."""
