"""Store assignment: which column of a table a batch's column goes into, and how its values are converted.

The rules are Spark's own, those of `writeTo(…).append()`: the engine has Spark convert the columns (`stored_as`).

- Columns, and the fields of structs in them, in arrays and in maps, go by name, under `spark.sql.caseSensitive`.
- `spark.sql.storeAssignmentPolicy` says which types fit. What doesn't fit is refused here, before any row is read.
- A value that doesn't fit is an error of the Spark job that computes it, whether ANSI is on or off: overflow, a text longer than
  `VARCHAR(n)`, NULL in a column or field that is NOT NULL.
- Policy `legacy` is refused, as by Spark for every table but its own: it stores NULL for what doesn't fit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from lakewarden.spark_jobs.engine.engine import causes, quoted
from lakewarden.spark_jobs.engine.java import MAX_TEXT
from lakewarden.spark_jobs.engine.kinds import engine_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructField, StructType

DEFAULT = "CURRENT_DEFAULT"
"""Key in a column's metadata: the SQL of the value that a write without the column stores."""

UUID = "lakewarden.uuid"
"""Key in a column's metadata, with this type: Spark has the texts of Iceberg's UUIDs, and Iceberg stores them in lower case."""

LENGTH = "__CHAR_VARCHAR_TYPE_STRING"
"""Key in a column's metadata, with its type `char(n)` or `varchar(n)`. Where there is none, the column is of the type itself."""

_ROW = "_lakewarden_row"

NOT_STORED = "a value of the batch can't be stored"
"""How an error begins that a cast of a sink raises itself."""

_VALUE_ERRORS = (
    "CAST_OVERFLOW",
    "CAST_INVALID_INPUT",
    "NUMERIC_VALUE_OUT_OF_RANGE",
    "ARITHMETIC_OVERFLOW",
    "EXCEED_LIMIT_LENGTH",
    "NOT_NULL_ASSERT_VIOLATION",
    "Null value appeared in non-nullable field",
    NOT_STORED,
    "DELTA_CAST_OVERFLOW",
    "DELTA_EXCEED_CHAR_VARCHAR_LIMIT",
    "DELTA_NOT_NULL_CONSTRAINT_VIOLATED",
    "DELTA_VIOLATE_CONSTRAINT",
    "Invalid UUID string",
    "Fixed Binary size",
)
"""Texts of Spark's, Delta's and Iceberg's errors, in Spark 3.5 too. Most name the column only."""

_DECODING = "UnicodeDecodeError"
"""Python's error for a text that is not UTF-8. Spark and Java store such texts."""


