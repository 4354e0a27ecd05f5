"""A driver that ends at a chosen step: it kills itself with its JVM and Python workers, as if its machine failed, or is stopped.

The step is `none`, or `<step>:<batch>`. The driver writes rows through a sink, one source file per batch, until its source is
used up. It appends every step of its gate to a file. With `STOP` in its environment, a thread calls `query.stop()` or
`spark.stop()` when a process of the driver has created that file.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from lakewarden.spark_jobs import CommitGate, GateEvent, Grant
from lakewarden.spark_jobs.gate.transaction import Transaction
from lakewarden.spark_jobs.jobs.spark_session import spark_session
from lakewarden.spark_jobs.sinks.iceberg.table import BATCH
from tests.posix_session import posix_session_members
from tests.spark.cluster import MASTER
from tests.spark.formats import format_settings, path_of
from tests.spark.sinks.cases import make_sink

STEPS = ("intent", "admitted", "staging", "requested", "granted", "published", "completed")
"""In the order in which a batch goes through them. All but two are steps of the gate. At `staging`, one task has written its
file and another has not; the tasks of Hudi, Delta and Iceberg may have written both. At `published`, the snapshot is durable
and not yet reported."""

WAYS = ("kill", "query", "spark")
STOP = "LAKEWARDEN_TEST_STOP"
"""An environment variable: the file by which a process of the driver demands the stop. With `BEGUN`, the stop has begun."""
BEGUN = ".begun"


def die() -> None:
    """End the driver at this step.

    Return when the stop has begun. Or kill every process of this session, so that none can finish what it began, or sees
    another one end. They are suspended first, and killed by a child: were the JVM to end before this process, a thread of it
    would see that, and the driver would end with an error of its own.
    """
    if stop := os.environ.get(STOP):
        Path(stop).touch()
        while not Path(stop + BEGUN).exists():
            time.sleep(0.001)
        return
    me = os.getpid()
    others = [process for process in posix_session_members(os.getsid(0)) if process != me]
    for other in others:
        with contextlib.suppress(ProcessLookupError):  # a Python worker that has ended since
            os.kill(other, signal.SIGSTOP)
    if os.fork() == 0:
        for process in (me, *others):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        os._exit(0)
    threading.Event().wait()  # for the child


def record_and_die(events: Path, step: str, batch: int) -> Callable[[GateEvent], None]:
    def observe(event: GateEvent) -> None:
        with events.open("a") as file:
            file.write(f"{json.dumps([event.batch_id, event.what, event.transaction])}\n")
        if (event.what, event.batch_id) == (step, batch):
            die()

    return observe


def paimon_dies_once_published(batch: int) -> None:
    """Die when the snapshot is there, before the sink knows it and before the hint names it."""
    store: Any = importlib.import_module("lakewarden.spark_jobs.sinks.paimon.snapshot_store").LinkedSnapshots
    put = store.put_if_absent

    def put_and_die(self: Any, name: str, body: bytes) -> Any:
        answer = put(self, name, body)
        if json.loads(body)["commitIdentifier"] == batch:
            die()
        return answer

    store.put_if_absent = put_and_die


def parquet_dies_once_published(sink: Any, batch: int) -> None:
    """Die after the link, before the gate learns of it."""
    publish = sink._publish

    def publish_and_die(data: Path, txn: Transaction, grant: Grant) -> str:
        version = str(publish(data, txn, grant))
        if txn.batch_id == batch:
            die()
        return version

    sink._publish = publish_and_die


def paimon_dies_while_staging(batch: int, table: Path) -> None:
    """Die in the middle of staging this batch. An upsert stages what its merge returned, not the rows of the batch."""
    sink: Any = importlib.import_module("lakewarden.spark_jobs.sinks.paimon.sink")
    stage = sink.stage_files

    def stage_half(rows: DataFrame, staging: Any) -> Any:
        return stage(die_half_staged(rows, table) if staging.identifier == batch else rows, staging)

    sink.stage_files = stage_half


def parquet_dies_while_staging(sink: Any, batch: int, table: Path) -> None:
    """Die in the middle of staging this batch."""
    kind: Any = type(sink)
    write = kind.__call__

    def write_half(self: Any, rows: DataFrame, txn: Transaction) -> None:
        write(self, die_half_staged(rows, table) if txn.batch_id == batch else rows, txn)

    kind.__call__ = write_half


def hudi_dies_once_published(batch: int) -> None:
    """Die when Hudi has completed the instant and released its lock, before the sink learns of it."""
    write: Any = importlib.import_module("lakewarden.spark_jobs.sinks.hudi.write").HudiWrite
    answer = write.answer

    def answer_or_die(self: Any, event: str, section: str) -> Any:
        if event == "committed" and self._txn.batch_id == batch:
            die()
        return answer(self, event, section)

    write.answer = answer_or_die


def delta_dies_once_published(batch: int) -> None:
    """Die when the version is in Delta's log, in its call of the observer."""
    observer: Any = importlib.import_module("lakewarden.spark_jobs.sinks.delta.observer").CommitObserver
    report = observer._report

    def die_or_report(self: Any, *arguments: Any) -> None:
        if self._txn.batch_id == batch:
            die()
        report(self, *arguments)

    observer._report = die_or_report


