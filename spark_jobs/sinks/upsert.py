"""Merging a batch into existing rows: by one MERGE of Spark SQL, or as functions of DataFrames.

Delta and Iceberg take a MERGE for one that has read the whole table, unless its condition has literals for the partition
fields. Then a commit to any other partition is a conflict. So each MERGE has them, exactly those that occur, NULL included.

Rows with equal keys are one row. A column that the batch has takes the batch's value, null included; any other column keeps
its value. Of equal keys within one batch one row remains. It is chosen by its values and not by its position, so a replayed
batch gives the same table.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from lakewarden.spark_jobs.engine.engine import quoted
from lakewarden.spark_jobs.sinks.assignment import LENGTH, NOT_STORED, UUID, folding
from lakewarden.spark_jobs.sinks.partition_paths import in_hex, type_in_sql
from lakewarden.spark_jobs.sinks.partitions import (
    Field,
    Partition,
    computed_in,
    is_column,
    is_key,
    restriction,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructField, StructType


Mode: TypeAlias = Literal["append", "upsert", "overwrite"]
"""What a sink does. `overwrite` replaces the rows of the partitions that the batch has."""


@dataclass(frozen=True, slots=True)
class Upsert:
    """What an upsert does with the rows of its batch (`s`) and of the table (`t`). The conditions are SQL."""

    keys: tuple[str, ...]
    """Columns that identify a row within its partition. NULL equals NULL."""
    order_by: str | None = None
    """Among rows of a batch with equal keys, the one with the greatest value here remains."""
    delete_condition: str | None = None
    """On `s`: the row is deleted, or not inserted."""
    update_condition: str | None = None
    """On `s` and `t`: otherwise a row that exists stays as it is."""

    def require_mode(self, mode: str) -> None:
        """Raise `ValueError` if these options don't belong to the sink's mode, or if there is no such mode."""
        if mode not in get_args(Mode):
            raise ValueError(f"mode {mode!r} is none of {', '.join(get_args(Mode))}")
        if (mode == "upsert") != bool(self.keys):
            raise ValueError(
                f"mode {mode!r} with keys={list(self.keys)}: give `keys` for upsert, and only for upsert"
            )
        if mode != "upsert" and (self.order_by or self.delete_condition or self.update_condition):
            raise ValueError(f"order_by, delete_condition and update_condition are for upsert, not {mode!r}")

    def of_columns(self, columns: Sequence[str], spark: SparkSession, table: str) -> Upsert:
        """Return the upsert with its keys as the table spells them. Raise `ValueError` if it lacks one."""
        folded = folding(spark)
        spelling = {folded(name): name for name in columns}
        missing = [key for key in self.keys if folded(key) not in spelling]
        if missing:
            raise ValueError(
                f"the table has no columns {missing}, which are keys; table={table} columns={list(columns)}"
            )
        return replace(
            self, keys=tuple(key if key in columns else spelling[folded(key)] for key in self.keys)
        )

    def may_bring(self, column: str) -> bool:
        """Return whether the batch may have this column although the table doesn't."""
        conditions = f"{self.delete_condition or ''} {self.update_condition or ''}".replace("``", "`")
        named = re.search(rf"(?i)(?<!\w){re.escape(column)}(?!\w)", conditions)
        return named is not None or column.lower() == (self.order_by or "").lower()

    def order_column(self, rows: DataFrame, table: str) -> str | None:
        """Return `order_by` as the rows spell it. Raise `ValueError` if they lack it."""
        if self.order_by is None:
            return None
        folded = folding(rows.sparkSession)
        found = next((name for name in rows.columns if folded(name) == folded(self.order_by)), None)
        if found is None:
            raise ValueError(f"order_by={self.order_by!r} is not a column of the batch; table={table}")
        require_order(rows, found, table)
        return found

    def one_row_per_key(
        self,
        rows: DataFrame,
        fields: Sequence[Field],
        table: str,
        stored: Mapping[str, str] = MappingProxyType({}),
        converted: Mapping[str, str] = MappingProxyType({}),
    ) -> DataFrame:
        """Return one row for each key in each partition, as a MERGE needs them. `stored`: as for `computed_in`.

        `converted`: as of `converted_keys`. They are one key if they are stored as one.
        """
        same = {field.column for field in fields if is_key(field, self.keys, stored)}
        identity = [key for key in self.keys if key not in same and key not in converted]
        taken = rows.columns
        computed: dict[str, str] = {}
        for value in converted.values():
            computed[unused("_lakewarden_key", [*taken, *computed])] = value
        for field in fields:
            value = computed_in(field, stored)
            if value == quoted(field.column):
                identity.append(field.column)
            elif field.column not in identity or field.column in stored:
                computed[unused("_lakewarden_partition", [*taken, *computed])] = value
        if computed:
            rows = rows.selectExpr("*", *(f"{value} AS {name}" for name, value in computed.items()))
        order_by = self.order_column(rows, table)
        return latest(rows, [*dict.fromkeys(identity), *computed], order_by).select(*map(quoted, taken))

    def statement(
        self,
        target: str,
        source: str,
        *,
        fields: Sequence[Field],
        partitions: Sequence[Partition],
        required: Collection[str],
        assigned: Sequence[str],
        others: Mapping[str, str] = MappingProxyType({}),
        stored: Mapping[str, str] = MappingProxyType({}),
        inexact: Collection[str] = (),
    ) -> str:
        """Return the MERGE. `assigned` columns are the batch's, `others` have the value of this SQL in inserted rows.

        `stored`: as for `computed_in`. `inexact` keys and partition columns can be equal to the table's and differ: 0.0 and
        -0.0, or 1 and '01'. They are updated. `required` columns of the table are NOT NULL: a row of the batch with a NULL there
        matches none, and can't be inserted.
        """
        # Spark sorts by the columns in this order. With the partition first, the rows of each partition are written in one go.
        # It sorts and hashes by two expressions for each `<=>`, so only what may be NULL has it.
        same = [
            f"{field.expression()} {'<=>' if None in values else '='} {computed_in(field, stored, 's')}"
            for field, values in zip(fields, zip(*partitions, strict=True), strict=True)
            if field.column not in self.keys or field.column in stored
        ]
        given = {field.column: computed_in(field, {}, "s") for field in fields if is_column(field)}
        same += [
            f"t.{quoted(key)} {'=' if key in required else '<=>'} {given.get(key, f's.{quoted(key)}')}"
            for key in self.keys
        ]
        within = restriction(fields, partitions)
        clauses = [
            f"MERGE INTO {target} t USING {source} s ON {' AND '.join([*same, *([within] if within else [])])}"
        ]
        if self.delete_condition:
            clauses.append(f"WHEN MATCHED AND ({self.delete_condition}) THEN DELETE")
        equal = {*self.keys, *(field.column for field in fields if is_column(field))} - {*inexact}
        updated = [name for name in assigned if name not in equal]
        if updated:
            condition = f" AND ({self.update_condition})" if self.update_condition else ""
            values = ", ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in updated)
            clauses.append(f"WHEN MATCHED{condition} THEN UPDATE SET {values}")
        inserted = f" AND NOT coalesce(({self.delete_condition}), FALSE)" if self.delete_condition else ""
        columns = ", ".join(quoted(name) for name in (*assigned, *others))
        row = ", ".join([*(f"s.{quoted(name)}" for name in assigned), *others.values()])
        clauses.append(f"WHEN NOT MATCHED{inserted} THEN INSERT ({columns}) VALUES ({row})")  # noqa: S608 - names and literals are quoted
        return " ".join(clauses)


