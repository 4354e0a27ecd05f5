"""`IcebergSink` writes micro-batches to one Iceberg table, together with other writers. docs/iceberg.md has its modes.

- Spark's own statement computes and stages (`batch_write.py`); Iceberg's own check validates; only the swap of the table's
  metadata is under the grant (`staging.py`).
- An upsert or overwrite publishes its markers as soon as it knows the batch's partitions, and only then pins the table. So the
  agent knows of every commit to the base by another gate user. A commit that bypasses the gate is found by Iceberg under the
  grant: `BaseChanged`.
- Iceberg finds the files of an overwrite by the current partition spec only, so a table with files of an older one is refused.
- The snapshot has the writer and the batch in its summary, and the swap that publishes it sets a property of the table,
  `LastCommit`, which answers when the snapshot has expired. That is this sink's `committed` (`sinks/contract.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lakewarden.events import Marker, canonical_table
from lakewarden.handlers.commit_label import TRANSACTION
from lakewarden.spark_jobs.engine.engine import quoted
from lakewarden.spark_jobs.engine.java import is_instance
from lakewarden.spark_jobs.engine.kinds import require_jvm
from lakewarden.spark_jobs.gate.errors import UnsupportedSpark, base_changed
from lakewarden.spark_jobs.gate.logs import EventLogger
from lakewarden.spark_jobs.sinks.assignment import assigned, is_case_sensitive, spelled_as
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
    LastCommit,
    OpenTable,
    another_is_in_its_place,
    find_commit,
    forget,
    lists_newest_only,
    load,
    open_table,
    show,
    spec_text,
)
from lakewarden.spark_jobs.sinks.spark_sink import COST, Prepared, SparkSink, run_under_grant
from lakewarden.spark_jobs.sinks.upsert import Upsert, inexact_keys, require_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakewarden.spark_jobs.gate.transaction import Transaction

REST = "org.apache.iceberg.rest.RESTTableOperations"

ANY_SCHEMA = "write.spark.accept-any-schema"

NEW_FILES = "new-files"
"""File group of an append's markers. An upsert of the partition overlaps it, another append doesn't."""

NEWEST_ONLY_COST = (
    "the catalog lists the table's newest snapshot only, so Iceberg can't compare a batch with commits that came after its base; "
    "a batch is computed again after any other commit to the table, also of other partitions"
)

log = EventLogger("lakewarden.iceberg")


class IcebergSink(SparkSink[OpenTable]):
    """Writes one Iceberg table. Create it after the Spark session, whose catalog has the table."""

    def _find(self, table: str) -> None:
        require_jvm(type(self).__name__)
        self._name = table
        self._spark = _session()
        self._unhooked = require_release(self._spark, untried=self._untried_release)
        self._last_opened = open_table(self._spark, table)
        self._uri = canonical_table(str(self._last_opened.java.location()))
        self._last_alike: object = None
        if self._unhooked is not None:
            if is_instance(self._last_opened.java.operations(), REST):
                raise UnsupportedSpark(
                    f"{self._unhooked}, so Iceberg itself would commit each statement; where a REST catalog answers 409 "
                    "to a request that it has carried out, Iceberg commits the rows again or removes their files; "
                    f"use a release of Iceberg that was tried; table={self._uri}"
                )
            log.warning("iceberg.whole-statements", table=self._uri, reason=self._unhooked, cost=COST)
        self._told_of_history = self._mode == "append"

    def _stage(self, prepared: Prepared[OpenTable], txn: Transaction) -> None:
        table, upsert, rows = prepared.layout, prepared.upsert, prepared.named
        inexact = inexact_keys(upsert.keys, table.fields, rows.schema, table.columns, self.table)
        if self._mode == "upsert":
            rows = prepared.one_row_per_key(self.table)
        # Only after the markers: from here on the agent checks every commit to these partitions against them.
        batch_write = BatchWrite(
            rows,
            table,
            prepared.partitions,
            self._mode,
            upsert,
            _properties(txn),
            prepared.stored,
            inexact,
        )
        snapshot = None
        if self._unhooked is None:
            snapshot = self._commit_staged(batch_write, txn)
        else:
            run_under_grant(txn, lambda: self._commit_whole(batch_write), self.committed, is_conflict)
        show(self._spark, self._name, snapshot)

    def committed(self, writer: str, batch_id: int, /) -> str | None:
        return find_commit(load(self._spark, self._name), writer, batch_id)

    def writers(self) -> list[str]:
        return LastCommit.writers(load(self._spark, self._name))

    # staging and committing

    def _commit_staged(self, write: BatchWrite, txn: Transaction) -> str | None:
        """Return the snapshot. None if its publish failed, and the gate found it in the table."""
        validated = self._mode != "append"
        staged = StagedTable(self._spark, self._unchanged(write), write.properties, validated=validated)
        txn.on_discard(staged.discard)
        txn.check()
        with in_catalog(write.rows.sparkSession, txn.id, staged) as target:
            write.run(target, staged.base)
        staged.staged()
        txn.check()
        snapshot = None
        with txn.commit() as grant:
            grant.version = snapshot = staged.publish(grant)
        return snapshot

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
        elif not self._told_of_history and lists_newest_only(now.operations().current()):
            self._told_of_history = True
            log.warning("iceberg.newest-snapshot-only", table=self.table, cost=NEWEST_ONLY_COST)
        if what is not None:
            facts = f"table={self.table} writer={write.properties[WRITER]}"
            raise base_changed(f"{what} while the batch was prepared", facts)
        return now

    def _layout(self, spark: SparkSession) -> OpenTable:  # noqa: ARG002 - the catalog is that of the sink's session
        table = self._last_opened = open_table(self._spark, self._name, self._last_opened)
        location = canonical_table(str(table.java.location()))
        if location != self._uri:
            raise ValueError(
                f"the table {self._name!r} is now at {location}, and was at {self._uri} when the sink was created: create a new "
                "sink, so that its writers take the lock of that table"
            )
        if self._mode == "upsert" and str(table.java.properties().get(ANY_SCHEMA)).lower() == "true":
            raise ValueError(
                f"the table has the property {ANY_SCHEMA}, with which Spark resolves no columns of a MERGE: unset it; "
                f"table={self.table}"
            )
        if self._mode == "overwrite" and table.older_specs():
            raise ValueError(
                "the table has files of an older partition spec, which Iceberg wouldn't replace: rewrite them with "
                f"rewrite_data_files, then start the query again; table={self.table}"
            )
        older = table.other_identity(self._upsert.keys) if self._mode == "upsert" else None
        if older is not None:
            raise ValueError(
                f"the table has files of the partition spec {older}, and is partitioned by {spec_text(table.java.spec())} now; "
                f"keys {list(self._upsert.keys)} hold within a partition, so a row of those files could be written again; "
                "rewrite them with rewrite_data_files and the option 'rewrite-all', from then on the keys hold within the new "
                "partitions; or take the change back by ALTER TABLE … PARTITION FIELD; then start the query again; "
                f"table={self.table}"
            )
        return table

    def _rows(self, batch: DataFrame, layout: OpenTable, upsert: Upsert) -> DataFrame:
        """Raise `ValueError`, too, if Spark's write by name would refuse the types."""
        spark, names = batch.sparkSession, layout.columns.names
        rows = spelled_as(batch, names, self.table, self._upsert.may_bring)
        upsert.order_column(rows, self.table)
        partitioned_by = [field.column for field in layout.fields] if self._mode != "append" else []
        required = layout.required - layout.defaults.keys()
        require_columns(rows.columns, {*required, *upsert.keys, *partitioned_by}, self.table)
        policy = spark.conf.get("spark.sql.storeAssignmentPolicy", "ANSI")
        alike = (rows.schema, layout.columns, policy, is_case_sensitive(spark))
        if alike != self._last_alike:
            others = [name for name in rows.columns if name not in names]
            assigned(rows, layout.columns, self.table, partial=True, others=others)
            self._last_alike = alike
        return self._complete(rows, layout)

    def _complete(self, rows: DataFrame, table: OpenTable) -> DataFrame:
        """Return the rows with all columns of the table, as INSERT with a list of columns makes them: the default, or NULL."""
        given = set(rows.columns)
        missing = [field for field in table.columns.fields if field.name not in given]
        if self._mode == "upsert" or not missing:
            return rows
        return rows.select("*", *(table.default(field).alias(field.name) for field in missing))

    def _cast(self, rows: DataFrame, layout: OpenTable, stored: Mapping[str, str]) -> DataFrame:
        from pyspark.sql.types import StructField, StructType

        wider = rows.selectExpr(
            "*", *(f"{quoted(name)} AS {quoted(added)}" for name, added in stored.items())
        )
        types = [StructField(added, layout.columns[name].dataType) for name, added in stored.items()]
        return assigned(wider, StructType(types), self.table, others=rows.columns)

    def _markers(self, batch: DataFrame, prepared: Prepared[OpenTable]) -> tuple[Marker, ...]:
        if self._mode != "append":
            return super()._markers(batch, prepared)
        paths = prepared.layout.paths_of(prepared.partitions)
        return tuple(Marker(partition=path, file_group=NEW_FILES, operation="create") for path in paths)

    def _paths(self, prepared: Prepared[OpenTable]) -> list[str] | None:
        paths = super()._paths(prepared)
        return None if paths is None else [*paths, *prepared.layout.older_paths_of(paths)]


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
