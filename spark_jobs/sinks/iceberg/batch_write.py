"""The statement of Spark that writes one batch, to the table itself or to a staged one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakewarden.handlers.commit_label import TRANSACTION
from lakewarden.spark_jobs.engine.engine import quoted
from lakewarden.spark_jobs.engine.java import (
    accept_callbacks,
    gateway_of,
    is_instance,
    java_causes,
    java_class,
    java_map,
    java_type,
)
from lakewarden.spark_jobs.engine.kinds import engine_of
from lakewarden.spark_jobs.gate.jvm_errors import CallbackErrors
from lakewarden.spark_jobs.sinks.iceberg.release import STAGING_CATALOG, table_cache
from lakewarden.spark_jobs.sinks.iceberg.staging import COMMIT_FAILED, VALIDATION, StagedTable
from lakewarden.spark_jobs.sinks.iceberg.table import OpenTable
from lakewarden.spark_jobs.sinks.partitions import Partition
from lakewarden.spark_jobs.sinks.upsert import Mode, Upsert, unused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class BatchWrite:
    """The rows of a batch and what becomes of them. `table` is as it was when the batch was prepared."""

    rows: DataFrame
    table: OpenTable
    partitions: Sequence[Partition]
    mode: Mode
    upsert: Upsert
    properties: Mapping[str, str]
    """Properties of the snapshot."""
    stored: Mapping[str, str]
    """Columns of the rows with the values of partition columns in the table's types, where those of the batch have others."""
    inexact: Sequence[str]
    """Keys whose equal values may differ."""

    def run(self, target: str, base: int | None) -> None:
        """Execute the statement on the table of this name, whose newest snapshot is `base`."""
        if self.mode == "upsert":
            self._merge(target)
            return
        # Batches of a stream have nullable columns. Iceberg's writers refuse a null in a required one.
        writer = self.rows.writeTo(target).option("check-nullability", "false")
        if self.mode == "append":
            writer.append()
            return
        writer = writer.option("isolation-level", "serializable")  # by default it validates nothing
        if base is not None:
            writer = writer.option("validate-from-snapshot-id", str(base))
        writer.overwritePartitions()

    def _merge(self, target: str) -> None:
        given = self.rows.columns
        missing = [field for field in self.table.columns.fields if field.name not in given]
        added = {field.name: unused(f"_lakewarden_default_{field.name}", given) for field in missing}
        rows = self.rows.select(
            "*", *(self.table.default(field).alias(added[field.name]) for field in missing)
        )
        with engine_of(rows).as_view(
            _without_tables(rows), f"lakewarden_{self.properties[TRANSACTION]}"
        ) as source:
            statement = self.upsert.statement(
                target,
                source,
                fields=self.table.fields,
                partitions=self.partitions,
                required=self.table.required,
                assigned=[name for name in self.table.columns.names if name not in added],
                others={name: f"s.{quoted(column)}" for name, column in added.items()},
                stored=self.stored,
                inexact=self.inexact,
            )
            self.rows.sparkSession.sql(statement)


def _without_tables(rows: DataFrame) -> DataFrame:
    """Return the rows as a MERGE takes them, where it wouldn't take their plan.

    Spark 4.1 plans none whose source is a view that reads a table of a catalog (apache/spark#56515), and no release one with
    random values. Rows that are computed, as those of a stream, are neither.
    """
    from pyspark.sql import DataFrame

    jdf: Any = rows._jdf
    plan = jdf.queryExecution().analyzed()
    leaves = plan.collectLeaves()
    read = (leaves.apply(at).getClass().getSimpleName() for at in range(leaves.size()))
    if plan.deterministic() and not any("DataSourceV2" in name for name in read):
        return rows
    session = rows.sparkSession._jsparkSession
    computed = session.internalCreateDataFrame(jdf.queryExecution().toRdd(), jdf.schema(), False)  # noqa: FBT003 - of Java
    return DataFrame(computed, rows.sparkSession)


@contextmanager
def in_catalog(spark: SparkSession, name: str, table: StagedTable) -> Iterator[str]:
    """Give the staged table a name in the session's SQL for the block."""
    cache = table_cache(spark)
    cache.add(name, table.java)
    try:
        yield f"{STAGING_CATALOG}.{quoted(name)}"
    finally:
        cache.remove(name)


def with_properties(spark: SparkSession, properties: Mapping[str, str], write: Callable[[], object]) -> None:
    """Run a write whose snapshot gets these properties, and no other write of the session does.

    Iceberg knows the write by the JVM's thread, so PySpark must pin its threads.
    """
    accept_callbacks(gateway_of(spark))
    with CallbackErrors() as errors:
        call = java_type(spark, "org.apache.iceberg.spark.CommitMetadata").withCommitProperties
        call(
            java_map(spark, properties),
            _JavaCallable(errors.keep(write)),
            java_class(spark, "java.lang.RuntimeException"),
        )


class _JavaCallable:
    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function

    def call(self) -> None:
        self._function()

    class Java:
        """Read by py4j."""

        implements = ("java.util.concurrent.Callable",)


def is_conflict(error: Exception) -> bool:
    """Return whether Iceberg refused a commit because of another one. Spark wraps what Iceberg throws."""
    return any(is_instance(java, name) for java in java_causes(error) for name in (COMMIT_FAILED, VALIDATION))
