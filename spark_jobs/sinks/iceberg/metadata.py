"""The metadata of an Iceberg table, read from the JSON that Iceberg writes of it, and what commits of the sink leave in it.

So the rules of look-ups and outcomes are the same wherever Iceberg runs: in the driver's JVM or on a server of Spark Connect.

A commit of the sink has `lakewarden.writer`, `lakewarden.batch` and `lakewarden.transaction` in its snapshot's summary, and sets
a property of the table, `LastCommit`.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from lakewarden.handlers.commit_label import TRANSACTION
from lakewarden.handlers.maker import Winner, of_iceberg
from lakewarden.spark_jobs.gate.outcome import EXPIRED, find_batch

WRITER, BATCH = "lakewarden.writer", "lakewarden.batch"

_LAST = "lakewarden.last-commit."

MAX_LAST_COMMITS = 100
"""Commits of a table, about 25 KB of its metadata. Each new checkpoint is a new writer."""

KEPT_MS = 24 * 3600 * 1000
"""Younger ones are kept beyond that number: whether an outcome is known may depend on them."""

VOID = "void"
"""Transform of a field that was removed from a table of format version 1."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot that a catalog lists."""

    id: int
    parent: int | None
    sequence: int
    """0 in a table of format version 1."""
    summary: Mapping[str, str]

    @property
    def winner(self) -> Winner:
        """The commit, for an error of the one that came after it."""
        operation = self.summary.get("operation")
        commit = of_iceberg(self.summary).of_commit(f"snapshot {self.id}", operation)
        return Winner(commit, self.summary.get(TRANSACTION))


@dataclass(frozen=True, slots=True)
class SpecField:
    """A field of a partition spec."""

    name: str
    transform: str
    column: int
    """The id of its column."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """One version of a table."""

    file: str
    """Where it is stored."""
    uuid: str | None
    location: str
    format_version: int
    updated_ms: int
    properties: Mapping[str, str]
    schema: Mapping[str, Any]
    spec: int
    """Id of the partition spec."""
    specs: Mapping[int, tuple[SpecField, ...]]
    """Without fields that were removed."""
    newest: Snapshot | None
    """The newest snapshot of the main branch."""
    snapshots: Mapping[int, Snapshot]
    """Those that the catalog lists, of all branches."""

    @classmethod
    def parsed(cls, file: str, text: str) -> Metadata:
        fields = json.loads(text)
        schemas = {each["schema-id"]: each for each in fields["schemas"]}
        snapshots = {each["snapshot-id"]: _snapshot(each) for each in fields.get("snapshots") or ()}
        return cls(
            file,
            fields.get("table-uuid"),
            fields["location"],
            fields["format-version"],
            fields["last-updated-ms"],
            fields.get("properties") or {},
            schemas[fields["current-schema-id"]],
            fields["default-spec-id"],
            {spec["spec-id"]: tuple(_spec_fields(spec)) for spec in fields["partition-specs"]},
            snapshots.get(fields.get("current-snapshot-id")),
            snapshots,
        )

    def ancestors(self) -> Iterator[Snapshot]:
        """Yield the snapshots of the main branch, the newest first.

        They end where snapshots have expired, where the catalog lists no older ones, and where the table was created or replaced.
        """
        snapshot = self.newest
        while snapshot is not None:
            yield snapshot
            snapshot = None if snapshot.parent is None else self.snapshots.get(snapshot.parent)

    @property
    def lists_newest_only(self) -> bool:
        """Whether the catalog shows the newest snapshot alone, without a parent, of a table that had others."""
        newest = self.newest
        alone = newest is not None and newest.parent is None and len(self.snapshots) == 1
        return newest is not None and alone and newest.sequence > 1

    def same_layout(self, other: Metadata) -> bool:
        """Return whether both versions have the same columns and partition fields."""
        return self.spec == other.spec and _unnumbered(self.schema) == _unnumbered(other.schema)

    def column(self, number: int) -> Mapping[str, Any] | None:
        """Return a column of this id that is in no other one."""
        return next((each for each in self.schema["fields"] if each["id"] == number), None)


def _unnumbered(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != "schema-id"}


def _snapshot(fields: Mapping[str, Any]) -> Snapshot:
    return Snapshot(
        fields["snapshot-id"],
        fields.get("parent-snapshot-id"),
        fields.get("sequence-number", 0),
        fields.get("summary") or {},
    )


def _spec_fields(spec: Mapping[str, Any]) -> Iterator[SpecField]:
    for field in spec["fields"]:
        if field["transform"] != VOID:
            yield SpecField(field["name"], field["transform"], field["source-id"])


class Loaded(ABC):
    """A table as its catalog has it now."""

    metadata: Metadata
    name: str
    """As Iceberg calls it."""

    @abstractmethod
    def place(self) -> tuple[str, str]:
        """Return the catalog in the Spark session, and the last part of the name by which the table was asked for."""

    @abstractmethod
    def columns(self) -> str:
        """Return its columns in Spark's types, as JSON. Raise if Spark has no such type."""

    @abstractmethod
    def used_specs(self) -> Collection[int]:
        """Return the partition specs of which the newest version has data files."""


