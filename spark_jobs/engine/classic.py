"""The classic body of the engine: the batch's function runs in the driver, beside its JVM, which py4j reaches.

Which query a batch belongs to (`query_of`) decides the writer's name. Two things say it, and each is missing somewhere:

- *The session of the DataFrame*: Spark runs the batches of each query in a session of its own. So it says the query of a batch
  and of what is derived from it, in any thread, but not of a DataFrame that the body makes from another session.
- *Spark's local property of the thread*: it is there in the query's own thread, and in an inheritable thread that the body
  starts, but not in others, such as those of a `ThreadPoolExecutor`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lakewarden.spark_jobs.engine.cancelling import TaggedJobs
from lakewarden.spark_jobs.engine.engine import Engine, Query, causes, quoted, unlike_any
from lakewarden.spark_jobs.engine.java import elements, java_text, java_type
from lakewarden.spark_jobs.gate.errors import GateError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField

QUERY_ID_PROPERTY = "sql.streaming.queryId"
"""Local property in which Spark keeps the id of the query that runs in this thread."""

BOUNDED_TRIGGERS = ("AvailableNowTrigger", "OneTimeTrigger")
"""Spark's classes of `availableNow` and `once`."""

REMEDY = (
    "pass the batch or a DataFrame derived from it, or start the thread with pyspark.InheritableThread or a function "
    "wrapped by pyspark.inheritable_thread_target; outside a query, call the sink in gate.transaction(…)"
)

_CATALYST = "org.apache.spark.sql.catalyst"

RESOLVER = f"{_CATALYST}.analysis.TableOutputResolver"


class Classic(Engine):
    """Spark in the driver's own JVM."""

    def query_of(self, batch: DataFrame, writer: str, last: Query | None = None) -> Query | None:
        """Raise `GateError` also if session and thread say different queries."""
        session: Any = batch._jdf.sparkSession()  # the Python session doesn't have the shared state
        by_thread = batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID_PROPERTY)
        if last is not None and _has(last, session, by_thread):
            return last
        active = session.sharedState().activeStreamingQueries()
        queries = {str(each.getKey().toString()): each.getValue() for each in elements(active.entrySet())}
        by_session = next(
            (name for name, query in queries.items() if query.sparkSessionForStream() == session), None
        )
        if by_thread not in queries:
            by_thread = None  # a thread that a pool keeps may have the property of a query that has ended
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

    def what_stopped(self, batch: DataFrame, query: Query | None) -> str | None:
        with suppress(Exception):  # the JVM has ended, and py4j raises various errors
            context = batch._jdf.sparkSession().sparkContext()  # a stopped Python context has no JVM's
            if not context.isStopped():
                return None if query is None or query.handle.isActive() else "the query"
        return "Spark"

    def operations(self, batch: DataFrame, tag: str) -> TaggedJobs:
        return TaggedJobs(batch.sparkSession.sparkContext, tag)

    def kept(self, rows: DataFrame) -> tuple[DataFrame, int]:
        own = unlike_any(rows)
        own.persist()
        try:
            computed = _persisted_rdd(own)
            computed.localCheckpoint()
            return own, int(computed.id())
        except Exception:
            own.unpersist()
            raise

    def are_kept(self, rows: DataFrame, rdd: int) -> bool:
        persisted = rows._jdf.storageLevel().isValid()  # that of PySpark asks for each of its fields
        return bool(persisted and _persisted_rdd(rows).id() == rdd)

    def let_go(self, rows: DataFrame) -> None:
        rows.unpersist()

    def settle(self, rows: DataFrame) -> None:
        _counted(rows)

    def fit_one_task(self, rows: DataFrame, most: int) -> bool:
        return _counted(rows) <= most or _java_rdd(rows).getNumPartitions() == 1

    def parallelism(self, spark: SparkSession) -> int:
        return int(spark.sparkContext.defaultParallelism)

    def drop_view(self, spark: SparkSession, name: str) -> None:
        # `spark.catalog.dropTempView` also unpersists the rows: the batch's, if these are the same ones.
        spark._jsparkSession.sessionState().catalog().dropTempView(name)

    def stored_as(self, batch: DataFrame, columns: list[StructField], table: str) -> DataFrame:
        """Call the resolver that Spark's analyzer calls for a write by name, under the batch's session."""
        from pyspark.sql import DataFrame
        from pyspark.sql.types import StructType

        spark = batch.sparkSession
        session = spark._jsparkSession
        conf = session.sessionState().conf()
        if str(conf.storeAssignmentPolicy()).lower() == "legacy":
            raise ValueError(
                "spark.sql.storeAssignmentPolicy=legacy stores NULL for values that don't fit: set it to ANSI or STRICT; "
                f"table={table}"
            )
        schema = session.parseDataType(StructType(columns).json())
        plain = java_type(spark, f"{_CATALYST}.util.CharVarcharUtils").replaceCharVarcharWithStringInSchema
        attributes = java_type(spark, f"{_CATALYST}.types.DataTypeUtils").toAttributes(plain(schema))
        jdf: Any = batch._jdf
        try:
            resolver = java_type(spark, RESOLVER)
            # No defaults for columns that the batch lacks: False, and from Spark 4.2 on a value of an enumeration.
            fill_in = getattr(resolver, "resolveOutputColumns$default$6")()
            plan = resolver.resolveOutputColumns(
                quoted(table),
                attributes,
                jdf.queryExecution().analyzed(),
                True,  # noqa: FBT003 - by name; Java has no keyword arguments
                conf,
                fill_in,
            )
            dataset = jdf.getClass().getName()
            return DataFrame(java_type(spark, dataset).ofRows(session, plan), spark)
        except Exception as error:
            if not any(cause.is_analysis for cause in causes(error)):
                raise
            raise ValueError(f"the batch doesn't fit the table: {java_text(error)}; table={table}") from None


def _has(query: Query, session: Any, by_thread: str | None) -> bool:
    """Return whether the query runs, and a batch of this session, in a thread with this property, is its own."""
    active = by_thread in (query.id, None) and bool(query.handle.isActive())
    return active and bool(query.handle.sparkSessionForStream() == session)


def _ends_itself(query: Any) -> bool | None:
    with suppress(Exception):  # py4j raises various errors
        return str(query.trigger().getClass().getSimpleName()).rstrip("$") in BOUNDED_TRIGGERS
    return None


def _persisted_rdd(rows: DataFrame) -> Any:
    """Return the RDD of Java that has the persisted rows. The plan is a new one: that of `rows` may be older."""
    plan = rows._jdf.alias("rows").queryExecution().withCachedData()  # PySpark doesn't show it
    return plan.collectLeaves().head().cacheBuilder().cachedColumnBuffers()


def _counted(rows: DataFrame) -> int:
    """Count the rows by as many tasks as they have partitions. From then on, rows of `kept` stay as they are."""
    return int(_java_rdd(rows.select()).count())  # `rows.count()` shuffles


def _java_rdd(rows: DataFrame) -> Any:
    return rows._jdf.queryExecution().toRdd()  # the RDD of PySpark converts each row
