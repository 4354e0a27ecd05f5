"""Which Spark micro-batches need. `gate/` needs none.

| Spark | |
| --- | --- |
| none installed | refused; `CommitGate.transaction` works without it |
| before 3.5 | refused: it has no job tags, so an abort couldn't cancel the jobs of one batch |
| Spark Connect | refused: a client has no `SparkContext`, and `foreachBatch` runs its function on the server |

Each refusal is an `UnsupportedSpark`, when the function for `foreachBatch` is made, and so before the query starts. A batch of
a Connect session that started later is refused when it arrives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakewarden.spark_jobs.gate.errors import UnsupportedSpark

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame

OLDEST = (3, 5)

CONNECT = (
    "Spark Connect is not supported: the gate runs in the driver and needs its SparkContext; start the session without "
    "`remote(…)` and without SPARK_REMOTE"
)


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


def context_of(batch: DataFrame) -> SparkContext:
    """Return the `SparkContext` of a batch. Raise `UnsupportedSpark` for a batch of Spark Connect, which has none."""
    if type(batch).__module__.startswith("pyspark.sql.connect."):
        raise UnsupportedSpark(f"foreach_batch: {CONNECT}")
    return batch.sparkSession.sparkContext
