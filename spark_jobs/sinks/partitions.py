"""The partitions of a batch: found by one query, named by markers, and written as typed literals in SQL.

For an upsert the same query finds whether keys repeat. If they don't, a MERGE takes the rows as they are. One row for each key
costs a shuffle and a sort of whole rows, and a MERGE reads its source more than once.

The query groups the rows. For few rows two shuffles cost more than the grouping itself, so one task groups them, without a
shuffle. How many they are is known after the job that persists them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from lakewarden.events import ALL_FILE_GROUPS, Marker
from lakewarden.spark_jobs.gate.batch_scope import BatchScope
from lakewarden.spark_jobs.sinks.partition_paths import MAX_PARTITIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Partition: TypeAlias = tuple[Any, ...]
"""Values of the partition fields, in the table's order. Empty for an unpartitioned table."""

ONE_TASK_ROWS = 100_000
"""Up to which one task groups the rows of a batch. On two cores that took less time than shuffles even for twice as many."""

MAX_COMBINATIONS = 100
"""Of all partition fields but the last, in one condition. Beyond, each field is restricted by itself, which covers more."""


def quoted(name: str) -> str:
    """Return an identifier for SQL."""
    return f"`{name.replace('`', '``')}`"


class Field(Protocol):
    """A partition field: a column, or a function of one that is NULL for NULL only."""

    @property
    def column(self) -> str:
        """The column that it is computed from."""
        ...

    @property
    def value_type(self) -> str:
        """Spark type of its values."""
        ...

    def expression(self, alias: str | None = None) -> str:
        """Return the SQL that computes it from a row."""
        ...


@dataclass(frozen=True, slots=True)
class PartitionColumn:
    """A partition field that is a column itself."""

    column: str
    value_type: str

    def expression(self, alias: str | None = None) -> str:
        """Return the column."""
        return f"{alias}.{quoted(self.column)}" if alias else quoted(self.column)


def literal(value: Any, kind: str) -> str:
    """Return a value as SQL of the Spark type `kind`. A text is written in hexadecimal: it needs no escapes."""
    match value:
        case bool():
            return str(value).upper()
        case str():
            return f"CAST(X'{value.encode().hex()}' AS {kind})"
        case int():
            return f"CAST({value} AS {kind})"
        case Decimal() | date():
            return f"CAST('{value}' AS {kind})"
        case _:
            raise ValueError(f"{value!r} is no value of a partition field of type {kind}")


def restriction(fields: Sequence[Field], partitions: Sequence[Partition], alias: str) -> str | None:
    """Return the condition that a row is in one of the partitions, or None if the table is unpartitioned."""
    if not fields:
        return None
    *outer, last = fields
    inner: dict[Partition, list[Any]] = {}
    for partition in partitions:
        inner.setdefault(partition[:-1], []).append(partition[-1])
    if len(inner) > MAX_COMBINATIONS:
        columns = zip(*partitions, strict=True)
        return " AND ".join(
            _one_of(field, values, alias) for field, values in zip(fields, columns, strict=True)
        )
    alternatives = [
        " AND ".join(
            [
                *(_one_of(field, [value], alias) for field, value in zip(outer, prefix, strict=True)),
                _one_of(last, values, alias),
            ]
        )
        for prefix, values in inner.items()
    ]
    return (
        alternatives[0] if len(alternatives) == 1 else f"({' OR '.join(f'({one})' for one in alternatives)})"
    )


def _one_of(field: Field, values: Sequence[Any], alias: str) -> str:
    known = dict.fromkeys(value for value in values if value is not None)
    listed = ", ".join(literal(value, field.value_type) for value in known)
    # Iceberg can't push "transform IS NULL" down.
    is_null = f"{alias}.{quoted(field.column)} IS NULL"
    if not known:
        return is_null
    among = f"{field.expression(alias)} IN ({listed})"
    return f"({among} OR {is_null})" if None in values else among


@dataclass(frozen=True, slots=True)
class BatchContent:
    """What a Spark job found in the rows of a batch."""

    partitions: tuple[Partition, ...]
    """None if there are no rows."""
    keys_repeat: bool = False
    """Whether several rows of one partition have the same keys."""


@dataclass(frozen=True, slots=True)
class PartitionScope(BatchScope):
    """The partitions that a batch touches, with their values."""

    content: BatchContent
    fields: tuple[Field, ...]
    """The partition fields of the table at that time."""
    keys: tuple[str, ...]
    """Of an upsert."""
    batch: DataFrame
    """The batch in which the content was found."""


