"""A driver whose network to S3 is cut in the middle of Hudi's commits, once in each batch, within the grant's lease or beyond it.

It does what a streaming query does: a batch that failed is repeated until it succeeds, and the last one is replayed. It writes
one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakewarden.spark_jobs import CommitGate, HudiSink
from lakewarden.spark_jobs.sinks.hudi.write import HudiWrite
from tests.servers.proxy import Cut, Proxy
from tests.spark.hudi_s3 import LOCK, PLAIN, filesystem_on_s3, session_on_s3
from tests.spark.sinks.cases import HUDI_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GRANT_SECONDS = 20
WITHIN, BEYOND = 4.0, 2.0 * GRANT_SECONDS

ANY_REQUEST = re.compile(rb"[A-Z]+ ")
PUBLISH = re.compile(rb"PUT /[^/]+/trips/\.hoodie/timeline/\d+_\d+\.commit")
"""Hudi's write of the completed instant."""

CUTS = (
    Cut(ANY_REQUEST, answered=False, seconds=WITHIN),
    Cut(PUBLISH, answered=False, seconds=WITHIN),
    Cut(PUBLISH, answered=True, seconds=WITHIN),
    Cut(ANY_REQUEST, answered=False, seconds=BEYOND),
    Cut(PUBLISH, answered=False, seconds=BEYOND),
    Cut(PUBLISH, answered=True, seconds=BEYOND),
)
"""One for the commit of each batch."""

MAX_ATTEMPTS = 20


def rows(spark: SparkSession, flight: int) -> DataFrame:
    return spark.createDataFrame([(1, flight)], "month int, flight long")


def cut_commits(proxy: Proxy) -> list[str]:
    """Cut the network in the first commit of each batch. Return the transactions of these commits, as they come."""
    cut: list[str] = []
    batches: set[int] = set()
    hudi_write: Any = HudiWrite
    answer = hudi_write.answer

    def cutting(write: HudiWrite, event: str, section: str) -> str:
        said: str = answer(write, event, section)
        batch = write._txn.batch_id
        if event == "commit" and batch is not None and batch not in batches:
            batches.add(batch)
            cut.append(write._txn.id)
            proxy.arm(CUTS[batch])
        return said

    hudi_write.answer = cutting
    return cut


def write_until_done(write: Any, batch: DataFrame, number: int, died: list[str]) -> None:
    """As a query that its supervisor starts again whenever it dies."""
    for _ in range(MAX_ATTEMPTS):
        try:
            write(batch, number)
            return
        except Exception as error:  # noqa: BLE001 - a driver without a network may raise anything
            died.append(f"{number}: {error!r}"[:500])
            print(f"batch {number} died: {error!r}", file=sys.stderr, flush=True)
            time.sleep(1.0)
    raise RuntimeError(f"batch {number} died {MAX_ATTEMPTS} times")


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("bootstrap-servers", "topic-prefix", "bucket", "jars", "result"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    table = f"s3a://{options.bucket}/trips"
    died: list[str] = []
    with Proxy(os.environ["AWS_ENDPOINT_URL_S3"]) as proxy:
        spark = session_on_s3("hudi-cut", options.jars, proxy.endpoint)
        rows(spark, 0).write.format("hudi").options(**PLAIN).mode("append").save(table)
        sink = HudiSink(table, options=HUDI_OPTIONS | LOCK, filesystem=filesystem_on_s3(proxy.endpoint))
        cut = cut_commits(proxy)
        with CommitGate(
            options.bootstrap_servers,
            topic_prefix=options.topic_prefix,
            heartbeat_seconds=2.0,
            admission_timeout_seconds=300.0,
            grant_timeout_seconds=300.0,
            observer=lambda event: print(event, file=sys.stderr, flush=True),
        ) as gate:
            write = gate.foreach_batch(sink, writer="w")
            for number in range(len(CUTS)):
                write_until_done(write, rows(spark, number + 1), number, died)
            write_until_done(write, rows(spark, len(CUTS)), len(CUTS) - 1, died)
        found = spark.read.format("hudi").load(table).select("flight").collect()
        files: Any = sink._files
        result = {
            "flights": sorted(row["flight"] for row in found),
            "commits": [
                (each.batch, each.transaction)
                for each in files._newest_first(files._table())
                if each.writer == "w"
            ],
            "pending": [each.time for each in files.instants() if each.state != "completed"],
            "cut": cut,
            "cuts": len(proxy.cuts),
            "died": died,
        }
        Path(options.result).write_text(json.dumps(result))
        spark.stop()


if __name__ == "__main__":
    main()
