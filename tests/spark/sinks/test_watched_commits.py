"""Unmodified writers of Delta Lake, Iceberg and Paimon beside a writer of the gate, with a watcher and a real agent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import pytest
from pyspark.sql import DataFrame, SparkSession

from lakewarden.agent.settings import Settings
from lakewarden.agent.watching.foreground import publishing
from lakewarden.agent.watching.watcher import Watcher
from lakewarden.events import CommitCompleted, WriterEventUnion
from lakewarden.spark_jobs import CommitAborted, CommitGate, DeltaSink, IcebergSink, PaimonSink
from lakewarden.spark_jobs.gate.transaction import Transaction
from lakewarden.spark_jobs.sinks.contract import Sink
from tests.kafka_fixture import KafkaServer
from tests.spark.conftest import MakeTable, commit_alone
from tests.spark.fake_agent import PATIENCE_SECONDS
from tests.spark.formats import iceberg_name
from tests.spark.sinks.cases import CATALOGS
from tests.tuned import tuned

pytestmark = [pytest.mark.real, pytest.mark.wide]

COLUMNS = "month int, day int, flight long, departure string, arrival string"
ROW = (1, 1, 10, "d", "a")
PARTITION = "month=1/day=1"

Write = Callable[[], object]


class Reports:
    """What a watcher has published, from a thread of its own."""

    def __init__(self, settings: Settings, table: str) -> None:
        self.events: list[WriterEventUnion] = []
        self._settings, self._table = settings, table

    async def watch(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        async with publishing(self._settings) as publish, anyio.create_task_group() as tasks:

            async def keep(events: list[WriterEventUnion]) -> None:
                await publish(events)
                self.events += events

            watcher = Watcher(self._settings, (self._table,), keep)
            tasks.start_soon(watcher.run)
            while (found := watcher.tables.get(self._table)) is None or found.looked_at is None:
                await anyio.sleep(0.05)
            task_status.started()

    @property
    def completed(self) -> list[str | None]:
        return [each.version for each in self.events if isinstance(each, CommitCompleted)]

    @contextmanager
    def running(self) -> Iterator[None]:
        with anyio.from_thread.start_blocking_portal() as portal:
            watching, _ = portal.start_task(self.watch)
            yield
            watching.cancel()


def table_of(form: str, spark: SparkSession, folder: Path, make_table: MakeTable) -> tuple[Sink, Write]:
    """An empty table: its sink, and a rewrite of its partition by the format's own means."""
    if form == "paimon":
        path = make_table()
        sink: Sink = PaimonSink(path, mode="upsert", keys=["flight"])

        def overwrite() -> None:
            names = [column.split()[0] for column in COLUMNS.split(", ")]
            partition = {"month": "1", "day": "1"}
            commit_alone(path, [dict(zip(names, ROW, strict=True))], overwrite=partition)

        return sink, overwrite
    if form == "delta":
        name = f"delta.`{folder / 'flights'}`"
        spark.sql(f"CREATE TABLE {name} ({COLUMNS}) USING delta PARTITIONED BY (month, day)")
        sink = DeltaSink(str(folder / "flights"), mode="upsert", keys=["flight"])
    else:
        name = iceberg_name(spark, folder / "warehouse" / "air" / "flights")
        # The UPDATE adds a deletion vector.
        newest = "TBLPROPERTIES ('format-version'='3', 'write.update.mode'='merge-on-read')"
        properties = newest if "@" in form else ""
        spark.sql(f"CREATE TABLE {name} ({COLUMNS}) USING iceberg PARTITIONED BY (month, day) {properties}")
        sink = IcebergSink(name, mode="upsert", keys=["flight"])

    def update() -> None:
        spark.sql(f"UPDATE {name} SET departure = 'x' WHERE month = 1 AND day = 1")  # noqa: S608

    return sink, update


@pytest.mark.parametrize(
    "form",
    [
        "delta",
        *(
            pytest.param(form, marks=pytest.mark.matrix)
            for form in ("iceberg", *(f"iceberg@{catalog}" for catalog in CATALOGS), "paimon")
        ),
    ],
)
def test_a_writer_without_the_gate_stops_one_whose_base_it_replaces(
    *,
    request: pytest.FixtureRequest,
    form: str,
    kafka: KafkaServer,
    topic_prefix: str,
    spark: SparkSession,
    tmp_path: Path,
    make_table: MakeTable,
    catalog_options: Callable[[str], dict[str, str]],
    in_catalog: Callable[[str], None],
) -> None:
    """The sink's own commits are not reported. A table of a catalog is named by it, and has format 3."""
    settings = tuned(
        bootstrap_servers=kafka.bootstrap_servers,
        topic_prefix=topic_prefix,
        watch_seconds=0.1,
        watch_idle_seconds=0.1,
    )
    _, _, catalog = form.partition("@")
    in_catalog(catalog)
    gate: CommitGate = request.getfixturevalue("gate")  # its agent needs the catalog's credentials
    sink, rewrite = table_of(form, spark, tmp_path, make_table)
    entry = sink.table
    if catalog:
        assert isinstance(sink, IcebergSink)
        of_spark, _, table = sink._name.partition(".")
        options = catalog_options(catalog)
        kind = options["type"].replace("jdbc", "sql")
        given: Any = {of_spark: {"type": kind, "uri": options["uri"].removeprefix("jdbc:")}}
        settings = settings.model_copy(update={"catalogs": Settings(catalogs=given).catalogs})
        entry = f"{of_spark}:{table}"
    reports = Reports(settings, entry)
    if form == "paimon":
        rewrite()  # the table's first snapshot
    stopped: list[CommitAborted] = []

    def slow(batch: DataFrame, txn: Transaction) -> None:
        if txn.intent.attempt == 1:
            txn.touch(PARTITION, "*", "merge")
            rewrite()
            deadline = time.monotonic() + PATIENCE_SECONDS
            try:
                while time.monotonic() < deadline:
                    txn.check()
                    time.sleep(0.05)
            except CommitAborted as error:
                stopped.append(error)
                raise
        sink(batch, txn)

    with reports.running():
        batch = spark.createDataFrame([ROW], COLUMNS)
        gate.foreach_batch(sink, writer="first")(batch, 0)
        gate.foreach_batch(slow, table=sink.table, writer="second")(batch, 0)

    (abort,) = stopped
    (foreign,) = reports.completed
    assert [each.other_transaction for each in abort.conflicts] == [f"{form.partition('@')[0]}:{foreign}"]
