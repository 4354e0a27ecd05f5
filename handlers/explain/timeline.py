"""The explanation of one transaction, as data: the records of the log that concern it, each with what led to it and what it met.

- `transaction.py` builds it from the log.
- `agent/operators/as_json.py` prints it as JSON: an event's JSON, and the fields of these classes; see `docs/explain.md`.
- `agent/operators/templates/` has its sentences.

Times in milliseconds are Kafka's, since the epoch. They are informative: offsets define the order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from lakewarden import events
from lakewarden.handlers.explain.waits import WaitReason
from lakewarden.handlers.table.transactions import Phase

# -- references --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecordRef:
    """A record of the log."""

    topic: Literal["writers", "decisions", "audit"]
    offset: int
    recorded_ms: int


@dataclass(frozen=True, slots=True)
class TransactionRef:
    """A transaction and its writer. `sequence` is None if the log no longer has its intent."""

    id: str
    writer: str
    batch_id: int | None = None
    sequence: int | None = None


@dataclass(frozen=True, slots=True)
class EventRef:
    """A writer's event, named as a cause or as evidence."""

    type: str
    transaction: str
    writer: str
    record: RecordRef


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
    made_by: str | None = None
    """Who made an observed commit, as the table says."""
    lost_to: str | None = None
    """The commit without the gate for which its writer abandoned it, as far as it is known."""


@dataclass(frozen=True, slots=True)
class RelatedTransaction:
    """Another transaction that the explanation names, or another attempt, with its outcome."""

    transaction: TransactionRef
    outcome: Outcome


# -- reasons -----------------------------------------------------------------------------------------------------------


Awaited: TypeAlias = Literal["admission", "grant"]


@dataclass(frozen=True, slots=True)
class Blocker:
    """A transaction for which another one waits."""

    transaction: TransactionRef
    reason: WaitReason
    shared: tuple[events.Marker, ...] = ()


@dataclass(frozen=True, slots=True)
class LostConflict:
    """Why an abort's victim lost to one winner. Fields are None if the log no longer has the winner."""

    winner: TransactionRef
    winner_phase: Phase | None
    """The phase of the winner when the victim was aborted."""
    victim_event: EventRef | None
    """The event with which the victim first touched the place that the abort's first entry names, as far as the abort says it."""
    winner_event: EventRef | None
    """The event with which the winner first touched it."""
    victim_rule: str | None = None
    """Why the agent chose the victim, as its abort says. None: it is one of an earlier release."""
    offsets_older: int | None = None
    """By how many offsets the winner's intent is older than the victim's; negative if it is younger."""
    conflict_rule: events.ConflictRule | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Because:
    """What a record's own fields don't say. What doesn't apply is None, empty or false, and is not in the JSON."""

    phase_before: Phase | None = None
    """Phase of the explained transaction, of its own events and aborts."""
    without_effect: bool = False
    """The transaction had ended, or its intent isn't in the log. Of a decision: another agent owned the partition already."""
    taken_by: str | None = None
    """That other agent, and its `partition-taken`."""
    taken_at: RecordRef | None = None
    cause: EventRef | None = None
    """The event that led to a decision. None: a timer or a periodic check did."""
    open_before: int | None = None
    """Number of the table's transactions that were open at the intent."""
    alongside: tuple[TransactionRef, ...] = ()
    """The first of these, oldest first."""
    markers: int | None = None
    """Number of markers in the events of this step."""
    new: int | None = None
    """How many of their file groups the transaction had not touched before."""
    partitions: tuple[str, ...] = ()
    """The first partitions that these markers name."""
    awaited: Awaited | None = None
    """From this record on, the transaction waits for it."""
    waits_for: tuple[Blocker, ...] = ()
    waited_ms: int | None = None
    """From the intent to the admission, or from the request to the grant."""
    freed_by: RelatedTransaction | None = None
    """The last of the transactions for which it waited, and how that ended."""
    unblocked_ms: int | None = None
    """The part of the wait without a blocker: for the table's lock, or for an agent."""
    lost_conflicts: tuple[LostConflict, ...] = ()
    """One for each winner of an abort; in an abort of another transaction, only the one that this transaction won."""


