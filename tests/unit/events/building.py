"""A Hypothesis strategy for every event, and a function that builds a valid intent."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import unquote

from hypothesis import strategies as st

from lakewarden import events
from lakewarden.events import CommitIntent, ConflictDetected, ConflictEntry, Event, EventBase

TABLE = "s3://lake/sales/orders"
AT = datetime(2026, 3, 1, 12, tzinfo=UTC)

COMMON: dict[str, Any] = {
    "event_id": "e-1",
    "table": TABLE,
    "transaction": "t-1",
    "writer": "ingest",
    "at": AT,
}


def an_intent(**fields: Any) -> CommitIntent:
    """A valid intent with the given fields."""
    return CommitIntent(**{**COMMON, **fields})


MADE: dict[str, Any] = {
    "event_id": "e",
    "table": TABLE,
    "transaction": "T",
    "writer": "w",
    "at": AT,
    "agent": "a",
    "cause_offset": 0,
    "retriable": True,
    "owner": "o",
    "requests": 1,
    "duration_ms": 1.0,
}
"""What an event has where a test doesn't care."""

E = TypeVar("E", bound=EventBase)


def made(kind: type[E], /, **fields: Any) -> E:
    """An event of this kind with the given fields."""
    return kind(**{**{name: value for name, value in MADE.items() if name in kind.model_fields}, **fields})


def an_overlap(partition: str = "p", writer: str = "winner", **fields: Any) -> ConflictEntry:
    """What a merge has in common with an open merge of this writer."""
    common: dict[str, Any] = {
        "file_group": "f",
        "operation": "merge",
        "other_operation": "merge",
        "kind": "marker",
    }
    return ConflictEntry(
        **{**common, "partition": partition, "other_writer": writer, "other_transaction": "A", **fields}
    )


def a_conflict(*overlaps: ConflictEntry, writer: str = "loser", **fields: Any) -> ConflictDetected:
    """The transaction B of this writer loses to the one that the overlaps name."""
    victim = fields.pop("transaction", "B")
    common: dict[str, Any] = {
        "transaction": victim,
        "writer": writer,
        "victim": victim,
        "victim_writer": writer,
        "winner": overlaps[0].other_transaction,
        "winner_writer": overlaps[0].other_writer,
        "rule": "file-group",
        "kind": "marker",
        "conflicts": overlaps,
        "detected_after_ms": 1,
        "victim_age_seconds": 6,
    }
    return made(ConflictDetected, **{**common, **fields})


names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r"), min_size=1, max_size=40)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
segments = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/?#"), min_size=1, max_size=12
).filter(lambda segment: segment not in (".", ".."))
tables = st.builds(
    lambda scheme, bucket, path: f"{scheme}://{bucket}/{'/'.join(path)}",
    st.sampled_from(["s3", "gs", "abfs", "hdfs"]),
    st.from_regex(r"[a-z][a-z0-9.-]{1,20}", fullmatch=True),
    st.lists(segments, min_size=1, max_size=4),
) | st.builds(lambda path: f"file:///{'/'.join(path)}", st.lists(segments, min_size=1, max_size=4)).filter(
    lambda table: unquote(table) == table
)
partitions = st.one_of(
    st.just(""), st.sampled_from(["dt=2026-03-01", "a/b", "_", "%2F", "a=b=c", "Ω=é/日=本"]), texts
)
times = st.datetimes(timezones=st.just(UTC))
seqs = st.integers(0, 2**53)
operations = st.sampled_from(["create", "append", "merge", "delete"])
markers = st.builds(
    events.Marker, partition=partitions, file_group=texts.filter(bool) | st.just("*"), operation=operations
)
marker_lists = st.lists(markers, max_size=5).map(tuple)
leases = st.floats(0.001, 1e6)
entries = st.builds(
    events.ConflictEntry,
    partition=partitions,
    file_group=texts,
    operation=operations,
    other_operation=operations,
    other_transaction=names,
    other_writer=names,
    kind=st.sampled_from(["marker", "commit"]),
)
entry_lists = st.lists(entries, max_size=3).map(tuple)

_common: dict[str, Any] = {
    "event_id": names,
    "table": tables,
    "transaction": names,
    "writer": names,
    "at": times,
}
_of_a_partition: dict[str, Any] = {
    "event_id": names,
    "table": st.integers(0, 10_000).map(events.partition_name),
    "at": times,
}
_decision: dict[str, Any] = {
    **_common,
    "agent": names,
    "cause": st.none() | names,
    "term": st.none() | names,
    "cause_offset": st.integers(-1, 2**62),
}
_lock: dict[str, Any] = {
    "event_id": names,
    "table": tables,
    "at": times,
    "agent": names,
    "lock": names,
    "owner": names,
    "valid_until": st.integers(0, 2**53),
    "requests": st.integers(0, 100),
    "duration_ms": st.floats(0, 1e9),
    "holder": st.none() | names,
}

