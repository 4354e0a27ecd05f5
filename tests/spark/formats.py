"""Table formats that the tests' Spark session can write, besides those that need no jar."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from lakewarden.agent.embedded.iceberg_rest import SQLITE
from lakewarden.spark_jobs.jobs.table_formats import DELTA_CATALOG, EXTENSIONS
from lakewarden.spark_jobs.sinks.releases import FORMATS, SPARK, minor, release_of
from tests.servers.iceberg_catalogs import POSTGRESQL

ICEBERG_FORMAT = os.environ.get("LAKEWARDEN_TEST_ICEBERG_FORMAT") or "2"
"""The version of Iceberg's table format in which the tests' tables are created."""

ICEBERG_CATALOG = "LAKEWARDEN_TEST_ICEBERG_CATALOG"
"""Variable with the options of the catalog that has the tests' tables, as JSON; the drivers that a test starts have it, too."""

HADOOP_AWS = f"org.apache.hadoop:hadoop-aws:{SPARK[minor(pyspark.__version__)].hadoop}"

CODE_GENERATION = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
"""Spark's defaults, for tests of what a user's session runs; `conf/spark-defaults.conf` has those of the tests."""


def _jars() -> dict[str, str]:
    """The jars of all formats, or of those whose release LAKEWARDEN_TEST_DELTA, _ICEBERG or _HUDI names.

    Hudi's comes alone: beside it the session's own catalog can't be Delta's.
    """
    named = {form: os.environ.get(f"LAKEWARDEN_TEST_{form.upper()}") for form in FORMATS}
    found = {}
    for form, release in named.items():
        tried = {
            release_of(each): each for each in FORMATS[form].artifacts.get(minor(pyspark.__version__), ())
        }
        if tried and (release or not any(named.values())):
            newest = next(iter(tried.values()))
            found[form] = tried.get(release, f"{newest.rpartition(':')[0]}:{release}") if release else newest
    return {"hudi": found["hudi"]} if "hudi" in found else found


JARS = _jars()
HAS_DELTA, HAS_ICEBERG, HAS_HUDI = (form in JARS for form in ("delta", "iceberg", "hudi"))


def format_settings() -> dict[str, Any]:
    """Return the settings of a Spark session that writes these formats."""
    if HAS_HUDI:
        return {
            "spark.jars.packages": JARS["hudi"],
            "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
            "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
        }
    if not JARS:
        return {}
    settings = {
        "spark.jars.packages": ",".join([*JARS.values(), *([SQLITE, POSTGRESQL] if HAS_ICEBERG else [])]),
        "spark.sql.extensions": ",".join(extension for name, extension in EXTENSIONS.items() if name in JARS),
    }
    if HAS_DELTA:
        settings["spark.sql.catalog.spark_catalog"] = DELTA_CATALOG
        # Of the jobs that compute a table's state: 50 tasks by default, for tables of three files.
        settings["spark.databricks.delta.snapshotPartitions"] = "1"
    return settings


def iceberg_name(spark: SparkSession, folder: Path, **options: str) -> str:
    """Return the name of the table in `folder`, and configure the catalog that has it.

    `options`: the catalog's own. Others are those of `ICEBERG_CATALOG`, else it is a Hadoop catalog.
    """
    warehouse = folder.parents[1]
    digest = f"{zlib.crc32(str(warehouse).encode()):x}"
    catalog, namespace = f"lake{digest}", folder.parent.name
    options = options or json.loads(os.environ.get(ICEBERG_CATALOG, '{"type": "hadoop"}'))
    if options["type"] == "jdbc":
        warehouse.mkdir(parents=True, exist_ok=True)
        options = {"uri": f"jdbc:sqlite:{warehouse / 'catalog.db'}", **options}
    settings = {f".{key}": value for key, value in {"warehouse": str(warehouse), **options}.items()}
    for name, value in {"": "org.apache.iceberg.spark.SparkCatalog", **settings}.items():
        spark.conf.set(f"spark.sql.catalog.{catalog}{name}", value)
    if options["type"] != "hadoop":
        namespace += digest  # tests share a server
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog}.{namespace}")
    return f"{catalog}.{namespace}.{folder.name}"


@contextmanager
def session_settings(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    """Set the session's settings for the block."""
    before = {key: spark.conf.get(key, None) for key in settings}
    try:
        for key, value in settings.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, earlier in before.items():
            if earlier is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, earlier)
