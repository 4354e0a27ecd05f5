"""What `DeltaSink` adds to the contract of sinks: rows, partitions, foreign commits, and what it refuses."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from lakewarden.events import WriterEventUnion
from lakewarden.spark_jobs import CommitAborted, DeltaSink, GateError, UnsupportedSpark
from lakewarden.spark_jobs.engine.engine import quoted
from lakewarden.spark_jobs.engine.java import java_type
from lakewarden.spark_jobs.sinks.delta import observer
from lakewarden.spark_jobs.sinks.delta.log import TableLog
from lakewarden.spark_jobs.sinks.delta.sink import REPARTITIONS
from lakewarden.spark_jobs.sinks.releases import DELTA
from lakewarden.spark_jobs.sinks.upsert import Mode
from tests.spark.fake_agent import At, FakeAgent, aborted, grant_everything
from tests.spark.formats import session_settings
from tests.spark.harness import Harness
from tests.spark.sinks.cases import COLUMNS, DeltaCase, batch_of

pytestmark = [pytest.mark.real]

DAYS = "day date, region string, id long, state string, seen int"

MONDAY, TUESDAY = date(2026, 11, 23), date(2026, 11, 24)

AWKWARD = 'it\'s a/b="c" d'


def days_table(spark: SparkSession, table: Path, properties: str = "") -> DataFrame:
    """Create a table with three rows, one of them in a partition without values."""
    spark.sql(f"CREATE TABLE delta.`{table}` ({DAYS}) USING delta PARTITIONED BY (day, region) {properties}")
    rows = [(MONDAY, AWKWARD, 1, "old", 1), (MONDAY, AWKWARD, 2, "old", 1), (None, None, 3, "old", 5)]
    append(spark.createDataFrame(rows, DAYS).coalesce(1), table)
    return read(spark, table)


STATES = "day int, id long, state string"


def states(spark: SparkSession, *rows: tuple[int, int | None, str]) -> DataFrame:
    return spark.createDataFrame(list(rows), STATES)


def append(frame: DataFrame, table: Path | str) -> None:
    """Commit rows without the gate."""
    frame.write.format("delta").mode("append").save(str(table))


def read(spark: SparkSession, table: Path | str) -> DataFrame:
    return spark.read.format("delta").load(str(table))


def rows_in(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=lambda row: row[2])


def data_files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*.parquet") if "_delta_log" not in path.parts}


def test_an_upsert_names_typed_partitions_and_obeys_its_conditions(
    harness: Harness, spark: SparkSession, tmp_path: Path, agent: FakeAgent
) -> None:
    """NULL is a partition and a key like any other. The batch's day is text, and it has a column that the table lacks."""
    table = days_table(spark, tmp_path / "days")
    sink = DeltaSink(
        str(tmp_path / "days"),
        mode="upsert",
        keys=["id"],
        order_by="seen",
        delete_condition="s.gone",
        update_condition="s.seen > t.seen",
    )
    batch = spark.createDataFrame(
        [
            ("2026-11-23", AWKWARD, 1, "older", 2, False),
            ("2026-11-23", AWKWARD, 1, "new", 3, False),
            ("2026-11-23", AWKWARD, 2, "", 4, True),
            (None, None, 3, "too old", 4, False),
            ("2026-11-24", "eu", 4, "new", 1, None),
            ("2026-11-24", "eu", 5, "never there", 1, True),
        ],
        "day string, region string, id long, state string, seen int, gone boolean",
    )

    harness.gate().foreach_batch(sink, writer="w")(batch, 0)

    assert rows_in(table) == [
        (MONDAY, AWKWARD, 1, "new", 3),
        (None, None, 3, "old", 5),
        (TUESDAY, "eu", 4, "new", 1),
    ]
    scope = agent.wait_for("commit-intent")[0].scope
    folders = {f"{path.parent.relative_to(tmp_path / 'days')}" for path in tmp_path.rglob("part-*.parquet")}
    assert {marker.partition for marker in scope} == folders


