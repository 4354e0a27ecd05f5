"""DataFrames on the driver: a batch in the table's types, its partitions, and the two distributed steps, reading and staging."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial, reduce
from operator import and_
from typing import TYPE_CHECKING, Any

from lakewarden.spark_jobs.engine.engine import quoted
from lakewarden.spark_jobs.engine.kinds import engine_of
from lakewarden.spark_jobs.sinks.assignment import assigned, folding
from lakewarden.spark_jobs.sinks.paimon import stage
from lakewarden.spark_jobs.sinks.paimon.base import Base
from lakewarden.spark_jobs.sinks.paimon.matched_files import (
    FILE,
    Ranges,
    keys_function,
    large_files,
    without_files,
)
from lakewarden.spark_jobs.sinks.paimon.primary_key import GROUP, grouping_function
from lakewarden.spark_jobs.sinks.paimon.table import TableAddress
from lakewarden.spark_jobs.sinks.paimon.values import Partition, out_of_years, partition_path, type_parameter
from lakewarden.spark_jobs.sinks.partition_paths import MAX_PARTITIONS, collected
from lakewarden.spark_jobs.sinks.upsert import comparable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

MAX_VARCHAR = 2**31 - 1
"""The length of Paimon's STRING."""

MILLIS = 3
"""Up to so many digits, Paimon keeps a timestamp's milliseconds."""

_COMPARED = frozenset({"tinyint", "smallint", "int", "bigint", "string", "date", "timestamp_ntz"})
"""Types whose order Spark, Python and Parquet agree about."""


def spark_schema(table: Any) -> StructType:
    """Return the table's columns as Paimon's own Spark connector has them, with their nullability and lengths."""
    from pyspark.sql.types import StructField, StructType

    columns = []
    for field in table.table_schema.fields:
        try:
            columns.append(StructField(field.name, _spark_type(field.type), field.type.nullable))
        except ValueError as error:
            raise ValueError(
                f"column {field.name!r}: {error}; drop the column, or write the table without the gate; table={table.table_path}"
            ) from None
    return StructType(columns)


def _read_schema(table: Any) -> StructType:
    """Return the columns as the executors read them: all may be NULL, and a text has no length."""
    from pyspark.sql.types import (
        ArrayType,
        CharType,
        MapType,
        StringType,
        StructField,
        StructType,
        VarcharType,
    )

    def plain(kind: DataType) -> DataType:
        match kind:
            case CharType() | VarcharType():
                return StringType()
            case StructType():
                fields = [StructField(each.name, plain(each.dataType), each.nullable) for each in kind.fields]
                return StructType(fields)
            case ArrayType():
                return ArrayType(plain(kind.elementType), kind.containsNull)
            case MapType():
                return MapType(plain(kind.keyType), plain(kind.valueType), kind.valueContainsNull)
            case _:
                return kind

    return StructType([StructField(each.name, plain(each.dataType)) for each in spark_schema(table)])


def _spark_type(kind: Any) -> DataType:
    from pypaimon.schema import data_types as paimon
    from pyspark.sql import types as spark

    match kind:
        case paimon.RowType():
            fields = kind.fields
            return spark.StructType(
                [spark.StructField(each.name, _spark_type(each.type), each.type.nullable) for each in fields]
            )
        case paimon.ArrayType():
            return spark.ArrayType(_spark_type(kind.element), kind.element.nullable)
        case paimon.MapType():
            return spark.MapType(_spark_type(kind.key), _spark_type(kind.value), kind.value.nullable)
        case paimon.AtomicType():
            return _spark_atom(kind)
        case _:
            raise ValueError(f"Paimon's type {kind} has no counterpart in Spark")


def _spark_atom(kind: Any) -> DataType:
    from pypaimon.schema.data_types import PyarrowFieldParser
    from pyspark.sql import types as spark
    from pyspark.sql.pandas.types import from_arrow_type

    base, length = type_parameter(kind, 1)
    match base:
        case "VARIANT" if hasattr(spark, "VariantType"):
            return spark.VariantType()
        case "CHAR":
            return spark.CharType(length)
        case "VARCHAR" if length < MAX_VARCHAR:
            return spark.VarcharType(length)
        case "VARIANT" | "TIME":
            raise ValueError(f"Paimon's type {kind} has no counterpart in this release of Spark")
        case _:
            return from_arrow_type(PyarrowFieldParser.from_paimon_type(kind), prefer_timestamp_ntz=True)


