"""Each batch is in the table exactly once, wherever the driver dies: real Spark, tables and agent, and SIGKILL.

It is the part of the contract suite (`test_contract.py`) that kills drivers.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from lakewarden.agent.locks.posix_session import signal_posix_session
from lakewarden.spark_jobs import CommitGate, GateEvent
from tests.kafka_fixture import KafkaServer
from tests.processes import running_agent
from tests.spark import mortal_driver
from tests.spark.conftest import MakeTable
from tests.spark.mortal_driver import STEPS
from tests.spark.sinks.cases import CATALOGS, SCHEMA, SINKS, make_case

pytestmark = [pytest.mark.real, pytest.mark.wide, pytest.mark.timeout(1500)]

LEASE_SECONDS = "15"
"""A successor waits for two thirds of it for the lapse of a dead driver's grant. A live driver must never stall for this time."""

IN_THE_TABLE = {"published", "completed"}
"""Steps after which the batch is in the table, although Spark's checkpoint doesn't have it."""

COMMITS = ["intent", "admitted", "requested", "granted", "completed"]
"""The steps of a driver with a batch that the agent doesn't know to be committed."""


HARDEST = ("staging", "published")
"""The steps at which the table holds most of what no event has reported."""

IN_EVERY_RUN = {"paimon-append", "hudi", "iceberg-upsert@rest"}
"""A sink that publishes itself, one whose format calls back, and one whose catalog commits, killed at the hardest steps; the
matrix has all sinks, catalogs and steps. A driver that dies takes a JVM's start and a lapse of its grant, some 100 s on a busy
machine."""

DEATHS = [
    pytest.param(sink, steps, id=f"{sink}-{name}", marks=[pytest.mark.matrix] * (not every_run))
    for sink in [*SINKS, *(f"iceberg-upsert@{catalog}" for catalog in CATALOGS)]
    if not sink.endswith("-overwrite")  # whose table is its last batch alone
    for name, steps, every_run in (("hardest", HARDEST, sink in IN_EVERY_RUN), ("all", STEPS, False))
]


@pytest.mark.parametrize(("sink", "steps"), DEATHS)
def test_a_driver_killed_at_any_step_leaves_each_batch_once(
    *,
    kafka: KafkaServer,
    topic_prefix: str,
    make_table: MakeTable,
    tmp_path: Path,
    spark: SparkSession,
    in_catalog: Callable[[str], None],
    sink: str,
    steps: tuple[str, ...],
) -> None:
    """Each driver but the last recovers the batch that its predecessor died in, and dies in the next one."""
    sink, _, catalog = sink.partition("@")
    in_catalog(catalog)
    case = make_case(sink, make_table, tmp_path, spark)
    source, events = tmp_path / "source", tmp_path / "events"
    source.mkdir()
    for number in range(len(steps) + 1):
        rows = [{"month": 1, "day": day, "flight": number} for day in (1, 2)]
        file = source / f"{number}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), file)
        os.utime(file, (number, number))  # the order in which Spark reads them

    def drive(die_at: str) -> tuple[int, str]:
        program = [sys.executable, str(mortal_driver.__file__)]
        program += ["--bootstrap-servers", kafka.bootstrap_servers, "--topic-prefix", topic_prefix]
        program += [
            "--sink",
            sink,
            "--table",
            case.sink.table.removeprefix("file://"),
            "--source",
            str(source),
            "--checkpoint",
            str(tmp_path / "checkpoint"),
        ]
        program += ["--events", str(events), "--die-at", die_at]
        driver = subprocess.Popen(
            program,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        try:
            _, stderr = driver.communicate(timeout=300)
        finally:
            signal_posix_session(driver.pid, signal.SIGKILL)
        return driver.returncode, stderr.decode()[-3000:]

    recorded: list[list[tuple[int, str, str]]] = []  # batch, step, transaction: by driver
    with running_agent(kafka, topic_prefix, tmp_path, VALIDITY_SECONDS=LEASE_SECONDS):
        for batch, step in enumerate((*steps, "none")):
            status, stderr = drive(f"{step}:{batch}" if step != "none" else step)
            assert status == (0 if step == "none" else -signal.SIGKILL), stderr
            there = batch + 1 if step in {"none", *IN_THE_TABLE} else batch
            assert Counter(case.flights()) == dict.fromkeys(range(there), 2), step
            recorded.append([json.loads(line) for line in events.read_text().splitlines()])
            events.unlink()

    commits = case.commits()
    (writer,) = {writer for writer, _, _ in commits}
    assert writer.startswith("mortal:")
    assert [batch for _, batch, _ in commits] == list(range(len(steps) + 1))
    for batch, step in enumerate(steps):
        killed = {transaction for number, _, transaction in recorded[batch] if number == batch}
        recovered = [
            (what, transaction)
            for number, what, transaction in recorded[batch + 1]
            if number == batch and what != "markers"  # of the driver, if the sink publishes them there
        ]
        agent_knows = step == "completed"
        assert [what for what, _ in recovered] == (
            ["intent", "already-committed"] if agent_knows else COMMITS
        ), step
        # The files in the table are those of the driver that was killed, if it had published them.
        _, _, by = commits[batch]
        assert by in (killed if step in IN_THE_TABLE else {transaction for _, transaction in recovered}), step


@pytest.mark.parametrize("durable", [True, False], ids=["after-the-commit", "before-it"])
def test_a_publish_without_a_response_is_looked_up_in_the_table(
    *,
    kafka: KafkaServer,
    topic_prefix: str,
    make_table: MakeTable,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    durable: bool,
) -> None:
    """If it is found, it is committed. If not, a new transaction waits until the grant has lapsed, looks again, and writes."""
    case = make_case("paimon-append", make_table, tmp_path)
    case.fail_the_publish(monkeypatch, durable=durable)
    steps: list[GateEvent] = []
    with (
        running_agent(kafka, topic_prefix, tmp_path, VALIDITY_SECONDS=LEASE_SECONDS),
        CommitGate(
            kafka.bootstrap_servers,
            topic_prefix=topic_prefix,
            heartbeat_seconds=2.0,
            admission_timeout_seconds=120.0,
            observer=steps.append,
        ) as gate,
    ):
        batch = spark.createDataFrame([(1, 1, 7)], "month int, day int, flight long")
        gate.foreach_batch(case.sink, table=case.sink.table, writer="w")(batch, 0)

    assert case.flights() == [7]
    assert [(writer, batch_id) for writer, batch_id, _ in case.commits()] == [("w", 0)]
    ends = [(step.attempt, step.what) for step in steps if step.what in ("failed", "completed")]
    assert ends == ([(1, "completed")] if durable else [(1, "failed"), (2, "completed")])
