"""One run: one driver with all writers as streaming queries. Prints its figures as one line of JSON, the last.

Before the measured run one writer writes to another table by the same way, so that the JVM has loaded and compiled what it needs.

- *in vain*: the seconds for which attempts ran that committed nothing. Waiting for admission is not counted, because it computes
  nothing.
- *stopped*: for each attempt in vain how long it ran.
- *deaths*: how often a query ended with an exception, and was started again.
- *longest wait*: the longest time in which a writer that had batches left committed none.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyspark
from pyspark import InheritableThread
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from lakewarden.spark_jobs import CommitGate, GateEvent
from lakewarden.spark_jobs.jobs.spark_session import spark_session
from lakewarden.spark_jobs.streaming.admission import AdmissionMode
from tests.bench.peers.tables import Table, settings_of, table_of
from tests.bench.peers.workload import FIRST_ROWS, SCHEMA, Workload

WARM_UP = 3
"""Times the batches of a writer. The JVM compiles for long, and the gate's ways have more to compile."""

MAX_DEATHS = 50
"""Of one query: beyond that the run fails."""

BatchFunction = Callable[[DataFrame, int], None]


@dataclass
class Record:
    """What happened in one run. Its lists grow from several threads."""

    useful_seconds: list[float] = field(default_factory=list)
    vain_seconds: list[float] = field(default_factory=list)
    deaths: int = 0
    commits: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Times of the commits of each writer."""
    _running_since: dict[str, float] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget what was recorded."""
        self.useful_seconds.clear()
        self.vain_seconds.clear()
        self.commits.clear()
        self.deaths = 0

    def natively(self, writer: int, write: Callable[[DataFrame], None]) -> BatchFunction:
        """Return a batch function that records how long each attempt ran."""

        def run(batch: DataFrame, _batch_id: int) -> None:
            began = time.monotonic()
            try:
                write(batch)
            except BaseException:
                self.vain_seconds.append(time.monotonic() - began)
                raise
            self.useful_seconds.append(time.monotonic() - began)
            self.commits[writer].append(time.monotonic())

        return run

    def observe(self, event: GateEvent) -> None:
        """Record the same of a transaction of the gate."""
        if event.what == "admitted":
            self._running_since[event.transaction] = time.monotonic()
        elif event.what in ("completed", "jobs-stopped", "abandoned", "failed"):
            began = self._running_since.pop(event.transaction, None)
            if began is not None:
                ended = self.useful_seconds if event.what == "completed" else self.vain_seconds
                ended.append(time.monotonic() - began)
            if event.what == "completed":
                self.commits[int(event.writer.partition(":")[0])].append(time.monotonic())


def main() -> None:
    """Run once."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers.driver", description=__doc__)
    parser.add_argument("table_format")
    parser.add_argument("way")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workload", required=True, help="JSON")
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--topic-prefix", required=True)
    options = parser.parse_args()
    workload = Workload(**json.loads(options.workload))
    spark = spark_session(
        "lakewarden-peers",
        master="local[2,4]",
        memory="2g",
        hudi=pyspark.__version__.startswith("3.5."),
        **settings_of(options.table_format),
    )
    with ExitStack() as stack:
        record = Record()
        gate = None
        if not options.way.startswith("native"):
            gate = stack.enter_context(
                CommitGate(
                    options.bootstrap_servers,
                    topic_prefix=options.topic_prefix,
                    admission_timeout_seconds=900.0,
                    grant_timeout_seconds=900.0,
                    observer=record.observe,
                )
            )
        run = _Run(spark, options.table_format, options.way, options.folder, gate)
        run.measure("warm", replace(workload, writers=1, batches=WARM_UP * workload.batches), record)
        record.clear()
        figures = run.measure("table", workload, record)
    spark.stop()
    print(json.dumps(figures), flush=True)


@dataclass(frozen=True, slots=True)
class _Run:
    spark: SparkSession
    table_format: str
    way: str
    folder: Path
    gate: CommitGate | None

    def measure(self, name: str, workload: Workload, record: Record) -> dict[str, Any]:
        """Create the table, let the writers write, and compare the rows."""
        table = table_of(self.table_format, self.spark, self.folder, name)
        source = self.folder / "source" / name
        workload.write_files(source)
        table.create(self.spark.read.parquet(str(source / FIRST_ROWS)))
        raised: list[BaseException] = []

        def work(writer: int) -> None:
            try:
                self._supervise(source / str(writer), self._batch_function(table, writer, record), record)
            except BaseException as error:  # noqa: BLE001 - raised again below
                raised.append(error)

        threads = [InheritableThread(target=work, args=(each,)) for each in range(workload.writers)]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wall = time.monotonic() - began
        if raised:
            raise raised[0]
        found = Counter(
            {
                (row["writer"], row["batch"]): row["count"]
                for row in table.read().groupBy("writer", "batch").count().collect()
            }
        )
        expected = workload.expected()
        waits = [
            later - earlier
            for times in record.commits.values()
            for earlier, later in zip([began, *times], times, strict=False)
        ]
        return {
            "way": self.way,
            "wall_seconds": round(wall, 1),
            "deaths": record.deaths,
            "attempts": len(record.useful_seconds) + len(record.vain_seconds),
            "useful_seconds": [round(each, 2) for each in record.useful_seconds],
            "vain_seconds": [round(each, 2) for each in record.vain_seconds],
            "longest_wait_seconds": round(max(waits), 1),
            "rows_wrong": sum(((expected - found) + (found - expected)).values()),
        }

    def _batch_function(self, table: Table, writer: int, record: Record) -> BatchFunction:
        if self.gate is None:
            return record.natively(writer, table.native[self.way])
        admission: AdmissionMode = "auto" if self.way == "auto" else "optimistic"
        return self.gate.foreach_batch(table.sink(), writer=str(writer), admission=admission, max_attempts=50)

    def _supervise(self, source: Path, function: BatchFunction, record: Record) -> None:
        """Run the query to its end, and start it again when it dies."""
        stream = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
        for _ in range(MAX_DEATHS):
            query = (
                stream.writeStream.foreachBatch(function)
                .option("checkpointLocation", str(source) + "-checkpoint")
                .trigger(availableNow=True)
                .start()
            )
            try:
                query.awaitTermination()
                return
            except StreamingQueryException as error:
                record.deaths += 1
                print(f"died: {' '.join(str(error).split())[:300]}", file=sys.stderr, flush=True)
        raise RuntimeError(f"a query died {MAX_DEATHS} times; way={self.way}")


if __name__ == "__main__":
    main()
