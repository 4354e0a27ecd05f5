# ruff: noqa: S608 - the names are this file's own
"""Writes small Delta tables and keeps the files of their logs: `python -m tests.recorded_delta.record`. It needs PySpark 4.0."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from lakewarden.spark_jobs.jobs.spark_session import spark_session
from lakewarden.spark_jobs.jobs.table_formats import session_settings
from lakewarden.spark_jobs.sinks.releases import DELTA

HERE = Path(__file__).parent
COLUMNS = "day date, region string, id long, state string"


def write(spark: SparkSession, folder: Path) -> None:
    """The statements, one commit each but for the first, which the names of the tests' constants repeat."""
    days = f"delta.`{folder / 'days'}`"
    spark.sql(
        f"CREATE TABLE {days} ({COLUMNS}) USING delta PARTITIONED BY (region, day) "
        "TBLPROPERTIES ('delta.enableDeletionVectors'='false')"
    )
    for _ in range(2):
        rows = "('2026-11-23', 'a b/c', 1, 'x'), ('2026-11-24', NULL, 2, 'x')"
        spark.sql(f"INSERT INTO {days} SELECT CAST(col1 AS date), col2, col3, col4 FROM VALUES {rows}")
    spark.sql(
        f"MERGE INTO {days} t USING (SELECT date'2026-11-23' day, 'a b/c' region, 1L id) s ON t.id = s.id AND t.day = s.day "
        "WHEN MATCHED THEN UPDATE SET state = 'y'"
    )
    spark.sql(f"OPTIMIZE {days} WHERE day = '2026-11-24'")
    spark.sql(
        f"MERGE INTO {days} t USING (SELECT date'2026-11-23' day, 'a b/c' region, 9L id, 'z' state) s "
        "ON t.id = s.id AND t.day = s.day WHEN NOT MATCHED THEN INSERT *"
    )
    spark.sql(f"ALTER TABLE {days} ADD COLUMNS (more int)")
    spark.conf.set(
        "spark.databricks.delta.commitInfo.userMetadata", '{"lakewarden.transaction": "a-transaction"}'
    )
    spark.sql(f"DELETE FROM {days} WHERE day = '2026-11-24'")
    spark.conf.unset("spark.databricks.delta.commitInfo.userMetadata")

    mapped = f"delta.`{folder / 'mapped'}`"
    spark.sql(
        f"CREATE TABLE {mapped} ({COLUMNS}) USING delta PARTITIONED BY (day) TBLPROPERTIES "
        "('delta.columnMapping.mode'='name', 'delta.enableDeletionVectors'='true', 'delta.enableInCommitTimestamps'='true')"
    )
    spark.sql(f"INSERT INTO {mapped} SELECT date'2026-11-23', 'a', id, 'x' FROM RANGE(0, 10, 1, 1)")
    spark.sql(f"DELETE FROM {mapped} WHERE id = 3")


def main() -> None:
    """Replace the recorded files."""
    settings: dict[str, Any] = session_settings("delta") | {"spark.databricks.delta.snapshotPartitions": "1"}
    spark = spark_session("record", packages=[DELTA.artifacts["4.0"][-1]], **settings)
    with tempfile.TemporaryDirectory() as folder:
        write(spark, Path(folder))
        for table in ("days", "mapped"):
            kept = HERE / table
            shutil.rmtree(kept, ignore_errors=True)
            kept.mkdir()
            for file in sorted(Path(folder, table, "_delta_log").glob("*.json")):
                shutil.copy(file, kept)
            for file in sorted(Path(folder, table, "_delta_log").glob("*.crc"))[-1:]:
                shutil.copy(file, kept)
    spark.stop()


if __name__ == "__main__":
    main()
