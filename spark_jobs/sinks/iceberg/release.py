"""What the sink needs of Iceberg and of the Spark session, checked before the first batch.

Iceberg's `SparkTableCache` and a catalog of our own let a Spark statement write to any `Table` object. Iceberg made the cache for
its own rewrite actions, so a release may lack it, or use it in another way. Without it the whole statement is granted
(`sinks/spark_sink.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakewarden.spark_jobs.engine import java
from lakewarden.spark_jobs.gate.errors import UnsupportedSpark
from lakewarden.spark_jobs.sinks.releases import ICEBERG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STAGING_CATALOG = "lakewarden_staging"
"""Name of the catalog, in the Spark session, whose tables are those in `SparkTableCache`."""

STAGED_TABLE = "org.apache.iceberg.LakewardenStagedTable"
"""Class of the tables that statements write to (`java/`)."""
_TABLE_CACHE = "org.apache.iceberg.spark.SparkTableCache"
CATALOG = "org.apache.iceberg.spark.LakewardenStagingCatalog"
"""Class of the catalog (`java/`)."""
NEIGHBOURS = {STAGED_TABLE: "org.apache.iceberg.BaseTable", CATALOG: _TABLE_CACHE}
"""Iceberg's classes of the same packages."""
SOURCES = Path(__file__).parent / "java"
CLASSES = Path(__file__).parent / "classes"
VERSION = 2
"""Version of the calls between Python and the classes."""


def require_release(spark: SparkSession, *, untried: bool) -> str | None:
    """Return why no statement can be staged, or None if it can.

    Raise `UnsupportedSpark` if Iceberg is missing from the session, or its release is unknown and not `untried`, or if neither
    staged statements nor whole ones would be labelled.
    """
    try:
        version = str(java.call_static(spark, "org.apache.iceberg.IcebergBuild", "version"))
    except Exception as error:
        raise ICEBERG.missing(spark.version) from error
    ICEBERG.require(version, spark.version, untried=untried)
    unhooked = _obstacle(spark, version)
    if unhooked is not None and not java.threads_are_pinned():
        raise UnsupportedSpark(
            f"{unhooked}, and PySpark doesn't pin its threads: Iceberg labels the commit of a whole statement by its thread, and "
            "the sink finds a committed batch by its label; start the job without PYSPARK_PIN_THREAD, or with true"
        )
    return unhooked


def _obstacle(spark: SparkSession, version: str) -> str | None:
    missing = ICEBERG.differing([name for name in ICEBERG.hooks if _has_class(spark, name)])
    if missing:
        return f"Iceberg {version} has no {' and no '.join(missing)}"
    for own, neighbour in NEIGHBOURS.items():
        try:
            java.defined_class(spark, own, neighbour, CLASSES, version=VERSION)
        except Exception as error:  # noqa: BLE001 - whatever it is, whole statements can be granted
            return f"{own} can't be defined: {java.java_text(error)}"
    return None


def _has_class(spark: SparkSession, name: str) -> bool:
    try:
        java.java_class(spark, name)
    except Exception:  # noqa: BLE001 - py4j raises what Java throws for a missing class
        return False
    return True


def know_staging_catalog(spark: SparkSession) -> None:
    """Make the tables in Iceberg's `SparkTableCache` known to the session as those of `STAGING_CATALOG`."""
    spark.conf.set(f"spark.sql.catalog.{STAGING_CATALOG}", CATALOG)


def table_cache(spark: SparkSession) -> Any:
    """Return Iceberg's `SparkTableCache`, with its tables known to the session."""
    know_staging_catalog(spark)
    return java.call_static(spark, _TABLE_CACHE, "get")
