"""The demo's tables of Delta Lake, Hudi and Iceberg: both queries' columns come together in one row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakewarden.spark_jobs.jobs.demo_formats import ICEBERG_CATALOG, ON_SPARK, NewTable
from tests.spark.fake_agent import grant_everything
from tests.spark.formats import HAS_DELTA, HAS_HUDI, HAS_ICEBERG
from tests.spark.harness import Harness

pytestmark = [pytest.mark.real, pytest.mark.wide]

HERE = [name for name, here in (("delta", HAS_DELTA), ("hudi", HAS_HUDI), ("iceberg", HAS_ICEBERG)) if here]
"""Those that this PySpark can write."""

KEYS = ("month", "day", "flight_id")
COLUMNS = "month int, day int, carrier string, flight_id int, arr_delay int"


@pytest.mark.parametrize("name", HERE)
def test_each_query_writes_its_own_columns_of_every_row(
    *,
    name: str,
    harness: Harness,
    spark: SparkSession,
    tmp_path: Path,
    catalog_options: Callable[[str], dict[str, str]],
) -> None:
    """A NULL of the source stays NULL: flight 2 never arrived."""
    harness.agent(grant_everything)
    form, table = ON_SPARK[name], f"file://{tmp_path}/demo/flights"
    catalog = catalog_options("rest")["uri"] if name == "iceberg" else None
    for key, value in form.settings(table, catalog).items():
        if key.startswith(f"spark.sql.catalog.{ICEBERG_CATALOG}"):
            spark.conf.set(key, value)
    departures = [(1, 1, 1, "UA"), (1, 1, 2, None), (1, 2, 3, "AA")]
    arrivals = [(1, 1, 1, -5), (1, 2, 3, 0)]
    first = spark.createDataFrame(departures, "month int, day int, flight_id int, carrier string")
    second = spark.createDataFrame(arrivals, "month int, day int, flight_id int, arr_delay int")
    first.write.parquet(str(tmp_path / "departures"))

    form.create(spark, table, NewTable(COLUMNS, KEYS[:2], KEYS, str(tmp_path / "departures")))
    gate, sink = harness.gate(), form.sink(table, KEYS)
    for writer, rows in (("departures", first), ("arrivals", second)):
        gate.foreach_batch(sink, writer=writer)(form.stream(spark, table, rows), 0)

    assert sink.table.endswith("/demo/flights")
    found = form.read(spark, table).select("month", "day", "carrier", "flight_id", "arr_delay").collect()
    assert sorted((tuple(row) for row in found), key=lambda row: row[3]) == [
        (1, 1, "UA", 1, -5),
        (1, 1, None, 2, None),
        (1, 2, "AA", 3, 0),
    ]
