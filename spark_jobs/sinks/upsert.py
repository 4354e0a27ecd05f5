"""An upsert as one MERGE of Spark SQL: its options, the rows that it merges, and its statement.

Delta and Iceberg take a MERGE for one that has read the whole table, unless its condition has literals for the partition
fields. Then a commit to any other partition is a conflict. So each MERGE has them, exactly those that occur, NULL included.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from lakewarden.spark_jobs.sinks.merge import latest
from lakewarden.spark_jobs.sinks.partitions import Field, Partition, quoted, restriction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


Mode: TypeAlias = Literal["append", "upsert", "overwrite"]
"""Of a sink. `overwrite` replaces the rows of the partitions that the batch has."""


@dataclass(frozen=True, slots=True)
class Upsert:
    """What an upsert does with the rows of its batch (`s`) and of the table (`t`). The conditions are SQL."""

    keys: tuple[str, ...]
    """Columns that identify a row within its partition. NULL equals NULL."""
    order_by: str | None = None
    """Of several rows of a batch with equal keys, the one with the greatest value here remains."""
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

    def may_bring(self, column: str) -> bool:
        """Return whether the batch may have this column although the table doesn't."""
        conditions = f"{self.delete_condition or ''} {self.update_condition or ''}"
        return column == self.order_by or re.search(rf"\b{re.escape(column)}\b", conditions) is not None

    def one_row_per_key(self, rows: DataFrame, fields: Sequence[Field]) -> DataFrame:
        """Return one row for each key in each partition, as a MERGE needs them."""
        from pyspark.sql import functions as f

        identity = dict.fromkeys(self.keys)
        computed: list[str] = []
        for number, field in enumerate(fields):
            if _is_column(field):
                identity[field.column] = None
            elif field.column not in identity:
                name = f"_lakewarden_partition_{number}"
                rows = rows.withColumn(name, f.expr(field.expression()))
                computed.append(name)
        return latest(rows, [*identity, *computed], self.order_by).drop(*computed)

    def statement(
        self,
        target: str,
        source: str,
        *,
        fields: Sequence[Field],
        partitions: Sequence[Partition],
        required: Collection[str],
        assigned: Sequence[str],
        others: Mapping[str, str],
    ) -> str:
        """Return the MERGE. `assigned` columns are the batch's. `others`, with their types, are NULL in inserted rows.

        `required` columns of the table are NOT NULL: a row of the batch with a NULL there matches none, and can't be inserted.
        """
        # Spark sorts by the columns in this order. With the partition first, the rows of each partition are written in one go.
        # It sorts and hashes by two expressions for each `<=>`, so only what may be NULL has it.
        same = [
            f"{field.expression('t')} {'<=>' if None in values else '='} {field.expression('s')}"
            for field, values in zip(fields, zip(*partitions, strict=True), strict=True)
            if field.column not in self.keys
        ]
        same += [f"t.{quoted(key)} {'=' if key in required else '<=>'} s.{quoted(key)}" for key in self.keys]
        within = restriction(fields, partitions, "t")
        clauses = [
            f"MERGE INTO {target} t USING {source} s ON {' AND '.join([*same, *([within] if within else [])])}"
        ]
        if self.delete_condition:
            clauses.append(f"WHEN MATCHED AND ({self.delete_condition}) THEN DELETE")
        equal = {*self.keys, *(field.column for field in fields if _is_column(field))}
        updated = [name for name in assigned if name not in equal]
        if updated:
            condition = f" AND ({self.update_condition})" if self.update_condition else ""
            values = ", ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in updated)
            clauses.append(f"WHEN MATCHED{condition} THEN UPDATE SET {values}")
        inserted = f" AND NOT coalesce(({self.delete_condition}), FALSE)" if self.delete_condition else ""
        columns = ", ".join(quoted(name) for name in (*assigned, *others))
        nulls = (f"CAST(NULL AS {kind})" for kind in others.values())
        row = ", ".join([*(f"s.{quoted(name)}" for name in assigned), *nulls])
        clauses.append(f"WHEN NOT MATCHED{inserted} THEN INSERT ({columns}) VALUES ({row})")  # noqa: S608 - names and literals are quoted
        return " ".join(clauses)


def _is_column(field: Field) -> bool:
    return field.expression() == quoted(field.column)


def require_columns(given: Collection[str], needed: Collection[str], table: str) -> None:
    """Raise `ValueError` if the batch lacks columns that are needed."""
    missing = sorted(set(needed) - set(given))
    if missing:
        raise ValueError(
            f"the batch lacks columns {missing}, which are keys, partition columns or required ones; table={table}"
        )


def require_known(given: Collection[str], known: Collection[str], upsert: Upsert, table: str) -> None:
    """Raise `ValueError` if the batch has columns that the table lacks, and that the upsert doesn't use either."""
    unknown = [name for name in given if name not in known and not upsert.may_bring(name)]
    if unknown:
        raise ValueError(
            f"the table has no columns {unknown}: add them with ALTER TABLE, or drop them from the batch; table={table} "
            f"columns={list(known)}"
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
