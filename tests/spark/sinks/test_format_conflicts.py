"""What Delta's conflict check refuses under the grant, and what it lets through: the rows of docs/format-conflicts.md.

A rival commits while the writer `w` has its grant, as beside a driver that is suspended beyond its lease. The gate of most tests
grants everything, so it is Delta that finds the conflict.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from lakewarden.events import CommitIntent, TransactionAbandoned
from lakewarden.handlers.maker import Winner
from lakewarden.spark_jobs import CommitGate, DeltaSink, GateEvent, IcebergSink, Transaction
from lakewarden.spark_jobs.gate.errors import conflict_found
from lakewarden.spark_jobs.gate.scope import ALONE
from lakewarden.spark_jobs.sinks.delta.observer import CommitObserver
from lakewarden.spark_jobs.sinks.releases import minor, release_of
from tests.spark.formats import JARS, iceberg_name
from tests.spark.rows.memory_gate import MemoryGate
from tests.spark.sinks.cases import once

pytestmark = [pytest.mark.real]

AUTO_MERGE = "spark.databricks.delta.schema.autoMerge.enabled"

ALWAYS, BY_DEFAULT = (f", n bigint GENERATED {when} AS IDENTITY" for when in ("ALWAYS", "BY DEFAULT"))
NUMBERS = ", 7L AS n"

SETTLES = minor(release_of(JARS.get("delta", ""))) not in {"3.2", "3.3", "4.0"}
"""Whether Delta lets features be switched on beside a commit."""


FOREIGN, OURS = Winner("version 3: WRITE", None), Winner("version 3: WRITE", "t1")


@dataclass
class Scene:
    """A table with the columns `day` and `id`, in a session of one writer."""

    spark: SparkSession
    table: Path
    gate: CommitGate

    def rows(self, day: int, number: int, more: str = "") -> DataFrame:
        return self.spark.sql(f"SELECT {day} AS day, {number}L AS id {more}")

    def write(self, mode: Any, writer: str, rows: DataFrame, batch: int = 0, **options: Any) -> None:
        sink = DeltaSink(f"{self.table}", mode=mode, keys=["id"] if mode == "upsert" else [])
        self.gate.foreach_batch(sink, writer=writer, **options)(rows, batch)

    def sql(self, statement: str) -> None:
        self.spark.sql(statement.replace("TABLE_", f"delta.`{self.table}`"))

    def create(self, columns: str, rest: str) -> None:
        partitions = "" if "CLUSTER" in rest else "PARTITIONED BY (day)"
        self.sql(f"CREATE TABLE TABLE_ (day int, id bigint{columns}) USING delta {partitions} {rest}")
        for number in "12":  # two files, which OPTIMIZE joins
            self.sql("INSERT INTO TABLE_ (day, id) VALUES (1, NUMBER_)".replace("NUMBER_", number))


Rival = Callable[[Scene], object]


def gated(mode: str, day: int, more: str = "", writer: str = "rival") -> Rival:
    return lambda scene: scene.write(mode, writer, scene.rows(day, 20, more))


def stranger(statement: str) -> Rival:
    return lambda scene: scene.sql(statement)


def with_another_column(scene: Scene) -> None:
    scene.spark.conf.set(AUTO_MERGE, "true")
    scene.write("append", "rival", scene.rows(2, 20, ", 'x' AS extra"))


def altered_by_the_gate(scene: Scene) -> None:
    with scene.gate.transaction(table=f"{scene.table}", writer="rival") as txn, txn.commit() as grant:
        scene.sql("ALTER TABLE TABLE_ SET TBLPROPERTIES ('a'='b')")
        grant.version = "3"


def properties(text: str) -> str:
    return f"ALTER TABLE TABLE_ SET TBLPROPERTIES ({text})"


@dataclass(frozen=True)
class Case:
    mode: str
    rival: Rival
    winner: str | None = None
    """What the error says of the winner. None: both commits stand."""
    columns: str = ""
    rest: str = ""
    more: str = ""
    """What else the batch of `w` has."""


OF_GATE = r"conflicts with another commit of the gate \(version 3: .*job rival, transaction "
UNLABELLED = r"conflicts with a commit without the gate's label \(version 3: "
ROW_TRACKING, TIMESTAMPS = (
    f"TBLPROPERTIES ('delta.enable{name}'='true')" for name in ("RowTracking", "InCommitTimestamps")
)
INSERT = "INSERT INTO TABLE_ (day, id) VALUES (1, 20)"

CASES = {
    "numbers for two appends": Case("append", gated("append", 2), OF_GATE, ALWAYS),
    "numbers for upserts of two partitions": Case("upsert", gated("upsert", 2), OF_GATE, ALWAYS),
    "numbers for a stranger": Case("append", stranger(INSERT), f"{UNLABELLED}WRITE", ALWAYS),
    "numbers that the batches have": Case(
        "append", gated("append", 2, NUMBERS), None, BY_DEFAULT, "", NUMBERS
    ),
    "numbers that one batch has": Case("append", gated("append", 2), None, BY_DEFAULT, "", NUMBERS),
    "another column by the gate": Case("append", with_another_column, OF_GATE),
    "another column by a stranger": Case(
        "upsert", stranger("ALTER TABLE TABLE_ ADD COLUMN c int"), f"{UNLABELLED}ADD COLUMNS"
    ),
    "properties by a stranger": Case("append", stranger(properties("'a'='b'")), f"{UNLABELLED}SET TBL"),
    "properties by the gate": Case("append", altered_by_the_gate, f"{UNLABELLED}SET TBL"),
    "a feature that is dropped": Case(
        "append", stranger("ALTER TABLE TABLE_ DROP FEATURE rowTracking"), UNLABELLED, "", ROW_TRACKING
    ),
    "a feature that is switched on": Case(
        "upsert",
        stranger(properties("'delta.enableDeletionVectors'='true'")),
        None if SETTLES else UNLABELLED,
    ),
    "row tracking that is switched on": Case(
        "append", stranger(properties("'delta.enableRowTracking'='true'"))
    ),
    "row tracking": Case("append", gated("append", 2), None, "", ROW_TRACKING),
    "in-commit timestamps": Case("append", gated("append", 2), None, "", TIMESTAMPS),
    "clustering": Case("append", gated("append", 2), None, "", "CLUSTER BY (day)"),
    "other columns of the clustering": Case(
        "append", stranger("ALTER TABLE TABLE_ CLUSTER BY (id)"), None, "", "CLUSTER BY (day)"
    ),
    "a batch of the same writer": Case(
        "append",
        gated("append", 2, writer="w"),
        r"conflicts with another commit of the gate \(version 3: .*job w, transaction ",
    ),
    "one partition": Case("upsert", gated("upsert", 1), OF_GATE),
    "two partitions": Case("upsert", gated("upsert", 2)),
    "two partitions, serializable": Case(
        "upsert", gated("upsert", 2), None, "", "TBLPROPERTIES ('delta.isolationLevel'='Serializable')"
    ),
    "an upsert and an append": Case("upsert", stranger(INSERT), f"{UNLABELLED}WRITE"),
    "an append and an upsert": Case("append", gated("upsert", 1)),
    "files that are joined": Case("upsert", stranger("OPTIMIZE TABLE_"), f"{UNLABELLED}OPTIMIZE"),
}
IN_SHORT = {"numbers for two appends", "properties by the gate", "one partition"}


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in IN_SHORT else pytest.mark.wide) for each in CASES]
)
def test_a_commit_of_a_rival_under_the_grant(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """After a loss to the gate, the batch is computed again, alone. The error names no culprit without evidence."""
    case = CASES[name]
    with MemoryGate(tmp_path) as gate:
        scene = Scene(spark, tmp_path / "table", gate)
        scene.create(case.columns, case.rest)
        rival = Scene(spark.newSession(), scene.table, gate)

        def overtaken(check: Callable[..., Any], *arguments: Any) -> Any:
            with ThreadPoolExecutor(1) as thread:
                thread.submit(case.rival, rival).result()
            return check(*arguments)

        once(monkeypatch, CommitObserver, "_last_check", overtaken)
        number = 9 if case.columns else 1  # an upsert of 1 inserts no row, so it numbers none
        scene.write(case.mode, "w", scene.rows(1, number, case.more))
        of_w = [event for event in gate.events if event.writer == "w"]

    lost = [event for event in of_w if isinstance(event, TransactionAbandoned)]
    assert len(lost) == (0 if case.winner is None else 1), lost
    for each in lost:
        assert re.search(case.winner or "", each.reason), each.reason
        assert "bypass" not in each.reason
        by_gate = case.winner is not None and "of the gate" in case.winner
        assert each.cause == ("lost-to-gate" if by_gate else "base-changed")
        retry = [event for event in of_w if isinstance(event, CommitIntent)][-1]
        assert (retry.scope == (ALONE,)) == by_gate
        assert retry.conflict_rule == "file-group" or not by_gate


@pytest.mark.parametrize(
    ("mode", "admission"),
    [
        ("append", "auto"),
        pytest.param("upsert", "auto", marks=pytest.mark.wide),
        pytest.param("append", "optimistic", marks=pytest.mark.wide),
    ],
)
def test_writers_that_number_rows_take_turns(
    spark: SparkSession, tmp_path: Path, another_gate: Callable[..., CommitGate], mode: str, admission: str
) -> None:
    """With the product's own agent. Delta would let one of two commits pass, whatever their partitions are."""
    events: list[GateEvent] = []
    gate = another_gate(observer=events.append)
    Scene(spark, tmp_path / "table", gate).create(ALWAYS, "")

    def run(day: int) -> None:
        scene = Scene(spark.newSession(), tmp_path / "table", gate)
        for batch in range(3):
            scene.write(mode, f"w{day}", scene.rows(day, 10 + batch), batch, admission=admission)

    with ThreadPoolExecutor(2) as threads:
        finished(threads.submit(run, day) for day in (2, 3))

    found = spark.read.format("delta").load(f"{tmp_path}/table").where("day > 1").collect()
    assert (len(found), len({row.n for row in found})) == (6, 6)
    assert [event for event in events if event.what == "abandoned"] == [], "Delta found a conflict"
    if admission == "auto":
        assert {event.attempt for event in events} == {1}


