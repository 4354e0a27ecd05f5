"""The merge as a function of DataFrames, compared with the same updates of a dictionary."""

from __future__ import annotations

from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession, functions, types

from lakewarden.spark_jobs.engine.engine import quoted
from lakewarden.spark_jobs.engine.java import elements
from lakewarden.spark_jobs.sinks.assignment import assigned, spelled_as
from lakewarden.spark_jobs.sinks.delta.sink import _ansi_cast
from lakewarden.spark_jobs.sinks.iceberg.release import STAGING_CATALOG
from lakewarden.spark_jobs.sinks.iceberg.transforms import PartitionField
from lakewarden.spark_jobs.sinks.paimon.frames import _collected
from lakewarden.spark_jobs.sinks.partition_paths import collected, in_sql, type_in_sql
from lakewarden.spark_jobs.sinks.partitions import PartitionColumn, content_of
from lakewarden.spark_jobs.sinks.table_locations import quoted_name
from lakewarden.spark_jobs.sinks.upsert import Upsert, converted_keys, latest, lossless, merge, require_order
from tests.spark.formats import session_settings
from tests.spark.rows.comparison import SMALL
from tests.spark.rows.memory_gate import MemoryGate
from tests.spark.rows.tables import FORMATS, Situation

pytestmark = [pytest.mark.real]

KEY = st.integers(0, 5) | st.none()
TEXT = st.sampled_from(["a", "b", "c"]) | st.none()


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    base=st.dictionaries(st.tuples(KEY, KEY), st.tuples(TEXT, TEXT), max_size=8),
    batch=st.lists(st.tuples(KEY, KEY, TEXT), max_size=8),
)
def test_a_merge_updates_rows_as_a_dictionary_is_updated(
    spark: SparkSession, base: dict[Any, tuple[Any, Any]], batch: list[tuple[Any, Any, Any]]
) -> None:
    """Null keys included. Of equal keys in a batch the greatest value counts. A column that the batch lacks stays."""
    old = spark.createDataFrame(
        [(*key, *values) for key, values in base.items()], "k1 int, k2 int, brought string, kept string"
    )
    changes = spark.createDataFrame(batch, "k1 int, k2 int, brought string")
    keys = ["k1", "k2"]

    rows = merge(old, latest(changes, keys), keys).collect()

    expected = {key: list(values) for key, values in base.items()}
    newest: dict[Any, Any] = {}
    for *key, value in batch:
        seen = newest.get(tuple(key))
        newest[tuple(key)] = value if seen is None else max(seen, value or "")
    for new_key, value in newest.items():
        expected.setdefault(new_key, [None, None])[0] = value
    assert {(row.k1, row.k2): [row.brought, row.kept] for row in rows} == expected
    assert len(rows) == len(expected)


def test_order_by_selects_one_of_the_rows_with_equal_keys(spark: SparkSession) -> None:
    changes = spark.createDataFrame([(1, "z", 1), (1, "a", 2)], "k int, value string, version int")
    found = latest(changes, ["k"], "version").collect()
    assert [tuple(row) for row in found] == [(1, "a", 2)]
    assert latest(changes.select("k"), ["k"]).count() == 1


ORDERED = {
    "tinyint": ("9Y", "10Y"),
    "int": ("-1", "9", "10"),
    "bigint": ("9L", "10L"),
    "decimal": ("9.5BD", "10.0BD"),
    "double": ("-0.5D", "9D", "10D", "double('Infinity')", "double('NaN')"),
    "float": ("9F", "10F", "float('NaN')"),
    "string": ("''", "'10'", "'9'", "'\u00e9'", "'\U0001f600'"),
    "binary": ("X''", "X'7f'", "X'ff'"),
    "boolean": ("false", "true"),
    "date": ("date'-0001-01-01'", "date'2026-01-01'", "date'+12000-01-01'"),
    "timestamp": ("timestamp'0001-01-01 00:00:00'", "timestamp'+12000-01-01 00:00:00'"),
    "timestamp_ntz": ("timestamp_ntz'0001-01-01 00:00:00'", "timestamp_ntz'2026-01-01 00:00:00'"),
    "interval of days": ("interval '9' hour", "interval '10' hour"),
    "interval of months": ("interval '9' month", "interval '10' month"),
    "array": ("array(9)", "array(9, 1)", "array(10)"),
    "struct": ("named_struct('a', 9)", "named_struct('a', 10)"),
    "collated": ("'a' COLLATE UTF8_LCASE", "'B' COLLATE UTF8_LCASE"),
}
UNORDERED = {
    "map": "map('a', 9)",
    "variant": "parse_json('9')",
    "calendar interval": "make_interval(0, 0, 0, 0, 9, 0, 0)",
    "map in a struct": "named_struct('m', map('a', 9))",
    "variant in an array": "array(parse_json('9'))",
    "calendar interval in a struct": "named_struct('i', make_interval(0, 0, 0, 0, 9, 0, 0))",
}


