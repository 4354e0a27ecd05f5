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

from lakewarden.spark_jobs.gate.errors import UnsupportedSpark
from lakewarden.spark_jobs.sinks.releases import SPARK, minor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_MASTER = "local[1,4]"
"""One core; a task may fail four times, as on a cluster.

Without the second number, a local session ends a job at a task's first failure. Spark 4.0 itself fails one now and then: after
another job was cancelled, reading from a Python worker can end with a CancelledKeyException.
"""


def kafka_package(pyspark_version: str) -> str:
    """Return the Maven coordinate of Spark's Kafka source for a version of PySpark. Raise `UnsupportedSpark` if none is known.

    Ivy downloads it with its dependencies once (62 MB, into `~/.ivy2` or `~/.ivy2.5.2`). Later starts take half a second and
    only read the repository's index.
    """
    known = SPARK.get(minor(pyspark_version))
    if known is None:
        raise UnsupportedSpark(
            f"no Kafka source is known for PySpark {pyspark_version}: install PySpark {' or '.join(SPARK)}"
        )
    return known.kafka


def spark_session(
    name: str,
    *,
    master: str = LOCAL_MASTER,
    memory: str = "512m",
    kafka: bool = False,
    packages: Sequence[str] = (),
    downloaded: bool = False,
    **settings: str,
) -> SparkSession:
    """Return a small local session: no UI, few shuffle partitions, log level ERROR.

    `kafka` adds Spark's Kafka source, `packages` adds jars by their Maven coordinates.
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
