"""The partitions of a batch: found by one query, named by markers, and written as typed literals in SQL.

For an upsert the same query finds whether keys repeat. If they don't, a MERGE takes the rows as they are. One row for each key
costs a shuffle and a sort of whole rows, and a MERGE reads its source more than once.

The query groups the rows. For few rows two shuffles cost more than the grouping itself, so one task groups them, without a
shuffle. How many they are is known after the job that persists them.

The scope holds for the rows in which it was found, so all jobs of a batch must see the same rows (`computed_once`). Spark
computes lost rows of a persisted batch again. A batch that isn't deterministic then has a row in another partition, which a
MERGE restricted to the scope inserts a second time, or with another key, or two rows with one key.

- *A copy of its own.* The rows are persisted under a plan that nothing else has. So neither the user nor a sink of another thread
  drops them, and rows that the user has persisted keep what Spark does with them.
- *No lineage.* The first job over them counts them, and cuts their lineage at its end (`localCheckpoint`). From then on a task
  that finds rows missing fails. Only then their partitions and keys are looked for.
- *Before each commit* Spark must still have these rows persisted: `clearCache` lets it compute them again.
- *Then the batch is computed again*, with a new scope: `RowsLost`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from itertools import chain, product
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from uuid import uuid4
from weakref import WeakKeyDictionary

from lakewarden.handlers.partition_spelling import moment
from lakewarden.spark_jobs.engine.engine import causes, quoted
from lakewarden.spark_jobs.engine.kinds import engine_of
from lakewarden.spark_jobs.gate.errors import GateError, RowsLost
from lakewarden.spark_jobs.sinks.partition_paths import MAX_PARTITIONS, collected, in_hex

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakewarden.spark_jobs.gate.transaction import Transaction

Partition: TypeAlias = tuple[Any, ...]
"""Values of the partition fields, in the table's order. Empty for an unpartitioned table."""

ONE_TASK_ROWS = 100_000
"""Up to which one task groups the rows of a batch. On two cores that took less time than shuffles even for twice as many."""

MAX_COMBINATIONS = 100
"""Combinations of all partition fields but the last in one condition. Beyond, each field has its own, which covers more."""


_FLOATS = frozenset({"float", "double"})
_ZEROS: Final = ("-0.0", "0.0")


class Field(Protocol):
    """A partition field: a column, or a function of one that is NULL for NULL only."""

    @property
    def column(self) -> str: ...

    @property
    def value_type(self) -> str: ...

    def expression(self) -> str:
        """Return the SQL of its value in a row `t` of the table."""
        ...

    def computed(self, column: str) -> str:
        """Return the SQL of its value in a row that is going to be stored. `column` is SQL of the column's type."""
        ...


@dataclass(frozen=True, slots=True)
class PartitionColumn:
    """A partition field that is a column itself."""

    column: str
    value_type: str
    empty_is_null: bool = False
    """Whether the format stores an empty text as NULL."""

    def expression(self) -> str:
        return f"t.{quoted(self.column)}"

    def computed(self, column: str) -> str:
        return f"nullif({column}, '')" if self.empty_is_null and self.value_type == "string" else column


def computed_in(field: Field, stored: Mapping[str, str], alias: str | None = None) -> str:
    """Return the SQL of a field's value in a row of the batch.

    `stored` has, by the table's columns, those columns of the batch that have the values in the table's types. A column that
    isn't in it has the table's type itself.
    """
    column = quoted(stored.get(field.column, field.column))
    return field.computed(f"{alias}.{column}" if alias else column)


def is_column(field: Field) -> bool:
    """Return whether the field is the column itself, whatever the format makes of an empty text."""
    return field.expression() == f"t.{quoted(field.column)}"


def is_key(field: Field, keys: Collection[str], stored: Mapping[str, str]) -> bool:
    """Return whether comparing the field's column is comparing one of the keys."""
    return field.column in keys and field.column not in stored and is_column(field)


def literal(value: Any, kind: str) -> str:
    """Return a value as SQL of the Spark type `kind`. A text is written in hexadecimal: it needs no escapes."""
    match value:
        case str() if kind in {"date", "float", "double"}:
            return f"CAST('{value}' AS {kind})"
        case str() if kind == "binary":
            return f"X'{value}'"
        case int() if kind == "timestamp":
            return f"timestamp_micros({value})"
        case int() if kind == "timestamp_ntz":
            return f"CAST('{moment(value)}' AS timestamp_ntz)"
        case bool():
            return str(value).upper()
        case str():
            return in_hex(value, kind)
        case int():
            return f"CAST({value} AS {kind})"
        case Decimal() | date():
            return f"CAST('{value}' AS {kind})"
        case _:
            raise ValueError(f"{value!r} is not a value of a partition field of type {kind}")


