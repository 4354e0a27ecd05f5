"""Partition paths on real Spark: the same as Spark's own directories, and as PaimonSink's markers."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakewarden.spark_jobs import PaimonSink, PartitionPaths
from lakewarden.spark_jobs.sinks import partition_paths
from tests.spark.conftest import MakeTable

pytestmark = [pytest.mark.real]

COLUMNS = {"name": "string", "number": "bigint", "flag": "boolean", "day": "date", "price": "decimal(9,2)"}

ROWS = """
select * from values
    ('plain', 3L, true, date'2026-11-21', 1.5BD),
    ('a b/c=d%"é', -3L, false, date'0999-01-02', 100BD),
    ('', null, null, null, null),
    ('x:y*z{[]}^', 0L, true, date'2026-01-01', -0.05BD)
as t(name, number, flag, day, price)
"""


def directories(folder: Path) -> set[str]:
    """Return the partition directories that Spark wrote."""
    return {str(file.parent.relative_to(folder)) for file in folder.rglob("part-*.parquet")}


def test_the_hive_spelling_is_that_of_sparks_directories(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.sql(ROWS).union(spark.sql("select 'far', 0L, true, date'+12000-06-01', 1BD"))
    rows = rows.selectExpr(*(f"cast({name} as {kind}) {name}" for name, kind in COLUMNS.items()))
    folder = tmp_path / "table"
    rows.selectExpr("*", "1 value").write.partitionBy(*COLUMNS).parquet(str(folder))
    paths = PartitionPaths("hive", COLUMNS)

    scope = paths.scope(rows)

    assert scope is not None
    assert {marker.partition for marker in scope.markers} == directories(folder)
    assert len(scope.markers) == 5
    assert any("c=d" in unquote(path) for path in directories(folder))


def test_a_batch_is_spelled_by_the_tables_types_and_not_by_its_own(spark: SparkSession) -> None:
    """One writer reads days from file names, the other from a typed column."""
    paths = PartitionPaths("hudi", {"day": "int"})
    found = [paths.scope(spark.sql(f"select {value} day")) for value in ("'03'", "3L", "3.0D")]
    assert {marker.partition for scope in found if scope for marker in scope.markers} == {"3"}


def test_a_scope_of_too_many_partitions_is_unknown(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_paths, "MAX_PARTITIONS", 3)
    paths = PartitionPaths("delta", {"id": "bigint"})
    full = paths.scope(spark.range(3))
    assert full is not None
    assert len(full.markers) == 3
    assert paths.scope(spark.range(4)) is None


def test_paimon_sink_spells_partitions_the_same_way(spark: SparkSession, make_table: MakeTable) -> None:
    schema = pa.schema(
        [
            ("name", pa.string()),
            ("number", pa.int64()),
            ("flag", pa.bool_()),
            ("day", pa.date32()),
            ("price", pa.decimal128(9, 2)),
            ("id", pa.int64()),
        ]
    )
    table = make_table("spelled", partition_keys=tuple(COLUMNS), schema=schema)
    rows = spark.sql(ROWS).selectExpr("*", "1L id")
    sink: Any = PaimonSink(table, mode="upsert", keys=["id"])

    theirs, ours = sink.scope(rows), PartitionPaths("paimon", COLUMNS).scope(rows)

    assert ours is not None
    assert set(theirs.markers) == set(ours.markers)
