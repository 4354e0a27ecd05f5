"""Which Spark this is, and whether the gate can use it. Nothing else asks.

- *Refused*: no PySpark installed (`CommitGate.transaction` works without it), and one before 3.5, which has no job
  tags, so an abort couldn't cancel the jobs of one batch. Each refusal is an `UnsupportedSpark`, when the function for
  `foreachBatch` is made, and so before the query starts. A batch of another Spark is refused when it arrives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakewarden.spark_jobs.engine.classic import Classic
from lakewarden.spark_jobs.gate.errors import UnsupportedSpark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakewarden.spark_jobs.engine.engine import Engine

OLDEST = (3, 5)

CONNECT = (
    "Spark Connect is not supported: the gate runs in the driver and needs its SparkContext; start the session without "
    "`remote(…)` and without SPARK_REMOTE"
)


def engine_of(frame_or_session: DataFrame | SparkSession) -> Engine:
    """Return the engine of a batch or a session."""
    if type(frame_or_session).__module__.startswith("pyspark.sql.connect."):
        raise UnsupportedSpark(f"foreach_batch: {CONNECT}")
    return Classic()


def require_spark(what: str) -> None:
    """Raise `UnsupportedSpark` unless this process can use Spark as the gate needs it. `what` needs it."""
    try:
        import pyspark
    except ModuleNotFoundError as missing:
        if missing.name != "pyspark":
            raise  # PySpark is installed, and a package that it needs is not
        raise UnsupportedSpark(
            f"{what} needs PySpark, which is not installed: install lakewarden[spark]; a program without Spark uses "
            "gate.transaction(…)"
        ) from missing
    major, minor = pyspark.__version__.split(".")[:2]
    if (int(major), int(minor)) < OLDEST:
        raise UnsupportedSpark(
            f"PySpark {pyspark.__version__} is not supported: {what} needs 3.5 or newer, because older ones have no job "
            "tags, by which an abort cancels the jobs of one batch; install lakewarden[spark]"
        )
    from pyspark.sql.utils import is_remote

    if is_remote():
        raise UnsupportedSpark(f"{what}: {CONNECT}")
