"""Which Spark micro-batches need. `gate/` needs none.

| Spark | |
| --- | --- |
| none installed | refused; `CommitGate.transaction` works without it |
| before 3.5 | refused: it has no job tags, so an abort couldn't cancel the jobs of one batch |
| Spark Connect | refused: a client has no `SparkContext`, and `foreachBatch` runs its function on the server |

Each refusal is an `UnsupportedSpark`, when the function for `foreachBatch` is made, and so before the query starts. A batch of
a Connect session that started later is refused when it arrives.

Which query a batch belongs to (`query_of`) decides the writer's name. Two things say it, and each is missing somewhere:

- *The session of the DataFrame*: Spark runs the batches of each query in a session of its own. So it says the query of a batch
  and of what is derived from it, in any thread, but not of a DataFrame that the body makes from another session.
- *Spark's local property of the thread*: it is there in the query's own thread, and in an inheritable thread that the body
  starts, but not in others, such as those of a `ThreadPoolExecutor`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakewarden.spark_jobs.gate.errors import GateError, UnsupportedSpark
from lakewarden.spark_jobs.sinks.java import elements

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame

OLDEST = (3, 5)

QUERY_ID_PROPERTY = "sql.streaming.queryId"
"""Local property in which Spark keeps the id of the query that runs in this thread."""

BOUNDED_TRIGGERS = ("AvailableNowTrigger", "OneTimeTrigger")
"""Spark's classes of `availableNow` and `once`."""

REMEDY = (
    "pass the batch or a DataFrame derived from it, or start the thread with pyspark.InheritableThread or a function "
    "wrapped by pyspark.inheritable_thread_target; outside a query, call the sink in gate.transaction(…)"
)

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


@dataclass(frozen=True, slots=True)
class Query:
    """A streaming query that runs."""

    id: str
    java: Any
    run: str
    ends_itself: bool | None
    """Whether it ends when it has read what there is. None: that isn't known."""

    def has(self, session: Any, by_thread: str | None) -> bool:
        """Whether it runs, and a batch of this session, in a thread with this property, is its own."""
        active = by_thread in (self.id, None) and bool(self.java.isActive())
        return active and bool(self.java.sparkSessionForStream() == session)


def what_stopped(batch: DataFrame, query: Query | None) -> str | None:
    """Return what was stopped while the batch was written: its `query` (of `query_of`) or all of Spark. None: nothing."""
    with suppress(Exception):  # the JVM has ended, and py4j raises various errors
        if not batch._jdf.sparkSession().sparkContext().isStopped():  # noqa: SLF001 - a stopped Python context has no JVM's
            return None if query is None or query.java.isActive() else "the query"
    return "Spark"


def _ends_itself(query: Any) -> bool | None:
    with suppress(Exception):  # py4j raises various errors
        return str(query.trigger().getClass().getSimpleName()).rstrip("$") in BOUNDED_TRIGGERS
    return None


def query_of(batch: DataFrame, last: Query | None = None) -> Query | None:
    """Return the streaming query that a batch belongs to, or None if no query runs in this driver. `last`: of the batch before.

    Raises `GateError` if a query runs and nothing says whether the batch is one of its own, or if session and thread say
    different queries.
    """
    session: Any = batch._jdf.sparkSession()  # noqa: SLF001 - the Python session doesn't have the shared state
    by_thread = context_of(batch).getLocalProperty(QUERY_ID_PROPERTY)
    if last is not None and last.has(session, by_thread):
        return last
    active = session.sharedState().activeStreamingQueries()
    queries = {str(each.getKey().toString()): each.getValue() for each in elements(active.entrySet())}
    by_session = next(
        (name for name, query in queries.items() if query.sparkSessionForStream() == session), None
    )
    if by_thread not in queries:  # a thread that a pool keeps may have the property of a query that has ended
        by_thread = None
    if by_session and by_thread and by_session != by_thread:
        raise GateError(
            f"foreach_batch: the batch belongs to query {by_session}, and the thread to query {by_thread}: {REMEDY}"
        )
    found = by_session or by_thread
    if found is None and queries:
        raise GateError(
            "foreach_batch: can't find the query of this batch, so its writer would lack the query id: neither its session "
            f"nor its thread is one of the running queries ({', '.join(queries)}): {REMEDY}"
        )
    if found is None:
        return None
    query = queries[found]
    return Query(found, query, str(query.runId()), _ends_itself(query))
