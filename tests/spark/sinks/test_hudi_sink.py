"""What only `HudiSink` does, on real Spark and Hudi: kinds of tables, operations, Hudi's own check, its archive, its releases."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from lakewarden.events import CommitRequested, DecisionEventUnion, Marker, WriterEventUnion
from lakewarden.spark_jobs import HudiSink, Transaction, UnsupportedSpark
from lakewarden.spark_jobs.sinks.hudi import provider
from lakewarden.spark_jobs.sinks.hudi.files import HudiFiles
from lakewarden.spark_jobs.sinks.hudi.write import HudiWrite
from tests.spark.fake_agent import grant_everything, granted
from tests.spark.harness import Harness
from tests.spark.sinks.cases import HUDI_OPTIONS, HudiCase, batch_of
from tests.spark.sinks.test_contract import At

pytestmark = [pytest.mark.real]

LEASE_SECONDS = 4.0
"""Of the grant in the middle of which the JVM is suspended."""

COLUMNS = "month int, day int, flight long, departure string"

MakeSink = Callable[..., HudiSink]


@pytest.fixture
def make_sink(tmp_path: Path) -> MakeSink:
    """A function that returns a sink for the table `trips`, partitioned by day."""

    def make(**arguments: Any) -> HudiSink:
        options = HUDI_OPTIONS | arguments.pop("options", {})
        defaults = {"keys": ["flight"], "partition_by": ["day"]}
        return HudiSink(str(tmp_path / "trips"), options=options, **(defaults | arguments))

    return make


def rows(spark: SparkSession, *values: tuple[int, int, str]) -> DataFrame:
    """A batch of (day, flight, departure)."""
    return spark.createDataFrame([(1, *each) for each in values], COLUMNS).coalesce(1)


def table(spark: SparkSession, sink: HudiSink) -> list[tuple[int, int, str]]:
    """The rows as Hudi reads them: day, flight, departure."""
    found = spark.read.format("hudi").load(sink.table).select("day", "flight", "departure").collect()
    return sorted(tuple(row) for row in found)


def touched(harness: Harness, agent: Any, batch: int) -> set[Marker]:
    """The markers of a batch, those of its scope included."""
    ids = {event.transaction for event in agent.events if getattr(event, "batch_id", None) == batch}
    return {
        marker
        for event in agent.events
        if event.transaction in ids
        for marker in getattr(event, "markers", None) or getattr(event, "scope", None) or ()
    }


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("COPY_ON_WRITE", {"hoodie.index.type": "BLOOM"}),
        ("MERGE_ON_READ", {"hoodie.index.type": "SIMPLE", "hoodie.metadata.enable": "true"}),
    ],
)
def test_a_table_has_the_rows_of_each_operation(
    harness: Harness, spark: SparkSession, make_sink: MakeSink, kind: str, more: dict[str, str]
) -> None:
    """Markers name the file groups that a commit changes, and compaction never runs in the writer."""
    agent = harness.agent(grant_everything)
    options = {
        "hoodie.datasource.write.table.type": kind,
        "hoodie.compact.inline.max.delta.commits": "1",
        **more,
    }
    gate = harness.gate()

    def write(sink: HudiSink, batch_id: int, *values: tuple[int, int, str]) -> None:
        gate.foreach_batch(sink, writer="w", admission="optimistic")(rows(spark, *values), batch_id)

    upsert = make_sink(order_by="departure", options=options)
    write(upsert, 0, (1, 1, "08:00"), (2, 2, "09:00"))
    write(upsert, 1, (1, 1, "08:10"), (3, 3, "10:00"))
    assert table(spark, upsert) == [(1, 1, "08:10"), (2, 2, "09:00"), (3, 3, "10:00")]
    write(make_sink(operation="delete", options=options), 2, (2, 2, "09:00"))
    assert table(spark, upsert) == [(1, 1, "08:10"), (3, 3, "10:00")]
    write(make_sink(operation="insert", options=options), 3, (1, 4, "11:00"))
    write(make_sink(operation="insert_overwrite", options=options), 4, (1, 5, "12:00"))
    assert table(spark, upsert) == [(1, 5, "12:00"), (3, 3, "10:00")]

    files = HudiFiles(upsert.table)
    assert [upsert.committed("w", batch) for batch in range(5)] == [
        instant.time for instant in files.instants() if instant.writes
    ]
    assert not any(instant.is_table_service for instant in files.instants())
    assert {marker.partition for marker in touched(harness, agent, 1)} == {"day=1", "day=3"}
    (first,) = {marker.file_group for marker in touched(harness, agent, 0) if marker.partition == "day=1"}
    assert first in {marker.file_group for marker in touched(harness, agent, 1)}, "the group that it updates"
    assert Marker(partition="day=1", file_group="*", operation="merge") in touched(harness, agent, 4)


def test_an_instant_is_announced_before_its_first_marker(
    harness: Harness, spark: SparkSession, make_sink: MakeSink
) -> None:
    """A watcher sees the instant on the timeline, too. Unannounced, it would be another writer that touches the same."""
    agent = harness.agent(grant_everything)
    sink = make_sink()

    harness.gate().foreach_batch(sink, writer="w", admission="optimistic")(rows(spark, (1, 1, "08:00")), 0)

    first, *rest = [event for event in agent.events if event.type == "marker-created"]
    assert (first.instant, first.markers) == (sink.committed("w", 0), ())
    assert rest


def test_an_unpartitioned_table_is_one_partition(
    harness: Harness, spark: SparkSession, make_sink: MakeSink
) -> None:
    agent = harness.agent(grant_everything)
    sink = make_sink(partition_by=[])
    write = harness.gate().foreach_batch(sink, writer="w")

    write(rows(spark, (1, 1, "08:00")), 0)
    write(rows(spark, (2, 1, "08:10")), 1)

    assert table(spark, sink) == [(2, 1, "08:10")]
    assert agent.wait_for("commit-intent")[0].scope == (
        Marker(partition="", file_group="*", operation="merge"),
    )
    assert {marker.partition for marker in touched(harness, agent, 1)} == {""}


def test_a_conflict_that_hudi_finds_is_computed_again(
    harness: Harness, spark: SparkSession, tmp_path: Path
) -> None:
    """A writer that bypasses the gate commits to the same file group while this one waits for its grant."""
    case = HudiCase(tmp_path / "hudi", spark)
    case.commit(1)
    agent = harness.agent(At("commit-requested", lambda _: case.commit(1)))

    harness.gate().foreach_batch(case.sink, writer="w", admission="optimistic")(batch_of(spark, 1), 0)

    assert case.flights() == [1]
    assert [writer for writer, _, _ in case.commits()] == ["w"]
    assert len(agent.wait_for("commit-completed")) == 1
    reasons = [event.reason for event in agent.events if event.type == "transaction-abandoned"]
    assert [reason.partition(":")[0] for reason in reasons] == ["BaseChanged"]
    assert case.orphans() == set()


def test_a_jvm_that_is_suspended_in_its_commit_beyond_the_lease_leaves_the_batch_once(
    harness: Harness, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it resumes, the commit is interrupted. Whatever it still published is found, and nothing is written twice."""
    case = HudiCase(tmp_path / "hudi", spark)

    def grant_shortly(event: WriterEventUnion) -> list[DecisionEventUnion]:
        assert isinstance(event, CommitRequested)
        return [granted(event, lease_seconds=LEASE_SECONDS)]

    agent = harness.agent(At("commit-requested", grant_shortly))
    answer = HudiWrite.answer
    suspended: list[threading.Thread] = []

    def suspending(write: HudiWrite, event: str, section: str) -> str:
        said = answer(write, event, section)
        if event == "locked" and not suspended:
            lapsed = time.monotonic() + LEASE_SECONDS
            suspended.append(threading.Thread(target=suspend, args=(jvm_of(spark), lapsed)))
            suspended[0].start()
        return said

    monkeypatch.setattr(HudiWrite, "answer", suspending)
    harness.gate().foreach_batch(case.sink, writer="w", admission="optimistic")(batch_of(spark, 1), 0)

    suspended[0].join()
    assert case.flights() == [1]
    assert [(writer, batch) for writer, batch, _ in case.commits()] == [("w", 0)]
    assert [event.version for event in agent.wait_for("commit-completed")] == [case.sink.committed("w", 0)]