@pytest.mark.wide
def test_a_foreign_commit_to_another_partition_does_not_repeat_the_batch(
    harness: Harness, spark: SparkSession, tmp_path: Path
) -> None:
    case = DeltaCase("delta-upsert", tmp_path / "delta")

    def commit_elsewhere(_: WriterEventUnion) -> None:
        append(spark.createDataFrame([(1, 2, 77)], COLUMNS), tmp_path / "delta")

    agent = harness.agent(At("commit-requested", commit_elsewhere))

    harness.gate().foreach_batch(case.sink, writer="w")(batch_of(spark, 1), 0)

    assert case.flights() == [1, 77]
    assert harness.only("intent")[-1].attempt == 1
    assert [event.version for event in agent.wait_for("commit-completed")] == ["2"]


@pytest.mark.wide
@pytest.mark.parametrize(
    "statement", ["OPTIMIZE TABLE_", "ALTER TABLE TABLE_ ADD COLUMN gate string"], ids=["files", "columns"]
)
def test_a_stranger_that_rewrites_the_files_or_adds_a_column_before_the_commit_is_found(
    harness: Harness, spark: SparkSession, tmp_path: Path, statement: str
) -> None:
    """Delta's own check finds it under the grant. The batch is computed again, from the files and columns as they are then."""
    name = f"delta.`{tmp_path}/flights`"
    spark.sql(f"CREATE TABLE {name} ({STATES}) USING delta PARTITIONED BY (day)")
    for number in (1, 2):  # two files, which a compaction joins
        append(states(spark, (1, number, "old")), tmp_path / "flights")

    def rewrite(_: WriterEventUnion) -> None:
        spark.sql(statement.replace("TABLE_", name))

    harness.agent(At("commit-requested", rewrite))
    sink = DeltaSink(f"{tmp_path}/flights", mode="upsert", keys=["id"])

    harness.gate().foreach_batch(sink, writer="w")(states(spark, (1, 1, "new"), (1, 3, "new")), 0)

    found = read(spark, tmp_path / "flights").select("day", "id", "state").collect()
    assert sorted(tuple(row) for row in found) == [(1, 1, "new"), (1, 2, "old"), (1, 3, "new")]
    (abandoned,) = harness.only("abandoned")
    assert "conflicts with a commit without the gate's label (version" in abandoned.detail["reason"]
    assert harness.steps().count("completed") == 1


NEW_TABLE = "(day int, id long, extra int, state string) USING delta PARTITIONED BY (id)"
UNCHECKED = "spark.databricks.delta.retentionDurationCheck.enabled"
LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
"""10,000 by default, which takes VACUUM more than a minute."""

CHANGES = {
    "replaced": ([f"CREATE OR REPLACE TABLE NAMED_ {NEW_TABLE}"], "without the gate's label", ()),
    "created": (["DELETE_", f"CREATE TABLE TABLE_ {NEW_TABLE}"], "dropped and created again", ()),
    "restored": (["RESTORE TABLE TABLE_ TO VERSION AS OF 1"], "without the gate's label", (5,)),
    "renamed": (
        ["ALTER TABLE TABLE_ RENAME COLUMN note TO remark"],
        "without the gate's label",
        (1, 2, 5),
    ),
    "vacuumed": (
        [
            *("OPTIMIZE TABLE_", f"SET {UNCHECKED}=false", f"SET {LISTING_TASKS}=2"),
            *("VACUUM TABLE_ RETAIN 0 HOURS", f"RESET {LISTING_TASKS}", f"RESET {UNCHECKED}"),
        ],
        "without the gate's label",
        (1, 2, 5),
    ),
}


