"""Writes every conflict that the agents report to a table by day: Parquet files, Delta Lake or Iceberg (`--format`).

    python -m lakewarden.spark_jobs.conflicts_job --bootstrap-servers kafka:9092 --output /data/conflicts --checkpoint /data/cp

A structured-streaming query over the topic `<prefix>.conflicts`. Its columns are those of `ConflictDetected` (`struct_of`), and:

| column | content |
| --- | --- |
| `day` | day of the record's Kafka timestamp, by which the table is partitioned; undecodable records have one too |
| `undecodable` | the record as text, if this version can't decode it as a conflict event; else null. No record is dropped. |
| `kafka_partition`, `kafka_offset` | the record's place in Kafka, which identifies the row |

It needs one right in Kafka: `read` on the topic (docs/security.md). Spark's source assigns the partitions itself, and joins no
consumer group.

After a restart the query resumes from its checkpoint, and no batch is written twice (`table_formats.py`). Spark downloads its
Kafka source (`spark_session.py`). With `--once` the query reads what is there and ends.
"""

from __future__ import annotations

import argparse
import re
import sys
import types
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AwareDatetime, BaseModel

from lakewarden.events import DEFAULT_PREFIX, PROTOCOL, ConflictDetected, Topics
from lakewarden.spark_jobs.jobs.options import (
    add_format,
    add_kafka,
    add_master,
    log_warnings_to_stderr,
    session_for,
)
from lakewarden.spark_jobs.jobs.spark_session import run_until_stopped
from lakewarden.spark_jobs.jobs.table_formats import Format, start_writing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import DataType, StructType


def struct_of(model: type[BaseModel]) -> StructType:
    """Return the model's fields, in their order, as Spark columns.

    A new field becomes a new column without a change here. All columns are nullable, because a record of another version may
    lack a field, and the query must not stop for it. Types without an equal in Spark are mapped: times with a zone to instants,
    literals to strings, tuples to arrays. A type that has no mapping raises at the start of the query.
    """
    from pyspark.sql.types import StructField, StructType

    return StructType(
        [
            StructField(name, _type_of(field.annotation, f"{model.__name__}.{name}"), nullable=True)
            for name, field in model.model_fields.items()
        ]
    )


def _type_of(annotation: Any, where: str) -> DataType:
    from pyspark.sql import types as spark

    simple: dict[Any, DataType] = {
        str: spark.StringType(),
        int: spark.LongType(),
        float: spark.DoubleType(),
        bool: spark.BooleanType(),
        datetime: spark.TimestampType(),
        AwareDatetime: spark.TimestampType(),
    }
    if annotation in simple:
        return simple[annotation]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return struct_of(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_of(arguments[0], where)
    if origin is Literal:
        return _only_one({_type_of(type(value), where) for value in arguments}, annotation, where)
    if origin in {Union, types.UnionType}:
        members = {_type_of(member, where) for member in arguments if member is not type(None)}
        return _only_one(members, annotation, where)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return spark.ArrayType(_type_of(arguments[0], where))
    if origin in {list, frozenset}:
        return spark.ArrayType(_type_of(arguments[0], where))
    raise TypeError(f"no spark type for {where}: {annotation!r}; add a mapping to {__name__}")


def _only_one(found: set[DataType], annotation: Any, where: str) -> DataType:
    if len(found) != 1:
        raise TypeError(f"more than one spark type for {where}: {annotation!r}; a column needs exactly one")
    return found.pop()


MAX_OFFSETS_PER_TRIGGER = 100_000
"""Records of one micro-batch. The first start may find thirty days of conflicts, which must not be one batch."""

TYPE = "conflict-detected"


def conflicts(records: DataFrame) -> DataFrame:
    """Return Kafka records (`value`, `timestamp`, `partition`, `offset`) as rows of conflicts."""
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
    form: Format = "parquet",
    once: bool = False,
    kafka: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Start the query. `kafka` are options of Spark's Kafka source without their prefix `kafka.`, for TLS and SASL."""
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", Topics(topic_prefix).conflicts)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", MAX_OFFSETS_PER_TRIGGER)
        # If the job is down for longer than the retention of thirty days, Spark logs the gap and the query continues.
        .option("failOnDataLoss", "false")
        .options(**{f"kafka.{name}": value for name, value in (kafka or {}).items()})
        .load()
    )
    return start_writing(
        conflicts(records), form, name="lakewarden-conflicts", output=output, checkpoint=checkpoint, once=once
    )


def missing_right(error: BaseException, topic: str, kafka: Mapping[str, str]) -> str | None:
    """Which right the job's user lacks, if Spark's error contains Kafka's that says so."""
    text = str(error)
    found = re.search(r'username="([^"]*)"', kafka.get("sasl.jaas.config", ""))
    user = found[1] if found else "this user"
    if re.search(
        "TopicAuthorizationException|Topic authorization failed|Not authorized to access topics", text
    ):
        return (
            f"Kafka denies {user} read on the topic {topic}; docs/security.md lists the rights of each role"
        )
    if re.search(
        "GroupAuthorizationException|Group authorization failed|Not authorized to access group", text
    ):
        return (
            f"Kafka denies {user} read on Spark's consumer groups (spark-kafka-source-…), which only "
            "spark.sql.streaming.kafka.useDeprecatedOffsetFetching needs; set it to false, or grant the right"
        )
    return None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the query until it is stopped, or with `--once` until it has read everything."""
    options = _parser().parse_args(argv)
    log_warnings_to_stderr()

    def start_query() -> StreamingQuery:
        return start(
            session_for("lakewarden-conflicts", options, options.format, kafka=True),
            options.bootstrap_servers,
            output=options.output,
            checkpoint=options.checkpoint,
            topic_prefix=options.topic_prefix,
            form=options.format,
            once=options.once,
            kafka=options.kafka_options,
        )

    topic = Topics(options.topic_prefix).conflicts
    return run_until_stopped(
        start_query,
        name="the conflicts query",
        explain=lambda error: missing_right(error, topic, options.kafka_options),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lakewarden.spark_jobs.conflicts_job", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--output", required=True, help="folder or URI, or the name of an Iceberg table")
    add_format(parser, "--format")
    parser.add_argument("--checkpoint", required=True, help="folder or URI of Spark's checkpoint")
    parser.add_argument("--once", action="store_true", help="read the records that exist now, then exit")
    add_kafka(parser, "settings of Spark's Kafka source without their prefix `kafka.`")
    add_master(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
