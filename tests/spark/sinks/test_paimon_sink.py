"""The sink on real Paimon tables and real Spark tasks, with an agent that follows a script."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pypaimon import CatalogFactory, Schema
from pypaimon.schema.schema_change import SchemaChange
from pyspark.sql import DataFrame, SparkSession

from lakewarden.events import DecisionEventUnion, Marker
from lakewarden.spark_jobs import BaseChanged, CommitAborted, CommitReplaced, PaimonSink
from lakewarden.spark_jobs.sinks.paimon import sink as sink_module, ways
from lakewarden.spark_jobs.sinks.paimon.base import find_commit
from lakewarden.spark_jobs.sinks.paimon.commit import sweep
from lakewarden.spark_jobs.sinks.paimon.frames import stage_files
from lakewarden.spark_jobs.sinks.paimon.sink import Mode
from lakewarden.spark_jobs.sinks.paimon.snapshot_store import LinkedSnapshots
from lakewarden.spark_jobs.sinks.paimon.table import address
from tests.spark.conftest import MakeTable, commit_alone, data_files_of, rows_of, snapshots_of
from tests.spark.fake_agent import At, FakeAgent, aborted, grant_everything
from tests.spark.harness import Harness
from tests.waiting import wait_until

pytestmark = [pytest.mark.real]

Frame = Callable[..., DataFrame]


@pytest.fixture
def departures(spark: SparkSession) -> Frame:
    def make(*rows: tuple[int, int | None, int, str]) -> DataFrame:
        return spark.createDataFrame(list(rows), "month int, day int, flight long, departure string")

    return make


@pytest.fixture
def arrivals(spark: SparkSession) -> Frame:
    def make(*rows: tuple[int, int, int, str]) -> DataFrame:
        return spark.createDataFrame(list(rows), "month int, day int, flight long, arrival string")

    return make


@pytest.fixture
def table(make_table: MakeTable) -> str:
    """A table of flights, partitioned by month and day."""
    return make_table()


def replaced_later(table: str, number: int) -> Callable[[], None]:
    """Take away the newest snapshot, a foreign writer's, as if it had only looked for its id. Return what puts it back."""
    snapshot = Path(table) / "snapshot" / f"snapshot-{number}"
    foreign = snapshot.read_text()
    snapshot.unlink()
    hint = snapshot.with_name("LATEST")
    if number > 1:
        hint.write_text(str(number - 1))
    else:
        hint.unlink()

    def put() -> None:
        replacement = snapshot.with_name("replacement")
        replacement.write_text(foreign)
        replacement.replace(snapshot)

    return put


def writing(
    harness: Harness, table: str, mode: Mode = "upsert", **options: Any
) -> Callable[[DataFrame, int], None]:
    """The function for `foreachBatch` that writes flights, as the writer `w`."""
    sink = PaimonSink(table, mode=mode, keys=["flight"] if mode == "upsert" else ())
    return harness.gate().foreach_batch(sink, **({"writer": "w"} | options))