@pytest.mark.parametrize(
    ("mode", "change"),
    [
        ("upsert", "replaced"),
        pytest.param("append", "replaced", marks=pytest.mark.wide),
        ("append", "created"),
        pytest.param("upsert", "created", marks=pytest.mark.matrix),
        pytest.param("upsert", "restored", marks=pytest.mark.wide),
        pytest.param("append", "restored", marks=pytest.mark.wide),
        pytest.param("overwrite", "restored", marks=pytest.mark.matrix),
        pytest.param("upsert", "renamed", marks=pytest.mark.matrix),
        pytest.param("upsert", "vacuumed", marks=pytest.mark.wide),
    ],
)
def test_what_was_computed_for_a_table_that_changes_meanwhile_is_computed_again(
    *, harness: Harness, spark: SparkSession, tmp_path: Path, mode: Mode, change: str
) -> None:
    """Delta's own check finds most of it. If the table was created again, it would commit after a gap in the new log."""
    statements, reason, kept = CHANGES[change]
    name = f"delta.`{tmp_path}/flights`"
    mapped = "TBLPROPERTIES (delta.columnMapping.mode = 'name')" if change == "renamed" else ""
    spark.sql(f"CREATE TABLE {name} ({STATES}, note int) USING delta PARTITIONED BY (day) {mapped}")
    for ids in ((5,), (1, 2)):
        append(states(spark, *((1, number, "old") for number in ids)).coalesce(1), tmp_path / "flights")
    spark.sql(f"CREATE TABLE lakewarden_changed USING delta LOCATION '{tmp_path}/flights'")

    def then(_: WriterEventUnion) -> None:
        for statement in statements:
            if statement == "DELETE_":
                shutil.rmtree(tmp_path / "flights")
            else:
                spark.sql(statement.replace("NAMED_", "lakewarden_changed").replace("TABLE_", name))

    harness.agent(At("commit-requested", then))
    sink = DeltaSink(f"{tmp_path}/flights", mode=mode, keys=["id"] if mode == "upsert" else [])
    try:
        write = harness.gate().foreach_batch(sink, writer="w")
        write(states(spark, (1, 1, "new")), 0)
    finally:
        spark.sql("DROP TABLE lakewarden_changed")

    found = read(spark, tmp_path / "flights").select("id", "state").collect()
    others = [(number, "old") for number in kept if mode == "append" or (mode == "upsert" and number != 1)]
    assert sorted((row.id, row.state) for row in found) == sorted([(1, "new"), *others])
    found_out = [reason in event.detail["reason"] for event in harness.only("abandoned")]
    # Delta 4.4 appends to the restored table: its metadata is the same.
    assert found_out == [True] or (mode, change, found_out) == ("append", "restored", [])
    assert harness.steps().count("completed") == 1


@pytest.mark.wide
def test_a_batch_that_a_restore_by_a_time_removed_is_not_in_the_table(
    harness: Harness, spark: SparkSession, tmp_path: Path
) -> None:
    """Delta's own record of the batches survives it. `test_contract.py` restores by a version."""
    name = f"delta.`{tmp_path}/flights`"
    spark.sql(f"CREATE TABLE {name} ({STATES}) USING delta")
    harness.agent(grant_everything)
    sink = DeltaSink(f"{tmp_path}/flights")
    write = harness.gate().foreach_batch(sink, writer="w")
    for number in range(3):
        write(states(spark, (1, number, "old")), number)
    (then,) = [row.timestamp for row in spark.sql(f"DESCRIBE HISTORY {name}").collect() if row.version == 1]

    spark.sql(f"RESTORE TABLE {name} TO TIMESTAMP AS OF '{then}'")

    for each in (sink, DeltaSink(f"{tmp_path}/flights")):
        assert [each.committed("w", number) for number in range(3)] == ["1", None, None]

    TableLog(spark, f"{tmp_path}/flights").java.checkpoint()
    for version in range(2):
        (tmp_path / "flights" / "_delta_log" / f"{version:020d}.json").unlink()
    sink = DeltaSink(f"{tmp_path}/flights")
    with pytest.raises(
        GateError, match=r"no longer shows .*: it is unknown whether this one is among them; run `lake"
    ):
        sink.committed("w", 0)
    assert [sink.committed("w~edition", number) for number in range(3)] == [None, None, None]


@pytest.mark.wide
def test_a_table_that_is_dropped_before_the_commit_is_no_unknown_outcome(
    harness: Harness, spark: SparkSession, tmp_path: Path
) -> None:
    days_table(spark, tmp_path / "days")
    sink = DeltaSink(str(tmp_path / "days"), mode="upsert", keys=["id"])
    harness.agent(At("commit-requested", lambda _: shutil.rmtree(tmp_path / "days")))
    write = harness.gate().foreach_batch(sink, writer="w", max_attempts=1)

    with pytest.raises(Exception, match="days"):
        write(spark.createDataFrame([(MONDAY, AWKWARD, 1, "new", 2)], DAYS), 0)

    assert harness.steps()[-2:] == ["abandoned", "failed"]
    assert [event.detail["outcome"] for event in harness.only("failed")] == ["not committed"]
    assert not (tmp_path / "days").exists()


