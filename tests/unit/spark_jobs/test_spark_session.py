"""The Kafka source that belongs to a version of PySpark."""

from __future__ import annotations

import pytest

from lakewarden.spark_jobs.jobs.spark_session import kafka_package


@pytest.mark.parametrize(
    ("pyspark", "scala", "release"),
    [
        ("3.5.0", "2.12", "3.5."),
        ("3.5.9", "2.12", "3.5."),
        ("4.0.0", "2.13", "4.0."),
        ("4.0.5", "2.13", "4.0."),
    ],
)
def test_the_kafka_source_follows_pyspark(pyspark: str, scala: str, release: str) -> None:
    group, artifact, version = kafka_package(pyspark).split(":")

    assert (group, artifact) == ("org.apache.spark", f"spark-sql-kafka-0-10_{scala}")
    assert version.startswith(release)
