"""Events of the topic `writers`: what a writer intends, touches and has committed, and what an operator requests."""

from typing import Annotated, Final, Literal, TypeAlias, get_args

from pydantic import Field, WithJsonSchema

from lakewarden.events import base
from lakewarden.events.markers import Markers

Admission: TypeAlias = Literal["optimistic", "queued"]
ConflictRule: TypeAlias = Literal["file-group", "deleted-file", "ordered"]
IN_TURN: Final[frozenset[ConflictRule]] = frozenset({"ordered"})
"""The rules under which the agent numbers admissions, and grants commits in their order."""

Origin: TypeAlias = Annotated[str, Field(max_length=base.MAX_ORIGIN)] | None

DEFAULT_HEARTBEAT_SECONDS = 5.0

AbandonCause: TypeAlias = Literal["base-changed", "lost-to-gate", "empty", "not-committed", "failed"]
"""Why the gate ends a transaction without a commit. Later versions may add others, and a reader accepts every string."""

TABLE_SERVICE_PRIORITY = -100
"""Priority of compaction, clustering and other table services. They can run again at any time, so they lose against ingestion
(priority 0), until they have lost `max_losses` times in a row."""


class WriterEvent(base.EventBase):
    """An event of a transaction. All three names are present and bounded, because decisions repeat them."""

    event_id: base.Name
    """Unique. Decisions name the event by it. Ids are not compared: what an event says counts once."""
    transaction: base.Name
    """Id of the transaction, unique for each attempt."""
    writer: base.Name
    """Name of the writing job, the same after a restart. The same in all events of a transaction; others don't count."""


class CommitIntent(WriterEvent):
    """Opens the transaction. The broker has acknowledged it before the writer reads its base version or starts a task."""

    type: Literal["commit-intent"] = "commit-intent"
    batch_id: base.Integer | None = None
    """The writer's own number of this batch. It rises from batch to batch and stays the same when a batch is repeated."""
    admission: Admission = "optimistic"
    """`optimistic`: start at once. `queued`: start when no transaction ahead in the queue overlaps `scope`."""
    priority: base.Integer = 0
    """The transaction with the smaller priority loses a conflict."""
    conflict_rule: ConflictRule = "file-group"
    """`file-group`: any two operations on a file group conflict. `deleted-file`: a delete and another delete or merge.
    `ordered`: likewise; others are granted in admission order."""
    scope: Markers = ()
    """What the transaction is going to touch, as far as the writer knows. It counts like markers."""
    lock: Annotated[str, Field(min_length=1, max_length=2048)] | None = None
    """URI of the table's lock object, as the writer believes. The agent refuses the intent if it is another. Null: any place."""
    heartbeat_seconds: Annotated[float, Field(gt=0, le=300)] = DEFAULT_HEARTBEAT_SECONDS
    """Interval at which this writer sends heartbeats."""
    admission_reason: Annotated[str, Field(max_length=base.MAX_REASON)] | None = None
    """Human-readable reason of this `admission`. The agent ignores it."""
    host: Origin = None
    """The machine of the writer's process. The agent ignores it, as the next three."""
    pid: Annotated[int, Field(ge=0, le=base.MAX_PID)] | None = None
    """Id of the process on that machine."""
    application_id: Origin = None
    """Id of the Spark application."""
    application_ui: Annotated[str, Field(max_length=base.MAX_VERSION)] | None = None
    """Address of its web UI."""
    ends_itself: bool | None = None
    """Whether the job ends when it has written what there is, as with `availableNow`. Null: not known. The agent ignores it."""
    observed: bool = False
    """A watcher reports this transaction of a writer without the gate. It is never queued, granted or stopped, and wins every
    conflict. `transaction`: `hudi:20261122135446024`."""


class MarkerCreated(WriterEvent):
    """The transaction is about to write these file groups. Drivers and executors both send it, several markers at a time."""

    type: Literal["marker-created"] = "marker-created"
    markers: Markers
    """What the transaction is about to write."""
    instant: base.InstantName | None = None
    """The table format's own name of this transaction, such as Hudi's instant. What a watcher reports of it is ignored then."""


