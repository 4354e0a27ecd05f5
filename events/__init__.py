"""The wire protocol of lakewarden, version 1: typed events, their codec, and the topics that carry them.

Nothing here reads a clock, draws a random number or does I/O, except the room `access/`, which no other module of this package
imports. To read: docs/protocol.md. For tools: `asyncapi.json` in this folder.
"""

from lakewarden.events.base import (
    MAX_INSTANT as MAX_INSTANT,
    MAX_VERSION as MAX_VERSION,
    PROTOCOL as PROTOCOL,
    UNSTAMPED as UNSTAMPED,
    EventBase as EventBase,
    Stamp as Stamp,
    Wire as Wire,
)
from lakewarden.events.codec import (
    AUDIT_EVENT as AUDIT_EVENT,
    CONFLICT_EVENT as CONFLICT_EVENT,
    DECISION_RECORD as DECISION_RECORD,
    EVENT as EVENT,
    LEDGER_EVENT as LEDGER_EVENT,
    MAX_EVENT_BYTES as MAX_EVENT_BYTES,
    WRITER_EVENT as WRITER_EVENT,
    Event as Event,
    Undecodable as Undecodable,
    UndecodableRecords as UndecodableRecords,
    decode as decode,
    encode as encode,
    event_chunks as event_chunks,
)
from lakewarden.events.decision import (
    Abort as Abort,
    AbortReason as AbortReason,
    Admitted as Admitted,
    AlreadyCommitted as AlreadyCommitted,
    CommitGranted as CommitGranted,
    DecisionEvent as DecisionEvent,
    DecisionEventUnion as DecisionEventUnion,
    DecisionRecord as DecisionRecord,
    GrantRenewed as GrantRenewed,
    HandedOverLock as HandedOverLock,
    LocksHandedOver as LocksHandedOver,
    PartitionTaken as PartitionTaken,
    counts as counts,
    partition_name as partition_name,
)
from lakewarden.events.markers import (
    ALL_FILE_GROUPS as ALL_FILE_GROUPS,
    MAX_MARKERS_PER_EVENT as MAX_MARKERS_PER_EVENT,
    WHOLE_TABLE as WHOLE_TABLE,
    ConflictEntry as ConflictEntry,
    ConflictKind as ConflictKind,
    Marker as Marker,
    Operation as Operation,
    VictimRule as VictimRule,
)
from lakewarden.events.operator import (
    AuditEventUnion as AuditEventUnion,
    BatchCommitted as BatchCommitted,
    ConflictDetected as ConflictDetected,
    ConflictsLost as ConflictsLost,
    DeadLetter as DeadLetter,
    LedgerEventUnion as LedgerEventUnion,
    LedgerRecord as LedgerRecord,
    LockAcquired as LockAcquired,
    LockEvent as LockEvent,
    LockLost as LockLost,
    LockRefused as LockRefused,
    LockReleased as LockReleased,
    LockRenewed as LockRenewed,
)
from lakewarden.events.tables import (
    canonical_glob as canonical_glob,
    canonical_location as canonical_location,
    canonical_scheme as canonical_scheme,
    canonical_table as canonical_table,
    is_glob as is_glob,
    object_uri as object_uri,
    require_canonical as require_canonical,
)
from lakewarden.events.topics import (
    DEFAULT_PARTITIONS as DEFAULT_PARTITIONS,
    DEFAULT_PREFIX as DEFAULT_PREFIX,
    Topics as Topics,
    TopicSettings as TopicSettings,
    ledger_key as ledger_key,
)
from lakewarden.events.writer import (
    CORRECTION as CORRECTION,
    DEFAULT_HEARTBEAT_SECONDS as DEFAULT_HEARTBEAT_SECONDS,
    IN_TURN as IN_TURN,
    TABLE_SERVICE_PRIORITY as TABLE_SERVICE_PRIORITY,
    AbandonCause as AbandonCause,
    AbortRequested as AbortRequested,
    Admission as Admission,
    CommitCompleted as CommitCompleted,
    CommitIntent as CommitIntent,
    CommitRequested as CommitRequested,
    ConflictRule as ConflictRule,
    LedgerCorrected as LedgerCorrected,
    MarkerCreated as MarkerCreated,
    TransactionAbandoned as TransactionAbandoned,
    WriterEvent as WriterEvent,
    WriterEventUnion as WriterEventUnion,
    WriterHeartbeat as WriterHeartbeat,
)