def after_staging(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Run `action` each time when the files of a batch are staged."""

    def staged(rows: DataFrame, staging: Any) -> list[Any]:
        messages = stage_files(rows, staging)
        action()
        return messages

    monkeypatch.setattr(ways, "stage_files", staged)


def foreign_overwrite(table: str, flight: int) -> None:
    """Replace the partition of January 1 as a writer that uses no agent."""
    row = {"month": 1, "day": 1, "flight": flight, "departure": "foreign"}
    commit_alone(table, [row], overwrite={"month": "1", "day": "1"})


def test_append_adds_rows_and_publishes_their_markers_first(
    harness: Harness, table: str, departures: Frame, agent: FakeAgent
) -> None:
    write = writing(harness, table, "append", writer="departures")

    write(departures((1, 1, 10, "05:17"), (1, 2, 11, "05:33")), 0)

    assert [(row["day"], row["flight"], row["departure"], row["arrival"]) for row in rows_of(table)] == [
        (1, 10, "05:17", None),
        (2, 11, "05:33", None),
    ]
    agent.wait_for("commit-completed")
    touched = {marker for event in agent.wait_for("marker-created") for marker in event.markers}
    assert touched == {
        Marker(partition=f"month=1/day={day}", file_group="bucket-0", operation="create") for day in (1, 2)
    }
    assert agent.wait_for("commit-intent")[0].conflict_rule == "deleted-file"
    assert agent.types().index("marker-created") < agent.types().index("commit-requested")
    snapshot = snapshots_of(table)[-1]
    assert agent.wait_for("commit-completed")[0].version == str(snapshot.id)
    assert (snapshot.commit_user, snapshot.commit_identifier) == ("departures", 0)
    names = {"lakewarden.committed", "lakewarden.token", "lakewarden.transaction"}
    assert set(snapshot.properties) == names
    assert snapshot.properties["lakewarden.committed"] == '{"departures":[0,1]}'


def test_upsert_keeps_columns_that_the_batch_does_not_have(
    harness: Harness, table: str, departures: Frame, arrivals: Frame, agent: FakeAgent
) -> None:
    """Two feeds of the same flights have half of the columns each. Three partitions are rewritten in one snapshot."""
    sink, gate = PaimonSink(table, mode="upsert", keys=["flight"]), harness.gate()
    leave = gate.foreach_batch(sink, writer="departures", admission="optimistic")
    land = gate.foreach_batch(sink, writer="arrivals", admission="optimistic")

    leave(departures((1, 1, 10, "a"), (1, 2, 10, "b"), (2, 1, 12, "c")), 0)
    land(arrivals((1, 1, 10, "x"), (1, 2, 10, "y"), (2, 1, 99, "z")), 0)
    leave(departures((1, 1, 10, "late")), 1)

    assert [(r["month"], r["day"], r["flight"], r["departure"], r["arrival"]) for r in rows_of(table)] == [
        (1, 1, 10, "late", "x"),
        (1, 2, 10, "b", "y"),
        (2, 1, 12, "c", None),
        (2, 1, 99, None, "z"),
    ]
    assert [snapshot.commit_kind for snapshot in snapshots_of(table)] == ["APPEND", "OVERWRITE", "OVERWRITE"]
    markers = agent.wait_for("marker-created", 3)[1].markers
    assert set(markers) == {
        Marker(partition=path, file_group="*", operation="merge")
        for path in ("month=1/day=1", "month=1/day=2", "month=2/day=1")
    }


@pytest.mark.wide
def test_files_of_cancelled_tasks_are_removed(harness: Harness, table: str, spark: SparkSession) -> None:
    """One task has staged its file when the abort cancels the job. Its commit message is lost."""

    def fast_and_slow(batches: Any) -> Any:
        for batch in batches:
            if 1 in batch.column("flight").to_pylist():
                time.sleep(600)  # until it is cancelled
            yield batch

    def conflicting(event: Any) -> list[DecisionEventUnion]:
        wait_until(lambda: data_files_of(table))
        return [aborted(event, *event.markers, retriable=False)]

    harness.agent(At("marker-created", conflicting))
    sink = PaimonSink(table)
    schema = "month int, day int, flight long"
    frame = (
        spark.range(0, 2, 1, 2)
        .selectExpr("1 month", "int(id) day", "id flight")
        .mapInArrow(fast_and_slow, schema)
    )

    with pytest.raises(CommitAborted):
        harness.gate().foreach_batch(sink, writer="w")(frame, 0)

    assert data_files_of(table) == set()


@pytest.mark.wide
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_staged_files_are_removed_after_the_jobs_of_the_batch_have_ended(
    harness: Harness, table: str, departures: Frame, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    """A clean-up in the body would miss the files of a task that is still being cancelled. The jobs' tag shows the body."""
    agent = harness.agent(At("commit-requested", lambda event: [aborted(event)]))
    frame = departures((1, 1, 1, "a"))
    removed_under: list[set[str]] = []

    def recording(*args: Any) -> int:
        tags = frame.sparkSession.sparkContext.getJobTags()
        removed_under.append({tag for tag in tags if tag.startswith("lakewarden-")})
        return sweep(*args)

    monkeypatch.setattr(sink_module, "sweep", recording)
    write = writing(harness, table, mode, admission="optimistic", max_attempts=1)
    with pytest.raises(CommitAborted):
        write(frame, 0)

    assert removed_under == [set()]
    assert data_files_of(table) == set()
    assert agent.types()[-1] == "commit-requested"


@pytest.mark.wide
def test_a_foreign_commit_to_the_base_is_found_and_not_overwritten(
    harness: Harness, table: str, departures: Frame
) -> None:
    """It comes between the read of the base and the commit. Its row stays, and the batch is computed again."""
    row = {"month": 1, "day": 1, "flight": 77, "departure": "foreign"}
    agent = harness.agent(At("commit-requested", lambda _: commit_alone(table, [row])))
    write = writing(harness, table, writer="departures", admission="optimistic")

    write(departures((1, 1, 10, "mine"), (1, 2, 11, "mine")), 0)

    assert [(row["flight"], row["departure"]) for row in rows_of(table)] == [
        (10, "mine"),
        (77, "foreign"),
        (11, "mine"),
    ]
    reason = agent.wait_for("transaction-abandoned")[0].reason
    assert "BaseChanged" in reason
    assert "1 files were added and 0 removed" in reason
    foreign = snapshots_of(table)[0].commit_user
    assert f"commit user '{foreign}' changed month=1/day=1/bucket-0/data-" in reason
    intents = agent.wait_for("commit-intent", 2)
    assert [intent.admission for intent in intents] == ["optimistic", "queued"]
    assert {marker.partition for marker in intents[1].scope} == {"month=1/day=1", "month=1/day=2"}
    assert len(data_files_of(table)) == 1 + 2, "the foreign file, now replaced, and two of the second attempt"


@pytest.mark.wide
def test_a_rewritten_base_is_a_retriable_error(harness: Harness, table: str, departures: Frame) -> None:
    """A foreign writer rewrites the partition while this one waits for its grant."""
    commit_alone(table, [{"month": 1, "day": 1, "flight": 1, "departure": "old"}])
    harness.agent(At("commit-requested", lambda _: foreign_overwrite(table, 2)))
    with pytest.raises(BaseChanged) as caught:
        writing(harness, table, max_attempts=1)(departures((1, 1, 1, "n")), 0)

    assert caught.value.retriable
    foreign = snapshots_of(table)[-1].commit_user
    assert re.search(
        rf"1 files were added and 1 removed .* commit user '{foreign}' changed month=1/day=1/bucket-0/data-[^,]*\.parquet, "
        rf"month=1/day=1/bucket-0/data-.*; nothing was published; .* writer=w ",
        str(caught.value),
    )
    assert [row["departure"] for row in rows_of(table)] == ["foreign"]


@pytest.mark.wide
def test_a_base_that_changed_during_the_rewrite_is_found_before_the_request(
    harness: Harness, table: str, departures: Frame, monkeypatch: pytest.MonkeyPatch, agent: FakeAgent
) -> None:
    """The writer doesn't wait for a grant that it could not use."""
    after_staging(monkeypatch, lambda: commit_alone(table, [{"month": 1, "day": 1, "flight": 77}]))
    with pytest.raises(BaseChanged):
        writing(harness, table, admission="optimistic", max_attempts=1)(departures((1, 1, 1, "n")), 0)

    agent.wait_for("transaction-abandoned")
    assert agent.types() == ["commit-intent", "marker-created", "transaction-abandoned"]


@pytest.mark.wide
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_if_another_commit_took_the_snapshot_id_the_next_one_is_tried_under_the_same_grant(
    harness: Harness, table: str, departures: Frame, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    """Two writers of different partitions race for one snapshot id. No transaction is aborted."""
    harness.agent(grant_everything)
    put, tries = LinkedSnapshots.put_if_absent, []

    def overtaken(self: Any, name: str, body: bytes) -> Any:
        tries.append(name)
        if len(tries) == 1:
            commit_alone(table, [{"month": 9, "day": 9, "flight": 9}])
        return put(self, name, body)

    monkeypatch.setattr(LinkedSnapshots, "put_if_absent", overtaken)
    writing(harness, table, mode)(departures((1, 1, 1, "a")), 0)

    assert tries == ["snapshot-1", "snapshot-2"]
    assert "abandoned" not in harness.steps()
    assert [row["flight"] for row in rows_of(table)] == [1, 9]
    assert harness.steps().count("completed") == 1


@pytest.mark.wide
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_batch_whose_snapshot_a_foreign_writer_replaced_is_committed_again_before_the_next(
    harness: Harness, table: str, departures: Frame, mode: Mode, agent: FakeAgent
) -> None:
    """Java Paimon on S3 looks for the id, and copies its snapshot there later, without a condition."""
    write = writing(harness, table, mode, admission="optimistic")
    commit_alone(table, [{"month": 2, "day": 1, "flight": 7}])
    replace = replaced_later(table, 1)
    write(departures((1, 1, 1, "a")), 0)
    replace()
    assert [row["flight"] for row in rows_of(table)] == [7], "the acknowledged batch is lost"

    write(departures((1, 2, 2, "b")), 1)

    assert sorted(row["flight"] for row in rows_of(table)) == [1, 2, 7]
    commits = [(snapshot.commit_user, snapshot.commit_identifier) for snapshot in snapshots_of(table)]
    assert commits[1:] == [("w", 0), ("w", 1)]
    assert agent.wait_for("commit-completed", 2)[1].version == "3"


@pytest.mark.wide
def test_a_replaced_batch_whose_base_is_gone_is_an_error(
    harness: Harness, table: str, departures: Frame
) -> None:
    """The files that the lost batch replaced were rewritten by the foreign writer."""
    harness.agent(grant_everything)
    commit_alone(table, [{"month": 1, "day": 1, "flight": 7}])
    foreign_overwrite(table, 8)
    replace = replaced_later(table, 2)
    write = writing(harness, table, admission="optimistic", max_attempts=1)
    write(departures((1, 1, 1, "a")), 0)
    replace()

    with pytest.raises(
        CommitReplaced,
        match=r"batch 0 was committed as snapshot 2, .*; its rows are lost: stop .*correct .* --writer w --batch-id none",
    ):
        write(departures((1, 2, 2, "b")), 1)

    assert [row["flight"] for row in rows_of(table)] == [8]
    write(departures((1, 2, 2, "b")), 1)
    assert [row["flight"] for row in rows_of(table)] == [8, 2]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_batch_that_was_rolled_back_stays_out_of_the_table(
    harness: Harness, table: str, departures: Frame, caplog: pytest.LogCaptureFixture, mode: Mode
) -> None:
    """Another gate user commits until the snapshot id exists again. No writer has replaced a snapshot."""
    harness.agent(grant_everything)
    commit_alone(table, [{"month": 1, "day": 1, "flight": 7}])
    writes = [writing(harness, table, mode, writer=f"w{at}") for at in range(2)]
    writes[0](departures((1, 1, 1, "rolled back")), 0)
    address(table).open().rollback_to(1)
    writes[1](departures((1, 1, 2, "b")), 0)

    writes[0](departures((1, 1, 3, "c")), 1)

    assert sorted(row["flight"] for row in rows_of(table)) == [2, 3, 7]
    assert [snapshot.commit_user for snapshot in snapshots_of(table)][1:] == ["w1", "w0"]
    assert "paimon.rolled-back" in caplog.text
    assert "bypasses the gate" not in caplog.text


def _rolled_back_and_replaced(table: str) -> None:
    """Another snapshot has the id of the base now."""
    address(table).open().rollback_to(1)
    commit_alone(table, [{"month": 1, "day": 1, "flight": 8, "departure": "b"}])


def _created_again(table: str) -> None:
    opened = address(table).open()
    catalog = CatalogFactory.create({"warehouse": str(Path(table).parents[1])})
    catalog.drop_table("test.flights", False)  # noqa: FBT003 - Paimon's
    fields = [field for field in opened.table_schema.fields if field.name != "arrival"]
    schema = Schema(fields, partition_keys=["month", "day"])
    catalog.create_table("test.flights", schema, ignore_if_exists=False)


def _with_another_column(table: str) -> None:
    catalog = CatalogFactory.create({"warehouse": str(Path(table).parents[1])})
    change = SchemaChange.rename_column("arrival", "landing")
    catalog.alter_table("test.flights", [change])


@pytest.mark.wide
@pytest.mark.parametrize(
    ("change", "mode", "when", "flights"),
    [
        (_rolled_back_and_replaced, "upsert", "staged", [1, 7, 8]),
        (_created_again, "upsert", "staged", [1]),
        (_created_again, "append", "staged", [1]),
        (_with_another_column, "upsert", "computing", [1, 5, 7]),
        (_with_another_column, "append", "computing", [1, 5, 7]),
    ],
)
def test_a_table_that_changes_under_a_batch(
    *,
    table: str,
    harness: Harness,
    departures: Frame,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[str], None],
    mode: Mode,
    flights: list[int],
    when: str,
) -> None:
    """The batch is computed again, where it must be. No rows are lost, doubled or unreadable."""
    harness.agent(grant_everything)
    commit_alone(table, [{"month": 1, "day": 1, "flight": 7}])
    commit_alone(table, [{"month": 1, "day": 1, "flight": 5}])
    changes = iter([change])

    def changing(rows: DataFrame, staging: Any) -> list[Any]:
        found = next(changes, None)
        if found is not None and when == "computing":
            found(table)
        messages = stage_files(rows, staging)
        if found is not None and when == "staged":
            found(table)
        return messages

    monkeypatch.setattr(ways, "stage_files", changing)

    writing(harness, table, mode)(departures((1, 1, 1, "a")), 0)

    assert sorted(row["flight"] for row in rows_of(table)) == flights


@pytest.mark.wide
def test_of_equal_keys_in_one_batch_the_greatest_row_remains(
    harness: Harness, table: str, departures: Frame
) -> None:
    harness.agent(grant_everything)
    batch = departures((1, 1, 1, "05:00"), (1, 1, 1, "07:00"), (1, 1, 1, "06:00"))
    writing(harness, table)(batch, 0)
    assert [row["departure"] for row in rows_of(table)] == ["07:00"]


@pytest.mark.wide
def test_an_unpartitioned_table_and_columns_of_other_types(
    harness: Harness, make_table: MakeTable, spark: SparkSession, agent: FakeAgent
) -> None:
    """Spark's instants become the table's timestamps without zone, ints are widened, and nulls in keys are equal."""
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us")), ("note", pa.string())])
    table = make_table("plain", partition_keys=(), schema=schema)
    sink = PaimonSink(table, mode="upsert", keys=["id"])
    write = harness.gate().foreach_batch(sink, writer="w", admission="optimistic")

    write(spark.sql("select int(1) id, timestamp'2013-01-01 05:17:00' at union all select null, null"), 0)
    write(spark.sql("select int(1) id, 'n1' note union all select null, 'n2'"), 1)

    assert [(row["id"], str(row["at"]), row["note"]) for row in rows_of(table)] == [
        (1, "2013-01-01 05:17:00", "n1"),
        (None, "None", "n2"),
    ]
    assert agent.wait_for("marker-created")[0].markers == (
        Marker(partition="", file_group="*", operation="merge"),
    )


def test_timestamps_are_rounded_down_to_the_digits_that_the_table_keeps(
    harness: Harness, agent: FakeAgent, make_table: MakeTable, spark: SparkSession
) -> None:
    """Before 1970, too, and in nested fields. An upsert finds its keys by what is stored."""
    moments = pa.struct([pa.field("at", pa.timestamp("ms"))])
    schema = pa.schema(
        [
            ("millis", pa.timestamp("ms")),
            ("seconds", pa.timestamp("s")),
            ("local", pa.timestamp("ms", tz="UTC")),
            ("nested", pa.list_(moments)),
            ("by name", pa.map_(pa.string(), moments)),
        ]
    )
    sink = PaimonSink(make_table("moments", partition_keys=(), schema=schema), mode="upsert", keys=["MILLIS"])
    write = harness.gate().foreach_batch(sink, writer="w")
    for batch_id, digits in enumerate(("123456", "123999")):
        moment = f"timestamp_ntz'1969-12-31 23:59:58.{digits}'"
        columns = f"{moment} millis, {moment} seconds, timestamp'1969-12-31 23:59:58.{digits}Z' local"
        nested = f"array(struct({moment} at), null) nested, map('a', struct({moment} at)) `by name`"
        write(spark.sql(f"select {columns}, {nested}"), batch_id)

    millis = datetime(1969, 12, 31, 23, 59, 58, 123_000)  # noqa: DTZ001 - without a zone
    assert rows_of(sink.table) == [
        {
            "millis": millis,
            "seconds": millis.replace(microsecond=0),
            "local": millis.replace(tzinfo=UTC),
            "nested": [{"at": millis}, None],
            "by name": [("a", {"at": millis})],
        }
    ]


@pytest.mark.wide
def test_a_null_partition_is_rewritten(
    harness: Harness, table: str, departures: Frame, agent: FakeAgent
) -> None:
    write = writing(harness, table, admission="optimistic")
    for batch_id in range(2):
        write(departures((1, None, 1, f"v{batch_id}")), batch_id)
    assert [row["departure"] for row in rows_of(table)] == ["v1"]
    assert agent.wait_for("marker-created")[0].markers[0].partition == "month=1/day=__DEFAULT_PARTITION__"


@pytest.mark.wide
def test_batches_and_tables_that_it_cannot_write_are_refused(
    harness: Harness, table: str, agent: FakeAgent, spark: SparkSession
) -> None:
    with pytest.raises(ValueError, match="give `keys` only for upsert"):
        PaimonSink("/lake/t", keys=["flight"])
    with pytest.raises(ValueError, match="mode 'merge' is none of append, upsert"):
        PaimonSink("/lake/t", mode="merge")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"metastore='rest': a catalog may keep .*; table=file:///lake/t"):
        PaimonSink("/lake/t", catalog_options={"metastore": "rest", "uri": "http://127.0.0.1"})
    with pytest.raises(ValueError, match=r"the table has no columns \['colour'\]"):
        writing(harness, table, "append")(spark.sql("select 1 month, 1 day, 'red' colour"), 0)
    with pytest.raises(ValueError, match=r"lacks key or partition columns \['day', 'flight'\]"):
        PaimonSink(table, mode="upsert", keys=["flight"]).plan(spark.sql("select 1 month"))


