"""Which Spark this is, and whether the gate can use it. Nothing else asks.

- *Refused*: no PySpark installed (`CommitGate.transaction` works without it), and one before 3.5, which has no job
  tags, so an abort couldn't cancel the jobs of one batch. On Spark Connect, a minor release that wasn't tried, since the process
  of a query's function is an internal of Spark, and a sink whose commit needs the JVM of a driver (`require_jvm`).
- *When*: when the function for `foreachBatch` or the sink is made, and so before the query starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakewarden.spark_jobs.engine.classic import Classic
from lakewarden.spark_jobs.engine.connect import Connect, no_jvm
from lakewarden.spark_jobs.gate.errors import UnsupportedSpark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakewarden.spark_jobs.engine.engine import Engine

OLDEST = (3, 5)

TRIED_ON_CONNECT = ((4, 0), (4, 1), (4, 2), (4, 3))


def engine_of(frame_or_session: DataFrame | SparkSession) -> Engine:
    """Return the engine of a batch or a session."""
    remote = type(frame_or_session).__module__.startswith("pyspark.sql.connect.")
    return Connect() if remote else Classic()


def require_spark(what: str) -> Engine:
    """Return the engine of this process. Raise `UnsupportedSpark` unless the gate can use it. `what` needs it."""
    try:
        import pyspark
    except ModuleNotFoundError as missing:
        if missing.name != "pyspark":
            raise  # PySpark is installed, and a package that it needs is not
        raise UnsupportedSpark(
            f"{what} needs PySpark, which is not installed: install lakewarden[spark]; a program without Spark uses "
            "gate.transaction(…)"
        ) from missing
    major, minor = map(int, pyspark.__version__.split(".")[:2])
    if (major, minor) < OLDEST:
        raise UnsupportedSpark(
            f"PySpark {pyspark.__version__} is not supported: {what} needs 3.5 or newer, because older ones have no job "
            "tags, by which an abort cancels the jobs of one batch; install lakewarden[spark]"
        )
    if not _is_remote():
        return Classic()
    if (major, minor) not in TRIED_ON_CONNECT:
        tried = ", ".join(f"{major}.{minor}" for major, minor in TRIED_ON_CONNECT)
        raise UnsupportedSpark(
            f"Spark Connect of PySpark {pyspark.__version__} is not supported: {what} was tried with {tried} only; use that, or "
            "start the session without `remote(…)` and without SPARK_REMOTE"
        )
    return Connect()


def require_jvm(what: str) -> None:
    """Raise `UnsupportedSpark` on Spark Connect. `what` needs the JVM of a driver."""
    if _is_remote():
        raise no_jvm(what)


def _is_remote() -> bool:
    from pyspark.sql.utils import is_remote

    return bool(is_remote())
