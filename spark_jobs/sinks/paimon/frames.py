"""DataFrames on the driver: a batch in the table's types, its partitions, and the two distributed steps, reading and staging."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

from lakewarden.spark_jobs.sinks.paimon.matched_files import (
    FILE,
    Ranges,
    keys_function,
    large_files,
    without_files,
)
from lakewarden.spark_jobs.sinks.paimon.primary_key import GROUP, grouping_function
from lakewarden.spark_jobs.sinks.paimon.stage import (
    STAGED_SCHEMA,
    Staging,
    reading_function,
    staging_function,
)
from lakewarden.spark_jobs.sinks.paimon.table import (
    Base,
    Partition,
    TableAddress,
    arrow_schema,
    out_of_years,
    partition_path,
)
from lakewarden.spark_jobs.sinks.partitions import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

MAX_PARTITIONS = 10_000
"""Of one upsert batch. Each is a marker, and each is rewritten."""


_COMPARED = frozenset({"tinyint", "smallint", "int", "bigint", "string", "date", "timestamp_ntz"})
"""Types whose order Spark, Python and Parquet agree about."""


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
            f.col(quoted(field.name))
            if field.name in rows.columns
            else f.lit(None).cast(field.dataType).alias(field.name)
            for field in spark_schema(table)
        )
    )


def partitions_of(rows: DataFrame, table: Any) -> list[Partition]:
    """Return the partitions that the rows belong to, with values as pypaimon has them."""
    keys: Sequence[str] = table.partition_keys
    if not keys:
        return [()] if rows.head(1) else []
    found = rows.selectExpr(*_collected(rows, keys)).distinct().limit(MAX_PARTITIONS + 1).collect()
    if len(found) > MAX_PARTITIONS:
        raise ValueError(
            f"the batch touches more than {MAX_PARTITIONS} partitions, and an upsert rewrites each of them; "
            f"make the batches smaller, or their partitions larger; table={table.table_path}"
        )
    return [_partition(row, rows, table) for row in found]


def _collected(rows: DataFrame, columns: Sequence[str]) -> list[str]:
    """Return the columns as expressions that collect without a time zone, and beyond Python's years."""
    types = dict(rows.dtypes)
    expressions = {
        "date": "unix_date({})",
        "timestamp": "unix_micros({})",
        "timestamp_ntz": "{} - TIMESTAMP_NTZ'1970-01-01 00:00:00'",
    }
    return [
        f"{expressions.get(types[name], '{}').format(quoted(name))} AS {quoted(name)}" for name in columns
    ]


def _partition(row: Sequence[Any], rows: DataFrame, table: Any) -> Partition:
    """Return the values of a row of the columns `_collected`."""
    types = dict(rows.dtypes)
    return tuple(
        _python_value(value, types[name], name, table)
        for name, value in zip(table.partition_keys, row, strict=True)
    )


def _python_value(value: Any, kind: str, name: str, table: Any) -> Any:
    try:
        match kind:
            case _ if value is None:
                return None
            case "date":
                return date(1970, 1, 1) + timedelta(days=value)
            case "timestamp":
                return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value)
            case "timestamp_ntz":
                return datetime(1970, 1, 1) + value  # noqa: DTZ001 - without a zone, as in the table
            case _:
                return value
    except OverflowError:
        raise out_of_years(name, table) from None


def with_groups(rows: DataFrame, where: TableAddress) -> DataFrame:
    """Return the rows of a table with a primary key, with the bucket of each in the column `GROUP`."""
    from pyspark.sql.types import StringType, StructField, StructType

    schema = StructType([*rows.schema.fields, StructField(GROUP, StringType())])
    return rows.mapInArrow(grouping_function(where), schema)


def groups_of(rows: DataFrame, table: Any) -> list[str]:
    """Return the buckets of rows that have the column `GROUP`."""
    found = rows.select(GROUP).distinct().limit(MAX_PARTITIONS + 1).collect()
    if len(found) > MAX_PARTITIONS:
        raise ValueError(
            f"the batch touches more than {MAX_PARTITIONS} buckets, and each of them gets a file; make the batches smaller, "
            f"or use fewer buckets; table={table.table_path}"
        )
    return sorted(row[0] for row in found)


