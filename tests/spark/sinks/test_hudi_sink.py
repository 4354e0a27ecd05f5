"""What only `HudiSink` does, on real Spark and Hudi: kinds of tables, operations, Hudi's own check, its archive, its releases."""

from __future__ import annotations

import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from lakewarden.events import CommitRequested, DecisionEventUnion, Marker, WriterEventUnion
from lakewarden.handlers.hudi.timeline import UnreadableHudi
from lakewarden.spark_jobs import GateError, HudiSink, Transaction, UnsupportedSpark
from lakewarden.spark_jobs.gate.outcome import BatchOutcome
from lakewarden.spark_jobs.sinks.hudi import provider
from lakewarden.spark_jobs.sinks.hudi.files import HudiFiles
from lakewarden.spark_jobs.sinks.hudi.options import ORDERING
from lakewarden.spark_jobs.sinks.hudi.provider import HudiClient
from lakewarden.spark_jobs.sinks.hudi.write import HudiWrite
from lakewarden.spark_jobs.sinks.releases import HUDI
from tests.spark.fake_agent import At, FakeAgent, grant_everything, granted
from tests.spark.formats import HUDI_TABLE_VERSION
from tests.spark.harness import Harness
from tests.spark.rows.memory_gate import MemoryGate
from tests.spark.sinks.cases import HUDI_OPTIONS, HudiCase, batch_of, once, timeline_of

pytestmark = [pytest.mark.real]

LEASE_SECONDS = 4.0
"""Of the grant in the middle of which the JVM is suspended."""

COLUMNS = "month int, day int, flight long, departure string"

NATIVELY = HUDI_OPTIONS | {
    "hoodie.table.name": "trips",
    "hoodie.datasource.write.recordkey.field": "flight",
    "hoodie.datasource.write.partitionpath.field": "day",
}
"""For a write without the sink."""

MakeSink = Callable[..., HudiSink]


@pytest.fixture
def make_sink(tmp_path: Path) -> MakeSink:
    """A function that returns a sink for the table `trips`, partitioned by day."""

    def make(**arguments: Any) -> HudiSink:
        options = HUDI_OPTIONS | arguments.pop("options", {})
        defaults = {"keys": ["flight"], "partition_by": ["day"]}
        return HudiSink(str(tmp_path / "trips"), options=options, **(defaults | arguments))

    return make


@pytest.fixture
def sink(make_sink: MakeSink) -> HudiSink:
    return make_sink()


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
    harness: Harness, spark: SparkSession, sink: HudiSink, agent: FakeAgent
) -> None:
    """A watcher sees the instant on the timeline, too. Unannounced, it would be another writer that touches the same."""
    harness.gate().foreach_batch(sink, writer="w", admission="optimistic")(rows(spark, (1, 1, "08:00")), 0)

    first, *rest = [event for event in agent.events if event.type == "marker-created"]
    assert (first.instant, first.markers) == (sink.committed("w", 0), ())
    assert rest


def test_an_unpartitioned_table_is_one_partition(
    harness: Harness, spark: SparkSession, make_sink: MakeSink, agent: FakeAgent
) -> None:
    sink = make_sink(partition_by=[])
    write = harness.gate().foreach_batch(sink, writer="w")

    write(rows(spark, (1, 1, "08:00")), 0)
    write(rows(spark, (2, 1, "08:10")), 1)

    assert table(spark, sink) == [(2, 1, "08:10")]
    assert agent.wait_for("commit-intent")[0].scope == (
        Marker(partition="", file_group="*", operation="merge"),
    )
    assert {marker.partition for marker in touched(harness, agent, 1)} == {""}


def test_partitions_are_spelled_as_in_a_table_that_exists(
    harness: Harness, spark: SparkSession, make_sink: MakeSink, agent: FakeAgent
) -> None:
    """Hudi's own writer names a directory `1`, and this sink one of a new table `day=1`. Hudi refuses a table with both."""
    path = make_sink().table
    rows(spark, (1, 1, "08:00"), (2, 2, "09:00")).write.format("hudi").options(**NATIVELY).save(path)
    sink = make_sink()

    harness.gate().foreach_batch(sink, writer="w")(rows(spark, (1, 1, "08:10")), 0)

    assert table(spark, sink) == [(1, 1, "08:10"), (2, 2, "09:00")]
    assert {marker.partition for marker in touched(harness, agent, 0)} == {"1"}


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
    (lost,) = (event for event in agent.events if event.type == "transaction-abandoned")
    assert "conflicts with a commit without the gate's label" in lost.reason
    assert lost.cause == "base-changed"
    assert re.match(r"instant \d{17}: UPSERT", lost.lost_to or "")
    assert case.orphans() == set()


