"""The sinks on a cluster: executors that end or are slow, drivers on a worker, maintenance on S3."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from lakewarden.spark_jobs.gate.errors import UnsupportedSpark
from lakewarden.spark_jobs.gate.transaction import Transaction
from tests.servers.s3 import S3Server
from tests.spark import mortal_driver
from tests.spark.cluster import BARE_PYTHON, SPARK_HOME
from tests.spark.conftest import MakeTable
from tests.spark.fake_agent import grant_everything
from tests.spark.formats import HAS_HUDI
from tests.spark.harness import Harness
from tests.spark.sinks import test_rows_lost
from tests.spark.sinks.cases import (
    COLUMNS,
    SINKS,
    SinkCase,
    batch_of,
    case as case,  # noqa: PLC0414 - a fixture
    make_case,
)
from tests.spark.sinks.test_delta_fence import (
    Driver,
    Table,
    append,
    driver as driver,  # noqa: PLC0414 - fixtures
    proxy as proxy,  # noqa: PLC0414
)
from tests.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.matrix, pytest.mark.timeout(900)]

FLIGHTS = list(range(1, 31))

OF_EACH_FORMAT = [sink for sink in ("paimon-append", "delta-upsert", "iceberg-upsert") if sink in SINKS]


def of_many_days(spark: SparkSession) -> DataFrame:
    """A batch whose two tasks write many files each."""
    return spark.createDataFrame([(1, day, day) for day in FLIGHTS], COLUMNS).repartition(2, "day")


def executors() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [process] if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()) else []
    return found


@pytest.mark.parametrize("case", ["hudi"] if HAS_HUDI else OF_EACH_FORMAT, indirect=True)
def test_executors_that_are_released_and_killed_leave_each_batch_once(
    harness: Harness, spark: SparkSession, case: SinkCase, tmp_path: Path
) -> None:
    """Dynamic allocation ends them after a batch. Those of the next one are killed when its first file is there."""
    harness.agent(grant_everything)
    write = harness.gate().foreach_batch(case.sink, writer="w")
    write(batch_of(spark, 0), 0)
    wait_until(lambda: not executors())
    before = set(tmp_path.rglob("*.parquet"))
    killed: list[int] = []

    def kill() -> None:
        wait_until(lambda: set(tmp_path.rglob("*.parquet")) - before)
        for executor in executors():
            executor.send_signal(signal.SIGKILL)
            killed.append(executor.pid)

    killer = threading.Thread(target=kill)
    killer.start()
    write(of_many_days(spark), 1)
    killer.join()
    write(of_many_days(spark), 1)

    assert killed
    assert case.flights() == [0, *FLIGHTS]
    assert case.sink.committed("w", 1) is not None


@pytest.mark.parametrize("mode", [mode for mode in ("delta-upsert", "iceberg-upsert") if mode in SINKS])
def test_rows_that_killed_executors_had_are_computed_again_with_a_new_scope(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    def killed(_: SparkSession) -> None:
        found = executors()
        assert found
        for executor in found:
            executor.send_signal(signal.SIGKILL)

    monkeypatch.setitem(test_rows_lost.LOSSES, "killed", killed)
    situation = (mode, "partition", "killed", "queued", "sink")
    test_rows_lost.test_lost_rows_let_the_batch_be_computed_again_with_a_new_scope(
        spark, make_table, tmp_path, situation
    )


@pytest.mark.parametrize("case", OF_EACH_FORMAT, indirect=True)
def test_a_task_that_runs_twice_leaves_its_rows_once(
    harness: Harness, spark: SparkSession, case: SinkCase
) -> None:
    """The first attempt of one task stops in the middle of its rows. Spark starts a second one, and ends the first."""

    def slow(batches: Iterable[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            yield batch.slice(0, 1)
            while context.attemptNumber() == 0 and 1 in batch.column("day").to_pylist():
                time.sleep(0.01)
            yield batch.slice(1)

    harness.agent(grant_everything)
    rows = of_many_days(spark).mapInArrow(slow, COLUMNS)

    harness.gate().foreach_batch(case.sink, writer="w", admission="optimistic")(rows, 0)

    assert case.flights() == FLIGHTS


def test_executors_without_the_package_are_named(
    harness: Harness, spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    assert spark.sparkContext.pythonExec == BARE_PYTHON
    harness.agent(grant_everything)
    case = make_case("paimon-append", make_table, tmp_path, spark)

    def touch(batch: DataFrame, txn: Transaction) -> None:
        channel = txn.executor_channel()
        batch.rdd.foreach(lambda _: channel.touch("p", "f", "create"))

    gate = harness.gate()
    for write in (
        gate.foreach_batch(case.sink, writer="w"),
        gate.foreach_batch(touch, table="/t", writer="w"),
    ):
        with pytest.raises(UnsupportedSpark, match=r"the executors' Python has no \w+, .* writer=w"):
            write(batch_of(spark, 1), 0)


def test_a_driver_that_runs_on_a_worker(
    harness: Harness,
    spark: SparkSession,
    make_table: MakeTable,
    session_master: dict[str, str],
    tmp_path: Path,
) -> None:
    """Spark's standalone cluster starts no Python driver by itself. YARN and Kubernetes start the same main class there."""
    harness.agent(grant_everything)
    case = make_case("delta-upsert", make_table, tmp_path / "case", spark)
    source = tmp_path / "source"
    for flight in (1, 2):
        batch_of(spark, flight).coalesce(1).write.mode("append").parquet(f"{source}")
    [jar] = (SPARK_HOME / "jars").glob("spark-tags_*.jar")
    settings = session_master | {
        "spark.jars": spark.sparkContext.getConf().get("spark.jars") or "",
        "spark.standalone.submit.waitAppCompletion": "true",
        "spark.driver.memory": "1g",
    }
    program = [f"{SPARK_HOME / 'bin' / 'spark-submit'}", "--deploy-mode", "cluster"]
    program += ["--master", settings.pop("master"), "--class", "org.apache.spark.deploy.PythonRunner"]
    program += [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    program += [f"file://{jar}", mortal_driver.__file__, f"{Path(__file__).parents[2]}"]
    program += ["--bootstrap-servers", harness.kafka.bootstrap_servers, "--topic-prefix", harness.prefix]
    program += ["--sink", "delta-upsert", "--table", case.sink.table.removeprefix("file://")]
    program += ["--source", f"{source}", "--checkpoint", f"{tmp_path / 'checkpoint'}"]
    program += ["--events", f"{tmp_path / 'events'}", "--die-at", "none", "--way", "kill"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr[-3000:]
    assert case.flights() == [1, 2], done.stderr[-3000:]
    assert [batch for _, batch, _ in case.commits()] == [0, 1]


@pytest.mark.usefixtures("session_master")
def test_a_table_on_s3_is_maintained_after_the_sink_has_opened_it(
    driver: Driver, s3_server: S3Server
) -> None:
    """Its log store is a class of the driver's JVM alone."""
    table = Table(s3_server)
    driver.do("create", table=table.uri)
    for batch in range(3):
        driver.do("write", **append(table, batch, [batch]))

    assert driver.do("maintain", table=table.uri) == 1

    driver.do("write", **append(table, 3, [3]))
    assert driver.do("rows", table=table.uri) == [0, 1, 2, 3]
