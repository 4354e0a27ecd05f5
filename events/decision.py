"""Agent to writer (topic `decisions`): go, stop, commit now, already done."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from lakewarden.events.base import EventBase, Name
from lakewarden.events.markers import ConflictEntry, Marker

AbortReason: TypeAlias = Literal[
    "conflict",
    "writer-lost",
    "lease-lost",
    "outcome-unknown",
    "superseded",
    "not-allowed",
    "unknown-transaction",
]


class DecisionEvent(EventBase):
    """What every decision says of itself."""

    transaction: Name
    writer: Annotated[str, Field(max_length=512)]
    agent: Name
    """The deciding agent's id."""
    cause: str | None = None
    """`event_id` of the event that led to it; null for a periodic check."""
    cause_offset: int
    """Offset in `writers` up to which the agent had read when it decided."""
    term: Name | None = None
    """The ownership of the partition under which it was decided: see `PartitionTaken`."""


class Admitted(DecisionEvent):
    """The intent is in the agent's hands: start computing."""

    type: Literal["admitted"] = "admitted"
    reserved: tuple[Marker, ...] = ()
    """Kept for a writer that has lost too often and named nothing: what its lost transactions touched. Counts as touched."""


class Abort(DecisionEvent):
    """Stop now, commit nothing."""

    type: Literal["abort"] = "abort"
    reason: AbortReason
    retriable: bool
    conflicts: tuple[ConflictEntry, ...] = ()
    detail: str | None = None
    """What a person should read where the reason alone doesn't say it."""
    losses: int | None = None
    """Of a conflict: how many this writer has lost in a row, this one included."""


class CommitGranted(DecisionEvent):
    """Commit now. The Kafka offset of this record is the fencing token: it rises with every grant of a table."""

    type: Literal["commit-granted"] = "commit-granted"
    grant: Name
    lease_seconds: Annotated[float, Field(gt=0)]
    seq: int
    """The writer's latest seen: it counts the lease from when it *sent* that one, on its own monotonic clock."""
    lock_owner: str | None = None
    """Owner id in the lock object that covers this grant: how the next agent knows whose lock it finds."""


class GrantRenewed(DecisionEvent):
    """The lease of a running commit, extended by a heartbeat, or covered by another lock owner for the rest of it."""

    type: Literal["grant-renewed"] = "grant-renewed"
    grant: Name
    lease_seconds: Annotated[float, Field(gt=0)]
    seq: int
    lock_owner: str | None = None
    """As in `CommitGranted`."""


class AlreadyCommitted(DecisionEvent):
    """This writer's `batch_id` is committed: skip it."""

    type: Literal["already-committed"] = "already-committed"
    committed_transaction: Name
    version: str | None = None


class PartitionTaken(EventBase):
    """An agent has taken this partition over: decisions that follow count only if they bear its `term`.

    It concerns all tables of the partition; its `table` names the partition in the form of one, `partition_name`.
    """

    type: Literal["partition-taken"] = "partition-taken"
    transaction: str = ""
    writer: str = ""
    agent: Name
    term: Name
    """Unique; a restart of the same agent takes a new one."""


DecisionEventUnion: TypeAlias = Admitted | Abort | CommitGranted | GrantRenewed | AlreadyCommitted
DecisionRecord: TypeAlias = DecisionEventUnion | PartitionTaken
"""What stands in `decisions`."""


def partition_name(number: int) -> str:
    """What stands for the table where an event concerns a whole partition."""
    return f"lakewarden://partition/{number}"


def counts(decision: DecisionEvent, term: str | None) -> bool:
    """Whether a decision that follows the taking of the partition by `term` counts."""
    return term is None or decision.term is None or decision.term == term
