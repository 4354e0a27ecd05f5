"""Streaming queries through `gate.foreach_batch`: aborts cancel Spark jobs, and the batch is retried."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from pyspark import InheritableThread, SparkContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from lakewarden.events import (
    CORRECTION,
    Admitted,
    CommitIntent,
    CommitRequested,
    DecisionEventUnion,
    Marker,
    WriterEventUnion,
)
from lakewarden.handlers.writers_log import MAX_NAMESAKES
from lakewarden.spark_jobs import CommitAborted, Sink
from lakewarden.spark_jobs.engine import cancelling
from lakewarden.spark_jobs.engine.classic import QUERY_ID_PROPERTY, Classic
from lakewarden.spark_jobs.engine.engine import Query
from lakewarden.spark_jobs.engine.kinds import engine_of
from lakewarden.spark_jobs.gate.errors import GateError
from lakewarden.spark_jobs.gate.transaction import Transaction
from lakewarden.spark_jobs.streaming import batches
from lakewarden.spark_jobs.streaming.batches import wire_name
from tests.spark.fake_agent import At, FakeAgent, aborted, already_committed, grant_everything
from tests.spark.harness import Harness
from tests.unit.events.building import made
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.real]

TABLE = "file:///lake/flights"
MINE = Marker(partition="month=1/day=3", file_group="*", operation="merge")

COMPUTES_FOR_SECONDS = """
    aggregate(sequence(1, 6000), id, (a, x) -> a + aggregate(sequence(1, 6000), id, (b, y) -> b + x * y))
"""

RunQuery = Callable[..., None]


@pytest.fixture
def run_query(spark: SparkSession, tmp_path: Path) -> RunQuery:
    """A function that runs a streaming query over `files` files of one row, one file per batch, to its end."""

    def run(write: Callable[[DataFrame, int], None], files: int = 1) -> None:
        source = tmp_path / "source"
        for number in range(files):
            spark.range(number, number + 1).coalesce(1).write.mode("append").parquet(str(source))
        stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(source))
        query = (
            stream.writeStream.foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    return run


def hold(rows: Iterable[Any]) -> Iterator[Any]:
    """A task that runs for longer than the test, unless it is cancelled."""
    for row in rows:
        time.sleep(600)
        yield row


def active_tasks(spark: SparkSession) -> int:
    """How many tasks run, as the executors have it."""
    executors = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
    return sum(each.numRunningTasks() for each in executors)


class LoseFirst:
    """A script that aborts the first transaction at its markers, and admits and grants every later one."""

    def __init__(self) -> None:
        self.first: str | None = None

    def __call__(self, event: WriterEventUnion, offset: int) -> list[DecisionEventUnion]:
        if isinstance(event, CommitIntent):
            self.first = self.first or event.transaction
        if event.type == "marker-created" and event.transaction == self.first:
            return [aborted(event, *event.markers)]
        return grant_everything(event, offset)


def commit(_batch: DataFrame, txn: Transaction) -> None:
    """A write that writes nothing."""
    with txn.commit():
        pass


def publish_when_running(txn: Transaction, jobs: int) -> threading.Thread:
    """Publish markers, which the script answers with an abort, as soon as so many Spark jobs run."""
    return when_running(jobs, lambda: txn._publisher.publish_markers((MINE,)))


def when_running(jobs: int, act: Callable[[], object]) -> threading.Thread:
    """Act in another thread as soon as so many Spark jobs run."""

    def wait_and_act() -> None:
        context = SparkContext._active_spark_context
        assert context is not None
        tracker = context.statusTracker()
        wait_until(lambda: len(tracker.getActiveJobsIds()) >= jobs)
        act()

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    return thread


def test_an_abort_cancels_running_jobs_and_the_batch_is_queued(harness: Harness, run_query: RunQuery) -> None:
    """Two jobs run, one in another thread of the body. Both are cancelled. The retry's scope is what the loser touched."""
    agent = harness.agent(LoseFirst())
    died: list[str] = []
    attempts: list[str] = []

    def write(batch: DataFrame, txn: Transaction) -> None:
        attempts.append(txn.id)
        context = batch.sparkSession.sparkContext
        if len(attempts) == 1:

            def other_job() -> None:
                try:
                    context.parallelize([1], 1).mapPartitions(hold).count()
                except Exception as error:  # noqa: BLE001 - Py4J's
                    died.append(type(error).__name__)

            thread = InheritableThread(target=other_job)
            thread.start()
            marker = publish_when_running(txn, 2)
            try:
                batch.rdd.mapPartitions(hold).count()
            finally:
                thread.join()
                marker.join()
        with txn.commit() as grant:
            grant.version = "1"

    run_query(harness.gate().foreach_batch(write, table=TABLE, writer="departures"))

    assert len(attempts) == 2
    assert died == ["Py4JJavaError"]
    first, second = agent.wait_for("commit-intent", 2)
    assert (first.admission, second.admission) == ("optimistic", "queued")
    assert second.scope == (MINE,)
    assert first.ends_itself is second.ends_itself is True, "its trigger is availableNow"
    assert first.batch_id == second.batch_id == 0
    assert first.writer == second.writer
    name, query_id = first.writer.split(":")
    assert name == "departures"
    assert len(query_id) == 36
    (stopped,) = harness.only("jobs-stopped")
    assert stopped.detail["gone"]
    assert harness.steps()[-1] == "completed"