class WriterHeartbeat(WriterEvent):
    """The writer is alive."""

    type: Literal["writer-heartbeat"] = "writer-heartbeat"
    seq: base.Counter
    """A counter that rises with every heartbeat and request of the transaction."""
    instant: base.InstantName | None = None
    """As in `marker-created`."""


class CommitRequested(WriterEvent):
    """Everything is staged, and the writer requests the grant to commit."""

    type: Literal["commit-requested"] = "commit-requested"
    seq: base.Counter
    """The same counter as that of `writer-heartbeat`."""
    markers: Markers = ()
    """The last markers of the transaction, if any are left to send."""


class CommitCompleted(WriterEvent):
    """The commit is durable in the table."""

    type: Literal["commit-completed"] = "commit-completed"
    grant: base.GrantId | None = None
    """The `grant` of the `commit-granted` under which the writer published. A completion that names another doesn't count. Null
    for observed transactions."""
    version: Annotated[str, Field(max_length=base.MAX_VERSION)] | None = None
    """What the table format calls the new version: a snapshot id, an instant."""
    batch_id: base.Integer | None = None
    """As in the intent, for readers of the log: the agent records the batch that the intent named."""
    markers: Markers = ()
    """What an observed transaction has written, as far as its markers were not reported before. Others send none here."""
    engine: Origin = None
    """The engine and version that made an observed commit, as the table says. The agent ignores it, as the next three."""
    user: Origin = None
    """The user."""
    job: Origin = None
    """A job, a streaming query, or the user of Paimon's commits."""
    application_id: Origin = None
    """Id of the Spark application."""


class TransactionAbandoned(WriterEvent):
    """The writer ends the transaction, and nothing was committed."""

    type: Literal["transaction-abandoned"] = "transaction-abandoned"
    reason: Annotated[str, Field(max_length=base.MAX_REASON)]
    """Human-readable reason."""
    lost_to: Origin = None
    """The commit to which the batch was lost, as the table says it. The agent ignores it."""
    cause: Annotated[
        Origin,
        WithJsonSchema(
            {
                "anyOf": [
                    {"enum": list(get_args(AbandonCause)), "type": "string"},
                    {"type": "string"},
                    {"type": "null"},
                ]
            }
        ),
    ] = None
    """`base-changed`: another commit changed the base. `lost-to-gate`: one of the gate did. `empty`: nothing to write.
    The agent ignores it."""


class AbortRequested(WriterEvent):
    """An operator requests the end of an open transaction. `transaction` and `writer` are those of its intent."""

    type: Literal["abort-requested"] = "abort-requested"
    operator: base.Name
    """Who requests it."""
    reason: Annotated[str, Field(max_length=base.MAX_REASON)]
    """Human-readable reason. The abort repeats it."""


CORRECTION = "ledger-corrected-"
"""How the id of a `ledger-corrected` begins. A ledger's entry has the id until the writer's next commit."""


class LedgerCorrected(WriterEvent):
    """An operator states the last committed batch of a writer, from here on. It replaces what the ledger says."""

    type: Literal["ledger-corrected"] = "ledger-corrected"
    transaction: base.Name
    """Id of this correction, unique. `already-committed` names it as the transaction that committed the batch."""
    batch_id: base.Integer | None
    """The writer's last committed batch. Null: none is committed, so the next batch is written, with any id."""
    edition: base.Name | None = None
    """The writer's edition from here on: later batches are written even if the table has commits of them. Null: unchanged."""
    operator: base.Name
    """Who states it."""
    reason: Annotated[str, Field(max_length=base.MAX_REASON)]
    """Human-readable reason."""


WriterEventUnion: TypeAlias = (
    CommitIntent
    | MarkerCreated
    | WriterHeartbeat
    | CommitRequested
    | CommitCompleted
    | TransactionAbandoned
    | AbortRequested
    | LedgerCorrected
)
