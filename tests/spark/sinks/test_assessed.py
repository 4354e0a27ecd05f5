"""`lakewarden assess` on tables for which native writers contended, with the waste that they measured themselves."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import anyio
import pytest
from pyspark.sql import DataFrame, SparkSession, functions as f

from lakewarden.agent.clock import wall_ms
from lakewarden.agent.operators import text as view_text
from lakewarden.agent.settings import Settings
from lakewarden.agent.watching.past import past
from lakewarden.handlers.assessment import assess
from tests.bench.peers.driver import Record
from tests.bench.peers.tables import HUDI_CONCURRENCY, HUDI_OPTIONS, table_of
from tests.bench.peers.workload import SCHEMA, Workload
from tests.printed import as_shown
from tests.spark.formats import HAS_DELTA, HAS_HUDI, HAS_ICEBERG

SIZES = Workload(writers=2, overlap=True, batches=2, rows_per_day=50, rows_per_batch=8, days_per_batch=1)
ROW_SECONDS = 0.5
"""Of computing one row, so that a batch takes longer than what Spark does before and after it."""
MOST_TRIES = 10

Write = Callable[[DataFrame, str], None]


def hudi(spark: SparkSession, path: Path) -> Write:
    options = HUDI_OPTIONS | HUDI_CONCURRENCY
    options["hoodie.write.lock.provider"] = "org.apache.hudi.client.transaction.lock.InProcessLockProvider"

    def write(batch: DataFrame, _attempt: str) -> None:
        batch.write.format("hudi").options(**options).mode("append").save(str(path))

    write(spark.createDataFrame(SIZES.first_rows().to_pylist(), SCHEMA), "first")
    return write


def merge(spark: SparkSession, form: str, folder: Path) -> Write:
    table = table_of(form, spark, folder, "contest", None)
    table.create(spark.createDataFrame(SIZES.first_rows().to_pylist(), SCHEMA))
    return table.native["native"]


def created(spark: SparkSession, form: str, folder: Path) -> Write:
    """Create a table in `folder/warehouse/bench/contest`, and return the format's own way to upsert a batch."""
    return hudi(spark, location(folder)) if form == "hudi" else merge(spark, form, folder)


def location(folder: Path) -> Path:
    return folder / "warehouse" / "bench" / "contest"


def contend(spark: SparkSession, write: Write) -> Record:
    """Let the writers write all their batches, each until it is committed."""
    record = Record()

    def work(writer: int) -> None:
        attempt = record.natively(writer, write)
        for number in range(SIZES.batches):
            batch = slow(rows(spark, writer, number))
            for tries in range(1, MOST_TRIES + 1):
                try:
                    attempt(batch, number)
                    break
                except Exception:  # each format has its own for a conflict
                    if tries == MOST_TRIES:
                        raise

    with ThreadPoolExecutor(SIZES.writers) as threads:
        list(threads.map(work, range(SIZES.writers)))
    return record


def rows(spark: SparkSession, writer: int, number: int) -> DataFrame:
    return spark.createDataFrame(SIZES.batch(writer, number).to_pylist(), SCHEMA).coalesce(1)


def slow(batch: DataFrame) -> DataFrame:
    wait = f.udf(
        lambda value: (Event().wait(ROW_SECONDS), value)[1], "double"
    )  # without hints, from which Spark 4.1 would infer
    return batch.withColumn("value", wait("value"))


@pytest.mark.matrix
@pytest.mark.parametrize(
    "form", [each for each, has in zip(("delta", "iceberg", "hudi"), (HAS_DELTA, HAS_ICEBERG, HAS_HUDI), strict=True) if has]
)  # fmt: skip
def test_the_estimate_is_near_what_the_writers_lost_or_the_table_is_said_not_to_know(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    created(spark, form, tmp_path / "warm")(rows(spark, 0, 0), "warm")  # what Spark loads and compiles first
    record = contend(spark, created(spark, form, tmp_path))
    later = wall_ms() / 1000 + 86_400

    history = anyio.run(lambda: past(location(tmp_path).as_uri(), Settings(), days=7, now=later))
    found = assess(history)

    vain, useful = record.vain, record.useful
    text = "\n".join(view_text.lines("assess", [found]))
    took = [round(each.seconds or 0.0, 1) for each in history.commits]
    until = [round((each.until or later) - each.began, 1) for each in history.lost]
    print(form, vain, useful, took, until, text, sep="\n")
    if form == "delta":
        names = {location(tmp_path).as_uri(): "s3://lake/orders"}
        as_shown("docs/assess.md", "lakewarden assess s3://lake/orders", text, names)
    assert vain
    if form == "iceberg":
        assert found["lost_seconds"].value is None
        assert any(each.startswith("aborted tries") for each in found.unknown)
    else:  # as shares: what Spark does before and after the computation differs with the machine's load, and isn't in the table
        lost_seconds = found["lost_seconds"].value
        assert lost_seconds is not None
        known = sum(each.seconds or 0.0 for each in history.commits if each.is_known and each.rewritten)
        assert lost_seconds / known == pytest.approx(sum(vain) / sum(useful), rel=0.2)