@pytest.mark.parametrize("kind", ORDERED)
def test_order_by_is_sparks_order_of_each_type(spark: SparkSession, kind: str) -> None:
    values = ", ".join(f"(1, {number}, {value})" for number, value in enumerate(ORDERED[kind]))
    try:
        rows = spark.sql(f"SELECT * FROM VALUES {values} AS t(k, n, v)")  # noqa: S608 - of this table
        greatest = rows.orderBy(functions.col("v").desc()).select("n").head()
    except (ParseException, AnalysisException):
        pytest.skip("this release of Spark has no such type")
    require_order(rows, "v", "t")
    assert [row.n for row in latest(rows, ["k"], "v").select("n").collect()] == [
        greatest.n if greatest else None
    ]
    assert greatest is not None
    assert greatest.n == len(ORDERED[kind]) - 1


@pytest.mark.parametrize("kind", UNORDERED)
def test_order_by_of_a_type_that_spark_does_not_order_is_refused(spark: SparkSession, kind: str) -> None:
    try:
        rows = spark.sql(f"SELECT 1 k, {UNORDERED[kind]} v")
    except (ParseException, AnalysisException):
        pytest.skip("this release of Spark has no such type")
    with pytest.raises(AnalysisException):
        rows.orderBy("v").collect()
    # PySpark 3.5 has no class for an interval of the calendar: the schema itself is refused there.
    refusal = r"order_by='v' has the type .*Spark doesn't order.*table=t|CANNOT_PARSE_DATATYPE.*interval"
    for upsert in (Upsert(("k",), order_by="v"), Upsert(("k",), order_by="V")):
        with pytest.raises(ValueError, match=refusal):
            upsert.order_column(rows, "t")


def test_a_name_that_sparks_sql_would_replace_is_refused(spark: SparkSession) -> None:
    rows = spark.range(1).toDF("${x}")
    with pytest.raises(ValueError, match=r"\['\$\{x\}'\].*spark.sql.variable.substitute=false; table=t"):
        spelled_as(rows, ["${x}"], "t", lambda _: False)
    with session_settings(spark, {"spark.sql.variable.substitute": "false"}):
        assert spelled_as(rows, ["${x}"], "t", lambda _: False).columns == ["${x}"]
        for name in ("select", "a`b", "a.b", "${x}", "${spark.app.name}", "t", "\u00e9 \n"):
            assert spark.range(1).toDF(name).selectExpr(quoted(name)).columns == [name]


NAMES = (
    "select",
    "from",
    "timestamp",
    "value",
    "order",
    "t",
    "s",
    "a`b",
    "a.b",
    "a b",
    "'",
    '"',
    "--",
    "/*",
    "\\",
    "${x}",
    "é",
    "日",
    "1",
    "*",
    "count(1)",
    "a,b",
    ":p",
    "?",
)
RESERVING: Final[tuple[dict[str, str], ...]] = (
    {},
    {"spark.sql.ansi.enabled": "true", "spark.sql.ansi.enforceReservedKeywords": "true"},
)

SESSIONS = st.sampled_from([*RESERVING, {"spark.sql.timestampType": "TIMESTAMP_NTZ"}])


