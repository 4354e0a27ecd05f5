"""How the project's own programs create a SparkSession. Users' jobs create their own."""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from lakewarden.spark_jobs.sinks.hudi.provider import BUNDLE as HUDI_BUNDLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_MASTER = "local[1,4]"
"""One core; a task may fail four times, as on a cluster.

Without the second number, a local session ends a job at a task's first failure. Spark 4.0 itself fails one now and then: after
another job was cancelled, reading from a Python worker can end with a CancelledKeyException.
"""

KAFKA_PACKAGES = {
    (3, 5): "org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.7",
    (4, 0): "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0",
}
"""Spark's Kafka source, by PySpark's version. PySpark has patch releases that Maven Central doesn't have (3.5.9, 4.0.5).

Ivy downloads it with its dependencies once (62 MB, into `~/.ivy2` or `~/.ivy2.5.2`). Later starts take half a second and only
read the repository's index.
"""


def kafka_package(pyspark_version: str) -> str:
    """Return the Maven coordinate of the Kafka source for a version of PySpark."""
    major, minor = pyspark_version.split(".")[:2]
    return KAFKA_PACKAGES[int(major), int(minor)]


def spark_session(
    name: str,
    *,
    master: str = LOCAL_MASTER,
    memory: str = "512m",
    kafka: bool = False,
    hudi: bool = False,
    packages: Sequence[str] = (),
    downloaded: bool = False,
    **settings: str,
) -> SparkSession:
    """Return a small local session: no UI, few shuffle partitions, log level ERROR.

    `kafka` adds Spark's Kafka source, `hudi` adds Hudi, which needs PySpark 3.5, `packages` adds jars by their Maven coordinates.
    If all of them are already `downloaded`, the start doesn't wait for that of other sessions.
    """
    import pyspark
    from pyspark.sql import SparkSession

    if master.startswith("local"):
        # By default Spark's Python workers run the path's `python3`, which may lack this process's packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    defaults = {
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        # Spark keeps the last 100 classes that it has generated. Two writers of Delta need more: each batch compiled them again.
        "spark.sql.codegen.cache.maxEntries": "1000",
        # The Python worker of a cancelled task is killed so long after Spark noticed it: the retry needs its core.
        "spark.python.task.killTimeout": "50ms",
    }
    jars = [*([kafka_package(pyspark.__version__)] if kafka else []), *packages]
    if hudi:
        jars.append(HUDI_BUNDLE)
        defaults["spark.serializer"] = "org.apache.spark.serializer.KryoSerializer"
    if jars:
        defaults["spark.jars.packages"] = ",".join(jars)
    builder = SparkSession.builder.appName(name).master(master)
    chosen = defaults | settings
    for key, value in chosen.items():
        builder = builder.config(key, value)
    downloads = "spark.jars.packages" in chosen and not downloaded
    with _one_process_at_a_time() if downloads else nullcontext():
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


@contextmanager
def _one_process_at_a_time() -> Iterator[None]:
    """Ivy has no lock of its own: of two processes that download one jar at the same time, one may use half a file."""
    with Path(tempfile.gettempdir(), f"lakewarden-ivy-{os.getuid()}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
