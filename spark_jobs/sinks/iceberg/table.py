"""An Iceberg table for writers: opening it by its name, its columns and partition fields, and looking up its snapshots.

A commit of the sink has `lakewarden.writer`, `lakewarden.batch` and `lakewarden.transaction` in its snapshot's summary.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lakewarden.handlers.commit_label import TRANSACTION
from lakewarden.spark_jobs.gate.commit_lookup import EXPIRED, find_batch
from lakewarden.spark_jobs.sinks.iceberg.release import has_extensions
from lakewarden.spark_jobs.sinks.iceberg.transforms import PartitionField
from lakewarden.spark_jobs.sinks.java import elements, is_instance, java_text, java_type
from lakewarden.spark_jobs.sinks.partition_paths import PartitionPaths
from lakewarden.spark_jobs.sinks.partitions import Partition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

WRITER, BATCH = "lakewarden.writer", "lakewarden.batch"

NEWEST_FORMAT = 3
"""The newest version of Iceberg's table format that was tried."""

_ICEBERG = "org.apache.iceberg.spark"

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
    paths: PartitionPaths

    def paths_of(self, partitions: Sequence[Partition]) -> list[str]:
        """Return partitions as Iceberg spells them: `ts_day=2026-11-22/id_bucket=3`. Empty for an unpartitioned table."""
        return [
            self.paths.path(
                [field.spelled(value) for field, value in zip(self.fields, partition, strict=True)]
            )
            for partition in partitions
        ]

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
        fields = (
            (int(field.sourceId()), str(field.transform().toString())) for field in elements(spec.fields())
        )
        return {
            (source, transform)
            for source, transform in fields
            if transform != VOID and str(self.schema.findColumnName(source)).lower() not in of_keys
        }

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
    catalog = str(_catalog_and_identifier(spark, name).catalog().name())
    schema = table.schema()
    converted = java_type(spark, f"{_ICEBERG}.SparkSchemaUtil").convert(schema).json()
    columns = StructType.fromJson(json.loads(converted))
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
        paths=PartitionPaths("iceberg", {field.name: field.path_type for field in fields}),
    )


def load(spark: SparkSession, name: str) -> Any:
    """Return `org.apache.iceberg.Table` at its newest version, past the catalog's cache.

    If the cached table was dropped and created again by another process, it can't be refreshed, and the new one is loaded.
    """
    table = _loaded(spark, name)
    try:
        table.refresh()
    except Exception:  # noqa: BLE001 - of the store, of the catalog, or Iceberg's own for another table at this place
        forget(spark, name)
        table = _loaded(spark, name)
        table.refresh()
    return table


def forget(spark: SparkSession, name: str) -> None:
    """Remove the table from the catalog's cache."""
    found = _catalog_and_identifier(spark, name)
    found.catalog().invalidateTable(found.identifier())


def _loaded(spark: SparkSession, name: str) -> Any:
    try:
        return java_type(spark, f"{_ICEBERG}.Spark3Util").loadIcebergTable(spark._jsparkSession, name)
    except Exception as error:  # py4j's, or PySpark's own
        raise ValueError(
            f"no Iceberg table of this name: {name!r}; give catalog.namespace.table of a catalog in the Spark session; "
            f"{java_text(error)}"
        ) from error


def _catalog_and_identifier(spark: SparkSession, name: str) -> Any:
    return java_type(spark, f"{_ICEBERG}.Spark3Util").catalogAndIdentifier(spark._jsparkSession, name)


def another_is_in_its_place(spark: SparkSession, operations: Any) -> bool:
    """Return whether a table whose `TableOperations` were just refreshed was dropped, and created again in the same place.

    A Hadoop catalog numbers its metadata files. If both tables have come to the same number, refreshing doesn't show the new
    one, and a commit would write the metadata of the old one. Other catalogs give each metadata file a name of its own.
    """
    if not is_instance(operations, "org.apache.iceberg.hadoop.HadoopTableOperations"):
        return False
    known = operations.current()
    read = java_type(spark, "org.apache.iceberg.TableMetadataParser").read
    return bool(read(operations.io(), known.metadataFileLocation()).uuid() != known.uuid())


def spec_text(spec: Any) -> str:
    """Return a partition spec for an error: `[at_day, id_bucket]`."""
    return f"[{', '.join(str(field.name()) for field in elements(spec.fields()))}]"


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

    They end where snapshots have expired, and where the table was created or replaced.
    """
    snapshot = table.currentSnapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parentId()
        snapshot = None if parent is None else table.snapshot(parent)


def find_commit(table: Any, writer: str, batch_id: int) -> str | None:
    """Return the snapshot of the main branch in which `writer` committed the batch, or None.

    If all snapshots of the writer have expired, the batch isn't found. Raises `GateError` as `find_batch` does.
    """
    return find_batch(_batches(table, writer), batch_id, f"table={table.name()} writer={writer}")


def _batches(table: Any, writer: str) -> Iterator[tuple[int | None, str]]:
    parent = None
    for snapshot in ancestors(table):
        parent = snapshot.parentId()
        summary = snapshot.summary()
        if summary.get(WRITER) == writer and summary.get(BATCH) is not None:
            yield int(summary.get(BATCH)), str(snapshot.snapshotId())
    if parent is not None:
        yield EXPIRED, ""


def find_transaction(table: Any, transaction: str) -> str | None:
    """Return the snapshot that a transaction of the gate committed, on any branch, or None."""
    for snapshot in elements(table.snapshots()):
        if snapshot.summary().get(TRANSACTION) == transaction:
            return str(snapshot.snapshotId())
    return None
