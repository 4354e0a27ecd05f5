"""What every sink must do: each batch in its table once, and nothing left of a transaction that didn't commit.

The same tests run for each sink in `cases.py`. `test_exactly_once.py` kills the drivers of the same sinks.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from lakewarden.events import (
    Admitted,
    CommitCompleted,
    CommitIntent,
    DecisionEventUnion,
    TransactionAbandoned,
    WriterEventUnion,
)
from lakewarden.spark_jobs import CommitAborted, GateError, OutcomeUnknown, Transaction
from lakewarden.spark_jobs.engine import cancelling
from lakewarden.spark_jobs.gate.outcome import BatchOutcome
from tests.spark.conftest import MakeTable
from tests.spark.fake_agent import (
    PATIENCE_SECONDS,
    At,
    FakeAgent,
    aborted,
    already_committed,
    grant_everything,
    in_edition,
)
from tests.spark.formats import CODE_GENERATION, lists_newest_only, session_settings
from tests.spark.harness import Harness
from tests.spark.sinks.cases import (
    CATALOGS,
    COLUMNS,
    SINKS,
    HudiCase,
    ParquetCase,
    SinkCase,
    batch_of,
    case as case,  # noqa: PLC0414 - a fixture
    make_case,
    once,
)
from tests.waiting import wait_until

pytestmark = [pytest.mark.real]


class Ledger:
    """A script that grants every batch but those up to the last committed one of their writer, as the agent's ledger has them."""

    def __init__(self) -> None:
        self.last: dict[str, int] = {}
        self._opened: dict[str, int] = {}
        self._editions: dict[str, str] = {}

    def __call__(self, event: WriterEventUnion, offset: int) -> list[DecisionEventUnion]:
        if isinstance(event, CommitIntent) and event.batch_id is not None:
            self._opened[event.transaction] = event.batch_id
            if event.batch_id <= self.last.get(event.writer, -1):
                return [already_committed(event)]
        if isinstance(event, CommitCompleted) and event.transaction in self._opened:
            self.last[event.writer] = self._opened[event.transaction]
        return in_edition(self._editions.get(event.writer), grant_everything(event, offset))

    def state(self, writer: str, last: int) -> None:
        """Enter the last batch of a writer. What is committed by now, also if it isn't read yet, doesn't count."""
        self._opened.clear()
        self.last[writer] = last

    def correct(self, lines: list[str]) -> None:
        """Do what the last of these lines says, and nothing else. The command lowers the ledger's batch."""
        [command] = re.findall(r"`lakewarden ledger correct (.*?) --reason …`", lines[-1])
        given = shlex.split(command)
        options = dict(zip(given[::2], given[1::2], strict=True))
        self.state(options["--writer"], int(options["--batch-id"].replace("none", "-1")))
        self._editions[options["--writer"]] = f"after-{len(lines)}"


