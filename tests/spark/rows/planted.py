"""Bugs that prove the comparison: each is planted between a sink and its batch, or where a sink spells partitions.

| bug | what the sink does wrongly |
| --- | --- |
| by position | it casts structs, whose fields go by position then |
| ANSI off | what doesn't fit becomes NULL |
| empty text | `''` becomes NULL |
| case-sensitive names | it refuses `ID` for `id` |
| map order | it reverses the entries of maps |
| far timestamp | it ends at the year 9999, as Python does |
| negative zero | -0.0 becomes 0.0 |
| not a number | NaN becomes NULL |
| nested field | it leaves out the last field of structs |
| key cast | it converts keys before it compares them |
| VARCHAR | it cuts off what is too long |
| NOT NULL | it fills in a value |
| other duplicate | of rows with equal keys it keeps the first |
| normal form | it normalises texts |
| missing marker | it declares all partitions but one |
| other spelling | it spells partitions in upper case |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, TypeAlias
from unittest.mock import patch

from pyspark.sql import DataFrame, types as t

from lakewarden.spark_jobs import DeltaSink, IcebergSink, PaimonSink
from lakewarden.spark_jobs.gate.transaction import Transaction
from tests.spark.rows.tables import quoted

Distortion: TypeAlias = Callable[[DataFrame, t.StructType], DataFrame]
"""Returns what a sink with the bug makes of a batch, for a table of this schema."""


def _each(expression: Callable[[str, t.DataType, t.StructField | None], str]) -> Distortion:
    """Replace each column. The expression is of its quoted name, its type, and the table's column."""

    def distorted(batch: DataFrame, table: t.StructType) -> DataFrame:
        known = {field.name.lower(): field for field in table.fields}
        return batch.selectExpr(
            *(
                f"{expression(quoted(field.name), field.dataType, known.get(field.name.lower()))} AS {quoted(field.name)}"
                for field in batch.schema.fields
            )
        )

    return distorted


def _of_type(kind: type[t.DataType], expression: str) -> Distortion:
    return _each(lambda name, found, _: expression.format(name) if isinstance(found, kind) else name)


def _cast(function: str) -> Distortion:
    return _each(
        lambda name, _, column: (
            name if column is None else f"{function}({name} AS {column.dataType.simpleString()})"
        )
    )


def _case_sensitive(batch: DataFrame, table: t.StructType) -> DataFrame:
    unknown = set(batch.columns) - set(table.names)
    if unknown:
        raise ValueError(f"no columns {unknown}")
    return batch


def _field_left_out(name: str, kind: t.DataType, _: object) -> str:
    if not isinstance(kind, t.StructType):
        return name
    *kept, last = kind.fields
    fields = [f"'{field.name}', {name}.{quoted(field.name)}" for field in kept]
    fields.append(f"'{last.name}', CAST(NULL AS {last.dataType.simpleString()})")
    return f"named_struct({', '.join(fields)})"


def _key_cast(name: str, _: t.DataType, column: t.StructField | None) -> str:
    return name if column is None or name != "`id`" else f"CAST({name} AS {column.dataType.simpleString()})"


def _filled_in(name: str, _: t.DataType, column: t.StructField | None) -> str:
    is_number = column is not None and isinstance(column.dataType, t.NumericType)
    return f"coalesce({name}, 0)" if is_number else name


def _first_of_a_key(batch: DataFrame, _: t.StructType) -> DataFrame:
    order = next((name for name in ("seq", "n") if name in batch.columns), None)
    return batch if order is None else batch.orderBy(order).coalesce(1).dropDuplicates(["id"])


FOUND_BY: Mapping[str, tuple[str, str, str]] = {
    "by position": ("iceberg", "append", "struct by name"),
    "ANSI off": ("iceberg", "append", "text into int"),
    "empty text": ("iceberg", "append", "unicode"),
    "case-sensitive names": ("delta", "append", "ID for id"),
    "map order": ("iceberg", "append", "maps keep their order"),
    "far timestamp": ("iceberg", "append", "far dates"),
    "negative zero": ("delta", "append", "floats"),
    "not a number": ("iceberg", "append", "floats"),
    "nested field": ("delta", "append", "struct by name"),
    "key cast": ("iceberg", "upsert", "a key that is converted"),
    "VARCHAR": ("delta", "append", "VARCHAR"),
    "NOT NULL": ("iceberg", "append", "NOT NULL"),
    "other duplicate": ("iceberg", "upsert", "a repeated key"),
    "normal form": ("iceberg", "append", "unicode"),
    "missing marker": ("iceberg", "append", "texts as partitions"),
    "other spelling": ("iceberg", "append", "texts as partitions"),
}
"""Format, mode and name of a written situation that shows the bug. Generated ones show it, too."""

