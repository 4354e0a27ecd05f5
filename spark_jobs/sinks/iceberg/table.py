"""An Iceberg table for writers: opening it by its name, its columns and partition fields, and looking up its snapshots.

A commit of the sink has `lakewarden.writer`, `lakewarden.batch` and `lakewarden.transaction` in its snapshot's summary.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lakewarden.handlers.commit_label import TRANSACTION
from lakewarden.spark_jobs.sinks.iceberg.release import has_extensions
from lakewarden.spark_jobs.sinks.iceberg.transforms import PartitionField
from lakewarden.spark_jobs.sinks.java import elements, java_text, java_type
from lakewarden.spark_jobs.sinks.partition_paths import PartitionPaths
from lakewarden.spark_jobs.sinks.partitions import Partition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WRITER, BATCH = "lakewarden.writer", "lakewarden.batch"

NEWEST_FORMAT = 3
"""The newest version of Iceberg's table format that was tried."""

_ICEBERG = "org.apache.iceberg.spark"

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
    columns: dict[str, str]
    """Spark types of the table's columns, by name, in its order."""
    required: frozenset[str]
    paths: PartitionPaths

    def path(self, partition: Partition) -> str:
        """Return the partition as Iceberg spells it: `ts_day=2026-11-22/id_bucket=3`. Empty for an unpartitioned table."""
        return self.paths.path(
            [field.spelled(value) for field, value in zip(self.fields, partition, strict=True)]
        )

    @property
    def has_older_files(self) -> bool:
        """Whether the newest version has data files of an older partition spec."""
        snapshot = self.java.currentSnapshot()
        if snapshot is None:
            return False
        spec = self.java.spec().specId()
        return any(
            manifest.partitionSpecId() != spec and (manifest.hasAddedFiles() or manifest.hasExistingFiles())
            for manifest in elements(snapshot.dataManifests(self.java.io()))
        )

    def same_layout(self, other: Any) -> bool:
        """Return whether a table, as it is now, has the same columns and partition fields."""
        return bool(self.schema.sameSchema(other.schema()) and self.spec == other.spec().specId())


def open_table(spark: SparkSession, name: str, before: OpenTable | None = None) -> OpenTable:
    """Open the table at its newest version. Raise `ValueError` if there is none, or the sink can't write it rightly.

    If the layout is the same as `before`, only the version is looked up.
    """
    table = load(spark, name)
    _require_supported(spark, name, table)
    if before is not None and before.same_layout(table):
        return replace(before, java=table)
    catalog = _catalog_of(spark, name)
    schema = table.schema()
    converted = java_type(spark, f"{_ICEBERG}.SparkSchemaUtil").convert(schema).json()
    columns = {field["name"]: field for field in json.loads(converted)["fields"]}
    types = _spark_types(converted)
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
        columns=types,
        required=frozenset(name for name, field in columns.items() if not field["nullable"]),
        paths=PartitionPaths("iceberg", {field.name: field.path_type for field in fields}),
    )


def load(spark: SparkSession, name: str) -> Any:
    """Return `org.apache.iceberg.Table` at its newest version, past the catalog's cache."""
    try:
        table = java_type(spark, f"{_ICEBERG}.Spark3Util").loadIcebergTable(spark._jsparkSession, name)
    except Exception as error:  # py4j's, or PySpark's own
        raise ValueError(
            f"no Iceberg table of this name: {name!r}; give catalog.namespace.table of a catalog in the Spark session; "
            f"{java_text(error)}"
        ) from error
    table.refresh()
    return table


def _catalog_of(spark: SparkSession, name: str) -> str:
    found = java_type(spark, f"{_ICEBERG}.Spark3Util").catalogAndIdentifier(spark._jsparkSession, name)
    return str(found.catalog().name())


def _spark_types(schema: str) -> dict[str, str]:
    from pyspark.sql.types import StructType

    return {field.name: field.dataType.simpleString() for field in StructType.fromJson(json.loads(schema))}


def _partition_fields(name: str, table: Any, types: dict[str, str], catalog: str) -> Iterator[PartitionField]:
    for field in elements(table.spec().fields()):
        transform = str(field.transform().toString())
        if transform == "void":  # a field that was removed from a table of format version 1
            continue
        column = str(table.schema().findColumnName(field.sourceId()))
        parsed = _TRANSFORM.fullmatch(transform)
        if parsed is None or column not in types:
            raise ValueError(
                f"the partition field {field.name()} is {transform} of {column}; the sink knows identity, years, months, days, "
                f"hours, bucket and truncate of top-level columns: change the partition spec; table={name}"
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
    """Yield the snapshots of the table's main branch, the newest first. They end where snapshots have expired."""
    snapshot = table.currentSnapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parentId()
        snapshot = None if parent is None else table.snapshot(parent)


def find_commit(table: Any, writer: str, batch_id: int) -> str | None:
    """Return the snapshot in which `writer` committed the batch, or None.

    The batch ids of a writer rise, so the search ends at its first smaller one. If snapshots in between have expired, a
    later batch of the writer shows that this one was committed. If all snapshots of the writer have expired, the batch isn't
    found.
    """
    later: str | None = None
    for snapshot in ancestors(table):
        summary = snapshot.summary()
        if summary.get(WRITER) != writer or summary.get(BATCH) is None:
            continue
        number = int(summary.get(BATCH))
        if number == batch_id:
            return str(snapshot.snapshotId())
        if number < batch_id:
            return later
        later = str(snapshot.snapshotId())
    return later


def find_transaction(table: Any, transaction: str) -> str | None:
    """Return the snapshot that a transaction of the gate committed, on any branch, or None."""
    for snapshot in elements(table.snapshots()):
        if snapshot.summary().get(TRANSACTION) == transaction:
            return str(snapshot.snapshotId())
    return None