def restriction(fields: Sequence[Field], partitions: Sequence[Partition]) -> str | None:
    """Return the condition that a row `t` is in one of the partitions, or None if the table is unpartitioned."""
    if not fields:
        return None
    *outer, last = fields
    inner: dict[Partition, list[Any]] = {}
    for partition in partitions:
        inner.setdefault(partition[:-1], []).append(partition[-1])
    if len(inner) > MAX_COMBINATIONS:
        columns = zip(*partitions, strict=True)
        return " AND ".join(_one_of(*each) for each in zip(fields, columns, strict=True))
    alternatives = []
    for prefix, values in inner.items():
        conditions = [_one_of(field, [value]) for field, value in zip(outer, prefix, strict=True)]
        alternatives.append(" AND ".join([*conditions, _one_of(last, values)]))
    return (
        alternatives[0] if len(alternatives) == 1 else f"({' OR '.join(f'({one})' for one in alternatives)})"
    )


def covered(partitions: Sequence[Partition]) -> Sequence[Partition] | None:
    """Return the partitions whose rows fulfil `restriction`, as the formats' checks read it. None: more than `MAX_PARTITIONS`."""
    if len({partition[:-1] for partition in partitions}) <= MAX_COMBINATIONS:
        return partitions
    columns = [dict.fromkeys(values) for values in zip(*partitions, strict=True)]
    return tuple(product(*columns)) if prod(map(len, columns)) <= MAX_PARTITIONS else None


def _one_of(field: Field, values: Sequence[Any]) -> str:
    # Iceberg can't push "transform IS NULL" down, nor NaN in a list, and a MERGE with `= NaN` alone doesn't find the rows.
    expression = field.expression()
    apart: dict[Any, str] = {None: f"t.{quoted(field.column)} IS NULL"}
    if field.value_type in _FLOATS:
        apart["NaN"] = f"isnan({expression})"
        # Up to 3.5, Spark drops one of two zeros in a list, and Iceberg then skips the files of the other one.
        zeros = [f"CAST('{zero}' AS {field.value_type})" for zero in _ZEROS]
        apart |= dict.fromkeys(_ZEROS, f"{expression} BETWEEN {' AND '.join(zeros)}")
    known = [literal(value, field.value_type) for value in dict.fromkeys(values) if value not in apart]
    alternatives = [f"{expression} IN ({', '.join(known)})"] if known else []
    alternatives += dict.fromkeys(condition for value, condition in apart.items() if value in values)
    return alternatives[0] if len(alternatives) == 1 else f"({' OR '.join(alternatives)})"


@dataclass(frozen=True, slots=True)
class BatchContent:
    """What a Spark job found in the rows of a batch."""

    partitions: tuple[Partition, ...]
    """None if there are no rows."""
    keys_repeat: bool = False
    """Whether several rows of one partition have the same keys."""


_COMPUTED_ONCE: WeakKeyDictionary[DataFrame, int] = WeakKeyDictionary()
"""Rows of `computed_once`, and the id of the RDD that has them."""

_RDDS: set[int] = set()
"""These ids. Several threads use them."""


def is_computed_once(rows: DataFrame) -> bool:
    """Return whether these rows are those of a `computed_once`."""
    return rows in _COMPUTED_ONCE


@contextmanager
def computed_once(rows: DataFrame, facts: str, txn: Transaction | None = None) -> Iterator[DataFrame]:
    """Yield the rows: all jobs of the block see the same ones, or fail.

    Raise `RowsLost` if some were lost, in the block or when `txn` commits. `facts` name the table and the writer.
    """
    if is_computed_once(rows):
        with _naming_lost(rows, facts):
            yield rows
        return
    engine = engine_of(rows)
    own, rdd = engine.kept(rows)
    _COMPUTED_ONCE[own] = rdd
    _RDDS.add(rdd)
    try:
        if txn is not None:
            txn.before_commit(lambda: require_computed_once(own, facts))
        with _naming_lost(own, facts):
            yield own
    finally:
        _RDDS.discard(_COMPUTED_ONCE.pop(own, -1))
        engine.let_go(own)


def require_computed_once(rows: DataFrame, facts: str) -> None:
    """Raise `RowsLost` if rows of a `computed_once` that has not ended are persisted no more, or again."""
    expected = _COMPUTED_ONCE.get(rows)
    if expected is not None and not engine_of(rows).are_kept(rows, expected):
        raise _lost("they are no longer persisted (clearCache)", facts)