def iceberg_dies_once_published(batch: int) -> None:
    """Die when the catalog has the new metadata, before Iceberg's own commit returns."""
    operations: Any = importlib.import_module("lakewarden.spark_jobs.sinks.iceberg.staging").CheckedOperations
    swap = operations._swap

    def swap_and_die(self: Any, base: Any, metadata: Any) -> None:
        swap(self, base, metadata)
        if metadata.currentSnapshot().summary().get(BATCH) == str(batch):
            die()

    operations._swap = swap_and_die


def hudi_dies_while_staging(batch: int, table: Path) -> None:
    """Die when the first data file of this batch is there."""
    write: Any = importlib.import_module("lakewarden.spark_jobs.sinks.hudi.write").HudiWrite
    begin = write.begin

    def begin_and_die(self: Any, answer: Any) -> None:
        if self._txn.batch_id == batch:
            die_at_a_new_file(table)
        begin(self, answer)

    write.begin = begin_and_die


def spark_dies_while_staging(sink: Any, batch: int, table: Path) -> None:
    """Die when the first data file of this batch is there: the tasks are those of Delta's or Iceberg's own statement."""
    kind: Any = type(sink)
    write = kind.__call__

    def write_and_die(self: Any, rows: DataFrame, txn: Transaction) -> None:
        if txn.batch_id == batch:
            die_at_a_new_file(table)
        write(self, rows, txn)

    kind.__call__ = write_and_die


def die_at_a_new_file(table: Path) -> None:
    """Let a thread of this driver wait for the next data file, and die."""
    before = len(list(table.rglob("*.parquet")))
    threading.Thread(target=_await_and_die, args=(table, before), daemon=True).start()


def _await_and_die(table: Path, before: int) -> None:
    while len(list(table.rglob("*.parquet"))) == before:
        time.sleep(0.01)
    die()


def die_half_staged(rows: DataFrame, table: Path) -> DataFrame:
    """Let the task with the row of day 2 wait until the other one has written its file; then die."""
    before = len(list(table.rglob("*.parquet")))

    def waiting(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            if 2 in batch.column("day").to_pylist():
                while len(list(table.rglob("*.parquet"))) == before:
                    time.sleep(0.01)
                die()
            yield batch

    return rows.repartition(2, "day").mapInArrow(waiting, rows.schema)


def stop_on_demand(way: str, spark: SparkSession, query: StreamingQuery) -> None:
    """Stop the query or Spark, and say when that has begun: it ends only when the batch has ended."""
    context: Any = spark.sparkContext._jsc.sc()
    while not Path(os.environ[STOP]).exists():
        time.sleep(0.01)
    threading.Thread(target=query.stop if way == "query" else spark.stop, daemon=True).start()
    while not context.isStopped() if way == "spark" else query.isActive:
        time.sleep(0.001)
    Path(os.environ[STOP] + BEGUN).touch()


def main() -> None:
    parser = argparse.ArgumentParser()
    names = ("bootstrap-servers", "topic-prefix", "sink", "table", "source", "checkpoint", "events", "die-at")
    for name in names:
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--way", choices=WAYS, required=True)
    options = parser.parse_args()
    step, _, number = options.die_at.partition(":")
    batch = int(number or -1)
    table_format = options.sink.partition("-")[0]
    paimon_or_example = table_format in {"paimon", "parquet"}
    spark = spark_session(
        "mortal",
        master=os.environ.get(MASTER, "local[2,4]"),
        memory="512m" if paimon_or_example else "1g",
        **({} if paimon_or_example else format_settings()),
    )
    sink = make_sink(options.sink, options.table)
    table = Path(path_of(sink.table))
    match step, table_format:
        case "published", "parquet":
            parquet_dies_once_published(sink, batch)
        case "published", "hudi":
            hudi_dies_once_published(batch)
        case "published", "delta":
            delta_dies_once_published(batch)
        case "published", "iceberg":
            iceberg_dies_once_published(batch)
        case "published", _:
            paimon_dies_once_published(batch)
        case "staging", "parquet":
            parquet_dies_while_staging(sink, batch, table)
        case "staging", "hudi":
            hudi_dies_while_staging(batch, table)
        case "staging", "delta" | "iceberg":
            spark_dies_while_staging(sink, batch, table)
        case "staging", _:
            paimon_dies_while_staging(batch, table)
        case _:
            pass  # the gate's observer kills it
    gate = CommitGate(
        options.bootstrap_servers,
        topic_prefix=options.topic_prefix,
        heartbeat_seconds=2.0,
        admission_timeout_seconds=120.0,
        observer=record_and_die(Path(options.events), step, batch),
    )

    stream = spark.readStream.schema("month int, day int, flight long").option("maxFilesPerTrigger", 1)
    query = (
        stream.parquet(options.source)
        .writeStream.foreachBatch(gate.foreach_batch(sink, writer="mortal"))
        .option("checkpointLocation", options.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    if STOP not in os.environ:
        query.awaitTermination()
        return
    threading.Thread(target=stop_on_demand, args=(options.way, spark, query), daemon=True).start()
    with contextlib.suppress(Exception):  # on a stopped context, of any kind
        query.awaitTermination()
    assert Path(os.environ[STOP] + BEGUN).exists(), "it ended before its step"


if __name__ == "__main__":
    main()
