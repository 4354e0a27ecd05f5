"""The lake of the demo: its tables in one of four formats. A job of yours has the same in its configuration.

    python lake.py LAKE.json create|export TABLE…

| format | a table is | its first state |
| --- | --- | --- |
| Paimon | a folder of pypaimon's warehouse; no Spark to create or read it | empty |
| Delta Lake | a folder | empty |
| Iceberg | a table in a REST catalog | empty |
| Hudi | a folder | a row for each flight, with its keys only |

Both jobs insert each flight. Two inserts of one new key into a Hudi table make two rows, in two file groups, with or without the
gate (docs/hudi.md). With the keys in the table, both jobs update, and conflict by file groups.
"""
# ruff: noqa: INP001 - a script's neighbour

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet
from flights import KEYS, PARTITION_KEYS, TABLE_SCHEMA

from lakewarden.spark_jobs import DeltaSink, HudiSink, IcebergSink, PaimonSink
from lakewarden.spark_jobs.jobs.spark_session import spark_session
from lakewarden.spark_jobs.sinks.releases import DELTA, HUDI, ICEBERG

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = {"paimon": None, "delta": DELTA, "iceberg": ICEBERG, "hudi": HUDI}
"""Each with the jars that it needs."""
HUDI_OPTIONS = {
    "hoodie.metadata.enable": "false",  # it doubles the time of these small writes
    "hoodie.upsert.shuffle.parallelism": "2",
    "hoodie.insert.shuffle.parallelism": "2",
    "hoodie.write.lock.wait_time_ms_between_retry": "200",
    # A NULL of a batch leaves the value that the table has.
    "hoodie.datasource.write.payload.class": "org.apache.hudi.common.model.OverwriteNonDefaultsWithLatestAvroPayload",
}
PAIMON_OPTIONS = {"bucket": "-1", "file.format": "parquet"}
"""Without a primary key, an upsert rewrites whole partitions, which causes the conflicts."""
PAIMON_KEYED_OPTIONS = {
    "bucket": "1",
    "file.format": "parquet",
    "merge-engine": "partial-update",  # each job has columns of its own
    "num-sorted-run.compaction-trigger": "2",  # 5 by default; a day gets about four files
    "write-only": "true",  # so that only the compactor compacts
}