def skipped(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the lines about batches that were skipped."""
    lines = [record.getMessage() for record in caplog.records]
    return [line for line in lines if line.startswith("batch.skipped ")]


def test_the_transaction_is_opened_with_what_the_sink_declares(
    harness: Harness, spark: SparkSession, case: SinkCase, agent: FakeAgent
) -> None:
    with session_settings(spark, CODE_GENERATION):
        harness.gate().foreach_batch(case.sink, writer="w", admission="optimistic")(batch_of(spark, 1, 2), 0)

    intent = agent.wait_for("commit-intent")[0]
    assert (intent.table, intent.conflict_rule) == (case.sink.table, case.sink.conflict_rule)
    assert intent.lock == case.sink.lock
    agent.wait_for("commit-completed")
    assert agent.types().index("marker-created") < agent.types().index("commit-requested")
    assert case.flights() == [1, 2]
    assert case.orphans() == set()


def test_a_replayed_batch_is_recognised_and_not_written_twice(
    harness: Harness, spark: SparkSession, case: SinkCase, agent: FakeAgent
) -> None:
    """The driver died between the commit and Spark's checkpoint. The agent here knows no committed batch."""
    write = harness.gate().foreach_batch(case.sink, writer="w")

    for batch_id, flight in ((0, 1), (1, 2), (0, 10), (1, 20)):  # a replay may have other rows
        write(batch_of(spark, flight), batch_id)

    assert case.flights() == ([2] if case.replaces else [1, 2])
    versions = [event.version for event in agent.wait_for("commit-completed", 4)]
    # A catalog that lists the newest snapshot only has that of the writer's last batch.
    assert versions[2:] == ([versions[1]] * 2 if lists_newest_only() else versions[:2])
    assert len(set(versions)) == 2
    assert case.orphans() == set()
    assert case.sink.committed("w", 1) == versions[1]
    assert case.sink.committed("w", 2) is None


def test_a_batch_that_an_older_process_commits_meanwhile_is_not_repeated(
    harness: Harness, spark: SparkSession, case: SinkCase
) -> None:
    """It is found under the grant. What was staged is removed."""

    def overtake(_event: WriterEventUnion) -> None:
        case.commit(5, writer="w", batch_id=3)

    agent = harness.agent(At("commit-requested", overtake))

    harness.gate().foreach_batch(case.sink, writer="w")(batch_of(spark, 5), 3)

    assert case.flights() == [5]
    assert agent.wait_for("commit-completed")[0].version == case.sink.committed("w", 3)
    assert case.orphans() == set()


@pytest.mark.parametrize("kind", ["marker-created", "commit-requested"])
def test_an_abort_leaves_nothing_behind_and_the_retry_commits(
    harness: Harness, spark: SparkSession, case: SinkCase, kind: str
) -> None:
    agent = harness.agent(At(kind, lambda event: [aborted(event)]))

    harness.gate().foreach_batch(case.sink, writer="w", admission="optimistic")(batch_of(spark, 1), 0)

    assert case.flights() == [1]
    wait_until(lambda: case.orphans() == set())
    assert [step.attempt for step in harness.only("abort")] == [1]
    assert len(agent.wait_for("commit-completed")) == 1


def test_an_abort_while_tasks_run_leaves_nothing_behind_and_the_retry_commits(
    harness: Harness, spark: SparkSession, case: SinkCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt's tasks block until they are cancelled. On a busy machine they need long to end."""
    monkeypatch.setattr(cancelling, "STOPPED_TIMEOUT_SECONDS", PATIENCE_SECONDS)
    running, go = tmp_path / "running", tmp_path / "go"

    def held(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            running.touch()
            while not go.exists():
                time.sleep(0.01)
            yield batch

    def abort_when_running(intent: CommitIntent) -> None:
        wait_until(running.exists)
        agent.publish(aborted(intent))
        wait_until(lambda: harness.only("jobs-stopped"))
        go.touch()

    threads: list[threading.Thread] = []

    def start(event: WriterEventUnion) -> None:
        threads.append(threading.Thread(target=abort_when_running, args=(event,)))
        threads[0].start()

    agent = harness.agent(At("commit-intent", start))
    batch = batch_of(spark, 1, 2).repartition(2).mapInArrow(held, COLUMNS)

    harness.gate().foreach_batch(case.sink, writer="w", admission="optimistic")(batch, 0)

    threads[0].join()
    (stopped,) = harness.only("jobs-stopped")
    assert (stopped.attempt, stopped.detail["gone"]) == (1, True)
    assert case.flights() == [1, 2]
    wait_until(lambda: case.orphans() == set())


def test_a_publish_is_refused_without_a_lease(
    harness: Harness, spark: SparkSession, case: SinkCase, monkeypatch: pytest.MonkeyPatch, agent: FakeAgent
) -> None:
    """An abort revokes the lease between the grant and the last step. Nothing is published, and the retry commits."""

    def revoke() -> None:
        agent.publish(aborted(agent.wait_for("commit-requested")[0], reason="lease-lost"))
        wait_until(lambda: harness.only("abort"))

    case.before_the_last_check(monkeypatch, revoke)
    write = harness.gate().foreach_batch(case.sink, writer="w", max_attempts=1)
    with pytest.raises(CommitAborted, match="the agent lost the table's lock"):
        write(batch_of(spark, 1), 0)

    assert case.flights() == []
    assert case.orphans() == set()
    assert agent.wait_for("transaction-abandoned")[0].reason.startswith("CommitAborted")
    write(batch_of(spark, 1), 0)
    assert case.flights() == [1]


def test_a_publish_that_failed_after_it_took_effect_is_found_in_the_table(
    harness: Harness, spark: SparkSession, case: SinkCase, monkeypatch: pytest.MonkeyPatch, agent: FakeAgent
) -> None:
    case.fail_the_publish(monkeypatch, durable=True)

    harness.gate().foreach_batch(case.sink, writer="w")(batch_of(spark, 1), 0)

    assert case.flights() == [1]
    assert [event.version for event in agent.wait_for("commit-completed")] == [case.sink.committed("w", 0)]
    assert case.orphans() == set()


def test_a_failed_publish_that_the_table_does_not_show_keeps_its_files_and_is_not_reported(
    harness: Harness, spark: SparkSession, case: SinkCase, monkeypatch: pytest.MonkeyPatch, agent: FakeAgent
) -> None:
    """It may still take effect. A new transaction looks again, and writes the batch."""
    case.fail_the_publish(monkeypatch, durable=False)
    write = harness.gate().foreach_batch(case.sink, writer="w", max_attempts=1)
    with pytest.raises(OutcomeUnknown, match="may have reached the table") as caught:
        write(batch_of(spark, 1), 0)

    assert caught.value.retriable, "the table can be looked up"
    assert agent.types()[-1] == "commit-requested"
    assert [event.detail["outcome"] for event in harness.only("failed")] == ["unknown"]
    assert case.orphans() != set()
    write(batch_of(spark, 1), 0)
    assert case.flights() == [1]


LATE = ["before", "looked up", "staged", "looked up under the grant", "last check", "after"]
"""The successor's steps before or behind which a request of the dead driver is carried out."""

APPENDS = ["paimon-append", "paimon-sums", "parquet", *(f"{name}-append" for name in ("delta", "iceberg"))]
"""The sinks whose rows show it if a batch is there twice."""

ALWAYS_LATE = {"paimon-append", "iceberg-append"}
"""One sink that publishes itself, and one whose catalog does. Delta's own check is that of a foreign commit."""

CASES_OF_LATE = [
    pytest.param(
        sink,
        marks=[
            *[pytest.mark.wide] * (sink in APPENDS and sink not in ALWAYS_LATE),
            *[pytest.mark.matrix] * (sink not in APPENDS),
        ],
    )
    for sink in (*SINKS, *(f"iceberg-append@{catalog}" for catalog in CATALOGS))
    if sink != "hudi"
]


@pytest.mark.parametrize("sink", CASES_OF_LATE)
def test_a_request_of_a_dead_driver_that_is_carried_out_late_leaves_its_batch_once(
    *,
    harness: Harness,
    spark: SparkSession,
    make_table: MakeTable,
    tmp_path: Path,
    in_catalog: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    sink: str,
) -> None:
    """A driver dies in its publish. Its successor repeats the batch, and the request takes effect at one of its steps."""
    harness.agent(grant_everything)
    sink, _, catalog = sink.partition("@")
    in_catalog(catalog)
    case = make_case(sink, make_table, tmp_path, spark)
    gate = harness.gate()
    dying = gate.foreach_batch(case.sink, writer="w", max_attempts=1)
    write = gate.foreach_batch(case.sink, writer="w")

    def behind(carry_out: Callable[[], object]) -> Callable[..., Any]:
        def call(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
            found = function(*arguments, **options)
            carry_out()
            return found

        return call

    def before(carry_out: Callable[[], object]) -> Callable[..., Any]:
        return lambda function, *arguments, **options: (carry_out(), function(*arguments, **options))[1]

    for number, step in enumerate(LATE):
        batch = batch_of(spark, number)
        carry_out = case.hold_the_publish(monkeypatch, partial(dying, batch, number))
        assert number not in case.flights()
        match step:
            case "before":
                carry_out()
            case "looked up":
                once(monkeypatch, Transaction, "recognise", behind(carry_out))
            case "staged":
                once(monkeypatch, Transaction, "request_grant", before(carry_out))
            case "looked up under the grant":
                once(monkeypatch, BatchOutcome, "grant_of", behind(carry_out))
            case "last check":
                case.before_the_last_check(monkeypatch, carry_out)
            case _:
                assert step == "after"
        write(batch, number)
        carry_out()

        assert case.flights() == ([number] if case.replaces else list(range(number + 1))), step
    assert len(case.commits()) == (1 if lists_newest_only() else len(LATE))


@pytest.mark.parametrize("when", ["waiting for the grant", "under the grant"])
def test_a_foreign_commit_is_never_overwritten(
    *,
    harness: Harness,
    spark: SparkSession,
    case: SinkCase,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    when: str,
) -> None:
    """Either the batch is committed on top of it, or it is computed again. Then an overwrite replaces it, too."""
    # Nessie 0.99 lets a table's first snapshot replace another one.
    before = [0] if lists_newest_only() else []
    for flight in before:
        case.commit(flight)
    if when == "under the grant":
        agent = harness.agent(grant_everything)
        case.before_the_last_check(monkeypatch, lambda: case.commit(77))
    else:
        agent = harness.agent(At("commit-requested", lambda _: case.commit(77)))

    harness.gate().foreach_batch(case.sink, writer="w")(batch_of(spark, 1), 0)

    assert case.flights() == ([1] if case.replaces else [*before, 1, 77])
    assert case.orphans() == set()
    assert harness.steps().count("completed") == 1
    assert harness.only("failed") == [], "no outcome was unknown"
    lost = [each for each in agent.events if isinstance(each, TransactionAbandoned)]
    assert all(each.lost_to for each in lost), "the table says which commit it was"
    assert ("iceberg.newest-snapshot-only" in caplog.text) == lists_newest_only()


@pytest.mark.wide
def test_a_batch_that_the_table_has_is_written_again_after_what_the_skipped_batch_says(
    harness: Harness, spark: SparkSession, case: SinkCase, caplog: pytest.LogCaptureFixture
) -> None:
    """Its commit stays in the table's history, whatever has become of its rows. It isn't taken for the one of the repetition."""
    ledger = Ledger()
    harness.agent(ledger)
    write = harness.gate().foreach_batch(case.sink, writer="w")

    write(batch_of(spark, 0), 0)
    ledger.state("w", -1)  # its driver died before the report
    write(batch_of(spark, 1), 0)
    assert (len(skipped(caplog)), case.flights()) == (1, [0])
    ledger.correct(skipped(caplog))
    write(batch_of(spark, 2), 0)
    ledger.state("w", -1)
    write(batch_of(spark, 3), 0)

    assert (len(skipped(caplog)), case.flights()) == (2, [2] if case.replaces else [0, 2])


@pytest.mark.wide
def test_a_batch_that_a_rollback_removed_is_written_again_after_what_the_skipped_batch_says(
    harness: Harness, spark: SparkSession, case: SinkCase, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger()
    harness.agent(ledger)
    write = harness.gate().foreach_batch(case.sink, writer="w")

    write(batch_of(spark, 0), 0)
    roll_back = case.save()
    write(batch_of(spark, 1), 1)
    write(batch_of(spark, 2), 2)
    if lists_newest_only():
        with pytest.raises(Exception, match="Cannot roll back to unknown snapshot"):
            roll_back()
        return
    roll_back()
    assert [case.sink.committed("w", number) is None for number in range(3)] == [False, True, True]

    write(batch_of(spark, 2), 2)
    assert (len(skipped(caplog)), case.flights()) == (1, [0])
    ledger.correct(skipped(caplog))
    write(batch_of(spark, 2), 2)
    assert (len(skipped(caplog)), case.flights()) == (1, [2] if case.replaces else [0, 2])
    ledger.state("w", 0)  # its driver died before the report
    if not isinstance(case, ParquetCase):  # the example knows no order of batches
        with pytest.raises(
            GateError, match=r"has batch 2 of this writer, in .*, and not batch 1: a rollback"
        ):
            write(batch_of(spark, 1), 1)
    roll_back()
    ledger.state("w", 2)
    write(batch_of(spark, 1), 1)
    ledger.correct(skipped(caplog))
    write(batch_of(spark, 1), 1)

    assert case.flights() == ([1] if case.replaces else [0, 1])


@pytest.mark.wide
def test_a_batch_is_recognised_after_old_versions_were_removed(
    harness: Harness, spark: SparkSession, case: SinkCase
) -> None:
    """Its driver died before its report, so the ledger doesn't have it."""
    harness.agent(grant_everything)
    gate = harness.gate()
    gate.foreach_batch(case.sink, writer="w")(batch_of(spark, 0), 0)
    gate.foreach_batch(case.sink, writer="another")(batch_of(spark, 1), 0)
    case.expire()

    gate.foreach_batch(case.sink, writer="w")(batch_of(spark, 9), 0)

    assert case.flights() == ([1] if case.replaces else [0, 1])


@pytest.mark.wide
def test_an_empty_batch_commits_nothing_and_a_foreign_commit_is_not_the_next_batch(
    harness: Harness, spark: SparkSession, case: SinkCase, agent: FakeAgent
) -> None:
    write = harness.gate().foreach_batch(case.sink, writer="w")

    write(batch_of(spark), 0)
    if not isinstance(case, HudiCase | ParquetCase):  # they commit a version without files
        agent.wait_for("transaction-abandoned")
        assert case.commits() == []
    write(batch_of(spark, 4), 1)
    case.commit(5)

    assert case.flights() == [4, 5]
    assert case.sink.committed("w", 1) is not None
    assert case.sink.committed("w", 2) is None


@pytest.mark.wide
def test_a_checkpoint_that_is_restored_or_deleted_and_a_query_that_is_renamed(
    harness: Harness, spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    """One query writes a table of each format. No ledger helps: each table knows its batches. docs/recovery.md has the cases."""
    harness.agent(grant_everything)
    gate = harness.gate()
    names = [name for name in SINKS if name.endswith("-append") or name in {"hudi", "parquet"}]
    cases = {name: make_case(name, make_table, tmp_path / name, spark) for name in names}
    source, checkpoint, saved = (tmp_path / name for name in ("source", "checkpoint", "saved"))

    def arrive(flight: int) -> None:
        batch_of(spark, flight).coalesce(1).write.mode("append").parquet(str(source))

    def run(writer: str = "w", query_name: str = "name") -> None:
        writes = [gate.foreach_batch(case.sink, writer=writer) for case in cases.values()]

        def write_all(batch: DataFrame, batch_id: int) -> None:
            for write in writes:
                write(batch, batch_id)

        stream = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(source))
        query = stream.writeStream.foreachBatch(write_all).queryName(query_name)
        query.option("checkpointLocation", str(checkpoint)).trigger(
            availableNow=True
        ).start().awaitTermination()

    def restore() -> None:
        shutil.rmtree(checkpoint)
        shutil.copytree(saved, checkpoint)

    def require(*flights: int) -> None:
        """The rows of a table that is appended to. An upsert has each once."""
        found = {name: case.flights() for name, case in cases.items()}
        assert found == {name: sorted(set(flights)) if name == "hudi" else list(flights) for name in names}

    arrive(1)
    run()
    shutil.copytree(checkpoint, saved)
    arrive(2)
    run(query_name="renamed")
    require(1, 2)
    restore()
    run()
    require(1, 2)
    restore()
    run(writer="renamed")
    require(1, 2, 2)
    shutil.rmtree(checkpoint)
    run()
    require(1, 1, 2, 2, 2)


class EveryTable:
    """A query that writes a table of each format. Each run is a new driver: a gate of its own."""

    def __init__(self, harness: Harness, spark: SparkSession, make_table: MakeTable, folder: Path) -> None:
        names = [name for name in SINKS if name in {*APPENDS, "hudi"} - {"parquet"}]
        self.cases = {name: make_case(name, make_table, folder / name, spark) for name in names}
        self.checkpoint = folder / "checkpoint"
        self._source, self._spark, self._gate = str(folder / "source"), spark, harness.gate
        self.refused: dict[str, str] = {}

    def arrive(self, flight: int) -> None:
        batch_of(self._spark, flight).coalesce(1).write.mode("append").parquet(self._source)

    def start(self, write: Callable[[DataFrame, int], None]) -> None:
        stream = self._spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(self._source)
        query = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(self.checkpoint))
        with suppress(StreamingQueryException):
            query.trigger(availableNow=True).start().awaitTermination()

    def run(self, writer: str = "w", **options: Any) -> None:
        """Write what has arrived. A batch that a sink refuses isn't done."""
        gate = self._gate()
        sinks = {name: case.sink for name, case in self.cases.items()}
        writes = {name: gate.foreach_batch(sink, writer=writer, **options) for name, sink in sinks.items()}
        self.refused.clear()

        def write_all(batch: DataFrame, batch_id: int) -> None:
            for name, write in writes.items():
                try:
                    write(batch, batch_id)
                except GateError as error:
                    self.refused[name] = str(error)
            if self.refused:
                raise RuntimeError("refused")

        self.start(write_all)

    def lose_the_id(self) -> str:
        metadata = self.checkpoint / "metadata"
        lost = metadata.read_text()
        metadata.unlink()
        metadata.with_name(".metadata.crc").unlink(missing_ok=True)
        return lost

    def require(self, *flights: int) -> None:
        assert self.refused == {}
        assert {name: case.flights() for name, case in self.cases.items()} == {
            name: list(flights) for name in self.cases
        }


@pytest.mark.wide
def test_a_query_whose_id_is_new_is_refused_behind_what_its_job_has_committed(
    harness: Harness, spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    """The ledger is lost, so each table says what it has. docs/recovery.md has the cases: Who a writer is."""
    harness.agent(knowing_no_batch)
    tables = EveryTable(harness, spark, make_table, tmp_path)
    for flight in (0, 1):
        tables.arrive(flight)
    tables.start(lambda _batch, _id: None)  # the job comes to the gate later
    tables.arrive(2)
    tables.run()
    tables.require(2)
    lost = tables.lose_the_id()
    tables.arrive(3)
    tables.run()
    assert tables.refused.keys() == tables.cases.keys()
    found = {re.findall(r"write (\{.*?\}) into it", text)[0] for text in tables.refused.values()}
    assert [json.loads(each) for each in found] == [json.loads(lost)]
    (tables.checkpoint / "metadata").write_text(found.pop())
    (tables.checkpoint / ".metadata.crc").unlink(missing_ok=True)
    tables.run()
    tables.require(2, 3)
    tables.arrive(4)
    tables.run(writer="second")
    assert tables.refused.keys() == tables.cases.keys(), "the checkpoint of another job"
    tables.run()
    tables.require(2, 3, 4)
    tables.lose_the_id()
    tables.arrive(5)
    tables.run(new_writer=True)
    tables.require(2, 3, 4, 5)
    tables.arrive(6)
    tables.run()
    tables.require(2, 3, 4, 5, 6)
    shutil.rmtree(tables.checkpoint)
    tables.run()
    assert tables.refused == {}, "a query that begins with batch 0 is another writer"


def knowing_no_batch(event: WriterEventUnion, offset: int) -> list[DecisionEventUnion]:
    """A script that grants everything, of an agent whose ledger is empty."""
    return [
        each.model_copy(update={"namesakes": ()}) if isinstance(each, Admitted) else each
        for each in grant_everything(event, offset)
    ]


def test_a_queued_batch_declares_its_scope_and_is_computed_once(
    harness: Harness, spark: SparkSession, case: SinkCase, tmp_path: Path, agent: FakeAgent
) -> None:
    """All that it touches is in the scope, if the sink has one. Markers of the scope aren't published again."""
    computed = tmp_path / "computed"

    def counted(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            with computed.open("a") as file:
                file.write("once\n")
            yield batch

    batch: DataFrame = batch_of(spark, 1).coalesce(1).mapInArrow(counted, COLUMNS)
    gate = harness.gate()

    gate.foreach_batch(case.sink, writer="w", admission="queued")(batch, 0)

    agent.wait_for("commit-completed")
    intent = agent.wait_for("commit-intent")[0]
    touched = [m for event in agent.events if event.type == "marker-created" for m in event.markers]
    scope = case.sink.scope(batch_of(spark, 1))
    assert intent.admission == "queued"
    declared = scope.markers if scope else ()
    assert intent.scope == declared
    assert not set(touched) & set(declared)
    if scope is not None:
        assert {marker.partition for marker in touched} <= {marker.partition for marker in declared}
    assert computed.read_text() == "once\n"
    assert batch.storageLevel.useMemory is False, "it is persisted no longer"