A, B = (f"{digit * 8}-0000-0000-0000-000000000000" for digit in "ab")
MANY = [f"w:{number:08x}{A[8:]}" for number in range(MAX_NAMESAKES)]


@pytest.mark.parametrize(
    ("batch_id", "in_ledger", "in_table", "options", "refused_for"),
    [
        (57, (), (), {}, None),  # its first batch at the gate
        (57, None, [f"w:{B}"], {}, None),  # the ledger knows it, or an agent of an older release answers
        (57, (), [f"w:{B}", f"w:{A}"], {}, None),  # the table knows it
        (57, (), [f"other:{B}"], {}, None),
        (1, (f"w:{B}",), (), {}, f"w:{B}"),
        (1, (), [f"w:{B}~edition"], {}, f"w:{B}"),
        (1, (f"v:{A}",), (), {}, f"v:{A}"),
        (1, (f"w:{B}",), [f"w:{B}"], {}, f"w:{B}"),
        (1, (f"w:{B}", f"v:{A}"), (), {}, f"w:{B} and v:{A}"),
        (1, tuple(MANY), (), {}, f"{' and '.join(MANY)}, perhaps among others"),
        (1, (f"w:{B}",), (), {"new_writer": True}, None),
    ],
)
def test_a_query_whose_id_is_new_may_not_begin_behind_what_its_job_has_committed(
    *,
    harness: Harness,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    batch_id: int,
    in_ledger: tuple[str, ...] | None,
    in_table: list[str],
    options: dict[str, Any],
    refused_for: str | None,
) -> None:
    """docs/recovery.md has the cases: Who a writer is."""
    agent = harness.agent(
        lambda event, offset: [
            each.model_copy(update={"namesakes": in_ledger}) if isinstance(each, Admitted) else each
            for each in grant_everything(event, offset)
        ]
    )
    monkeypatch.setattr(batches, "wire_name", lambda writer, _: f"{writer}:{A}")

    class Table:
        def __call__(self, batch: DataFrame, txn: Transaction) -> None:
            commit(batch, txn)

        def writers(self) -> list[str]:
            return in_table

    gate = harness.gate()
    write = gate.foreach_batch(Table(), table=TABLE, writer="w", **options)
    if refused_for is None:
        write(spark.range(1), batch_id)
        agent.wait_for("commit-completed")
        write(spark.range(1), batch_id + 1)
        return
    with pytest.raises(
        GateError, match=f"show no batch of it, but batches of {refused_for}, which"
    ) as caught:
        write(spark.range(1), batch_id)
    assert not caught.value.retriable
    one = not refused_for.count(" and ")
    assert (f'{{"id":"{refused_for[2:]}"}} into it' in str(caught.value)) == one, (
        "of several, none is recommended"
    )
    assert "commit-requested" not in agent.types()


