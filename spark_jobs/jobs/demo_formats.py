"""The demo's table in each format: the session that writes it, its first state, its rows, and the sink of the queries.

| format | a table is | its first state |
| --- | --- | --- |
| Paimon | a folder of pypaimon's warehouse | the demo itself creates and reads it, without Spark |
| Delta Lake | a folder | empty |
| Iceberg | a table in a REST catalog, which gives it the URI `<warehouse>/<database>/<name>` | empty |
| Hudi | a folder | a row for each flight, with its keys only |

Both queries insert each flight. Two inserts of one new key into a Hudi table make two rows, in two file groups, with or without
the gate (docs/hudi.md). With the keys in the table, both queries are updates, and conflict by file groups.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lakewarden.spark_jobs.gate.errors import UnsupportedSpark
from lakewarden.spark_jobs.jobs.spark_session import LOCAL_MASTER, spark_session
from lakewarden.spark_jobs.jobs.table_formats import session_settings
from lakewarden.spark_jobs.sinks.contract import Sink
from lakewarden.spark_jobs.sinks.delta.sink import DeltaSink
from lakewarden.spark_jobs.sinks.hudi.sink import HudiSink
from lakewarden.spark_jobs.sinks.iceberg.sink import IcebergSink
from lakewarden.spark_jobs.sinks.paimon.sink import PaimonSink
from lakewarden.spark_jobs.sinks.releases import DELTA, HUDI, ICEBERG, TableFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField


@dataclass(frozen=True, slots=True)
class NewTable:
    """What a new table has."""

    columns: str
    """As SQL: names with types."""
    partition_by: Sequence[str]
    keys: Sequence[str]
    rows: str
    """Folder of Parquet files that have the keys of every row which the queries will write."""


class DemoFormat(ABC):
    """What the demo's programs need of one format."""

    releases: TableFormat
    memory = "512m"

    def session(
        self,
        name: str,
        table: str,
        master: str = LOCAL_MASTER,
        *,
        catalog: str | None = None,
        downloaded: bool = False,
    ) -> SparkSession:
        """Return a session that writes and reads `table`. Raise `UnsupportedSpark` if this environment can't have one.

        `catalog`: the URI of Iceberg's. `downloaded`: an earlier session has downloaded the jars.
        """
        import pyspark
        from pyspark.errors import PySparkException

        jar = jar_for(self, pyspark.__version__)
        settings: dict[str, Any] = dict(self.settings(table, catalog))
        try:
            return spark_session(
                name, master=master, memory=self.memory, packages=[jar], downloaded=downloaded, **settings
            )
        except PySparkException as error:
            raise UnsupportedSpark(
                f"Spark did not start with {jar}: without a copy in ~/.ivy2 (Spark 4: ~/.ivy2.5.2) it comes from Maven Central, "
                "which must be reachable; the lines above have Ivy's and the JVM's own errors"
            ) from error

    @abstractmethod
    def settings(self, table: str, catalog: str | None, /) -> dict[str, str]:
        """The settings of the session."""

    @abstractmethod
    def create(self, spark: SparkSession, table: str, layout: NewTable) -> None:
        """Create the table in its first state."""

    @abstractmethod
    def read(self, spark: SparkSession, table: str) -> DataFrame:
        """The rows of the table, read by the format itself."""

    @abstractmethod
    def sink(self, table: str, keys: Sequence[str], /) -> Sink:
        """The sink of a query."""

    def stream(self, _spark: SparkSession, _table: str, rows: DataFrame, /) -> DataFrame:
        """The stream of a query, with the columns that its sink needs."""
        return rows


class Delta(DemoFormat):
    """Delta Lake, by path."""

    releases = DELTA

    def settings(self, _table: str, _catalog: str | None, /) -> dict[str, str]:
        # Of the jobs that compute a table's state: 50 tasks by default.
        return session_settings("delta") | {"spark.databricks.delta.snapshotPartitions": "2"}

    def create(self, spark: SparkSession, table: str, layout: NewTable) -> None:
        _create(spark, f"delta.`{table}`", "delta", layout)

    def read(self, spark: SparkSession, table: str) -> DataFrame:
        return spark.read.format("delta").load(table)

    def sink(self, table: str, keys: Sequence[str], /) -> Sink:
        return DeltaSink(table, mode="upsert", keys=keys)


class Iceberg(DemoFormat):
    """Iceberg, in a REST catalog."""

    releases = ICEBERG

    def settings(self, _table: str, catalog: str | None, /) -> dict[str, str]:
        if catalog is None:
            raise UnsupportedSpark("the demo of Iceberg needs the URI of a REST catalog: pass --catalog")
        return session_settings("iceberg") | {
            f"spark.sql.catalog.{ICEBERG_CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
            f"spark.sql.catalog.{ICEBERG_CATALOG}.type": "rest",
            f"spark.sql.catalog.{ICEBERG_CATALOG}.uri": catalog,
        }

    def create(self, spark: SparkSession, table: str, layout: NewTable) -> None:
        name = iceberg_name(table)
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {name.rpartition('.')[0]}")
        _create(spark, name, "iceberg", layout)

    def read(self, spark: SparkSession, table: str) -> DataFrame:
        return spark.table(iceberg_name(table))

    def sink(self, table: str, keys: Sequence[str], /) -> Sink:
        return IcebergSink(iceberg_name(table), mode="upsert", keys=keys)


