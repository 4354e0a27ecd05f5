"""A driver with a Hudi table on S3: batches through the gate, and beside them a writer that doesn't know of the gate.

Both use Hudi's own storage-based lock. Only its client for S3 is the tests' own (`tests/servers/hudi`). The driver prints one
JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
from typing import TYPE_CHECKING, Any

from pyarrow import fs

from lakewarden.spark_jobs import CommitGate, HudiSink
from lakewarden.spark_jobs.jobs.spark_session import spark_session
from lakewarden.spark_jobs.sinks.hudi.options import STORAGE_LOCK
from lakewarden.spark_jobs.sinks.hudi.provider import BUNDLE
from tests.spark.sinks.cases import HUDI_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HADOOP_AWS = "org.apache.hadoop:hadoop-aws:3.3.4"
BATCHES = 3
PLAIN = {
    **HUDI_OPTIONS,
    "hoodie.table.name": "trips",
    "hoodie.datasource.write.recordkey.field": "flight",
    "hoodie.datasource.write.partitionpath.field": "month",
    "hoodie.datasource.write.hive_style_partitioning": "true",
}
LOCK = {
    "hoodie.write.lock.storage.validity.timeout.secs": "30",
    "hoodie.write.lock.storage.renew.interval.secs": "3",
}
SHARED = {
    **PLAIN,
    **LOCK,
    "hoodie.write.lock.provider": STORAGE_LOCK,
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.clean.failed.writes.policy": "LAZY",
}


def rows(spark: SparkSession, month: int, flight: int) -> DataFrame:
    return spark.createDataFrame([(month, flight)], "month int, flight long")


def write_plainly(spark: SparkSession, table: str, written: list[int]) -> None:
    """Commit rows to month 2, as many as the gate's batches."""
    for flight in range(100, 100 + BATCHES):
        rows(spark, 2, flight).write.format("hudi").options(**SHARED).mode("append").save(table)
        written.append(flight)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("bootstrap-servers", "topic-prefix", "bucket", "jars", "events"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    endpoint = os.environ["AWS_ENDPOINT_URL_S3"]
    key, secret = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
    s3a = {
        "endpoint": endpoint,
        "endpoint.region": os.environ["AWS_DEFAULT_REGION"],
        "access.key": key,
        "secret.key": secret,
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
        "directory.marker.retention": "keep",
    }
    settings: dict[str, Any] = {f"spark.hadoop.fs.s3a.{name}": value for name, value in s3a.items()}
    settings["spark.jars"] = options.jars
    settings["spark.jars.packages"] = f"{BUNDLE},{HADOOP_AWS}"
    spark = spark_session("hudi-s3", master="local[2,4]", memory="1g", hudi=True, **settings)
    table = f"s3a://{options.bucket}/trips"
    rows(spark, 1, 0).write.format("hudi").options(**PLAIN).mode("append").save(table)
    filesystem = fs.S3FileSystem(
        endpoint_override=endpoint.partition("//")[2],
        scheme="http",
        access_key=key,
        secret_key=secret,
        region=os.environ["AWS_DEFAULT_REGION"],
    )
    sink = HudiSink(table, options=HUDI_OPTIONS | LOCK, filesystem=filesystem)
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
    with open(options.events, "w", encoding="utf-8") as file:  # noqa: PTH123 - a plain program
        json.dump(result, file)
    spark.stop()


if __name__ == "__main__":
    main()
