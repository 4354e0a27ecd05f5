"""Table formats that the tests' Spark session can write, besides those that need no jar."""

from __future__ import annotations

from typing import Any

import pyspark

DELTA_PACKAGES = {(4, 0): "io.delta:delta-spark_2.13:4.0.0"}
"""By PySpark's version. Ivy downloads it once (8 MB). `DeltaSink` was tried with none for PySpark 3.5."""


def _spark_version() -> tuple[int, int]:
    major, minor = pyspark.__version__.split(".")[:2]
    return int(major), int(minor)


HAS_DELTA = _spark_version() in DELTA_PACKAGES


def format_settings() -> dict[str, Any]:
    """Return the settings of a Spark session that writes these formats."""
    if not HAS_DELTA:
        return {}
    return {
        "spark.jars.packages": DELTA_PACKAGES[_spark_version()],
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # Of the jobs that compute a table's state: 50 tasks by default, for tables of three files.
        "spark.databricks.delta.snapshotPartitions": "1",
    }