def named_in(spark: SparkSession, text: str, *, statement: bool) -> set[tuple[str, ...]]:
    """The columns that Spark's parser finds in an expression or a MERGE, with their aliases."""
    parser = spark._jsparkSession.sessionState().sqlParser()
    parse = parser.parsePlan if statement else parser.parseExpression
    parsed = parse(text)
    found = list(elements(parsed.expressions())) if statement else [parsed]
    leaves = [leaf for each in found for leaf in elements(each.collectLeaves())]
    return {
        tuple(map(str, elements(leaf.nameParts())))
        for leaf in leaves
        if leaf.getClass().getSimpleName() == "UnresolvedAttribute"
    }


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    names=st.lists(st.sampled_from(NAMES), min_size=6, max_size=6, unique=True),
    reserving=st.sampled_from(RESERVING),
    kind=st.sampled_from(["string", "date", "timestamp", "int"]),
)
def test_every_text_of_sql_names_the_columns_that_it_should(
    spark: SparkSession, names: list[str], reserving: dict[str, str], kind: str
) -> None:
    """Each place of the sinks that writes SQL, with names that need quotes; a table may have any of them."""
    key, part, day, order, value, catalog = names
    columns = PartitionColumn(part, kind, empty_is_null=True)
    days = PartitionField("f", day, "day", None, "date", catalog)
    literals = {"string": "a'\\", "date": "2026-01-01", "timestamp": 7, "int": 7}
    values = (literals[kind], date(2026, 1, 1))
    upsert = Upsert((key,), order_by=order)
    with session_settings(spark, reserving | {"spark.sql.variable.substitute": "false"}):
        statement = upsert.statement(
            f"{STAGING_CATALOG}.{quoted(names[0])}",
            quoted("source"),
            fields=[columns, days],
            partitions=[values, (None, None)],
            required=[],
            assigned=[key, part, day, value],
            others={order: f"s.{quoted(order)}"},
            stored={part: f"{part}_"},
        )
        expected: set[tuple[str, ...]]
        expected = {(alias, name) for alias in "ts" for name in (key, part, day, value)}
        expected |= {(name,) for name in (key, part, day, value, order)} | {("s", order), ("s", f"{part}_")}
        assert named_in(spark, statement, statement=True) == expected

        for text in (
            collected(kind, f"CAST({quoted(part)} AS {in_sql(kind)})"),
            _ansi_cast(part, "string", kind),
            columns.computed(quoted(part)),
            days.computed(quoted(part)),
        ):
            assert named_in(spark, text, statement=False) == {(part,)}, text
        parts = ".".join(map(quoted, names))
        assert quoted_name(parts) == parts

        rows = spark.range(1).selectExpr(
            f"'k' AS {quoted(key)}",
            f"CAST(NULL AS {in_sql(kind)}) AS {quoted(part)}",
            f"2 AS {quoted(order)}",
        )
        found = content_of(rows, [columns], [key], "t", persisted=False)
        assert (found.partitions, found.keys_repeat) == (((None,),), False)
        one = upsert.one_row_per_key(rows, [columns], "t", converted={key: f"CAST({quoted(key)} AS binary)"})
        assert [tuple(row) for row in one.collect()] == [("k", None, 2)]
        assert one.columns == rows.columns
        assert [tuple(row) for row in rows.selectExpr(*_collected(rows, rows.columns)).collect()] == [
            ("k", None, 2)
        ]


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(names=st.lists(st.sampled_from(NAMES), min_size=2, max_size=2, unique=True), settings=SESSIONS)
def test_keys_whose_fields_have_any_names_are_compared_in_the_tables_type(
    spark: SparkSession, names: list[str], settings: dict[str, str]
) -> None:
    """Two moments of the hour that a zone repeats stay two keys, whatever `timestamp` means in the session's SQL."""
    first, second = names
    zone = {"spark.sql.session.timeZone": "Europe/Berlin", "spark.sql.variable.substitute": "false"}
    with session_settings(spark, zone | settings):
        moments = [f"timestamp_seconds({1792888200 + 3600 * hour})" for hour in (0, 1)]
        structs = [f"{quoted(first)}, {moment} AS {quoted(second)}" for moment in moments]
        rows = spark.sql(
            " UNION ALL ".join(
                f"SELECT array(struct(1 AS {each})) AS k, {v} AS v" for v in (1, 2) for each in structs
            )
        )
        stored = types.StructType(
            [types.StructField(first, types.LongType()), types.StructField(second, types.TimestampType())]
        )
        table = types.StructType([types.StructField("k", types.ArrayType(stored))])
        assert (
            spark.range(1).selectExpr(f"CAST(NULL AS {type_in_sql(stored)}) AS k").schema["k"].dataType
            == stored
        )
        converted = converted_keys(["k"], rows.schema, table)
        one = Upsert(("k",)).one_row_per_key(rows, [], "t", converted=converted)
        assert [row.v for row in one.collect()] == [2, 2]


