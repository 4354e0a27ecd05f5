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

On Spark Connect the driver is a client, and each query's function runs in a process of the server. There the gate's steps are
written to a file.
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
from dataclasses import astuple, dataclass, field, replace
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
from tests.spark.connect.server import connect_server

WARM_UP_BATCHES = {"delta": 24, "delta-connect": 6, "iceberg": 24, "hudi": 4}
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
    stops: list[float] = field(default_factory=list)
    """Seconds from each abort until what the attempt let Spark do had ended."""
    batches: list[float] = field(default_factory=list)
    """Seconds of each call of the batch function, as Spark reports them."""
    phases: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds in each of `PHASES`, and the number of `CALLS`."""
    _granted: dict[str, float] = field(default_factory=dict)
    _aborted: dict[str, float] = field(default_factory=dict)
    _running_since: dict[str, float] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget what was recorded."""
        self.useful.clear()
        self.vain.clear()
        self.commits.clear()
        self.grants_held.clear()
        self.stops.clear()
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
            self._begin(attempt, time.time())
            committed_by = None
            try:
                write(batch, attempt)
                committed_by = writer
            finally:
                self._end(attempt, committed_by, time.time())

        return run

    def observe(self, event: GateEvent) -> None:
        """Record the same of a transaction of the gate."""
        if event.what == "admitted":
            self._begin(event.transaction, event.at)
        elif event.what == "granted":
            self._granted[event.transaction] = event.at
        elif event.what == "abort":
            self._aborted[event.transaction] = event.at
        elif event.what == "completed":
            if (granted := self._granted.pop(event.transaction, None)) is not None:
                self.grants_held.append(event.at - granted)
            self._end(event.transaction, int(event.writer.partition(":")[0]), event.at)
        elif event.what in ("jobs-stopped", "abandoned", "failed"):
            if event.what == "jobs-stopped":
                self.stops.append(event.at - self._aborted.pop(event.transaction, event.at))
            self._end(event.transaction, None, event.at)

    def _begin(self, attempt: str, at: float) -> None:
        self._running_since[attempt] = at

    def _end(self, attempt: str, committed_by: int | None, at: float) -> None:
        began = self._running_since.pop(attempt, None)
        if began is not None:
            ran = self.vain if committed_by is None else self.useful
            ran.append(at - began)
        if committed_by is not None:
            self.commits[committed_by].append(at)


@dataclass(frozen=True, slots=True)
class StepsFile:
    """The gate's steps in processes of a server of Spark Connect."""

    path: Path

    def __call__(self, event: GateEvent) -> None:
        with self.path.open("a") as file:
            file.write(f"{json.dumps(astuple(event))}\n")

    def read(self) -> list[GateEvent]:
        """Return the steps since the last call."""
        if not self.path.exists():
            return []
        lines = self.path.read_text().splitlines()
        self.path.unlink()
        return [GateEvent(*json.loads(line)) for line in lines]


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
    with ExitStack() as stack:
        record = Record()
        steps = None
        if options.table_format.endswith("-connect"):
            steps = StepsFile(options.folder / "steps")
            more: dict[str, Any] = {"spark.driver.memory": "2g", "spark.sql.codegen.cache.maxEntries": "1000"}
            server = stack.enter_context(connect_server(options.folder, **more))
            spark = SparkSession.builder.remote(server.url).create()
        else:
            settings = settings_of(options.table_format, store)
            spark = spark_session("lakewarden-peers", master="local[2,4]", memory="2g", **settings)
        stack.callback(spark.stop)
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
                    observer=steps or record.observe,
                )
            )

        def measured(way: str, name: str, sizes: Workload, announce: Callable[[str], None]) -> dict[str, Any]:
            record.clear()
            through = None if way.startswith("native") else gate
            run = _Run(spark, options.table_format, way, options.folder, through, store, steps)
            return run.measure(f"{name}_{way}", sizes, record, announce)

        batches = min(WARM_UP_BATCHES[options.table_format], 6 * workload.batches)
        for way in ways:
            measured(way, "warm", replace(workload, writers=1, batches=batches), lambda _step: None)
        figures = [
            measured(way, f"table{number}", workload, _announce)
            for number in range(options.repeat)
            for way in ways
        ]
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
    steps: StepsFile | None
    """On Spark Connect."""

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
        began = time.time()
        wall = self._write(table, workload, source, record)
        cpu = cpu_seconds() - cpu
        for event in self.steps.read() if self.steps else ():
            record.observe(event)
        announce(STEPS[1])
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
            "cpu_seconds": round(cpu, 1),
            "batch_seconds": record.batches.copy(),
            "phases": {name: record.phases[name] for name in (CALLS, *PHASES)},
            "grants_held_seconds": [round(each, 3) for each in record.grants_held],
            "deaths": record.deaths,
            "useful_seconds": [round(each, 2) for each in record.useful],
            "abort_to_stop_seconds": [round(each, 3) for each in record.stops],
            "vain_seconds": [round(each, 2) for each in record.vain],
            "longest_wait_seconds": round(max(waits, default=0.0), 1),
            "rows_wrong": sum(((expected - found) + (found - expected)).values()),
        }

    def _write(self, table: Table, workload: Workload, source: Path, record: Record) -> float:
        """Let the writers write. Return the wall time."""
        raised: list[BaseException] = []

        def work(writer: int) -> None:
            try:
                self._supervise(source / str(writer), self._batch_function(table, writer, record), record)
            except BaseException as error:  # noqa: BLE001 - raised again below
                raised.append(error)

        threads = [
            InheritableThread(target=work, args=(each,), session=self.spark)
            for each in range(workload.writers)
        ]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wall = time.monotonic() - began
        if raised:
            raise raised[0]
        return wall

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
                .queryName(source.name)
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
