"""`HudiSink` writes micro-batches to one Hudi table, together with other writers, by Hudi's own Spark writer: docs/hudi.md.

- *Scope.* The batch's partitions, each as a whole. The file groups are known later: from Hudi's inflight file, then from its
  markers (`write.py`).
- *The commit waits for the grant*, inside Hudi: only the section that checks for conflicts and publishes is under it. Hudi's own
  check stays.
- *Exactly once.* Writer, batch and transaction are in the commit's extra metadata, and `committed` finds them there.
- *The lock.* `options["hoodie.write.lock.provider"]` is the provider that the table's other writers use. With Hudi's
  storage-based provider, the default on object stores, the agent holds the same lock object. Such a table must exist before
  its first batch, because the agent recognises it by its `hoodie.properties`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lakewarden.events import canonical_table
from lakewarden.spark_jobs.engine.kinds import require_jvm
from lakewarden.spark_jobs.gate.jvm_errors import CallbackErrors
from lakewarden.spark_jobs.sinks.contract import Plan, Sink
from lakewarden.spark_jobs.sinks.hudi.files import HudiFiles
from lakewarden.spark_jobs.sinks.hudi.options import (
    HIVE_STYLE,
    ORDERING,
    PARTITION_PATH,
    PROVIDER,
    STORAGE_LOCK,
    HudiOperation,
    sql_settings,
    table_options,
)
from lakewarden.spark_jobs.sinks.hudi.provider import is_before_1, release_of
from lakewarden.spark_jobs.sinks.hudi.write import HudiWrite
from lakewarden.spark_jobs.sinks.partition_paths import PartitionPaths
from lakewarden.spark_jobs.sinks.partitions import settle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakewarden.spark_jobs.gate.transaction import Transaction

HUDI_LOCK = "/.hoodie/.locks/table_lock.json"
"""Hudi's lock object, below the table."""

_PLAIN_KEYS = frozenset(
    {"SIMPLE", "SIMPLE_AVRO", "COMPLEX", "COMPLEX_AVRO", "NON_PARTITION", "NON_PARTITION_AVRO"}
)
"""Key generators whose partitions are the values of columns."""

_PLAIN_CLASSES = frozenset(
    f"org.apache.hudi.keygen.{name}{avro}KeyGenerator"
    for name in ("Simple", "Complex", "Nonpartitioned")
    for avro in ("", "Avro")
)
"""The same, as tables of version 6 name them."""

_INTEGERS = frozenset({"tinyint", "smallint", "int"})
"""They are spelled as `bigint`."""


