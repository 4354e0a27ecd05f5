"""Table formats that the tests' Spark session can write, besides those that need no jar."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from lakewarden.spark_jobs.jobs.table_formats import DELTA_CATALOG, EXTENSIONS
from lakewarden.spark_jobs.sinks.releases import FORMATS, SPARK, minor, release_of
from tests.servers.iceberg_catalogs import POSTGRESQL
from tests.servers.iceberg_rest import SQLITE

ICEBERG_FORMAT = os.environ.get("LAKEWARDEN_TEST_ICEBERG_FORMAT") or "2"
"""The version of Iceberg's table format in which the tests' tables are created."""

ICEBERG_CATALOG = "LAKEWARDEN_TEST_ICEBERG_CATALOG"
"""Variable with the options of the catalog that has the tests' tables, as JSON; the drivers that a test starts have it, too."""

OBJECTS = "objects"
"""Among those options: the folder in which an S3 server keeps the objects of the tables' bucket as files."""

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
        tried = {release_of(each): each for each in FORMATS[form].jars(pyspark.__version__)}
        if tried and (release or not any(named.values())):
            newest = next(iter(tried.values()))
            found[form] = tried.get(release, f"{newest.rpartition(':')[0]}:{release}") if release else newest
    return {"hudi": found["hudi"]} if "hudi" in found else found


JARS = _jars()
HAS_DELTA, HAS_ICEBERG, HAS_HUDI = (form in JARS for form in ("delta", "iceberg", "hudi"))
ICEBERG_AWS = (
    f"org.apache.iceberg:iceberg-aws-bundle:{JARS['iceberg'].rpartition(':')[2]}" if HAS_ICEBERG else ""
)
HUDI_TABLE_VERSION = {"0.15": 6, "1.0": 8}.get(minor(release_of(JARS.get("hudi", ""))), 9)
"""Of the tables that Hudi creates."""


def catalog_options() -> dict[str, str]:
    """Return the options of `ICEBERG_CATALOG`. Hadoop's catalog is the default."""
    options: dict[str, str] = json.loads(os.environ.get(ICEBERG_CATALOG, '{"type": "hadoop"}'))
    return options


def lists_newest_only() -> bool:
    """Return whether the tables are in Nessie, which lists no older snapshot and chooses the locations."""
    return OBJECTS in catalog_options()


def path_of(location: str) -> str:
    """Return the path of a table's folder or file."""
    objects = Path(catalog_options().get(OBJECTS, "/"))
    path = re.sub("/+", "/", location.removeprefix("file:"))
    return path.replace(f"s3:/{objects.name}", f"{objects}", 1)


def format_settings(*, s3: bool = False) -> dict[str, Any]:
    """Return the settings of a Spark session that writes these formats. `s3`: also by Iceberg's own access to S3."""
    if HAS_HUDI:
        return {
            "spark.jars.packages": JARS["hudi"],
            "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
            "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
        }
    if not JARS:
        return {}
    catalogs = [SQLITE, POSTGRESQL] if HAS_ICEBERG else []
    if HAS_ICEBERG and (s3 or lists_newest_only()):
        catalogs.append(ICEBERG_AWS)
    settings = {
        "spark.jars.packages": ",".join([*JARS.values(), *catalogs]),
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
    options = options or catalog_options()
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
