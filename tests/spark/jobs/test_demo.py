"""The demo's tables of each format: both queries' columns come together in one row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from lakewarden.spark_jobs.jobs.demo import FORMATS, ICEBERG_CATALOG, OnSpark, Plan
from tests.spark.fake_agent import grant_everything
from tests.spark.formats import HAS_DELTA, HAS_HUDI, HAS_ICEBERG, HUDI_TABLE_VERSION
from tests.spark.harness import Harness

pytestmark = [pytest.mark.real, pytest.mark.wide]

HAS = {
    "paimon": True,
    "delta": HAS_DELTA,
    "hudi": HAS_HUDI and HUDI_TABLE_VERSION > 6,
    "iceberg": HAS_ICEBERG,
}
HERE = [name for name, here in HAS.items() if here]
"""Those that the demo can write here. Hudi before 1.0 wants an ordering field."""

KEYS = ("month", "day", "flight_id")
COLUMNS = {"month": "int", "day": "int", "carrier": "string", "flight_id": "int", "arr_delay": "int"}


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
    table = f"file://{tmp_path}/warehouse/demo.db/flights"
    plan = Plan(
        folder=tmp_path,
        form=name,
        primary_key=False,
        columns=COLUMNS,
        keys=KEYS,
        partition_by=KEYS[:2],
        files_per_batch=1,
        tables={},
        bootstrap_servers=None,
        catalog=catalog_options("rest")["uri"] if name == "iceberg" else None,
    )
    form = FORMATS[name](plan)
    form.spark = spark
    for key, value in (form.settings() if isinstance(form, OnSpark) else {}).items():
        if key.startswith(f"spark.sql.catalog.{ICEBERG_CATALOG}"):
            spark.conf.set(key, value)
    departures = [(1, 1, 1, "UA"), (1, 1, 2, None), (1, 2, 3, "AA")]
    arrivals = [(1, 1, 1, -5), (1, 2, 3, 0)]
    first = spark.createDataFrame(departures, "month int, day int, flight_id int, carrier string")
    second = spark.createDataFrame(arrivals, "month int, day int, flight_id int, arr_delay int")
    first.write.parquet(str(tmp_path / "feeds" / "departures"))

    form.create(table)
    gate, sink = harness.gate(), form.sink(table)
    for writer, rows in (("departures", first), ("arrivals", second)):
        gate.foreach_batch(sink, writer=writer)(form.stream(rows), 0)

    assert sink.table == table
    form.export(table, tmp_path / "rows")
    found = pq.read_table(tmp_path / "rows").select(["month", "day", "carrier", "flight_id", "arr_delay"])
    assert sorted(map(tuple, map(dict.values, found.to_pylist())), key=lambda row: row[3]) == [
        (1, 1, "UA", 1, -5),
        (1, 1, None, 2, None),
        (1, 2, "AA", 3, 0),
    ]