def in_table_types(batch: DataFrame, table: Any, name: str) -> DataFrame:
    """Return the batch's columns as the table stores them, in its order. `name` is the table's, for errors.

    The conversions are Spark's store assignment. Then timestamps lose the digits that the table doesn't keep.
    """
    from pyspark.sql import functions as f

    columns = spark_schema(table)
    numbers = Counter(map(folding(batch.sparkSession), columns.names))
    alike = [each for each, number in numbers.items() if number > 1]
    if alike:
        raise ValueError(
            f"names of the table's columns {alike} differ only in case: set spark.sql.caseSensitive=true; table={name}"
        )
    rows = assigned(batch, columns, name, partial=True)
    types = {field.name: field.type for field in table.table_schema.fields}
    cut = {
        each: column
        for each in rows.columns
        if (column := _cut(f.col(quoted(each)), types[each])) is not None
    }
    if not cut:
        return rows
    return rows.select(*(cut.get(each, f.col(quoted(each))).alias(each) for each in rows.columns))


def _cut(column: Column, kind: Any) -> Column | None:
    """Return the value as the table keeps it. None: as it is.

    A timestamp with 1 to 3 digits is rounded down to its millisecond, as by Paimon's Spark connector, one with 0 to its second.
    """
    from pypaimon.schema import data_types as paimon
    from pyspark.sql import functions as f

    match kind:
        case paimon.RowType():
            fields = [(each.name, column.getField(each.name), each.type) for each in kind.fields]
            inner = [(name, value, _cut(value, each)) for name, value, each in fields]
            if all(cut is None for _, _, cut in inner):
                return None
            row = f.struct(*((value if cut is None else cut).alias(name) for name, value, cut in inner))
            return f.when(column.isNotNull(), row)
        case paimon.ArrayType() if _is_cut(kind.element):
            return f.transform(column, _always_cut(kind.element))
        case paimon.MapType() if _is_cut(kind.key):
            raise ValueError(f"keys of type {kind.key} in a map can become equal when they lose digits")
        case paimon.MapType() if _is_cut(kind.value):
            cut = _always_cut(kind.value)
            return f.transform_values(column, lambda _, value: cut(value))
        case paimon.AtomicType():
            return _cut_timestamp(column, kind)
        case _:
            return None


def _is_cut(kind: Any) -> bool:
    from pyspark.sql import functions as f

    return _cut(f.lit(None), kind) is not None


def _always_cut(kind: Any) -> Callable[[Column], Column]:
    def cut(column: Column) -> Column:
        found = _cut(column, kind)
        return column if found is None else found

    return cut


def _cut_timestamp(column: Column, kind: Any) -> Column | None:
    from pyspark.sql import functions as f

    base, digits = type_parameter(kind, 6)
    if not base.startswith("TIMESTAMP") or digits > MILLIS:
        return None
    if _spark_atom(kind).typeName() == "timestamp":
        micros = f.unix_micros(column)
        return f.timestamp_micros(micros - f.pmod(micros, f.lit(1_000 if digits else 1_000_000)))
    rest = f.pmod(f.date_part(f.lit("SECOND"), column), f.lit(Decimal("0.001") if digits else Decimal(1)))
    return column - f.make_dt_interval(secs=rest)


def all_columns(rows: DataFrame, table: Any, name: str) -> DataFrame:
    """Return all columns of the table, in its order. Those that the batch doesn't have are NULL."""
    from pyspark.sql import functions as f

    columns, given = _read_schema(table), set(rows.columns)
    lacking = [each.name for each in spark_schema(table) if not each.nullable and each.name not in given]
    if lacking:
        raise ValueError(f"the batch lacks columns {lacking}, which are NOT NULL: add them; table={name}")
    if rows.columns == columns.names:
        return rows
    return rows.select(
        *(
            f.col(quoted(each.name))
            if each.name in given
            else f.lit(None).cast(each.dataType).alias(each.name)
            for each in columns
        )
    )