def jvm_of(spark: SparkSession) -> int:
    """The process id of the session's JVM."""
    jvm: Any = spark.sparkContext._jvm
    name = jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getName()
    return int(name.partition("@")[0])


def suspend(process: int, until: float) -> None:
    """Suspend the process until this moment of the monotonic clock has passed."""
    os.kill(process, signal.SIGSTOP)
    try:
        while time.monotonic() < until:
            time.sleep(0.05)
    finally:
        os.kill(process, signal.SIGCONT)


def test_options_for_a_write_of_ones_own(harness: Harness, spark: SparkSession, make_sink: MakeSink) -> None:
    harness.agent(grant_everything)
    sink = make_sink()

    def write(batch: DataFrame, txn: Transaction) -> None:
        txn.recognise(sink.committed)
        with sink.hudi_options(txn, batch.sparkSession) as options:
            batch.write.format("hudi").options(**options).mode("append").save(sink.table)

    for _ in range(2):
        harness.gate().foreach_batch(write, table=sink.table, writer="w")(rows(spark, (1, 1, "08:00")), 0)

    assert table(spark, sink) == [(1, 1, "08:00")]
    assert len([each for each in HudiFiles(sink.table).instants() if each.writes]) == 1


def test_a_batch_is_found_in_hudis_archive(
    harness: Harness, spark: SparkSession, make_sink: MakeSink
) -> None:
    harness.agent(grant_everything)
    archive_early = {
        "hoodie.keep.min.commits": "2",
        "hoodie.keep.max.commits": "3",
        "hoodie.clean.commits.retained": "1",
        "hoodie.commits.archival.batch": "1",
    }
    sink = make_sink(options=archive_early)
    write = harness.gate().foreach_batch(sink, writer="w")
    other = harness.gate().foreach_batch(sink, writer="other")
    write(rows(spark, (1, 1, "08:00")), 7)
    for batch in range(6):
        other(rows(spark, (1, 1, f"09:0{batch}")), batch)

    active = [each.time for each in HudiFiles(sink.table).instants()]
    found = HudiFiles(sink.table).committed("w", 7)
    assert found is not None
    assert found not in active
    assert sink.committed("w", 8) is None
    assert sink.committed("w", 6) is None


def test_a_release_of_hudi_that_is_not_known_is_refused(
    harness: Harness, spark: SparkSession, make_sink: MakeSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.agent(grant_everything)
    sink = make_sink()
    monkeypatch.setattr(provider, "RELEASES", ("1.3",))

    with pytest.raises(UnsupportedSpark, match=r"Hudi 1\.2\.0 is not supported"):
        harness.gate().foreach_batch(sink, writer="w")(rows(spark, (1, 1, "08:00")), 0)

    assert HudiFiles(sink.table).properties() == {}


def test_a_section_of_hudi_that_is_not_known_is_refused(
    harness: Harness, spark: SparkSession, make_sink: MakeSink
) -> None:
    """Hudi's inline clustering commits in a section of its own. The options refuse it; the class in the JVM does so too."""
    harness.agent(grant_everything)
    sink = make_sink()
    sink._options |= {"hoodie.clustering.inline": "true", "hoodie.clustering.inline.max.commits": "1"}

    with pytest.raises(Exception, match=r"refused a lock for \w+\.completeClustering"):
        harness.gate().foreach_batch(sink, writer="w", max_attempts=1)(rows(spark, (1, 1, "08:00")), 0)
