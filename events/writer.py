"""Writer to agent (topic `writers`): what a writer intends, touches, and has done."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from lakewarden.events.base import EventBase, Name
from lakewarden.events.markers import Markers

Admission: TypeAlias = Literal["optimistic", "queued"]
ConflictRule: TypeAlias = Literal["file-group", "deleted-file"]

DEFAULT_HEARTBEAT_SECONDS = 5.0

TABLE_SERVICE_PRIORITY = -100
"""Of compaction, clustering and other table services, which can be done again at any time: they yield to ingestion
(priority 0), until they have lost `max_losses` times in a row."""

Seq = Annotated[int, Field(ge=0)]


class WriterEvent(EventBase):
    """An event of a transaction: both its names are there."""

    transaction: Name
    writer: Name


class CommitIntent(WriterEvent):
    """Opens the transaction. Published and acknowledged before the writer reads its base or starts a task."""

    type: Literal["commit-intent"] = "commit-intent"
    batch_id: int | None = None
    admission: Admission = "optimistic"
    priority: int = 0
    """Larger wins."""
    conflict_rule: ConflictRule = "file-group"
    scope: Markers = ()
    lock: Annotated[str, Field(min_length=1, max_length=2048)] | None = None
    """URI of the lock object, where it is not the table's usual one."""
    heartbeat_seconds: Annotated[float, Field(gt=0, le=300)] = DEFAULT_HEARTBEAT_SECONDS


class MarkerCreated(WriterEvent):
    """The transaction is about to write these. Sent by drivers and executors alike, batched."""

    type: Literal["marker-created"] = "marker-created"
    markers: Markers


class WriterHeartbeat(WriterEvent):
    """The writer lives."""

    type: Literal["writer-heartbeat"] = "writer-heartbeat"
    seq: Seq


class CommitRequested(WriterEvent):
    """Everything is staged: may I commit."""

    type: Literal["commit-requested"] = "commit-requested"
    seq: Seq
    markers: Markers = ()


class CommitCompleted(WriterEvent):
    """The commit is durable in the table."""

    type: Literal["commit-completed"] = "commit-completed"
    grant: Name
    version: str | None = None
    """Snapshot id, instant: what the table format calls it."""
    batch_id: int | None = None
    """As in the intent: an agent that has forgotten the transaction still learns that the batch is committed."""


class TransactionAbandoned(WriterEvent):
    """The writer gives up; nothing was committed."""

    type: Literal["transaction-abandoned"] = "transaction-abandoned"
    reason: str


WriterEventUnion: TypeAlias = (
    CommitIntent | MarkerCreated | WriterHeartbeat | CommitRequested | CommitCompleted | TransactionAbandoned
)
