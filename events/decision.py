"""Events from the agent to a writer, topic `decisions`: start, stop, commit now, already committed."""

from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import Field, StringConstraints, WithJsonSchema

from lakewarden.events.base import Counter, EventBase, TableUri, Version, Wire
from lakewarden.events.markers import ConflictEntry, Marker

AbortReason: TypeAlias = Literal[
    "conflict",
    "writer-lost",
    "lease-lost",
    "outcome-unknown",
    "superseded",
    "not-allowed",
    "unknown-transaction",
    "lock-refused",
    "timed-out",
    "operator",
]
"""The reasons that this version knows. Later versions may add others, and a reader accepts every string."""

Text = Annotated[str, StringConstraints(min_length=1)]


class DecisionEvent(EventBase):
    """The fields that every decision has besides those of an event."""

    transaction: Text
    """Id of the transaction that the decision is about."""
    writer: str
    """Its writer. Empty in an abort that answers a record whose writer could not be read."""
    agent: Text
    """Id of the agent that decided."""
    cause: str | None = None
    """`event_id` of the event that led to the decision. Null for a periodic check."""
    cause_offset: int
    """Offset in `writers` up to which the agent had read when it decided."""
    term: Text | None = None
    """The agent's ownership of the partition when it decided, see `partition-taken`."""


class Admitted(DecisionEvent):
    """The agent has accepted the intent: start computing. The writer reads its base version only now."""

    type: Literal["admitted"] = "admitted"
    protocol: Annotated[Literal[1, 2], Version] = 1  # type: ignore[assignment]  # all other events have version 1
    """2 if there is a `turn`: a reader that knows no turns must refuse the record, not skip it."""
    reserved: tuple[Marker, ...] = ()
    """Partitions reserved for a writer that lost too often and named none. They count as touched by the transaction."""
    turn: Counter | None = None
    """Place among the `ordered` transactions of the table that are open at the same time. Null if the rule is another one."""
    edition: str | None = None
    """The writer's edition. With one, the writer commits to the table, and finds its commits there, as `<writer>~<edition>`."""
    freed_by: Text | None = None
    """The transaction for which this one waited last. Null: it waited for none, or the agent doesn't know it."""
    namesakes: tuple[str, ...] | None = None
    """Writers in the ledger with the same job name or query id, the last ten. Null for batch 0, and for a known writer."""


class Abort(DecisionEvent):
    """Stop now and commit nothing."""

    type: Literal["abort"] = "abort"
    reason: Annotated[
        str,
        WithJsonSchema(
            {"anyOf": [{"enum": list(get_args(AbortReason)), "type": "string"}, {"type": "string"}]}
        ),
    ]
    """Why the agent aborts the transaction. Further reasons may be added: act on `retriable`."""
    retriable: bool
    """Whether a new transaction with the same data can succeed."""
    conflicts: tuple[ConflictEntry, ...] = ()
    """The overlaps, if the reason is `conflict` or `outcome-unknown`."""
    detail: str | None = None
    """Human-readable explanation, where the reason alone is not enough."""
    losses: int | None = None
    """Number of conflicts that this writer has lost in a row, this one included. Only with the reason `conflict`."""


class CommitGranted(DecisionEvent):
    """Commit now. The Kafka offset of this record is the fencing token: it rises with every grant of a table."""

    type: Literal["commit-granted"] = "commit-granted"
    grant: Text
    """Opaque id of the grant."""
    lease_seconds: Annotated[float, Field(gt=0)]
    """Length of the grant lease, counted from when the writer *sent* `seq`."""
    seq: int
    """The largest `seq` of the writer that the agent had read."""
    lock_owner: str | None = None
    """Owner in the lock object that covers this grant. The next owner of the partition recognises the lock by it."""
    freed_by: Text | None = None
    """The transaction for whose end this one waited last, since its request. Null: for none, or the agent doesn't know it."""


class GrantRenewed(DecisionEvent):
    """The lease of a running grant is extended, or another lock owner covers the grant from now on."""

    type: Literal["grant-renewed"] = "grant-renewed"
    grant: Text
    """As in `commit-granted`."""
    lease_seconds: Annotated[float, Field(gt=0)]
    """Length of the grant lease, counted from when the writer *sent* `seq`."""
    seq: int
    """The largest `seq` of the writer that the agent had read."""
    lock_owner: str | None = None
    """As in `commit-granted`."""


class AlreadyCommitted(DecisionEvent):
    """The batch of this intent, or a later one of the same writer, is committed: skip it."""

    type: Literal["already-committed"] = "already-committed"
    committed_transaction: Text
    """The transaction that committed the writer's last batch."""
    version: str | None = None
    """The version that it committed, as in its `commit-completed`."""
    batch_id: int | None = None
    """The batch that is skipped, as in the intent."""
    committed_batch_id: int | None = None
    """The writer's last committed batch: this one, or a later one."""


class PartitionTaken(EventBase):
    """An agent has taken over this partition. Decisions that follow count only if they carry its `term`.

    The event concerns all tables of the partition. Its `table` is the name of the partition, `lakewarden://partition/<number>`.
    """

    type: Literal["partition-taken"] = "partition-taken"
    transaction: str = ""
    """Empty."""
    writer: str = ""
    """Empty."""
    agent: Text
    """Id of the agent."""
    term: Text
    """Unique. The same agent draws a new one whenever it takes over a partition."""
    instance: Text | None = None
    """The agent's name in the consumer group, if it has one that stays the same when it restarts (`group_instance_id`)."""


class HandedOverLock(Wire):
    """A lock that its owner no longer relies on."""

    table: TableUri
    """The table."""
    owner: Text
    """Owner in the lock object."""


class LocksHandedOver(EventBase):
    """An agent of an earlier release left a partition, and no longer relied on these locks.

    Agents no longer publish it, and ignore it.
    """

    type: Literal["locks-handed-over"] = "locks-handed-over"
    transaction: str = ""
    """Empty."""
    writer: str = ""
    """Empty."""
    agent: Text
    """Id of the agent."""
    term: Text
    """The agent's ownership of the partition, see `partition-taken`."""
    locks: tuple[HandedOverLock, ...]
    """Locks of tables with a running grant."""


DecisionEventUnion: TypeAlias = Admitted | Abort | CommitGranted | GrantRenewed | AlreadyCommitted
DecisionRecord: TypeAlias = DecisionEventUnion | PartitionTaken | LocksHandedOver
"""What a record of `decisions` contains."""


def partition_name(number: int) -> str:
    """The `table` of an event that concerns a whole partition."""
    return f"lakewarden://partition/{number}"


def counts(decision: DecisionEvent, term: str | None) -> bool:
    """Whether a decision counts that follows the `partition-taken` of `term` in the log. None: no take-over is known.

    A decision of a release without terms has none. It counts until the first take-over by an agent that has one.
    """
    return term is None or decision.term == term
