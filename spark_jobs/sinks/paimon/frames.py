"""DataFrames on the driver: a batch in the table's types, its partitions, and the two distributed steps, reading and staging."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lakewarden.spark_jobs.sinks.paimon.stage import (
    STAGED_SCHEMA,
    Staging,
    reading_function,
    staging_function,
)
from lakewarden.spark_jobs.sinks.paimon.table import Base, Partition, TableAddress, arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

MAX_PARTITIONS = 10_000
"""Of one upsert batch. Each is a marker, and each is rewritten."""


def spark_schema(table: Any) -> StructType:
    """Return the table's columns as Spark types. A Paimon timestamp without time zone stays one without time zone."""
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructField, StructType

    found = from_arrow_schema(arrow_schema(table), prefer_timestamp_ntz=True)
    return StructType([StructField(field.name, field.dataType, nullable=True) for field in found])


def in_table_types(batch: DataFrame, table: Any) -> DataFrame:
    """Return the batch's columns in the table's types. Raise for a column that the table doesn't have."""
    from pyspark.sql import functions as f

    types = {field.name: field.dataType for field in spark_schema(table)}
    unknown = [name for name in batch.columns if name not in types]
    if unknown:
        raise ValueError(
            f"the batch has columns that the table doesn't have: {unknown}; drop them, or add them to the table; "
            f"table={table.table_path} columns={list(types)}"
        )
    return batch.select(*(f.col(f"`{name}`").cast(types[name]).alias(name) for name in batch.columns))


def all_columns(rows: DataFrame, table: Any) -> DataFrame:
    """Return all columns of the table, in its order. Those that the batch doesn't have are null."""
    from pyspark.sql import functions as f

    return rows.select(
        *(
            f.col(f"`{field.name}`")
            if field.name in rows.columns
            else f.lit(None).cast(field.dataType).alias(field.name)
            for field in spark_schema(table)
        )
    )


def partitions_of(rows: DataFrame, table: Any) -> list[Partition]:
    """Return the partitions that the rows belong to."""
    keys: Sequence[str] = table.partition_keys
    if not keys:
        return [()] if rows.head(1) else []
    found = rows.select(*(f"`{key}`" for key in keys)).distinct().limit(MAX_PARTITIONS + 1).collect()
    if len(found) > MAX_PARTITIONS:
        raise ValueError(
            f"the batch touches more than {MAX_PARTITIONS} partitions, and an upsert rewrites each of them; "
            f"make the batches smaller, or their partitions larger; table={table.table_path}"
        )
    return [tuple(row) for row in found]


def read_frame(batch: DataFrame, table: Any, where: TableAddress, base: Base) -> DataFrame:
    """Return the rows of `base`, which the executors read."""
    spark, schema = batch.sparkSession, spark_schema(table)
    if not base.splits:
        return spark.createDataFrame([], schema)
    splits = [pickle.dumps(split) for split in base.splits]
    tasks = min(len(splits), spark.sparkContext.defaultParallelism)
    return spark.range(0, len(splits), 1, tasks).mapInArrow(reading_function(where, splits), schema)


def stage_files(rows: DataFrame, staging: Staging) -> list[Any]:
    """Write the rows to the table's storage. Return the commit messages of the staged files."""
    pickled = rows.mapInArrow(staging_function(staging), STAGED_SCHEMA).collect()
    return [pickle.loads(row.message) for row in pickled]  # noqa: S301 - from this job's own tasks