def partitions_of(rows: DataFrame, table: Any) -> list[Partition]:
    """Return the partitions that the rows belong to, with values as pypaimon has them."""
    keys: Sequence[str] = table.partition_keys
    if not keys:
        return [()] if rows.selectExpr("1").head(1) else []
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
    values = (
        f"unix_date({quoted(name)})" if types[name] == "date" else collected(types[name], quoted(name))
        for name in columns
    )
    return [f"{value} AS {quoted(name)}" for value, name in zip(values, columns, strict=True)]


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
                return datetime(1970, 1, 1) + timedelta(microseconds=value)  # noqa: DTZ001 - without a zone, as in the table
            case _:
                return value
    except OverflowError:
        raise out_of_years(name, table) from None


def with_groups(rows: DataFrame, where: TableAddress) -> DataFrame:
    """Return the rows of a table with a primary key, with the bucket of each in the column `GROUP`."""
    from pyspark.sql.types import StringType, StructField, StructType

    schema = StructType([*rows.schema.fields, StructField(GROUP, StringType())])
    return _map_in_arrow(rows, grouping_function(where), schema)


def _map_in_arrow(rows: DataFrame, function: stage.ArrowFunction, schema: StructType | str) -> DataFrame:
    """Return `rows.mapInArrow(…)`, which can't take columns with a dot or a backquote in their names."""
    if all(name.replace("_", "a").isalnum() for name in rows.columns):
        return rows.mapInArrow(function, schema)
    plain = rows.toDF(*(f"c{number}" for number in range(len(rows.columns))))
    return plain.mapInArrow(stage.renaming(function, rows.columns), schema)


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
    first = [*columns, *([order_by] if order_by is not None else [])]
    types = {field.name: field.dataType for field in rows.schema.fields}
    order = [comparable(name, types[name]) for name in dict.fromkeys([*first, *types])]
    together = rows.repartition(*map(quoted, columns)) if columns else rows.coalesce(1)
    return together.sortWithinPartitions(*order)


def read_frame(rows: DataFrame, table: Any, where: TableAddress, base: Base) -> DataFrame:
    """Return the rows of `base`, which the executors read, in the session of `rows`."""
    spark, schema = rows.sparkSession, _read_schema(table)
    if not base.splits:
        return spark.createDataFrame([], schema)
    return _map_splits(spark, base.splits, partial(stage.reading_function, where), schema)


def _map_splits(
    spark: SparkSession, splits: Sequence[Any], function: Callable[[list[bytes]], Any], schema: StructType
) -> DataFrame:
    """Return what executors make of the splits. `function` gets them pickled, and returns one of their numbers."""
    tasks = min(len(splits), engine_of(spark).parallelism(spark))
    pickled = [pickle.dumps(split) for split in splits]
    return spark.range(0, len(splits), 1, tasks).mapInArrow(function(pickled), schema)


def to_rewrite(rows: DataFrame, table: Any, where: TableAddress, base: Base, keys: Sequence[str]) -> Base:
    """Return the part of `base` with rows that the batch changes. `rows` has each key once, and is persisted."""
    splits = large_files(base)
    if not splits:
        return base
    function = partial(keys_function, where, keys=keys, ranges=_ranges_of(rows, table, keys))
    found = _map_splits(rows.sparkSession, splits, function, _keys_schema(table, keys))
    same = reduce(and_, (found[quoted(key)].eqNullSafe(rows[quoted(key)]) for key in keys))
    matched = {row[0] for row in found.join(rows, same, "left_semi").select(FILE).distinct().collect()}
    return without_files(base, (split for number, split in enumerate(splits) if number not in matched))


def _keys_schema(table: Any, keys: Sequence[str]) -> StructType:
    from pyspark.sql.types import LongType, StructField, StructType

    types = {field.name: field for field in _read_schema(table)}
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


def stage_files(rows: DataFrame, staging: stage.Staging) -> list[Any]:
    """Write the rows to the table's storage. Return the commit messages of the staged files."""
    pickled = _map_in_arrow(rows, stage.staging_function(staging), stage.STAGED_SCHEMA).collect()
    return [pickle.loads(row.message) for row in pickled]  # noqa: S301 - from this job's own tasks
