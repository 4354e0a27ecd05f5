"""One driver with all writers as streaming queries. Prints the figures of its runs as one line of JSON, the last.

Before the measured runs one writer writes to another table by each way, so that the JVM has loaded and compiled what it needs.
Then the ways take turns, in one JVM: how much a JVM has compiled yet differs from run to run by more than the ways do.

The driver prints a line when a measured run begins and when it has ended (`STEPS`), and waits for a line on stdin: meanwhile
the program that started it reads the numbers of requests.

- *wasted*: the seconds for which attempts ran that committed nothing. Waiting for admission is not counted, because it computes
  nothing.
- *deaths*: how often a query ended with an exception, and was started again.
- *longest wait*: the longest time in which a writer that had batches left committed none.
- *CPU*: of this process and its JVM, while the writers write.
- *grant held*: from the grant until the writer published that its commit is in the table.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any

from py4j.clientserver import ClientServerConnection
from pyspark import InheritableThread
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from lakewarden.spark_jobs import CommitGate, GateEvent, Transaction
from lakewarden.spark_jobs.jobs.spark_session import spark_session
from lakewarden.spark_jobs.streaming.admission import AdmissionMode
from tests.bench.figures import cpu_seconds
from tests.bench.peers.tables import SINKS, Store, Table, settings_of, table_of
from tests.bench.peers.workload import FIRST_ROWS, SCHEMA, Workload

WARM_UP_BATCHES = {"delta": 24, "iceberg": 24, "hudi": 4}
"""The JVM compiles for long, and the gate's ways have more to compile. After 12 batches of Delta it still compiled."""

STEPS = ("began", "ended")

PHASES = {
    "scope": "plan",
    "look-ups": "committed",
    "intent → admitted": "open",
    "markers": "touch_all",
    "request → grant": "request_grant",
    "report": "finish",
}
"""By the method in which the gate spends them: of the sink, and of the transaction. A look-up is also part of the others."""

CALLS = "calls"

MAX_DEATHS = 50
"""Of one query: beyond that the run fails."""

BatchFunction = Callable[[DataFrame, int], None]


@dataclass
class Record:
    """What happened in one run. Its lists grow from several threads."""

    useful: list[float] = field(default_factory=list)
    """Seconds of each attempt that committed."""
    vain: list[float] = field(default_factory=list)
    """Seconds of each attempt that didn't."""
    deaths: int = 0
    commits: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Times of the commits of each writer."""
    grants_held: list[float] = field(default_factory=list)
    """Seconds of each grant."""
    batches: list[float] = field(default_factory=list)
    """Seconds of each call of the batch function, as Spark reports them."""
    phases: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds in each of `PHASES`, and the number of `CALLS`."""
    _granted: dict[str, float] = field(default_factory=dict)
    _running_since: dict[str, float] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget what was recorded."""
        self.useful.clear()
        self.vain.clear()
        self.commits.clear()
        self.grants_held.clear()
        self.batches.clear()
        self.phases.clear()
        self.deaths = 0

    def timed(self, owner: type, method: str, phase: str) -> None:
        """Add the time of each call of the method to the phase."""
        original = getattr(owner, method)

        @wraps(original)
        def wrapper(*args: Any, **keywords: Any) -> Any:
            began = time.monotonic()
            try:
                return original(*args, **keywords)
            finally:
                self.phases[phase] += time.monotonic() - began

        setattr(owner, method, wrapper)

    def count_calls(self) -> None:
        """Count the calls from Python into the JVM."""
        send = ClientServerConnection.send_command

        def counted(connection: ClientServerConnection, command: str) -> Any:
            self.phases[CALLS] += 1
            return send(connection, command)

        ClientServerConnection.send_command = counted

    def natively(self, writer: int, write: Callable[[DataFrame, str], None]) -> BatchFunction:
        """Return a batch function that records each attempt."""

        def run(batch: DataFrame, _batch_id: int) -> None:
            attempt = uuid.uuid4().hex
            self._begin(attempt)
            try:
                write(batch, attempt)
            except BaseException:
                self._end(attempt, None)
                raise
            self._end(attempt, writer)

        return run

    def observe(self, event: GateEvent) -> None:
        """Record the same of a transaction of the gate."""
        if event.what == "admitted":
            self._begin(event.transaction)
        elif event.what == "granted":
            self._granted[event.transaction] = time.monotonic()
        elif event.what == "completed":
            if (granted := self._granted.pop(event.transaction, None)) is not None:
                self.grants_held.append(time.monotonic() - granted)
            self._end(event.transaction, int(event.writer.partition(":")[0]))
        elif event.what in ("jobs-stopped", "abandoned", "failed"):
            self._end(event.transaction, None)

    def _begin(self, attempt: str) -> None:
        self._running_since[attempt] = time.monotonic()

    def _end(self, attempt: str, committed_by: int | None) -> None:
        now = time.monotonic()
        began = self._running_since.pop(attempt, None)
        if began is not None:
            ran = self.vain if committed_by is None else self.useful
            ran.append(now - began)
        if committed_by is not None:
            self.commits[committed_by].append(now)


def main() -> None:
    """Run each way as often as asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers.driver", description=__doc__)
    parser.add_argument("table_format")
    parser.add_argument("ways", help="separated by commas")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workload", required=True, help="JSON")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--store", help="JSON; default: the table is in the folder")
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--topic-prefix", required=True)
    options = parser.parse_args()
    workload = Workload(**json.loads(options.workload))
    store = None if options.store is None else Store(**json.loads(options.store))
    spark = spark_session(
        "lakewarden-peers", master="local[2,4]", memory="2g", **settings_of(options.table_format, store)
    )
    with ExitStack() as stack:
        record = Record()
        record.count_calls()
        for phase, method in PHASES.items():
            owner = Transaction if hasattr(Transaction, method) else SINKS[options.table_format]
            record.timed(owner, method, phase)
        ways = options.ways.split(",")
        gate = None
        if not all(way.startswith("native") for way in ways):
            gate = stack.enter_context(
                CommitGate(
                    options.bootstrap_servers,
                    topic_prefix=options.topic_prefix,
                    admission_timeout_seconds=900.0,
                    grant_timeout_seconds=900.0,
                    observer=record.observe,
                )
            )

        def measured(way: str, name: str, sizes: Workload, announce: Callable[[str], None]) -> dict[str, Any]:
            record.clear()
            through = None if way.startswith("native") else gate
            run = _Run(spark, options.table_format, way, options.folder, through, store)
            return run.measure(f"{name}_{way}", sizes, record, announce)

        batches = min(WARM_UP_BATCHES[options.table_format], 6 * workload.batches)
        for way in ways:
            measured(way, "warm", replace(workload, writers=1, batches=batches), lambda _step: None)
        figures = [
            measured(way, f"table{number}", workload, _announce)
            for number in range(options.repeat)
            for way in ways
        ]
    spark.stop()
    print(json.dumps(figures), flush=True)