def spec_text(spec: Sequence[SpecField]) -> str:
    """Return a partition spec for an error: `[at_day, id_bucket]`."""
    return f"[{', '.join(field.name for field in spec)}]"


class LastCommit(BaseModel):
    """A writer's last commit, as a property of the table has it.

    The property is set by the swap that publishes the commit, so the table never has one without the other. It answers where the
    table no longer lists the snapshot: expired, or in a catalog that lists the newest one only (decision 60).
    """

    model_config = ConfigDict(frozen=True, strict=True)

    writer: str
    batch: int | None
    transaction: str
    snapshot: int
    sequence: int
    """The snapshot's sequence number; 0 in a table of format version 1."""
    at_ms: int

    @classmethod
    def of(cls, table: Metadata, writer: str, *, numbered: bool = True) -> LastCommit | None:
        """`numbered`: of a commit that is a numbered batch."""
        return cls._parse(table.properties.get(cls.key(writer, numbered=numbered)))

    @staticmethod
    def key(writer: str, *, numbered: bool) -> str:
        """Return the name of the property: a hash, because catalogs bound the length and the characters of names."""
        return f"{_LAST}{hashlib.sha256(f'{writer} {numbered}'.encode()).hexdigest()[:16]}"

    @classmethod
    def _parse(cls, text: str | None) -> LastCommit | None:
        """Return None for what a person has changed by hand."""
        try:
            return None if text is None else cls.model_validate_json(text)
        except ValueError:
            return None

    @staticmethod
    def _all(table: Metadata) -> dict[str, str]:
        return {key: text for key, text in table.properties.items() if key.startswith(_LAST)}

    @classmethod
    def writers(cls, table: Metadata) -> list[str]:
        """Return the writers that have such a property, the one that committed most recently last."""
        found = [last for text in cls._all(table).values() if (last := cls._parse(text)) is not None]
        return [last.writer for last in sorted(found, key=lambda last: last.at_ms)]

    @classmethod
    def silent(cls, table: Metadata) -> list[str]:
        """Return the properties of the writers that have been silent for longest, if there are more than `MAX_LAST_COMMITS`."""
        if len(table.properties) <= MAX_LAST_COMMITS:
            return []
        newest_first = sorted(
            ((last.at_ms if (last := cls._parse(text)) else 0, key) for key, text in cls._all(table).items()),
            reverse=True,
        )
        young = table.updated_ms - KEPT_MS
        return [key for at_ms, key in newest_first[MAX_LAST_COMMITS:] if at_ms < young]

    @staticmethod
    def head(writer: str, batch: int | None, transaction: str) -> str:
        """Return its JSON up to `snapshot`. Java adds the rest, which only the swap knows."""
        known = json.dumps({"writer": writer, "batch": batch, "transaction": transaction})
        return f"{known.removesuffix('}')},"

    def is_undone(self, table: Metadata) -> bool:
        """Return whether the table shows that a rollback, or a replacement, has taken the commit out of its history."""
        newest = table.newest
        return newest is None or newest.sequence < self.sequence or self.snapshot in table.snapshots


def find_commit(table: Metadata, name: str, writer: str, batch_id: int) -> str | None:
    """Return the snapshot of the main branch in which `writer` committed the batch, or None. `name`: the table's.

    Where the history is cut and doesn't answer, `LastCommit` does. Raises `GateError` as `find_batch` does.
    """
    history = _History(table, writer)
    found = find_batch(history.batches(), batch_id, f"table={name} writer={writer}")
    if found is None and history.is_cut:
        last = LastCommit.of(table, writer)
        if (
            last is not None
            and last.batch is not None
            and last.batch >= batch_id
            and not last.is_undone(table)
        ):
            return str(last.snapshot)
    return found


class _History:
    """The batches of a writer in the snapshots that the table lists."""

    def __init__(self, table: Metadata, writer: str) -> None:
        self._table = table
        self._writer = writer
        self.is_cut = False
        """Whether the search came to the end of the list and older snapshots existed."""

    def batches(self) -> Iterator[tuple[int | None, str]]:
        parent = None
        for snapshot in self._table.ancestors():
            parent = snapshot.parent
            summary = snapshot.summary
            if summary.get(WRITER) == self._writer and BATCH in summary:
                yield int(summary[BATCH]), str(snapshot.id)
        if parent is not None or self._table.lists_newest_only:
            self.is_cut = True
            yield EXPIRED, ""


def find_transaction(table: Metadata, transaction: str) -> str | None:
    """Return the listed snapshot that a transaction of the gate committed, on any branch, or None."""
    found = (each for each in table.snapshots.values() if each.summary.get(TRANSACTION) == transaction)
    return next((str(each.id) for each in found), None)
