"""An Iceberg table for writers: opening it by its name, its columns and partition fields, and looking up its snapshots.

A commit of the sink has `lakewarden.writer`, `lakewarden.batch` and `lakewarden.transaction` in its snapshot's summary, and sets
a property of the table, `LastCommit`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import compress
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from lakewarden.handlers.commit_label import TRANSACTION
from lakewarden.spark_jobs.engine.java import (
    elements,
    is_instance,
    java_causes,
    java_map,
    java_text,
    java_type,
)
from lakewarden.spark_jobs.gate.outcome import EXPIRED, find_batch
from lakewarden.spark_jobs.sinks.assignment import DEFAULT, UUID
from lakewarden.spark_jobs.sinks.iceberg.release import has_extensions
from lakewarden.spark_jobs.sinks.iceberg.transforms import PartitionField
from lakewarden.spark_jobs.sinks.partition_paths import PartitionPaths
from lakewarden.spark_jobs.sinks.partitions import Partition

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import StructField, StructType

WRITER, BATCH = "lakewarden.writer", "lakewarden.batch"

_LAST = "lakewarden.last-commit."

MAX_LAST_COMMITS = 100
"""Commits of a table, about 25 KB of its metadata. Each new checkpoint is a new writer."""

KEPT_MS = 24 * 3600 * 1000
"""Younger ones are kept beyond that number: whether an outcome is known may depend on them."""

NEWEST_FORMAT = 3
"""The newest version of Iceberg's table format that was tried."""

_ICEBERG = "org.apache.iceberg.spark"

HADOOP = "org.apache.iceberg.hadoop.HadoopTableOperations"

VOID = "void"
"""Transform of a field that was removed from a table of format version 1."""

_TRANSFORM = re.compile(r"(identity|year|month|day|hour|bucket|truncate)(?:\[(\d+)\])?")


@dataclass(frozen=True, slots=True)
class OpenTable:
    """A table as it is now."""

    java: Any
    """`org.apache.iceberg.Table`. Spark's catalog may share the object: it then shows newer versions, too."""
    schema: Any
    """Its schema, `org.apache.iceberg.Schema`, which doesn't change."""
    spec: int
    """Id of its partition spec."""
    catalog: str
    fields: tuple[PartitionField, ...]
    columns: StructType
    """Its schema in Spark's types."""
    required: frozenset[str]
    defaults: dict[str, str]
    """SQL of what Iceberg stores in columns that a batch lacks. It is NULL in others."""
    paths: PartitionPaths

    def default(self, field: StructField) -> Column:
        """Return what Iceberg stores in a column that a batch lacks. It has the column's type: STRICT assigns no other NULL."""
        from pyspark.sql import functions as f

        return f.expr(self.defaults.get(field.name, "NULL")).cast(field.dataType)

    def paths_of(self, partitions: Sequence[Partition]) -> list[str]:
        """Return partitions as Iceberg spells them: `ts_day=2026-11-22/id_bucket=3`. Empty for an unpartitioned table."""
        return [
            self.paths.path(
                [field.spelled(value) for field, value in zip(self.fields, partition, strict=True)]
            )
            for partition in partitions
        ]

    def older_paths_of(self, paths: Sequence[str]) -> list[str]:
        """Return where files of older specs may have rows of these partitions: these paths by the fields that both specs have.

        Upserts of two partitions may rewrite the same older file. So they have these paths in common.
        """
        fields = self._sources(self.java.spec())
        kept = ([field in older for field in fields] for older in map(self._sources, self.older_specs()))
        return ["/".join(compress(path.split("/"), each)) for each in kept for path in paths]

    def older_specs(self) -> list[Any]:
        """Return the other partition specs of which the newest version has data files."""
        snapshot, specs = self.java.currentSnapshot(), self.java.specs()
        if snapshot is None or specs.size() == 1:
            return []
        used = {
            int(manifest.partitionSpecId())
            for manifest in elements(snapshot.dataManifests(self.java.io()))
            if manifest.hasAddedFiles() or manifest.hasExistingFiles()
        }
        return [specs.get(number) for number in sorted(used - {self.spec})]

    def other_identity(self, keys: Sequence[str]) -> str | None:
        """Return an older partition spec, as text, in whose files these keys identify other rows than now. None if there is none.

        The keys identify a row within its partition. So two specs give a row the same identity if they have the same fields,
        those of key columns not counted: such a field adds nothing to the keys.
        """
        now = self._identity(self.java.spec(), keys)
        return next(
            (spec_text(spec) for spec in self.older_specs() if self._identity(spec, keys) != now), None
        )

    def _identity(self, spec: Any, keys: Sequence[str]) -> set[tuple[int, str]]:
        of_keys = {name.lower() for name in keys}
        return {
            field
            for field in self._sources(spec)
            if str(self.schema.findColumnName(field[0])).lower() not in of_keys
        }

    def _sources(self, spec: Any) -> list[tuple[int, str]]:
        """Return the column's id and the transform of each partition field."""
        fields = (
            (int(field.sourceId()), str(field.transform().toString())) for field in elements(spec.fields())
        )
        return [field for field in fields if field[1] != VOID]

    def same_layout(self, other: Any) -> bool:
        """Return whether a table, as it is now, has the same columns and partition fields."""
        return bool(self.schema.sameSchema(other.schema()) and self.spec == other.spec().specId())