def is_case_sensitive(spark: SparkSession) -> bool:
    """Return whether names that differ only in case are different columns in this session."""
    return str(spark.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"


def folding(spark: SparkSession) -> Callable[[str], str]:
    """Return the function under which names of the same column are equal in this session."""
    return str if is_case_sensitive(spark) else str.lower


def assigned(
    batch: DataFrame, columns: StructType, table: str, *, partial: bool = False, others: Collection[str] = ()
) -> DataFrame:
    """Return the batch as the table stores it: the table's columns, in its order, spelling and types.

    `columns` is the table's schema in Spark's types, with `nullable` as the table has it; `varchar(n)` and `char(n)` keep their
    lengths. `table` is for errors. `partial`: columns that the batch lacks are left out; otherwise they are an error. The batch
    may also have `others`, which stay as they are, after the table's.

    Returns the batch itself if it fits as it is. Raises `ValueError` as `spelled_as` does, and for types that don't fit.
    """
    rows = spelled_as(batch, columns.names, table, others.__contains__)
    given, known = rows.columns, set(columns.names)
    expected = [field for field in columns.fields if not partial or field.name in given]
    expected += [field for field in rows.schema.fields if field.name not in known]
    if len(expected) == len(given) and all(map(_fits, rows.schema.fields, expected)):
        return rows
    return engine_of(batch).stored_as(rows, expected, table)


def spelled_as(
    batch: DataFrame, columns: Collection[str], table: str, may_bring: Callable[[str], bool]
) -> DataFrame:
    """Return the batch with the table's spelling of its columns.

    Raises `ValueError`, as Spark's write would, for a column that the table lacks, unless the batch `may_bring` it, and for
    several ones for one of the table's. Spark's errors name all columns of a wide table, and not what to do.
    """
    folded = folding(batch.sparkSession)
    spelling = {folded(name): name for name in columns}
    given = batch.columns
    substituted = [name for name in dict.fromkeys((*columns, *given)) if "${" in name]
    if (
        substituted
        and str(batch.sparkSession.conf.get("spark.sql.variable.substitute", "true")).lower() == "true"
    ):
        raise ValueError(
            f"Spark replaces ${{…}} in SQL, also in the names of the columns {substituted}: set "
            f"spark.sql.variable.substitute=false; table={table}"
        )
    names = [name if name in columns else spelling.get(folded(name), name) for name in given]
    unknown = [name for name in names if name not in columns and not may_bring(name)]
    if unknown:
        raise ValueError(
            f"the table has no columns {unknown}: add them with ALTER TABLE, or drop them from the batch; table={table} "
            f"columns={list(columns)}"
        )
    counts = Counter(map(folded, given))
    repeated = [name for name in given if counts[folded(name)] > 1]
    if repeated:
        raise ValueError(
            f"the batch has several columns for one of the table's: {repeated}; drop all but one; table={table}"
        )
    return batch if names == given else batch.toDF(*names)


@contextmanager
def naming_values(batch: DataFrame, columns: StructType, table: str) -> Iterator[None]:
    """Run a block that computes what `assigned` returns, or that writes the batch. Its error names the table.

    If a value doesn't fit, the error names it and its column. It is looked for only then, by Spark jobs over parts of the batch.
    """
    try:
        yield
    except Exception as error:
        text = _of_a_value(error)
        if text is None and (isinstance(error, UnicodeDecodeError) or _DECODING in str(error)):
            text = f"{NOT_STORED}: {_undecodable(batch) or error}"
        if text is not None:
            if not text.startswith(NOT_STORED):
                text = f"{_misfit(batch, columns, table) or NOT_STORED}; {text}"
            raise ValueError(f"{text}; table={table}") from error
        found = list(causes(error))
        if not any(cause.is_analysis for cause in found):
            raise
        texts = (" ".join(cause.text.split())[:MAX_TEXT] for cause in found)
        raise ValueError(f"the batch doesn't fit the table: {', by '.join(texts)}; table={table}") from error


def _fits(given: StructField, expected: StructField) -> bool:
    """Return whether a column can be stored without a conversion and a check."""
    limited = "char(" in expected.dataType.json() or "__CHAR_VARCHAR" in expected.json()
    return not limited and _same_field(given, expected)


def _same_field(given: StructField, expected: StructField) -> bool:
    nullable = expected.nullable or not given.nullable
    return given.name == expected.name and nullable and _same_type(given.dataType, expected.dataType)


def _same_type(given: DataType, expected: DataType) -> bool:
    """Return whether the types are equal, but for NULL in fewer places."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    match given, expected:
        case StructType(), StructType():
            fields = zip(given.fields, expected.fields, strict=False)
            return len(given.fields) == len(expected.fields) and all(_same_field(*each) for each in fields)
        case ArrayType(), ArrayType():
            nullable = expected.containsNull or not given.containsNull
            return nullable and _same_type(given.elementType, expected.elementType)
        case MapType(), MapType():
            nullable = expected.valueContainsNull or not given.valueContainsNull
            keys = _same_type(given.keyType, expected.keyType)
            return nullable and keys and _same_type(given.valueType, expected.valueType)
        case _:
            return given == expected


def _of_a_value(error: Exception) -> str | None:
    """Return Spark's text if it failed for a value that doesn't fit."""
    for cause in causes(error):
        text = " ".join(cause.text.split())
        start = min((at for name in _VALUE_ERRORS if (at := text.find(name)) >= 0), default=-1)
        if start >= 0:
            return re.split(r" If the schema is inferred| at (?:org|java|scala)\.", text[start:])[0].replace(
                "]", ":", 1
            )
    return None


def _misfit(batch: DataFrame, columns: StructType, table: str) -> str | None:
    """Return the first column and value that can't be stored, as text. None if there is none, or if it can't be found."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    folded = folding(batch.sparkSession)
    types = {folded(field.name): field for field in columns.fields}
    numbered = batch.withColumn(_ROW, f.monotonically_increasing_id())
    try:
        for given in batch.schema.fields:
            field = types.get(folded(given.name))
            if field is None or _fits(given, field):
                continue
            only = numbered.select(quoted(given.name), _ROW)
            one = StructType([field])

            def fails(rows: DataFrame, one: StructType = one) -> bool:
                try:
                    _run(assigned(rows.drop(_ROW), one, table))
                except Exception as error:
                    if _of_a_value(error) is None:
                        raise
                    return True
                return False

            if fails(only):
                value = _first(only, fails)
                wanted = f"{field.dataType.simpleString()}{'' if field.nullable else ' NOT NULL'}"
                return (
                    f"column {field.name!r} of the batch has type {given.dataType.simpleString()}, and its value {value} can't "
                    f"be stored as {wanted}"
                )
    except Exception:  # noqa: BLE001 - an aborted batch: its jobs are cancelled; Spark's own error says enough then
        return None
    return None


def _undecodable(batch: DataFrame) -> str | None:
    """Return the first column with a text that is not UTF-8, and its bytes, as text. None as for `_misfit`."""
    texts = [name for name, kind in batch.dtypes if kind == "string"]
    with suppress(Exception):  # as in `_misfit`
        for name, column in zip(texts, map(quoted, texts), strict=True):
            # Java's String has U+FFFD instead.
            changed = batch.where(f"format_string('%s', {column}) <> {column}")
            row = changed.selectExpr(f"hex({column})").head()
            if row is not None:
                return (
                    f"column {name!r} has a text that is not UTF-8, X'{row[0][:MAX_TEXT]}', and Python, which writes this table, "
                    "has no such text: correct or drop the row"
                )
    return None


def _run(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _first(rows: DataFrame, fails: Callable[[DataFrame], bool]) -> str:
    """Return the value of a row for which `fails`: each step halves the rows that are left."""
    from pyspark.sql import functions as f

    while True:
        lowest, greatest = rows.agg(f.min(_ROW), f.max(_ROW)).head() or (0, 0)
        if lowest == greatest:
            text = rows.select(
                f.to_json(f.struct(f.col(rows.columns[0])), {"ignoreNullFields": "false"})
            ).head()
            return str(text[0])[:MAX_TEXT] if text is not None else "NULL"
        half = rows.where(f.col(_ROW) <= (lowest + greatest) // 2)
        rows = half if fails(half) else rows.where(f.col(_ROW) > (lowest + greatest) // 2)
