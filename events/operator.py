"""Events from the agent to operators and to other agents: topics `conflicts`, `audit`, `ledger`, `dead-letters`."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from lakewarden.events.base import Counter, EventBase, Wire
from lakewarden.events.decision import PartitionTaken
from lakewarden.events.markers import ConflictEntry, ConflictKind, Marker
from lakewarden.events.writer import ConflictRule


class ConflictDetected(EventBase):
    """Two transactions overlap, and the agent aborted `victim`. `transaction` and `writer` are the victim's.

    Between two observed transactions, none is aborted: the victim is the later one.
    """

    type: Literal["conflict-detected"] = "conflict-detected"
    victim: str
    """The aborted transaction."""
    victim_writer: str
    """Its writer."""
    winner: str
    """The transaction that continues or has committed."""
    winner_writer: str
    """Its writer."""
    rule: ConflictRule
    """The conflict rule that applied to the two."""
    kind: ConflictKind
    """`marker`: the winner was open. `commit`: it had committed since the victim was admitted."""
    conflicts: tuple[ConflictEntry, ...]
    """The overlaps, as in `abort`."""
    detected_after_ms: Annotated[float, Field(ge=0)]
    """Time from reading the later marker to detecting the conflict."""
    victim_age_seconds: Annotated[float, Field(ge=0)]
    """Time from reading the victim's intent to the abort: the work that is lost. 0 between two observed transactions.
    One abort's events have the same.
    """


class LockEvent(EventBase):
    """A step in the life of a table's lock. A lock serves a whole table, so `transaction` and `writer` are empty."""

    transaction: str = ""
    """Empty."""
    writer: str = ""
    """Empty."""
    agent: str
    """Id of the agent."""
    lock: Annotated[str, Field(min_length=1)]
    """URI of the lock object."""
    owner: str
    """The agent's owner id in the lock object. Empty in a refusal."""
    valid_until: int
    """End of the lock lease in epoch milliseconds, on the clock of the holder. 0: not known."""
    requests: Annotated[int, Field(ge=0)]
    """Requests to the object store that this step needed."""
    duration_ms: Annotated[float, Field(ge=0)]
    """Duration of this step."""
    holder: str | None = None
    """After a refusal or a loss: the owner that holds the lock instead, where it is known."""
    detail: str | None = None
    """Human-readable explanation."""


class LockAcquired(LockEvent):
    """The agent holds the table's lock."""

    type: Literal["lock-acquired"] = "lock-acquired"
    adopted: str | None = None
    """The former owner, if the agent took over its unexpired lease: because a grant still runs under it, or with `fenced`."""
    handed_over: bool = False
    """From an agent of an earlier release: whether the former owner no longer relied on it, see `locks-handed-over`."""
    fenced: bool = False
    """Whether the former owner held it in an earlier term of the same Kafka partition, so its later grants don't count.
    Otherwise its lease counted.
    """


class LockRenewed(LockEvent):
    """The agent extended its lock lease."""

    type: Literal["lock-renewed"] = "lock-renewed"


class LockReleased(LockEvent):
    """The lock is free, or becomes free when its lease expires. In the second case `detail` gives the reason."""

    type: Literal["lock-released"] = "lock-released"


class LockLost(LockEvent):
    """Another owner holds the lock, or the agent could not confirm its lease in time. It grants nothing under this lease."""

    type: Literal["lock-lost"] = "lock-lost"


class LockRefused(LockEvent):
    """The agent could not acquire the lock: another owner holds it, the object is unreadable, or the store forbids it."""

    type: Literal["lock-refused"] = "lock-refused"
    waiting: bool = False
    """True: the agent waits in the queue for the lock. False: the store refuses the agent, or the object is not a lock record."""


class BatchCommitted(EventBase):
    """Ledger entry: the last batch that a writer is known to have committed.

    The topic is compacted. The key is table, newline, writer. Of two entries, the one with the larger `generation` is in force;
    of two with the same, the one with the later `corrected_at`, and then the one with the larger batch.
    """

    type: Literal["batch-committed"] = "batch-committed"
    batch_id: int | None
    """The batch, as in the intent. Null: an operator stated that no batch of the writer is committed."""
    version: str | None = None
    """The version that the transaction committed, as in `commit-completed`."""
    corrected_at: int | None = None
    """Offset in `writers` of the writer's last `ledger-corrected`, if the agent had read one."""
    correction: str | None = None
    """`event_id` of that event."""
    generation: Counter = 0
    """How often `corrected_at` was dropped, because `writers` is a new topic: offsets of the former one mean nothing."""
    edition: str | None = None
    """The writer's edition, which the last `ledger-corrected` with one has stated."""
    term: str = ""
    """The agent's ownership of the partition, as in decisions. Informative: a commit is a fact, whichever agent records it."""


class ConflictsLost(EventBase):
    """Ledger entry: how many conflicts a writer has lost in a row.

    The topic is compacted. The key is table, newline, writer, newline, `losses`. `transaction` is the one that lost last, empty
    where none has lost since a commit or where it is no longer known. The entry counts only if its `term` is that of the last
    `partition-taken` before it in the ledger, or if there is none before it. An entry with an empty `term` always counts.
    """

    type: Literal["conflicts-lost"] = "conflicts-lost"
    transaction: str = ""
    """The transaction that lost last. Empty: none since the writer's last commit."""
    losses: Annotated[int, Field(ge=0)]
    """Number of conflicts lost in a row."""
    lost_on: tuple[Marker, ...] = ()
    """The partitions that the losing transactions touched, with file group `*`."""
    term: str = ""
    """The agent's ownership of the partition, as in decisions."""


LedgerEventUnion: TypeAlias = BatchCommitted | ConflictsLost
LedgerRecord: TypeAlias = LedgerEventUnion | PartitionTaken
"""What a record of `ledger` contains. `partition-taken` has the key of its `table`: compaction keeps the last one."""


class DeadLetter(Wire):
    """A record of `writers` that the agent refused, kept so that no record is lost silently."""

    type: Literal["dead-letter"] = "dead-letter"
    reason: str
    """Why the agent refused the record."""
    topic: str
    """Topic of the refused record."""
    partition: int
    """Its partition."""
    offset: int
    """Its offset."""
    value: str
    """The first 1,024 bytes of its value, in base64."""


AuditEventUnion: TypeAlias = LockAcquired | LockRenewed | LockReleased | LockLost | LockRefused