class Hudi(DemoFormat):
    """Hudi, by path: copy on write. A NULL of a batch leaves the value that the table has."""

    releases = HUDI
    memory = "1g"

    def settings(self, _table: str, _catalog: str | None, /) -> dict[str, str]:
        return {"spark.serializer": "org.apache.spark.serializer.KryoSerializer"}

    def create(self, spark: SparkSession, table: str, layout: NewTable) -> None:
        keys = spark.read.parquet(layout.rows).select(*layout.keys)
        fields = spark.createDataFrame([], layout.columns).schema
        rows = _with_all_columns(keys, fields)
        options = HUDI_OPTIONS | {
            "hoodie.table.name": table.rpartition("/")[2],
            "hoodie.datasource.write.operation": "insert",
            "hoodie.datasource.write.recordkey.field": ",".join(_row_keys(layout.keys, layout.partition_by)),
            "hoodie.datasource.write.partitionpath.field": ",".join(layout.partition_by),
            "hoodie.datasource.write.hive_style_partitioning": "true",
        }
        rows.write.format("hudi").options(**options).mode("append").save(table)

    def read(self, spark: SparkSession, table: str) -> DataFrame:
        return spark.read.format("hudi").load(table)

    def sink(self, table: str, _keys: Sequence[str], /) -> Sink:
        return HudiSink(table, options=HUDI_OPTIONS)

    def stream(self, spark: SparkSession, table: str, rows: DataFrame, /) -> DataFrame:
        """Hudi writes whole records: the columns of the other query are NULL."""
        fields = [field for field in self.read(spark, table).schema if not field.name.startswith("_hoodie_")]
        return _with_all_columns(rows, fields)


ICEBERG_CATALOG: Final = "lake"

HUDI_OPTIONS: Final = {
    "hoodie.metadata.enable": "false",  # it doubles the time of these small writes
    "hoodie.upsert.shuffle.parallelism": "2",
    "hoodie.insert.shuffle.parallelism": "2",
    "hoodie.write.lock.wait_time_ms_between_retry": "200",
    "hoodie.datasource.write.payload.class": "org.apache.hudi.common.model.OverwriteNonDefaultsWithLatestAvroPayload",
}

PAIMON: Final = "paimon"
ON_SPARK: Final[dict[str, DemoFormat]] = {"delta": Delta(), "hudi": Hudi(), "iceberg": Iceberg()}
"""The formats whose tables Spark creates and reads."""
FORMATS: Final = (PAIMON, *ON_SPARK)


def jar_for(form: DemoFormat, pyspark_version: str) -> str:
    """Return the Maven coordinate of the format for this PySpark. Raise `UnsupportedSpark` if there is none."""
    jar = form.releases.jar(pyspark_version)
    if jar is None:
        name = form.releases.name
        raise UnsupportedSpark(
            f"the demo of {name} needs PySpark {', '.join(form.releases.artifacts)}, and this environment has "
            f"{pyspark_version}: in a clone, run make demo FORMAT={name.split()[0].lower()}; elsewhere, install another PySpark"
        )
    return jar


def iceberg_name(table: str) -> str:
    """Return the name of a table of the catalog, by its URI."""
    _, database, name = table.rsplit("/", 2)
    return f"{ICEBERG_CATALOG}.{database}.{name}"


def paimon_sink(table: str, keys: Sequence[str], s3_endpoint: str | None) -> PaimonSink:
    """Return the sink of a query on a Paimon table."""
    return PaimonSink(table, mode="upsert", keys=keys, catalog_options=catalog_options(s3_endpoint))


def catalog_options(s3_endpoint: str | None) -> dict[str, str]:
    """Return pypaimon's options for an S3 server, with the credentials of the usual AWS environment variables."""
    if s3_endpoint is None:
        return {}
    options = {
        "s3.endpoint": s3_endpoint,
        "s3.path-style-access": "true",
        "s3.region": os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1",
        "s3.access-key": os.environ.get("AWS_ACCESS_KEY_ID"),
        "s3.secret-key": os.environ.get("AWS_SECRET_ACCESS_KEY"),
        "s3.session-token": os.environ.get("AWS_SESSION_TOKEN"),
    }
    return {name: value for name, value in options.items() if value}


def _row_keys(keys: Sequence[str], partition_by: Sequence[str]) -> list[str]:
    """The keys of a row within its partition."""
    return [key for key in keys if key not in partition_by]


def _with_all_columns(rows: DataFrame, fields: Iterable[StructField]) -> DataFrame:
    """Return the rows with these columns, NULL where they have none."""
    from pyspark.sql import functions as f

    given = set(rows.columns)
    return rows.select(
        *(
            f.col(field.name) if field.name in given else f.lit(None).cast(field.dataType).alias(field.name)
            for field in fields
        )
    )


def _create(spark: SparkSession, name: str, form: str, layout: NewTable) -> None:
    partitions = ", ".join(layout.partition_by)
    spark.sql(f"CREATE TABLE {name} ({layout.columns}) USING {form} PARTITIONED BY ({partitions})")