STORED = {
    "tinyint": types.ByteType(),
    "int": types.IntegerType(),
    "bigint": types.LongType(),
    "float": types.FloatType(),
    "double": types.DoubleType(),
    "decimal": types.DecimalType(5, 2),
    "string": types.StringType(),
    "date": types.DateType(),
    "timestamp": types.TimestampType(),
    "timestamp_ntz": types.TimestampNTZType(),
    "struct": types.StructType([types.StructField("a", types.IntegerType())]),
    "array": types.ArrayType(types.DateType()),
}
OF_BATCHES = (
    *("1Y", "1", "300", "16777217", "1L", "3000000000L", "9007199254740993L", "NULL", "true", "X'31'"),
    *("1.0D", "1.9D", "0.1D", "1e300D", "-0.0D", "double('NaN')", "0.1F", "1.5F", "16777216F"),
    *("1.00BD", "1.005BD", "1.50BD", "'1'", "'01'", "' 1'", "'1.005'", "'2026-1-1'", "'2026-01-01 00:00:01'"),
    *("date'2026-01-01'", "timestamp'2026-01-01 00:00:00'", "timestamp'2026-01-01 05:00:00'"),
    *("timestamp'2026-10-25 00:30:00 UTC'", "timestamp'2026-10-25 01:30:00 UTC'"),
    *("timestamp_ntz'2026-01-01 00:00:00'", "timestamp_ntz'2026-01-01 05:00:00'"),
    *("timestamp_ntz'2026-03-29 02:30:00'", "timestamp_ntz'2026-10-25 02:30:00'"),
    *("named_struct('a', 1L)", "named_struct('a', 1.9D)", "named_struct('a', CAST(NULL AS double))"),
    *(
        "array(timestamp'2026-01-01 00:00:00')",
        "array(timestamp'2026-01-01 05:00:00')",
        "array(date'2026-01-01')",
    ),
)


def _stored(batch: DataFrame, table: types.StructType) -> DataFrame:
    """Return what Spark's store assignment stores, or the cast of Delta's MERGE, which takes texts, too."""
    try:
        return assigned(batch, table, "t")
    except ValueError:
        return batch.selectExpr(f"CAST(k AS {type_in_sql(table['k'].dataType)}) AS k")


@pytest.mark.parametrize(
    "name", [each if each == "date" else pytest.param(each, marks=pytest.mark.wide) for each in STORED]
)
def test_a_key_is_refused_exactly_if_a_merge_would_not_find_what_is_stored(
    spark: SparkSession, name: str
) -> None:
    table = types.StructType([types.StructField("k", STORED[name])])
    found = {}
    with session_settings(spark, {"spark.sql.session.timeZone": "Europe/Berlin"}):
        for value in OF_BATCHES:
            batch = spark.sql(f"SELECT {value} AS k")
            converted = converted_keys(["k"], batch.schema, table)
            if not converted:
                continue
            try:
                stored = _stored(batch, table)
                again = stored.crossJoin(batch.toDF("given")).selectExpr("k <=> given").head()
            except (Py4JJavaError, PySparkException):
                continue  # the write refuses the type, or the value
            checked = lossless(converted, batch.schema, table)
            refused = None
            try:
                content_of(batch, [], ["k"], "t", persisted=False, checked=checked)
            except (Py4JJavaError, PySparkException) as error:
                refused = str(error)
            assert again is not None
            found[value] = again[0]
            assert found[value] == (refused is None), f"{value} in a column of type {name}: {refused}"
            assert refused is None or "no batch would find the row again: cast it in the batch" in refused
    assert len(found) > 2


