"""Conflicts to Parquet: the columns are the event's, undecodable records are kept, and the query resumes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pyarrow.dataset as ds
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import NewTopic
from pydantic import BaseModel
from pyspark.sql import SparkSession, functions as f

from lakewarden.events import ConflictDetected, ConflictEntry, encode
from lakewarden.spark_jobs.jobs.conflicts import conflicts, missing_right, struct_of
from lakewarden.spark_jobs.jobs.spark_session import reason
from tests.kafka_fixture import KafkaServer, administering

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


def conflict(number: int) -> ConflictDetected:
    return ConflictDetected(
        event_id=f"e{number}",
        table="s3://lake/flights",
        transaction=f"t{number}",
        writer="departures:q1",
        at=datetime(2026, 3, 1, 12, 30, tzinfo=UTC),
        victim=f"t{number}",
        victim_writer="departures:q1",
        winner="t0",
        winner_writer="arrivals:q2",
        rule="file-group",
        kind="marker",
        conflicts=(
            ConflictEntry(
                partition="month=1/day=3",
                file_group="*",
                operation="merge",
                other_operation="merge",
                other_transaction="t0",
                other_writer="arrivals:q2",
                kind="marker",
            ),
        ),
        detected_after_ms=1.5,
        victim_age_seconds=2.25,
    )


def test_an_event_is_a_row_with_the_same_values(spark: SparkSession) -> None:
    event = conflict(1)
    records = [
        (encode(event), 0, 5),
        (b"not json", 0, 6),
        (b'{"type":"conflict-detected","protocol":9}', 0, 7),
    ]
    frame = spark.createDataFrame(records, "value binary, partition int, offset long")
    timestamped = frame.withColumn("timestamp", f.lit("2026-03-01 12:31:00").cast("timestamp"))

    rows = (
        conflicts(timestamped.select("value", "timestamp", "partition", "offset"))
        .orderBy("kafka_offset")
        .collect()
    )

    read = rows[0].asDict(recursive=True)
    assert (read.pop("kafka_partition"), read.pop("kafka_offset"), str(read.pop("day"))) == (
        0,
        5,
        "2026-03-01",
    )
    assert read.pop("undecodable") is None
    assert read.pop("at") == datetime(2026, 3, 1, 12, 30)  # noqa: DTZ001 - Spark's Python rows have no zone
    expected = event.model_dump(mode="json", exclude={"at"})
    assert json.loads(json.dumps(read)) == expected
    assert [row.undecodable for row in rows[1:]] == ["not json", '{"type":"conflict-detected","protocol":9}']
    assert all(row.victim is None for row in rows[1:])
    assert all(str(row.day) == "2026-03-01" for row in rows)


def test_the_columns_are_the_fields_of_the_event() -> None:
    schema = struct_of(ConflictDetected)
    assert schema.fieldNames() == list(ConflictDetected.model_fields)
    assert schema["at"].dataType.simpleString() == "timestamp"
    assert schema["protocol"].dataType.simpleString() == "bigint"
    assert schema["conflicts"].dataType.simpleString().startswith("array<struct<partition:string")


def test_a_field_without_a_column_type_is_an_error_at_the_start() -> None:
    class Strange(BaseModel):
        mixed: str | int

    class Stranger(BaseModel):
        anything: dict[str, Any]

    class Fine(BaseModel):
        one: Literal["a", "b"] | None
        many: list[float]

    assert struct_of(Fine).simpleString() == "struct<one:string,many:array<double>>"
    with pytest.raises(TypeError, match=r"more than one spark type for Strange\.mixed"):
        struct_of(Strange)
    with pytest.raises(TypeError, match=r"no spark type for Stranger\.anything"):
        struct_of(Stranger)


async def produce(server: KafkaServer, topic: str, *values: bytes, create: bool = False) -> None:
    if create:
        async with administering(server.bootstrap_servers) as admin:
            await admin.create_topics([NewTopic(topic, 2, 1)])
    producer = AIOKafkaProducer(bootstrap_servers=server.bootstrap_servers)
    await producer.start()
    for value in values:
        await producer.send_and_wait(topic, value, b"s3://lake/flights")
    await producer.stop()


@pytest.mark.wide
def test_the_query_resumes_from_its_checkpoint(kafka: KafkaServer, topic_prefix: str, tmp_path: Path) -> None:
    """The program runs twice, with the Kafka source that Spark downloads."""
    topic = f"{topic_prefix}.conflicts"
    command = [sys.executable, "-m", "lakewarden.spark_jobs.conflicts_job", "--once"]
    command += ["--bootstrap-servers", kafka.bootstrap_servers, "--topic-prefix", topic_prefix]
    command += ["--output", str(tmp_path / "out"), "--checkpoint", str(tmp_path / "checkpoint")]

    asyncio.run(produce(kafka, topic, encode(conflict(1)), b"garbage", create=True))
    subprocess.run(command, check=True, capture_output=True, timeout=400)
    first = _read(tmp_path / "out")
    asyncio.run(produce(kafka, topic, encode(conflict(2))))
    subprocess.run(command, check=True, capture_output=True, timeout=400)
    second = _read(tmp_path / "out")

    assert sorted(map(str, (row["victim"] for row in first))) == ["None", "t1"]
    assert sorted(map(str, (row["victim"] for row in second))) == ["None", "t1", "t2"]
    assert [row["undecodable"] for row in second if row["victim"] is None] == ["garbage"]
    assert len({(row["kafka_partition"], row["kafka_offset"]) for row in second}) == 3


def _read(folder: Path) -> list[dict[str, Any]]:
    files = [str(path) for path in folder.rglob("*.parquet")]
    assert all("day=20" in file for file in files)
    rows: list[dict[str, Any]] = ds.dataset(files).to_table().to_pylist()
    return rows


def test_the_reason_of_a_failed_query_is_one_line_of_its_error() -> None:
    error = RuntimeError(
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Traceback (most recent call last):\n"
        '  File "x.py", line 3, in y\n    raise\n'
        "lakewarden.spark_jobs.gate.errors.CommitAborted: commit aborted: partition p also written by writer 'b'\n"
        "\tat py4j.Protocol.getReturnValue(Protocol.java:476)\n SQLSTATE: XXKST"
    )
    assert reason(error) == (
        "lakewarden.spark_jobs.gate.errors.CommitAborted: commit aborted: partition p also written by writer 'b'"
    )


def test_the_reason_of_a_failed_query_is_not_a_line_of_its_state() -> None:
    error = RuntimeError(
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Connection refused SQLSTATE: XXKST\n"
        "=== Streaming Query ===\nIdentifier: lakewarden-conflicts [id = 1]\nCurrent State: ACTIVE"
    )
    assert reason(error).endswith("terminated with exception: Connection refused SQLSTATE: XXKST")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("java.util.concurrent.ExecutionException: …: Topic authorization failed.", "topic lw.conflicts"),
        (
            "….TopicAuthorizationException: Not authorized to access topics: [lw.conflicts]",
            "topic lw.conflicts",
        ),
        (
            "….GroupAuthorizationException: Not authorized to access group: spark-kafka-source-1",
            "consumer groups",
        ),
    ],
)
def test_a_right_that_kafka_denies_is_named_with_the_user(text: str, named: str) -> None:
    """The first two are of the driver, without describe, and of a task, without read."""
    kafka = {"sasl.jaas.config": 'Module required username="reports" password="open-sesame";'}
    line = missing_right(RuntimeError(text), "lw.conflicts", kafka)

    assert line is not None
    assert "denies reports read on" in line
    assert named in line
    assert "open-sesame" not in line
    assert missing_right(RuntimeError("Connection refused"), "lw.conflicts", kafka) is None
