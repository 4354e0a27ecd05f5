"""What the executors of `PaimonSink` write to tables with a primary key, read by Java Paimon before and after its compaction."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lakewarden.spark_jobs.sinks.paimon.table import address
from tests.spark.conftest import MakeTable, rows_of, snapshots_of
from tests.spark.java_paimon import JavaPaimon
from tests.unit.spark_jobs.sinks.test_paimon_dynamic_buckets import stage as stage_dynamic
from tests.unit.spark_jobs.sinks.test_paimon_primary_key import FLIGHTS as DYNAMIC, commit, flight, stage
from tests.unit.spark_jobs.sinks.test_partition_paths import (
    PAIMON_ROWS,
    PAIMON_SCHEMA,
    PAIMON_TYPES,
    stage_in_all_partitions,
)

pytestmark = [pytest.mark.matrix]

VALUES = [pa.field("name", pa.string()), pa.field("n", pa.int64()), pa.field("kind", pa.string())]

Rows = list[tuple[Any, ...]]


def upsert(table: str, schema: pa.Schema, *batches: Rows) -> None:
    """Commit the batches, one after the other, as the sink's executors and its driver do."""
    where = address(table)
    for identifier, rows in enumerate(batches):
        messages = stage(where, [dict(zip(schema.names, row, strict=True)) for row in rows])
        commit(where, messages, identifier=identifier)


def assert_all_readers_agree(java: JavaPaimon, table: str, expected: Rows) -> None:
    """Before and after a full compaction, and after a second one, which finds nothing to do."""
    for identifier in range(3):
        assert sorted((tuple(row.values()) for row in rows_of(table)), key=repr) == expected
        assert java.rows(table) == expected
        assert java.misplaced(table) == []
        if identifier < 2:
            java.compact(table, identifier)
    assert "COMPACT" in [snapshot.commit_kind for snapshot in snapshots_of(table)]


