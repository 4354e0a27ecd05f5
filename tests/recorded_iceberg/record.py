# ruff: noqa: S608 - the names are this file's own
"""Writes small Iceberg tables and keeps their metadata: `python -m tests.recorded_iceberg.record`. It needs PySpark 4.0."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from lakewarden.spark_jobs.jobs.spark_session import spark_session
from lakewarden.spark_jobs.jobs.table_formats import session_settings
from lakewarden.spark_jobs.sinks.releases import ICEBERG

HERE = Path(__file__).parent


def write(spark: SparkSession) -> None:
    """The statements, one version of the table each."""
    spark.sql("CREATE NAMESPACE lake.air")
    spark.sql(
        "CREATE TABLE lake.air.flights (at timestamp, later timestamp, region string, id long) USING iceberg "
        "PARTITIONED BY (days(at), hours(later), region, bucket(4, id)) TBLPROPERTIES ('write.delete.mode'='merge-on-read')"
    )
    moment = "timestamp'2026-11-23 05:00:00'"
    for number in (1, 2):
        spark.sql(
            f"INSERT INTO lake.air.flights SELECT * FROM VALUES ({moment}, {moment}, 'a b/c', {number}L), "
            f"(timestamp'1969-12-31 23:00:00', NULL, NULL, {number}L)"
        )
    spark.sql(
        "MERGE INTO lake.air.flights t USING (SELECT 1L id) s ON t.id = s.id AND t.region = 'a b/c' "
        "WHEN MATCHED THEN UPDATE SET id = 1L"
    )
    spark.sql("DELETE FROM lake.air.flights WHERE id = 2 AND region IS NULL")
    spark.sql("ALTER TABLE lake.air.flights SET TBLPROPERTIES ('a'='b')")
    jvm: Any = spark._jvm
    update = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
        spark._jsparkSession, "lake.air.flights"
    )
    update.newAppend().set("lakewarden.transaction", "t").commit()
    spark.sql(
        "CALL lake.system.rewrite_data_files(table => 'air.flights', options => map('rewrite-all', 'true'))"
    )


def main() -> None:
    """Replace the recorded files."""
    with tempfile.TemporaryDirectory() as folder:
        catalog = "spark.sql.catalog.lake"
        settings: dict[str, Any] = session_settings("iceberg") | {
            catalog: "org.apache.iceberg.spark.SparkCatalog",
            f"{catalog}.type": "hadoop",
            f"{catalog}.warehouse": folder,
            "spark.rpc.lookupTimeout": "600s",  # of a busy machine
            "spark.rpc.askTimeout": "600s",
        }
        spark = spark_session("record", packages=[ICEBERG.artifacts["4.0"][-1]], **settings)
        write(spark)
        shutil.rmtree(HERE / "flights", ignore_errors=True)
        shutil.copytree(
            Path(folder, "air/flights/metadata"), HERE / "flights", ignore=shutil.ignore_patterns(".*")
        )
        spark.stop()


if __name__ == "__main__":
    main()
