"""`IcebergSink`: what the contract suite can't know of Iceberg. Real Spark, tables and broker."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from lakewarden.events import CommitIntent, DecisionEventUnion, TransactionAbandoned, WriterEventUnion
from lakewarden.spark_jobs import IcebergSink, OutcomeUnknown, UnsupportedSpark
from lakewarden.spark_jobs.engine.java import java_type
from lakewarden.spark_jobs.gate.scope import ALONE
from lakewarden.spark_jobs.sinks.iceberg import release
from lakewarden.spark_jobs.sinks.iceberg.batch_write import BatchWrite
from lakewarden.spark_jobs.sinks.iceberg.driver import CheckedOperations, load, metadata_of
from lakewarden.spark_jobs.sinks.iceberg.metadata import LastCommit, Snapshot
from lakewarden.spark_jobs.sinks.iceberg.staging import StagedTable
from lakewarden.spark_jobs.sinks.releases import ICEBERG, release_of
from lakewarden.spark_jobs.sinks.upsert import Mode
from tests.servers.iceberg_catalogs import running_nessie
from tests.servers.proxy import Proxy, Refusal
from tests.servers.s3 import encrypting_s3_server
from tests.spark.fake_agent import At, FakeAgent, aborted, grant_everything
from tests.spark.formats import ICEBERG_FORMAT, JARS, iceberg_name, session_settings
from tests.spark.harness import Harness
from tests.spark.rows.memory_gate import MemoryGate
from tests.spark.sinks.cases import once

pytestmark = [pytest.mark.real]

COLUMNS = "day int, id long, note string"

WITHOUT_HOOK = replace(ICEBERG, hooks=frozenset({"org.apache.iceberg.spark.Missing"}))
"""A release with which whole statements run under the grant."""

REWRITE = "rewrite_data_files(table => 'TABLE_', options => map('rewrite-all', 'true'))"

RELEASE = int(release_of(JARS.get("iceberg", "1.0")).split(".")[1])
"""The minor release of Iceberg 1."""


class Table:
    """A table of a catalog of its own."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        columns: str,
        partitioned_by: str,
        *,
        catalog: dict[str, str] | None = None,
        **properties: str,
    ) -> None:
        self.spark = spark
        self.folder = folder / "warehouse" / "test" / "flights"
        self.name = iceberg_name(spark, self.folder, **(catalog or {}))
        properties = {"format-version": ICEBERG_FORMAT} | {
            key.replace("_", "."): value for key, value in properties.items()
        }
        location = f"LOCATION '{self.folder}'" if catalog else ""
        listed = ", ".join(f"'{key}'='{value}'" for key, value in properties.items())
        partitions = f"PARTITIONED BY ({partitioned_by})" if partitioned_by else ""
        spark.sql(
            f"CREATE TABLE {self.name} ({columns}) USING iceberg {partitions} {location} TBLPROPERTIES ({listed})"
        )

    def sql(self, statement: str) -> list[Any]:
        self.spark.sql(f"REFRESH TABLE {self.name}")
        return list(self.spark.sql(statement.replace("TABLE_", self.name)).collect())

    def calling(self, procedure: str) -> str:
        """Return the statement that calls a procedure of the catalog. `TABLE_` is the table's name in it."""
        catalog, _, name = self.name.partition(".")
        return f"CALL {catalog}.system.{procedure.replace('TABLE_', name)}"

    def rewrite(self) -> None:
        """Join the files of each partition."""
        self.sql(self.calling(REWRITE))

    def alter(self, change: str) -> None:
        self.sql(f"ALTER TABLE TABLE_ {change}")

    def append(self, *rows: tuple[Any, ...], columns: str = COLUMNS) -> None:
        """Commit rows without the gate, in one file for each partition."""
        changes(self.spark, *rows, columns=columns).coalesce(1).writeTo(self.name).append()

    def sink(self, mode: Mode = "upsert") -> IcebergSink:
        return IcebergSink(self.name, mode=mode, keys=["id"] if mode == "upsert" else ())

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted((tuple(row) for row in self.sql("SELECT * FROM TABLE_")), key=repr)

    def operations(self) -> list[str]:
        return [snapshot.summary["operation"] for snapshot in self.history()]

    def history(self) -> list[Snapshot]:
        """The snapshots of the main branch, the oldest first."""
        metadata = metadata_of(self.spark, load(self.spark, self.name).operations().current())
        return [*metadata.ancestors()][::-1]

    def leftovers(self) -> set[str]:
        """Files that no snapshot has. Clients up to 1.10 can't ask the tests' REST server for metadata tables by their names."""
        kinds = java_type(self.spark, "org.apache.iceberg.MetadataTableType")
        made = java_type(self.spark, "org.apache.iceberg.spark.SparkTableUtil").loadMetadataTable
        table = load(self.spark, self.name)
        known = set()
        for kind, column in (
            (kinds.ALL_FILES, "file_path"),
            (kinds.ALL_MANIFESTS, "path"),
            (kinds.SNAPSHOTS, "manifest_list"),
        ):
            listed = DataFrame(made(self.spark._jsparkSession, table, kind), self.spark)
            known |= {row[0] for row in listed.select(column).collect()}
        found = {
            str(path) for path in self.folder.rglob("*") if path.suffix in {".parquet", ".avro", ".puffin"}
        }
        return found - {path.removeprefix("file:") for path in known}


def changes(spark: SparkSession, *rows: tuple[Any, ...], columns: str = COLUMNS) -> DataFrame:
    return spark.createDataFrame(list(rows), columns)


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Table:
    return Table(spark, tmp_path, COLUMNS, "day")


