"""How the project's own programs create a SparkSession, and run a query to its end or until a signal."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from lakewarden.spark_jobs.gate.errors import UnsupportedSpark
from lakewarden.spark_jobs.sinks.releases import SPARK, minor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOCAL_MASTER = "local[1,4]"
"""One core; a task may fail four times, as on a cluster.

Without the second number, a local session ends a job at a task's first failure. Spark 4.0 itself fails one now and then: after
another job was cancelled, reading from a Python worker can end with a CancelledKeyException.
"""

MAX_LINE = 600
"""Characters of the error that is printed. Spark wraps the cause in a text of its own and Java's stack."""

QUERY_STATE = "=== Streaming Query ==="
"""What follows it in an error of a query is not the error: its id, offsets and plan."""


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


def run_until_stopped(
    start: Callable[[], StreamingQuery],
    *,
    name: str,
    explain: Callable[[BaseException], str | None] = lambda _: None,
) -> int:
    """Start a query and wait for its end. Return the exit code: 0, or 1 with one line on stderr.

    `explain` may know an error better than `reason` does. It returns None if it doesn't.

    SIGTERM and SIGINT end the process at once, without a clean shutdown. That is safe: the query resumes from its
    checkpoint, and the agent aborts the transaction of a writer whose heartbeats end. The JVM ends with its driver.
    """
    signal.signal(signal.SIGTERM, _exit_at_once)
    signal.signal(signal.SIGINT, _exit_at_once)
    try:
        query = start()
        query.awaitTermination()
    except Exception as error:  # noqa: BLE001 - of every error the operator gets one line and an exit code
        print(f"{name} failed: {explain(error) or reason(error)}", file=sys.stderr)  # noqa: T201 - this is the program's output
        return 1
    return 0


def reason(error: BaseException) -> str:
    """Return the line of a Spark error that says what happened."""
    text = str(error).partition(QUERY_STATE)[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [
        line for line in lines if line.startswith("lakewarden.") and "Error" not in line.partition(":")[0]
    ]
    errors = ours or [line for line in lines if _names_an_error(line)] or lines or [type(error).__name__]
    return errors[-1][:MAX_LINE]


def _names_an_error(line: str) -> bool:
    name = line.partition(":")[0]
    return name.isidentifier() or (name.replace(".", "").isidentifier() and not line.startswith("at "))


def _exit_at_once(number: int, _frame: FrameType | None) -> NoReturn:
    sys.stderr.flush()
    os._exit(128 + number)