@pytest.mark.parametrize("gates", [1, 2])
@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("is_copy", [False, True])
def test_a_second_write_of_a_query_in_one_driver_is_no_copy_of_its_checkpoint(
    *,
    harness: Harness,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    gates: int,
    is_restarted: bool,
    is_copy: bool,
) -> None:
    """A query that comes to the gate with an old checkpoint may write a table twice in a batch, under two names.

    If its driver dies between the two, the first one is skipped after the restart. A query that began with a copy of the
    checkpoint is another run.
    """
    monkeypatch.setattr(batches, "wire_name", lambda writer, _: f"{writer}:{A}")
    runs = ["run 1"]
    active = SimpleNamespace(isActive=lambda: True)
    monkeypatch.setattr(Classic, "query_of", lambda *_: Query(A, active, runs[-1], ends_itself=None))
    known: list[str] = []

    def naming(event: WriterEventUnion, offset: int) -> list[DecisionEventUnion]:
        found = [
            each.model_copy(update={"namesakes": tuple(known)}) if isinstance(each, Admitted) else each
            for each in grant_everything(event, offset)
        ]
        known.extend([event.writer] if event.type == "commit-completed" else [])
        if isinstance(event, CommitIntent) and is_restarted and event.writer.startswith("inserts:"):
            known.append(event.writer)
            return [already_committed(event)]
        return found

    agent = harness.agent(naming)
    first = harness.gate()
    second = first if gates == 1 else harness.gate()
    first.foreach_batch(commit, table=TABLE, writer="inserts")(spark.range(1), 57)
    write = second.foreach_batch(commit, table=TABLE, writer="deletes")
    if is_copy:
        runs.append("run 2")
        with pytest.raises(GateError, match=f"batches of inserts:{A}, which may be the same"):
            write(spark.range(1), 57)
        return
    write(spark.range(1), 57)

    completed = agent.wait_for("commit-completed", 1 if is_restarted else 2)
    assert completed[-1].writer == f"deletes:{A}"