ONLY_WITH_ICEBERG = {"key cast", "missing marker", "other spelling"}
"""Those that Paimon's append tables, which stand in for Iceberg's where there are none, don't show."""

DISTORTIONS: Mapping[str, Distortion] = {
    "by position": _cast("CAST"),
    "ANSI off": _cast("TRY_CAST"),
    "empty text": _of_type(t.StringType, "nullif({}, '')"),
    "case-sensitive names": _case_sensitive,
    "map order": _of_type(t.MapType, "map_from_entries(reverse(map_entries({})))"),
    "far timestamp": _of_type(t.TimestampType, "least({}, timestamp'9999-12-31 23:59:59.999999 UTC')"),
    "negative zero": _of_type(t.DoubleType, "{} + 0.0D"),
    "not a number": _of_type(t.DoubleType, "nullif({}, double('NaN'))"),
    "nested field": _each(_field_left_out),
    "key cast": _each(_key_cast),
    "VARCHAR": _of_type(t.StringType, "substring({}, 1, 3)"),
    "NOT NULL": _each(_filled_in),
    "other duplicate": _first_of_a_key,
    "normal form": _of_type(t.StringType, "replace({}, 'e\u0301', '\u00e9')"),
}

SPELLINGS: Mapping[str, Callable[[list[Any]], list[Any]]] = {
    "missing marker": lambda markers: markers[1:],
    "other spelling": lambda markers: [
        marker.model_copy(update={"partition": marker.partition.upper()}) for marker in markers
    ],
}


def may_show(bug: str, batch: DataFrame, table: t.StructType) -> bool:
    """Return whether the bug changes a value of the batch. That costs less than the writes of batches that can't show it."""
    if bug in SPELLINGS:
        return True
    try:
        return _texts(DISTORTIONS[bug](batch, table)) != _texts(batch)
    except Exception as error:  # noqa: BLE001 - a value or type that doesn't fit ends the native writer's cast, too
        return isinstance(error, ValueError)  # the bug is a refusal


def _texts(rows: DataFrame) -> list[str]:
    return sorted(row[0] for row in rows.selectExpr("to_json(struct(*))").collect())


def planted(bug: str) -> ExitStack:
    """Plant the bug while the returned context is active."""
    stack = ExitStack()
    if bug in SPELLINGS:
        touch_all = Transaction.touch_all

        def touch_wrongly(txn: Transaction, markers: Any) -> None:
            touch_all(txn, SPELLINGS[bug](list(markers)))

        stack.enter_context(patch.object(Transaction, "touch_all", touch_wrongly))
        return stack
    for sink, schema_of in SCHEMAS.items():
        stack.enter_context(patch.object(sink, "plan", _distorting(sink, schema_of, DISTORTIONS[bug])))
    return stack


def _distorting(sink: type[Any], schema_of: Callable[[Any, DataFrame], t.StructType], bug: Distortion) -> Any:
    plan = sink.plan

    def plan_wrongly(self: Any, batch: DataFrame) -> Any:
        return plan(self, bug(batch, schema_of(self, batch)))

    return plan_wrongly


def _schema_of_delta(sink: Any, batch: DataFrame) -> t.StructType:
    return batch.sparkSession.read.format("delta").load(sink._location).schema


def _schema_of_iceberg(sink: Any, batch: DataFrame) -> t.StructType:
    return batch.sparkSession.table(sink._name).schema


def _schema_of_paimon(sink: Any, batch: DataFrame) -> t.StructType:
    from lakewarden.spark_jobs.sinks.paimon.frames import spark_schema

    return spark_schema(sink._open(batch.sparkSession))


SCHEMAS: Mapping[type[Any], Callable[[Any, DataFrame], t.StructType]] = {
    DeltaSink: _schema_of_delta,
    IcebergSink: _schema_of_iceberg,
    PaimonSink: _schema_of_paimon,
}
