"""A driver with a Hudi table on S3: batches through the gate, and beside them a writer that doesn't know of the gate.

Both use Hudi's own storage-based lock. Only its client for S3 is the tests' own (`tests/servers/hudi`). The driver prints one
JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
from typing import TYPE_CHECKING

from lakewarden.spark_jobs import CommitGate, HudiSink
from tests.spark.hudi_s3 import LOCK, PLAIN, SHARED, filesystem_on_s3, session_on_s3
from tests.spark.sinks.cases import HUDI_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCHES = 3


def rows(spark: SparkSession, month: int, flight: int) -> DataFrame:
    return spark.createDataFrame([(month, flight)], "month int, flight long")


def write_plainly(spark: SparkSession, table: str, written: list[int]) -> None:
    """Commit rows to month 2, as many as the gate's batches."""
    for flight in range(100, 100 + BATCHES):
        rows(spark, 2, flight).write.format("hudi").options(**SHARED).mode("append").save(table)
        written.append(flight)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("bootstrap-servers", "topic-prefix", "bucket", "jars", "result"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    endpoint = os.environ["AWS_ENDPOINT_URL_S3"]
    spark = session_on_s3("hudi-s3", options.jars, endpoint)
    table = f"s3a://{options.bucket}/trips"
    rows(spark, 1, 0).write.format("hudi").options(**PLAIN).mode("append").save(table)
    sink = HudiSink(table, options=HUDI_OPTIONS | LOCK, filesystem=filesystem_on_s3(endpoint))
    written: list[int] = []
    other = threading.Thread(target=write_plainly, args=(spark, table, written))
    with CommitGate(
        options.bootstrap_servers, topic_prefix=options.topic_prefix, admission_timeout_seconds=120.0
    ) as gate:
        write = gate.foreach_batch(sink, writer="w")
        other.start()
        for batch in range(BATCHES):
            write(rows(spark, 1, batch + 1), batch)
        other.join()
    found = spark.read.format("hudi").load(table).select("month", "flight").collect()
    result = {
        "lock": sink.lock,
        "rows": sorted(tuple(row) for row in found),
        "versions": [sink.committed("w", batch) for batch in range(BATCHES + 1)],
        "written": written,
    }
    with open(options.result, "w", encoding="utf-8") as file:  # noqa: PTH123 - a plain program
        json.dump(result, file)
    spark.stop()


if __name__ == "__main__":
    main()
