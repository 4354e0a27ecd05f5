"""One of two drivers that write the same Delta or Iceberg table on S3, each in a process and a JVM of its own.

First both append without the gate, where the table's catalog has no commit of its own: on S3, Delta's log store and Iceberg's
Hadoop catalog exclude each other within one driver only. Then both append, and then upsert, through the gate. They begin each
step together. At the end writer `a` writes one JSON object: the rows of all tables, and the batches that a table doesn't know.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakewarden.spark_jobs import CommitGate, DeltaSink, IcebergSink
from lakewarden.spark_jobs.jobs.spark_session import spark_session
from lakewarden.spark_jobs.sinks.iceberg.driver import CheckedOperations
from tests.servers.iceberg_catalogs import POSTGRESQL
from tests.spark.formats import HADOOP_AWS, ICEBERG_AWS, JARS, format_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakewarden.spark_jobs.sinks.contract import Sink

COLUMNS = "day int, id long, writer string"
WRITERS = ("a", "b")
MODES = ("append", "upsert")
NUMBER = {"a": 0, "b": 1}
STEP_SECONDS = 600.0
"""It only ends a hang."""


class Place:
    """Where the tables of a kind are, and how Spark reaches them."""

    def __init__(self, kind: str, bucket: str, catalog: str, folder: Path) -> None:
        """`catalog`: the URI of the catalog, where the kind has one. Hive's metastore has no access to S3: tables in `folder`."""
        self.form, _, self.catalog = kind.partition("-")
        self._bucket, self._folder = bucket, folder
        jars = list(JARS.values())
        self._settings: dict[str, str] = {}
        if self.form == "delta" or self.catalog == "hadoop":
            jars.append(HADOOP_AWS)
            self._settings |= s3a_settings()
        else:
            jars += [ICEBERG_AWS, POSTGRESQL]
        if self.form == "iceberg":
            lake = "spark.sql.catalog.lake"
            self._settings[lake] = "org.apache.iceberg.spark.SparkCatalog"
            self._settings |= {f"{lake}.{key}": value for key, value in self._catalog(catalog).items()}
        self._settings["spark.jars.packages"] = ",".join(jars)

    def session(self, writer: str) -> SparkSession:
        settings: dict[str, Any] = format_settings() | self._settings
        return spark_session(f"s3-{writer}", master="local[1,4]", memory="768m", **settings)

    def create(self, spark: SparkSession, table: str) -> None:
        if self.form == "delta":
            spark.sql(f"CREATE TABLE {self._named(table)} ({COLUMNS}) USING delta PARTITIONED BY (day)")
        else:
            spark.sql(f"CREATE TABLE {self._named(table)} ({COLUMNS}) USING iceberg PARTITIONED BY (day)")

    def append_alone(self, rows: DataFrame, table: str) -> None:
        if self.form == "delta":
            rows.write.format("delta").mode("append").save(self._uri(table))
        else:
            rows.writeTo(self._named(table)).append()

    def sink(self, table: str, mode: Any) -> Sink:
        keys = ["id"] if mode == "upsert" else []
        if self.form == "delta":
            return DeltaSink(self._uri(table), mode=mode, keys=keys)
        return IcebergSink(self._named(table), mode=mode, keys=keys)

    def rows(self, spark: SparkSession, table: str) -> list[tuple[Any, ...]]:
        if self.form == "iceberg":
            spark.sql(f"REFRESH TABLE {self._named(table)}")
        return sorted(tuple(row) for row in spark.table(self._named(table)).collect())

    def _uri(self, table: str) -> str:
        return f"s3a://{self._bucket}/{table}"

    def _named(self, table: str) -> str:
        return f"delta.`{self._uri(table)}`" if self.form == "delta" else f"lake.air.{table}"

    def _catalog(self, uri: str) -> dict[str, str]:
        if self.catalog == "hadoop":
            return {"type": "hadoop", "warehouse": f"s3a://{self._bucket}/warehouse"}
        if self.catalog == "hive":
            return {"type": "hive", "uri": uri, "warehouse": f"{self._folder}/warehouse"}
        if self.catalog == "postgresql":
            return {"type": "jdbc", "uri": f"jdbc:{uri}", **s3_file_io(self._bucket)}
        settings = {"type": "rest", "uri": uri, **s3_file_io(self._bucket)}
        return settings | ({"warehouse": "warehouse"} if self.catalog == "nessie" else {})


