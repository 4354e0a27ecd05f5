"""Parquet, Delta Lake and Iceberg: conflicts are appended once. What they have cost, by the SQL of docs/recipes.md."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession, functions as f

from lakewarden.events import encode
from lakewarden.spark_jobs.jobs.conflicts import conflicts
from lakewarden.spark_jobs.jobs.table_formats import Format, start_writing
from tests.kafka_fixture import KafkaServer
from tests.spark.formats import HAS_DELTA, HAS_ICEBERG, iceberg_name
from tests.spark.jobs.test_conflicts import conflict, produce

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

HERE: list[Any] = [
    "parquet",
    *(
        pytest.param(form, marks=pytest.mark.matrix)
        for form, here in (("delta", HAS_DELTA), ("iceberg", HAS_ICEBERG))
        if here
    ),
]
"""Those that this PySpark can write."""
RECIPES = Path(__file__).resolve().parents[3] / "docs" / "recipes.md"
HOUR = datetime(2026, 3, 1, 12)  # noqa: DTZ001 - Spark's Python rows have no zone


def location(spark: SparkSession, form: Format, folder: Path) -> str:
    return iceberg_name(spark, folder) if form == "iceberg" else str(folder)


def records(spark: SparkSession, *values: bytes, day: str = "2026-03-01") -> DataFrame:
    """Kafka's records as Spark's source has them."""
    rows = [(value, 0, offset) for offset, value in enumerate(values)]
    made = spark.createDataFrame(rows, "value binary, partition int, offset long")
    return made.withColumn("timestamp", f.lit(f"{day} 12:31:00").cast("timestamp"))


@pytest.mark.wide
@pytest.mark.parametrize("form", HERE)
def test_a_query_appends_each_conflict_once_in_its_days_partition(
    form: Format, spark: SparkSession, tmp_path: Path
) -> None:
    """A file stands for each time that Kafka has new records; the query is started again for the second."""
    arrived, output = tmp_path / "arrived", location(spark, form, tmp_path / "ops" / "conflicts")
    for number in (1, 2):
        batch = records(spark, encode(conflict(number)), b"garbage", day=f"2026-03-0{number}")
        batch.coalesce(1).write.mode("append").parquet(str(arrived))
        stream = spark.readStream.schema(batch.schema).parquet(str(arrived))
        start_writing(
            conflicts(stream),
            form,
            name=f"{form}-{number}",
            output=output,
            checkpoint=str(tmp_path / "checkpoint"),
            once=True,
        ).awaitTermination()

    found = spark.table(output) if form == "iceberg" else spark.read.format(form).load(output)
    assert sorted((str(row.day), str(row.victim)) for row in found.collect()) == [
        ("2026-03-01", "None"),
        ("2026-03-01", "t1"),
        ("2026-03-02", "None"),
        ("2026-03-02", "t2"),
    ]
    assert set(found.columns) == set(conflicts(records(spark)).columns)


def test_the_cost_of_a_conflict_is_shared_by_its_partitions(spark: SparkSession) -> None:
    """Two conflicts of the same pair, one of them about two partitions and three file groups; an undecodable record; an old day.

    The last victim loses to two writers. Its seconds count once.
    """
    first = conflict(1)
    [entry] = first.conflicts
    elsewhere = entry.model_copy(update={"partition": "month=2"})
    second = conflict(2).model_copy(
        update={"conflicts": (entry, entry.model_copy(update={"file_group": "a"}), elsewhere)}
    )
    other = conflict(3).model_copy(update={"winner_writer": "w", "conflicts": (), "victim_age_seconds": 4.0})
    again = other.model_copy(update={"winner_writer": "x"})

    given = conflicts(records(spark, encode(first), encode(second), b"garbage", encode(other), encode(again)))
    old = conflicts(records(spark, encode(conflict(4)), day="2026-01-01"))
    given.withColumn("day", f.current_date()).union(old).createOrReplaceTempView("conflicts")
    [recipe] = re.findall(r"```sql\n(.*?)```", RECIPES.read_text(), re.DOTALL)
    rows = spark.sql(recipe).drop("day").collect()

    table, pair = "s3://lake/flights", ("departures:q1", "arrivals:q2")
    assert sorted(map(tuple, rows)) == [
        (HOUR, table, "", "departures:q1", "w", 1, 4.0),
        (HOUR, table, "", "departures:q1", "x", 1, 0.0),
        (HOUR, table, "month=1/day=3", *pair, 2, 2.25 + 1.125),
        (HOUR, table, "month=2", *pair, 1, 1.125),
    ]


@pytest.mark.matrix
def test_the_program_writes_iceberg_tables_of_a_catalog(
    kafka: KafkaServer, topic_prefix: str, tmp_path: Path
) -> None:
    """`make test-matrix` runs it with the locked PySpark, for which Iceberg has a release."""
    catalog = [
        "spark.sql.catalog.ops=org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ops.type=hadoop",
        f"spark.sql.catalog.ops.warehouse={tmp_path}",
    ]
    common = [argument for each in catalog for argument in ("--conf", each)]
    asyncio.run(produce(kafka, f"{topic_prefix}.conflicts", encode(conflict(1)), create=True))

    _run(
        *(
            "conflicts_job",
            "--once",
            "--bootstrap-servers",
            kafka.bootstrap_servers,
            "--topic-prefix",
            topic_prefix,
        ),
        *(
            "--output",
            "ops.lake.conflicts",
            "--format",
            "iceberg",
            "--checkpoint",
            str(tmp_path / "cp"),
            *common,
        ),
    )
    rows = pq.read_table(next((tmp_path / "lake" / "conflicts").rglob("*.parquet"))).to_pylist()
    assert [(row["table"], row["victim"]) for row in rows] == [("s3://lake/flights", "t1")]


def _run(program: str, *arguments: str) -> None:
    command = [sys.executable, "-m", f"lakewarden.spark_jobs.{program}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stderr
