"""Upserts into Paimon tables with a primary key: on real tables and Spark tasks, alone and against each other."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from lakewarden.events import DecisionEventUnion, Marker, WriterEventUnion
from lakewarden.spark_jobs import CommitGate, PaimonSink
from lakewarden.spark_jobs.gate.transaction import Transaction
from lakewarden.spark_jobs.sinks.paimon.table import address
from tests.spark.conftest import MakeTable, commit_alone, data_files_of, rows_of, snapshots_of
from tests.spark.fake_agent import At, aborted, grant_everything
from tests.spark.harness import Harness
from tests.unit.spark_jobs.sinks.test_paimon_primary_key import FLIGHTS

pytestmark = [pytest.mark.real]

COLUMNS = "day int, flight long, gate string, delay long, kind string"

Frame = Callable[..., DataFrame]


@pytest.fixture
def flights(spark: SparkSession) -> Frame:
    def make(*rows: tuple[int, int, str | None, int | None, str]) -> DataFrame:
        return spark.createDataFrame(list(rows), COLUMNS)

    return make


@pytest.fixture
def keyed(make_table: MakeTable) -> MakeTable:
    """A function that creates a table with the primary key (day, flight), partitioned by day, with two buckets."""

    def make(**options: str) -> str:
        return make_table(
            partition_keys=("day",),
            schema=FLIGHTS,
            primary_keys=("day", "flight"),
            **({"bucket": "2"} | options),
        )

    return make


def test_an_upsert_publishes_its_buckets_first_and_commits_one_snapshot(
    harness: Harness, keyed: MakeTable, flights: Frame
) -> None:
    agent, table = harness.agent(grant_everything), keyed()
    write = harness.gate().foreach_batch(PaimonSink(table, mode="upsert"), writer="w", admission="optimistic")

    write(flights(*((day, number, "a", 1, "+I") for day in (1, 2) for number in range(8))), 0)
    write(flights((1, 3, "b", 2, "+I"), (2, 5, "c", None, "+I")), 1)

    rows = {(row["day"], row["flight"]): (row["gate"], row["delay"]) for row in rows_of(table)}
    assert len(rows) == 16
    assert (rows.pop((1, 3)), rows.pop((2, 5))) == (("b", 2), ("c", None))
    assert set(rows.values()) == {("a", 1)}
    first, second = agent.wait_for("marker-created", 2)
    assert set(first.markers) == {
        Marker(partition=f"day={day}", file_group=f"bucket-{bucket}", operation="merge")
        for day in (1, 2)
        for bucket in (0, 1)
    }
    assert len(second.markers) == 2
    assert agent.wait_for("commit-intent")[0].conflict_rule == "ordered"
    assert agent.types().index("marker-created") < agent.types().index("commit-requested")
    assert [snapshot.commit_kind for snapshot in snapshots_of(table)] == ["APPEND", "APPEND"]
    assert len(data_files_of(table)) == 4 + 2


@pytest.mark.wide
def test_deletes_and_order_within_a_batch(harness: Harness, keyed: MakeTable, flights: Frame) -> None:
    """The greatest row of a key by `order_by` is the last one. It may be a delete, of a key that was never there, too."""
    harness.agent(grant_everything)
    table = keyed(**{"rowkind.field": "kind"})
    sink = PaimonSink(table, mode="upsert", order_by="delay")
    write = harness.gate().foreach_batch(sink, writer="w")

    write(flights((1, 1, "late", 9, "+U"), (1, 1, "early", 3, "+I"), (1, 2, "x", 1, "-D")), 0)
    write(flights((1, 3, "a", 1, "+I"), (1, 3, "a", 2, "-D"), (1, 4, "b", 2, "+I"), (1, 4, "b", 1, "-D")), 1)
    write(flights((1, 1, None, 10, "-D"), (1, 3, "again", 3, "+I")), 2)

    assert [(row["flight"], row["gate"]) for row in rows_of(table)] == [(3, "again"), (4, "b")]


@pytest.mark.wide
def test_a_batch_may_lack_columns_only_if_the_merge_engine_keeps_them(
    harness: Harness, keyed: MakeTable, flights: Frame, spark: SparkSession
) -> None:
    harness.agent(grant_everything)
    table = keyed(**{"merge-engine": "partial-update"})
    sink = PaimonSink(table, mode="upsert", keys=["flight"])
    write = harness.gate().foreach_batch(sink, writer="w")

    write(flights((1, 1, "a", None, "+I")).drop("delay"), 0)
    write(spark.sql("select 1 day, 1 flight, 7 delay union all select 1, 2, 8"), 1)

    assert [(row["gate"], row["delay"]) for row in rows_of(table)] == [("a", 7), (None, 8)]


@pytest.mark.wide
def test_batches_that_are_refused(
    harness: Harness, make_table: MakeTable, keyed: MakeTable, spark: SparkSession
) -> None:
    harness.agent(grant_everything)
    table = keyed()
    with pytest.raises(
        ValueError, match=r"lacks columns \['gate', 'delay', 'kind'\], and merge-engine=dedup"
    ):
        PaimonSink(table, mode="upsert").plan(spark.sql("select 1 day, 1 flight"))
    with pytest.raises(ValueError, match="write it with mode='upsert'"):
        harness.gate().foreach_batch(PaimonSink(table), writer="w")(spark.sql("select 1 day, 1 flight"), 0)
    with pytest.raises(ValueError, match="the table has no primary key: give `keys`"):
        PaimonSink(make_table("append"), mode="upsert").plan(spark.sql("select 1 day"))


@pytest.mark.wide
def test_an_aborted_upsert_leaves_nothing_and_its_retry_is_newer_than_the_winner(
    harness: Harness, keyed: MakeTable, flights: Frame
) -> None:
    """The winner commits after this batch was staged. The retry reads a newer snapshot, so its rows are newer."""
    table = keyed()
    rows = flights(*((1, 1, f"{n}", n, "+I") for n in range(9)), (1, 2, "winner", 1, "+I")).toArrow()

    def overtaken(event: WriterEventUnion) -> list[DecisionEventUnion]:
        commit_alone(table, rows.to_pylist())
        return [aborted(event)]

    harness.agent(At("commit-requested", overtaken))
    write = harness.gate().foreach_batch(PaimonSink(table, mode="upsert"), writer="w", admission="optimistic")
    write(flights((1, 1, "retry", 1, "+I"), (1, 2, "retry", 1, "+I")), 0)

    assert [row["gate"] for row in rows_of(table)] == ["retry", "retry"]
    assert len(snapshots_of(table)) == 2
    splits = address(table).open().new_read_builder().new_scan().plan().splits()
    assert data_files_of(table) == {file.file_name for split in splits for file in split.files}


@pytest.mark.wide
@pytest.mark.parametrize("admission", ["optimistic", "queued"])
def test_overlapping_writers_leave_no_torn_result(
    another_gate: Callable[..., CommitGate], keyed: MakeTable, spark: SparkSession, admission: Any
) -> None:
    """Two drivers write all keys in each batch, with their label. Readers see one label, that of the last commit."""
    table = keyed()

    def drive(writer: str) -> None:
        write = another_gate().foreach_batch(
            PaimonSink(table, mode="upsert"), writer=writer, admission=admission, max_attempts=50
        )
        for batch in range(3):
            label = f"{writer}-{batch}"
            rows = [(1, number, label, batch, "+I") for number in range(20)]
            write(spark.createDataFrame(rows, COLUMNS), batch)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(drive, "ab"))

    commits = [(snapshot.commit_user, snapshot.commit_identifier) for snapshot in snapshots_of(table)]
    assert sorted(commits) == [(writer, batch) for writer in "ab" for batch in range(3)]
    user, identifier = commits[-1]
    assert {row["gate"] for row in rows_of(table)} == {f"{user}-{identifier}"}


@pytest.mark.wide
def test_overlapping_sums_neither_wait_nor_abort(gate: CommitGate, keyed: MakeTable, flights: Frame) -> None:
    """Another driver commits to the same bucket while this transaction is open: no order of sums matters."""
    table = keyed(
        **{
            "merge-engine": "aggregation",
            "fields.default-aggregate-function": "max",
            "fields.delay.aggregate-function": "sum",
        }
    )
    sink, other = PaimonSink(table, mode="upsert"), PaimonSink(table, mode="upsert")
    assert sink.conflict_rule == "deleted-file"
    with gate.transaction(table=table, writer="a", batch_id=0, conflict_rule=sink.conflict_rule) as txn:
        Context().run(gate.foreach_batch(other, writer="b", max_attempts=1), flights((1, 1, "b", 2, "+I")), 0)
        sink(flights((1, 1, "a", 1, "+I")), txn)

    assert [(row["gate"], row["delay"]) for row in rows_of(table)] == [("b", 3)]
    assert len(snapshots_of(table)) == 2


@pytest.mark.wide
def test_an_upsert_that_touches_a_bucket_after_a_later_one_is_computed_again(
    gate: CommitGate, keyed: MakeTable, flights: Frame
) -> None:
    """Its rows would count as older ones. The retry has a later turn."""
    table = keyed()
    sink, other = PaimonSink(table, mode="upsert"), PaimonSink(table, mode="upsert")
    turns = []

    def overtaken(batch: DataFrame, txn: Transaction) -> None:
        turns.append(txn.turn)
        if len(turns) == 1:
            Context().run(
                gate.foreach_batch(other, writer="b", max_attempts=1), flights((1, 1, "b", 2, "+I")), 0
            )
        sink(batch, txn)

    write = gate.foreach_batch(
        overtaken, table=table, writer="a", conflict_rule=sink.conflict_rule, admission="optimistic"
    )
    write(flights((1, 1, "a", 1, "+I")), 0)

    assert turns == [0, 0]
    assert [row["gate"] for row in rows_of(table)] == ["a"]


TWO_KEYS_A_BUCKET = {"bucket": "-1", "dynamic-bucket.target-row-num": "2"}


@pytest.mark.wide
@pytest.mark.parametrize("admission", ["optimistic", "auto"])
def test_no_key_is_in_two_dynamic_buckets(
    gate: CommitGate, keyed: MakeTable, flights: Frame, admission: Any
) -> None:
    """While one transaction is open, another driver adds the same new keys in another order, so in other buckets."""
    table = keyed(**TWO_KEYS_A_BUCKET)
    sink, other = PaimonSink(table, mode="upsert"), PaimonSink(table, mode="upsert")
    assert sink.conflict_rule == "file-group"
    overtaken = iter([True])

    def staged(batch: DataFrame, txn: Transaction) -> None:
        if next(overtaken, False) and admission == "optimistic":
            write_other(flights(*((1, number, "b", 2, "+I") for number in range(9, 0, -1))), 0)
        sink(batch, txn)

    write_other = gate.foreach_batch(other, writer="b", max_attempts=1, admission=admission)
    write = gate.foreach_batch(
        staged, table=table, writer="a", conflict_rule=sink.conflict_rule, admission="optimistic"
    )
    write(flights(*((1, number, "a", 1, "+I") for number in range(1, 10))), 0)
    write_other(flights(*((1, number, "b", 2, "+I") for number in range(12, 5, -1))), 1)

    rows = {row["flight"]: row["gate"] for row in rows_of(table)}
    assert rows == {number: "a" if number < 6 else "b" for number in range(1, 13)}
    assert len(rows_of(table)) == 12


@pytest.mark.wide
def test_an_index_that_a_writer_without_the_gate_changed_is_read_again(
    harness: Harness, keyed: MakeTable, flights: Frame
) -> None:
    table = keyed(**TWO_KEYS_A_BUCKET)
    rows = flights(*((1, number, "foreign", 1, "+I") for number in range(9, 0, -1))).toArrow()

    def overtaken(_event: object) -> None:
        commit_alone(table, rows.to_pylist())

    agent = harness.agent(At("commit-requested", overtaken))
    write = harness.gate().foreach_batch(PaimonSink(table, mode="upsert"), writer="w", admission="optimistic")
    write(flights(*((1, number, "w", 1, "+I") for number in range(1, 10))), 0)

    assert [(row["flight"], row["gate"]) for row in rows_of(table)] == [(n, "w") for n in range(1, 10)]
    whole_partition = (Marker(partition="day=1", file_group="*", operation="append"),)
    assert agent.wait_for("marker-created")[0].markers == whole_partition
    assert [intent.scope for intent in agent.wait_for("commit-intent", 2)] == [(), whole_partition]
    splits = address(table).open().new_read_builder().new_scan().plan().splits()
    assert data_files_of(table) == {file.file_name for split in splits for file in split.files}


@pytest.mark.wide
def test_a_transaction_with_a_laxer_rule_than_the_table_needs_is_refused(
    harness: Harness, keyed: MakeTable, flights: Frame
) -> None:
    harness.agent(grant_everything)
    sink = PaimonSink(keyed(), mode="upsert")
    write = harness.gate().foreach_batch(sink, writer="w", conflict_rule="deleted-file")

    with pytest.raises(ValueError, match="upserts into this table need 'ordered'"):
        write(flights((1, 1, "a", 1, "+I")), 0)