@pytest.mark.wide
def test_the_search_for_a_commit_ends_at_an_expired_snapshot(table: str) -> None:
    for number in range(3):
        commit_alone(table, [{"month": 1, "day": 1, "flight": number}])
    opened = address(table).open()
    newest = snapshots_of(table)[-1]
    assert find_commit(opened, newest.commit_user, newest.commit_identifier) == 3
    assert find_commit(opened, "unknown user", 1) is None
    (Path(table) / "snapshot" / "snapshot-1").unlink()  # expired
    assert find_commit(opened, "unknown user", 1) is None


@pytest.mark.wide
def test_a_scope_that_is_not_the_sinks_own_decides_no_rows(
    harness: Harness, table: str, departures: Frame, agent: FakeAgent
) -> None:
    """It only decides which transaction waits. The sink lists the partitions of the batch that it is given."""
    sink = PaimonSink(table, mode="upsert", keys=["flight"])
    gate, empty = harness.gate(), departures((1, 1, 1, "a")).limit(0)

    gate.foreach_batch(sink, writer="too-small", admission="queued", scope=lambda _: ["month=9/day=9"])(
        departures((1, 1, 1, "a"), (1, 2, 2, "b")), 0
    )
    gate.foreach_batch(
        lambda batch, txn: sink(batch.unionByName(departures((1, 3, 3, "c"))), txn),
        table=sink.table,
        writer="added",
        admission="queued",
        scope=sink.scope,
    )(empty, 0)

    assert [row["flight"] for row in rows_of(table)] == [1, 2, 3]
    touched = {m.partition for event in agent.wait_for("marker-created", 2) for m in event.markers}
    assert touched == {f"month=1/day={day}" for day in (1, 2, 3)}
