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
from lakewarden.spark_jobs.engine.connect import Connect
from lakewarden.spark_jobs.engine.engine import quoted
from lakewarden.spark_jobs.engine.kinds import engine_of
from lakewarden.spark_jobs.gate.errors import UnsupportedSpark, base_changed
from lakewarden.spark_jobs.gate.logs import EventLogger
from lakewarden.spark_jobs.sinks.assignment import assigned, is_case_sensitive, spelled_as
from lakewarden.spark_jobs.sinks.iceberg.batch_write import BatchWrite
from lakewarden.spark_jobs.sinks.iceberg.connect import ServerCatalog
from lakewarden.spark_jobs.sinks.iceberg.driver import DriverCatalog, is_conflict, with_properties
from lakewarden.spark_jobs.sinks.iceberg.metadata import (
    BATCH,
    WRITER,
    LastCommit,
    Loaded,
    find_commit,
    spec_text,
)
from lakewarden.spark_jobs.sinks.iceberg.staging import Catalog
from lakewarden.spark_jobs.sinks.iceberg.table import OpenTable, open_table
from lakewarden.spark_jobs.sinks.spark_sink import COST, Prepared, SparkSink, run_under_grant
from lakewarden.spark_jobs.sinks.upsert import Upsert, inexact_keys, require_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakewarden.spark_jobs.gate.transaction import Transaction

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
        self._name = table
        self._opened: Catalog | None = None
        catalog = self._catalog()
        self._last_opened = open_table(catalog)
        self._uri = canonical_table(self._last_opened.metadata.location)
        self._last_alike: object = None
        if catalog.unhooked is not None:
            log.warning("iceberg.whole-statements", table=self._uri, reason=catalog.unhooked, cost=COST)
        self._told_of_history = self._mode == "append"

    def __getstate__(self) -> dict[str, Any]:
        """Spark Connect pickles the sink; a session can't be pickled, so the server's process finds its own."""
        return self.__dict__ | {"_opened": None}

    def _catalog(self) -> Catalog:
        if self._opened is None:
            spark = _session()
            on_server = isinstance(engine_of(spark), Connect)
            body = ServerCatalog if on_server else DriverCatalog
            self._opened = body(spark, self._name, untried=self._untried_release)
        return self._opened

    def _stage(self, prepared: Prepared[OpenTable], txn: Transaction) -> None:
        table, upsert, rows = prepared.layout, prepared.upsert, prepared.named
        inexact = inexact_keys(upsert.keys, table.fields, rows.schema, table.columns, self.table)
        if self._mode == "upsert":
            rows = self._catalog().mergeable(prepared.one_row_per_key(self.table))
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
        catalog = self._catalog()
        snapshot = None
        if catalog.unhooked is None:
            snapshot = self._commit_staged(catalog, batch_write, txn)
        else:
            run_under_grant(
                txn, lambda: self._commit_whole(catalog, batch_write), self.committed, is_conflict
            )
        catalog.show(snapshot)

    def committed(self, writer: str, batch_id: int, /) -> str | None:
        table = self._catalog().load()
        return find_commit(table.metadata, table.name, writer, batch_id)

    def writers(self) -> list[str]:
        return LastCommit.writers(self._catalog().load().metadata)

    # staging and committing

    def _commit_staged(self, catalog: Catalog, write: BatchWrite, txn: Transaction) -> str | None:
        """Return the snapshot. None if its publish failed, and the gate found it in the table."""
        staged = catalog.stage(write.properties, validated=self._mode != "append")
        txn.on_discard(staged.discard)
        self._require_unchanged(write, staged.loaded)
        txn.check()
        with staged.named(write.rows.sparkSession) as target:
            write.run(target, staged.base)
        staged.staged()
        txn.check()
        snapshot = None
        with txn.commit() as grant:
            grant.version = snapshot = staged.publish(grant)
        return snapshot

    def _commit_whole(self, catalog: Catalog, write: BatchWrite) -> None:
        now = catalog.load()
        self._require_unchanged(write, now)
        base = now.metadata.newest
        base_id = None if base is None else base.id
        with_properties(catalog.spark, write.properties, lambda: write.run(self._name, base_id))

    def _require_unchanged(self, write: BatchWrite, now: Loaded) -> None:
        """Raise `BaseChanged` if the batch was prepared for another layout or table."""
        prepared = write.table.metadata
        what = None
        if prepared.uuid != now.metadata.uuid:
            what = "the table was dropped and created again"
        elif not prepared.same_layout(now.metadata):
            what = "the table's columns or partition fields changed"
        elif not self._told_of_history and now.metadata.lists_newest_only:
            self._told_of_history = True
            log.warning("iceberg.newest-snapshot-only", table=self.table, cost=NEWEST_ONLY_COST)
        if what is not None:
            facts = f"table={self.table} writer={write.properties[WRITER]}"
            raise base_changed(f"{what} while the batch was prepared", facts)

    def _layout(self, spark: SparkSession) -> OpenTable:  # noqa: ARG002 - the catalog is that of the sink's session
        table = self._last_opened = open_table(self._catalog(), self._last_opened)
        location = canonical_table(table.metadata.location)
        if location != self._uri:
            raise ValueError(
                f"the table {self._name!r} is now at {location}, and was at {self._uri} when the sink was created: create a new "
                "sink, so that its writers take the lock of that table"
            )
        if self._mode == "upsert" and table.metadata.properties.get(ANY_SCHEMA, "").lower() == "true":
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
                f"the table has files of the partition spec {older}, and is partitioned by {spec_text(table.spec)} now; "
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
