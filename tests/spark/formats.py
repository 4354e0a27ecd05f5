"""Table formats that the tests' Spark session can write, besides those that need no jar."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from lakewarden.spark_jobs.jobs.table_formats import DELTA_CATALOG, EXTENSIONS, PACKAGES
from lakewarden.spark_jobs.sinks.hudi.provider import BUNDLE
from tests.servers.iceberg_rest import SQLITE

HUDI_RELEASE = os.environ.get("LAKEWARDEN_TEST_HUDI") or BUNDLE.rpartition(":")[2]
"""Other releases than the default are tried by `make test-matrix`."""

ICEBERG_FORMAT = os.environ.get("LAKEWARDEN_TEST_ICEBERG_FORMAT") or "2"
"""The version of Iceberg's table format in which the tests' tables are created."""


def _spark_version() -> tuple[int, int]:
    major, minor = pyspark.__version__.split(".")[:2]
    return int(major), int(minor)


def _delta_and_iceberg() -> dict[str, str]:
    """The jars of both: the sinks' own, or the releases of LAKEWARDEN_TEST_DELTA and LAKEWARDEN_TEST_ICEBERG."""
    major, minor = _spark_version()
    scala = "2.13" if major >= 4 else "2.12"
    artifacts = {
        "delta": f"io.delta:delta-spark_{scala}",
        "iceberg": f"org.apache.iceberg:iceberg-spark-runtime-{major}.{minor}_{scala}",
    }
    chosen = {name: os.environ.get(f"LAKEWARDEN_TEST_{name.upper()}") for name in artifacts}
    named = {name: f"{artifacts[name]}:{release}" for name, release in chosen.items() if release}
    return {str(name): jar for name, jar in PACKAGES.get(_spark_version(), {}).items()} | named


DELTA_AND_ICEBERG = _delta_and_iceberg()
HAS_DELTA, HAS_ICEBERG = "delta" in DELTA_AND_ICEBERG, "iceberg" in DELTA_AND_ICEBERG

HAS_HUDI = _spark_version() == (3, 5) and not DELTA_AND_ICEBERG
"""Maven Central has no bundle of Hudi 1.2 for another PySpark. Beside it the session's own catalog can't be Delta's."""


def format_settings() -> dict[str, Any]:
    """Return the settings of a Spark session that writes these formats."""
    if HAS_HUDI:
        return {
            "spark.jars.packages": f"{BUNDLE.rpartition(':')[0]}:{HUDI_RELEASE}",
            "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
        }
    if not DELTA_AND_ICEBERG:
        return {}
    settings = {
        "spark.jars.packages": ",".join([*DELTA_AND_ICEBERG.values(), *([SQLITE] if HAS_ICEBERG else [])]),
        "spark.sql.extensions": ",".join(
            extension for name, extension in EXTENSIONS.items() if name in DELTA_AND_ICEBERG
        ),
    }
    if HAS_DELTA:
        settings["spark.sql.catalog.spark_catalog"] = DELTA_CATALOG
        # Of the jobs that compute a table's state: 50 tasks by default, for tables of three files.
        settings["spark.databricks.delta.snapshotPartitions"] = "1"
    return settings


def iceberg_name(spark: SparkSession, folder: Path, kind: str = "hadoop") -> str:
    """Return the name of the table in `folder`, and configure the catalog that has it: `hadoop`, or `jdbc` on SQLite."""
    warehouse = folder.parents[1]
    catalog = f"lake{abs(hash(warehouse)):x}"
    settings = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": kind, ".warehouse": str(warehouse)}
    if kind == "jdbc":
        warehouse.mkdir(parents=True)
        settings[".uri"] = f"jdbc:sqlite:{warehouse / 'catalog.db'}"
    for name, value in settings.items():
        spark.conf.set(f"spark.sql.catalog.{catalog}{name}", value)
    if kind == "jdbc":
        spark.sql(f"CREATE NAMESPACE {catalog}.{folder.parent.name}")
    return f"{catalog}.{folder.parent.name}.{folder.name}"