def inexact_keys(
    keys: Sequence[str], fields: Sequence[Field], given: StructType, columns: StructType, table: str
) -> list[str]:
    """Return the keys and partition columns whose equal values may differ.

    Raises `ValueError` for keys that Spark can't compare.
    """
    types = {field.name: field.dataType for field in given.fields}
    unordered = [key for key in keys if not has_order(types[key])]
    if unordered:
        raise ValueError(
            f"Spark doesn't compare values of the types of the keys {unordered}, maps for example: use other keys; table={table}"
        )
    partitioned_by = [field.column for field in fields if is_column(field)]
    return [
        name
        for name in dict.fromkeys([*keys, *partitioned_by])
        if not is_exact(columns[name].dataType)
        or (name not in partitioned_by and types[name] != columns[name].dataType)
    ]


def converted_keys(keys: Sequence[str], given: StructType, columns: StructType) -> dict[str, str]:
    """Return SQL of what the table stores, for the keys that it may store otherwise than the batch has them."""
    found = {key: _stored(quoted(key), given[key].dataType, columns[key]) for key in keys}
    return {key: value for key, value in found.items() if value is not None}


def _stored(name: str, given: DataType, column: StructField) -> str | None:
    padded = re.fullmatch(r"char\((\d+)\)", column.metadata.get(LENGTH, ""))
    if padded:
        return f"rpad({name}, {padded[1]}, ' ')"
    if column.metadata.get(UUID):
        return f"lower({name})"
    return None if given == column.dataType else f"try_cast({name} AS {type_in_sql(column.dataType)})"


