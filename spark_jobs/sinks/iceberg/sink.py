"""`IcebergSink` writes micro-batches to one Iceberg table, together with other writers.

    sink = IcebergSink("lake.air.flights", mode="upsert", keys=["flight"])
    stream.writeStream.foreachBatch(gate.foreach_batch(sink, writer="arrivals")).start()

Spark's own statement computes and stages (`batch_write.py`); Iceberg's own check validates; only the swap of the table's
metadata is under the grant (`staging.py`).

| mode | statement | markers | conflict rule |
| --- | --- | --- | --- |
| `append` | `INSERT` | `(partition, new-files, create)` | `deleted-file`: two appends never conflict |
| `upsert` | `MERGE`, copy-on-write or merge-on-read as the table says | `(partition, *, merge)` | `file-group` |
| `overwrite` | dynamic overwrite of the batch's partitions | `(partition, *, merge)` | `file-group` |

- *Upsert.* The keys identify a row within its partition. The sink publishes its markers as soon as it knows the batch's
  partitions, and only then pins the table. So the agent knows of every commit to the base by another gate user. A commit
  that bypasses the gate is found by Iceberg under the grant: `BaseChanged`.
- *Overwrite.* Iceberg validates at the commit that no other commit has changed these partitions. It finds files by the
  current partition spec only, so a table with files of an older one is refused.
- *Scope.* The partitions of an upsert and of an overwrite are their scope: values of the current partition spec, transforms
  included. Appends have none, because they conflict with no other append.
- *Exactly once.* The snapshot has the writer and the batch in its summary, so a replayed batch finds its own snapshot until
  Iceberg expires it. That is this sink's `committed` (`sinks/contract.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lakewarden.events import ConflictRule, Marker, canonical_table
from lakewarden.handlers.commit_label import TRANSACTION
from lakewarden.spark_jobs.gate.errors import BaseChanged, UnsupportedSpark
from lakewarden.spark_jobs.gate.logs import EventLogger
from lakewarden.spark_jobs.sinks.assignment import assigned, is_case_sensitive, naming_values
from lakewarden.spark_jobs.sinks.contract import Sink
from lakewarden.spark_jobs.sinks.iceberg.batch_write import (
    BatchWrite,
    in_catalog,
    is_conflict,
    with_properties,
)
from lakewarden.spark_jobs.sinks.iceberg.release import require_release
from lakewarden.spark_jobs.sinks.iceberg.staging import StagedTable
from lakewarden.spark_jobs.sinks.iceberg.table import (
    BATCH,
    WRITER,
    OpenTable,
    another_is_in_its_place,
    find_commit,
    forget,
    load,
    open_table,
    spec_text,
)
from lakewarden.spark_jobs.sinks.merge import unused
from lakewarden.spark_jobs.sinks.partitions import (
    Partition,
    PartitionScope,
    computed_once,
    content_of,
    is_persisted,
    known_content,
    merge_markers,
    quoted,
)
from lakewarden.spark_jobs.sinks.upsert import (
    Mode,
    Upsert,
    inexact_keys,
    require_columns,
    require_comparable,
    require_known,
    spelled_as,
)
from lakewarden.spark_jobs.sinks.whole_statement import COST, run_under_grant

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakewarden.spark_jobs.gate.transaction import Transaction

NEW_FILES = "new-files"
"""File group of an append's markers. An upsert of the partition overlaps it, another append doesn't."""

log = EventLogger("lakewarden.iceberg")


class IcebergSink(Sink):
    """Call it as `sink(batch_df, txn)`. Create one for each table and mode, after the Spark session."""

    def __init__(
        self,
        table: str,
        *,
        mode: Mode = "append",
        keys: Sequence[str] = (),
        order_by: str | None = None,
        delete_condition: str | None = None,
        update_condition: str | None = None,
        untried_release: bool = False,
    ) -> None:
        """`table` is a name in a catalog of the active Spark session. The other options are those of `Upsert`."""
        self._upsert = Upsert(tuple(keys), order_by, delete_condition, update_condition)
        self._upsert.require_mode(mode)
        self._name = table
        self._mode: Mode = mode
        self._spark = _session()
        self._release = require_release(self._spark, untried=untried_release)
        self._last_opened = open_table(self._spark, table)
        self._uri = canonical_table(str(self._last_opened.java.location()))
        self._last_alike: object = None
        if self._release.unhooked is not None:
            log.warning("iceberg.whole-statements", table=self._uri, reason=self._release.unhooked, cost=COST)

    @property
    def table(self) -> str:
        """Canonical URI of the table's location."""
        return self._uri

    @property
    def conflict_rule(self) -> ConflictRule:
        """The conflict rule of this sink's transactions."""
        return "deleted-file" if self._mode == "append" else "file-group"

    def scope(self, batch: DataFrame, /) -> PartitionScope | None:
        """Return the partitions that the batch changes, by one query. None for an append."""
        if self._mode == "append":
            return None
        table = self._open()
        keys = self._upsert_of(table, batch.sparkSession).keys
        rows, stored = self._with_stored(self._rows(batch, table, keys), table, keys)
        with naming_values(batch, table.columns, self.table):
            content = content_of(
                rows, table.fields, keys, self.table, persisted=is_persisted(batch), stored=stored
            )
        markers = self._markers(content.partitions, table)
        return PartitionScope(markers, content, table.fields, keys, batch)

    def __call__(self, batch: DataFrame, txn: Transaction) -> None:
        """Write one batch in a transaction of the gate."""
        txn.recognise(self.committed)
        table = self._open()
        upsert = self._upsert_of(table, batch.sparkSession)
        rows = self._complete(self._rows(batch, table, upsert.keys), table)
        inexact = inexact_keys(upsert.keys, rows.schema, table.columns, self.table) if upsert.keys else []
        with computed_once(rows, batch), naming_values(batch, table.columns, self.table):
            scoped, stored = self._with_stored(rows, table, upsert.keys)
            content = known_content(txn.batch_scope, batch, table.fields, upsert.keys)
            content = content or content_of(
                scoped, table.fields, upsert.keys, self.table, persisted=True, stored=stored
            )
            if not content.partitions:
                return
            txn.touch_all(self._markers(content.partitions, table))
            if self._mode == "upsert":
                rows = upsert.one_row_per_key(scoped, table.fields, stored) if content.keys_repeat else scoped
            # Only after the markers: from here on the agent checks every commit to these partitions against them.
            batch_write = BatchWrite(
                rows, table, content.partitions, self._mode, upsert, _properties(txn), stored, inexact
            )
            if self._release.unhooked is None:
                self._commit_staged(batch_write, txn)
            else:
                run_under_grant(txn, lambda: self._commit_whole(batch_write), self.committed, is_conflict)
            load(self._spark, self._name)  # readers in this session see the commit

    def committed(self, writer: str, batch_id: int, /) -> str | None:
        """Return the snapshot in which `writer` committed the batch, or None."""
        return find_commit(load(self._spark, self._name), writer, batch_id)

    # staging and committing

    def _commit_staged(self, write: BatchWrite, txn: Transaction) -> None:
        staged = StagedTable(self._spark, self._unchanged(write), write.properties)
        txn.on_discard(staged.discard)
        txn.check()
        with in_catalog(write.rows.sparkSession, txn.id, staged) as target:
            write.run(target, staged.base)
        staged.staged()
        txn.check()
        with txn.commit() as grant:
            grant.version = staged.publish(grant)

    def _commit_whole(self, write: BatchWrite) -> None:
        base = self._unchanged(write).currentSnapshot()
        base_id = None if base is None else int(base.snapshotId())
        with_properties(self._spark, write.properties, lambda: write.run(self._name, base_id))

    def _unchanged(self, write: BatchWrite) -> Any:
        """Return the table at its newest version. Raise `BaseChanged` if the batch was prepared for another layout or table."""
        now = load(self._spark, self._name)
        what = None
        if another_is_in_its_place(self._spark, now.operations()):
            forget(self._spark, self._name)
            what = "the table was dropped and created again"
        elif not write.table.same_layout(now):
            what = "the table's columns or partition fields changed"
        if what is not None:
            raise BaseChanged(
                f"{what} while the batch was prepared; nothing was published; the "
                f"batch must be computed again; table={self.table} writer={write.properties[WRITER]}"
            )
        return now

    def _upsert_of(self, table: OpenTable, spark: SparkSession) -> Upsert:
        return self._upsert.of_columns(table.columns.names, spark, self.table)

    def _open(self) -> OpenTable:
        table = self._last_opened = open_table(self._spark, self._name, self._last_opened)
        location = canonical_table(str(table.java.location()))
        if location != self._uri:
            raise ValueError(
                f"the table {self._name!r} is now at {location}, and was at {self._uri} when the sink was created: create a new "
                "sink, so that its writers take the lock of that table"
            )
        if self._mode == "overwrite" and table.older_specs():
            raise ValueError(
                "the table has files of an older partition spec, which Iceberg wouldn't replace: rewrite them with "
                f"rewrite_data_files, then start the query again; table={self.table}"
            )
        older = table.other_identity(self._upsert.keys) if self._mode == "upsert" else None
        if older is not None:
            raise ValueError(
                f"the table has files of the partition spec {older}, and is partitioned by {spec_text(table.java.spec())} now: "
                f"keys {list(self._upsert.keys)} hold within a partition, so a row of those files could be written again; "
                "rewrite them with rewrite_data_files and the option 'rewrite-all', from then on the keys hold within the new "
                "partitions; or take the change back by ALTER TABLE … PARTITION FIELD; then start the query again; "
                f"table={self.table}"
            )
        return table

    def _rows(self, batch: DataFrame, table: OpenTable, keys: Sequence[str]) -> DataFrame:
        """Return the batch, its columns spelled as the table's. Raise `ValueError` if Spark's write by name would refuse it."""
        spark, names = batch.sparkSession, table.columns.names
        rows = spelled_as(batch, names, self.table)
        require_known(rows.columns, names, self._upsert, self.table)
        partitioned_by = [field.column for field in table.fields] if self._mode != "append" else []
        require_columns(rows.columns, {*table.required, *keys, *partitioned_by}, self.table)
        policy = spark.conf.get("spark.sql.storeAssignmentPolicy", "ANSI")
        alike = (rows.schema, table.columns, policy, is_case_sensitive(spark))
        if alike != self._last_alike:
            others = [name for name in rows.columns if name not in names]
            assigned(rows, table.columns, self.table, partial=True, others=others)
            self._last_alike = alike
        return rows

    def _complete(self, rows: DataFrame, table: OpenTable) -> DataFrame:
        """Return the rows with all columns of the table, as INSERT with a list of columns makes them: NULL."""
        from pyspark.sql import functions as f

        given = set(rows.columns)
        missing = [field for field in table.columns.fields if field.name not in given]
        if self._mode == "upsert" or not missing:
            return rows
        return rows.select("*", *(f.lit(None).cast(field.dataType).alias(field.name) for field in missing))

    def _with_stored(
        self, rows: DataFrame, table: OpenTable, keys: Sequence[str]
    ) -> tuple[DataFrame, dict[str, str]]:
        """Return the rows with their partition columns as the table stores them, and the names of those that this adds."""
        from pyspark.sql.types import StructField, StructType

        types, given = table.columns, rows.schema
        columns = dict.fromkeys(field.column for field in table.fields)
        differing = [name for name in columns if given[name].dataType != types[name].dataType]
        if not differing:
            return rows, {}
        require_comparable(keys, differing, given, types, self.table)
        stored = {name: unused(f"_lakewarden_stored_{name}", rows.columns) for name in differing}
        added = StructType([StructField(stored[name], types[name].dataType) for name in differing])
        wider = rows.selectExpr("*", *(f"{quoted(name)} AS {quoted(stored[name])}" for name in differing))
        return assigned(wider, added, self.table, others=rows.columns), stored

    def _markers(self, partitions: Sequence[Partition], table: OpenTable) -> tuple[Marker, ...]:
        paths = [table.path(partition) for partition in partitions]
        if self._mode == "append":
            return tuple(Marker(partition=path, file_group=NEW_FILES, operation="create") for path in paths)
        return merge_markers(paths)


def _session() -> SparkSession:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except PySparkException as error:
        raise UnsupportedSpark(
            "IcebergSink needs the Spark session whose catalog has the table: create the session first"
        ) from error


def _properties(txn: Transaction) -> dict[str, str]:
    numbered = {} if txn.batch_id is None else {BATCH: str(txn.batch_id)}
    return {WRITER: txn.writer, TRANSACTION: txn.id, **numbered}