def open_table(spark: SparkSession, name: str, before: OpenTable | None = None) -> OpenTable:
    """Open the table at its newest version. Raise `ValueError` if there is none, or the sink can't write it rightly.

    If the layout is the same as `before`, only the version is looked up.
    """
    from pyspark.sql.types import StructType

    table = load(spark, name)
    _require_supported(spark, name, table)
    if before is not None and before.same_layout(table):
        return replace(before, java=table)
    found = _catalog_and_identifier(spark, name)
    part = str(found.identifier().name())
    if not str(table.name()).endswith(part):
        raise ValueError(
            f"{part!r} is a branch, a tag or a time of {table.name()}, and this sink writes the main branch only: give the "
            f"table's name, or write the branch without the gate; table={name}"
        )
    catalog = str(found.catalog().name())
    schema = table.schema()
    try:
        converted = java_type(spark, f"{_ICEBERG}.SparkSchemaUtil").convert(schema).json()
    except Exception as error:
        raise ValueError(
            f"the table has a column of a type that this session's Spark can't write: {java_text(error)}; drop the column, or "
            f"write the table by another engine without the gate; table={name} schema={schema.asStruct().toString()}"
        ) from error
    columns = StructType.fromJson(json.loads(converted))
    for column, own in zip(columns.fields, elements(schema.columns()), strict=True):
        if str(own.type().toString()) == "uuid":
            column.metadata[UUID] = "uuid"
    types = {field.name: field.dataType.simpleString() for field in columns.fields}
    fields = tuple(_partition_fields(name, table, types, catalog))
    if any(field.transform != "identity" for field in fields) and not has_extensions(spark):
        raise ValueError(
            f"the partition fields {[field.name for field in fields]} are transforms, which Spark pushes down only with "
            "Iceberg's extensions: start Spark with "
            "spark.sql.extensions=org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions; "
            f"table={name}"
        )
    return OpenTable(
        java=table,
        schema=schema,
        spec=int(table.spec().specId()),
        catalog=catalog,
        fields=fields,
        columns=columns,
        required=frozenset(field.name for field in columns.fields if not field.nullable),
        defaults={
            field.name: _default(schema, field) for field in columns.fields if DEFAULT in field.metadata
        },
        paths=PartitionPaths("iceberg", {field.name: field.path_type for field in fields}),
    )


def _default(schema: Any, field: StructField) -> str:
    """Return the SQL of a column's default. Spark's own text of an instant is another one in another time zone."""
    if field.dataType.typeName() == "timestamp":
        return f"timestamp_micros({schema.findField(field.name).writeDefault()})"
    return str(field.metadata[DEFAULT])


def load(spark: SparkSession, name: str) -> Any:
    """Return `org.apache.iceberg.Table` at its newest version, past the catalog's cache.

    A cached table can't be refreshed if another process dropped it and created it again. One of a Hadoop catalog can't be
    trusted: if it once failed to read the newest metadata, it takes the former for the newest, without an error, and its next
    commit would remove all commits since.
    """
    table = _loaded(spark, name)
    if not is_instance(table.operations(), HADOOP):
        # An error of the store, of the catalog, or Iceberg's own for another table at this place.
        with suppress(Exception):
            table.refresh()
            return table
    forget(spark, name)
    table = _loaded(spark, name)
    table.refresh()
    return table


