"""A driver that ends at a chosen step: it kills itself with its JVM and Python workers, as if its machine failed, or is stopped.

The step is `none`, or `<step>:<batch>`. The driver writes rows through a sink, one source file per batch, until its source is
used up. It appends every step of its gate to a file. With `STOP` in its environment, a thread calls `query.stop()` or
`spark.stop()` when a process of the driver has created that file.

With `--remote` it is a client of Spark Connect. Then the process of the query's function ends, by itself or with its query, or
the server does (`spark`). A client ends with them.
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
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from lakewarden.spark_jobs import CommitGate, GateEvent
from lakewarden.spark_jobs.engine.connect import WORKER_VARIABLE
from lakewarden.spark_jobs.gate.transaction import Transaction
from lakewarden.spark_jobs.jobs.spark_session import spark_session
from lakewarden.spark_jobs.sinks.delta.connect import ServerStatement
from lakewarden.spark_jobs.sinks.delta.observer import CommitObserver
from lakewarden.spark_jobs.sinks.hudi.write import HudiWrite
from lakewarden.spark_jobs.sinks.iceberg.driver import CheckedOperations
from lakewarden.spark_jobs.sinks.iceberg.metadata import BATCH
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
WAY = "LAKEWARDEN_TEST_WAY"


def die() -> None:
    """End the driver at this step.

    Return when the stop has begun. Or kill every process of this session, so that none can finish what it began, or sees
    another one end. They are suspended first, and killed by a child: were the JVM to end before this process, a thread of it
    would see that, and the driver would end with an error of its own.
    """
    if os.environ.get(WAY) == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ.get(WAY) == "spark":
        os.kill(os.getppid(), signal.SIGKILL)
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


def around(
    owner: Any, name: str, is_it: Callable[..., bool], act: Callable[[], object], *, before: bool
) -> None:
    """Act before or after each call of a function for which `is_it`, which gets the arguments."""
    original = getattr(owner, name)

    def acting(*arguments: Any) -> Any:
        wanted = is_it(*arguments)
        if wanted and before:
            act()
        answer = original(*arguments)
        if wanted and not before:
            act()
        return answer

    setattr(owner, name, acting)


def die_once_published(table_format: str, sink: Any, batch: int) -> None:
    """Die when the batch is durable, before the sink and the gate know it."""
    match table_format:
        case "parquet":  # after the link
            around(sink, "_publish", lambda _data, txn, _grant: txn.batch_id == batch, die, before=False)
        case "hudi":  # Hudi has completed the instant, and released its lock

            def is_completed(write: HudiWrite, event: str, _section: str) -> bool:
                return event == "committed" and write._txn.batch_id == batch

            around(HudiWrite, "answer", is_completed, die, before=True)
        case "delta":  # the version is in Delta's log, and Delta calls the observer
            statement = ServerStatement if on_server() else CommitObserver
            around(statement, "_report", lambda of, *_: of._txn.batch_id == batch, die, before=True)
        case "iceberg":  # the catalog has the new metadata, and Iceberg's own commit has not returned

            def is_of_batch(_operations: Any, _base: Any, metadata: Any) -> bool:
                return bool(metadata.currentSnapshot().summary().get(BATCH) == str(batch))

            around(CheckedOperations, "_swap", is_of_batch, die, before=False)
        case _:  # the snapshot is there, and the hint doesn't name it
            snapshots: Any = importlib.import_module("lakewarden.spark_jobs.sinks.paimon.snapshot_store")

            def is_snapshot(_store: Any, _name: str, body: bytes) -> bool:
                return bool(json.loads(body)["commitIdentifier"] == batch)

            around(snapshots.LinkedSnapshots, "put_if_absent", is_snapshot, die, before=False)


def die_while_staging(table_format: str, sink: Any, batch: int, table: Path) -> None:
    """Die in the middle of staging this batch."""
    match table_format:
        case "hudi":
            die_soon = partial(die_at_a_new_file, table)
            around(HudiWrite, "begin", lambda write, _: write._txn.batch_id == batch, die_soon, before=True)
        case "delta" | "iceberg":  # the tasks are those of the format's own statement
            die_soon = partial(die_at_a_new_file, table)
            step = "_execute" if table_format == "delta" else "_stage"
            around(type(sink), step, lambda *given: given[2].batch_id == batch, die_soon, before=True)
        case "parquet" if on_server():
            die_soon = partial(die_at_a_new_file, table)
            around(type(sink), "__call__", lambda *given: given[2].batch_id == batch, die_soon, before=True)
        case "parquet":
            kind: Any = type(sink)
            write = kind.__call__

            def write_half(self: Any, rows: DataFrame, txn: Transaction) -> None:
                write(self, die_half_staged(rows, table) if txn.batch_id == batch else rows, txn)

            kind.__call__ = write_half
        case _ if on_server():  # whose tasks can't end this process
            ways = importlib.import_module("lakewarden.spark_jobs.sinks.paimon.ways")
            die_soon = partial(die_at_a_new_file, table)
            around(ways, "stage_files", lambda _, staging: staging.identifier == batch, die_soon, before=True)
        case _:  # an upsert stages what its merge returned, not the rows of the batch
            paimon: Any = importlib.import_module("lakewarden.spark_jobs.sinks.paimon.ways")
            stage = paimon.stage_files

            def stage_half(rows: DataFrame, staging: Any) -> Any:
                return stage(die_half_staged(rows, table) if staging.identifier == batch else rows, staging)

            paimon.stage_files = stage_half


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


def on_server() -> bool:
    """Whether this is a process that Spark's server has started for the function of a query."""
    return WORKER_VARIABLE in os.environ