def as_lost(error: Exception, facts: str, rows: DataFrame | None = None) -> RowsLost | None:
    """Return `RowsLost` for an error of a job that found rows of `computed_once` missing, or others instead of `rows`."""
    if isinstance(error, GateError):
        return None
    texts = " ".join(cause.text for cause in causes(error))
    lost = {int(number) for number in re.findall(r"Checkpoint block rdd_(\d+)_", texts)}
    unnumbered = min(_RDDS, default=0) < 0
    if lost and (unnumbered or not lost.isdisjoint(_RDDS)):
        return _lost("an executor that had some has ended", facts)
    try:
        if rows is not None:
            require_computed_once(rows, facts)
    except RowsLost as lost:
        return lost
    except Exception:  # noqa: BLE001 - Spark has stopped, and raises various errors
        return None
    return None


def _lost(reason: str, facts: str) -> RowsLost:
    return RowsLost(
        f"rows of the batch were lost while it was written: {reason}; computed again they may be others, outside of the declared "
        f"scope; nothing was published; the batch must be computed again; {facts}"
    )


@contextmanager
def _naming_lost(rows: DataFrame, facts: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        lost = as_lost(error, facts, rows)
        if lost is None:
            raise
        raise lost from error


def content_of(
    rows: DataFrame,
    fields: Sequence[Field],
    keys: Sequence[str],
    table: str,
    *,
    persisted: bool,
    stored: Mapping[str, str] = MappingProxyType({}),
    checked: Mapping[str, str] = MappingProxyType({}),
) -> BatchContent:
    """Return the content of the rows. Without `keys` it doesn't find whether they repeat. `stored`: as for `computed_in`.

    `checked`: SQL for keys, in place of their columns.

    Values are as `collected`. Both zeros are there if one of them is: Spark takes them for equal, and the formats don't.

    `persisted`: whether the rows are computed at most once. If not, they aren't counted before they are grouped.

    Raises `ValueError` if there are more than `MAX_PARTITIONS` partitions.
    """
    if not fields and not keys:
        return BatchContent(((),) if rows.selectExpr("1").head(1) else ())
    engine = engine_of(rows)
    columns = {key: checked.get(key, quoted(key)) for key in keys}
    hint = "/*+ COALESCE(1) */ " if persisted and engine.fit_one_task(rows, ONE_TASK_ROWS) else ""
    with engine.as_view(rows, f"lakewarden_{uuid4().hex}") as view:
        found = rows.sparkSession.sql(_content_query(view, hint, fields, columns, stored))
        rows_found = found.collect()
    if len(rows_found) > MAX_PARTITIONS:
        raise ValueError(
            f"the batch touches more than {MAX_PARTITIONS} partitions; make the batches smaller, or the partitions larger; "
            f"table={table}"
        )
    values = (map(_alike, row, fields) for row in rows_found)
    partitions = tuple(chain.from_iterable(product(*each) for each in values))
    return BatchContent(partitions, bool(keys) and any(row["most"] > 1 for row in rows_found))


def _alike(value: Any, field: Field) -> tuple[Any, ...]:
    return _ZEROS if value == "0.0" and field.value_type in _FLOATS else (value,)


def settle(rows: DataFrame) -> None:
    """Compute rows of `computed_once` before something is looked for in them."""
    if is_computed_once(rows):
        engine_of(rows).settle(rows)


def _content_query(
    view: str,
    hint: str,
    fields: Sequence[Field],
    keys: Mapping[str, str],
    stored: Mapping[str, str],
) -> str:
    """Return the query for the partitions and, if there are keys, as `most` how many rows of one have the same, at most.

    `keys`: with SQL of each. One text: each step of a DataFrame is a call into the JVM, and an analysis of all that is before it.
    """
    named = {
        f"field{number}": collected(field.value_type, computed_in(field, stored))
        for number, field in enumerate(fields)
    }
    same = {field.column for field in fields if is_key(field, keys, stored)}
    others = {f"key{number}": value for number, (key, value) in enumerate(keys.items()) if key not in same}
    computed = ", ".join(f"{value} AS {name}" for name, value in {**named, **others}.items())
    # Not GROUP BY ALL: it is a syntax error where ANSI's keywords are reserved.
    grouped = ", ".join([*named, *others])
    query = (
        f"SELECT {grouped}, count(*) AS number FROM (SELECT {hint}{computed} FROM {view}) GROUP BY {grouped}"  # noqa: S608 - names are quoted
    )
    if keys:
        columns = ", ".join([*named, "max(number) AS most"])
        groups = f" GROUP BY {', '.join(named)}" if named else ""
        query = f"SELECT * FROM (SELECT {columns} FROM ({query}){groups}) WHERE most IS NOT NULL"  # noqa: S608 - likewise
    return f"{query} LIMIT {MAX_PARTITIONS + 1}"
