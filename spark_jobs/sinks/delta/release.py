"""Which release of Delta the session has, and whether its commit can be put under the grant.

`TransactionExecutionObserver` is internal to Delta. A release may change its methods, or when it calls them. So the interface
is compared with what the sink implements. A method that the sink lacks would fail in the middle of a commit. Without the
observer the whole statement is granted (`sinks/whole_statement.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakewarden.spark_jobs.sinks.java import java_class, threads_are_pinned
from lakewarden.spark_jobs.sinks.releases import DELTA, FormatVersion

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OBSERVER = "org.apache.spark.sql.delta.TransactionExecutionObserver"

_STATIC = 8
"""A bit of `java.lang.reflect.Modifier`. Scala adds static methods, those of the companion object."""


def require_release(spark: SparkSession, *, untried: bool) -> FormatVersion:
    """Return the session's release of Delta. Raise `UnsupportedSpark` if it is missing, or unknown and not `untried`."""
    try:
        version = str(java_class(spark, "io.delta.package$").getField("MODULE$").get(None).VERSION())
    except Exception as error:
        raise DELTA.missing(spark.version) from error
    DELTA.require(version, spark.version, untried=untried)
    differing = DELTA.differing(_methods(spark))
    if differing:
        return FormatVersion(
            version, f"Delta Lake {version} has another {OBSERVER}: {', '.join(differing)} differ"
        )
    if not threads_are_pinned():
        return FormatVersion(version, "PySpark doesn't pin its threads: PYSPARK_PIN_THREAD is not true")
    return FormatVersion(version, None)


def _methods(spark: SparkSession) -> set[str]:
    """Return the names of the observer's methods, or none if the release has no observer."""
    try:
        methods = java_class(spark, OBSERVER).getMethods()
    except Exception:  # noqa: BLE001 - py4j raises what Java throws for a missing class
        return set()
    return {str(method.getName()) for method in methods if not method.getModifiers() & _STATIC}