ENGINES: dict[str, tuple[dict[str, str], Rows]] = {
    "deduplicate": ({}, [("new", 1), ("new", None), ("old", 3), ("only", 4)]),
    "sequence.field": ({"sequence.field": "n"}, [("new", 1), ("old", 2), ("old", 3), ("only", 4)]),
    "partial-update": ({"merge-engine": "partial-update"}, [("new", 1), ("new", 2), ("old", 3), ("only", 4)]),
    "aggregation": (
        {"merge-engine": "aggregation", "fields.n.aggregate-function": "sum"},
        [("new", 2), ("new", 2), ("old", 3), ("only", 4)],
    ),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("partitioned", [True, False], ids=["partitioned", "unpartitioned"])
def test_each_merge_engine(
    make_table: MakeTable, java: JavaPaimon, *, engine: str, partitioned: bool
) -> None:
    options, merged = ENGINES[engine]
    first = pa.field("day", pa.int32(), nullable=not partitioned)
    schema = pa.schema([first, pa.field("id", pa.int64(), nullable=False), *VALUES[:2]])
    table = make_table(
        f"merged_{engine.replace('.', '_')}_{partitioned}",
        partition_keys=("day",) if partitioned else (),
        schema=schema,
        primary_keys=("day", "id") if partitioned else ("id",),
        **({"bucket": "2", "write-only": "true"} | options),
    )

    old: Rows = [(1, number, "old", number) for number in (1, 2, 3)]
    upsert(table, schema, old, [(1, 1, "new", 1), (1, 2, "new", None), (1, 4, "only", 4)])

    assert_all_readers_agree(java, table, [(1, at, *values) for at, values in enumerate(merged, start=1)])


def test_deletes_stay_deleted(make_table: MakeTable, java: JavaPaimon) -> None:
    """Of keys that are in older files, in the same batch, and nowhere."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), *VALUES])
    options = {"bucket": "1", "write-only": "true", "rowkind.field": "kind"}
    table = make_table("deleted", partition_keys=(), schema=schema, primary_keys=("id",), **options)
    own: Rows = [
        (1, "a", 1, "+I"),
        (1, "a", 2, "-D"),
        (2, "b", 1, "+I"),
        (3, "c", 1, "+I"),
        (9, None, 1, "-D"),
    ]

    upsert(table, schema, own, [(3, None, 2, "-D"), (10, None, 2, "-D")])

    assert_all_readers_agree(java, table, [(2, "b", 1, "+I")])


def test_java_and_the_sink_share_the_index_of_dynamic_buckets(
    make_table: MakeTable, java: JavaPaimon
) -> None:
    """Both before and after a compaction the sink finds the bucket of each key."""
    table = make_table(
        "dynamic",
        partition_keys=("day",),
        schema=DYNAMIC,
        primary_keys=("day", "flight"),
        **{"bucket": "-1", "dynamic-bucket.target-row-num": "2", "write-only": "true"},
    )
    where = address(table)

    def upsert_dynamic(identifier: int, gate: str, numbers: Iterable[int]) -> None:
        messages = stage_dynamic(where, [flight(number, gate) for number in numbers])
        commit(where, messages, identifier=identifier)

    upsert_dynamic(0, "a", range(9))
    upsert_dynamic(1, "b", range(12, 5, -1))
    expected = {number: "a" if number < 6 else "b" for number in range(13)}
    for identifier in (0, 1):
        assert {row["flight"]: row["gate"] for row in rows_of(table)} == expected
        assert sorted((row[1], row[2]) for row in java.rows(table)) == sorted(expected.items())
        assert len(rows_of(table)) == len(expected)
        java.compact(table, identifier)
        upsert_dynamic(2 + identifier, "c", [13, 0])
        expected |= {13: "c", 0: "c"}
    assert sorted((row[1], row[2]) for row in java.rows(table)) == sorted(expected.items())


BUCKET_KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int": (pa.int32(), [number * 7919 - 90_000 for number in range(40)]),
    "smallint": (pa.int16(), list(range(-20, 20))),
    "string": (pa.string(), ["", *(f"flight é {'x' * number}" for number in range(39))]),
    "decimal-18": (pa.decimal128(18, 4), [Decimal(number * 71) / 10_000 for number in range(-20, 20)]),
    "decimal-38": (
        pa.decimal128(38, 6),
        [Decimal(number * 12345678901234567890) for number in range(-20, 20)],
    ),
    "timestamp-3": (
        pa.timestamp("ms"),
        [dt.datetime(2013, 1, 1) + dt.timedelta(milliseconds=number * 86400123) for number in range(40)],  # noqa: DTZ001
    ),
    "timestamp-6": (
        pa.timestamp("us"),
        [dt.datetime(2013, 1, 1) + dt.timedelta(microseconds=number * 86400123457) for number in range(40)],  # noqa: DTZ001
    ),
    "date": (pa.date32(), [dt.date(2013, 1, 1) + dt.timedelta(days=number) for number in range(40)]),
    "boolean": (pa.bool_(), [False, True]),
    "double": (pa.float64(), [number * 1.5 for number in range(-20, 20)]),
}


@pytest.mark.parametrize("kind", BUCKET_KEYS)
def test_java_puts_a_key_of_each_type_into_the_same_bucket(
    make_table: MakeTable, java: JavaPaimon, kind: str
) -> None:
    """pypaimon hashes the bucket key itself."""
    arrow, keys = BUCKET_KEYS[kind]
    schema = pa.schema([pa.field("id", arrow, nullable=False), *VALUES[:2]])
    table = make_table(
        f"hashed_{kind.replace('-', '_')}",
        partition_keys=(),
        schema=schema,
        primary_keys=("id",),
        **{"bucket": "5", "write-only": "true"},
    )
    rows: Rows = [(key, "a", number) for number, key in enumerate(keys)]

    upsert(table, schema, rows, rows)

    assert len(rows_of(table)) == len(java.rows(table)) == len(keys)
    assert java.misplaced(table) == []
    java.compact(table, 0)
    assert len(rows_of(table)) == len(java.rows(table)) == len(keys)


@pytest.mark.parametrize("legacy", ["true", "false"])
def test_java_finds_the_files_of_partitions_of_all_kinds(
    make_table: MakeTable, java: JavaPaimon, legacy: str
) -> None:
    table = make_table(
        f"partitions_{legacy}",
        partition_keys=tuple(PAIMON_TYPES),
        schema=PAIMON_SCHEMA,
        **{"partition.legacy-name": legacy},
    )
    where = address(table)
    messages, _markers = stage_in_all_partitions(where, "data-")

    commit(where, messages)

    assert sorted(row[-1] for row in java.rows(table)) == [row["id"] for row in PAIMON_ROWS]
