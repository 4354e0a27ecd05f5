"""The one place where our own programs build a SparkSession. A job of yours brings its own."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KAFKA_PACKAGE = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"
"""Spark's Kafka source. Not of PySpark's exact version: PySpark has patch releases (4.0.5) that Maven Central hasn't.

Ivy fetches it with what it needs once (62 MB, into `~/.ivy2.5.2`); after that it takes half a second and no network
beyond a look at its index.
"""


def spark_session(
    name: str, *, master: str = "local[1]", memory: str = "512m", kafka: bool = False, **settings: str
) -> SparkSession:
    """A small local session: no UI, few shuffle partitions, quiet; `kafka` adds Spark's Kafka source."""
    from pyspark.sql import SparkSession

    if master.startswith("local"):
        # Spark's Python workers would be whatever `python3` is on the path; they need what this process has.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    defaults = {
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        # A cancelled task's Python worker is killed after this: it holds the core that the retry wants.
        "spark.python.task.killTimeout": "300ms",
    }
    if kafka:
        defaults["spark.jars.packages"] = KAFKA_PACKAGE
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in (defaults | settings).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
