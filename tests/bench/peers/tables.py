"""What differs between the formats: the session, the native statement, the sink, and how the rows are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from pyspark.sql import DataFrame, SparkSession

from lakewarden.spark_jobs import DeltaSink, HudiSink, IcebergSink, Sink
from lakewarden.spark_jobs.sinks.hudi.options import STORAGE_LOCK, HudiOperation
from tests.bench.peers.workload import SCHEMA
from tests.spark.formats import HAS_HUDI, format_settings, iceberg_name
from tests.spark.hudi_s3 import filesystem_on_s3, settings_on_s3

NativeWrite: TypeAlias = Callable[[DataFrame, str], None]
"""Writes a batch. The second argument is the attempt's name."""

SINKS: Mapping[str, type[Sink]] = {
    "delta": DeltaSink,
    "delta-connect": DeltaSink,
    "iceberg": IcebergSink,
    "hudi": HudiSink,
}

_COLUMNS = SCHEMA.replace("id long", "id long NOT NULL")
"""Of the tables of Delta and Iceberg, as docs/delta.md advises for keys."""

HUDI_PARALLELISM = {"hoodie.upsert.shuffle.parallelism": "2", "hoodie.insert.shuffle.parallelism": "2"}
HUDI_OPTIONS = HUDI_PARALLELISM | {
    "hoodie.table.name": "bench",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "day",
}
HUDI_LOCK = {
    "hoodie.write.lock.storage.validity.timeout.secs": "300",
    "hoodie.write.lock.storage.renew.interval.secs": "30",
}
"""Hudi's defaults, and the agent's. The lock's client, which is the tests' own, needs them as options."""
HUDI_CONCURRENCY = HUDI_LOCK | {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.cleaner.policy.failed.writes": "LAZY",
    "hoodie.write.lock.provider": STORAGE_LOCK,
}
"""As Hudi's documentation says for several writers of one table on S3."""
HUDI_EARLY = {
    "hoodie.write.concurrency.early.conflict.detection.enable": "true",
    "hoodie.write.concurrency.early.conflict.detection.strategy": (
        "org.apache.hudi.table.marker.SimpleDirectMarkerBasedDetectionStrategy"
    ),
    "hoodie.write.markers.type": "DIRECT",
}
HUDI_EARLY_ASYNCHRONOUS = {
    "hoodie.write.concurrency.early.conflict.detection.enable": "true",
    "hoodie.write.concurrency.early.conflict.detection.strategy": (
        "org.apache.hudi.timeline.service.handlers.marker.AsyncTimelineServerBasedDetectionStrategy"
    ),
    "hoodie.write.markers.type": "TIMELINE_SERVER_BASED",
}
"""It looks every 30 s, Hudi's default."""

S3_CONNECTIONS = {"spark.hadoop.fs.s3a.connection.maximum": "1000"}
"""As Hudi's maintainers advise for tables with its metadata table (hudi issue 5482): Hudi leaves streams open until they are
collected as garbage, and waits forever for one of S3A's 96 connections."""


@dataclass(frozen=True, slots=True)
class Table:
    """One table of one format in a session."""

    create: Callable[[DataFrame], None]
    """From the rows that it begins with."""
    native: Mapping[str, NativeWrite]
    """The format's own ways to upsert a batch, by name."""
    sink: Callable[[], Sink]
    read: Callable[[], DataFrame]
    append: Callable[[DataFrame], None] = lambda _: None
    appending: Callable[[], Sink] | None = None
    """As `sink`, for appends."""

    def appended(self) -> Table:
        """Return the table for a workload that appends."""
        assert self.appending is not None, "the format has both"
        return replace(self, native={"native": lambda batch, _: self.append(batch)}, sink=self.appending)


@dataclass(frozen=True, slots=True)
class Store:
    """The S3 server of a run, with the credentials of the environment."""

    endpoint: str
    bucket: str
    jars: str
    """Of the client of Hudi's lock."""

    def table(self, name: str) -> str:
        """The URI of a table, as Spark has it."""
        return f"s3a://{self.bucket}/{name}"


