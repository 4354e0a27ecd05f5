"""What differs between the formats: the session, the native statement, the sink, and how the rows are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from pyspark.sql import DataFrame, SparkSession

from lakewarden.spark_jobs import DeltaSink, HudiSink, IcebergSink, Sink
from lakewarden.spark_jobs.sinks.hudi.provider import BUNDLE
from tests.bench.peers.workload import SCHEMA
from tests.spark.formats import format_settings, iceberg_name

NativeWrite: TypeAlias = Callable[[DataFrame], None]

FORMATS = ("delta", "iceberg", "hudi")

_COLUMNS = SCHEMA.replace("id long", "id long NOT NULL")
"""Of the tables of Delta and Iceberg, as docs/delta.md advises for keys."""

HUDI_PARALLELISM = {
    "hoodie.upsert.shuffle.parallelism": "2",
    "hoodie.insert.shuffle.parallelism": "2",
}
HUDI_OPTIONS = HUDI_PARALLELISM | {
    "hoodie.table.name": "bench",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "day",
}
HUDI_CONCURRENCY = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.cleaner.policy.failed.writes": "LAZY",
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider",
    "hoodie.write.lock.wait_time_ms_between_retry": "200",
}
"""As Hudi's documentation says for several writers of one table."""
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


@dataclass(frozen=True, slots=True)
class Table:
    """One table of one format in a session."""

    create: Callable[[DataFrame], None]
    """From the rows that it begins with."""
    native: Mapping[str, NativeWrite]
    """The format's own ways to upsert a batch, by name."""
    sink: Callable[[], Sink]
    read: Callable[[], DataFrame]


def settings_of(table_format: str) -> dict[str, Any]:
    """Return the settings of the session, besides those of the project's own sessions."""
    settings = format_settings()
    if table_format == "hudi" and BUNDLE.partition(":")[0] not in settings.get("spark.jars.packages", ""):
        raise SystemExit("error: Hudi needs PySpark 3.5: run this by make bench PEERS=hudi")
    return settings


def table_of(table_format: str, spark: SparkSession, folder: Path, name: str) -> Table:
    """Return the table, which needs not exist yet."""
    kinds = {"delta": _delta, "iceberg": _iceberg, "hudi": _hudi}
    return kinds[table_format](spark, folder / "warehouse" / "bench" / name)


def _delta(spark: SparkSession, path: Path) -> Table:
    def create(rows: DataFrame) -> None:
        spark.sql(f"CREATE TABLE delta.`{path}` ({_COLUMNS}) USING delta PARTITIONED BY (day)")
        rows.write.format("delta").mode("append").save(str(path))

    return Table(
        create,
        {"native": lambda batch: _merge(batch, f"delta.`{path}`")},
        lambda: DeltaSink(str(path), mode="upsert", keys=["id"]),
        lambda: spark.read.format("delta").load(str(path)),
    )


def _iceberg(spark: SparkSession, path: Path) -> Table:
    name = iceberg_name(spark, path)

    def create(rows: DataFrame) -> None:
        spark.sql(f"CREATE TABLE {name} ({_COLUMNS}) USING iceberg PARTITIONED BY (day)")
        rows.writeTo(name).option("check-nullability", "false").append()

    def read() -> DataFrame:
        spark.catalog.refreshTable(name)  # the queries' sessions have a cache of their own
        return spark.read.table(name)

    return Table(
        create,
        {"native": lambda batch: _merge(batch, name)},
        lambda: IcebergSink(name, mode="upsert", keys=["id"]),
        read,
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


def _hudi(spark: SparkSession, path: Path) -> Table:
    def write(rows: DataFrame, options: Mapping[str, str]) -> None:
        rows.write.format("hudi").options(**HUDI_OPTIONS, **options).mode("append").save(str(path))

    return Table(
        lambda rows: write(rows, {}),
        {
            "native": lambda batch: write(batch, HUDI_CONCURRENCY),
            "native, early detection": lambda batch: write(batch, HUDI_CONCURRENCY | HUDI_EARLY),
            "native, asynchronous": lambda batch: write(batch, HUDI_CONCURRENCY | HUDI_EARLY_ASYNCHRONOUS),
        },
        lambda: HudiSink(
            str(path),
            keys=["id"],
            partition_by=["day"],
            options=HUDI_PARALLELISM,
        ),
        lambda: spark.read.format("hudi").load(str(path)).select("day", "id", "writer", "batch", "value"),
    )
