"""A driver that writes Delta tables on S3 through the gate, as the lines of its standard input say.

| `do` | |
| --- | --- |
| `create` | create `table` |
| `write` | write a batch: `table`, `mode`, `writer`, `batch`, `flights` |
| `rows` | return the flights of `table` |
| `maintain` | run OPTIMIZE and VACUUM on `table`; return its number of files |
| `hide-internals` | let the sink find no S3A of Hadoop 3.4 |

The answer to each line is a JSON object in a file: what was asked for, or `error`. That of `write` has the attempts, the version,
the log store of each transaction's `DeltaLog`, and the warnings of the sink.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakewarden.spark_jobs import CommitGate, DeltaSink, GateEvent
from lakewarden.spark_jobs.jobs.spark_session import spark_session
from lakewarden.spark_jobs.sinks.delta import fence
from lakewarden.spark_jobs.sinks.delta.observer import CommitObserver
from tests.spark.cluster import MASTER
from tests.spark.formats import JARS, format_settings
from tests.spark.s3_driver import s3a_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = "month int, flight long"

OWN_LOG_STORE = "io.delta.storage.S3SingleDriverLogStore"
"""The choice of the user of these drivers, for tables at `s3://`."""


class Warnings(logging.Handler):
    """Keeps the messages of the sink."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


class Driver:
    """One Spark session and one gate."""

    def __init__(self, spark: SparkSession, gate: CommitGate, events: list[GateEvent]) -> None:
        self._spark = spark
        self._gate = gate
        self._events = events
        self._writes: dict[tuple[str, ...], Any] = {}
        self._warnings = Warnings()
        logging.getLogger("lakewarden.delta").addHandler(self._warnings)
        self._log_stores: list[str | None] = []
        start = CommitObserver._start

        def starting(observer: CommitObserver, make: Any) -> Any:
            delta = start(observer, make)
            self._log_stores.append(fence.log_store_of(delta.deltaLog()))
            return delta

        observer: Any = CommitObserver
        observer._start = starting

    def answer(self, asked: Mapping[str, Any]) -> Any:
        match asked["do"]:
            case "create":
                table = f"delta.`{asked['table']}`"
                self._spark.sql(f"CREATE TABLE {table} ({COLUMNS}) USING delta PARTITIONED BY (month)")
                return None
            case "write":
                return self._write(asked)
            case "rows":
                rows = self._spark.read.format("delta").load(asked["table"]).collect()
                return sorted(row["flight"] for row in rows)
            case "maintain":
                table = f"delta.`{asked['table']}`"
                self._spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
                # VACUUM lists by so many tasks, 10,000 by default.
                self._spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")
                self._spark.sql(f"OPTIMIZE {table}")
                self._spark.sql(f"VACUUM {table} RETAIN 0 HOURS")
                [detail] = self._spark.sql(f"DESCRIBE DETAIL {table}").collect()
                return detail["numFiles"]
            case "hide-internals":
                fence.INTERNALS = "org.apache.hadoop.fs.s3a.Missing"
                return None
            case other:
                raise ValueError(other)

    def _write(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        key = (asked["table"], asked["mode"], asked["writer"])
        if key not in self._writes:
            keys = ["flight"] if asked["mode"] == "upsert" else []
            sink = DeltaSink(asked["table"], mode=asked["mode"], keys=keys)
            self._writes[key] = sink, self._gate.foreach_batch(sink, writer=asked["writer"])
        sink, write = self._writes[key]
        rows = self._spark.createDataFrame([(1, flight) for flight in asked["flights"]], COLUMNS).coalesce(1)
        for kept in (self._warnings.messages, self._log_stores, self._events):
            kept.clear()
        write(rows, asked["batch"])
        return {
            "attempts": sum(event.what == "intent" for event in self._events),
            "version": sink.committed(asked["writer"], asked["batch"]),
            "log_stores": list(self._log_stores),
            "warnings": list(self._warnings.messages),
        }


def session(jars: str) -> SparkSession:
    """`jars`: of S3A."""
    # As a setting of the session they would replace those of the packages in what the executors load.
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {jars} pyspark-shell"
    settings: dict[str, Any] = format_settings() | s3a_settings()
    settings |= {
        "spark.jars.packages": JARS["delta"],
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.hadoop.fs.s3.impl": fence.S3A,
        # The SDK repeats no request, so what has to be repeated is repeated by the class.
        "spark.hadoop.fs.s3a.attempts.maximum": "1",
        "spark.delta.logStore.s3.impl": OWN_LOG_STORE,
    }
    return spark_session("delta-s3", master=os.environ.get(MASTER, "local[1,4]"), memory="768m", **settings)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("bootstrap-servers", "topic-prefix", "jars", "answers"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    events: list[GateEvent] = []
    with CommitGate(
        options.bootstrap_servers,
        topic_prefix=options.topic_prefix,
        heartbeat_seconds=1.0,
        admission_timeout_seconds=300.0,
        grant_timeout_seconds=300.0,
        observer=events.append,
    ) as gate:
        spark = session(options.jars)
        driver = Driver(spark, gate, events)
        for line in sys.stdin:
            try:
                answer = {"result": driver.answer(json.loads(line))}
            except Exception as error:  # noqa: BLE001 - the test decides what it means
                answer = {"error": f"{type(error).__name__}: {error}"[:5000]}
            with Path(options.answers).open("a") as file:
                file.write(f"{json.dumps(answer)}\n")
        spark.stop()


if __name__ == "__main__":
    main()
