"""How long a batch takes to stop after its abort: from just before the abort is published until the gate returns.

The batches run in a streaming query on local Spark, with a gate that reads the abort from Kafka, published by a scripted agent.
`latency.py` measures the agent's own part. The aborts come at evenly spread times after the batch's first task began.

The parts, by the clock of this machine:

- Kafka: until the gate has received the abort.
- Job: until Spark calls the job failed.
- Tasks: until the last task of the job has ended, as Spark records it.
- Gate: until the gate has noticed, and would discard what was staged.

The kinds of batches:

- JVM: Spark's own code, an aggregation.
- Python, rows flow: a function for `mapInArrow` that returns a batch of rows every few milliseconds.
- Python, silent: a function that returns nothing for a minute, as one that computes or writes for long.
- Paimon: an upsert of `PaimonSink`, aborted at a random moment of it.

A run whose batch committed before its abort came is repeated, and counted as missed. So the machine was busy.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pypaimon import CatalogFactory, Schema
from pyspark.sql import DataFrame, SparkSession

from lakewarden.spark_jobs import CommitAborted, CommitGate, GateError, GateEvent, PaimonSink
from lakewarden.spark_jobs.gate.transaction import Transaction
from lakewarden.spark_jobs.jobs.spark_session import spark_session
from tests.bench.figures import summary
from tests.bench.run import Figures, Run
from tests.spark.fake_agent import FakeAgent, aborted, fake_agent, grant_everything
from tests.waiting import wait_until

PARTS = ("kafka", "job", "tasks", "gate", "whole")
SPREAD_SECONDS = 2.0
"""Of the aborts after the start of the first task: Spark looks after a silent Python worker every two seconds."""

UPSERT_ROWS = 400_000

MAX_TASKS = 1_000

COMPUTING = "computing"
"""Name of a file that a Python function creates when it computes: a new worker starts for a while."""

Write = Callable[[DataFrame, Transaction], object]


def measure(run: Run) -> Figures:
    """Milliseconds of each part, for each kind of batch."""
    folder = run.folder
    spark = spark_session("lakewarden-bench", master="local[2,4]")
    runs: Figures = {}

    def measure_all(first: DataFrame, _batch_id: int) -> None:
        with fake_agent(run.servers, run.prefix, grant_everything) as agent:
            for name, write in _kinds(spark, folder).items():
                computing = folder / COMPUTING if name.startswith("python") else None
                runs[name] = _stop(first, agent, write, run.size.aborts, computing)

    try:
        _in_a_query(spark, folder, measure_all)
    finally:
        spark.stop()
    return runs


def _in_a_query(spark: SparkSession, folder: Path, function: Callable[[DataFrame, int], None]) -> None:
    """Call `function` as the batch function of a streaming query, once: Spark interrupts the tasks of a query's jobs."""
    source = str(folder / "source")
    spark.range(1).coalesce(1).write.parquet(source)
    stream = spark.readStream.schema("id long").parquet(source)
    query = (
        stream.writeStream.foreachBatch(function)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _kinds(spark: SparkSession, folder: Path) -> dict[str, Write]:
    computing = folder / COMPUTING

    def jvm(_batch: DataFrame, _txn: Transaction) -> None:
        spark.range(10**12).selectExpr("id % 1000 as k", "sqrt(id) as v").groupBy("k").sum("v").collect()

    def row_by_row(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            computing.touch()
            time.sleep(0.005)
            yield batch

    def for_a_minute(batches: Iterable[Any]) -> Iterator[Any]:
        """Takes all of its input, and then has no result for long."""
        taken = list(batches)
        computing.touch()
        time.sleep(60)
        yield from taken

    def flowing(_batch: DataFrame, _txn: Transaction) -> None:
        spark.range(0, 10**9, 1, 2).mapInArrow(row_by_row, "id long").groupBy().count().collect()

    def silent(_batch: DataFrame, _txn: Transaction) -> None:
        spark.range(0, 2, 1, 2).mapInArrow(for_a_minute, "id long").collect()

    return {"jvm": jvm, "python_flowing": flowing, "python_silent": silent, "paimon": _upsert(spark, folder)}


def _upsert(spark: SparkSession, folder: Path) -> Write:
    schema = pa.schema([("day", pa.int32()), ("key", pa.int64()), ("value", pa.float64())])
    catalog = CatalogFactory.create({"warehouse": str(folder / "warehouse")})
    catalog.create_database("bench", ignore_if_exists=True)
    made = Schema.from_pyarrow_schema(schema, partition_keys=["day"])
    catalog.create_table("bench.t", made, ignore_if_exists=False)
    sink = PaimonSink(str(folder / "warehouse" / "bench.db" / "t"), mode="upsert", keys=["key"])

    def write(_batch: DataFrame, txn: Transaction) -> None:
        rows = spark.range(UPSERT_ROWS).selectExpr("cast(id % 4 as int) day", "id key", "rand() value")
        sink(rows, txn)

    return write


@dataclass(frozen=True, slots=True)
class _Abort:
    """One abort: how long after the batch began to compute, and which file shows that it did. None: Spark's tasks show it."""

    delay_seconds: float
    computing: Path | None
    steps: list[GateEvent] = field(default_factory=list)

    @property
    def committed(self) -> bool:
        return any(step.what == "completed" for step in self.steps)


def _stop(
    first: DataFrame, agent: FakeAgent, write: Write, aborts: int, computing: Path | None
) -> dict[str, Any]:
    """Run the batch and abort it, several times. One more run comes first and isn't counted: it starts Python workers.

    Return the summary of each part, and how many runs were missed. More than `aborts` of them are not repeated.
    """
    parts: dict[str, list[float]] = {part: [] for part in PARTS}
    missed, number = 0, -1
    while number < aborts and missed <= aborts:
        run = _Abort(SPREAD_SECONDS * max(number, 0) / aborts, computing)
        servers, prefix = agent.bootstrap_servers, agent.topics.prefix
        with CommitGate(servers, topic_prefix=prefix, observer=run.steps.append) as gate:
            times = _one_stop(gate, first, agent, write, run)
        if times is None:
            missed += 1
            continue
        for part, seconds in times.items() if number >= 0 else ():
            parts[part].append(seconds * 1e3)
        number += 1
    return {part: summary(times) for part, times in parts.items() if times} | {"missed": missed}


def _one_stop(
    gate: CommitGate, first: DataFrame, agent: FakeAgent, write: Write, run: _Abort
) -> dict[str, float] | None:
    """Run the batch and abort it once. Return the seconds of each part, or None if the batch committed before the abort."""
    context = first.sparkSession.sparkContext
    tracker = context._jsc.sc().statusTracker()
    if run.computing is not None:
        run.computing.unlink(missing_ok=True)
    published: list[float] = []
    tags: list[str] = []
    aborting: list[threading.Thread] = []

    def abort(txn: Transaction) -> None:
        try:
            wait_until(
                lambda: (
                    run.committed
                    or (run.computing.exists() if run.computing else _tasks_run(tracker, tags[0]))
                )
            )
            time.sleep(run.delay_seconds)
        finally:  # without its abort, a batch that computes for hours would go on
            published.append(time.time())
            agent.publish(aborted(next(e for e in agent.events if e.transaction == txn.id)))

    def body(batch: DataFrame, txn: Transaction) -> None:
        tags.append(f"lakewarden-{txn.id}")
        aborting.append(threading.Thread(target=abort, args=(txn,)))
        aborting[0].start()
        while True:
            write(batch, txn)

    batch_function = gate.foreach_batch(
        body, table="file:///bench", writer="w", admission="optimistic", max_attempts=1
    )
    try:
        batch_function(first, 0)
    except CommitAborted:
        pass
    except GateError:  # a second commit is refused
        if not run.committed:
            raise
        return None
    finally:
        aborting[0].join()
    received, stopped = (
        next(e.at for e in run.steps if e.what == what) for what in ("abort", "jobs-stopped")
    )
    # An abort between two jobs finds none to cancel: then the body ends without one.
    ends = _ends(context._jsc.sc().statusStore(), tracker, tags[0])
    job_failed, task_ended = (max(received, end) for end in ends)
    return {
        "kafka": received - published[0],
        "job": job_failed - received,
        "tasks": task_ended - job_failed,
        "gate": stopped - task_ended,
        "whole": stopped - published[0],
    }


def _tasks_run(tracker: Any, tag: str) -> bool:
    stages = [
        stage for job in tracker.getJobIdsForTag(tag) for stage in tracker.getJobInfo(job).get().stageIds()
    ]
    return any(info.isDefined() and info.get().numActiveTasks() for info in map(tracker.getStageInfo, stages))


def _ends(store: Any, tracker: Any, tag: str) -> tuple[float, float]:
    """When the last job with the tag failed, and when its last task ended, in seconds since the epoch.

    A task that was cancelled before it began has no end of its own.
    """
    job = store.job(max(tracker.getJobIdsForTag(tag)))
    failed = job.completionTime().get().getTime()
    ended = [failed]
    for number in range(job.stageIds().size()):
        stage = job.stageIds().apply(number)
        if not tracker.getStageInfo(stage).isDefined():
            continue
        tasks = store.taskList(stage, store.lastStageAttempt(stage).attemptId(), MAX_TASKS)
        every = [tasks.apply(index) for index in range(tasks.size())]
        ended += [
            task.launchTime().getTime() + task.duration().get()
            for task in every
            if task.duration().isDefined()
        ]
    return failed / 1e3, max(ended) / 1e3


def rows(report: Figures) -> Iterator[tuple[str, ...]]:
    """The table that `make bench` prints: median and maximum of each part, in milliseconds."""
    yield ("abort → stopped, p50 / max in ms", *PARTS, "missed")
    for name, parts in report.items():
        figures = (parts.get(part) for part in PARTS)
        shown = ("–" if each is None else f"{each['p50']:.0f} / {each['max']:.0f}" for each in figures)
        yield (name, *shown, str(parts["missed"]))
