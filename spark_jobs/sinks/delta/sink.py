"""`DeltaSink` writes micro-batches to one Delta table, together with other writers.

    sink = DeltaSink("s3a://lake/flights", mode="upsert", keys=["flight"])
    stream.writeStream.foreachBatch(gate.foreach_batch(sink, writer="arrivals")).start()

Delta's own statement computes and commits; only its commit is under the grant (`observer.py`, record 34).

| mode | statement | markers | conflict rule |
| --- | --- | --- | --- |
| `append` | append | `(partition, *, create)`, when the files are written | `deleted-file`: two appends never conflict |
| `upsert` | MERGE by the partition columns and `keys` | `(partition, *, merge)`, before it computes | `file-group` |

- *Scope.* The partitions of an upsert are its scope. An append has none.
- *Foreign commits.* Delta's conflict check finds them under the grant: `BaseChanged`, or the commit gets a later version.
- *Exactly once.* The batch is `SetTransaction` in the commit of its data. That is this sink's `committed` (`log.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lakewarden.events import ALL_FILE_GROUPS, ConflictRule, Marker, canonical_table
from lakewarden.spark_jobs.gate.batch_scope import BatchScope
from lakewarden.spark_jobs.gate.logs import EventLogger
from lakewarden.spark_jobs.sinks.contract import Sink
from lakewarden.spark_jobs.sinks.delta.log import LastBatches, Metadata, TableLog
from lakewarden.spark_jobs.sinks.delta.observer import CommitObserver
from lakewarden.spark_jobs.sinks.delta.release import require_release
from lakewarden.spark_jobs.sinks.delta.statements import Partition, append, merge
from lakewarden.spark_jobs.sinks.merge import latest
from lakewarden.spark_jobs.sinks.partition_paths import MAX_PARTITIONS, PartitionPaths

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakewarden.spark_jobs.gate.transaction import Transaction

Mode: TypeAlias = Literal["append", "upsert"]

AUTO_COMPACT = "spark.databricks.delta.autoCompact.enabled"

OWN_TRANSACTION_IDS = ("spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion")

_IS_LOCATION = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")

log = EventLogger("lakewarden.delta")


@dataclass(frozen=True, slots=True)
class _DeltaScope(BatchScope):
    """The partitions of an upsert, with their values."""

    partitions: tuple[Partition, ...]


class DeltaSink(Sink):
    """Call it as `sink(batch_df, txn)`. Create one for each table and mode.

    `delete_condition` and `update_condition` are SQL over the table's row `t` and the batch's row `s`. A row that meets the
    first is deleted; one that isn't in the table isn't inserted then, so the condition may name only columns of `s`. A row
    that doesn't meet the second keeps its values. The batch may have columns for them, and for `order_by`, that the table lacks.
    """

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
        """`table` is a URI, an absolute path, or a name in a catalog of the active Spark session."""
        if (mode == "upsert") != bool(keys):
            raise ValueError(
                f"mode {mode!r} with keys={list(keys)}: give `keys` for upsert, and only for upsert"
            )
        if mode != "upsert" and (order_by or delete_condition or update_condition):
            raise ValueError(f"order_by, delete_condition and update_condition are for upsert, not {mode!r}")
        self._location = table if _IS_LOCATION.match(table) else _location_of(table)
        self._uri = canonical_table(self._location)
        self._mode: Mode = mode
        self._keys = tuple(keys)
        self._order_by = order_by
        self._delete_condition = delete_condition
        self._update_condition = update_condition
        self._untried_release = untried_release
        self._release: str | None = None
        self._last_batches = LastBatches()

    @property
    def table(self) -> str:
        """Canonical URI of the table."""
        return self._uri

    @property
    def conflict_rule(self) -> ConflictRule:
        """The conflict rule of this sink's transactions."""
        return "deleted-file" if self._mode == "append" else "file-group"

    def scope(self, batch: DataFrame, /) -> _DeltaScope | None:
        """Return the partitions of an upsert, by one Spark job. None for an append, or for more than `MAX_PARTITIONS`."""
        if self._mode == "append":
            return None
        metadata = self._open(batch.sparkSession).metadata()
        partitions = self._partitions_of(self._in_table_types(batch, metadata), metadata)
        if len(partitions) > MAX_PARTITIONS:
            return None
        return _DeltaScope(tuple(self._markers(partitions, metadata)), partitions)

    def __call__(self, batch: DataFrame, txn: Transaction) -> None:
        """Write one batch in a transaction of the gate."""
        spark = batch.sparkSession
        table = self._open(spark)
        metadata = table.metadata()
        self._require_supported(spark, metadata)
        txn.recognise(self.committed)
        if self._mode == "append":
            self._append(batch, txn, table, metadata)
        else:
            self._upsert(batch, txn, table, metadata)

    def committed(self, writer: str, batch_id: int, /) -> str | None:
        """Return the version in which `writer` committed the batch, or None."""
        from pyspark.sql import SparkSession

        table = self._open(SparkSession.active())
        last = self._last_batches.last_batch(table, writer)
        if last is None or last < batch_id:
            return None
        version = table.version_of_batch(writer, batch_id)
        return f"unknown, with batch {last} of the writer" if version is None else str(version)

    def _open(self, spark: SparkSession) -> TableLog:
        if self._release is None:
            self._release = require_release(spark, untried=self._untried_release)
        return TableLog(spark, self._location)

    def _require_supported(self, spark: SparkSession, metadata: Metadata) -> None:
        """Raise `ValueError` for tables and sessions with which a commit could escape the grant, or a batch be lost."""
        settings: Any = spark._jsparkSession.sessionState().conf()
        session = settings.getConfString(AUTO_COMPACT) if settings.contains(AUTO_COMPACT) else None
        compacts = session or _table_compacts(metadata.configuration)
        if str(compacts).lower() not in {"none", "false"}:
            raise ValueError(
                "auto compaction commits by itself after each write, without a grant: set "
                f"{AUTO_COMPACT}=false in the writer's session, and run OPTIMIZE in a transaction of the gate; "
                f"table={self.table}"
            )
        identified = [name for name in OWN_TRANSACTION_IDS if settings.contains(name)]
        if identified:
            raise ValueError(
                f"the session has {' and '.join(identified)}, by which Delta would skip this sink's commits: unset them, "
                f"the sink identifies its batches itself; table={self.table}"
            )
        coordinated = [name for name in metadata.configuration if name.startswith("delta.coordinatedCommits")]
        if coordinated:
            raise ValueError(
                f"the table's commits are kept by a coordinator ({coordinated[0]}), and this sink reads them in "
                f"_delta_log; write it without the gate, or drop the feature; table={self.table}"
            )

    # the two modes

    def _append(self, batch: DataFrame, txn: Transaction, table: TableLog, metadata: Metadata) -> None:
        paths = PartitionPaths("delta", metadata.partition_types)

        def touch(actions: list[dict[str, Any]]) -> None:
            values = (action["add"]["partitionValues"] for action in actions if "add" in action)
            partitions = dict.fromkeys(
                paths.path([found.get(physical) for physical in metadata.physical_names.values()])
                for found in values
            )
            txn.touch_all(
                Marker(partition=path, file_group=ALL_FILE_GROUPS, operation="create") for path in partitions
            )

        self._run(
            CommitObserver(batch.sparkSession, txn, table, touch), append(batch, self._location), txn, table
        )

    def _upsert(self, batch: DataFrame, txn: Transaction, table: TableLog, metadata: Metadata) -> None:
        rows = self._in_table_types(batch, metadata)
        keys = tuple(dict.fromkeys((*metadata.partition_types, *self._keys)))
        scope = txn.batch_scope
        # An empty one isn't trusted either: the user's function may have added rows to the batch since.
        known = scope.partitions if isinstance(scope, _DeltaScope) else ()
        rows = latest(rows, keys, self._order_by)
        if not known:
            rows.persist()  # it is computed twice, and must be the same rows both times
        try:
            partitions = known or self._partitions_of(rows, metadata)
            if not partitions:
                return
            txn.touch_all(self._markers(partitions, metadata))
            statement = merge(
                rows,
                self._location,
                keys=keys,
                written=[name for name in rows.columns if name in metadata.columns],
                partition_types=metadata.partition_types,
                partitions=partitions,
                delete_condition=self._delete_condition,
                update_condition=self._update_condition,
            )
            self._run(CommitObserver(batch.sparkSession, txn, table), statement, txn, table)
        finally:
            if not known:
                rows.unpersist()

    def _run(self, observer: CommitObserver, statement: Any, txn: Transaction, table: TableLog) -> None:
        txn.on_discard(lambda: self._discard(observer, table))
        txn.check()
        observer.run(statement)

    def _discard(self, observer: CommitObserver, table: TableLog) -> None:
        """Remove what the statement has written, unless a commit names it."""
        files, base = observer.staged_files, observer.base_version
        if not files or base is None:
            return
        committed = table.files_since(base)
        if not committed.isdisjoint(files):
            log.warning("delta.files-committed", table=self.table, files=sorted(committed & set(files))[:3])
            return
        table.delete(files)

    # the batch

    def _in_table_types(self, batch: DataFrame, metadata: Metadata) -> DataFrame:
        """Return the batch with its partition columns in the table's types: as a row that isn't cast, so is its partition."""
        from pyspark.sql import functions as f

        needed = dict.fromkeys((*metadata.partition_types, *self._keys))
        missing = [name for name in needed if name not in batch.columns]
        if missing:
            raise ValueError(
                f"the batch lacks key or partition columns {missing}, by which an upsert finds the rows to change; "
                f"table={self.table}"
            )
        unknown = [name for name in batch.columns if name not in metadata.columns]
        if unknown and not (self._delete_condition or self._update_condition or self._order_by):
            raise ValueError(
                f"the table has no columns {unknown}: add them with ALTER TABLE, or drop them; table={self.table}"
            )
        return batch.withColumns(
            {name: f.col(f"`{name}`").cast(kind) for name, kind in metadata.partition_types.items()}
        )

    def _partitions_of(self, rows: DataFrame, metadata: Metadata) -> tuple[Partition, ...]:
        from pyspark.sql import functions as f

        if not metadata.partition_types:
            return ((),)
        columns = [f.col(f"`{name}`") for name in metadata.partition_types]
        return tuple(tuple(row) for row in rows.select(*columns).distinct().collect())

    def _markers(self, partitions: Iterable[Partition], metadata: Metadata) -> list[Marker]:
        paths = PartitionPaths("delta", metadata.partition_types)
        named = dict.fromkeys(paths.path(partition) for partition in partitions)
        return [Marker(partition=path, file_group=ALL_FILE_GROUPS, operation="merge") for path in named]


def _table_compacts(configuration: Mapping[str, str]) -> str | None:
    if configuration.get("delta.autoOptimize", "").lower() == "true":
        return "true"
    return configuration.get("delta.autoOptimize.autoCompact")


def _location_of(name: str) -> str:
    """Return the location of a catalog's table."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        rows = (
            SparkSession.active()
            .sql("DESCRIBE TABLE EXTENDED IDENTIFIER(:name)", args={"name": name})
            .collect()
        )
    except PySparkException as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"no table of this name: {name!r}; name a table of the Spark session's catalogs, or write "
            f"scheme://authority/path or an absolute local path; {reason}"
        ) from error
    found = [str(row["data_type"]) for row in rows if row["col_name"] == "Location"]
    if not found:
        raise ValueError(f"the catalog gives no location for table {name!r}; write its URI instead")
    return found[-1]