class Ending:
    """Writes batches, and ends the process at a step of one of them. A driver and a server's process arrange that themselves."""

    def __init__(self, options: argparse.Namespace, gate: CommitGate, sink: Any) -> None:
        self._options, self._sink = options, sink
        self._stop = os.environ.get(STOP)
        self._write = gate.foreach_batch(sink, writer="mortal")
        self._arranged = False

    def __call__(self, rows: DataFrame, number: int) -> None:
        if not self._arranged:
            self._arranged = True
            self._arrange()
        self._write(rows, number)

    def _arrange(self) -> None:
        if on_server():
            os.environ[WAY] = self._options.way
            os.environ[STOP] = self._stop or ""
        step, _, number = self._options.die_at.partition(":")
        table_format = self._options.sink.partition("-")[0]
        if step == "published":
            die_once_published(table_format, self._sink, int(number))
        elif step == "staging":
            die_while_staging(table_format, self._sink, int(number), Path(path_of(self._sink.table)))


def stop_on_demand(options: argparse.Namespace, spark: SparkSession, query: StreamingQuery) -> None:
    """Stop the query or Spark, and say when that has begun: it ends only when the batch has ended."""
    stop, by_server = Path(os.environ[STOP]), bool(options.remote)
    while not stop.exists():
        time.sleep(0.01)
    if by_server and options.way == "spark":  # it was killed
        Path(f"{stop}{BEGUN}").touch()
        os._exit(0)
    context: Any = None if by_server else spark.sparkContext._jsc.sc()
    threading.Thread(target=query.stop if options.way == "query" else spark.stop, daemon=True).start()
    while not context.isStopped() if options.way == "spark" else query.isActive:
        time.sleep(0.001)
    Path(f"{stop}{BEGUN}").touch()


def session_for(options: argparse.Namespace) -> SparkSession:
    if options.remote:
        session: SparkSession = SparkSession.builder.remote(options.remote).create()
        return session
    paimon_or_example = options.sink.startswith(("paimon", "parquet"))
    return spark_session(
        "mortal",
        master=os.environ.get(MASTER, "local[2,4]"),
        memory="512m" if paimon_or_example else "1g",
        **({} if paimon_or_example else format_settings()),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    names = ("bootstrap-servers", "topic-prefix", "sink", "table", "source", "checkpoint", "events", "die-at")
    for name in names:
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--way", choices=WAYS, required=True)
    parser.add_argument("--remote", default="")
    options = parser.parse_args()
    step, _, number = options.die_at.partition(":")
    spark = session_for(options)
    gate = CommitGate(
        options.bootstrap_servers,
        topic_prefix=options.topic_prefix,
        heartbeat_seconds=2.0,
        admission_timeout_seconds=120.0,
        observer=record_and_die(Path(options.events), step, int(number or -1)),
    )

    stream = spark.readStream.schema("month int, day int, flight long").option("maxFilesPerTrigger", 1)
    query = (
        stream.parquet(options.source)
        .writeStream.foreachBatch(Ending(options, gate, make_sink(options.sink, options.table)))
        .option("checkpointLocation", options.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    if STOP in os.environ:
        threading.Thread(target=stop_on_demand, args=(options, spark, query), daemon=True).start()
        with contextlib.suppress(Exception):  # on a stopped context, of any kind
            query.awaitTermination()
        assert Path(os.environ[STOP] + BEGUN).exists(), "it ended before its step"
        return
    try:
        query.awaitTermination()
    except Exception as error:
        if not options.remote or "crashed" not in str(error):
            raise
        os.kill(os.getpid(), signal.SIGKILL)  # as its query's process


if __name__ == "__main__":
    main()
