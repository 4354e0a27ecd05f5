"""Gate, sink and the product's own agent: two writers, one table, no script."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from lakewarden.spark_jobs import CommitGate, GateEvent, PaimonSink
from lakewarden.spark_jobs.gate.transaction import Transaction
from lakewarden.spark_jobs.streaming.batches import table_uri
from tests.servers.s3 import S3Server
from tests.spark.conftest import SCHEMA, MakeTable, create_table, paimon_options, rows_of, snapshots_of
from tests.spark.fake_agent import PATIENCE_SECONDS, grant_everything
from tests.spark.harness import Harness
from tests.waiting import wait_until

pytestmark = [pytest.mark.real]


def test_of_two_upserts_in_conflict_one_is_retried_and_no_row_is_lost(
    gate: CommitGate, make_table: MakeTable, spark: SparkSession
) -> None:
    """The older transaction touches the partition first. The younger is aborted during its job, is queued, and commits."""
    table = make_table()
    sink = PaimonSink(table, mode="upsert", keys=["flight"])
    steps: list[GateEvent] = []
    gate.observer = steps.append
    touched, proceed = threading.Event(), threading.Event()

    def slow(batch: DataFrame, txn: Transaction) -> None:
        if txn.intent.attempt == 1:
            txn.touch("month=1/day=1", "*", "merge")
            touched.set()
            assert proceed.wait(PATIENCE_SECONDS)
        sink(batch, txn)

    older = threading.Thread(
        target=gate.foreach_batch(slow, table=table, writer="departures"),
        args=(
            spark.createDataFrame([(1, 1, 10, "d")], "month int, day int, flight long, departure string"),
            0,
        ),
    )
    older.start()
    assert touched.wait(PATIENCE_SECONDS)
    younger = threading.Thread(
        target=gate.foreach_batch(sink, writer="arrivals", admission="optimistic"),
        args=(spark.createDataFrame([(1, 1, 10, "a")], "month int, day int, flight long, arrival string"), 0),
    )
    younger.start()
    wait_until(lambda: [step for step in steps if step.what == "jobs-stopped"])
    proceed.set()
    older.join(PATIENCE_SECONDS)
    younger.join(PATIENCE_SECONDS)

    assert [(row["departure"], row["arrival"]) for row in rows_of(table)] == [("d", "a")]
    (aborted,) = [step for step in steps if step.what == "abort"]
    assert (aborted.writer, aborted.detail["others"]) == ("arrivals", ["departures"])
    completed = [(step.writer, step.attempt) for step in steps if step.what == "completed"]
    assert completed == [("departures", 1), ("arrivals", 2)]


def test_of_two_drivers_that_wait_for_each_other_one_gives_way_and_is_retried(
    another_gate: Callable[..., CommitGate], make_table: MakeTable, spark: SparkSession
) -> None:
    """Threads hide from the gate that each job opens the second table's transaction inside the first one's (decision 59)."""
    tables = (make_table(), make_table("hotels"))
    steps: list[GateEvent] = []
    both_hold = threading.Barrier(2)
    rows = spark.range(1)

    def inner(_: DataFrame, txn: Transaction) -> None:
        with txn.commit():
            pass

    def job(driver: CommitGate, first: str, second: str, writer: str) -> Callable[[DataFrame, int], None]:
        options: dict[str, Any] = {"writer": writer, "admission": "queued", "scope": lambda _: [""]}
        to_second = driver.foreach_batch(inner, table=second, **options)

        def outer(batch: DataFrame, txn: Transaction) -> None:
            if txn.intent.attempt == 1:
                both_hold.wait(PATIENCE_SECONDS)
            with ThreadPoolExecutor(1) as pool:
                pool.submit(to_second, batch, 0).result()
            with txn.commit():
                pass

        return driver.foreach_batch(outer, table=first, max_attempts=100, **options)

    options = {"queue_timeout_seconds": 6.0, "heartbeat_seconds": 2.0, "observer": steps.append}
    one, other = another_gate(**options), another_gate(**options)
    with ThreadPoolExecutor(2) as pool:
        jobs = [
            pool.submit(job(one, tables[0], tables[1], "one"), rows, 0),
            pool.submit(job(other, tables[1], tables[0], "other"), rows, 0),
        ]
        for each in jobs:
            each.result(PATIENCE_SECONDS)

    completed = sorted((step.writer, step.table) for step in steps if step.what == "completed")
    assert completed == sorted((writer, table_uri(table)) for writer in ("one", "other") for table in tables)
    reasons = [step.detail["reason"] for step in steps if step.what == "abandoned"]
    assert any("it waits for writer" in each and "also has open: table=" in each for each in reasons)


def test_a_new_checkpoint_is_a_new_writer(
    gate: CommitGate, make_table: MakeTable, spark: SparkSession, tmp_path: Path
) -> None:
    """A query resumes from its checkpoint. With a new one it begins at batch 0 again, and its rows are written."""
    table = make_table()
    sink = PaimonSink(table)
    source = str(tmp_path / "source")
    schema = "month int, day int, flight long"
    spark.createDataFrame([(1, 1, 10)], schema).coalesce(1).write.parquet(source)

    for checkpoint in ("old", "old", "new"):
        gated = gate.foreach_batch(sink, writer="w")
        query = (
            spark.readStream.schema(schema)
            .parquet(source)
            .writeStream.foreachBatch(gated)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    assert [row["flight"] for row in rows_of(table)] == [10, 10]
    commits = [(snapshot.commit_user, snapshot.commit_identifier) for snapshot in snapshots_of(table)]
    assert [identifier for _, identifier in commits] == [0, 0]
    assert len({user for user, _ in commits}) == 2


def test_upserts_on_s3(harness: Harness, s3_server: S3Server, spark: SparkSession) -> None:
    """The table is on an S3 server: executors write it and read it back."""
    bucket = s3_server.bucket()
    options = paimon_options(s3_server)
    days = ("month", "day")
    table = create_table(f"s3://{bucket}/wh", "t", SCHEMA, partition_keys=days, store=options)
    sink = PaimonSink(table, mode="upsert", keys=["flight"], catalog_options=options)
    harness.agent(grant_everything)
    gate = harness.gate()
    for batch_id, column in enumerate(("departure", "arrival")):
        rows = [(1, day, 10 + day, f"{column[0]}{day}") for day in range(1, 4)]
        frame = spark.createDataFrame(rows, f"month int, day int, flight long, {column} string")
        gate.foreach_batch(sink, writer=column)(frame, batch_id)

    found = rows_of(table, options)
    assert sorted((row["day"], row["departure"], row["arrival"]) for row in found) == [
        (day, f"d{day}", f"a{day}") for day in range(1, 4)
    ]