# -- steps -------------------------------------------------------------------------------------------------------------

StepEvent: TypeAlias = (
    events.WriterEventUnion
    | events.DecisionEventUnion
    | events.PartitionTaken
    | events.LockAcquired
    | events.LockLost
    | events.LockRefused
)


@dataclass(frozen=True, slots=True)
class Step:
    """A record of the log, or several consecutive ones alike: the last of them, and what is true of all."""

    record: RecordRef
    event: StepEvent = field(metadata={"flat": True})
    because: Because
    first: RecordRef
    times: int = 1

    @classmethod
    def of(cls, record: RecordRef, event: StepEvent, because: Because | None = None) -> Step:
        return cls(record, event, because or Because(), record)

    def joins(self, earlier: Step) -> bool:
        noted, event, before = earlier.because, self.event, earlier.event
        if noted.waits_for or event.type != before.type:
            return False
        if self.because.without_effect and self.record.topic == "writers":
            return noted.without_effect and noted.phase_before is self.because.phase_before
        match event, before:
            case events.MarkerCreated(), events.MarkerCreated():
                return event.transaction == before.transaction and not noted.without_effect
            case events.GrantRenewed(), events.GrantRenewed():
                return (event.agent, event.lock_owner) == (before.agent, before.lock_owner)
            case events.LockRefused(), events.LockRefused():
                return (event.agent, event.holder) == (before.agent, before.holder)
            case _:
                return False


def append(steps: list[Step], step: Step, most: int) -> None:
    """Append a step, or extend the last one. `most`: partitions that it lists."""
    if not steps or not step.joins(steps[-1]):
        steps.append(step)
        return
    last, because = steps[-1], step.because
    if because.markers is not None:
        because = replace(
            because,
            markers=because.markers + (last.because.markers or 0),
            new=(because.new or 0) + (last.because.new or 0),
            partitions=tuple(dict.fromkeys(last.because.partitions + because.partitions))[:most],
        )
    steps[-1] = replace(step, because=because, first=last.first, times=last.times + 1)


def with_locks(
    steps: list[Step],
    locks: Iterable[tuple[RecordRef, events.AuditEventUnion]],
    opened: RecordRef | None,
    ended: RecordRef | None,
) -> Iterator[Step]:
    """The steps, with the lock steps of the time in which the transaction was open, placed by time."""
    found: list[Step] = []
    for record, event in sorted(locks, key=lambda each: each[0].recorded_ms):
        if opened is None or record.recorded_ms < opened.recorded_ms:
            continue
        if ended is not None and record.recorded_ms > ended.recorded_ms:
            break
        if isinstance(event, events.LockAcquired | events.LockLost | events.LockRefused):
            append(found, Step.of(record, event), 0)
    remaining = deque(found)
    for step in steps:
        # An agent acquires the lock before it grants, perhaps in the same millisecond.
        granted = isinstance(step.event, events.CommitGranted)
        while remaining and remaining[0].first.recorded_ms < step.record.recorded_ms + granted:
            yield remaining.popleft()
        yield step
    yield from remaining


# -- all of it ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Explanation:
    """The whole explanation."""

    transaction: TransactionRef
    table: str
    outcome: Outcome
    waits_for: tuple[Blocker, ...]
    """Its blockers at the end of the log, if it is still open."""
    markers: int
    repeated: int
    """Number of events that Kafka delivered more than once."""
    steps: tuple[Step, ...]
    others: tuple[RelatedTransaction, ...]
    attempts: tuple[RelatedTransaction, ...]
    """All transactions of this writer for this batch, oldest first. Without a batch: this one and the writer's next one."""

    @property
    def related(self) -> list[RelatedTransaction]:
        """The others and the other attempts, each once."""
        found = {each.transaction.id: each for each in (*self.others, *self.attempts)}
        found.pop(self.transaction.id, None)
        return list(found.values())
