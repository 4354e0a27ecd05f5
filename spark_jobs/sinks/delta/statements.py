"""The statements that write a batch: an append, a MERGE by keys, an overwrite of the batch's partitions.

The condition of a MERGE names the partitions of the batch as literals in the types of the table's columns, exactly those
that occur. Delta takes a MERGE without them as having read the whole table, and lets any other commit conflict with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import groupby
from operator import and_, or_
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Partition: TypeAlias = tuple[Any, ...]
"""Values of the partition columns, in the table's order."""


def append(batch: DataFrame, location: str) -> Callable[[], object]:
    """Return the statement that adds the batch's rows."""
    return lambda: batch.write.format("delta").mode("append").save(location)


def merge(
    rows: DataFrame,
    location: str,
    *,
    keys: Sequence[str],
    written: Sequence[str],
    partition_types: Mapping[str, str],
    partitions: Sequence[Partition],
    delete_condition: str | None,
    update_condition: str | None,
) -> Callable[[], object]:
    """Return the MERGE of `rows`, which has each key once. It writes the columns `written`; others keep their values."""
    from pyspark.sql import functions as f

    spark = rows.sparkSession
    jvm: Any = spark._jvm
    on = [_column("t", key).eqNullSafe(_column("s", key)) for key in keys]
    if partition_types:
        on.append(are_partitions("t", partition_types, partitions))
    condition = reduce(and_, on)
    inserted = {name: _column("s", name) for name in written}
    updated = {name: column for name, column in inserted.items() if name not in keys}

    deletes = None
    if delete_condition is not None:
        deletes = f.coalesce(f.expr(delete_condition), f.lit(False))  # noqa: FBT003 - a literal value

    def statement() -> None:
        target = getattr(jvm.io.delta.tables.DeltaTable.forPath(spark._jsparkSession, location), "as")("t")
        builder = target.merge(getattr(rows._jdf, "as")("s"), _java(condition))
        if deletes is not None:
            builder = builder.whenMatched(_java(deletes)).delete()
        if updated:
            condition_given = () if update_condition is None else (_java(f.expr(update_condition)),)
            builder = builder.whenMatched(*condition_given).update(_java_map(jvm, updated))
        not_deleted = () if deletes is None else (_java(~deletes),)
        builder.whenNotMatched(*not_deleted).insert(_java_map(jvm, inserted)).execute()

    return statement


def are_partitions(alias: str, types: Mapping[str, str], partitions: Sequence[Partition]) -> Column:
    """Return the condition that a row of `alias` is in one of these partitions.

    Partitions that differ in their last value only share one list of it.
    """
    columns = list(types.items())
    ordered = sorted(partitions, key=lambda values: [(value is None, str(value)) for value in values])
    alternatives = []
    for prefix, group in groupby(ordered, key=lambda values: values[:-1]):
        last = _is_one_of(alias, *columns[-1], [values[-1] for values in group])
        equal = [
            _is_one_of(alias, *column, [value]) for column, value in zip(columns[:-1], prefix, strict=True)
        ]
        alternatives.append(reduce(and_, [*equal, last]))
    return reduce(or_, alternatives)


def _is_one_of(alias: str, name: str, kind: str, values: Sequence[Any]) -> Column:
    from pyspark.sql import functions as f

    column = _column(alias, name)
    known = [f.lit(value).cast(kind) for value in values if value is not None]
    conditions = [column.isin(known)] if known else []
    if len(known) < len(values):
        conditions.append(column.isNull())
    return reduce(or_, conditions)


def _column(alias: str, name: str) -> Column:
    from pyspark.sql import functions as f

    return f.col(f"{alias}.`{name.replace('`', '``')}`")


def _java(column: Column) -> Any:
    return column._jc


def _java_map(jvm: Any, columns: Mapping[str, Column]) -> Any:
    found = jvm.java.util.HashMap()
    for name, column in columns.items():
        found.put(f"`{name.replace('`', '``')}`", _java(column))
    return found