def settings_of(table_format: str, store: Store | None) -> dict[str, Any]:
    """Return the settings of the session, besides those of the project's own sessions."""
    settings = format_settings()
    if table_format == "hudi" and not HAS_HUDI:
        raise SystemExit("error: Hudi needs PySpark 3.5: run this by make bench PEERS=hudi")
    if store is None:
        return settings
    return settings | settings_on_s3(store.jars, store.endpoint) | S3_CONNECTIONS


def table_of(
    table_format: str,
    spark: SparkSession,
    folder: Path,
    name: str,
    store: Store | None,
    *,
    append: bool = False,
) -> Table:
    """Return the table, which needs not exist yet. Hudi's is in the store, the others are in the folder."""
    if store is not None:
        return _hudi(spark, store, name, append=append)
    kinds = {"delta": _delta, "delta-connect": _delta, "iceberg": _iceberg}
    table = kinds[table_format](spark, folder / "warehouse" / "bench" / name)
    return table.appended() if append else table


def _delta(spark: SparkSession, path: Path) -> Table:
    def create(rows: DataFrame) -> None:
        spark.sql(f"CREATE TABLE delta.`{path}` ({_COLUMNS}) USING delta PARTITIONED BY (day)")
        append(rows)

    def append(rows: DataFrame) -> None:
        rows.write.format("delta").mode("append").save(str(path))

    return Table(
        create,
        {"native": lambda batch, _attempt: _merge(batch, f"delta.`{path}`")},
        lambda: DeltaSink(str(path), mode="upsert", keys=["id"]),
        lambda: spark.read.format("delta").load(str(path)),
        append,
        lambda: DeltaSink(str(path)),
    )


def _iceberg(spark: SparkSession, path: Path) -> Table:
    name = iceberg_name(spark, path)

    def create(rows: DataFrame) -> None:
        spark.sql(f"CREATE TABLE {name} ({_COLUMNS}) USING iceberg PARTITIONED BY (day)")
        append(rows)

    def append(rows: DataFrame) -> None:
        rows.writeTo(name).option("check-nullability", "false").append()

    def read() -> DataFrame:
        spark.catalog.refreshTable(name)  # the queries' sessions have a cache of their own
        return spark.read.table(name)

    return Table(
        create,
        {"native": lambda batch, _attempt: _merge(batch, name)},
        lambda: IcebergSink(name, mode="upsert", keys=["id"]),
        read,
        append,
        lambda: IcebergSink(name),
    )


def _merge(batch: DataFrame, table: str) -> None:
    """Upsert as a careful user does it: with the batch's partitions as literals, without which any two MERGEs conflict."""
    days = ", ".join(str(row["day"]) for row in batch.select("day").distinct().collect())
    view = f"batch_{abs(hash(table)):x}_{id(batch):x}"
    batch.createOrReplaceTempView(view)
    try:
        batch.sparkSession.sql(
            f"MERGE INTO {table} t USING {view} s ON t.day = s.day AND t.id = s.id AND t.day IN ({days}) "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
    finally:
        batch.sparkSession.catalog.dropTempView(view)


def _hudi(spark: SparkSession, store: Store, name: str, *, append: bool) -> Table:
    path = store.table(name)
    operation: HudiOperation = "insert" if append else "upsert"

    def write(rows: DataFrame, options: Mapping[str, str]) -> None:
        rows.write.format("hudi").options(**HUDI_OPTIONS, **options).mode("append").save(path)

    def native(options: dict[str, str]) -> NativeWrite:
        def upsert(batch: DataFrame, _attempt: str) -> None:
            write(batch, HUDI_CONCURRENCY | options | {"hoodie.datasource.write.operation": operation})

        return upsert

    return Table(
        lambda rows: write(rows, {}),
        {
            "native": native({}),
            "native-direct": native(HUDI_EARLY),
            "native-asynchronous": native(HUDI_EARLY_ASYNCHRONOUS),
        },
        lambda: HudiSink(
            path,
            keys=["id"],
            partition_by=["day"],
            operation=operation,
            options=HUDI_PARALLELISM | HUDI_LOCK,
            filesystem=filesystem_on_s3(store.endpoint),
        ),
        lambda: spark.read.format("hudi").load(path).select("day", "id", "writer", "batch", "value"),
    )
