"""An upsert as one MERGE of Spark SQL: its options, the rows that it merges, and its statement.

Delta and Iceberg take a MERGE for one that has read the whole table, unless its condition has literals for the partition
fields. Then a commit to any other partition is a conflict. So each MERGE has them, exactly those that occur, NULL included.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from lakewarden.spark_jobs.sinks.assignment import folding
from lakewarden.spark_jobs.sinks.merge import has_order, is_exact, latest, unused
from lakewarden.spark_jobs.sinks.partitions import (
    Field,
    Partition,
    computed_in,
    is_column,
    is_key,
    quoted,
    restriction,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


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
        return found

    def one_row_per_key(
        self,
        rows: DataFrame,
        fields: Sequence[Field],
        table: str,
        stored: Mapping[str, str] = MappingProxyType({}),
    ) -> DataFrame:
        """Return one row for each key in each partition, as a MERGE needs them. `stored`: as for `computed_in`."""
        same = {field.column for field in fields if is_key(field, self.keys, stored)}
        identity = [key for key in self.keys if key not in same]
        taken = rows.columns
        computed: dict[str, str] = {}
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
            f"{field.expression('t')} {'<=>' if None in values else '='} {computed_in(field, stored, 's')}"
            for field, values in zip(fields, zip(*partitions, strict=True), strict=True)
            if field.column not in self.keys or field.column in stored
        ]
        given = {field.column: computed_in(field, {}, "s") for field in fields if is_column(field)}
        same += [
            f"t.{quoted(key)} {'=' if key in required else '<=>'} {given.get(key, f's.{quoted(key)}')}"
            for key in self.keys
        ]
        within = restriction(fields, partitions, "t")
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


@contextmanager
def as_view(rows: DataFrame, name: str) -> Iterator[str]:
    """Give the rows a name in the session's SQL for the block."""
    rows.createOrReplaceTempView(name)
    try:
        yield quoted(name)
    finally:
        # `spark.catalog.dropTempView` also unpersists the rows: the batch's, if these are the same ones.
        rows.sparkSession._jsparkSession.sessionState().catalog().dropTempView(name)  # noqa: SLF001