class HudiSink(Sink):
    """Call it as `sink(batch_df, txn)`. Create one for each table and operation."""

    def __init__(
        self,
        table: str,
        *,
        keys: Sequence[str] = (),
        partition_by: Sequence[str] = (),
        order_by: str | None = None,
        operation: HudiOperation = "upsert",
        options: Mapping[str, str] | None = None,
        filesystem: Any = None,
    ) -> None:
        """`keys`, `partition_by` and `order_by` may be left out for a table that exists.

        `options` are Hudi's own. `filesystem` is the `pyarrow.fs.FileSystem` that reads the table's metadata, by default the one
        that pyarrow has for the URI, with the credentials of the environment.
        """
        require_jvm(type(self).__name__)
        self._table = canonical_table(table)
        local = self._table.startswith("file://")
        self._path = self._table if local else table
        self._operation: HudiOperation = operation
        name = self._table.rpartition("/")[2]
        self._files = HudiFiles(self._table, filesystem)
        properties = self._files.properties()
        self._options = table_options(
            name=properties.get("hoodie.table.name", name),
            keys=keys,
            partition_by=partition_by,
            order_by=order_by,
            operation=operation,
            options=options or {},
            local=local,
            hive_style=not properties or _is_true(properties, HIVE_STYLE),
        )
        if self._shares_the_lock and local:
            raise ValueError(
                f"{STORAGE_LOCK} has no lock on a local disk: leave hoodie.write.lock.provider out; table={self._table}"
            )
        if self._shares_the_lock and not properties:
            raise ValueError(
                "the table doesn't exist yet, so the agent doesn't know that it is a Hudi table with Hudi's lock; create it "
                f"first (CREATE TABLE … USING hudi), then start the job; table={self._table}"
            )

    @property
    def table(self) -> str:
        return self._table

    @property
    def lock(self) -> str | None:
        """Hudi's lock object, if the table's other writers use it too."""
        return self._table + HUDI_LOCK if self._shares_the_lock else None

    def __call__(self, batch: DataFrame, txn: Transaction, /) -> None:
        """Without looking for a scope, but for an `insert_overwrite`: its markers are no others."""
        if self._operation == "insert_overwrite":
            super().__call__(batch, txn)
            return
        self.begin(txn)
        self._require_ordering(batch.sparkSession)
        self._write(batch, txn)

    def plan(self, batch: DataFrame, /) -> Plan:
        """Find the batch's partitions, by one Spark job. The scope is None if a key generator computes them."""
        self._require_ordering(batch.sparkSession)
        paths = self._partition_paths(batch)
        settle(batch)
        scope = None if paths is None else paths.scope(batch)

        def stage(txn: Transaction) -> None:
            if self._operation == "insert_overwrite" and scope is not None:
                txn.touch_all(scope.markers)
            self._write(batch, txn)

        return Plan(scope, stage)

    def _write(self, batch: DataFrame, txn: Transaction) -> None:
        with self.hudi_options(txn, batch.sparkSession) as options:
            batch.write.format("hudi").options(**options).mode("append").save(self._path)

    def _require_ordering(self, spark: SparkSession) -> None:
        """Raise `ValueError` if this release demands an ordering field. Its own error would name a column `ts`."""
        if self._operation != "upsert" or ORDERING in self._options or not is_before_1(release_of(spark)):
            return
        if "hoodie.table.precombine.field" not in self._files.properties():
            raise ValueError(
                f"Hudi before 1.0 upserts by an ordering field only: pass order_by, a column of the batch; table={self._table}"
            )

    @contextmanager
    def hudi_options(self, txn: Transaction, spark: SparkSession) -> Iterator[dict[str, str]]:
        """Return the options for one write of one's own by Spark's writer. The block contains the write."""
        write = HudiWrite(
            spark, self._files, txn, self._options, path=self._path, lock_is_the_agents=self._shares_the_lock
        )
        txn.on_discard(write.roll_back)
        with CallbackErrors() as errors:
            write.begin(errors.keep(write.answer))
            try:
                yield write.options()
                write.require_grant()
            except BaseException as error:
                if not write.settle(error):
                    raise
            finally:
                write.end()

    @contextmanager
    def hudi_sql(self, txn: Transaction, spark: SparkSession) -> Iterator[SparkSession]:
        """Yield a session that connects one SQL statement with the transaction. The block contains the statement.

        It is a clone of `spark`, with its views and settings: statements of other threads don't get those of the transaction.
        """
        with self.hudi_options(txn, spark) as options:
            own = type(spark)(spark.sparkContext, spark._jsparkSession.cloneSession())  # noqa: SLF001 - PySpark has only `newSession`
            for key, value in sql_settings(options).items():
                own.conf.set(key, value)
            yield own

    def committed(self, writer: str, batch_id: int, /) -> str | None:
        return self._files.committed(writer, batch_id)

    def writers(self) -> list[str]:
        return self._files.writers()

    @property
    def _shares_the_lock(self) -> bool:
        return self._options[PROVIDER] == STORAGE_LOCK

    def _partition_paths(self, batch: DataFrame) -> PartitionPaths | None:
        properties = self._files.properties() or self._options
        classes = {
            properties[key]
            for key in ("hoodie.datasource.write.keygenerator.class", "hoodie.table.keygenerator.class")
            if key in properties
        }
        if (
            properties.get("hoodie.table.keygenerator.type", "SIMPLE") not in _PLAIN_KEYS
            or classes - _PLAIN_CLASSES
            or _is_true(properties, "hoodie.datasource.write.slash.separated.date.partitioning")
        ):
            return None
        fields = properties.get("hoodie.table.partition.fields", self._options.get(PARTITION_PATH, ""))
        given = {name: "bigint" if kind in _INTEGERS else kind for name, kind in batch.dtypes}
        stored = self._files.column_types() if fields else {}
        try:
            types = {column: given[column] for field in fields.split(",") if (column := field.strip())}
            if any(stored.get(column, kind) != kind for column, kind in types.items()):
                return None  # Hudi converts the values, or the table: 1.5 is 1.50 then
            return PartitionPaths(
                "hudi",
                types,
                hive_style=_is_true(properties, HIVE_STYLE),
                url_encode=_is_true(properties, "hoodie.datasource.write.partitionpath.urlencode"),
            )
        except (KeyError, ValueError):  # a column that the batch lacks, or a type without a single spelling
            return None


def _is_true(properties: Mapping[str, str], key: str) -> bool:
    return properties.get(key, "false").lower() == "true"