@pytest.mark.parametrize(
    ("table_format", "mode"),
    [(each, mode) for each, tables in FORMATS.items() for mode in ("upsert", "key") if mode in tables.modes],
)
def test_a_batch_whose_keys_lose_something_leaves_one_row_or_none(
    spark: SparkSession, tmp_path: Path, table_format: str, mode: str
) -> None:
    batch = "SELECT timestamp_ntz'2026-01-01 05:00:00' id, 1.9D k, 1 n"
    situation = Situation("id date, k int, n int", (batch,), keys=("id", "k"))
    with session_settings(spark, SMALL):
        tables = FORMATS[table_format](spark, tmp_path / "tables", situation, mode)
        gate = MemoryGate(tables.folder)
        for number in (0, 1):
            with suppress(ValueError):
                gate.write(tables.make_sink, spark.sql(batch), number, declared=True)
        assert tables.rows("sink").total() <= 1


VALUES_WITHOUT_AN_ORDER = {
    "map": "map('a', {})",
    "struct": "named_struct('m', map('a', {}))",
    "array": "array(map('a', {}))",
    **({"variant": "to_variant_object(array({}))"} if hasattr(functions, "to_variant_object") else {}),
}


@pytest.mark.parametrize("value", VALUES_WITHOUT_AN_ORDER.values(), ids=VALUES_WITHOUT_AN_ORDER)
def test_types_without_an_order_are_beside_repeated_keys(spark: SparkSession, value: str) -> None:
    """The columns have names that the function could have chosen itself."""
    rows = [
        f"SELECT 1 `row`, {value.format(number)} `a``b`, {number} _lakewarden_row" for number in (1, 2, 0)
    ]

    found = latest(spark.sql(" UNION ALL ".join(rows)), ["row"])

    assert found.columns == ["row", "a`b", "_lakewarden_row"]
    (row,) = found.selectExpr("CAST(`a``b` AS string)", "_lakewarden_row").collect()
    assert "2" in row[0]
    assert row[1] == 2


@pytest.mark.parametrize(
    "values",
    [
        [f"timestamp_ntz'2026-01-01 00:00:00.00000{digit}'" for digit in (1, 2)],
        [f"timestamp'2026-10-25 0{hour}:30:00 UTC'" for hour in (0, 1)],
    ],
    ids=["microseconds", "the repeated hour"],
)
def test_moments_in_maps_are_ordered_whatever_the_order_of_the_rows(
    spark: SparkSession, values: list[str]
) -> None:
    found = set()
    with session_settings(spark, {"spark.sql.session.timeZone": "Europe/Berlin"}):
        for each in (values, values[::-1]):
            rows = spark.sql(" UNION ALL ".join(f"SELECT 1 k, map('a', {value}) v" for value in each))
            found.update(
                latest(rows.coalesce(1), ["k"])
                .selectExpr("unix_micros(CAST(v['a'] AS timestamp_ltz))")
                .collect()
            )
    assert len(found) == 1


def test_a_row_keeps_its_own_one_of_equal_keys(spark: SparkSession) -> None:
    changes = spark.sql("SELECT * FROM VALUES (-0.0D, 2), (0.0D, 1) AS t(k, v)")
    assert [str(row.k) for row in latest(changes, ["k"]).collect()] == ["-0.0"]


def test_columns_keep_their_order_and_types(spark: SparkSession) -> None:
    base = spark.createDataFrame([], "a int, `b.c` string, k long, d double")
    changes = spark.createDataFrame([(7, "x")], "k long, `b.c` string")
    merged = merge(base, changes, ["k"])
    assert merged.dtypes == base.dtypes
    assert [tuple(row) for row in merged.collect()] == [(None, "x", 7, None)]
