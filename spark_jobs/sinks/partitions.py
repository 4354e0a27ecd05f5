"""The partitions of a batch: found by one Spark job, named by markers, and written as typed literals in SQL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
class PartitionScope(BatchScope):
    """The partitions that a batch touches, with their values."""

    partitions: tuple[Partition, ...]
    fields: tuple[Field, ...]
    """The partition fields of the table at that time."""
    batch: DataFrame
    """The batch in which they were found."""


def known_partitions(
    scope: BatchScope | None, batch: DataFrame, fields: Sequence[Field]
) -> tuple[Partition, ...] | None:
    """Return the partitions of a batch whose scope has them, or None.

    The scope holds for the rows that were read for it: for this very batch, if it is persisted. A row in any other partition
    would be inserted a second time by a MERGE that is restricted to the scope.
    """
    if not isinstance(scope, PartitionScope) or scope.batch is not batch or not is_persisted(batch):
        return None
    return scope.partitions if scope.fields == tuple(fields) else None


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


def partitions_of(rows: DataFrame, fields: Sequence[Field], table: str) -> tuple[Partition, ...]:
    """Return the partitions of the rows, by one Spark job: none if there are no rows.

    Raises `ValueError` if there are more than `MAX_PARTITIONS`.
    """
    if not fields:
        return ((),) if rows.head(1) else ()
    values = rows.selectExpr(*(field.expression() for field in fields)).distinct()
    found = tuple(tuple(row) for row in values.limit(MAX_PARTITIONS + 1).collect())
    if len(found) > MAX_PARTITIONS:
        raise ValueError(
            f"the batch touches more than {MAX_PARTITIONS} partitions; make the batches smaller, or the partitions larger; "
            f"table={table}"
        )
    return found


def merge_markers(paths: Iterable[str]) -> tuple[Marker, ...]:
    """Return the markers of a statement that rewrites these partitions."""
    return tuple(
        Marker(partition=path, file_group=ALL_FILE_GROUPS, operation="merge") for path in dict.fromkeys(paths)
    )
