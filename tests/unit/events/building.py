"""A Hypothesis strategy for every event, and a function that builds a valid intent."""

from __future__ import annotations

from datetime import UTC, datetime
from types import NoneType
from typing import Any, TypeVar, get_args
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


def partition_taken(term: str, partition: int = 0, **fields: Any) -> events.PartitionTaken:
    """The beginning of a term in a partition."""
    return made(events.PartitionTaken, table=events.partition_name(partition), term=term, **fields)


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
handed_over = st.lists(st.builds(events.HandedOverLock, table=tables, owner=names), max_size=3).map(tuple)
numbers = st.floats(0, 1e9)

FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "event_id": names,
    "table": tables,
    "transaction": names,
    "writer": names,
    "at": times,
    "batch_id": st.integers(-(2**63), 2**63 - 1),
    "admission": st.sampled_from(["optimistic", "queued"]),
    "priority": st.integers(-100, 100),
    "conflict_rule": st.sampled_from(["file-group", "deleted-file", "ordered"]),
    "scope": marker_lists,
    "lock": names,
    "heartbeat_seconds": st.floats(0.01, 300),
    "admission_reason": texts,
    "markers": marker_lists,
    "seq": seqs,
    "grant": names,
    "version": texts,
    "reason": texts,
    "operator": names,
    "edition": names,
    "agent": names,
    "cause": names,
    "term": names,
    "cause_offset": st.integers(-1, 2**62),
    "retriable": st.booleans(),
    "conflicts": entry_lists,
    "detail": texts,
    "losses": st.integers(0, 1_000_000),
    "lease_seconds": leases,
    "lock_owner": names,
    "committed_transaction": names,
    "locks": handed_over,
    "victim": names,
    "victim_writer": names,
    "winner": names,
    "winner_writer": names,
    "rule": st.sampled_from(["file-group", "deleted-file"]),
    "kind": st.sampled_from(["marker", "commit"]),
    "detected_after_ms": numbers,
    "victim_age_seconds": numbers,
    "owner": names,
    "valid_until": seqs,
    "requests": st.integers(0, 100),
    "duration_ms": numbers,
    "holder": names,
}
"""By name. A field that may be None also is; one without a strategy has its default."""


def _any(kind: type[E], **own: st.SearchStrategy[Any]) -> st.SearchStrategy[E]:
    """Events of this kind. `own`: strategies of some fields for this kind alone."""
    drawn = {
        name: st.none() | FIELDS[name] if NoneType in get_args(field.annotation) else FIELDS[name]
        for name, field in kind.model_fields.items()
        if name in FIELDS and field.default != ""
    }
    return st.builds(kind, **{**drawn, **own})


_partition_names = st.integers(0, 10_000).map(events.partition_name)
_reasons = ["conflict", "writer-lost", "lease-lost", "superseded", "not-allowed"]
_kinds: list[type[Any]] = [*get_args(get_args(Event)[0])]
EVENTS: dict[type[Any], st.SearchStrategy[Any]] = {kind: _any(kind) for kind in _kinds} | {
    events.Admitted: _any(events.Admitted, edition=st.none())
    | _any(events.Admitted, edition=names, turn=st.integers(0, 2**62), protocol=st.just(2)),
    events.Abort: _any(events.Abort, reason=st.sampled_from(_reasons)),
    events.PartitionTaken: _any(events.PartitionTaken, table=_partition_names),
    events.LocksHandedOver: _any(events.LocksHandedOver, table=_partition_names),
}
"""A strategy for every event of the protocol."""

TYPES = frozenset(str(kind.model_fields["type"].default) for kind in EVENTS) | {
    str(events.DeadLetter.model_fields["type"].default)
}
"""The `type` of every event, and of dead letters."""

any_event: st.SearchStrategy[Event] = st.one_of(*EVENTS.values())