@pytest.mark.parametrize("mode", [pytest.param("copy-on-write", marks=pytest.mark.matrix), "merge-on-read"])
def test_a_compaction_between_stage_and_commit_is_refused_and_the_batch_computed_again(
    harness: Harness, spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    """Adding the staged files to the compacted table would double the rows."""
    table = Table(spark, tmp_path, COLUMNS, "day", write_merge_mode=mode)
    for number in (1, 2):  # two files, which a compaction joins
        table.append((1, number, "old"), (1, number + 10, "old"))
    harness.agent(At("commit-requested", lambda _: table.rewrite()))

    harness.gate().foreach_batch(table.sink(), writer="w")(changes(spark, (1, 1, "new"), (1, 3, "new")), 0)

    assert table.rows() == [(1, 1, "new"), (1, 11, "old"), (1, 12, "old"), (1, 2, "old"), (1, 3, "new")]
    assert table.operations() == ["append", "append", "replace", "overwrite"]
    assert harness.steps().count("completed") == 1
    (abandoned,) = harness.only("abandoned")
    assert abandoned.detail["reason"].startswith(
        "BaseChanged: the batch conflicts with a commit without the gate's label"
    )
    assert table.leftovers() == set()


@pytest.mark.wide
@pytest.mark.parametrize("step", ["commit-intent", "commit-requested"])
def test_a_column_that_is_added_meanwhile_loses_no_row_and_is_kept(
    harness: Harness, spark: SparkSession, table: Table, step: str
) -> None:
    table.append((1, 1, "old"))

    harness.agent(At(step, lambda _: table.alter("ADD COLUMN gate string")))
    write = harness.gate().foreach_batch(table.sink(), writer="w")

    write(changes(spark, (1, 1, "new"), (1, 2, "new")), 0)
    write(changes(spark, (1, 3, "new", "A1"), columns=f"{COLUMNS}, gate string"), 1)

    assert table.rows() == [(1, 1, "new", None), (1, 2, "new", None), (1, 3, "new", "A1")]
    assert table.leftovers() == set()


@pytest.mark.wide
def test_a_column_that_the_batch_lacks_gets_the_value_that_an_insert_gives_it(
    harness: Harness, spark: SparkSession, table: Table
) -> None:
    """Its default, if the release of Iceberg gives Spark the default. Before 1.9 a column has none.

    A default is the same instant in each time zone, also in one that the session gets when the sink is there.
    """
    if RELEASE >= 9:
        table.alter("SET TBLPROPERTIES ('format-version'='3')")
    literal = java_type(spark, "org.apache.iceberg.expressions.Expressions").lit
    types = "org.apache.iceberg.types.Types$"
    number = java_type(spark, f"{types}IntegerType").get()
    instant = java_type(spark, f"{types}TimestampType").withZone()
    update = load(spark, table.name).updateSchema()
    for name, kind, value in (("n", number, 7), ("seen", instant, "2026-01-02T00:30:00+00:00")):
        update.addColumn(name, kind, "of the batch", *([literal(value)] if RELEASE >= 9 else []))
    update.commit()
    with suppress(AnalysisException):  # Spark 3.5 refuses a list of columns that isn't complete
        table.sql("INSERT INTO TABLE_ (day, id, note) VALUES (1, 0, 'natively')")
    harness.agent(grant_everything)
    gate = harness.gate()

    for day, mode in enumerate(get_args(Mode), 1):
        sink = table.sink(mode)
        with session_settings(spark, {"spark.sql.session.timeZone": "Asia/Tokyo"}):
            gate.foreach_batch(sink, writer=mode)(changes(spark, (day, day, "by the sink")), 0)

    rows = table.sql("SELECT n, seen, note FROM TABLE_")
    assert len({(row.n, row.seen) for row in rows}) == 1
    assert [row.note for row in rows].count("by the sink") == 3


@pytest.mark.wide
@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"] if RELEASE >= 10 else [])
def test_an_upsert_keeps_the_lineage_of_rows(
    harness: Harness, spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    """From 1.10 on, Iceberg keeps the id of a row that a MERGE changes or moves to another file."""
    table = Table(spark, tmp_path, COLUMNS, "day", write_merge_mode=mode)
    table.alter("SET TBLPROPERTIES ('format-version'='3')")
    table.append((1, 1, "old"), (1, 2, "old"))
    harness.agent(grant_everything)

    harness.gate().foreach_batch(table.sink(), writer="w")(changes(spark, (1, 1, "new"), (1, 3, "new")), 0)

    found = table.sql("SELECT id, _row_id AS row, _last_updated_sequence_number AS changed FROM TABLE_")
    assert {(each.id, each.row, each.changed) for each in found if each.id < 3} == {(1, 0, 2), (2, 1, 1)}
    assert [each.changed for each in found if each.id == 3 and each.row > 1] == [2]


def test_a_session_that_was_cloned_before_the_first_batch_stages_it(
    harness: Harness, spark: SparkSession, table: Table
) -> None:
    """A streaming query's batches have a clone of the session, made when the query starts."""
    sink = table.sink()
    spark.conf.unset(f"spark.sql.catalog.{release.STAGING_CATALOG}")
    clone = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    harness.agent(grant_everything)

    harness.gate().foreach_batch(sink, writer="w")(changes(clone, (1, 1, "new")), 0)

    assert table.rows() == [(1, 1, "new")]


@pytest.mark.wide
@pytest.mark.parametrize("admission", ["optimistic", "queued"])
def test_an_upsert_takes_a_batch_that_reads_a_table_and_has_random_values(
    harness: Harness, spark: SparkSession, table: Table, admission: Any
) -> None:
    table.append((1, 1, "old"), (1, 2, "old"))
    rows = spark.table(table.name).where("id = 1").selectExpr("day", "id", "uuid() AS note")
    harness.agent(grant_everything)

    harness.gate().foreach_batch(table.sink(), writer="w", admission=admission)(rows.union(rows), 0)

    (_, first, note), other = table.rows()
    assert (first, len(note)) == (1, 36)
    assert other == (1, 2, "old")


@pytest.mark.wide
def test_a_setting_that_cuts_the_texts_of_plans_changes_nothing(
    harness: Harness, spark: SparkSession, table: Table
) -> None:
    table.append((1, 1, "old"))
    rows = spark.table(table.name).selectExpr("day", "id", "'new' AS note")
    harness.agent(grant_everything)

    with session_settings(spark, {"spark.sql.maxPlanStringLength": "20"}):
        harness.gate().foreach_batch(table.sink(), writer="w")(rows, 0)

    assert table.rows() == [(1, 1, "new")]


@pytest.mark.wide
def test_a_foreign_commit_elsewhere_costs_no_second_attempt(
    harness: Harness, spark: SparkSession, table: Table
) -> None:
    """The MERGE names its partitions. Iceberg applies it to the newer version."""
    table.append((1, 1, "old"), (2, 2, "old"))
    harness.agent(At("commit-requested", lambda _: table.append((2, 3, "foreign"))))

    harness.gate().foreach_batch(table.sink(), writer="w")(changes(spark, (1, 1, "new")), 0)

    assert table.rows() == [(1, 1, "new"), (2, 2, "old"), (2, 3, "foreign")]
    assert len(harness.only("intent")) == 1
    assert table.leftovers() == set()


@pytest.mark.wide
def test_a_swap_that_another_commit_preceded_is_tried_again_under_the_same_grant(
    harness: Harness, spark: SparkSession, table: Table, monkeypatch: pytest.MonkeyPatch, agent: FakeAgent
) -> None:
    """The foreign commit comes between Iceberg's validation and the swap. The grant is checked before each try."""
    swap, tries = CheckedOperations._swap, []

    def overtaken(operations: CheckedOperations, base: Any, metadata: Any) -> None:
        tries.append(operations)
        if len(tries) == 1:
            table.append((2, 3, "foreign"))
        swap(operations, base, metadata)

    monkeypatch.setattr(CheckedOperations, "_swap", overtaken)

    harness.gate().foreach_batch(IcebergSink(table.name), writer="w")(changes(spark, (1, 1, "new")), 0)

    assert table.rows() == [(1, 1, "new"), (2, 3, "foreign")]
    assert len(tries) == 2
    assert len(agent.wait_for("commit-requested")) == 1
    assert table.leftovers() == set()


@pytest.mark.wide
def test_transforms_are_scopes_by_value_and_null_is_one(
    harness: Harness, spark: SparkSession, tmp_path: Path, agent: FakeAgent
) -> None:
    """Deletions, conditional updates, and columns that the batch doesn't have, in one batch."""
    columns = "at timestamp, id long, region string, version int, note string"
    table = Table(spark, tmp_path, columns, "days(at), bucket(4, id), truncate(2, region)")
    noon = datetime(2026, 1, 1, 12)  # noqa: DTZ001 - the session's time zone is UTC
    rows = [(noon, 1, "eu-1", 5, "old"), (noon, 2, "eu-2", 5, "old"), (None, 3, None, 5, "old")]
    table.append(*rows, columns=columns)
    sink = IcebergSink(
        table.name,
        mode="upsert",
        keys=["id"],
        delete_condition="s.op = 'D'",
        update_condition="s.version > t.version",
    )
    one = noon.replace(hour=1)
    batch = changes(
        spark,
        (one, 1, "eu-9", 6, "U"),  # the same partition: another hour, another region with these two letters
        (noon, 2, "eu-2", 4, "U"),  # older than the table's
        (None, 3, None, 6, "D"),
        (noon, 4, "us-1", 1, "U"),
        (noon, 4, "us-1", 2, "D"),  # deleted, and not there: nothing to insert
        (noon, 5, "us-1", 1, "U"),
        columns="at timestamp, id long, region string, version int, op string",
    )

    harness.gate().foreach_batch(sink, writer="w")(batch, 0)

    assert table.rows() == [
        (noon.replace(hour=1), 1, "eu-9", 6, "old"),
        (noon, 2, "eu-2", 5, "old"),
        (noon, 5, "us-1", 1, None),
    ]
    scope = agent.wait_for("commit-intent")[0].scope
    written = {
        row[0]
        for row in table.sql(
            "SELECT DISTINCT concat('at_day=', partition.at_day, '/id_bucket=', partition.id_bucket, '/region_trunc=', "
            "coalesce(partition.region_trunc, 'null')) FROM TABLE_.files"
        )
    }
    paths = {marker.partition for marker in scope}
    assert written <= paths
    (without_day,) = paths - {path for path in paths if path.startswith("at_day=2026-01-01/")}
    assert without_day.startswith("at_day=null/id_bucket=")
    assert without_day.endswith("/region_trunc=null")
    assert {marker.file_group for marker in scope} == {"*"}


@pytest.mark.wide
@pytest.mark.parametrize(
    "evolution",
    [
        ("day", "ADD PARTITION FIELD bucket(2, id)", "day=1/id_bucket_2=", "day=1"),
        ("", "ADD PARTITION FIELD bucket(2, id)", "id_bucket_2=", ""),
        ("day, bucket(2, id)", "DROP PARTITION FIELD id_bucket", "day=1", "day=1"),
        ("day, bucket(2, id)", "REPLACE PARTITION FIELD id_bucket WITH bucket(4, id)", "day=1/id_bucket_4=", "day=1"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_an_evolved_partition_spec_is_written_rightly(
    harness: Harness, spark: SparkSession, tmp_path: Path, agent: FakeAgent, evolution: tuple[str, ...]
) -> None:
    """Rows of both specs are found. Upserts of two partitions conflict while a file of the older spec may have rows of both."""
    before, change, current, shared = evolution
    table = Table(spark, tmp_path, COLUMNS, before)
    table.append((1, 1, "old"), (1, 2, "old"))
    table.alter(change)

    harness.gate().foreach_batch(table.sink(), writer="w")(changes(spark, (1, 1, "new"), (1, 3, "new")), 0)

    assert table.rows() == [(1, 1, "new"), (1, 2, "old"), (1, 3, "new")]
    paths = {marker.partition for marker in agent.wait_for("commit-intent")[0].scope}
    assert shared in paths
    assert all(path.startswith(current) for path in paths - {shared})
    assert table.leftovers() == set()


AGAIN = (
    "TABLE TABLE_ ({columns}) USING iceberg PARTITIONED BY (day) TBLPROPERTIES ('format-version'='{format}')"
)
OTHER_TYPE = "day int, id string, note string"
OLD = [(1, 1, "old"), (1, 2, "old"), (1, 5, "old")]
REPLACED = f"CREATE OR REPLACE {AGAIN}"
CREATED = ["DROP TABLE TABLE_", f"CREATE {AGAIN}"]
ROLLED_BACK = "CALL rollback_to_snapshot('TABLE_', FIRST_)"
ALIKE = {"columns": COLUMNS, "format": ICEBERG_FORMAT}
EXPIRED = [
    f"CALL {REWRITE}",
    "CALL expire_snapshots(table => 'TABLE_', older_than => TIMESTAMP '9000-01-01', retain_last => 1)",
]

MEANWHILE = {
    "replaced": (
        "append",
        [REPLACED.format(columns=OTHER_TYPE, format=ICEBERG_FORMAT)],
        "columns or partition",
        [],
    ),
    "replaced-alike": ("upsert", [REPLACED.format(**ALIKE)], "no longer in the table's", []),
    "created": ("upsert", [text.format(**ALIKE) for text in CREATED], "created again", []),
    "created-append": ("append", [text.format(**ALIKE) for text in CREATED], "created again", []),
    "rolled-back": ("append", [ROLLED_BACK], "rolled back", [(1, 5, "old")]),
    "rolled-back-upsert": ("upsert", [ROLLED_BACK], "rolled back", [(1, 5, "old")]),
    "spec": ("append", ["ALTER TABLE TABLE_ ADD PARTITION FIELD bucket(2, id)"], "partition fields", OLD),
    "expired": ("upsert", EXPIRED, "no longer in the table's history", OLD),
    "expired-append": ("append", EXPIRED, None, OLD),
}


@pytest.mark.parametrize(
    ("mode", "statements", "reason", "kept"),
    [
        pytest.param(*case, id=name, marks=() if name == "replaced" else pytest.mark.wide)
        for name, case in MEANWHILE.items()
    ],
)
def test_what_was_staged_for_a_table_that_changes_meanwhile_is_computed_again(
    *,
    harness: Harness,
    spark: SparkSession,
    table: Table,
    mode: Mode,
    statements: list[str],
    reason: str | None,
    kept: Any,
) -> None:
    """Its files are never committed: their columns may be others, and a rewritten file has rows that were removed meanwhile.

    An append whose base has only expired is committed: it has read nothing of it.
    """
    for rows in ([(1, 5, "old")], [(1, 1, "old"), (1, 2, "old")]):
        table.append(*rows)
    first = str(table.history()[0].id)

    def change(_event: object) -> None:
        for statement in statements:
            _, call, procedure = statement.rpartition("CALL ")
            named = table.calling(procedure) if call else statement.replace("TABLE_", table.name)
            spark.sql(named.replace("FIRST_", first))

    harness.agent(At("commit-requested", change))

    harness.gate().foreach_batch(table.sink(mode), writer="w")(changes(spark, (1, 1, "new")), 0)

    expected = [row for row in kept if mode == "append" or row[1] != 1] + [(1, 1, "new")]
    assert sorted((day, int(key), note) for day, key, note, *_ in table.rows()) == sorted(expected)
    lost = [event.detail["reason"] for event in harness.only("abandoned")]
    assert len(lost) == (0 if reason is None else 1)
    assert all((reason or "") in each and "must be computed again" in each for each in lost)
    assert harness.steps().count("completed") == 1


BY_GATE = r"LostToGate: .*another commit of the gate \(snapshot \d+: \w+, .*job rival"


@pytest.mark.wide
@pytest.mark.parametrize(
    ("days", "foreign", "mode", "reason"),
    [
        pytest.param([1], [], "upsert", BY_GATE, id="gate"),
        pytest.param([2], [], "upsert", None, id="gate-elsewhere"),
        pytest.param(
            [2, 3],
            [1],
            "upsert",
            r"BaseChanged: .*without the gate's label \(snapshot \d+: append",
            id="both",
        ),
        pytest.param([1], [2], "upsert", BY_GATE, id="both-reversed"),
        pytest.param([1], [1], "append", None, id="append"),
    ],
)
def test_an_upsert_names_the_commit_to_which_it_was_lost_under_its_grant(
    *,
    spark: SparkSession,
    table: Table,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    days: list[int],
    foreign: list[int],
    mode: Mode,
    reason: str | None,
) -> None:
    """As beside a driver that is suspended beyond its lease. Iceberg's error names a file of the commit that it means."""
    table.append((1, 1, "old"))
    with MemoryGate(tmp_path) as gate:

        def commit_first() -> None:
            for day in days:
                gate.foreach_batch(table.sink(), writer="rival")(changes(spark, (day, 7, "rival")), day)
            for day in foreign:
                table.append((day, 8, "foreign"))

        def overtaken(publish: Callable[..., Any], *arguments: Any) -> Any:
            with ThreadPoolExecutor(1) as thread:
                thread.submit(commit_first).result()
            return publish(*arguments)

        once(monkeypatch, StagedTable, "publish", overtaken)
        gate.foreach_batch(table.sink(mode), writer="w")(changes(spark, (1, 1, "new")), 0)
        of_w = [event for event in gate.events if event.writer == "w"]

    lost = [event.reason for event in of_w if isinstance(event, TransactionAbandoned)]
    assert len(lost) == (0 if reason is None else 1)
    assert all(re.match(reason or "", each) and "bypass" not in each for each in lost), lost
    scopes = [event.scope for event in of_w if isinstance(event, CommitIntent)]
    assert (scopes[-1] == (ALONE,)) == (reason == BY_GATE)
    assert (1, 1, "new") in [row[:3] for row in table.rows()]


@pytest.mark.parametrize(
    "step", ["commit-intent", pytest.param("commit-requested", marks=pytest.mark.matrix)]
)
def test_an_upsert_stops_if_a_changed_partition_spec_gives_its_keys_another_meaning(
    harness: Harness, spark: SparkSession, tmp_path: Path, step: str
) -> None:
    """Row 1 moves to another day. Found by its day, the old row would stay. The batch was queued before the change."""
    columns = "at timestamp, id long, note string"
    table = Table(spark, tmp_path, columns, "bucket(2, id)")
    one, two = datetime(2026, 1, 1), datetime(2026, 1, 2)  # noqa: DTZ001 - the session's time zone is UTC
    table.append((one, 1, "old"), columns=columns)
    harness.agent(At(step, lambda _: table.alter("ADD PARTITION FIELD days(at)")))
    write = harness.gate().foreach_batch(table.sink(), writer="w")
    batch = changes(spark, (two, 1, "new"), columns=columns)

    with pytest.raises(
        ValueError, match=r"of the partition spec \[id_bucket\], and is partitioned by .*at_day.*rewrite"
    ):
        write(batch, 0)
    assert table.rows() == [(one, 1, "old")]

    table.rewrite()
    write(batch, 0)
    assert table.rows() == [(one, 1, "old"), (two, 1, "new")]


@pytest.mark.wide
def test_a_table_that_another_process_creates_again_is_the_new_one_in_a_running_query(
    harness: Harness, spark: SparkSession, tmp_path: Path
) -> None:
    """This session's catalog keeps the old one, and the new one's metadata file may have the same number."""
    table = Table(spark, tmp_path, COLUMNS, "")
    harness.agent(grant_everything)
    write = harness.gate().foreach_batch(IcebergSink(table.name), writer="w")
    write(changes(spark, (1, 0, "old")), 0)
    other = spark.newSession()
    assert iceberg_name(other, table.folder) == table.name, "a catalog of its own, with the same tables"

    for rounds, batch_id in ((1, 1), (0, 2)):
        other.sql(f"DROP TABLE {table.name}")
        other.sql(f"CREATE TABLE {table.name} ({COLUMNS}) USING iceberg")
        for _ in range(rounds):
            changes(other, (1, 9, "another")).writeTo(table.name).append()
        write(changes(spark, (1, batch_id, "new")), batch_id)

    assert table.rows() == [(1, 2, "new")]


def test_a_look_at_the_table_that_failed_once_loses_no_commit(
    harness: Harness, spark: SparkSession, tmp_path: Path
) -> None:
    """A Hadoop catalog's table then takes the metadata before for the newest. A stopped query's interrupt is such a failure."""
    table = Table(spark, tmp_path, COLUMNS, "")
    harness.agent(grant_everything)
    write = harness.gate().foreach_batch(IcebergSink(table.name), writer="w")
    write(changes(spark, (1, 0, "first")), 0)
    other = spark.newSession()
    iceberg_name(other, table.folder)
    changes(other, (1, 1, "another")).writeTo(table.name).append()
    cached = java_type(spark, "org.apache.iceberg.spark.Spark3Util").loadIcebergTable(
        spark._jsparkSession, table.name
    )
    newest = table.folder / "metadata" / "v3.metadata.json"
    content = newest.read_bytes()
    newest.write_bytes(b"")
    with pytest.raises(Exception, match=newest.name):
        cached.refresh()
    newest.write_bytes(content)

    write(changes(spark, (1, 2, "second")), 1)

    assert table.rows() == [(1, 0, "first"), (1, 1, "another"), (1, 2, "second")]


@pytest.mark.wide
def test_an_overwrite_replaces_the_partitions_of_the_batch_by_their_transforms_only(
    harness: Harness, spark: SparkSession, tmp_path: Path
) -> None:
    """A row of another hour of the day is replaced, one of another day stays. A foreign append makes it compute again."""
    columns = "at timestamp, id long"
    table = Table(spark, tmp_path, columns, "days(at)")
    noon, tomorrow = datetime(2026, 1, 1, 12), datetime(2026, 1, 2)  # noqa: DTZ001 - the session's time zone is UTC
    table.append((noon, 1), (tomorrow, 2), (None, 3), columns=columns)

    agent = harness.agent(At("commit-requested", lambda _: table.append((noon, 7), columns=columns)))
    sink = IcebergSink(table.name, mode="overwrite")

    batch = changes(spark, (noon.replace(hour=1), 4), (None, 5), columns=columns)
    harness.gate().foreach_batch(sink, writer="w")(batch, 0)

    assert [row[1] for row in table.rows()] == [5, 4, 2]
    assert table.operations() == ["append", "append", "overwrite"]
    assert len(harness.only("intent")) == 2
    (lost,) = (each for each in agent.events if isinstance(each, TransactionAbandoned))
    assert re.match(r"snapshot \d+: append, spark \S+, Spark application \S+", lost.lost_to or "")
    table.alter("ADD PARTITION FIELD bucket(2, id)")
    with pytest.raises(ValueError, match="files of an older partition spec, which Iceberg wouldn't replace"):
        sink.scope(batch)


@pytest.mark.wide
def test_a_table_that_is_dropped_meanwhile_is_no_unknown_outcome(
    harness: Harness, spark: SparkSession, table: Table
) -> None:
    def drop(_event: object) -> None:
        spark.sql(f"DROP TABLE {table.name}")

    harness.agent(At("commit-requested", drop))
    write = harness.gate().foreach_batch(IcebergSink(table.name), writer="w", max_attempts=1)

    with pytest.raises(Exception, match="flights"):
        write(changes(spark, (1, 1, "new")), 0)

    assert harness.steps()[-2:] == ["abandoned", "failed"]
    assert not table.folder.exists() or not list(table.folder.rglob("*.parquet"))


@pytest.mark.wide
def test_last_commits_beyond_the_newest_are_removed_after_a_day_unless_their_writers_commit(
    harness: Harness, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writer `w` was silent for longest, and its batch is recognised when its snapshot has expired. `back` commits before it."""
    monkeypatch.setattr("lakewarden.spark_jobs.sinks.iceberg.metadata.MAX_LAST_COMMITS", 2)
    today = time.time_ns() // 1_000_000
    at = {"w": 1, "old": 2, "back": 3, "new": today, "newer": today, "newest": today}
    key = partial(LastCommit.key, numbered=True)

    def text(writer: str, at_ms: int) -> str:
        last = LastCommit(writer=writer, batch=0, transaction="t", snapshot=1, sequence=1, at_ms=at_ms)
        return last.model_dump_json()

    properties: dict[str, Any] = {key(writer): text(writer, at_ms) for writer, at_ms in at.items()}
    properties[key("edited by hand")] = "{}"
    table = Table(spark, tmp_path, COLUMNS, "day", **properties)

    back = f"SET TBLPROPERTIES ('{key('back')}'='{text('back', today)}')"
    harness.agent(At("commit-requested", lambda _: table.alter(back)))
    sink = IcebergSink(table.name)

    harness.gate().foreach_batch(sink, writer="w")(changes(spark, (1, 1, "new")), 1)
    table.append((1, 2, "foreign"))
    version = sink.committed("w", 1)
    expiry = "expire_snapshots(table => 'TABLE_', older_than => TIMESTAMP '9000-01-01 00:00:00')"
    table.sql(table.calling(expiry))

    left = {row.key for row in table.sql("SHOW TBLPROPERTIES TABLE_")} & properties.keys()
    assert left == {key(writer) for writer in ("w", "back", "new", "newer", "newest")}
    assert version is not None
    assert sink.committed("w", 1) == version
    assert table.rows() == [(1, 1, "new"), (1, 2, "foreign")]


@pytest.mark.wide
def test_with_a_jdbc_catalog_a_foreign_commit_and_a_replayed_batch_are_found(
    harness: Harness, spark: SparkSession, tmp_path: Path
) -> None:
    table = Table(spark, tmp_path, COLUMNS, "day", catalog={"type": "jdbc"})
    table.append((1, 1, "old"))

    harness.agent(At("commit-requested", lambda _: table.append((1, 2, "foreign"))))
    write = harness.gate().foreach_batch(table.sink(), writer="w")

    write(changes(spark, (1, 1, "new")), 0)
    write(changes(spark, (1, 1, "newer")), 0)  # a replay

    assert table.rows() == [(1, 1, "new"), (1, 2, "foreign")]
    assert table.operations() == ["append", "append", "overwrite"]
    assert len(harness.only("abandoned")) == 1
    assert table.leftovers() == set()


@pytest.fixture(scope="module")
def rest(catalog_options: Callable[[str], dict[str, str]]) -> Iterator[Proxy]:
    """A proxy before Iceberg's REST server."""
    with Proxy(catalog_options("rest")["uri"]) as proxy:
        yield proxy


def refused_commit(status: int | None, *, takes_place: bool, times: int = 1) -> Refusal:
    """The commit of a table gets this answer, and so does whatever comes next."""
    commit = re.compile(rb"POST [^ ]*/namespaces/[^/ ]+/tables/[^/ ]+ ")
    body = json.dumps({"error": {"message": "the proxy's", "type": "of the proxy", "code": status}})
    return Refusal(commit, status, times, body, takes_place, later=re.compile(b""))


STATUSES = [409, 400, 401, 403, 419, 500, 502, 503, 504, None]
"""Of answers to a commit. 400: Unity's "commit validation failed"; 401, 419: the token expired; None: no answer."""

REPEATED = {502, 503, 504} if RELEASE < 9 else {503} if RELEASE == 9 else set()
"""Answers after which this release's client repeats a request by itself."""


@pytest.mark.parametrize(
    "mode", ["append", *(pytest.param(mode, marks=pytest.mark.matrix) for mode in ("upsert", "overwrite"))]
)
@pytest.mark.parametrize("took_place", [True, False], ids=["after-the-swap", "before-it"])
@pytest.mark.parametrize(
    "status", [pytest.param(status, marks=[] if status == 409 else pytest.mark.wide) for status in STATUSES]
)
def test_whatever_a_rest_catalog_answers_the_table_shows_whether_the_batch_is_committed(
    *,
    harness: Harness,
    spark: SparkSession,
    tmp_path: Path,
    rest: Proxy,
    status: int | None,
    took_place: bool,
    mode: Mode,
) -> None:
    """Each row is there once, and so are the snapshot's files. Older clients repeat the request after some answers."""
    table = Table(spark, tmp_path, COLUMNS, "day", catalog={"type": "rest", "uri": rest.endpoint})
    table.append((1, 1, "old"), (2, 2, "old"))
    harness.agent(grant_everything)
    sink = table.sink(mode)
    write = harness.gate().foreach_batch(sink, writer="w")

    with rest.refusing(refused_commit(status, takes_place=took_place)) as refusal:
        for note in ("new", "replayed"):
            write(changes(spark, (1, 1, note)), 0)

    assert refusal.refused == 1
    assert refusal.hidden.startswith(b"HTTP/1.1 200 ") == took_place
    old = [(1, 1, "old")] if mode == "append" else []
    assert table.rows() == [(1, 1, "new"), *old, (2, 2, "old")]
    assert table.operations() == ["append", "append" if mode == "append" else "overwrite"]
    is_known = took_place or status == 409 or status in REPEATED
    assert [each.detail["outcome"] for each in harness.only("failed")] == ["unknown"] * (not is_known)
    assert (table.leftovers() == set()) == is_known, "staged files stay while their commit may still come"


@pytest.mark.wide
def test_a_token_that_expires_in_the_middle_is_named_and_the_batch_is_committed_once(
    harness: Harness, spark: SparkSession, tmp_path: Path, rest: Proxy
) -> None:
    """The swap took place. Neither its answer nor the table can be read until the token is renewed."""
    table = Table(spark, tmp_path, COLUMNS, "day", catalog={"type": "rest", "uri": rest.endpoint})
    harness.agent(grant_everything)
    write = harness.gate().foreach_batch(IcebergSink(table.name), writer="w", max_attempts=1)

    with rest.refusing(refused_commit(401, takes_place=True, times=1_000)):
        with pytest.raises(
            OutcomeUnknown, match=r"may have reached the table: .*NotAuthorizedException: .*the proxy's"
        ) as caught:
            write(changes(spark, (1, 1, "new")), 0)
        assert "Traceback" not in str(caught.value)
        with pytest.raises(
            RuntimeError, match=r"didn't load the table: NotAuthorizedException: .*the proxy's"
        ):
            write(changes(spark, (1, 1, "new")), 0)
    write(changes(spark, (1, 1, "new")), 0)

    assert table.rows() == [(1, 1, "new")]
    assert table.operations() == ["append"]
    assert table.leftovers() == set()


@pytest.mark.wide
@pytest.mark.parametrize(("mode", "looks"), [("append", 4), ("upsert", 4), ("overwrite", 4)])
def test_a_batch_asks_a_rest_catalog_a_few_times_for_its_table(
    *, harness: Harness, spark: SparkSession, tmp_path: Path, rest: Proxy, mode: Mode, looks: int
) -> None:
    """Before the catalog's commit. Iceberg's own MERGE asks twice."""
    table = Table(spark, tmp_path, COLUMNS, "day", catalog={"type": "rest", "uri": rest.endpoint})
    harness.agent(grant_everything)
    sink = table.sink(mode)
    write = harness.gate().foreach_batch(sink, writer="w")
    write(changes(spark, (1, 1, "old")), 0)
    rest.requests.clear()

    write(changes(spark, (1, 1, "new")), 1)

    assert rest.requests == {"GET": looks, "POST": 1}


@pytest.mark.parametrize(
    "access",
    [
        pytest.param("vended-credentials", marks=pytest.mark.matrix),
        *([pytest.param("remote-signing", marks=pytest.mark.wide)] if RELEASE < 12 else []),
    ],
)
def test_files_are_staged_and_removed_with_credentials_that_nessie_vends_or_by_requests_that_it_signs(
    harness: Harness, spark: SparkSession, tmp_path: Path, access: str
) -> None:
    """The client has no credentials of its own."""
    vends = access == "vended-credentials"
    with (
        encrypting_s3_server() as s3,
        running_nessie(tmp_path, bucket := s3.bucket(), s3, vends=vends, signs=not vends) as uri,
    ):
        catalog = {"type": "rest", "uri": uri, "warehouse": "warehouse"}
        asks = {"header.X-Iceberg-Access-Delegation": access}
        name = iceberg_name(spark, tmp_path / "warehouse" / "air" / "flights", **catalog, **asks)
        spark.sql(f"CREATE TABLE {name} ({COLUMNS}) USING iceberg PARTITIONED BY (day)")
        listed: list[int] = []
        client = s3.new_client()

        def files() -> int:
            return sum(
                each["Key"].endswith((".parquet", ".avro"))
                for each in client.list_objects_v2(Bucket=bucket).get("Contents", ())
            )

        def refuse(event: WriterEventUnion) -> list[DecisionEventUnion]:
            listed.append(files())
            return [aborted(event)]

        harness.agent(At("commit-requested", refuse))
        harness.gate().foreach_batch(IcebergSink(name), writer="w")(changes(spark, (1, 1, "new")), 0)
        listed.append(files())
        client.close()
        assert [tuple(row) for row in spark.table(name).collect()] == [(1, 1, "new")]

    assert listed == [3, 3], "a data file, a manifest and its list, once staged and once committed"


@pytest.mark.wide
def test_a_second_write_to_the_staged_table_ends_the_batch_and_nothing_is_published(
    harness: Harness, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release that wrote a statement in two steps would otherwise commit what the gate never saw."""
    table = Table(spark, tmp_path, COLUMNS, "")
    table.append((1, 1, "old"))
    harness.agent(grant_everything)
    once = BatchWrite.run

    def twice(write: BatchWrite, target: str, base: int | None) -> None:
        once(write, target, base)
        once(write, target, base)

    monkeypatch.setattr(BatchWrite, "run", twice)

    with pytest.raises(Exception, match="a second write in one statement"):
        harness.gate().foreach_batch(IcebergSink(table.name), writer="w")(changes(spark, (1, 2, "new")), 0)

    assert table.rows() == [(1, 1, "old")]
    assert table.operations() == ["append"]
    assert "requested" not in harness.steps()


@pytest.mark.wide
def test_a_release_that_was_not_tried_is_refused_unless_the_user_says_so(
    spark: SparkSession, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = replace(ICEBERG, artifacts={"4.0": ("a:b:1.5.0",), "3.5": ("a:c:1.4.1",)})
    monkeypatch.setattr(release, "ICEBERG", tried)

    with pytest.raises(
        UnsupportedSpark, match=r"is not accepted by this sink, only 1\.5 on Spark 4\.0, 1\.4 on"
    ):
        IcebergSink(table.name)
    assert IcebergSink(table.name, untried_release=True).table.endswith("/test/flights")


@pytest.mark.wide
@pytest.mark.parametrize("mode", ["upsert", pytest.param("overwrite", marks=pytest.mark.matrix)])
def test_without_the_staging_catalog_the_whole_statement_is_granted_with_a_warning(
    *,
    harness: Harness,
    spark: SparkSession,
    table: Table,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    mode: Mode,
) -> None:
    monkeypatch.setattr(release, "ICEBERG", WITHOUT_HOOK)
    table.append((1, 1, "old"))
    sink = table.sink(mode)
    written: list[int] = []
    agent = harness.agent(
        At("commit-requested", lambda _: written.append(len(list(table.folder.rglob("*.parquet")))))
    )
    write = harness.gate().foreach_batch(sink, writer="w")

    for note in ("new", "replayed"):
        write(changes(spark, (1, 1, note)), 0)

    assert written == [1], "nothing is written before the grant"
    assert table.rows() == [(1, 1, "new")]
    versions = {event.version for event in agent.wait_for("commit-completed", 2)}
    assert versions == {sink.committed("w", 0)}
    (warning,) = [record for record in caplog.messages if record.startswith("iceberg.whole-statements")]
    assert "has no org.apache.iceberg.spark.Missing" in warning


@pytest.mark.wide
def test_whole_statements_are_refused_in_a_rest_catalog(
    spark: SparkSession, tmp_path: Path, rest: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "ICEBERG", WITHOUT_HOOK)
    table = Table(spark, tmp_path, COLUMNS, "day", catalog={"type": "rest", "uri": rest.endpoint})

    with pytest.raises(
        UnsupportedSpark,
        match=r"no org.apache.iceberg.spark.Missing, so .* answers 409 to a request that it has carried out",
    ):
        IcebergSink(table.name)


@pytest.mark.wide
def test_without_the_class_of_the_staged_table_whole_statements_are_granted_if_they_can_be_labelled(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    missing = {"org.apache.iceberg.LakewardenMissing": "org.apache.iceberg.BaseTable"}
    monkeypatch.setattr(release, "NEIGHBOURS", missing)
    table = Table(spark, tmp_path, COLUMNS, "day")

    IcebergSink(table.name)
    (warning,) = [record for record in caplog.messages if record.startswith("iceberg.whole-statements")]
    assert "org.apache.iceberg.LakewardenMissing can't be defined" in warning

    monkeypatch.setenv("PYSPARK_PIN_THREAD", "false")
    with pytest.raises(UnsupportedSpark, match=r"can't be defined.* doesn't pin its threads.* start the job"):
        IcebergSink(table.name)


@pytest.mark.wide
def test_what_the_sink_cannot_write_is_refused_with_what_to_change(
    harness: Harness, spark: SparkSession, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="no Iceberg table of this name"):
        IcebergSink(f"{table.name}_missing")
    with pytest.raises(ValueError, match=r"\.snapshots' is a metadata table"):
        IcebergSink(f"{table.name}.snapshots")
    sink = table.sink()
    with pytest.raises(ValueError, match=r"the table has no columns \['other'\]"):
        sink.scope(changes(spark, (1, 1, "x"), columns="day int, id long, other string"))
    with pytest.raises(ValueError, match=r"the batch lacks columns \['day'\]"):
        sink.scope(changes(spark, (1, "x"), columns="id long, note string"))
    table.alter("SET TBLPROPERTIES ('write.spark.accept-any-schema'='true')")
    with pytest.raises(ValueError, match="Spark resolves no columns of a MERGE: unset it"):
        sink.scope(changes(spark, (1, 1), columns="day int, id long"))
    table.alter("UNSET TBLPROPERTIES ('write.spark.accept-any-schema')")
    table.alter("CREATE BRANCH dev")
    with pytest.raises(
        ValueError, match=r"'branch_dev' is a branch, a tag or a time of .* writes the main branch only"
    ):
        IcebergSink(f"{table.name}.branch_dev")
    java, types = load(spark, table.name), java_type(spark, "org.apache.iceberg.types.Types$UUIDType")
    java.updateSchema().addColumn("device", types.get()).commit()
    harness.agent(grant_everything)
    with pytest.raises(ValueError, match=r"can't be stored; Invalid UUID string: no; table="):
        harness.gate().foreach_batch(table.sink(), writer="w")(
            changes(spark, (1, 1, "no"), columns="day int, id long, device string"), 0
        )
    sink = IcebergSink(table.name, mode="upsert", keys=["device"])
    device = "0F8FAD5B-D9CB-469F-A165-70867728950E"
    columns = "day int, id long, device string"
    assert sink.scope(changes(spark, (1, 1, device.lower()), columns=columns)) is not None
    with pytest.raises(ValueError, match=f"and uuid in the table, which stores another .*: {device}"):
        sink.scope(changes(spark, (1, 1, device), columns=columns))
    java.updateSpec().addField("device").commit()
    with pytest.raises(ValueError, match="the partition field device is identity of device, a uuid"):
        IcebergSink(table.name)
    java.updateSchema().addColumn(
        "at", java_type(spark, "org.apache.iceberg.types.Types$TimeType").get()
    ).commit()
    with pytest.raises(ValueError, match=r"can't write: .*does not support time fields; drop the column"):
        IcebergSink(table.name)
    monkeypatch.setattr("lakewarden.spark_jobs.sinks.iceberg.table.NEWEST_FORMAT", 1)
    with pytest.raises(ValueError, match=f"format version {ICEBERG_FORMAT}, which was not tried"):
        IcebergSink(table.name)