@pytest.mark.wide
def test_what_was_staged_is_discarded_when_the_cancelled_tasks_have_ended(
    harness: Harness, run_query: RunQuery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark calls a cancelled job failed at once. Its task here computes on for seconds: within a row it doesn't notice.

    On a busy machine it computes for longer than the gate waits by default.
    """
    monkeypatch.setattr(cancelling, "STOPPED_TIMEOUT_SECONDS", PATIENCE_SECONDS)
    harness.agent(LoseFirst())
    computing = tmp_path / "computing"
    active: list[int] = []
    attempts: list[str] = []

    def last_step_before(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            computing.touch()
            yield batch

    def lose(txn: Transaction) -> None:
        wait_until(computing.exists)
        txn._publisher.publish_markers((MINE,))

    def write(batch: DataFrame, txn: Transaction) -> None:
        attempts.append(txn.id)
        if len(attempts) == 1:
            txn.on_discard(lambda: active.append(active_tasks(batch.sparkSession)))
            loser = threading.Thread(target=lose, args=(txn,))
            loser.start()
            try:
                batch.mapInArrow(last_step_before, "id long").selectExpr(COMPUTES_FOR_SECONDS).collect()
            finally:
                loser.join()
        commit(batch, txn)

    run_query(harness.gate().foreach_batch(write, table=TABLE, writer="w"))

    assert len(attempts) == 2
    assert active == [0]
    (stopped,) = harness.only("jobs-stopped")
    assert stopped.detail["gone"]


@pytest.mark.wide
def test_what_was_staged_is_discarded_when_the_other_tasks_of_a_failed_one_have_ended(
    harness: Harness, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark calls a job failed when one task has failed. The other one computes on for seconds."""
    monkeypatch.setattr(cancelling, "STOPPED_TIMEOUT_SECONDS", PATIENCE_SECONDS)
    harness.agent(grant_everything)
    active: list[int] = []

    def write(batch: DataFrame, txn: Transaction) -> None:
        txn.on_discard(lambda: active.append(active_tasks(spark)))
        batch.selectExpr(f"if(id = 0, raise_error('one task fails'), {COMPUTES_FOR_SECONDS})").collect()

    with pytest.raises(Exception, match="one task fails"):
        harness.gate().foreach_batch(write, table=TABLE, writer="w")(spark.range(0, 2, numPartitions=2), 0)

    assert active == [0]


@pytest.mark.wide
def test_a_job_submitted_after_the_cancel_is_cancelled_too(harness: Harness, run_query: RunQuery) -> None:
    """The body catches its first failure and submits the next job, as a retry loop of its own would."""
    harness.agent(LoseFirst())
    ended: list[str] = []

    def write(batch: DataFrame, txn: Transaction) -> None:
        if txn.intent.attempt == 1:
            context = batch.sparkSession.sparkContext
            txn._publisher.publish_markers((MINE,))
            for job in ("first", "second"):
                with pytest.raises(Exception, match="ancel"):
                    context.parallelize([1], 1).mapPartitions(hold).count()
                ended.append(job)
            txn.check()
        commit(batch, txn)

    run_query(harness.gate().foreach_batch(write, table=TABLE, writer="w"))

    assert ended == ["first", "second"]


def test_a_query_that_always_loses_fails_with_the_last_abort(harness: Harness, run_query: RunQuery) -> None:
    def refusing(event: WriterEventUnion, offset: int) -> list[DecisionEventUnion]:
        if isinstance(event, CommitRequested):
            return [aborted(event, MINE)]
        return grant_everything(event, offset)

    agent = harness.agent(refusing)

    def write(_batch: DataFrame, txn: Transaction) -> None:
        with txn.commit():
            pytest.fail("it published")

    with pytest.raises(StreamingQueryException) as caught:
        run_query(harness.gate().foreach_batch(write, table=TABLE, writer="w", max_attempts=3))

    assert (
        "CommitAborted: commit aborted: partition month=1/day=3 also written by writer 'arrivals:q2'"
        in str(caught.value)
    )
    intents = agent.wait_for("commit-intent", 3)
    assert [intent.admission for intent in intents] == ["optimistic", "queued", "queued"]
    assert [event.attempt for event in harness.only("failed")] == [3]


@pytest.mark.wide
@pytest.mark.parametrize(
    ("phase", "last", "outcome"),
    [
        ("queued", "transaction-abandoned", "it isn't committed, and is written"),
        ("computing", "transaction-abandoned", "it isn't committed, and is written"),
        ("waiting for the grant", "transaction-abandoned", "it isn't committed, and is written"),
        ("publishing", "commit-requested", "it may be committed: "),
        ("committed", "commit-completed", "it is committed, and skipped"),
    ],
)
def test_a_stopped_query_ends_its_batch_at_once_with_one_line_and_without_a_retry(
    *, harness: Harness, spark: SparkSession, run_query: RunQuery, phase: str, last: str, outcome: str
) -> None:
    """`query.stop()` waits for the batch. Its interrupt is no failure of the query, for Spark from 4.0 on either."""
    silent_at = {"queued": CommitIntent, "waiting for the grant": CommitRequested}.get(phase)
    reached = threading.Event()
    errors: list[str] = []

    def script(event: WriterEventUnion, offset: int) -> list[DecisionEventUnion]:
        if silent_at and isinstance(event, silent_at):
            reached.set()
            return []
        return grant_everything(event, offset)

    def publish(batch: DataFrame, txn: Transaction) -> None:
        def until_stopped(now: str) -> None:
            if now == phase:
                when_running(1, reached.set)
                batch.rdd.mapPartitions(hold).count()

        until_stopped("computing")
        with txn.commit():
            until_stopped("publishing")
        until_stopped("committed")

    agent = harness.agent(script)
    write = harness.gate().foreach_batch(publish, table=TABLE, writer="w", admission="queued")

    def keep_error(batch: DataFrame, batch_id: int) -> None:
        try:
            write(batch, batch_id)
        except GateError as error:
            errors.append(str(error))
            raise

    def stop() -> None:
        assert reached.wait(PATIENCE_SECONDS)
        (query,) = spark.streams.active
        query.stop()

    stopping = InheritableThread(target=stop)
    stopping.start()
    raised = (
        pytest.raises(StreamingQueryException, match="the query was stopped")
        if pyspark.__version__.startswith("3.")
        else nullcontext()
    )
    with raised:
        run_query(keep_error)
    stopping.join()

    (line,) = errors
    assert line.startswith(f"the query was stopped while the batch was written: {outcome}")
    assert "\n" not in line
    agent.wait_for(last)
    assert agent.types().count("commit-intent") == 1
    assert agent.types()[-1] == last
    assert len(harness.only("failed")) == (phase == "publishing"), "only an unknown outcome is an error"


def no_scope(_batch: DataFrame) -> None:
    raise ValueError("no such column")


@pytest.mark.parametrize(
    ("scope", "error", "intents"),
    [(None, "the agent doesn't serve this table", 1), (no_scope, "no such column", 0)],
)
def test_an_error_that_is_not_retriable_is_raised_at_once_and_logged_last(
    harness: Harness, run_query: RunQuery, scope: Any, error: str, intents: int
) -> None:
    agent = harness.agent(
        At("commit-intent", lambda event: [aborted(event, reason="not-allowed", retriable=False)])
    )
    write = harness.gate().foreach_batch(
        lambda *_: pytest.fail("it ran"), table=TABLE, writer="w", scope=scope
    )
    with pytest.raises(StreamingQueryException, match=error):
        run_query(write)
    assert harness.steps().count("failed") == 1
    assert harness.events[-1].what == "failed"
    assert error in harness.events[-1].detail["error"]
    assert agent.types().count("commit-intent") == intents


def test_committed_batches_are_skipped_with_a_warning_and_the_query_continues(
    harness: Harness, run_query: RunQuery, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The query succeeds, so the warning is the only trace of a batch that a wrong ledger makes it skip.

    docs/recipes.md says how the batch is written after all.
    """
    corrected: list[bool] = []

    def remembering(event: WriterEventUnion, offset: int) -> list[DecisionEventUnion]:
        if isinstance(event, CommitIntent) and event.batch_id == 0 and not corrected:
            return [already_committed(event)]
        return grant_everything(event, offset)

    agent = harness.agent(remembering)
    written: list[int | None] = []

    def write(batch: DataFrame, txn: Transaction) -> None:
        written.append(txn.batch_id)
        commit(batch, txn)

    query = harness.gate().foreach_batch(write, table=TABLE, writer="w")
    run_query(query, files=2)

    assert written == [1]
    intents = agent.wait_for("commit-intent", 2)
    assert [intent.batch_id for intent in intents] == [0, 1]
    [line] = [each.getMessage() for each in caplog.records if each.getMessage().startswith("batch.skipped ")]
    writer = intents[0].writer
    assert f"writer={writer} batch_id=0 committed_transaction=earlier" in line
    assert f"`lakewarden ledger correct --table {TABLE} --writer {writer} --batch-id none --reason …`" in line

    corrected.append(True)
    for folder, name in (("commits", "0"), ("commits", "1"), ("offsets", "1")):
        for file in (name, f".{name}.crc"):
            (tmp_path / "checkpoint" / folder / file).unlink()
    run_query(query, files=0)

    assert written == [1, 0, 1]


@pytest.mark.parametrize(
    ("last", "transaction", "written"),
    [
        pytest.param(0, "earlier", [1], id="its driver died before Spark noted the batch"),
        pytest.param(1, "earlier", None, id="an older day"),
        pytest.param(1, f"{CORRECTION}7", [], id="an operator has stated the last batch"),
        pytest.param(0, None, [1], id="in the table alone"),
        pytest.param(1, None, None, id="an older day, in the table alone"),
        pytest.param(2, None, None, id="an older day, and batch 1 had no rows"),
    ],
)
def test_a_run_begins_with_its_last_committed_batch_or_a_later_one(
    harness: Harness, run_query: RunQuery, last: int, transaction: str | None, written: list[int] | None
) -> None:
    """A checkpoint of an older day is refused, unless an operator says that its batches are to be skipped."""
    done: list[int | None] = []

    def ledger(event: WriterEventUnion, offset: int) -> list[DecisionEventUnion]:
        batch = event.batch_id if isinstance(event, CommitIntent) else None
        if transaction is None or batch is None or batch > last:
            return grant_everything(event, offset)
        known = {"committed_transaction": transaction, "batch_id": batch, "committed_batch_id": last}
        return [already_committed(event).model_copy(update=known)]

    class Table(Sink):
        table = TABLE

        def __call__(self, _batch: DataFrame, txn: Transaction, /) -> None:
            with txn.commit():
                done.append(txn.batch_id)

        def committed(self, _writer: str, batch_id: int, /) -> str | None:
            if transaction is None and batch_id == 1 and last == 2:
                raise GateError("the table has batch 2 of this writer, and not batch 1")
            return "7" if transaction is None and batch_id <= last else None

    harness.agent(ledger)
    write = harness.gate().foreach_batch(Table(), writer="w")
    if written is not None:
        run_query(write, files=2)
        assert done == written
        return
    with pytest.raises(
        StreamingQueryException,
        match=r"begins with batch 0, and .* its batch 1:.*--batch-id 1 .*--batch-id none",
    ):
        run_query(write, files=2)
    assert done == []


def test_a_function_that_looks_its_batches_up_itself_skips_them(
    harness: Harness, run_query: RunQuery, caplog: pytest.LogCaptureFixture
) -> None:
    def write(_batch: DataFrame, txn: Transaction) -> None:
        txn.recognise(lambda _writer, _batch_id: "7")

    harness.agent(grant_everything)
    run_query(harness.gate().foreach_batch(write, table=TABLE, writer="w"))

    assert "batch.skipped" in caplog.text


def test_a_batch_that_follows_one_of_its_own_is_looked_up_under_the_grant_only(
    harness: Harness, spark: SparkSession
) -> None:
    """If another process runs the same query, the table may have batch 2. Then it isn't written here, either."""
    agent = harness.agent(grant_everything)
    looks: list[int] = []
    published: list[int | None] = []

    class Table(Sink):
        table = TABLE

        def __call__(self, _batch: DataFrame, txn: Transaction, /) -> None:
            with txn.commit():
                published.append(txn.batch_id)

        def committed(self, _writer: str, batch_id: int, /) -> str | None:
            looks.append(batch_id)
            return "7" if batch_id == 2 else None

    write = harness.gate().foreach_batch(Table(), writer="w")
    for number in range(4):
        write(spark.range(1), number)

    assert looks == [0, 0, 1, 2, 3, 3]
    assert published == [0, 1, 3]
    versions = [event.version for event in agent.wait_for("commit-completed", 4)]
    assert versions == [None, None, "7", None]


@pytest.mark.wide
def test_the_tag_is_removed_after_the_batch_and_the_query_keeps_its_job_group(
    harness: Harness, run_query: RunQuery, spark: SparkSession
) -> None:
    harness.agent(grant_everything)
    tags: list[set[str]] = []
    groups: list[str | None] = []
    context = spark.sparkContext

    def write(batch: DataFrame, txn: Transaction) -> None:
        tags.append({tag for tag in context.getJobTags() if tag.startswith("lakewarden-")})
        groups.append(context.getLocalProperty("spark.jobGroup.id"))
        assert batch.count() == 1
        commit(batch, txn)

    def around(batch: DataFrame, batch_id: int) -> None:
        before = context.getLocalProperty("spark.jobGroup.id")
        inner(batch, batch_id)
        tags.append({tag for tag in context.getJobTags() if tag.startswith("lakewarden-")})
        groups.append(before)

    inner = harness.gate().foreach_batch(write, table=TABLE, writer="w")
    run_query(around, files=2)

    assert [len(found) for found in tags] == [1, 0, 1, 0]
    assert len(set(groups)) == 1
    assert groups[0] is not None


@pytest.mark.wide
def test_the_scope_is_published_before_the_batch_is_computed(
    harness: Harness, spark: SparkSession, agent: FakeAgent
) -> None:
    harness.gate().foreach_batch(
        commit,
        table=TABLE,
        writer="compaction",
        admission="queued",
        priority=-1,
        scope=lambda batch: [f"day={row.id}" for row in batch.collect()],
    )(spark.range(2), 7)

    intent = agent.wait_for("commit-intent")[0]
    assert (intent.admission, intent.priority, intent.writer) == ("queued", -1, "compaction")
    assert [(marker.partition, marker.file_group) for marker in intent.scope] == [
        ("day=0", "*"),
        ("day=1", "*"),
    ]


def test_markers_of_executors_precede_the_request(
    harness: Harness, spark: SparkSession, agent: FakeAgent
) -> None:
    def write(batch: DataFrame, txn: Transaction) -> None:
        channel = txn.executor_channel()

        def publishing(rows: Iterable[Any]) -> Iterator[Any]:
            for row in rows:
                channel.touch("", f"file-{row.id}", "create")
                yield row

        batch.rdd.mapPartitions(publishing).count()
        commit(batch, txn)

    harness.gate().foreach_batch(write, table=TABLE, writer="w")(spark.range(0, 20, 1, 2), 0)

    touched = {
        marker.file_group for event in agent.wait_for("marker-created", 20) for marker in event.markers
    }
    assert len(touched) == 20
    agent.wait_for("commit-completed")
    assert agent.types()[-2:] == ["commit-requested", "commit-completed"]


@pytest.mark.wide
def test_executors_without_kafka_fail(spark: SparkSession) -> None:
    from lakewarden.spark_jobs import AgentUnreachable
    from lakewarden.spark_jobs.gate.executor import ExecutorChannel

    channel = ExecutorChannel("127.0.0.1:1", "lakewarden", TABLE, "t", "w", timeout=2.0)
    facts = rf"brokers=127\.0\.0\.1:1 table={TABLE} writer=w transaction=t$"
    with pytest.raises(AgentUnreachable, match=rf"publishing markers failed: .* {facts}"):
        channel.touch("", "f", "create")


@pytest.mark.wide
def test_the_observer_receives_the_steps_in_order(harness: Harness, spark: SparkSession) -> None:
    harness.agent(LoseFirst())

    def write(batch: DataFrame, txn: Transaction) -> None:
        txn.touch(MINE.partition, "*", "merge")
        wait_until(lambda: txn.aborted or txn.intent.attempt > 1)
        commit(batch, txn)

    harness.gate().foreach_batch(write, table=TABLE, writer="w", max_attempts=2)(spark.range(1), 0)

    assert harness.steps() == [
        *("intent", "admitted", "markers", "abort", "jobs-stopped"),
        *("intent", "admitted", "markers", "requested", "granted", "completed"),
    ]
    assert harness.only("abort")[0].detail["others"] == ["arrivals:q2"]


def test_commit_aborted_can_be_pickled() -> None:
    import pickle

    from lakewarden.events import Abort

    error = CommitAborted(made(Abort, table=TABLE, transaction="t", cause_offset=3, reason="lease-lost"))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - pickled here


@pytest.mark.wide
def test_jobs_of_the_clean_up_are_not_cancelled(harness: Harness, run_query: RunQuery) -> None:
    """An abort cancels the batch's jobs by their tag until they have ended. The clean-up comes after, without the tag."""
    harness.agent(LoseFirst())
    cleaned: list[tuple[int, bool]] = []

    def write(batch: DataFrame, txn: Transaction) -> None:
        context = batch.sparkSession.sparkContext

        def clean_up() -> None:
            tagged = any(tag.startswith("lakewarden-") for tag in context.getJobTags())
            cleaned.append((context.parallelize([1, 2], 2).count(), tagged))

        txn.on_discard(clean_up)
        if txn.intent.attempt == 1:
            marker = publish_when_running(txn, 1)
            try:
                batch.rdd.mapPartitions(hold).count()
            finally:
                marker.join()
        commit(batch, txn)

    run_query(harness.gate().foreach_batch(write, table=TABLE, writer="w"))

    assert cleaned == [(2, False)], "after the first attempt, and not after the commit"


@pytest.mark.wide
def test_a_catalog_name_stands_for_the_tables_location(
    harness: Harness, spark: SparkSession, tmp_path: Path, agent: FakeAgent
) -> None:
    """Writers with other catalogs, or none, name the same table by its URI."""
    gate = harness.gate()
    spark.sql(f"create table named_trips (id long) using parquet location '{tmp_path}/trips'")
    try:
        for name in ("named_trips", "default.named_trips", "spark_catalog.default.named_trips"):
            gate.foreach_batch(commit, table=name, writer=name)(spark.range(1), 0)
    finally:
        spark.sql("drop table named_trips")

    uris = {event.table for event in agent.wait_for("commit-completed", 3)}
    assert uris == {(tmp_path / "trips").as_uri()}
    with pytest.raises(ValueError, match=r"no table of this name: 'named_trips'; .*TABLE_OR_VIEW_NOT_FOUND"):
        gate.foreach_batch(commit, table="named_trips", writer="w")
    spark.range(1).createOrReplaceTempView("a_view")
    with pytest.raises(ValueError, match="the catalog gives no location for table 'a_view'; write its URI"):
        gate.foreach_batch(commit, table="a_view", writer="w")


def test_a_table_is_named_by_the_sink_or_by_the_argument(harness: Harness) -> None:
    class Declared:
        table = TABLE

        def __call__(self, batch: DataFrame, txn: Transaction) -> None:
            raise AssertionError

    gate = harness.gate()
    with pytest.raises(ValueError, match="no table: pass `table`, or a sink that has an attribute `table`"):
        gate.foreach_batch(lambda *_: None, writer="w")
    with pytest.raises(ValueError, match="`table` is not the table that the sink writes"):
        gate.foreach_batch(Declared(), table="/lake/trips", writer="w")
    gate.foreach_batch(Declared(), table="/lake/flights", writer="w")


REFUSED = "refused"


def test_the_writers_name_has_the_query_id_in_every_thread_or_the_call_is_refused(
    run_query: RunQuery, spark: SparkSession
) -> None:
    """A thread pool's threads lack Spark's local property. A name without the id would skip rows after a new checkpoint."""
    context = spark.sparkContext
    other = spark.readStream.format("rate").load().writeStream.format("noop").start()
    ended = "00000000-0000-0000-0000-000000000000"
    named: dict[str, str] = {}
    query_ids: list[str] = []

    def name_of(rows: DataFrame) -> str:
        try:
            return wire_name("w", engine_of(rows).query_of(rows, "w"))
        except GateError as error:
            return REFUSED if "inheritable_thread_target" in str(error) else str(error)

    def in_thread(rows: DataFrame, query_id: str | None) -> str:
        def run() -> str:
            context.setLocalProperty(QUERY_ID_PROPERTY, query_id)  # type: ignore[arg-type]
            return name_of(rows)

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(run).result()

    def write(batch: DataFrame, _batch_id: int) -> None:
        mine = context.getLocalProperty(QUERY_ID_PROPERTY)
        assert mine is not None
        query_ids.append(mine)
        frames = {
            "batch": batch,
            "select": batch.select("id"),
            "union": batch.unionByName(spark.range(1)),
            "its session": batch.sparkSession.range(1),
            "made here": spark.range(1),
            "made here, union": spark.range(1).unionByName(batch),
            "new session": batch.sparkSession.newSession().range(1),
        }
        for name, rows in frames.items():
            named[f"{name}, own thread"] = name_of(rows)
            named[f"{name}, pool"] = in_thread(rows, None)
        for name in ("batch", "made here"):
            named[f"{name}, thread of an ended query"] = in_thread(frames[name], ended)
        named["batch, thread of another query"] = in_thread(batch, other.id)

    try:
        run_query(write)
    finally:
        other.stop()

    [query_id] = query_ids
    refused = {name for name, found in named.items() if found == REFUSED}
    assert refused == {
        *("made here, pool", "made here, union, pool", "new session, pool"),
        *("made here, thread of an ended query", "batch, thread of another query"),
    }
    assert {found for name, found in named.items() if name not in refused} == {f"w:{query_id}"}
    assert name_of(spark.range(1)) == in_thread(spark.range(1), ended) == "w", "no query runs"