EVENTS: dict[type[Any], st.SearchStrategy[Any]] = {
    events.CommitIntent: st.builds(
        events.CommitIntent,
        **_common,
        batch_id=st.none() | st.integers(-(2**63), 2**63 - 1),
        admission=st.sampled_from(["optimistic", "queued"]),
        priority=st.integers(-100, 100),
        conflict_rule=st.sampled_from(["file-group", "deleted-file", "ordered"]),
        scope=marker_lists,
        lock=st.none() | names,
        heartbeat_seconds=st.floats(0.01, 300),
        admission_reason=st.none() | texts,
    ),
    events.MarkerCreated: st.builds(events.MarkerCreated, **_common, markers=marker_lists),
    events.WriterHeartbeat: st.builds(events.WriterHeartbeat, **_common, seq=seqs),
    events.CommitRequested: st.builds(events.CommitRequested, **_common, seq=seqs, markers=marker_lists),
    events.CommitCompleted: st.builds(
        events.CommitCompleted,
        **_common,
        grant=names,
        version=st.none() | texts,
        batch_id=st.none() | st.integers(-(2**63), 2**63 - 1),
    ),
    events.TransactionAbandoned: st.builds(events.TransactionAbandoned, **_common, reason=texts),
    events.AbortRequested: st.builds(events.AbortRequested, **_common, operator=names, reason=texts),
    events.LedgerCorrected: st.builds(
        events.LedgerCorrected,
        **_common,
        batch_id=st.none() | st.integers(-(2**63), 2**63 - 1),
        edition=st.none() | names,
        operator=names,
        reason=texts,
    ),
    events.Admitted: st.builds(events.Admitted, **_decision)
    | st.builds(
        events.Admitted,
        **_decision,
        edition=names,
        turn=st.integers(0, 2**62),
        protocol=st.just(events.PROTOCOL_WITH_TURNS),
    ),
    events.Abort: st.builds(
        events.Abort,
        **_decision,
        reason=st.sampled_from(["conflict", "writer-lost", "lease-lost", "superseded", "not-allowed"]),
        retriable=st.booleans(),
        conflicts=entry_lists,
        detail=st.none() | texts,
        losses=st.none() | st.integers(0, 1_000),
    ),
    events.CommitGranted: st.builds(
        events.CommitGranted,
        **_decision,
        grant=names,
        lease_seconds=leases,
        seq=seqs,
        lock_owner=st.none() | names,
    ),
    events.GrantRenewed: st.builds(
        events.GrantRenewed,
        **_decision,
        grant=names,
        lease_seconds=leases,
        seq=seqs,
        lock_owner=st.none() | names,
    ),
    events.AlreadyCommitted: st.builds(
        events.AlreadyCommitted, **_decision, committed_transaction=names, version=st.none() | texts
    ),
    events.PartitionTaken: st.builds(events.PartitionTaken, **_of_a_partition, agent=names, term=names),
    events.LocksHandedOver: st.builds(
        events.LocksHandedOver,
        **_of_a_partition,
        agent=names,
        term=names,
        locks=st.lists(st.builds(events.HandedOverLock, table=_common["table"], owner=names), max_size=3).map(
            tuple
        ),
    ),
    events.ConflictDetected: st.builds(
        events.ConflictDetected,
        **_common,
        victim=names,
        victim_writer=names,
        winner=names,
        winner_writer=names,
        rule=st.sampled_from(["file-group", "deleted-file"]),
        kind=st.sampled_from(["marker", "commit"]),
        conflicts=entry_lists,
        detected_after_ms=st.floats(0, 1e9),
        victim_age_seconds=st.floats(0, 1e9),
    ),
    events.ConflictsLost: st.builds(
        events.ConflictsLost,
        **_common | {"transaction": st.just("")},
        losses=st.integers(0, 1_000_000),
    ),
    events.BatchCommitted: st.builds(
        events.BatchCommitted, **_common, batch_id=st.integers(), version=st.none() | texts, edition=names
    ),
    **{
        kind: st.builds(kind, **_lock)
        for kind in (
            events.LockAcquired,
            events.LockRenewed,
            events.LockReleased,
            events.LockLost,
            events.LockRefused,
        )
    },
}
"""A strategy for every event of the protocol."""

_kinds: list[type[Any]] = [*EVENTS, events.DeadLetter]
TYPES = frozenset(str(kind.model_fields["type"].default) for kind in _kinds)
"""The `type` of every event, and of dead letters."""

any_event: st.SearchStrategy[Event] = st.one_of(*EVENTS.values())
