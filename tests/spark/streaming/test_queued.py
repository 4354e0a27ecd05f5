"""Writers that declare their scope, in the admission queue: real Spark queries and the product's own agent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from lakewarden.agent.bound_child import bound
from lakewarden.spark_jobs import CommitGate, GateEvent, PaimonSink
from lakewarden.spark_jobs.gate.transaction import Transaction
from tests.kafka_fixture import KafkaServer
from tests.processes import running_agent
from tests.spark.conftest import MakeTable, rows_of, snapshots_of
from tests.spark.fake_agent import PATIENCE_SECONDS
from tests.waiting import wait_until

pytestmark = [pytest.mark.real]


@pytest.fixture(scope="module")
def agent(kafka: KafkaServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaServer, str]]:
    """One agent for all tests here. Returns the broker and the topic prefix."""
    folder = tmp_path_factory.mktemp("queued")
    with running_agent(kafka, folder.name, folder):
        yield kafka, folder.name


class Scene:
    """A gate and its `GateEvent`s."""

    def __init__(self, kafka: KafkaServer, prefix: str, heartbeat_seconds: float) -> None:
        self.steps: list[GateEvent] = []
        self.gate = CommitGate(
            kafka.bootstrap_servers,
            topic_prefix=prefix,
            heartbeat_seconds=heartbeat_seconds,
            observer=self.steps.append,
        )

    def of(self, writer: str) -> list[str]:
        """Return the steps of one writer."""
        return [step.what for step in self.steps if step.writer.partition(":")[0] == writer]

    def at(self, writer: str, what: str) -> float:
        """Return the time of a writer's step, on this machine's clock."""
        return next(s.at for s in self.steps if (s.writer.partition(":")[0], s.what) == (writer, what))


@pytest.fixture
def scene(agent: tuple[KafkaServer, str]) -> Iterator[Scene]:
    # Long enough for a busy machine: the agent takes a writer for lost after three heartbeats.
    scene = Scene(*agent, heartbeat_seconds=5.0)
    with scene.gate:
        yield scene


def days(batch: DataFrame) -> list[str]:
    """Return the partitions of the batch, as a user's scope function does."""
    rows = batch.select("month", "day").distinct().collect()
    return [f"month={row.month}/day={row.day}" for row in rows]


@dataclass
class Query:
    """A streaming query over one file of rows."""

    spark: SparkSession
    scene: Scene
    folder: Path
    name: str

    def start(
        self, write: Callable[[DataFrame, Transaction], object], table: str, *rows: tuple[int, int, int]
    ) -> None:
        source = str(self.folder / self.name)
        schema = "month int, day int, flight long"
        self.spark.createDataFrame(list(rows), schema).coalesce(1).write.parquet(source)
        gated = self.scene.gate.foreach_batch(
            write, table=table, writer=self.name, admission="queued", scope=days, conflict_rule="file-group"
        )
        self._query = (
            self.spark.readStream.schema(schema)
            .parquet(source)
            .writeStream.foreachBatch(gated)
            .option("checkpointLocation", f"{source}-checkpoint")
            .trigger(availableNow=True)
            .start()
        )

    def join(self) -> None:
        assert self._query.awaitTermination(int(PATIENCE_SECONDS))


def test_overlapping_scopes_run_one_after_the_other(
    scene: Scene, spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    """The scope of the second contains a partition of the first: it waits until the first has committed."""
    table = make_table()
    sink = PaimonSink(table, mode="upsert", keys=["flight"])
    running, proceed = threading.Event(), threading.Event()

    def first(batch: DataFrame, txn: Transaction) -> None:
        running.set()
        assert proceed.wait(PATIENCE_SECONDS)
        sink(batch, txn)

    earlier, later = (Query(spark, scene, tmp_path, name) for name in ("first", "second"))
    earlier.start(first, sink.table, (1, 1, 10))
    assert running.wait(PATIENCE_SECONDS)
    later.start(sink, sink.table, (1, 1, 11), (1, 2, 12))
    wait_until(lambda: "intent" in scene.of("second"))
    # The agent admits a third writer, whose intent is later and whose scope is disjoint. So it has read the second's intent.
    with scene.gate.transaction(
        table=sink.table, writer="third", admission="queued", scope=["month=2/day=1"]
    ):
        assert scene.of("second") == ["intent"]
    proceed.set()
    earlier.join()
    later.join()

    assert scene.at("first", "requested") < scene.at("second", "admitted")
    assert "abort" not in [step.what for step in scene.steps]
    assert [row["flight"] for row in rows_of(table)] == [10, 11, 12]
    assert [snapshot.commit_user.partition(":")[0] for snapshot in snapshots_of(table)] == ["first", "second"]


@pytest.mark.wide
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "suspended"])
def test_a_silent_writer_at_the_head_blocks_the_queue_only_until_it_is_lost(
    scene: Scene, agent: tuple[KafkaServer, str], how: signal.Signals
) -> None:
    """It is admitted, and its heartbeats end. The agent takes it for lost and admits the writer behind it."""
    kafka, prefix = agent
    table, scope = f"file:///lake/head-{how.name}", ["p=1"]
    program = f"""
import time
from lakewarden.spark_jobs import CommitGate
gate = CommitGate({kafka.bootstrap_servers!r}, topic_prefix={prefix!r}, heartbeat_seconds=0.5)
with gate.transaction(table={table!r}, writer="head", admission="queued", scope={scope}):
    print("admitted", flush=True)
    time.sleep(600)
"""
    head = subprocess.Popen(bound([sys.executable, "-c", program]), stdout=subprocess.PIPE, text=True)
    try:
        assert head.stdout is not None
        assert "admitted\n" in head.stdout, "the program ended before it was admitted"
        os.kill(head.pid, how)
        with (
            scene.gate.transaction(table=table, writer="next", admission="queued", scope=scope) as txn,
            txn.commit() as grant,
        ):
            grant.version = "1"
    finally:
        head.kill()
        head.communicate()
    assert scene.of("next") == ["intent", "admitted", "requested", "granted", "completed"]
