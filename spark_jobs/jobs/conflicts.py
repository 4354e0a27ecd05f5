"""The operators' job: every conflict that the agents report, as Parquet by day.

    python -m lakewarden.spark_jobs.conflicts_job --bootstrap-servers kafka:9092 --output /data/conflicts --checkpoint /data/cp

A structured-streaming query over the topic `<prefix>.conflicts`. Its columns are those of `ConflictDetected`
(`schemas.py`), and:

- `day` (partition): of the record's Kafka timestamp, so that a record whose event can't be read has one too;
- `undecodable`: the record as text where it is no conflict event that this version can read, else null. Nothing is
  dropped: a column of nulls with the text in it can be searched, a skipped record can't;
- `kafka_partition`, `kafka_offset`: where it came from, which is also what makes a row unique.

It goes on from its checkpoint after a restart; the file sink's own log keeps a batch from being written twice.
Needs Spark's Kafka source, which `session.py` has Spark fetch. `--once` reads what is there and ends.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lakewarden.events import DEFAULT_PREFIX, PROTOCOL, ConflictDetected, Topics
from lakewarden.spark_jobs.jobs.schemas import struct_of
from lakewarden.spark_jobs.jobs.spark_session import spark_session
from lakewarden.spark_jobs.streaming.stopping import run_until_stopped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MAX_OFFSETS_PER_TRIGGER = 100_000
"""Records of one micro-batch: a first start on thirty days of conflicts must not be one batch."""

TYPE = "conflict-detected"


def conflicts(records: DataFrame) -> DataFrame:
    """Kafka records (`value`, `timestamp`, `partition`, `offset`) as rows of conflicts."""
    from pyspark.sql import functions as f

    text = f.col("value").cast("string")
    event = f.from_json(text, struct_of(ConflictDetected), {"mode": "PERMISSIVE"})
    readable = f.coalesce((f.col("event.type") == TYPE) & (f.col("event.protocol") == PROTOCOL), f.lit(False))  # noqa: FBT003
    read = records.select(event.alias("event"), text.alias("text"), "timestamp", "partition", "offset")
    return read.select(
        *(f.when(readable, f.col(f"event.{name}")).alias(name) for name in ConflictDetected.model_fields),
        f.when(~readable, f.coalesce("text", f.lit(""))).alias("undecodable"),
        f.col("partition").alias("kafka_partition"),
        f.col("offset").alias("kafka_offset"),
        f.to_date("timestamp").alias("day"),
    )


def start(
    spark: SparkSession,
    bootstrap_servers: str,
    *,
    output: str,
    checkpoint: str,
    topic_prefix: str = DEFAULT_PREFIX,
    once: bool = False,
    kafka: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Start the query; `kafka` are Spark's own Kafka options without their `kafka.`, for TLS and SASL."""
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", Topics(topic_prefix).conflicts)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", MAX_OFFSETS_PER_TRIGGER)
        # Thirty days of retention may pass while this job is down: that is a gap, told in the log, and no reason to stop.
        .option("failOnDataLoss", "false")
        .options(**{f"kafka.{name}": value for name, value in (kafka or {}).items()})
        .load()
    )
    writer = (
        conflicts(records)
        .writeStream.queryName("lakewarden-conflicts")
        .format("parquet")
        .partitionBy("day")
        .option("path", output)
        .option("checkpointLocation", checkpoint)
    )
    return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime="2 seconds")).start()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the query until it is stopped, or with `--once` until it has read everything."""
    options = _parser().parse_args(argv)

    def starting() -> StreamingQuery:
        return start(
            spark_session("lakewarden-conflicts", master=options.master, kafka=True),
            options.bootstrap_servers,
            output=options.output,
            checkpoint=options.checkpoint,
            topic_prefix=options.topic_prefix,
            once=options.once,
            kafka=options.kafka_options,
        )

    return run_until_stopped(starting, name="the conflicts query")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lakewarden.spark_jobs.conflicts_job", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--bootstrap-servers", required=True, help="Kafka, host:port[,host:port…]")
    parser.add_argument("--output", required=True, help="folder or URI for the Parquet files")
    parser.add_argument("--checkpoint", required=True, help="folder or URI where the query keeps its place")
    parser.add_argument("--once", action="store_true", help="read what is there, then end")
    parser.add_argument("--topic-prefix", default=DEFAULT_PREFIX, help="default: %(default)s")
    parser.add_argument(
        "--kafka-options", type=json.loads, default={}, help="JSON object of Kafka client settings"
    )
    parser.add_argument("--master", default="local[1]", help="Spark master; default: %(default)s")
    return parser


if __name__ == "__main__":
    sys.exit(main())