def _announce(step: str) -> None:
    print(step, flush=True)
    sys.stdin.readline()


@dataclass(frozen=True, slots=True)
class _Run:
    spark: SparkSession
    table_format: str
    way: str
    folder: Path
    gate: CommitGate | None
    store: Store | None

    def measure(
        self, name: str, workload: Workload, record: Record, announce: Callable[[str], None]
    ) -> dict[str, Any]:
        """Create the table, let the writers write, and compare the rows."""
        table = table_of(self.table_format, self.spark, self.folder, name, self.store, append=workload.append)
        source = self.folder / "source" / name
        workload.write_files(source)
        table.create(self.spark.read.parquet(str(source / FIRST_ROWS)))
        announce(STEPS[0])
        cpu = cpu_seconds()
        wall, waits = self._write(table, workload, source, record)
        cpu = cpu_seconds() - cpu
        announce(STEPS[1])
        found = Counter(
            {
                (row["writer"], row["batch"]): row["count"]
                for row in table.read().groupBy("writer", "batch").count().collect()
            }
        )
        expected = workload.expected()
        return {
            "way": self.way,
            "wall_seconds": round(wall, 1),
            "cpu_seconds": round(cpu, 1),
            "batch_seconds": record.batches.copy(),
            "phases": {name: record.phases[name] for name in (CALLS, *PHASES)},
            "grants_held_seconds": [round(each, 3) for each in record.grants_held],
            "deaths": record.deaths,
            "useful_seconds": [round(each, 2) for each in record.useful],
            "vain_seconds": [round(each, 2) for each in record.vain],
            "longest_wait_seconds": round(max(waits), 1),
            "rows_wrong": sum(((expected - found) + (found - expected)).values()),
        }

    def _write(
        self, table: Table, workload: Workload, source: Path, record: Record
    ) -> tuple[float, list[float]]:
        """Let the writers write. Return the wall time, and the times between the commits of each writer."""
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
        waits = [
            later - earlier
            for times in record.commits.values()
            for earlier, later in zip([began, *times], times, strict=False)
        ]
        return wall, waits

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
                written = [each["durationMs"] for each in query.recentProgress if each["numInputRows"]]
                record.batches += [each["addBatch"] / 1000 for each in written]
                return
            except StreamingQueryException as error:
                record.deaths += 1
                print(f"died: {' '.join(str(error).split())[:300]}", file=sys.stderr, flush=True)
        raise RuntimeError(f"a query died {MAX_DEATHS} times; way={self.way}")


if __name__ == "__main__":
    main()