def lossless(converted: Mapping[str, str], given: StructType, columns: StructType) -> dict[str, str]:
    """Return SQL of these keys that fails for a value which loses something when it is stored.

    A MERGE compares the batch's own value. It wouldn't find such a row again, and would insert it with each batch. A value that
    doesn't fit is an error, or NULL: NaN in a decimal.
    """
    checked = {}
    for key, value in converted.items():
        name, column = quoted(key), columns[key]
        kind = column.metadata.get(LENGTH) or column.metadata.get(UUID) or column.dataType.simpleString()
        text = (
            f"{NOT_STORED}: the key {key!r} has type {given[key].dataType.simpleString()} in the batch, and {kind} in the table, "
            "which stores another value or none, so that no batch would find the row again: cast it in the batch: "
        )
        failure = f"raise_error(concat({in_hex(text)}, CAST({name} AS string)))"
        checked[key] = f"CASE WHEN {value} <=> {name} THEN {name} ELSE {failure} END"
    return checked


def require_order(rows: DataFrame, order_by: str, table: str) -> None:
    """Raise `ValueError` if Spark doesn't order the values of this column."""
    kind = rows.schema[order_by].dataType
    if not has_order(kind):
        raise ValueError(
            f"order_by={order_by!r} has the type {kind.simpleString()}, whose values Spark doesn't order: use another column; "
            f"table={table}"
        )


def require_comparable(
    keys: Sequence[str], stored: Collection[str], given: StructType, columns: StructType, table: str
) -> None:
    """Raise `ValueError` for a key of which several partitions of the table could equal one value of the batch.

    `stored` are partition columns whose type isn't the batch's. The text `01` equals the number 1, and is another partition.
    """
    for key in keys:
        kind, other = columns[key].dataType.simpleString(), given[key].dataType.simpleString()
        rounded = other in {"float", "double"} and (kind == "bigint" or kind.startswith("decimal"))
        if key in stored and (kind.startswith("string") or rounded):
            raise ValueError(
                f"the key {key!r} is a partition column of type {kind}, and the batch has type {other}, in which different "
                f"partitions are equal: cast it in the batch; table={table}"
            )


def require_columns(given: Collection[str], needed: Collection[str], table: str) -> None:
    """Raise `ValueError` if the batch lacks columns that are needed."""
    missing = sorted(set(needed) - set(given))
    if missing:
        raise ValueError(
            f"the batch lacks columns {missing}, which are keys, partition columns or required ones; table={table}"
        )


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
    microseconds = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
    options = {
        "ignoreNullFields": "false",
        "timestampFormat": microseconds,
        "timestampNTZFormat": microseconds,
        "timeZone": "UTC",  # others repeat an hour
    }
    return f.to_json(f.struct(column.alias("value")), options)


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