def cast_columns(rows: DataFrame, types: Mapping[str, str]) -> DataFrame:
    """Return the rows with these columns, if they have them, cast to these types."""
    if all(types.get(name, kind) == kind for name, kind in rows.dtypes):
        return rows
    # As texts: an expression of columns takes several calls into the JVM for each of them.
    return rows.selectExpr(
        *(
            f"CAST({quoted(name)} AS {types[name]}) AS {quoted(name)}" if name in types else quoted(name)
            for name in rows.columns
        )
    )


def known_content(
    scope: BatchScope | None, batch: DataFrame, fields: Sequence[Field], keys: Sequence[str]
) -> BatchContent | None:
    """Return the content of a batch whose scope has it, or None.

    The scope holds for the rows that were read for it: for this very batch, if it is persisted. A row in any other partition
    would be inserted a second time by a MERGE that is restricted to the scope.
    """
    if not isinstance(scope, PartitionScope) or scope.batch is not batch or not is_persisted(batch):
        return None
    return scope.content if (scope.fields, scope.keys) == (tuple(fields), tuple(keys)) else None


def is_persisted(rows: DataFrame) -> bool:
    """Return whether the rows are computed at most once, and so are the same each time."""
    level = rows.storageLevel
    return level.useMemory or level.useDisk or level.useOffHeap


@contextmanager
def computed_once(rows: DataFrame, batch: DataFrame) -> Iterator[None]:
    """Let several jobs of the block see the same `rows`, which come from `batch`."""
    if is_persisted(batch):
        yield
        return
    rows.persist()
    try:
        yield
    finally:
        rows.unpersist()


def content_of(
    rows: DataFrame, fields: Sequence[Field], keys: Sequence[str], table: str, *, persisted: bool
) -> BatchContent:
    """Return the content of the rows. Without `keys` it doesn't find whether they repeat.

    `persisted`: whether the rows are computed at most once. If not, they aren't counted before they are grouped.

    Raises `ValueError` if there are more than `MAX_PARTITIONS` partitions.
    """
    if not fields and not keys:
        return BatchContent(((),) if rows.head(1) else ())
    if persisted and _count(rows) <= ONE_TASK_ROWS:
        rows = rows.coalesce(1)
    found = _repeats(rows, fields, keys) if keys else _partitions(rows, fields).distinct()
    collected = found.limit(MAX_PARTITIONS + 1).collect()
    if len(collected) > MAX_PARTITIONS:
        raise ValueError(
            f"the batch touches more than {MAX_PARTITIONS} partitions; make the batches smaller, or the partitions larger; "
            f"table={table}"
        )
    partitions = tuple(tuple(row[: len(fields)]) for row in collected)
    return BatchContent(partitions, bool(keys) and any(row["most"] > 1 for row in collected))


def _count(rows: DataFrame) -> int:
    """Count the rows, as `count()` does, but without its shuffle. It computes them by as many tasks as they have partitions."""
    return int(rows.select()._jdf.queryExecution().toRdd().count())  # noqa: SLF001 - the RDD of PySpark converts each row


def _partitions(rows: DataFrame, fields: Sequence[Field], *others: str) -> DataFrame:
    computed = (f"{field.expression()} AS {_name(number)}" for number, field in enumerate(fields))
    return rows.selectExpr(*computed, *others)


def _repeats(rows: DataFrame, fields: Sequence[Field], keys: Sequence[str]) -> DataFrame:
    """Return each partition, and as `most` how many of its rows have the same keys, at most."""
    from pyspark.sql import functions as f

    named = [_name(number) for number in range(len(fields))]
    others = [f"key{number}" for number in range(len(keys))]
    identified = _partitions(
        rows, fields, *(f"{quoted(key)} AS {name}" for key, name in zip(keys, others, strict=True))
    )
    counted = identified.groupBy(*named, *others).agg(f.count("*").alias("rows"))
    return counted.groupBy(*named).agg(f.max("rows").alias("most")).where("most IS NOT NULL")


def _name(number: int) -> str:
    return f"field{number}"


def merge_markers(paths: Iterable[str]) -> tuple[Marker, ...]:
    """Return the markers of a statement that rewrites these partitions."""
    return tuple(
        Marker(partition=path, file_group=ALL_FILE_GROUPS, operation="merge") for path in dict.fromkeys(paths)
    )