def show(spark: SparkSession, name: str, snapshot: str | None) -> None:
    """Let readers of this session see a commit. `snapshot`: its own, which the catalog's table may have from the swap."""
    table = _loaded(spark, name)
    current = None if is_instance(table.operations(), HADOOP) else table.currentSnapshot()
    if current is None or str(current.snapshotId()) != snapshot:
        load(spark, name)


def forget(spark: SparkSession, name: str) -> None:
    """Remove the table from the catalog's cache."""
    found = _catalog_and_identifier(spark, name)
    found.catalog().invalidateTable(found.identifier())


def _loaded(spark: SparkSession, name: str) -> Any:
    try:
        table = java_type(spark, f"{_ICEBERG}.Spark3Util").loadIcebergTable(spark._jsparkSession, name)
    except Exception as error:  # py4j's, or PySpark's own
        if any(is_instance(each, "exceptions.RESTException") for each in java_causes(error)):
            raise RuntimeError(
                f"the catalog of {name!r} didn't load the table: {java_text(error)}"
            ) from error
        raise ValueError(
            f"no Iceberg table of this name: {name!r}; give catalog.namespace.table of a catalog in the Spark session; "
            f"{java_text(error)}"
        ) from error
    if is_instance(table, "BaseMetadataTable"):
        raise ValueError(f"{name!r} is a metadata table, which can't be written: give the table's name")
    return table


def _catalog_and_identifier(spark: SparkSession, name: str) -> Any:
    return java_type(spark, f"{_ICEBERG}.Spark3Util").catalogAndIdentifier(spark._jsparkSession, name)


def another_is_in_its_place(spark: SparkSession, operations: Any) -> bool:
    """Return whether a table whose `TableOperations` were just refreshed was dropped, and created again in the same place.

    A Hadoop catalog numbers its metadata files. If both tables have come to the same number, refreshing doesn't show the new
    one, and a commit would write the metadata of the old one. Other catalogs give each metadata file a name of its own.
    """
    if not is_instance(operations, HADOOP):
        return False
    known = operations.current()
    read = java_type(spark, "org.apache.iceberg.TableMetadataParser").read
    return bool(read(operations.io(), known.metadataFileLocation()).uuid() != known.uuid())


def spec_text(spec: Any) -> str:
    """Return a partition spec for an error: `[at_day, id_bucket]`."""
    fields = (field for field in elements(spec.fields()) if field.transform().toString() != VOID)
    return f"[{', '.join(str(field.name()) for field in fields)}]"


def _partition_fields(name: str, table: Any, types: dict[str, str], catalog: str) -> Iterator[PartitionField]:
    for field in elements(table.spec().fields()):
        transform = str(field.transform().toString())
        if transform == VOID:
            continue
        column = str(table.schema().findColumnName(field.sourceId()))
        parsed = _TRANSFORM.fullmatch(transform)
        if parsed is None or column not in types:
            raise ValueError(
                f"the partition field {field.name()} is {transform} of {column}; the sink knows identity, years, months, days, "
                f"hours, bucket and truncate of top-level columns: change the partition spec; table={name}"
            )
        if str(table.schema().findType(field.sourceId()).toString()) == "uuid":
            raise ValueError(
                f"the partition field {field.name()} is {transform} of {column}, a uuid, which Spark takes for a text of another "
                f"bucket and order: change the partition spec; table={name}"
            )
        width = None if parsed[2] is None else int(parsed[2])
        yield PartitionField(str(field.name()), column, parsed[1], width, types[column], catalog)


def _require_supported(spark: SparkSession, name: str, table: Any) -> None:
    version = table.operations().current().formatVersion()
    if version > NEWEST_FORMAT:
        raise ValueError(
            f"the table has format version {version}, which was not tried; create it with 'format-version'='{NEWEST_FORMAT}'; "
            f"table={name}"
        )
    for key in ("spark.wap.id", "spark.wap.branch"):
        if spark.conf.get(key, None):
            raise ValueError(
                f"{key} is set in the session: Iceberg would write to another branch; unset it; table={name}"
            )


def ancestors(table: Any) -> Iterator[Any]:
    """Yield the snapshots of the main branch of a table, or of its metadata, the newest first.

    They end where snapshots have expired, where the catalog lists no older ones, and where the table was created or replaced.
    """
    snapshot = table.currentSnapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parentId()
        snapshot = None if parent is None else table.snapshot(parent)


