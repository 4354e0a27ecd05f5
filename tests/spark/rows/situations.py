"""Situations that were reported on other projects, or that a sink once wrote otherwise than its format."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from pyspark.sql import types as t

from tests.spark.rows.tables import Situation

ANSI_OFF = (("spark.sql.ansi.enabled", "false"),)
ANSI_ON = (("spark.sql.ansi.enabled", "true"),)
RESERVED = (*ANSI_ON, ("spark.sql.ansi.enforceReservedKeywords", "true"))
TIME = (("spark.sql.timeType.enabled", "true"),)
LEGACY = (("spark.sql.storeAssignmentPolicy", "LEGACY"),)
STRICT = (("spark.sql.storeAssignmentPolicy", "STRICT"),)
SENSITIVE = (("spark.sql.caseSensitive", "true"),)
BERLIN = (("spark.sql.session.timeZone", "Europe/Berlin"),)
UTC = (("spark.sql.session.timeZone", "UTC"),)
MAPPED = (
    ("delta.columnMapping.mode", "name"),
    ("delta.minReaderVersion", "2"),
    ("delta.minWriterVersion", "5"),
)
SPARK = ("delta", "iceberg")
DEFAULTS = (("delta.feature.allowColumnDefaults", "supported"),)
ADDRESS = "struct<city:string,zip:string>"
ZIP_FIRST = "named_struct('zip','10115','city','Berlin')"
GENERATED_DAY = {"delta.generationExpression": "CAST(at AS date)"}


def _identity(start: int, step: int, *, given: bool) -> dict[str, Any]:
    """`given`: a batch may have values of the column."""
    return {
        "delta.identity.start": start,
        "delta.identity.step": step,
        "delta.identity.allowExplicitInsert": given,
    }


def _rows(*rows: str, names: str) -> str:
    return f"SELECT * FROM VALUES {', '.join(f'({row})' for row in rows)} AS t({names})"  # noqa: S608 - it consists of its own texts


def _names(columns: str) -> str:
    return ", ".join(re.findall(r"(?:^|, )(`[^`]*`|\S+)", columns))


def _table(columns: str, *batches: str | tuple[str, ...], **more: Any) -> Situation:
    """The batches are SELECTs and ALTER TABLEs, or rows of all columns."""
    made = (each if isinstance(each, str) else _rows(*each, names=_names(columns)) for each in batches)
    return Situation(columns, tuple(made), **more)


def _one(column: str, *values: str, **more: Any) -> Situation:
    """A column `v` of one type, and a batch for each value."""
    return Situation(f"id bigint, v {column}", tuple(f"SELECT 1L id, {value} v" for value in values), **more)


def _keys(column: str, *values: str, **more: Any) -> Situation:
    """A key of one type, and a batch for each value."""
    batches = (f"SELECT {value} id, {number} n" for number, value in enumerate(values, 1))
    return Situation(f"id {column}, n int", tuple(batches), **more)


def _partitions(column: str, *values: str, **more: Any) -> Situation:
    """A partition column `p` of one type, and a batch for each value."""
    batches = (f"SELECT 1L id, {value} p, {number} n" for number, value in enumerate(values, 1))
    return Situation(f"id bigint, p {column}, n int", tuple(batches), partitioned_by=("p",), **more)


def _twice(columns: str, *rows: str, **more: Any) -> Situation:
    """The rows in two batches, which differ in a further column, `n`."""
    names = f"{_names(columns)}, n"
    batches = (_rows(*(f"{row}, {n}" for row in rows), names=names) for n in (1, 2))
    return Situation(f"{columns}, n int", tuple(batches), **more)


VARIANTS = (
    {
        "VARIANT": _table(
            "id bigint, v variant, n int",
            """SELECT 1L id, parse_json('{"b":[1,2.50,null],"a":"x"}') v, 1 n""",
            "SELECT 1L id, CAST(NULL AS variant) v, 2 n",
            "SELECT 2L id, parse_json('null') v, 3 n",
            "SELECT 3L id, CAST(5L AS variant) v, 4 n",
            "SELECT 4L id, 'text' v, 5 n",
            ("5L, parse_json('1'), 6", "5L, parse_json('[2]'), 7"),
            order_by="n",
            formats=SPARK,
            properties=(("format-version", "3"),),
        )
    }
    if hasattr(t, "VariantType")
    else {}
)
"""PySpark 3.5 has no such type."""

TIMES = (
    {
        "TIME as a value": _one("string", "'x'", "time'12:34:56.123456'", settings=TIME),
        "TIME as a key": _keys("string", "'x'", "time'12:34:56'", settings=TIME),
        "TIME as a partition": _partitions("string", "'x'", "time'12:34:56'", settings=TIME),
    }
    if hasattr(t, "TimeType")
    else {}
)
"""Spark before 4.1 has no such type."""


SENSITIVE_ID = _table("id bigint, a string", "SELECT 1L ID, 'x' A", settings=SENSITIVE)

SITUATIONS: dict[str, Situation] = {
    # columns and nested fields by name
    "other order": _table("id bigint, a string, b string", "SELECT 'b' b, 'a' a, 1L id"),
    "struct by name": _one(ADDRESS, ZIP_FIRST),
    "struct in an array by name": _one(f"array<{ADDRESS}>", f"array({ZIP_FIRST})"),
    "struct in a map by name": _one(f"map<string,{ADDRESS}>", f"map('home', {ZIP_FIRST})"),
    "struct as a map's key by name": _one(f"map<{ADDRESS},int>", f"map({ZIP_FIRST}, 1)"),
    "struct with other names": _one(ADDRESS, "named_struct('town','Berlin','zip','10115')"),
    "struct with a field less": _one(ADDRESS, "named_struct('city','Berlin')"),
    "struct with a field more": _one("struct<city:string>", "named_struct('city','Berlin','zip','10115')"),
    "struct with cases": _one(ADDRESS, "named_struct('ZIP','10115','City','Berlin')"),
    "a column less": _table("id bigint, a string, b string", "SELECT 1L id, 'x' a", "SELECT 1L id, 'y' b"),
    "a column more": _table("id bigint, a string", "SELECT 1L id, 'x' a, 'y' b"),
    "ID for id": _table("id bigint, a string", "SELECT 1L ID, 'x' A", "SELECT 1L Id, 'y' a"),
    "ID for id, sensitive": replace(SENSITIVE_ID, formats=("iceberg", "hudi", "paimon")),
    "names that differ only in case, sensitive": _table(
        "id bigint, a string, A string", "SELECT 1L id, 'x' A, 'y' a", settings=SENSITIVE, formats=("paimon",)
    ),
    # names
    "odd names": _table(
        "id bigint, `user-agent` int, `a b` int, `select` int, `ä` int, `t` int, `s` int",
        "SELECT 1L id, 1L `user-agent`, 2S `a b`, 3 `select`, 4 `ä`, 5 `t`, 6Y `s`",
        properties=MAPPED,
    ),
    "a dot in a name": _table("id bigint, `a.b` int", "SELECT 1L id, 1L `a.b`", formats=("delta", "paimon")),
    "odd nested names": _one(
        "struct<`user-agent`:int,`a b`:int,`select`:int>",
        "named_struct('select', 3, 'a b', 2Y, 'user-agent', 1L)",
        properties=MAPPED,
    ),
    "a dot in a nested name": _one("struct<`a.b`:int>", "named_struct('a.b', 1L)", properties=MAPPED),
    "an odd key": _table(
        "`the key` bigint, `day-of` int, n int",
        "SELECT 1L `the key`, 1 `day-of`, 1 n",
        "SELECT 1 `the key`, 1 `day-of`, 2 n",
        keys=("the key",),
        partitioned_by=("day-of",),
        properties=MAPPED,
    ),
    # conversions
    "overflow of an int": _one("int", "3000000000L"),
    "overflow of an int, ANSI off": _one("int", "3000000000L", settings=ANSI_OFF),
    "text into int": _one("int", "'abc'"),
    "text into int, ANSI off": _one("int", "'abc'", settings=ANSI_OFF),
    "text into date, ANSI off": _one("date", "'2026-13-45'", settings=ANSI_OFF),
    "overflow of a decimal, ANSI off": _one("decimal(5,2)", "123456.7891BD", settings=ANSI_OFF),
    "overflow of a decimal": _one("decimal(5,2)", "123456.7891BD"),
    "a decimal is rounded": _one("decimal(5,2)", "1.005BD", "1.0049D", "1", "CAST(1.5 AS float)"),
    "double into int": _one("int", "1.9D", "-1.9D", "CAST('NaN' AS double)"),
    "bigint into timestamp": _one("timestamp", "1764000000000L"),
    "boolean into int": _one("int", "true"),
    "int into boolean": _one("boolean", "1"),
    "anything into string": _table(
        "id bigint, a string, b string, c string, d string, e string, f string",
        "SELECT 1L id, 1 a, 1.50BD b, true c, date'2026-01-02' d, timestamp'2026-01-02 03:04:05.678' e, -0.0D f",
        (
            "SELECT 2L id, 1e100D a, 'x' b, 1Y c, date'0001-01-01' d, timestamp_ntz'2026-01-02 03:04:05.678' e, "
            "CAST('NaN' AS float) f"
        ),
        settings=BERLIN,
    ),
    "binary into string": _one("string", "X'ff00fe'"),
    "string into binary": _one("binary", "'ä'"),
    "intervals into string": _one(
        "string",
        "INTERVAL '1 02:03:04' DAY TO SECOND",
        "INTERVAL '1-2' YEAR TO MONTH",
        "make_interval(1, 2, 3)",
    ),
    "the hours of summer time": _table(
        "id bigint, a timestamp, b timestamp_ntz, c date",
        (
            "1L, timestamp_ntz'2026-03-29 02:30:00', timestamp'2026-03-28 23:30:00 UTC', timestamp'2026-03-28 23:30:00 UTC'",
            "2L, timestamp_ntz'2026-03-29 03:00:00', timestamp'2026-03-29 01:00:00 UTC', timestamp'2026-03-29 01:00:00 UTC'",
            "3L, timestamp_ntz'2026-10-25 02:30:00', timestamp'2026-10-25 00:30:00 UTC', timestamp'2026-10-24 22:30:00 UTC'",
            "4L, timestamp_ntz'2026-10-25 03:00:00', timestamp'2026-10-25 01:30:00 UTC', timestamp'2026-10-25 23:30:00 UTC'",
        ),
        settings=BERLIN,
    ),
    "date into timestamp": _table(
        "id bigint, a timestamp, b timestamp_ntz, c date, d timestamp",
        (
            "SELECT 1L id, date'2026-03-29' a, date'2026-03-29' b, timestamp'2026-03-28 23:30:00' c, "
            "timestamp_ntz'2026-03-29 02:30:00' d"
        ),
        settings=BERLIN,
    ),
    "numbers widen": _table(
        "id bigint, a bigint, b double, c decimal(20,2), d float, e int",
        "SELECT 1Y id, 2S a, 3 b, 4L c, 5 d, 6.4BD e",
    ),
    "conversions in nested fields": _table(
        "id bigint, n struct<a:bigint,b:array<double>,c:map<string,date>>",
        "SELECT 1L id, named_struct('c', map('x', date'2026-01-01'), 'a', 1Y, 'b', array(1, 2)) n",
        "SELECT 2L id, named_struct('c', map('x', 'no date'), 'a', 1Y, 'b', array(1, 2)) n",
    ),
    "LEGACY": _one("int", "'abc'", settings=LEGACY + ANSI_OFF),
    "LEGACY overflow": _one("int", "3000000000L", settings=LEGACY + ANSI_OFF),
    "STRICT": _table(
        "id bigint, v int", "SELECT 1L id, 1 v", "SELECT 2L id, 1L v", "SELECT 3L id", settings=STRICT
    ),
    "a NULL of no type": _one("int", "NULL"),
    "no rows, of other columns": _table(
        "id bigint, v int NOT NULL",
        *(f"SELECT {columns} WHERE false" for columns in ("1L id, '7' v", "1L id, 1 v, 2 w")),
    ),
    # lengths and NOT NULL
    "VARCHAR": _one("varchar(3)", "'abc'", "'abc  '", "'abcd'"),
    "CHAR": _one("char(3)", "'a'", "'abcd'"),
    "VARCHAR in an array": _one("array<varchar(3)>", "array('abc')", "array('abcd')"),
    "NOT NULL": _one("int NOT NULL", "1", "CAST(NULL AS int)"),
    "NOT NULL, the column is missing": _table("id bigint, v int NOT NULL", "SELECT 1L id"),
    "nested NOT NULL": _table(
        "id bigint, n struct<a:int NOT NULL>",
        "SELECT 1L id, named_struct('a', 1) n",
        "SELECT 2L id, CAST(NULL AS struct<a:int>) n",
        "SELECT 1L id, named_struct('a', CAST(NULL AS int)) n",
    ),
    "NULL above NOT NULL": _table(
        "id bigint, n array<struct<a:int NOT NULL,b:struct<c:string NOT NULL> NOT NULL>>",
        "SELECT 1L id, array(named_struct('a', 1, 'b', named_struct('c', 'x')), NULL) n",
        "SELECT 2L id, CAST(NULL AS array<struct<a:int,b:struct<c:string>>>) n",
        formats=("iceberg", "paimon"),  # Delta has no NOT NULL in arrays
    ),
    "NULL in a map": _one(
        "map<string,array<int>>",
        "map('x', CAST(NULL AS array<int>))",
        "map('y', array(1, NULL), 'z', NULL, 'empty', array())",
        "CAST(NULL AS map<string,array<int>>)",
    ),
    "NULL and empty maps in an array": _one(
        "array<map<string,int>>", "array(CAST(NULL AS map<string,int>))", "array(map())"
    ),
    # values
    "floats": _table(
        "id bigint, v double, f float, a array<double>, n struct<d:double>",
        "SELECT 1L id, -0.0D v, CAST('-0.0' AS float) f, array(-0.0D, 0.0D) a, named_struct('d', -0.0D) n",
        (
            "SELECT 2L id, CAST('NaN' AS double) v, CAST('-Infinity' AS float) f, array(CAST('NaN' AS double)) a, "
            "CAST(NULL AS struct<d:double>) n"
        ),
    ),
    "far dates": _table(
        "id bigint, d date, at timestamp, local timestamp_ntz",
        *(
            f"SELECT {number}L id, date'{day}' d, timestamp'{day} 01:02:03.456789' at, "
            f"timestamp_ntz'{day} 01:02:03.456789' local"
            for number, day in enumerate(("0001-01-01", "1500-02-28", "9999-12-31", "+12000-06-01"))
        ),
        settings=BERLIN,
    ),
    "binary": _one("binary", "X''", "X'00ff'", "CAST(NULL AS binary)"),
    "maps keep their order": _one("map<string,int>", "map('b', 1, 'a', 2)", "CAST(map() AS map<string,int>)"),
    "unicode": _one("string", "'\u00e9'", "'e\u0301'", "' '", "''"),
    # keys
    "a repeated key beside a map": _table(
        "id bigint, n int, m map<string,int>",
        ("1L, 1, map('a', 1)", "1L, 2, map('b', 2)"),
        order_by="n",
        modes=("upsert", "key"),
    ),
    "a repeated key beside names of the sink": _table(
        "id bigint, `row` map<string,int>, old int, `new` int, t int, _lakewarden_row int, _lakewarden_partition int, seq int",
        ("1L, map('a', 1), 2, 3, 4, 5, 6, 1", "1L, map('b', 2), 7, 8, 9, 10, 11, 2"),
        order_by="seq",
        partitioned_by=("t",),
        modes=("upsert",),
    ),
    "a repeated key in a table that is partitioned by texts": _table(
        "id bigint, p string, n int",
        ("1L, 'a', 1", "1L, 'a', 2", "1L, 'b', 1"),
        ("1L, 'a', 4", "1L, 'b', 3", "1L, 'b', 2"),
        order_by="n",
        partitioned_by=("p",),
        modes=("upsert",),
    ),
    "an order_by that the batch lacks": _keys("bigint", "1L", order_by="seen", modes=("upsert", "key")),
    "a repeated key": _table(
        "id bigint, n int, a string",
        ("1L, 1, 'z'", "1L, 2, 'y'", "2L, 1, 'a'"),
        order_by="n",
        modes=("upsert", "key"),
    ),
    "NULL as a key": _table(
        "id bigint, n int",
        ("CAST(NULL AS bigint), 1", "1L, 1"),
        "SELECT CAST(NULL AS bigint) id, 2 n",
        modes=("upsert",),
    ),
    "floats as keys": _table(
        "id double, n int",
        ("-0.0D, 1", "CAST('NaN' AS double), 1", "1.5D, 1"),
        ("0.0D, 2", "CAST('NaN' AS double), 2"),
        modes=("upsert",),
    ),
    "a key that is converted": _keys("bigint", "1L", "1", "1.0D", "1.5D"),
    "a text as a key": _keys("string", "'1'", "1", "'01'"),
    "a struct as a key": _keys(
        "struct<a:int,b:string>",
        "named_struct('a', 1, 'b', 'x')",
        "named_struct('a', 1, 'b', 'x')",
        modes=("upsert",),
    ),
    "a decimal as a key": _keys("decimal(9,2)", "1.50BD", "1.5BD", "2BD"),
    "a date as a key": _keys("date", "date'2026-01-01'", "timestamp'2026-01-01 05:00:00'"),
    "a binary as a key": _keys("binary", "X'01ff'", "X'01ff'"),
    "an instant as a key": _keys(
        "timestamp",
        "timestamp'2026-01-01 00:00:00 UTC'",
        "timestamp'2026-01-01 01:00:00 Europe/Berlin'",
        settings=BERLIN,
    ),
    "a key in the hours of summer time": _table(
        "id timestamp, n int",
        ("timestamp'2026-10-25 00:30:00 UTC', 1", "timestamp'2026-10-25 01:30:00 UTC', 2"),
        ("timestamp_ntz'2026-10-25 02:30:00', 3", "timestamp_ntz'2026-03-29 02:30:00', 4"),
        "SELECT timestamp'2026-03-29 01:30:00 UTC' id, 5 n",
        settings=BERLIN,
    ),
    "a text that is no UTF-8 as a key": _keys(
        "string", *(f"CAST(X'{start}61' AS string)" for start in ("ff", "ff", "fe")), formats=SPARK
    ),
    # partitions
    "texts that are no UTF-8 as partitions": _twice(
        "id bigint, p string",
        *(f"{number}L, CAST(X'{start}61' AS string)" for number, start in enumerate(("ff", "fe", "efbfbd"))),
        partitioned_by=("p",),
        formats=SPARK,  # Python, and so pypaimon, has no such texts
    ),
    "binary for a text as a partition": _partitions(
        "string", "X'ff61'", "X'ff61'", "X'efbfbd61'", formats=SPARK
    ),
    "texts as partitions": _twice(
        "id bigint, p string",
        *(
            f"1L, {p}"
            for p in (
                "''",
                "' '",
                "NULL",
                "'a b/c=d%\"'",
                "'x:y*z{[]}^#?'",
                "'\u00e9'",
                "'e\u0301'",
                "'50%'",
                "'%20'",
            )
        ),
        partitioned_by=("p",),
    ),
    "an empty text as a partition": _partitions("string", "''", "''", "''"),
    "a blank and NULL as partitions": _table(
        "id bigint, p string, n int",
        "SELECT 1L id, ' ' p, 1 n",
        "SELECT 1L id, CAST(NULL AS string) p, 2 n",
        ("1L, ' ', 3", "1L, NULL, 4"),
        partitioned_by=("p",),
    ),
    "dates as partitions": _twice(
        "id bigint, p date",
        *(f"1L, {p}" for p in ("date'0001-01-01'", "date'1500-02-28'", "date'9999-12-31'", "NULL")),
        partitioned_by=("p",),
    ),
    "a far date as a partition": _partitions("date", "date'+12000-06-01'", "date'+12000-06-01'"),
    "a text for a date as a partition, ANSI off": _partitions("date", "'2026-13-45'", settings=ANSI_OFF),
    "booleans and decimals as partitions": _twice(
        "id bigint, p boolean, q decimal(38,10)",
        "1L, true, 1.50BD",
        "1L, false, -0.05BD",
        "1L, true, 1E-10BD",
        f"1L, false, -{28 * '9'}.9999999999BD",
        "1L, NULL, NULL",
        partitioned_by=("p", "q"),
        settings=ANSI_ON,
    ),
    "doubles as partitions": _twice(
        "id bigint, p double",
        *(f"1L, CAST({p} AS double)" for p in ("'NaN'", "'-0.0'", "'Infinity'", "NULL", "'1.5'")),
        partitioned_by=("p",),
    ),
    "both zeros as partitions": _table(
        "id bigint, p double, n int",
        "SELECT 1L id, -0.0D p, 1 n",
        "SELECT 1L id, 0.0D p, 2 n",
        ("1L, -0.0D, 3", "2L, 0.0D, 3"),
        partitioned_by=("p",),
    ),
    "timestamps as partitions": _partitions(
        "timestamp",
        "timestamp'2026-10-25 02:30:00.5'",
        "timestamp'2026-10-25 02:30:00.5'",
        "timestamp'1800-01-01 00:00:00'",
        settings=BERLIN,
    ),
    "local timestamps as partitions": _partitions(
        "timestamp_ntz",
        "timestamp_ntz'2026-10-25 02:30:00.5'",
        "timestamp_ntz'2026-10-25 02:30:00.5'",
        settings=BERLIN,
    ),
    "moments of all times as partitions": _twice(
        "id bigint, p timestamp, q timestamp_ntz",
        *(
            f"{number}L, timestamp'{moment} UTC', timestamp_ntz'{moment}'"
            for number, moment in enumerate(
                (
                    "1970-01-01 00:00:00",
                    "2026-01-02 03:04:00",
                    "2026-01-02 03:04:05.000001",
                    "0001-01-02 00:00:00.1",
                    "9999-12-31 23:59:59.999999",
                )
            )
        ),
        "9L, NULL, NULL",
        partitioned_by=("p", "q"),
        settings=UTC,
        formats=SPARK,
    ),
    "far instants as partitions": _twice(
        "id bigint, p timestamp, q timestamp_ntz",
        "1L, timestamp'-0001-03-01 12:00:00 UTC', timestamp_ntz'-0001-03-01 12:00:00'",
        "2L, timestamp'+12000-06-01 01:02:03 UTC', timestamp_ntz'+12000-06-01 01:02:03'",
        partitioned_by=("p", "q"),
        settings=BERLIN,
        formats=("iceberg",),
    ),
    "the repeated hour as a partition": _table(
        "id bigint, p timestamp, n int",
        "SELECT 1L id, timestamp'2026-10-25 00:30:00 UTC' p, 1 n",
        "SELECT 2L id, timestamp'2026-10-25 01:30:00 UTC' p, 2 n",
        partitioned_by=("p",),
        settings=BERLIN,
        formats=("iceberg",),
    ),
    "floats as partitions": _twice(
        "id bigint, p float, q double",
        *(
            f"{number}L, CAST('{p}' AS float), CAST('{p}' AS double)"
            for number, p in enumerate(("NaN", "1.1", "-Infinity", "1.0E10", "0.001", "9.5E-4", "16777217"))
        ),
        partitioned_by=("p", "q"),
        formats=SPARK,
    ),
    "NaN alone, and a text NaN, as partitions": _table(
        "id bigint, p double, q string, n int",
        "SELECT 1L id, double('NaN') p, 'NaN' q, 1 n",
        "SELECT 1L id, double('NaN') p, 'NaN' q, 2 n",
        partitioned_by=("p", "q"),
        formats=SPARK,
    ),
    "a date for an instant as a partition": _partitions(
        "timestamp", "date'2026-01-02'", "timestamp_ntz'2026-01-02 00:00:00'", settings=UTC, formats=SPARK
    ),
    "an empty binary as a partition": _table(
        "id bigint, p binary, n int",
        ("1L, X'', 1", "1L, NULL, 2", "1L, X'fffe', 3"),
        "SELECT 1L id, X'' p, 4 n",
        partitioned_by=("p",),
        formats=("iceberg",),
    ),
    "binary as partitions": _partitions("binary", "X'6162'", "X'6162'", "X'ff00'"),
    "a partition that is converted": _partitions("int", "3", "3L", "3.0D", "'03'"),
    "a partition column with another case": _table(
        "id bigint, p int, n int", "SELECT 1L id, 3 P, 1 n", "SELECT 1L id, 3 P, 2 n", partitioned_by=("p",)
    ),
    "VARCHAR as a partition": _partitions("varchar(3)", "'abc'", "'abcd'"),
    "transforms": _twice(
        "id bigint, at timestamp, name string",
        "1L, timestamp'2026-01-01 23:30:00 Europe/Berlin', 'abcdef'",
        "2L, timestamp'1960-01-01 00:00:00 UTC', 'a b'",
        "3L, NULL, NULL",
        partitioned_by=("days(at)", "truncate(3, name)", "bucket(4, id)"),
        settings=BERLIN,
        formats=("iceberg",),
    ),
    "hours": _twice(
        "id bigint, at timestamp",
        "1L, timestamp'1950-01-01 23:30:00 UTC'",
        "2L, timestamp'+10000-01-01 00:00:00 UTC'",
        partitioned_by=("hours(at)",),
        formats=("iceberg",),
    ),
    "years": _twice(
        "id bigint, at date",
        "1L, date'1950-01-01'",
        "2L, date'0001-01-01'",
        partitioned_by=("years(at)",),
        formats=("iceberg",),
    ),
    "months": _twice(
        "id bigint, at timestamp_ntz",
        "1L, timestamp_ntz'1950-12-31 23:30:00'",
        partitioned_by=("months(at)",),
        formats=("iceberg",),
    ),
    # tables that change
    "a nested field is added": _table(
        "id bigint, n struct<a:int,b:int>, m map<string,struct<a:int>>",
        "SELECT 1L id, named_struct('b', 2, 'a', 1) n, map('x', named_struct('a', 1)) m",
        "ALTER TABLE {table} ADD COLUMN n.c int AFTER a",
        "ALTER TABLE {table} ADD COLUMN m.value.b int",
        "SELECT 1L id, named_struct('c', 3, 'b', 2, 'a', 1) n, map('x', named_struct('b', 2, 'a', 1)) m",
        "SELECT 1L id, named_struct('a', 1, 'b', 2) n, map('x', named_struct('a', 1)) m",
        formats=SPARK,
    ),
    "a column is added": _table(
        "id bigint, a int",
        "SELECT 1L id, 1 a",
        "ALTER TABLE {table} ADD COLUMN b int FIRST",
        "SELECT 1L id, 2 a",
        "SELECT 1L id, 3 a, 4 b",
        formats=SPARK,
    ),
    "a column is renamed": _table(
        "id bigint, p int, a int",
        "SELECT 1L id, 1 p, 1 a",
        "ALTER TABLE {table} RENAME COLUMN a TO c",
        "ALTER TABLE {table} RENAME COLUMN p TO q",
        "SELECT 1L id, 1 q, 2 c",
        "SELECT 1L id, 1 p, 2 a",
        partitioned_by=("p",),
        modes=("append", "overwrite"),
        properties=MAPPED,
        formats=SPARK,
    ),
    "a column gets wider": _table(
        "id bigint, a int, n struct<f:float>",
        "SELECT 1L id, 1 a, named_struct('f', 1.5F) n",
        "ALTER TABLE {table} ALTER COLUMN a TYPE bigint",
        "SELECT 1L id, 3000000000L a, named_struct('f', 1.5F) n",
        formats=("iceberg",),
    ),
    "a column is dropped, and is there again": _table(
        "id bigint, a int, n struct<x:int,y:int>",
        "SELECT 1L id, 1 a, named_struct('x', 1, 'y', 2) n",
        "ALTER TABLE {table} DROP COLUMN a",
        "ALTER TABLE {table} DROP COLUMN n.x",
        "SELECT 1L id, 2 a, named_struct('y', 3) n",
        "SELECT 1L id, named_struct('y', 3) n",
        "ALTER TABLE {table} ADD COLUMN a string",
        "SELECT 1L id, named_struct('y', 4) n",
        "SELECT 2L id, 'p' a, named_struct('y', 4) n",
        properties=MAPPED,
        formats=SPARK,
    ),
    "columns swap their names": _table(
        "id bigint, a int, b int",
        "SELECT 1L id, 1 a, 2 b",
        "ALTER TABLE {table} RENAME COLUMN a TO other",
        "ALTER TABLE {table} RENAME COLUMN b TO a",
        "ALTER TABLE {table} RENAME COLUMN other TO b",
        "SELECT 1L id, 3 a",
        "SELECT 2L id, 1 a, 3 b",
        properties=MAPPED,
        formats=SPARK,
    ),
    "a key, a partition and others get wider": _table(
        "id int, p int, n struct<f:float>, d decimal(5,2)",
        "SELECT 1 id, 1 p, named_struct('f', 1.5F) n, 1.5BD d",
        *(f"ALTER TABLE {{table}} ALTER COLUMN {name} TYPE bigint" for name in ("id", "p")),
        "ALTER TABLE {table} ALTER COLUMN n.f TYPE double",
        "ALTER TABLE {table} ALTER COLUMN d TYPE decimal(10,2)",
        "SELECT 1 id, 1L p, named_struct('f', 1.5F) n, 1.5BD d",
        "SELECT 3000000000L id, 3000000000L p, named_struct('f', 0.1D) n, 12345678.5BD d",
        partitioned_by=("p",),
        properties=(("delta.enableTypeWidening", "true"),),
        formats=SPARK,
    ),
    **{
        f"a partition field is dropped, version {version}": _table(
            "id bigint, p int, q string",
            "SELECT 1L id, 1 p, 'a' q",
            "ALTER TABLE {table} DROP PARTITION FIELD p",
            "SELECT 1L id, 1 p, 'a' q",
            partitioned_by=("p", "q"),
            properties=(("format-version", version),),
            formats=("iceberg",),
        )
        for version in "12"
    },
    # of one format
    "a default": _table(
        "id bigint, v int DEFAULT 7", "SELECT 1L id", properties=DEFAULTS, formats=("delta",)
    ),
    "a default, given NULL": _table(
        "id bigint, v int DEFAULT 7, w string DEFAULT 'x'",
        "SELECT 1L id, CAST(NULL AS int) v",
        "SELECT 1L id, 'y' w",
        "SELECT 2L id, 3 v",
        properties=DEFAULTS,
        formats=("delta",),
    ),
    "CHECK": _table(
        "id bigint, n int, s struct<a:int>",
        "ALTER TABLE {table} ADD CONSTRAINT few CHECK (n < 10 AND s.a > 0)",
        "SELECT 1L id, 1 n, named_struct('a', 1) s",
        "SELECT 1L id, CAST(NULL AS int) n, CAST(NULL AS struct<a:int>) s",
        "SELECT 1L id, 11 n, named_struct('a', 1) s",
        "SELECT 1L id, 1 n, named_struct('a', 0) s",
        "SELECT 2L id, 9 n",
        formats=("delta",),
    ),
    "a generated column": _table(
        "id bigint, at timestamp, day date, n int",
        "SELECT 1L id, timestamp'2026-01-02 03:04:05' at, 1 n",
        "SELECT 1L id, timestamp'2026-01-03 03:04:05' at, 2 n",
        "SELECT 1L id, timestamp'2026-01-04 03:04:05' at, date'2026-01-04' day, 3 n",
        "SELECT 1L id, timestamp'2026-01-04 03:04:05' at, date'2026-01-05' day, 4 n",
        "SELECT 1L id, CAST(NULL AS timestamp) at, 5 n",
        "SELECT 1L id, 6 n",
        "SELECT 2L id, 7 n",
        generated=(("day", GENERATED_DAY),),
        formats=("delta",),
    ),
    "a generated partition column": _table(
        "id bigint, at timestamp, day date, n int",
        "SELECT 1L id, timestamp'2026-01-02 03:04:05' at, date'2026-01-02' day, 1 n",
        "SELECT 1L id, timestamp'2026-01-02 13:04:05' at, date'2026-01-02' day, 2 n",
        "SELECT 1L id, timestamp'2026-01-04 03:04:05' at, date'2026-01-05' day, 3 n",
        "SELECT 1L id, timestamp'2026-01-04 03:04:05' at, date'2026-01-02' day, 4 n",
        "SELECT 1L id, timestamp'2026-01-05 03:04:05' at, 5 n",
        partitioned_by=("day",),
        generated=(("day", GENERATED_DAY),),
        formats=("delta",),
    ),
    "a generated key": _table(
        "a int, id bigint, n int",
        "SELECT 1 a, 2L id, 1 n",
        "SELECT 1 a, 2L id, 2 n",
        "SELECT 2 a, 2L id, 3 n",
        "SELECT 2 a, 3 n",
        generated=(("id", {"delta.generationExpression": "CAST(a AS bigint) * 2"}),),
        formats=("delta",),
    ),
    "an identity column": _table(
        "id bigint, number bigint, n int",
        "SELECT 1L id, 1 n",
        "SELECT 1L id, 2 n",
        "SELECT 2L id, 9L number, 3 n",
        "SELECT 3L id, CAST(NULL AS bigint) number, 4 n",
        "SELECT 3L id, 5 n",
        generated=(("number", _identity(5, 2, given=False)),),
        formats=("delta",),
    ),
    "an identity column by default": _table(
        "id bigint, number bigint, n int",
        "SELECT 1L id, 7L number, 1 n",
        "SELECT 1L id, 2 n",
        "SELECT 2L id, 3 n",
        "SELECT 3L id, CAST(NULL AS bigint) number, 4 n",
        generated=(("number", _identity(1, 1, given=True)),),
        formats=("delta",),
    ),
    "an identity column as a key": _table(
        "id bigint, n int",
        "SELECT 7L id, 1 n",
        "SELECT 7L id, 2 n",
        "SELECT 3 n",
        generated=(("id", _identity(1, 1, given=True)),),
        formats=("delta",),
    ),
    "a default of a partition column": _table(
        "id bigint, p int DEFAULT 7, n int",
        "SELECT 1L id, 7 p, 1 n",
        "SELECT 1L id, 2 n",
        partitioned_by=("p",),
        properties=DEFAULTS,
        formats=("delta",),
    ),
    "CHECK of a partition column": _table(
        "id bigint, p int, n int",
        "ALTER TABLE {table} ADD CONSTRAINT few CHECK (p < 10)",
        "SELECT 1L id, 1 p, 1 n",
        "SELECT 1L id, 11 p, 1 n",
        "SELECT 1L id, 1L p, 2 n",
        partitioned_by=("p",),
        formats=("delta",),
    ),
    "lengths in nested types": _table(
        "id bigint, n struct<a:char(3),b:varchar(2)>, m map<string,varchar(2)>",
        "SELECT 1L id, named_struct('b', 'xy', 'a', 'x') n, map('k', 'xy') m",
        "SELECT 2L id, named_struct('a', 'x', 'b', 'xy ') n, map('k', 'x  ') m",
        "SELECT 3L id, named_struct('a', 'xyzä', 'b', 'x') n, map('k', 'x') m",
        "SELECT 4L id, named_struct('a', 'x', 'b', 'x') n, map('k', 'xyz') m",
        formats=SPARK,
    ),
    "CHAR as a key": _keys("char(3)", "'a'", "'a  '", "'a'", "'abcd'", formats=SPARK),
    "VARCHAR as a key": _keys("varchar(3)", "'a'", "'a'", "'abcd'", "'abc  '", formats=SPARK),
    "CHAR as a partition": _partitions("char(3)", "'a'", "'a  '", "'abcd'", formats=SPARK),
    "local timestamps": _table(
        "id timestamp_ntz, a array<timestamp_ntz>, n int",
        "SELECT timestamp_ntz'2026-03-29 02:30:00' id, array(timestamp_ntz'1500-01-01 00:00:00') a, 1 n",
        "SELECT timestamp_ntz'2026-03-29 02:30:00' id, array(timestamp'2026-10-25 02:30:00') a, 2 n",
        "SELECT timestamp'2026-03-29 03:30:00' id, array(CAST(NULL AS timestamp_ntz)) a, 3 n",
        "SELECT date'2026-03-29' id, array(timestamp_ntz'+12000-01-01 00:00:00.123456') a, 4 n",
        settings=BERLIN,
        formats=SPARK,
    ),
    "nested NOT NULL, twice": _table(
        "id bigint, n struct<a:struct<b:int NOT NULL> NOT NULL>",
        "SELECT 1L id, named_struct('a', named_struct('b', 1)) n",
        "SELECT 2L id, CAST(NULL AS struct<a:struct<b:int>>) n",
        "SELECT 3L id, named_struct('a', CAST(NULL AS struct<b:int>)) n",
        "SELECT 4L id, named_struct('a', named_struct('b', CAST(NULL AS int))) n",
        "SELECT 5L id",
        formats=SPARK,
    ),
    **VARIANTS,
    **TIMES,
    **{
        f"microseconds into {kind}": _one(
            "timestamp_ntz",
            "timestamp_ntz'2026-01-01 00:00:00.123456'",
            paimon=(("v", kind),),
            formats=("paimon",),
        )
        for kind in ("TIMESTAMP(3)", "TIMESTAMP(0)")
    },
    # Delta's overwrite of partitions takes the names without Spark's resolution, whatever the case; the sink refuses them.
    "ID for id, sensitive, in Delta": replace(SENSITIVE_ID, formats=("delta",), modes=("append", "upsert")),
    "far dates in nested fields": _table(
        "id bigint, n struct<d:date,at:timestamp>, a array<date>, m map<string,timestamp_ntz>",
        *(
            f"SELECT {number}L id, named_struct('d', date'{day}', 'at', timestamp'{day} 01:02:03') n, array(date'{day}') a, "
            f"map('k', timestamp_ntz'{day} 01:02:03') m"
            for number, day in enumerate(("0001-01-01", "9999-12-31", "+12000-06-01"))
        ),
        settings=BERLIN,
    ),
    "floats as a primary key": _keys("double", "double('NaN')", "double('NaN')", modes=("key",)),
    "ANSI's reserved words": Situation(
        "id bigint, `user` int, p string",
        ("SELECT 1L id, 1 `user`, 'x' p", "SELECT 1L id, 2L `user`, 'x' p"),
        partitioned_by=("p",),
        settings=RESERVED,
    ),
    "texts that are stored as one number": Situation(
        "id int, n int",
        (
            "SELECT '01' id, 1 n UNION ALL SELECT '1', 2 UNION ALL SELECT ' 2', 3",
            "SELECT '+1' id, 4 n UNION ALL SELECT '1', 5",
        ),
        order_by="n",
        formats=("delta",),
        modes=("upsert",),
    ),
    "numbers that are stored as one": Situation(
        "id int, n int",
        ("SELECT 1.25D id, 1 n UNION ALL SELECT 1.5D, 2 UNION ALL SELECT CAST(NULL AS double), 3",),
        order_by="n",
    ),
    "an empty text in a partition column that is NOT NULL": _table(
        "id bigint, p string NOT NULL, n int",
        ("1L, 'a', 1",),
        ("1L, '', 2",),
        ("1L, 'a', 3",),
        partitioned_by=("p",),
    ),
    "CHAR in a partition column that is NOT NULL": _table(
        "id bigint, p char(2) NOT NULL, n int",
        ("1L, '', 1", "1L, ' ', 2", "1L, 'a', 3"),
        partitioned_by=("p",),
        order_by="n",
        formats=SPARK,
    ),
    "keys and partitions with reserved words": Situation(
        "`from` bigint, `select` string, `where` int, `a``b` int, n int",
        tuple(
            f"SELECT 1L `from`, 'x' `select`, 2 `where`, 1 `a``b`, {n} n UNION ALL SELECT 2L, 'y', 3, 1, {n}"
            for n in (1, 2)
        ),
        keys=("from", "a`b"),
        partitioned_by=("select", "where"),
        settings=RESERVED,
        properties=MAPPED,
    ),
    "a day of a column with a reserved word": Situation(
        "id bigint, `order` timestamp, n int",
        tuple(f"SELECT 1L id, timestamp'2026-01-02 03:04:05' `order`, {n} n" for n in (1, 2)),
        partitioned_by=("days(`order`)",),
        settings=RESERVED,
        formats=("iceberg",),
        modes=("append", "overwrite"),  # the native MERGE of this suite has no quoted column in a transform
    ),
    "reserved words, merge-on-read": Situation(
        "id bigint, `select` string, n int",
        tuple(f"SELECT 1L id, 'x' `select`, {n} n UNION ALL SELECT 2L, 'y', {n}" for n in (1, 2, 3)),
        partitioned_by=("select",),
        settings=(*RESERVED, ("spark.sql.adaptive.enabled", "true")),
        properties=(("write.merge.mode", "merge-on-read"),),
        formats=("iceberg",),
    ),
    "a decimal partition of another scale": _partitions(
        "decimal(9,4)", "CAST(2 AS decimal(9,4))", "1.50BD", "8", formats=("hudi",)
    ),
    # Settings that give a type of the sink's own SQL another meaning.
    "timestamp means timestamp_ntz": _partitions(
        "timestamp_ntz",
        "timestamp_ntz'2026-10-25 02:30:00.5'",
        "timestamp_ntz'2026-10-25 02:30:00.5'",
        settings=(*BERLIN, ("spark.sql.timestampType", "TIMESTAMP_NTZ")),
        formats=(*SPARK, "paimon"),
    ),
    "a date for an instant as a partition, timestamp means timestamp_ntz": _partitions(
        "timestamp_ltz",
        "date'2026-01-02'",
        settings=(*UTC, ("spark.sql.timestampType", "TIMESTAMP_NTZ")),
        formats=("delta",),
    ),
    "intervals of Spark 2": _partitions(
        "timestamp_ntz",
        "timestamp_ntz'2026-10-25 02:30:00.5'",
        "timestamp_ntz'2026-10-25 02:30:00.5'",
        settings=(("spark.sql.legacy.interval.enabled", "true"),),
        formats=("paimon",),
    ),
    "a key that is NOT NULL": _keys(
        "bigint NOT NULL", "1L", "1L", "CAST(NULL AS bigint)", modes=("upsert",), formats=SPARK
    ),
}
