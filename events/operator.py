"""Agent to operator (topics `conflicts`, `audit`, `ledger`, `dead-letters`): what happened, for people and recovery."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from lakewarden.events.base import EventBase, Name, Wire
from lakewarden.events.markers import ConflictEntry, ConflictKind, Marker
from lakewarden.events.writer import ConflictRule


class ConflictDetected(EventBase):
    """Two transactions overlap and `victim` was aborted for it. `transaction` and `writer` are the victim's."""

    type: Literal["conflict-detected"] = "conflict-detected"
    victim: Name
    victim_writer: Name
    winner: Name
    winner_writer: Name
    rule: ConflictRule
    kind: ConflictKind
    conflicts: tuple[ConflictEntry, ...]
    detected_after_ms: Annotated[float, Field(ge=0)]
    """Since the younger marker was read."""
    victim_age_seconds: Annotated[float, Field(ge=0)]
    """Since the victim's intent was read: the compute that it had spent."""


class LockEvent(EventBase):
    """A step in the life of a table's lock. `transaction` and `writer` are empty: a lock serves its table."""

    transaction: str = ""
    writer: str = ""
    agent: Name
    lock: Annotated[str, Field(min_length=1)]
    """URI of the lock object."""
    owner: str
    """Our owner id in the lock object; of a refusal, the one that we would have written."""
    valid_until: int
    """Epoch milliseconds, on the holder's clock."""
    requests: Annotated[int, Field(ge=0)]
    """Object-store requests that this step took."""
    duration_ms: Annotated[float, Field(ge=0)]
    holder: str | None = None
    """Of a refusal or a loss: who holds the object instead, where that is known."""
    detail: str | None = None


class LockAcquired(LockEvent):
    """The agent holds the table's lock."""

    type: Literal["lock-acquired"] = "lock-acquired"
    adopted: str | None = None
    """The owner whose lease was taken over before its end, to go on with the grant that it had given."""


class LockRenewed(LockEvent):
    """The lease was extended."""

    type: Literal["lock-renewed"] = "lock-renewed"


class LockReleased(LockEvent):
    """The lock is free for anybody, or will be when its lease ends (`detail` says why it was left to)."""

    type: Literal["lock-released"] = "lock-released"


class LockLost(LockEvent):
    """The lease is somebody else's, or could not be confirmed in time: nothing more is granted under it."""

    type: Literal["lock-lost"] = "lock-lost"


class LockRefused(LockEvent):
    """The lock could not be taken: held by another, unreadable, or forbidden."""

    type: Literal["lock-refused"] = "lock-refused"
    waiting: bool = False
    """The agent goes on waiting for it; false where a person has to change something first."""


class BatchCommitted(EventBase):
    """Ledger entry: the last batch that a writer is known to have committed.

    Compacted; the key is table + newline + writer.
    """

    type: Literal["batch-committed"] = "batch-committed"
    batch_id: int
    version: str | None = None


class ConflictsLost(EventBase):
    """Ledger entry: how many conflicts a writer has lost in a row.

    Compacted; the key is table + newline + writer + newline + "losses". `transaction` is the one that lost last, empty where
    none has since a commit: if its abort turns out not to count, this entry doesn't either.
    """

    type: Literal["conflicts-lost"] = "conflicts-lost"
    transaction: str = ""
    losses: Annotated[int, Field(ge=0)]
    lost_on: tuple[Marker, ...] = ()
    """The partitions that those transactions touched, as `*`."""
    term: str = ""
    """Under which this was said: of two entries, the one of the later term counts, wherever it stands."""


LedgerEventUnion: TypeAlias = BatchCommitted | ConflictsLost


class DeadLetter(Wire):
    """A record that could not be taken, kept so that nothing is lost silently."""

    type: Literal["dead-letter"] = "dead-letter"
    reason: str
    topic: str
    partition: int
    offset: int
    value: str
    """The first 1,024 bytes, in base64."""


AuditEventUnion: TypeAlias = LockAcquired | LockRenewed | LockReleased | LockLost | LockRefused