def lists_newest_only(metadata: Any) -> bool:
    """Return whether the catalog shows the newest snapshot alone, without a parent, of a table that had others."""
    newest = metadata.currentSnapshot()
    return (
        newest is not None
        and newest.parentId() is None
        and newest.sequenceNumber() > 1
        and metadata.snapshots().size() == 1
    )


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
    def of(cls, table: Any, writer: str, *, numbered: bool = True) -> LastCommit | None:
        """Read it from a table or its metadata. `numbered`: of a commit that is a numbered batch."""
        return cls._parse(table.properties().get(cls.key(writer, numbered=numbered)))

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
    def _all(table: Any) -> dict[str, str]:
        properties = table.properties()
        keys = [str(key) for key in elements(properties.keySet()) if key.startswith(_LAST)]
        return {key: str(properties.get(key)) for key in keys}

    @classmethod
    def writers(cls, table: Any) -> list[str]:
        """Return the writers that have such a property, the one that committed most recently last."""
        found = [last for text in cls._all(table).values() if (last := cls._parse(text)) is not None]
        return [last.writer for last in sorted(found, key=lambda last: last.at_ms)]

    @classmethod
    def silent(cls, metadata: Any) -> dict[str, str]:
        """Return the properties of the writers that have been silent for longest, if there are more than `MAX_LAST_COMMITS`."""
        if metadata.properties().size() <= MAX_LAST_COMMITS:
            return {}
        found = cls._all(metadata)
        newest_first = sorted(
            ((last.at_ms if (last := cls._parse(text)) else 0, key) for key, text in found.items()),
            reverse=True,
        )
        young = metadata.lastUpdatedMillis() - KEPT_MS
        return {key: found[key] for at_ms, key in newest_first[MAX_LAST_COMMITS:] if at_ms < young}

    def added_to(self, spark: SparkSession, metadata: Any, without: Mapping[str, str]) -> Any:
        """Return the metadata with this property, and without those that it still has with these values."""
        key = self.key(self.writer, numbered=self.batch is not None)
        builder = java_type(spark, "org.apache.iceberg.TableMetadata").buildFrom(metadata)
        removed = java_type(spark, "java.util.HashSet")()
        properties = metadata.properties()
        for each, text in without.items():
            if properties.get(each) == text:
                removed.add(each)
        builder = builder.removeProperties(removed)
        return builder.setProperties(java_map(spark, {key: self.model_dump_json()})).build()

    def is_undone(self, table: Any) -> bool:
        """Return whether the table shows that a rollback, or a replacement, has taken the commit out of its history."""
        newest = table.currentSnapshot()
        return (
            newest is None
            or newest.sequenceNumber() < self.sequence
            or table.snapshot(self.snapshot) is not None
        )


def find_commit(table: Any, writer: str, batch_id: int) -> str | None:
    """Return the snapshot of the main branch in which `writer` committed the batch, or None.

    Where the history is cut and doesn't answer, `LastCommit` does. Raises `GateError` as `find_batch` does.
    """
    history = _History(table, writer)
    found = find_batch(history.batches(), batch_id, f"table={table.name()} writer={writer}")
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
    """The batches of a writer in the snapshots that the table lists, read once."""

    def __init__(self, table: Any, writer: str) -> None:
        self._table = table
        self._writer = writer
        self.is_cut = False
        """Whether the search came to the end of the list and older snapshots existed."""

    def batches(self) -> Iterator[tuple[int | None, str]]:
        parent = None
        for snapshot in ancestors(self._table):
            parent = snapshot.parentId()
            summary = snapshot.summary()
            if summary.get(WRITER) == self._writer and summary.get(BATCH) is not None:
                yield int(summary.get(BATCH)), str(snapshot.snapshotId())
        if parent is not None or lists_newest_only(self._table.operations().current()):
            self.is_cut = True
            yield EXPIRED, ""


def find_transaction(table: Any, transaction: str) -> str | None:
    """Return the listed snapshot that a transaction of the gate committed, on any branch, or None."""
    for snapshot in elements(table.snapshots()):
        if snapshot.summary().get(TRANSACTION) == transaction:
            return str(snapshot.snapshotId())
    return None
