"""Whether this release of Delta has the hook that puts its commit under the grant.

`TransactionExecutionObserver` is internal to Delta. A release may change its methods, or when it calls them. So only
releases that were tried are accepted, unless the user says otherwise, and the interface is compared with what the sink
implements. A method that the sink lacks would fail in the middle of a commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakewarden.spark_jobs.gate.errors import UnsupportedSpark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRIED = ("4.0",)
"""Minor releases of Delta that the tests have run with."""

OBSERVER = "org.apache.spark.sql.delta.TransactionExecutionObserver"

_STATIC = 8
"""Of `java.lang.reflect.Modifier`. Scala adds static methods, those of the companion object."""

METHODS = frozenset(
    {
        "startingTransaction",
        "preparingCommit",
        "beginDoCommit",
        "beginBackfill",
        "beginPostCommit",
        "transactionCommitted",
        "transactionAborted",
        "createChild",
        "advanceToNextThreadObserver",
        "nextObserver",
        "nextObserver_$eq",
        "setNextObserver",
    }
)
"""What the observer of this sink implements. `nextObserver_$eq` is called by no release that was tried."""


def require_release(spark: SparkSession, *, untried: bool) -> str:
    """Return Delta's version. Raise `UnsupportedSpark` if it is missing, unknown and not `untried`, or without the hook."""
    try:
        version = str(_java_class(spark, "io.delta.package$").getField("MODULE$").get(None).VERSION())
    except Exception as error:
        raise UnsupportedSpark(
            "Delta Lake is not on the driver's class path: start Spark with spark.jars.packages="
            "io.delta:delta-spark_2.13:4.0.0 (or the artifact of your Spark version)"
        ) from error
    if not untried and ".".join(version.split(".")[:2]) not in TRIED:
        raise UnsupportedSpark(
            f"Delta Lake {version} was not tried with this sink, only {', '.join(TRIED)}; use one of them, or pass "
            "untried_release=True after a test with a copy of your table"
        )
    differing = sorted(_methods(spark) ^ METHODS)
    if differing:
        raise UnsupportedSpark(
            f"Delta Lake {version} has another {OBSERVER} than this sink implements, so its commits can't be granted: "
            f"{', '.join(differing)} differ; use Delta Lake {' or '.join(TRIED)}"
        )
    return version


def _methods(spark: SparkSession) -> set[str]:
    """Return the names of the observer's methods, or none if the release has no observer."""
    try:
        methods = _java_class(spark, OBSERVER).getMethods()
    except Exception:  # noqa: BLE001 - py4j raises what Java throws for a missing class
        return set()
    return {str(method.getName()) for method in methods if not method.getModifiers() & _STATIC}


def _java_class(spark: SparkSession, name: str) -> Any:
    jvm: Any = spark._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    return jvm.java.lang.Class.forName(name, True, loader)  # noqa: FBT003 - Java has no keyword arguments