@pytest.mark.parametrize(
    ("errors", "scopes"),
    [
        ((FOREIGN,), [(), ()]),
        ((FOREIGN, FOREIGN, FOREIGN), [(), (), (ALONE,), (ALONE,)]),
        ((OURS,), [(), (ALONE,)]),
        ((OURS, FOREIGN), [(), (ALONE,), (ALONE,)]),
    ],
)
def test_a_batch_that_the_format_refuses_is_soon_alone_on_its_table(
    spark: SparkSession, tmp_path: Path, errors: tuple[Winner, ...], scopes: list[Any]
) -> None:
    """Whatever the reason is that no marker shows: two writers don't refute each other for ever."""
    left = list(errors)

    def write(_: DataFrame, txn: Transaction) -> None:
        with txn.commit():
            if left:
                raise conflict_found("refused", "", left.pop(0))

    with MemoryGate(tmp_path) as gate:
        each = gate.foreach_batch(write, writer="w", table="s3://lake/t", conflict_rule="deleted-file")
        each(spark.range(1), 0)
        intents = [event for event in gate.events if isinstance(event, CommitIntent)]

    assert [intent.scope for intent in intents] == scopes
    alone = ["it declares the whole table" in (intent.admission_reason or "") for intent in intents]
    assert alone == [scope == (ALONE,) for scope in scopes]
    assert {intent.conflict_rule for intent in intents if intent.scope} <= {"file-group"}