@pytest.mark.wide
def test_an_overwrite_by_name_replaces_the_partitions_of_the_batch_only(
    harness: Harness, spark: SparkSession, tmp_path: Path, agent: FakeAgent
) -> None:
    table = days_table(spark, tmp_path / "days")
    spark.sql(f"CREATE TABLE lakewarden_named USING delta LOCATION '{tmp_path}/days'")
    try:
        sink = DeltaSink("lakewarden_named", mode="overwrite")
    finally:
        spark.sql("DROP TABLE lakewarden_named")
    batch = spark.createDataFrame([(None, None, 9, "new", 1), (TUESDAY, "eu", 4, "new", 1)], DAYS)

    harness.gate().foreach_batch(sink, writer="w")(batch, 0)

    assert sink.table == f"file://{tmp_path}/days"
    assert rows_in(table) == [
        (MONDAY, AWKWARD, 1, "old", 1),
        (MONDAY, AWKWARD, 2, "old", 1),
        (TUESDAY, "eu", 4, "new", 1),
        (None, None, 9, "new", 1),
    ]
    (intent,) = agent.wait_for("commit-intent")
    assert (len(intent.scope), intent.conflict_rule) == (2, "file-group")


@pytest.mark.wide
def test_delta_refuses_a_writer_whose_successor_has_committed_the_batch(
    harness: Harness, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer was paused between its last check and the commit. Two appends have no conflict but this one."""
    harness.agent(grant_everything)
    case = DeltaCase("delta-append", tmp_path / "delta")
    case.before_the_last_check(monkeypatch, lambda: case.commit(5, writer="w", batch_id=3))

    harness.gate().foreach_batch(case.sink, writer="w")(batch_of(spark, 5), 3)

    assert case.flights() == [5]
    assert case.orphans() == set()


@pytest.mark.wide
def test_a_function_around_a_sink_hides_its_conflict_rule_and_the_log_says_so_once(
    harness: Harness, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    harness.agent(grant_everything)
    sink = DeltaCase("delta-append", tmp_path / "delta").sink
    gate = harness.gate()
    plain, nothing = gate.foreach_batch(sink, writer="plain"), batch_of(spark)
    plain(nothing, 0)
    assert "sink.hidden" not in caplog.text

    around = DeltaSink(str(tmp_path / "delta"))
    write = gate.foreach_batch(around.__call__, table=sink.table, writer="around")
    for number in (0, 1):
        write(nothing, number)

    assert caplog.text.count("sink.hidden") == 1
    assert "conflict_rule='deleted-file': pass that to `foreach_batch`" in caplog.text


@pytest.mark.wide
def test_types_of_partition_columns_have_the_names_of_a_dataframe(
    spark: SparkSession, tmp_path: Path
) -> None:
    """So the rows of a batch with the table's types aren't cast."""
    columns = (
        "a tinyint, b smallint, c int, d bigint, e string, f date, g decimal(9,2), h boolean, i timestamp, "
        "j timestamp_ntz, k float, l double"
    )
    names = ", ".join(column[0] for column in columns.split(", "))
    spark.sql(f"CREATE TABLE delta.`{tmp_path}` ({columns}, v int) USING delta PARTITIONED BY ({names})")

    fields = TableLog(spark, str(tmp_path)).metadata().fields

    assert [(field.column, field.value_type) for field in fields] == read(spark, tmp_path).dtypes[:-1]


@pytest.mark.wide
@pytest.mark.parametrize("name", ["a`b", "a.b"])
def test_the_setting_that_an_odd_name_of_a_partition_column_needs_is_named(
    harness: Harness, spark: SparkSession, tmp_path: Path, agent: FakeAgent, name: str
) -> None:
    spark.sql(
        f"CREATE TABLE delta.`{tmp_path}` (id long, {quoted(name)} string) USING delta PARTITIONED BY ({quoted(name)}) "
        "TBLPROPERTIES ('delta.columnMapping.mode'='name')"
    )
    batch = spark.createDataFrame([(1, "x")], f"id long, {quoted(name)} string")
    write = harness.gate().foreach_batch(DeltaSink(str(tmp_path), mode="upsert", keys=["id"]), writer="w")

    with pytest.raises(
        ValueError, match=r"for syntax: set spark\.\S+repartitionBeforeWrite.enabled=false, .*; table="
    ):
        write(batch, 0)
    with session_settings(spark, {REPARTITIONS: "false"}):
        write(batch, 0)

    assert agent.types().count("commit-completed") == 1
    assert [tuple(row) for row in read(spark, tmp_path).collect()] == [(1, "x")]


@pytest.mark.wide
def test_the_clean_up_leaves_files_that_deletion_vectors_add_again(
    harness: Harness, spark: SparkSession, tmp_path: Path
) -> None:
    """Also with column mapping and a change data feed: the first try is refused its grant, the second commits."""
    features = (
        "TBLPROPERTIES (delta.enableDeletionVectors = true, delta.columnMapping.mode = 'name', "
        "delta.enableChangeDataFeed = true)"
    )
    table = days_table(spark, tmp_path / "days", features)
    before = data_files(tmp_path)
    harness.agent(At("commit-requested", lambda event: [aborted(event)]))
    sink = DeltaSink(str(tmp_path / "days"), mode="upsert", keys=["id"])
    write = harness.gate().foreach_batch(sink, writer="w", max_attempts=1)
    batch = spark.createDataFrame([(MONDAY, AWKWARD, 1, "new", 2)], DAYS)
    with pytest.raises(CommitAborted):
        write(batch, 0)

    assert data_files(tmp_path) == before
    write(batch, 0)
    assert [row[2:] for row in rows_in(table)] == [(1, "new", 2), (2, "old", 1), (3, "old", 5)]


@pytest.mark.wide
def test_sessions_tables_and_releases_whose_commits_could_escape_the_grant_are_refused(
    harness: Harness, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.agent(grant_everything)
    case = DeltaCase("delta-append", tmp_path / "delta")
    write = harness.gate().foreach_batch(case.sink, writer="w")
    for setting, value, message in (
        ("spark.databricks.delta.autoCompact.enabled", "true", r"autoCompact.enabled=false in the writer's"),
        ("spark.databricks.delta.write.txnAppId", "mine", "unset them"),
    ):
        spark.conf.set(setting, value)
        try:
            with pytest.raises(ValueError, match=message):
                write(batch_of(spark, 1), 0)
        finally:
            spark.conf.unset(setting)
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        for kind, message in (
            ("binary", "type 'binary', which has no single spelling; partition by one of .*; table="),
            ("timestamp", "'p' of type timestamp has no single spelling; .*timeZone=UTC.*; table="),
        ):
            table = f"{tmp_path}/{kind}"
            spark.sql(f"CREATE TABLE delta.`{table}` (p {kind}, id long) USING delta PARTITIONED BY (p)")
            unread = spark.range(1).selectExpr(f"CAST(raise_error('it was read') AS {kind}) AS p", "id")
            for mode in ("append", "overwrite"):
                with pytest.raises(ValueError, match=message):
                    harness.gate().foreach_batch(DeltaSink(table, mode=mode), writer=mode)(unread, 0)
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    appended = f"{tmp_path}/appended"
    spark.sql(
        f"CREATE TABLE delta.`{appended}` (id long) USING delta TBLPROPERTIES ('delta.appendOnly'='true')"
    )
    with pytest.raises(
        ValueError, match=r"delta.appendOnly, with which Delta refuses an overwrite: .*table="
    ):
        harness.gate().foreach_batch(DeltaSink(appended, mode="overwrite"), writer="o")(spark.range(1), 0)
    with pytest.raises(ValueError, match="no Delta table: create it"):
        DeltaSink(str(tmp_path / "none")).committed("w", 0)
    managed = Path(shutil.copytree(tmp_path / "delta", tmp_path / "managed"))
    features = '["catalogManaged","vacuumProtocolCheck"]'
    features += ',"writerFeatures":["catalogManaged","inCommitTimestamp","vacuumProtocolCheck"]'
    (managed / "_delta_log" / f"{1:020}.json").write_text(
        f'{{"protocol":{{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":{features}}}}}\n'
    )
    for ask in (
        lambda sink: sink.committed("w", 0),
        lambda sink: harness.gate().foreach_batch(sink, writer="m")(batch_of(spark, 1), 0),
    ):
        with pytest.raises(
            ValueError, match=r"are kept by a catalog .*write it without the gate; table=.*managed"
        ):
            ask(DeltaSink(str(managed)))
    monkeypatch.setattr(observer, "DELTA", replace(DELTA, artifacts={"4.0": ("a:b:3.9.0",)}, of_patch={}))
    with pytest.raises(UnsupportedSpark, match=r"Delta Lake \d\.\d\.\d on Spark \d\.\d\.\d is not accepted"):
        DeltaSink(str(tmp_path / "delta")).committed("w", 0)
    assert DeltaSink(str(tmp_path / "delta"), untried_release=True).committed("w", 0) is None

    assert case.flights() == []


@pytest.mark.wide
@pytest.mark.parametrize("mode", ["upsert", pytest.param("append", marks=pytest.mark.matrix)])
def test_without_the_observer_the_whole_statement_is_granted_with_a_warning(
    *,
    harness: Harness,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    mode: Any,
) -> None:
    known = DELTA.hooks - {"beginPostCommit"}
    monkeypatch.setattr(observer, "DELTA", replace(DELTA, hooks=known))
    case = DeltaCase("delta-append", tmp_path / "delta")
    sink = DeltaSink(str(tmp_path / "delta"), mode=mode, keys=["flight"] if mode == "upsert" else [])
    written: list[set[Path]] = []
    agent = harness.agent(At("commit-requested", lambda _: written.append(data_files(tmp_path))))
    write = harness.gate().foreach_batch(sink, writer="w")

    for flight in (1, 2):  # the second one is a replay
        write(batch_of(spark, flight), 0)

    assert written == [set()], "nothing is written before the grant"
    assert case.flights() == [1]
    assert case.commits() == [("w", 0, harness.only("granted")[0].transaction)]
    assert [event.version for event in agent.wait_for("commit-completed", 2)] == ["1", "1"]
    (warning,) = [record for record in caplog.messages if record.startswith("delta.whole-statements")]
    assert "beginPostCommit differ" in warning
    assert "wait for one another's whole statements" in warning


class AtTheCommit(observer.CommitObserver):
    """An observer of the test's own, which Delta calls in whole statements: it acts right before the commit file is written."""

    def __init__(self, spark: SparkSession, act: Callable[[], None]) -> None:
        self._spark = spark
        self._txn: Any = SimpleNamespace(id="the test's")
        self.startingTransaction = self.preparingCommit = lambda make: make.apply()
        self.beginDoCommit = act
        self.beginPostCommit = lambda: None


@pytest.mark.wide
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_request_of_a_dead_driver_that_comes_before_a_whole_statements_commit_leaves_its_batch_once(
    *,
    harness: Harness,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: Mode,
) -> None:
    """Delta's own check finds it: the statement's transaction has read `SetTransaction` of the writer."""
    monkeypatch.setattr(observer, "DELTA", replace(DELTA, hooks=DELTA.hooks - {"beginPostCommit"}))
    harness.agent(grant_everything)
    case = DeltaCase("delta-append", tmp_path / "delta")
    sink = DeltaSink(str(tmp_path / "delta"), mode=mode, keys=["flight"] if mode == "upsert" else [])
    write = harness.gate().foreach_batch(sink, writer="w")
    carry_out = case.hold_the_publish(monkeypatch, lambda: write(batch_of(spark, 1), 0))
    registry = getattr(java_type(spark, f"{observer.OBSERVER}$"), "MODULE$")
    before, calls = registry.getObserver(), []

    def act() -> None:
        calls.append(case.flights())
        carry_out()

    registry.setObserver(AtTheCommit(spark, act))
    try:
        write(batch_of(spark, 1), 0)
    finally:
        registry.setObserver(before)

    assert calls[0] == [], "the look-up came before the request"
    assert case.flights() == [1]
    assert [(writer, batch) for writer, batch, _ in case.commits()] == [("w", 0)]