@dataclass(frozen=True)
class Lake:
    """Where the tables are, and how they are written."""

    folder: str
    form: str
    primary_key: bool = False
    """Whether the tables have one. Only Paimon's."""
    catalog: str | None = None
    """The URI of Iceberg's REST catalog."""

    @classmethod
    def read(cls, file: str) -> Lake:
        return cls(**json.loads(Path(file).read_text()))

    def save(self) -> Path:
        file = Path(self.folder, "lake.json")
        file.write_text(json.dumps(asdict(self)))
        return file

    # -- writing -----------------------------------------------------------------------------------------------------

    def session(self, name: str, *, downloaded: bool = True) -> SparkSession:
        """A small local session with the format's jars. `downloaded`: an earlier session has them from Maven Central."""
        import pyspark

        settings: dict[str, Any] = {**self._settings(), "memory": "1g" if self.form == "hudi" else "512m"}
        releases = FORMATS[self.form]
        if releases is not None:
            jar = releases.jar(pyspark.__version__)
            if jar is None:
                raise releases.missing(pyspark.__version__)
            settings["packages"] = [jar]
        return spark_session(name, downloaded=downloaded, **settings)

    def feed(self, spark: SparkSession, name: str, days: int) -> DataFrame:
        """The files of a feed as a stream, so many days in each batch."""
        files = str(Path(self.folder, "feeds", name))
        schema = spark.read.parquet(files).schema
        rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", days * 2).parquet(files)
        return _with_all_columns(rows) if self.form == "hudi" else rows

    def sink(self, table: str) -> PaimonSink | DeltaSink | IcebergSink | HudiSink:
        """The sink of a job."""
        match self.form:
            case "paimon":
                return PaimonSink(self.uri(table), mode="upsert", keys=KEYS)
            case "delta":
                return DeltaSink(self.uri(table), mode="upsert", keys=KEYS)
            case "iceberg":
                return IcebergSink(self._name(table), mode="upsert", keys=KEYS)
            case _:
                return HudiSink(self.uri(table), options=HUDI_OPTIONS)

    def uri(self, table: str) -> str:
        return f"file://{self.folder}/warehouse/demo.db/{table}"

    def checkpoint(self, table: str, feed: str) -> str:
        return str(Path(self.folder, "checkpoints", table, feed))

    # -- creating and reading ----------------------------------------------------------------------------------------

    def create(self, tables: list[str]) -> None:
        """Create each table in its first state."""
        if self.form == "paimon":
            self._create_in_paimon(tables)
            return
        spark = self.session("create", downloaded=False)
        columns = ", ".join(f"{each.name} {_sql_type(each.type)}" for each in TABLE_SCHEMA)
        partitions = ", ".join(PARTITION_KEYS)
        if self.form == "iceberg":
            spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.demo")
        for table in tables:
            if self.form == "hudi":
                self._create_in_hudi(spark, table)
                continue
            place = f" LOCATION '{self.uri(table)}'" if self.form == "iceberg" else ""
            spark.sql(
                f"CREATE TABLE {self._name(table)} ({columns}) USING {self.form} PARTITIONED BY ({partitions}){place}"
            )

    def export(self, tables: list[str]) -> None:
        """Write the rows of each table, read by the format itself, as Parquet files to `rows/<table>`."""
        spark = None if self.form == "paimon" else self.session("read")
        for table in tables:
            copy = self.copy(table)
            if spark is None:
                copy.mkdir(parents=True)
                pyarrow.parquet.write_table(self._read_from_paimon(table), copy / "rows.parquet")
            elif self.form == "hudi":
                spark.read.format("hudi").load(self.uri(table)).write.parquet(str(copy))
            else:
                spark.table(self._name(table)).write.parquet(str(copy))

    def copy(self, table: str) -> Path:
        return Path(self.folder, "rows", table)

    # -- the formats -------------------------------------------------------------------------------------------------

    def _settings(self) -> dict[str, str]:
        match self.form:
            case "delta":
                return {
                    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
                    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
                    # Tasks of the jobs that compute a table's state: 50 by default.
                    "spark.databricks.delta.snapshotPartitions": "2",
                }
            case "iceberg":
                return {
                    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
                    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
                    "spark.sql.catalog.lake.type": "rest",
                    "spark.sql.catalog.lake.uri": str(self.catalog),
                }
            case "hudi":
                return {"spark.serializer": "org.apache.spark.serializer.KryoSerializer"}
            case _:
                return {}

    def _name(self, table: str) -> str:
        """The table's name in SQL."""
        return f"lake.demo.{table}" if self.form == "iceberg" else f"{self.form}.`{self.uri(table)}`"

    def _create_in_hudi(self, spark: SparkSession, table: str) -> None:
        departures = spark.read.parquet(str(Path(self.folder, "feeds", "departures")))
        options = HUDI_OPTIONS | {
            "hoodie.table.name": table,
            "hoodie.datasource.write.operation": "insert",
            "hoodie.datasource.write.recordkey.field": "flight_id",
            "hoodie.datasource.write.partitionpath.field": ",".join(PARTITION_KEYS),
            "hoodie.datasource.write.hive_style_partitioning": "true",
        }
        rows = _with_all_columns(departures.select(*KEYS))
        rows.write.format("hudi").options(**options).mode("append").save(self.uri(table))

    def paimon(self) -> Any:
        """Paimon's catalog, by pypaimon."""
        from pypaimon import CatalogFactory

        return CatalogFactory.create({"warehouse": f"file://{self.folder}/warehouse"})

    def _create_in_paimon(self, tables: list[str]) -> None:
        from pypaimon import Schema

        catalog = self.paimon()
        catalog.create_database("demo", ignore_if_exists=True)
        fields = TABLE_SCHEMA
        if self.primary_key:
            fields = pa.schema([each.with_nullable(each.name not in KEYS) for each in TABLE_SCHEMA])
        schema = Schema.from_pyarrow_schema(
            fields,
            partition_keys=list(PARTITION_KEYS),
            primary_keys=list(KEYS) if self.primary_key else None,
            options=PAIMON_KEYED_OPTIONS if self.primary_key else PAIMON_OPTIONS,
        )
        for table in tables:
            catalog.create_table(f"demo.{table}", schema, ignore_if_exists=False)

    def _read_from_paimon(self, table: str) -> pa.Table:
        builder = self.paimon().get_table(f"demo.{table}").new_read_builder()
        splits = builder.new_scan().plan().splits()
        return builder.new_read().to_arrow(splits) if splits else TABLE_SCHEMA.empty_table()


def _sql_type(kind: pa.DataType) -> str:
    return "int" if kind == pa.int32() else "string"


def _with_all_columns(rows: DataFrame) -> DataFrame:
    """Hudi writes whole records: the columns of the other job are NULL."""
    from pyspark.sql import functions as f

    given = set(rows.columns)
    columns = []
    for each in TABLE_SCHEMA:
        column = f.col(each.name) if each.name in given else f.lit(None).cast(_sql_type(each.type))
        columns.append(column.alias(each.name))
    return rows.select(*columns)


if __name__ == "__main__":
    place, action, *names = sys.argv[1:]
    getattr(Lake.read(place), action)(names)