def one_task_each(rows: DataFrame, columns: Sequence[str], order_by: str | None) -> DataFrame:
    """Return the rows with those of equal `columns` in one task, ordered by values only, so that a replay has the same order."""
    known = {*columns, order_by}
    others = [
        field.name
        for field in rows.schema.fields
        if field.name not in known and "map<" not in field.dataType.simpleString()
    ]
    order = [quoted(name) for name in (*columns, *([order_by] if order_by is not None else []), *others)]
    together = rows.repartition(*order[: len(columns)]) if columns else rows.coalesce(1)
    return together.sortWithinPartitions(*order)


def read_frame(rows: DataFrame, table: Any, where: TableAddress, base: Base) -> DataFrame:
    """Return the rows of `base`, which the executors read, in the session of `rows`."""
    spark, schema = rows.sparkSession, spark_schema(table)
    if not base.splits:
        return spark.createDataFrame([], schema)
    splits = [pickle.dumps(split) for split in base.splits]
    tasks = min(len(splits), spark.sparkContext.defaultParallelism)
    return spark.range(0, len(splits), 1, tasks).mapInArrow(reading_function(where, splits), schema)


def to_rewrite(rows: DataFrame, table: Any, where: TableAddress, base: Base, keys: Sequence[str]) -> Base:
    """Return the part of `base` with rows that the batch changes. `rows` has each key once, and is persisted."""
    splits = large_files(base)
    if not splits:
        return base
    found = rows.sparkSession.range(
        0, len(splits), 1, min(len(splits), rows.sparkSession.sparkContext.defaultParallelism)
    ).mapInArrow(
        keys_function(where, [pickle.dumps(split) for split in splits], keys, _ranges_of(rows, table, keys)),
        _keys_schema(table, keys),
    )
    same = reduce(and_, (found[quoted(key)].eqNullSafe(rows[quoted(key)]) for key in keys))
    matched = {row[0] for row in found.join(rows, same, "left_semi").select(FILE).distinct().collect()}
    return without_files(base, (split for number, split in enumerate(splits) if number not in matched))


def _keys_schema(table: Any, keys: Sequence[str]) -> StructType:
    from pyspark.sql.types import LongType, StructField, StructType

    types = {field.name: field for field in spark_schema(table)}
    return StructType([*(types[key] for key in keys), StructField(FILE, LongType())])


def _ranges_of(rows: DataFrame, table: Any, keys: Sequence[str]) -> Ranges:
    """Return the range of each key column in each partition. A column with a null, or of another type, is left out."""
    from pyspark.sql import functions as f

    partition_keys: Sequence[str] = table.partition_keys
    types = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    compared = [key for key in keys if key not in partition_keys and types[key] in _COMPARED]
    if not compared:
        return {}
    columns = (f.struct(f.min(quoted(key)), f.max(quoted(key)), f.count(quoted(key))) for key in compared)
    grouped = rows.groupBy(*(f.expr(text) for text in _collected(rows, partition_keys))).agg(
        f.count(f.lit(1)), *columns
    )
    # NULL, '' and blank texts share a folder, and so their ranges.
    found_in: dict[str, list[dict[str, tuple[Any, Any]]]] = {}
    for row in grouped.collect():
        partition, total, found = (
            row[: len(partition_keys)],
            row[len(partition_keys)],
            row[len(partition_keys) + 1 :],
        )
        ranges = {
            key: (lowest, greatest)
            for key, (lowest, greatest, count) in zip(compared, found, strict=True)
            if count == total
        }
        found_in.setdefault(partition_path(table, _partition(partition, rows, table)), []).append(ranges)
    return {path: _spanned(several) for path, several in found_in.items()}


def _spanned(several: Sequence[dict[str, tuple[Any, Any]]]) -> dict[str, tuple[Any, Any]]:
    """Return the ranges that contain several ones. A column that one of them lacks may have any value."""
    first, *others = several
    return {
        key: (min(each[key][0] for each in several), max(each[key][1] for each in several))
        for key in first
        if all(key in each for each in others)
    }


def stage_files(rows: DataFrame, staging: Staging) -> list[Any]:
    """Write the rows to the table's storage. Return the commit messages of the staged files."""
    pickled = rows.mapInArrow(staging_function(staging), STAGED_SCHEMA).collect()
    return [pickle.loads(row.message) for row in pickled]  # noqa: S301 - from this job's own tasks