def finished(futures: Iterable[Any]) -> None:
    for each in list(futures):
        each.result()


@pytest.mark.parametrize("table_format", [each for each in ("delta", "iceberg") if each in JARS])
@pytest.mark.parametrize(
    ("second", "declared"),
    [("id % 3", 100), ("id % 3", 303), ("id", ALONE)],
)
def test_an_upsert_declares_all_partitions_that_its_condition_covers(
    spark: SparkSession, tmp_path: Path, table_format: str, second: str, declared: Any
) -> None:
    """Otherwise each of two upserts of other combinations would lose to the other at the format's check, batch after batch."""
    path = tmp_path / "ns" / "table"
    name = f"delta.`{path}`" if table_format == "delta" else iceberg_name(spark, path)
    spark.sql(
        f"CREATE TABLE {name} (a bigint, b bigint, id bigint) USING {table_format} PARTITIONED BY (a, b)"
    )
    sink = (
        DeltaSink(f"{path}", mode="upsert", keys=["id"])
        if table_format == "delta"
        else IcebergSink(name, mode="upsert", keys=["id"])
    )

    rows = spark.range(100 if declared == 100 else 101).selectExpr("id AS a", f"{second} AS b", "id")
    scope = sink.plan(rows).scope

    assert scope is not None
    if declared is ALONE:
        assert scope.markers == (ALONE,)
    else:
        assert len(scope.markers) == declared
        assert ("a=0/b=2" in {marker.partition for marker in scope.markers}) == (declared > 100)
