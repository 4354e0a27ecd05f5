"""Merging a batch into existing rows, as functions of DataFrames.

Rows with equal keys are one row. A column that the batch has takes the batch's value, null included; any other column keeps
its value. Of equal keys within one batch one row remains. It is chosen by its values and not by its position, so a replayed
batch gives the same table.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from lakewarden.spark_jobs.sinks.partitions import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType


def latest(changes: DataFrame, keys: Sequence[str], order_by: str | None = None) -> DataFrame:
    """Return one row per key: the greatest by `order_by`, then by all columns from left to right.

    Types without an order, such as maps, are compared as JSON. The row keeps its own key: 0.0 and -0.0 are equal, and differ.
    """
    from pyspark.sql import functions as f

    types = {field.name: field.dataType for field in changes.schema.fields}
    carried = [name for name in changes.columns if name not in keys or not is_exact(types[name])]
    ordered = [order_by, *(name for name in carried if name != order_by)] if order_by in carried else carried
    if not ordered:
        return changes.dropDuplicates(list(keys))
    row = unused("_lakewarden_row", changes.columns)
    values = f.struct(*(f.col(quoted(name)) for name in ordered))
    if all(has_order(types[name]) for name in ordered):
        greatest = f.max(values)
    else:
        greatest = f.max_by(values, f.struct(*(comparable(name, types[name]) for name in ordered)))
    reduced = changes.groupBy(*(f.col(quoted(key)) for key in keys)).agg(greatest.alias(row))
    return reduced.select(
        *(
            f.col(row).getField(name).alias(name) if name in carried else f.col(quoted(name))
            for name in changes.columns
        )
    )


def unused(name: str, columns: Collection[str]) -> str:
    """Return the name, or one like it that none of the columns has, whatever the case."""
    taken = {column.lower() for column in columns}
    while name.lower() in taken:
        name += "_"
    return name


def has_order(kind: DataType) -> bool:
    """Return whether Spark compares and groups values of this type. It doesn't for maps, variants and calendar intervals."""
    from pyspark.sql import types

    match kind:
        case types.StructType():
            return all(has_order(field.dataType) for field in kind.fields)
        case types.ArrayType():
            return has_order(kind.elementType)
        case _:
            return kind.typeName() not in {"map", "variant", "interval"}


def is_exact(kind: DataType) -> bool:
    """Return whether equal values of this type are the same value."""
    from pyspark.sql import types

    if isinstance(kind, types.StringType):
        return kind.simpleString() == "string"  # no collation
    return not isinstance(
        kind, types.FractionalType | types.StructType | types.ArrayType | types.MapType
    ) or (isinstance(kind, types.DecimalType))


def comparable(name: str, kind: DataType) -> Column:
    """Return the column, or as JSON what Spark doesn't order."""
    from pyspark.sql import functions as f

    column = f.col(quoted(name))
    if has_order(kind):
        return column
    microseconds = {"ignoreNullFields": "false", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"}
    return f.to_json(f.struct(column.alias("value")), microseconds)


def merge(base: DataFrame, changes: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return `base` with `changes` merged into it. `changes` has the keys and any of the other columns of `base`."""
    from pyspark.sql import functions as f

    mark = unused("_lakewarden_changed", [*base.columns, *changes.columns])
    old, new = base.alias("old"), changes.withColumn(mark, f.lit(True)).alias("new")  # noqa: FBT003 - a literal value
    same = reduce(and_, (f.col(f"old.{quoted(key)}").eqNullSafe(f.col(f"new.{quoted(key)}")) for key in keys))
    changed = f.col(f"new.{mark}").isNotNull()
    brought = set(changes.columns)
    return old.join(new, same, "full_outer").select(
        *(
            (
                f.when(changed, f.col(f"new.{quoted(name)}")).otherwise(f.col(f"old.{quoted(name)}"))
                if name in brought
                else f.col(f"old.{quoted(name)}")
            ).alias(name)
            for name in base.columns
        )
    )
