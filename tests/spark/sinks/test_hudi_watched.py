"""Writers of real Hudi that don't use the gate, as a watcher reports them."""

from __future__ import annotations

import threading
from pathlib import Path

import anyio
import anyio.from_thread
import pytest
from pyspark.sql import SparkSession

from lakewarden.agent.watching.watcher import Watcher
from lakewarden.events import CommitCompleted, CommitIntent, Marker, MarkerCreated, WriterEventUnion
from lakewarden.handlers.hudi.metadata import read_metadata
from lakewarden.handlers.hudi.properties import read_properties
from lakewarden.handlers.hudi.timeline import PROPERTIES, instants
from tests.spark.formats import HUDI_TABLE_VERSION
from tests.tuned import tuned

pytestmark = [pytest.mark.real]

PATIENCE_SECONDS = 300.0
OPTIONS = {
    "hoodie.table.name": "trips",
    "hoodie.datasource.write.recordkey.field": "flight",
    "hoodie.datasource.write.partitionpath.field": "day",
    "hoodie.datasource.write.precombine.field": "departure",
    "hoodie.datasource.write.operation": "upsert",
    "hoodie.upsert.shuffle.parallelism": "1",
    "hoodie.metadata.enable": "false",
}


class Reports:
    """The events that a watcher has published, from a thread of its own."""

    def __init__(self, table: Path) -> None:
        self.events: list[WriterEventUnion] = []
        self._changed = threading.Condition()
        self._uri = f"file://{table}"

    async def publish(self, events: list[WriterEventUnion]) -> None:
        with self._changed:
            self.events += events
            self._changed.notify_all()

    async def watch(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        settings = tuned(watch_seconds=0.05, watch_idle_seconds=0.05, watch_grace_seconds=0.0)
        task_status.started()
        await Watcher(settings, (self._uri,), self.publish).run()

    def completed(self, count: int) -> list[CommitCompleted]:
        """Wait until so many commits are reported."""

        def found() -> list[CommitCompleted]:
            return [each for each in self.events if isinstance(each, CommitCompleted)]

        with self._changed:
            assert self._changed.wait_for(lambda: len(found()) >= count, PATIENCE_SECONDS), self.events
        return found()


def places(markers: tuple[Marker, ...]) -> set[tuple[str, str]]:
    return {(each.partition, each.file_group) for each in markers}


@pytest.mark.parametrize(
    "version",
    [
        pytest.param(each, marks=[pytest.mark.matrix] * (each < HUDI_TABLE_VERSION))
        for each in (9, 8, 6)
        if each <= HUDI_TABLE_VERSION
    ],
)
@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_each_write_of_an_unmodified_job_is_reported_with_what_it_touched(
    spark: SparkSession, tmp_path: Path, kind: str, version: int
) -> None:
    """An upsert is announced by its inflight file. Compaction is reported beside it, and permits appends."""
    table = tmp_path / "trips"
    compaction = {"hoodie.compact.inline": "true", "hoodie.compact.inline.max.delta.commits": "2"}
    options = OPTIONS | {"hoodie.datasource.write.table.type": kind}
    options |= {"hoodie.write.table.version": str(version), "hoodie.write.auto.upgrade": "false"}
    options |= compaction if kind == "MERGE_ON_READ" else {}
    reports = Reports(table)

    def write(departure: str) -> None:
        rows = spark.createDataFrame(
            [(1, 1, departure), (2, 2, departure)], "day int, flight int, departure string"
        )
        rows.coalesce(1).write.format("hudi").options(**options).mode("append").save(str(table))

    with anyio.from_thread.start_blocking_portal() as portal:
        watching, _ = portal.start_task(reports.watch)
        write("08:00")
        reports.completed(1)
        write("08:10")
        commits = reports.completed(3 if kind == "MERGE_ON_READ" else 2)
        watching.cancel()

    place = read_properties((table / PROPERTIES).read_bytes())
    timeline = table / place.timeline
    writes = [
        each for each in instants([each.name for each in timeline.iterdir()], place.layout) if each.writes
    ]
    assert place.version == version
    assert [each.version for each in commits] == [each.time for each in writes]
    for commit, instant in zip(commits, writes, strict=True):
        body = (timeline / instant.files[-1].name).read_bytes()
        assert places(commit.markers) >= places(read_metadata(body).touched)
    intents = {each.transaction: each for each in reports.events if isinstance(each, CommitIntent)}
    rules = [intents[each.transaction].conflict_rule for each in commits]
    assert rules == ["file-group", "file-group", "deleted-file"][: len(commits)]
    announced = [
        each
        for each in reports.events
        if isinstance(each, MarkerCreated) and each.transaction == commits[1].transaction
    ]
    assert set().union(*(places(each.markers) for each in announced)) == places(commits[0].markers)