@pytest.mark.wide
@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_two_writers_that_create_one_bucket_touch_the_same_file_group(
    *, spark: SparkSession, tmp_path: Path, make_sink: MakeSink, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Their fileIds differ. The agent would stop one of them; this gate grants both, and Hudi's check names the winner."""
    bucket = {
        "hoodie.datasource.write.table.type": kind,
        "hoodie.index.type": "BUCKET",
        "hoodie.bucket.index.num.buckets": "1",
    }

    def write(writer: str, day: int, flight: int) -> None:
        batch = rows(spark, (day, flight, writer))
        gate.foreach_batch(make_sink(options=bucket), writer=writer, admission="optimistic")(batch, 0)

    def rival(request: Callable[..., Any], txn: Transaction) -> Any:
        other = threading.Thread(target=write, args=("rival", 2, 20))
        other.start()
        other.join()
        return request(txn)

    with MemoryGate(tmp_path) as gate:
        write("first", 1, 10)
        once(monkeypatch, Transaction, "request_grant", rival)
        write("w", 2, 21)
        events = gate.events

    assert table(spark, make_sink()) == [(1, 10, "first"), (2, 20, "rival"), (2, 21, "w")]
    groups = {
        (marker.partition, marker.file_group) for event in events for marker in getattr(event, "markers", ())
    }
    assert groups == {("day=1", "00000000"), ("day=2", "00000000")}
    (lost,) = (event for event in events if event.type == "transaction-abandoned")
    assert re.match(
        r"LostToGate: .*another commit of the gate \(instant \d{17}: UPSERT, job rival", lost.reason
    )


@pytest.mark.parametrize("moment", ["at its lock", "while it completes the instant"])
def test_a_jvm_that_is_suspended_in_its_commit_beyond_the_lease_leaves_the_batch_once(
    harness: Harness, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """When it resumes, the commit is interrupted. Whatever it still published is found, and nothing is written twice.

    An interrupt while it writes a file of the timeline would complete the instant without metadata.
    """
    case = HudiCase(tmp_path / "hudi", spark)

    def grant_shortly(event: WriterEventUnion) -> list[DecisionEventUnion]:
        assert isinstance(event, CommitRequested)
        return [granted(event, lease_seconds=LEASE_SECONDS)]

    agent = harness.agent(At("commit-requested", grant_shortly))
    answer = HudiWrite.answer
    suspended: list[threading.Thread] = []

    def suspend_the_jvm(until: float) -> None:
        if moment == "while it completes the instant":
            _await_the_temporary_file(tmp_path / "hudi", until)
        suspend(jvm_of(spark), until)

    def suspending(write: HudiWrite, event: str, section: str) -> str:
        said = answer(write, event, section)
        if event == "locked" and not suspended:
            lapsed = time.monotonic() + LEASE_SECONDS
            suspended.append(threading.Thread(target=suspend_the_jvm, args=(lapsed,)))
            suspended[0].start()
        return said

    monkeypatch.setattr(HudiWrite, "answer", suspending)
    harness.gate().foreach_batch(case.sink, writer="w", admission="optimistic")(batch_of(spark, 1), 0)

    suspended[0].join()
    assert case.flights() == [1]
    assert [(writer, batch) for writer, batch, _ in case.commits()] == [("w", 0)]
    assert [event.version for event in agent.wait_for("commit-completed")] == [case.sink.committed("w", 0)]


def _await_the_temporary_file(table: Path, until: float) -> None:
    """Wait until Hudi writes the completed instant under its temporary name, without a pause: it takes milliseconds."""
    while time.monotonic() < until:
        if any(timeline_of(table).glob(f"[0-9]*{'' if HUDI_TABLE_VERSION == 6 else '_*'}.commit.*-*")):
            return


class PendingWrite:
    """The newest commit of a table, made pending again: with its markers, and a heartbeat that counts for an hour."""

    def __init__(self, folder: Path) -> None:
        self._completed = max(timeline_of(folder).glob("*.commit"))
        self._content = self._completed.read_bytes()
        for file in (self._completed, self._completed.with_name(f".{self._completed.name}.crc")):
            file.unlink(missing_ok=True)
        instant = self._completed.stem.partition("_")[0]
        for file in folder.rglob(f"*_{instant}.parquet"):
            marker = folder / ".hoodie" / ".temp" / instant / f"{file.relative_to(folder)}.marker.CREATE"
            marker.parent.mkdir(parents=True)
            marker.touch()
        self._heartbeat = folder / ".hoodie" / ".heartbeat" / instant
        self._heartbeat.parent.mkdir(exist_ok=True)
        self._heartbeat.touch()
        os.utime(self._heartbeat, (time.time() + 3600,) * 2)

    def die(self) -> None:
        """Let Hudi take its driver for dead."""
        self._heartbeat.unlink()

    def complete(self) -> None:
        self._completed.write_bytes(self._content)


@pytest.mark.parametrize("overtaken", [False, True], ids=["not-overtaken", "overtaken"])
def test_a_dead_write_before_the_first_commit_is_rolled_back(
    *, harness: Harness, spark: SparkSession, tmp_path: Path, overtaken: bool
) -> None:
    """Hudi would read its row. With `overtaken`, a writer that bypasses the gate has committed meanwhile, and Hudi reads it."""
    case = HudiCase(tmp_path / "hudi", spark)
    harness.agent(grant_everything)
    case.commit(1)
    dead = PendingWrite(tmp_path / "hudi")
    if overtaken:
        case.commit(2)
        assert read_by_hudi(spark, case) == [1, 2], "HUDI-5569"
    dead.die()

    harness.gate().foreach_batch(case.sink, writer="w", admission="optimistic")(batch_of(spark, 1), 0)

    assert read_by_hudi(spark, case) == ([1, 2] if overtaken else [1])
    assert [writer for writer, _, _ in case.commits()] == ["w"]
    assert case.orphans() == set()


@pytest.mark.parametrize("step", ["recognise", "grant_of", "committed"])
def test_a_commit_of_a_dead_driver_that_is_carried_out_late_is_found_or_logged(
    *,
    harness: Harness,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    step: str,
) -> None:
    """It comes behind the first look, behind the look under the grant, or so late that Hudi has looked for conflicts."""
    case = HudiCase(tmp_path / "hudi", spark)
    harness.agent(grant_everything)
    write = harness.gate().foreach_batch(case.sink, writer="w", admission="optimistic")
    for batch_id, flight in enumerate((1, 2)):
        write(batch_of(spark, flight), batch_id)
    dead = PendingWrite(tmp_path / "hudi")
    answer = HudiWrite.answer

    def then_complete_it(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        found = function(*arguments, **options)
        dead.complete()
        return found

    def complete_it_first(hudi: HudiWrite, event: str, section: str) -> str:
        if event == "committed":
            dead.complete()
        return answer(hudi, event, section)

    if step == "committed":
        monkeypatch.setattr(HudiWrite, "answer", complete_it_first)
    else:
        once(monkeypatch, BatchOutcome if step == "grant_of" else Transaction, step, then_complete_it)
    write(batch_of(spark, 2), 1)

    twice = step == "committed"
    assert [batch for _, batch, _ in case.commits()] == ([0, 1, 1] if twice else [0, 1])
    assert ("hudi.batch-twice" in caplog.text) == twice
    if not twice:
        assert case.flights() == [1, 2]


def test_a_first_commit_waits_for_a_live_write_that_began_before(
    harness: Harness, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent: FakeAgent
) -> None:
    case = HudiCase(tmp_path / "hudi", spark)
    case.commit(1)
    live = PendingWrite(tmp_path / "hudi")
    roll_back_dead = HudiClient.roll_back_dead

    def then_complete_it(client: HudiClient) -> None:
        roll_back_dead(client)
        assert not [event for event in agent.events if event.type == "commit-requested"]
        live.complete()

    monkeypatch.setattr(HudiClient, "roll_back_dead", then_complete_it)
    harness.gate().foreach_batch(case.sink, writer="w", admission="optimistic")(batch_of(spark, 2), 0)

    assert read_by_hudi(spark, case) == [1, 2]
    assert len(agent.wait_for("commit-requested")) == 1


def read_by_hudi(spark: SparkSession, case: HudiCase) -> list[int]:
    """The keys that a reader gets."""
    rows = spark.read.format("hudi").option("hoodie.metadata.enable", "false").load(case.sink.table).collect()
    return sorted(row["flight"] for row in rows)


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


def test_options_for_a_write_of_ones_own(harness: Harness, spark: SparkSession, sink: HudiSink) -> None:
    harness.agent(grant_everything)

    def write(batch: DataFrame, txn: Transaction) -> None:
        txn.recognise(sink.committed)
        with sink.hudi_options(txn, batch.sparkSession) as options:
            batch.write.format("hudi").options(**options).mode("append").save(sink.table)

    for _ in range(2):
        harness.gate().foreach_batch(write, table=sink.table, writer="w")(rows(spark, (1, 1, "08:00")), 0)

    assert table(spark, sink) == [(1, 1, "08:00")]
    assert len([each for each in HudiFiles(sink.table).instants() if each.writes]) == 1


def test_a_rollback_that_fails_after_the_commit_fails_no_batch(
    harness: Harness, spark: SparkSession, sink: HudiSink, caplog: pytest.LogCaptureFixture
) -> None:
    """Before 1.2, Hudi's cleaning executes a rollback that another writer is about to end."""
    harness.agent(grant_everything)

    def write(batch: DataFrame, txn: Transaction) -> None:
        with sink.hudi_options(txn, batch.sparkSession) as options:
            batch.write.format("hudi").options(**options).mode("append").save(sink.table)
            raise RuntimeError("org.apache.hudi.exception.HoodieRollbackException: Failed to rollback")

    harness.gate().foreach_batch(write, table=sink.table, writer="w")(rows(spark, (1, 1, "08:00")), 0)

    assert table(spark, sink) == [(1, 1, "08:00")]
    assert "hudi.rollback-failed" in caplog.text


def test_sql_writes_a_batch_once(
    harness: Harness, spark: SparkSession, make_sink: MakeSink, tmp_path: Path, agent: FakeAgent
) -> None:
    spark.sql(
        f"CREATE TABLE trips ({COLUMNS}) USING hudi PARTITIONED BY (day) LOCATION '{tmp_path}/trips' "
        "TBLPROPERTIES (primaryKey = 'flight', `hoodie.metadata.enable` = 'false')"
    )
    sink = make_sink()

    def write(batch: DataFrame, txn: Transaction) -> None:
        txn.recognise(sink.committed)
        batch.createOrReplaceTempView("updates")
        with sink.hudi_sql(txn, batch.sparkSession) as session:
            assert spark.conf.get("hoodie.lakewarden.transaction", None) is None
            session.sql(
                "MERGE INTO trips USING updates ON trips.flight = updates.flight "
                "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            )

    body = harness.gate().foreach_batch(write, table=sink.table, writer="w")
    try:
        body(rows(spark, (1, 1, "08:00"), (1, 2, "09:00")), 0)
        for _ in range(2):
            body(rows(spark, (1, 2, "09:10"), (2, 3, "10:00")), 1)
        unlocked = spark.conf.get("hoodie.lakewarden.transaction", None)
    finally:
        spark.sql("DROP TABLE trips")

    assert table(spark, sink) == [(1, 1, "08:00"), (1, 2, "09:10"), (2, 3, "10:00")]
    assert unlocked is None
    granted_versions = [event.version for event in agent.wait_for("commit-completed", 3)]
    assert granted_versions == [sink.committed("w", 0), *[sink.committed("w", 1)] * 2]


def test_a_write_without_the_options_of_its_transaction_is_an_error(
    harness: Harness, spark: SparkSession, sink: HudiSink
) -> None:
    harness.agent(grant_everything)

    def write(batch: DataFrame, txn: Transaction) -> None:
        with sink.hudi_options(txn, batch.sparkSession):
            batch.collect()

    with pytest.raises(
        RuntimeError, match="no write to Hudi took place with the options of this transaction"
    ):
        harness.gate().foreach_batch(write, table=sink.table, writer="w")(rows(spark, (1, 1, "08:00")), 0)


def test_an_empty_batch_is_an_empty_commit(
    harness: Harness, spark: SparkSession, make_sink: MakeSink
) -> None:
    """If Hudi's option for empty commits is off, there is none, and nothing is left of its instant."""
    harness.agent(grant_everything)
    sink, strict = make_sink(), make_sink(options={"hoodie.allow.empty.commit": "false"})
    empty = rows(spark, (1, 1, "08:00")).limit(0)

    harness.gate().foreach_batch(sink, writer="w")(empty, 0)
    harness.gate().foreach_batch(sink, writer="w")(rows(spark, (1, 1, "08:00")), 1)
    harness.gate().foreach_batch(strict, writer="w")(empty, 2)

    assert table(spark, sink) == [(1, 1, "08:00")]
    writes = [each for each in HudiFiles(sink.table).instants() if each.writes]
    assert [each.time for each in writes] == [sink.committed("w", 0), sink.committed("w", 1)]
    assert sink.committed("w", 2) is None


def test_a_batch_is_found_in_hudis_archive(
    harness: Harness, spark: SparkSession, make_sink: MakeSink
) -> None:
    harness.agent(grant_everything)
    archive_early = {
        "hoodie.keep.min.commits": "2",
        "hoodie.keep.max.commits": "3",
        "hoodie.cleaner.commits.retained": "1",  # its name before 1.0
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
    with pytest.raises(GateError, match=r"has batch 7 of this writer, in version .*, and not batch 6"):
        sink.committed("w", 6)


def test_a_release_of_hudi_that_is_not_known_is_refused(
    harness: Harness, spark: SparkSession, sink: HudiSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.agent(grant_everything)
    monkeypatch.setattr(provider, "HUDI", replace(HUDI, artifacts={"3.5": ("a:b:1.3.0",)}))

    with pytest.raises(UnsupportedSpark, match=r"Hudi \d\.\d+\.\d on Spark .* is not accepted"):
        harness.gate().foreach_batch(sink, writer="w")(rows(spark, (1, 1, "08:00")), 0)

    assert HudiFiles(sink.table).properties() == {}


def test_a_table_whose_layout_this_release_of_hudi_would_change_is_refused(
    harness: Harness, spark: SparkSession, make_sink: MakeSink, tmp_path: Path
) -> None:
    harness.agent(grant_everything)
    properties = tmp_path / "trips" / ".hoodie" / "hoodie.properties"
    properties.parent.mkdir(parents=True)
    properties.write_text(f"hoodie.table.version={9 if HUDI_TABLE_VERSION == 6 else 6}\n")

    with pytest.raises(
        UnreadableHudi, match=r"^Hudi \d\.\d+\.\d writes tables with layout ., .*; table=file://"
    ):
        harness.gate().foreach_batch(make_sink(), writer="w")(rows(spark, (1, 1, "08:00")), 0)


def test_before_1_an_upsert_without_an_ordering_field_is_refused(
    harness: Harness, spark: SparkSession, tmp_path: Path
) -> None:
    harness.agent(grant_everything)
    options = {key: value for key, value in HUDI_OPTIONS.items() if key != ORDERING}
    sink = HudiSink(str(tmp_path / "trips"), keys=["flight"], partition_by=["day"], options=options)
    before_1 = HUDI_TABLE_VERSION == 6
    refused = pytest.raises(ValueError, match=r"pass order_by, .*; table=file://")

    with refused if before_1 else nullcontext():
        harness.gate().foreach_batch(sink, writer="w")(rows(spark, (1, 1, "08:00")), 0)


def test_a_section_of_hudi_that_is_not_known_is_refused(
    harness: Harness, spark: SparkSession, sink: HudiSink
) -> None:
    """Hudi's inline clustering commits in a section of its own. The options refuse it; the class in the JVM does so too."""
    harness.agent(grant_everything)
    sink._options |= {"hoodie.clustering.inline": "true", "hoodie.clustering.inline.max.commits": "1"}

    with pytest.raises(Exception, match=r"refused a lock for \w+\.completeClustering"):
        harness.gate().foreach_batch(sink, writer="w", max_attempts=1)(rows(spark, (1, 1, "08:00")), 0)


def test_a_table_that_is_dropped_and_created_again_meanwhile_gets_the_batch_once(
    harness: Harness, spark: SparkSession, sink: HudiSink, tmp_path: Path, agent: FakeAgent
) -> None:
    write = harness.gate().foreach_batch(sink, writer="w")
    write(rows(spark, (1, 0, "old"), (1, 1, "old")), 0)

    def create_again(_event: object) -> None:
        shutil.rmtree(tmp_path / "trips")
        options = NATIVELY | {"hoodie.datasource.write.hive_style_partitioning": "true"}
        batch = rows(spark, (1, 7, "another")).write.format("hudi").options(**options)
        batch.mode("append").save(str(tmp_path / "trips"))

    agent.script = At("commit-requested", create_again)
    write(rows(spark, (1, 1, "new")), 1)

    assert table(spark, sink) == [(1, 1, "new"), (1, 7, "another")]
    assert len(harness.only("abandoned")) == 1