def s3_file_io(bucket: str) -> dict[str, str]:
    """Iceberg's own access to S3, with the credentials of the environment."""
    return {
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "warehouse": f"s3://{bucket}/warehouse",
        "s3.endpoint": os.environ["AWS_ENDPOINT_URL_S3"],
        "s3.path-style-access": "true",
        "client.region": os.environ["AWS_DEFAULT_REGION"],
    }


def s3a_settings() -> dict[str, str]:
    """Hadoop's access to S3, with the endpoint and the credentials of the environment."""
    options = {
        "endpoint": os.environ["AWS_ENDPOINT_URL_S3"],
        "endpoint.region": os.environ["AWS_DEFAULT_REGION"],
        "access.key": os.environ["AWS_ACCESS_KEY_ID"],
        "secret.key": os.environ["AWS_SECRET_ACCESS_KEY"],
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
    }
    return {f"spark.hadoop.fs.s3a.{name}": value for name, value in options.items()}


def together(folder: Path, writer: str) -> Callable[[str], None]:
    """Return a function that waits until both drivers have come to the same step."""

    def wait(step: str) -> None:
        (folder / f"{step}.{writer}").touch()
        deadline = time.monotonic() + STEP_SECONDS
        while not all((folder / f"{step}.{each}").exists() for each in WRITERS):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the other driver didn't come to step {step}")
            time.sleep(0.002)

    return wait


def overtaken(spark: SparkSession, place: Place, gate: CommitGate) -> dict[str, list[Any]]:
    """Write one batch in each mode of `IcebergSink` while a writer without the gate commits to another partition.

    That is between the validation and the swap, or right behind a swap whose answer is lost. Returns the rows that each table has
    at the end: two of the foreign writer, one of the batch.
    """
    swap = CheckedOperations._swap
    found = {}
    for mode in ("append", "upsert", "overwrite"):
        for lost in (False, True):
            table = f"overtaken_{mode}_{lost}".lower()
            place.create(spark, table)
            place.append_alone(spark.createDataFrame([(2, 1, "foreign")], COLUMNS), table)

            def meet(
                operations: Any, base: Any, metadata: Any, table: str = table, lost: bool = lost
            ) -> None:
                CheckedOperations._swap = swap  # type: ignore[method-assign]
                if lost:
                    swap(operations, base, metadata)
                place.append_alone(spark.createDataFrame([(2, 2, "foreign")], COLUMNS), table)
                if lost:
                    raise OSError("the connection was reset")
                swap(operations, base, metadata)

            CheckedOperations._swap = meet  # type: ignore[method-assign, assignment]
            write = gate.foreach_batch(place.sink(table, mode), writer=table)
            write(spark.createDataFrame([(1, 1, "batch")], COLUMNS), 0)
            found[table] = place.rows(spark, table)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("kind", "writer", "bucket", "catalog", "folder", "bootstrap-servers", "topic-prefix"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("alone", "batches"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    writer, folder = options.writer, Path(options.folder)
    place = Place(options.kind, options.bucket, options.catalog, folder)
    wait = together(folder, writer)
    if writer != "a":
        wait("downloaded")
    spark = place.session(writer)
    if writer == "a":
        wait("downloaded")
        if place.form == "iceberg":
            spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.air")
        for table in ("alone", "gated"):
            place.create(spark, table)
    wait("created")

    def rows(number: int) -> DataFrame:
        values = [(1, 2 * number + NUMBER[writer], writer)]
        return spark.createDataFrame(values, COLUMNS).coalesce(1)

    for number in range(options.alone):
        wait(f"alone-{number}")
        place.append_alone(rows(number), "alone")
    with CommitGate(
        options.bootstrap_servers, topic_prefix=options.topic_prefix, admission_timeout_seconds=300.0
    ) as gate:
        for phase, mode in enumerate(MODES):
            write = gate.foreach_batch(place.sink("gated", mode), writer=f"{writer}-{mode}")
            for batch in range(options.batches):
                wait(f"{mode}-{batch}")
                write(rows(phase * options.batches + batch), batch)
        trials = overtaken(spark, place, gate) if writer == "a" and place.form == "iceberg" else {}
    wait("end")
    if writer == "a":
        found: dict[str, Any] = {table: place.rows(spark, table) for table in ("alone", "gated")}
        found["overtaken"] = trials
        committed = place.sink("gated", "append").committed
        found["unknown"] = [
            (f"{each}-{mode}", batch)
            for each in WRITERS
            for mode in MODES
            for batch in range(options.batches)
            if committed(f"{each}-{mode}", batch) is None
        ]
        (folder / "found.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
