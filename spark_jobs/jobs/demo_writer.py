"""One of the demo's writers: a streaming query that upserts small Parquet files into one table of any format.

`lakewarden demo` starts it as a process and never imports it. The query ends when its input is used up. Every step of its gate
is appended to `--events` as one JSON line, flushed at once; the demo draws from that file.

With `--without-agent` the query writes as pypaimon alone does, and records the steps that it has. What the formats' own writers
do is in `make bench PEERS=…`.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from lakewarden.events import DEFAULT_PREFIX
from lakewarden.spark_jobs.commit_gate import CommitGate
from lakewarden.spark_jobs.gate.observer import GateEvent, Step
from lakewarden.spark_jobs.jobs.demo_formats import FORMATS, ON_SPARK, PAIMON, paimon_sink
from lakewarden.spark_jobs.jobs.program_logs import log_warnings_to_stderr
from lakewarden.spark_jobs.jobs.spark_session import LOCAL_MASTER, spark_session
from lakewarden.spark_jobs.sinks.contract import Sink
from lakewarden.spark_jobs.sinks.paimon.sink import PaimonSink
from lakewarden.spark_jobs.streaming.admission import AdmissionMode
from lakewarden.spark_jobs.streaming.stopping import run_until_stopped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

HEARTBEAT_SECONDS = 2.0
"""Shorter than the default, because the demo's batches take seconds."""


class EventsFile:
    """An observer that appends each event to a file, one JSON object per line."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._lock = threading.Lock()

    def __call__(self, event: GateEvent) -> None:
        line = json.dumps(asdict(event), default=str)
        with self._lock:
            self._file.write(f"{line}\n")


def write_without_agent(sink: PaimonSink, role: str, events: EventsFile) -> Callable[[DataFrame, int], None]:
    """Return a batch function that uses no agent. It records its steps as the gate would."""

    def write(batch: DataFrame, batch_id: int) -> None:
        transaction = uuid.uuid4().hex

        def record(what: Step, **detail: Any) -> None:
            events(GateEvent(time.time(), what, sink.table, role, transaction, batch_id, 1, detail))

        record("intent")
        try:
            version = sink.write(batch, batch_id)
        except Exception as error:
            record("failed", error=str(error)[:500])
            raise
        record("completed", version=version)

    return write


def start(spark: SparkSession, options: argparse.Namespace) -> StreamingQuery:
    """Start the query."""
    events = EventsFile(options.events)
    if options.without_agent:
        sink = paimon_sink(options.table, options.keys, options.s3_endpoint)
        write = write_without_agent(sink, options.role, events)
    else:
        gate = CommitGate(
            options.bootstrap_servers,
            topic_prefix=options.topic_prefix,
            heartbeat_seconds=HEARTBEAT_SECONDS,
            observer=events,
        )
        write = gate.foreach_batch(_sink(options), writer=options.role, admission=options.admission)
    source = (
        spark.readStream.schema(spark.read.parquet(options.input).schema)
        .option("maxFilesPerTrigger", options.max_files_per_trigger)
        .parquet(options.input)
    )
    if options.format in ON_SPARK:
        source = ON_SPARK[options.format].stream(spark, options.table, source)
    return (
        source.writeStream.queryName(options.role)
        .foreachBatch(write)
        .option("checkpointLocation", options.checkpoint)
        .trigger(availableNow=True)
        .start()
    )


def _sink(options: argparse.Namespace) -> Sink:
    if options.format in ON_SPARK:
        return ON_SPARK[options.format].sink(options.table, options.keys)
    return paimon_sink(options.table, options.keys, options.s3_endpoint)


def _session(options: argparse.Namespace) -> SparkSession:
    name = f"lakewarden-demo-{options.role}"
    if options.format in ON_SPARK:
        return ON_SPARK[options.format].session(
            name, options.table, options.master, catalog=options.catalog, downloaded=True
        )
    return spark_session(name, master=options.master)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one writer until its input is used up."""
    options = _parser().parse_args(argv)
    log_warnings_to_stderr()
    if not options.without_agent and not options.bootstrap_servers:
        _parser().error("--bootstrap-servers is required, unless --without-agent is given")

    if options.format != PAIMON and (options.without_agent or options.s3_endpoint):
        _parser().error(f"--without-agent and --s3-endpoint are for --format {PAIMON}")

    return run_until_stopped(lambda: start(_session(options), options), name=f"the {options.role} query")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lakewarden.spark_jobs.jobs.demo_writer", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--role", required=True, choices=["departures", "arrivals"], help="the writer's name")
    parser.add_argument("--input", required=True, help="folder of small Parquet files")
    parser.add_argument("--table", required=True, help="URI of the table")
    parser.add_argument(
        "--format", default=PAIMON, choices=FORMATS, help="of the table; default: %(default)s"
    )
    parser.add_argument("--catalog", help="URI of Iceberg's REST catalog")
    parser.add_argument("--keys", required=True, type=_names, help="key columns, separated by commas")
    parser.add_argument("--checkpoint", required=True, help="folder of Spark's checkpoint")
    parser.add_argument(
        "--events", required=True, type=Path, help="file to which the gate's steps are appended as JSON lines"
    )
    parser.add_argument("--bootstrap-servers", help="Kafka, host:port[,host:port…]")
    parser.add_argument("--topic-prefix", default=DEFAULT_PREFIX, help="default: %(default)s")
    parser.add_argument(
        "--admission", default="auto", choices=get_args(AdmissionMode), help="default: %(default)s"
    )
    parser.add_argument("--without-agent", action="store_true", help="write as pypaimon alone does")
    parser.add_argument("--s3-endpoint", help="URL of the table's S3 server")
    parser.add_argument(
        "--max-files-per-trigger", type=int, default=1, help="files per batch; default: %(default)s"
    )
    parser.add_argument(
        "--available-now",
        action="store_true",
        help="exit when the input is used up (the program always does)",
    )
    parser.add_argument("--master", default=LOCAL_MASTER, help="Spark master; default: %(default)s")
    return parser


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise argparse.ArgumentTypeError("name at least one column")
    return names


if __name__ == "__main__":
    sys.exit(main())
