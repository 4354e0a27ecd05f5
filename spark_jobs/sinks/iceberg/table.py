"""An Iceberg table for writers: its columns and partition fields."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import TYPE_CHECKING

from lakewarden.spark_jobs.sinks.assignment import DEFAULT, UUID
from lakewarden.spark_jobs.sinks.iceberg.metadata import Loaded, Metadata, SpecField, spec_text
from lakewarden.spark_jobs.sinks.iceberg.staging import Catalog
from lakewarden.spark_jobs.sinks.iceberg.transforms import PartitionField
from lakewarden.spark_jobs.sinks.partition_paths import PartitionPaths
from lakewarden.spark_jobs.sinks.partitions import Partition

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import StructField, StructType

NEWEST_FORMAT = 3
"""The newest version of Iceberg's table format that was tried."""

_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"

_TRANSFORM = re.compile(r"(identity|year|month|day|hour|bucket|truncate)(?:\[(\d+)\])?")


def unwritable(error: str, name: str, schema: str) -> ValueError:
    """Return the error for a table that has a type which Spark lacks."""
    return ValueError(
        f"the table has a column of a type that this session's Spark can't write: {error}; drop the column, or "
        f"write the table by another engine without the gate; table={name} schema={schema}"
    )


def no_table(name: str, error: str) -> ValueError:
    """Return the error for a name that no table has."""
    return ValueError(
        f"no Iceberg table of this name: {name!r}; give catalog.namespace.table of a catalog in the Spark session; {error}"
    )


def metadata_table(name: str) -> ValueError:
    """Return the error for the name of a metadata table."""
    return ValueError(f"{name!r} is a metadata table, which can't be written: give the table's name")


@dataclass(frozen=True, slots=True)
class OpenTable:
    """A table as it is now."""

    loaded: Loaded
    fields: tuple[PartitionField, ...]
    columns: StructType
    """Its schema in Spark's types."""
    required: frozenset[str]
    defaults: dict[str, str]
    """SQL of what Iceberg stores in columns that a batch lacks. It is NULL in others."""
    paths: PartitionPaths

    @property
    def metadata(self) -> Metadata:
        return self.loaded.metadata

    @property
    def spec(self) -> tuple[SpecField, ...]:
        return self.metadata.specs[self.metadata.spec]

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
        fields = _sources(self.spec)
        kept = ([field in older for field in fields] for older in map(_sources, self.older_specs()))
        return ["/".join(compress(path.split("/"), each)) for each in kept for path in paths]

    def older_specs(self) -> list[tuple[SpecField, ...]]:
        """Return the other partition specs of which the newest version has data files."""
        metadata = self.metadata
        if metadata.newest is None or len(metadata.specs) == 1:
            return []
        return [metadata.specs[number] for number in sorted({*self.loaded.used_specs()} - {metadata.spec})]

    def other_identity(self, keys: Sequence[str]) -> str | None:
        """Return an older partition spec, as text, in whose files these keys identify other rows than now. None if there is none.

        The keys identify a row within its partition. So two specs give a row the same identity if they have the same fields,
        those of key columns not counted: such a field adds nothing to the keys.
        """
        now = self._identity(self.spec, keys)
        return next(
            (spec_text(spec) for spec in self.older_specs() if self._identity(spec, keys) != now), None
        )

    def _identity(self, spec: Sequence[SpecField], keys: Sequence[str]) -> set[tuple[int, str]]:
        of_keys = {name.lower() for name in keys}
        columns = {each["id"]: str(each["name"]).lower() for each in self.metadata.schema["fields"]}
        return {field for field in _sources(spec) if columns.get(field[0]) not in of_keys}


def _sources(spec: Sequence[SpecField]) -> list[tuple[int, str]]:
    """Return the column's id and the transform of each partition field."""
    return [(field.column, field.transform) for field in spec]


def open_table(catalog: Catalog, before: OpenTable | None = None) -> OpenTable:
    """Open the table at its newest version. Raise `ValueError` if there is none, or the sink can't write it rightly.

    If the layout is the same as `before`, only the version is looked up.
    """
    from pyspark.sql.types import StructType

    spark, name = catalog.spark, catalog.name
    table = catalog.load()
    metadata = table.metadata
    _require_supported(spark, name, metadata)
    if before is not None and before.metadata.same_layout(metadata):
        return replace(before, loaded=table)
    place, part = table.place()
    if not table.name.endswith(part):
        raise ValueError(
            f"{part!r} is a branch, a tag or a time of {table.name}, and this sink writes the main branch only: give the "
            f"table's name, or write the branch without the gate; table={name}"
        )
    columns = StructType.fromJson(json.loads(table.columns()))
    for column, own in zip(columns.fields, metadata.schema["fields"], strict=True):
        if own["type"] == "uuid":
            column.metadata[UUID] = "uuid"
    types = {field.name: field.dataType.simpleString() for field in columns.fields}
    fields = tuple(_partition_fields(name, metadata, types, place))
    extensions = spark.conf.get("spark.sql.extensions", "") or ""
    if any(field.transform != "identity" for field in fields) and _EXTENSIONS not in extensions:
        raise ValueError(
            f"the partition fields {[field.name for field in fields]} are transforms, which Spark pushes down only with "
            f"Iceberg's extensions: start Spark with spark.sql.extensions={_EXTENSIONS}; table={name}"
        )
    return OpenTable(
        loaded=table,
        fields=fields,
        columns=columns,
        required=frozenset(field.name for field in columns.fields if not field.nullable),
        defaults={
            field.name: _default(metadata, field) for field in columns.fields if DEFAULT in field.metadata
        },
        paths=PartitionPaths("iceberg", {field.name: field.path_type for field in fields}),
    )


def _default(metadata: Metadata, field: StructField) -> str:
    """Return the SQL of a column's default. Spark's own text of an instant is another one in another time zone."""
    if field.dataType.typeName() == "timestamp":
        columns = {each["name"]: each for each in metadata.schema["fields"]}
        return f"CAST('{columns[field.name]['write-default']}' AS timestamp)"
    return str(field.metadata[DEFAULT])


def _partition_fields(
    name: str, metadata: Metadata, types: dict[str, str], catalog: str
) -> Iterator[PartitionField]:
    for field in metadata.specs[metadata.spec]:
        found = metadata.column(field.column)
        column = f"column {field.column}" if found is None else str(found["name"])
        parsed = _TRANSFORM.fullmatch(field.transform)
        if parsed is None or found is None:
            raise ValueError(
                f"the partition field {field.name} is {field.transform} of {column}; the sink knows identity, years, months, "
                f"days, hours, bucket and truncate of top-level columns: change the partition spec; table={name}"
            )
        if found["type"] == "uuid":
            raise ValueError(
                f"the partition field {field.name} is {field.transform} of {column}, a uuid, which Spark takes for a text of "
                f"another bucket and order: change the partition spec; table={name}"
            )
        width = None if parsed[2] is None else int(parsed[2])
        yield PartitionField(field.name, column, parsed[1], width, types[column], catalog)


def _require_supported(spark: SparkSession, name: str, metadata: Metadata) -> None:
    if metadata.format_version > NEWEST_FORMAT:
        raise ValueError(
            f"the table has format version {metadata.format_version}, which was not tried; create it with "
            f"'format-version'='{NEWEST_FORMAT}'; table={name}"
        )
    for key in ("spark.wap.id", "spark.wap.branch"):
        if spark.conf.get(key, None):
            raise ValueError(
                f"{key} is set in the session: Iceberg would write to another branch; unset it; table={name}"
            )
