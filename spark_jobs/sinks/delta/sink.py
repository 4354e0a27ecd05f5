"""`DeltaSink` writes micro-batches to one Delta table, together with other writers. docs/delta.md has its modes.

- Delta's own statement computes and commits; only its commit is under the grant (`observer.py`, record 34). Delta's conflict
  check finds foreign commits there: `BaseChanged`, or the commit gets a later version.
- An append publishes its markers when its files are written, an upsert and an overwrite theirs before they compute.
- Of two commits that number rows (identity columns), Delta refuses the second: each changes the table's metadata. So such batches
  have the marker `IDENTITY` in their scope, appends too, and wait for one another. A commit that changes the columns or
  properties touches the whole table (`observer.py`). docs/format-conflicts.md has the others.
- On S3 the commit file is put if absent (`fence.py`, record 57).
- The batch is `SetTransaction` in the commit of its data. That is this sink's `committed` (`log.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from lakewarden.events import ALL_FILE_GROUPS, Marker, canonical_table
from lakewarden.spark_jobs.engine.connect import Connect
from lakewarden.spark_jobs.engine.engine import causes, quoted
from lakewarden.spark_jobs.engine.java import java_text
from lakewarden.spark_jobs.engine.kinds import engine_of
from lakewarden.spark_jobs.gate.logs import EventLogger
from lakewarden.spark_jobs.gate.outcome import find_batch
from lakewarden.spark_jobs.gate.scope import BatchScope
from lakewarden.spark_jobs.sinks.assignment import DEFAULT, NOT_STORED, naming_values, spelled_as
from lakewarden.spark_jobs.sinks.contract import Plan
from lakewarden.spark_jobs.sinks.delta.connect import ServerLog, ServerStatement
from lakewarden.spark_jobs.sinks.delta.fence import REMEDY, RISK, Fence
from lakewarden.spark_jobs.sinks.delta.log import GENERATED, NUMBERED, LastBatches, Metadata, TableLog
from lakewarden.spark_jobs.sinks.delta.observer import (
    CommitObserver,
    is_conflict,
    require_release,
)
from lakewarden.spark_jobs.sinks.delta.statement import (
    OWN_TRANSACTION_IDS,
    GrantedStatement,
    Identity,
    Write,
    transaction_label,
)
from lakewarden.spark_jobs.sinks.partition_paths import in_hex, in_sql
from lakewarden.spark_jobs.sinks.partitions import Partition, computed_once
from lakewarden.spark_jobs.sinks.spark_sink import COST, Prepared, SparkSink, run_under_grant
from lakewarden.spark_jobs.sinks.table_locations import is_location, location_of
from lakewarden.spark_jobs.sinks.upsert import Upsert, inexact_keys, require_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from lakewarden.spark_jobs.gate.transaction import Transaction

AUTO_COMPACT = "spark.databricks.delta.autoCompact.enabled"

REPARTITIONS = "spark.databricks.delta.merge.repartitionBeforeWrite.enabled"

UTC_PARTITIONS = "spark.databricks.delta.write.utcTimestampPartitionValues"
UTC = {"UTC", "Etc/UTC", "GMT", "Z", "+00:00"}

IDENTITY = Marker(partition="_delta_log", file_group="identity", operation="delete")
"""The numbers that identity columns have reached. No partition has this name, and it conflicts with itself by any rule."""

log = EventLogger("lakewarden.delta")


class DeltaSink(SparkSink[Metadata]):
    """Writes one Delta table. It is created before or after the Spark session."""

    def _find(self, table: str) -> None:
        self._location = table if is_location(table) else location_of(table)
        self._uri = canonical_table(self._location)
        self._unhooked: str | None = None
        """Why whole statements are granted, if they are."""
        self._fence: Fence | None = None
        self._warned_of_gap = False
        self._last_batches = LastBatches()
        self._opened: TableLog | None = None
        """As the last batch opened it. A look-up only lists and reads commits, so it needs no other one."""

    def _layout(self, spark: SparkSession) -> Metadata:
        return self._supported(spark, self._open(spark))

    @property
    def reads_twice(self) -> bool:
        """Whether a query looks for the partitions: the files of an append have them."""
        return self._mode != "append"

    def plan(self, batch: DataFrame, /) -> Plan:
        spark = batch.sparkSession
        metadata = self._layout(spark)
        if self._mode != "append":
            return self._plan(batch, metadata, spark)
        numbers = self._numbers(batch, metadata)
        return Plan(BatchScope(numbers) if numbers else None, partial(self._append, batch, metadata, numbers))

    @staticmethod
    def _numbers(batch: DataFrame, metadata: Metadata) -> tuple[Marker, ...]:
        """Return the marker of a batch whose rows Delta numbers. It keeps numbers that the batch has."""
        if not metadata.numbered:
            return ()
        given = {name.lower() for name in batch.columns}
        return (IDENTITY,) if metadata.numbered - given else ()

    def committed(self, writer: str, batch_id: int, /) -> str | None:
        from pyspark.sql import SparkSession

        table = self._opened
        if table is None or not table.is_current:
            table = self._open(SparkSession.active())
        last = self._last_batches.last_batch(table, writer)
        if last is None or last < batch_id:
            return None
        return find_batch(table.history(writer), batch_id, f"table={self.table} writer={writer}")

    def writers(self) -> list[str]:
        from pyspark.sql import SparkSession

        return self._open(SparkSession.active()).writers()

    def _open(self, spark: SparkSession) -> TableLog:
        on_server = isinstance(engine_of(spark), Connect)
        self._opened = self._open_on_server(spark) if on_server else self._open_in_driver(spark)
        return self._opened

    def _open_on_server(self, spark: SparkSession) -> ServerLog:
        if isinstance(self._opened, ServerLog):
            return self._opened
        table = ServerLog(spark, self._location, untried=self._untried_release)
        gap = table.gap()
        if gap is not None:
            log.warning("delta.not-fenced", table=self.table, reason=gap, risk=RISK, remedy=REMEDY)
        return table

    def _open_in_driver(self, spark: SparkSession) -> TableLog:
        if self._fence is None:
            self._unhooked = require_release(spark, untried=self._untried_release)
            if self._unhooked is not None:
                log.warning("delta.whole-statements", table=self.table, reason=self._unhooked, cost=COST)
            self._fence = Fence(spark, self._location)
        with self._fence.selected():
            table = TableLog(spark, self._location)
            if not self._fence.is_kept(table.java):
                self._fence.forget()
                table = TableLog(spark, self._location)
        return table

    def __getstate__(self) -> dict[str, object]:
        """A sink is pickled into a query of Spark Connect, without what belongs to a session."""
        return {**vars(self), "_opened": None, "_fence": None, "_last_batches": LastBatches()}

    def _warn_of_gap(self, delta_log: Any) -> None:
        """Warn once if S3 wouldn't refuse a commit whose version is taken."""
        gap = None if self._warned_of_gap or self._fence is None else self._fence.gap(delta_log)
        if gap is not None:
            self._warned_of_gap = True
            log.warning("delta.not-fenced", table=self.table, reason=gap, risk=RISK, remedy=REMEDY)

    @property
    def _by_path(self) -> str:
        """The table's name in SQL. Unlike `DataFrameWriter.save`, writes by a name convert types, from Delta 4.3 on."""
        return f"delta.{quoted(self._location)}"

    def _supported(self, spark: SparkSession, table: TableLog) -> Metadata:
        """Return the table's metadata.

        Raise `ValueError` for tables and sessions with which a commit could escape the grant, a batch be lost, or a partition
        have several spellings.
        """
        metadata = table.metadata()
        try:
            metadata.paths_of(())
        except ValueError as error:
            raise ValueError(f"{error}; table={self.table}") from None
        compacts = spark.conf.get(AUTO_COMPACT, None) or _table_compacts(metadata.configuration)
        if str(compacts).lower() not in {"none", "false"}:
            raise ValueError(
                "auto compaction commits by itself after each write, without a grant: set "
                f"{AUTO_COMPACT}=false in the writer's session, and run OPTIMIZE in a transaction of the gate; "
                f"table={self.table}"
            )
        identified = [name for name in OWN_TRANSACTION_IDS if spark.conf.get(name, None) is not None]
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
        if self._mode != "append" and metadata.configuration.get("delta.appendOnly", "").lower() == "true":
            raise ValueError(
                f"the table has the property delta.appendOnly, with which Delta refuses an {self._mode}: append, or set it to "
                f"false; table={self.table}"
            )
        self._require_utc(spark, metadata, table.jvm_zone)
        return metadata

    def _require_utc(self, spark: SparkSession, metadata: Metadata, jvm: str) -> None:
        """Raise `ValueError` if Delta would store another instant than the batch's in a partition column.

        It writes the text of the instant in the session's time zone, and takes that for one in the JVM's zone.
        """
        instants = [field.column for field in metadata.fields if field.value_type == "timestamp"]
        if not instants:
            return
        session = str(spark.conf.get("spark.sql.session.timeZone"))
        normalised = str(spark.conf.get(UTC_PARTITIONS, "true")).lower()
        if {jvm, session} - UTC or normalised != "true":
            raise ValueError(
                f"the partition column {instants[0]!r} of type timestamp has no single spelling; Delta takes the text of an "
                f"instant in the session's time zone ({session}) for one in the JVM's ({jvm}), and stores another instant; set "
                "spark.sql.session.timeZone=UTC and -Duser.timezone=UTC in the driver and the executors, and leave "
                f"{UTC_PARTITIONS} out, or partition by a date; table={self.table}"
            )

    # the modes

    def _append(
        self, batch: DataFrame, metadata: Metadata, numbers: tuple[Marker, ...], txn: Transaction
    ) -> None:
        def touch(partitions: Iterable[Partition]) -> None:
            named = dict.fromkeys(metadata.paths_of(partitions))
            txn.touch_all(
                Marker(partition=path, file_group=ALL_FILE_GROUPS, operation="create") for path in named
            )

        def touch_files(actions: Iterator[dict[str, Any]]) -> None:
            values = (action["add"]["partitionValues"] for action in actions if "add" in action)
            touch(
                tuple(found.get(physical) for physical in metadata.physical_names.values())
                for found in values
            )

        spark = batch.sparkSession
        if numbers:
            txn.touch_all(numbers)
        whole = self._unhooked is not None
        with computed_once(batch, txn.facts, txn) if whole else nullcontext(batch) as rows:
            if whole:
                touch(self._prepared(rows, metadata, spark).partitions)
            with naming_values(rows, metadata.columns, self.table):
                write = Write("append", _with_sources(rows, metadata.columns))
                self._execute(write, txn, metadata, touch_files)

    def _stage(self, prepared: Prepared[Metadata], txn: Transaction) -> None:
        metadata, upsert, rows = prepared.layout, prepared.upsert, prepared.rows
        fields, stored = metadata.fields, prepared.stored
        if self._mode == "overwrite":
            self._execute(Write("overwrite", rows), txn, metadata)
            return
        # Delta computes a generated column again if the statement sets others and leaves it out.
        inexact = [
            *inexact_keys(upsert.keys, fields, rows.schema, metadata.columns, self.table),
            *metadata.filled_in,
        ]
        merged = prepared.one_row_per_key(self.table)
        with engine_of(merged).as_view(merged, f"lakewarden_{txn.id}") as source:
            known = metadata.columns.names
            statement = upsert.statement(
                self._by_path,
                source,
                fields=fields,
                partitions=prepared.partitions,
                required=metadata.required,
                assigned=[name for name in rows.columns if name in known],
                stored=stored,
                inexact=inexact,
            )
            with self._naming_setting(metadata):
                self._execute(Write("sql", rows, statement), txn, metadata)

    @contextmanager
    def _naming_setting(self, metadata: Metadata) -> Iterator[None]:
        """Name the setting that a MERGE of this table needs, if Delta takes the name of a partition column for syntax."""
        try:
            yield
        except Exception as error:
            odd = [field.column for field in metadata.fields if not {".", "`"}.isdisjoint(field.column)]
            if not odd or not any(cause.is_analysis for cause in causes(error)):
                raise
            raise ValueError(
                f"Delta's MERGE takes dots and backquotes in the names of the partition columns {odd} for syntax: set "
                f"{REPARTITIONS}=false, or rename them; {java_text(error)}; table={self.table}"
            ) from error

    def _execute(
        self,
        write: Write,
        txn: Transaction,
        metadata: Metadata,
        prepared: Callable[[Iterator[dict[str, Any]]], object] = lambda _: None,
    ) -> None:
        """Execute a statement with its commit under the grant, or the whole of it where there is no hook."""
        table = metadata.log
        if self._unhooked is not None:
            self._warn_of_gap(table.java)
            run_under_grant(
                txn, lambda: write.run(self._by_path, _identity(txn)), self.committed, is_conflict
            )
        else:
            statement = self._granted(write, txn, table, prepared)
            txn.on_discard(lambda: self._discard(statement, table))
            txn.check()
            statement.execute(write, self._by_path)
            if txn.batch_id is not None and statement.grant is not None:
                self._last_batches.note(txn.writer, txn.batch_id, statement.grant.version)
        self._warn_of_gap(table.java)  # a store without conditional puts is known by its first answer

    def _granted(
        self,
        write: Write,
        txn: Transaction,
        table: TableLog,
        prepared: Callable[[Iterator[dict[str, Any]]], object],
    ) -> GrantedStatement:
        """Return the statement whose commit waits for the grant."""
        if isinstance(table, ServerLog):
            return ServerStatement(txn, table, prepared)
        return CommitObserver(write.rows.sparkSession, txn, table, prepared, self._warn_of_gap)

    def _discard(self, observer: GrantedStatement, table: TableLog) -> None:
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

    def _markers(self, batch: DataFrame, prepared: Prepared[Metadata]) -> tuple[Marker, ...]:
        layout = prepared.layout
        for number, field in enumerate(layout.fields):
            nulls = (values[number] is None for values in prepared.partitions)
            if field.column in layout.required and any(nulls):
                raise ValueError(
                    f"the partition column {field.column!r} is NOT NULL, and the batch has NULL in it, or an empty text, which "
                    f"Delta stores as NULL: correct or drop the row; table={self.table}"
                )
        return (*super()._markers(batch, prepared), *self._numbers(batch, layout))

    def _rows(self, batch: DataFrame, layout: Metadata, upsert: Upsert) -> DataFrame:
        rows = spelled_as(batch, layout.columns.names, self.table, upsert.may_bring)
        upsert.order_column(rows, self.table)
        needed = [*upsert.keys, *(field.column for field in layout.fields)]
        for name in needed:
            if name not in rows.columns and name in layout.filled_in:
                raise ValueError(
                    f"the batch lacks the column {name!r}, {layout.filled_in[name]}, and by which this sink finds what the "
                    f"batch changes: add it to the batch with the same expression; table={self.table}"
                )
        require_columns(rows.columns, needed, self.table)
        given, policy = rows.schema, rows.sparkSession.conf.get("spark.sql.storeAssignmentPolicy", "ANSI")
        others = [name for name in needed if given[name].dataType != layout.columns[name].dataType]
        if others and self._mode == "upsert" and str(policy).upper() == "LEGACY":
            raise ValueError(
                f"the keys and partition columns {others} have other types in the batch than in the table: with "
                "spark.sql.storeAssignmentPolicy=LEGACY Delta stores NULL for what doesn't fit; cast it in the batch, or set "
                f"ANSI; table={self.table}"
            )
        return rows

    def _cast(self, rows: DataFrame, layout: Metadata, stored: Mapping[str, str]) -> DataFrame:
        """A MERGE converts them by an ANSI cast, whatever the session says."""
        kinds = {field.column: field.value_type for field in layout.fields if field.column in stored}
        self._require_castable(rows, kinds)
        given = dict(rows.dtypes)
        casts = (
            f"{_ansi_cast(name, given[name], kind)} AS {quoted(stored[name])}" for name, kind in kinds.items()
        )
        return rows.selectExpr("*", *casts)

    def _require_castable(self, rows: DataFrame, kinds: Mapping[str, str]) -> None:
        """Raise `ValueError` if Delta doesn't convert these columns to these types, by which it is partitioned."""
        from pyspark.errors import AnalysisException

        name, kind = min(kinds.items())
        both = f"the partition column {name!r} has type {kind}, and in the batch {rows.schema[name].dataType.simpleString()}"
        if self._mode != "upsert":
            raise ValueError(
                f"{both}: this sink converts no partition columns of an {self._mode}; cast it in the batch; table={self.table}"
            )
        try:
            rows.selectExpr(
                *(f"{quoted(column)} <=> CAST(NULL AS {in_sql(kind)})" for column, kind in kinds.items())
            )
        except AnalysisException as error:
            raise ValueError(
                f"{both}: Spark doesn't compare all partition columns with the batch's, as a MERGE does: "
                f"{error.getMessage()}; cast it in the batch; table={self.table}"
            ) from error


def _ansi_cast(column: str, given: str, kind: str) -> str:
    """Return the SQL of a cast that fails for a value that doesn't fit, also if the session's casts don't."""
    name = quoted(column)
    text = f"{NOT_STORED}: column {column!r} has type {given} in the batch, and {kind} in the table: "
    failure = f"raise_error(concat({in_hex(text)}, CAST({name} AS string)))"
    return f"CASE WHEN {name} IS NOT NULL THEN coalesce(try_cast({name} AS {in_sql(kind)}), {failure}) END"


def _with_sources(batch: DataFrame, columns: StructType) -> DataFrame:
    """Return the batch with NULL in what it lacks, if it lacks a generated column: Delta looks for what that is computed from."""
    from pyspark.sql.functions import lit

    if not any(GENERATED in field.metadata for field in columns.fields):
        return batch
    given = {name.lower() for name in batch.columns}
    missing = [field for field in columns.fields if field.name.lower() not in given]
    if not any(GENERATED in field.metadata for field in missing):
        return batch
    nulls = [field for field in missing if not {GENERATED, NUMBERED, DEFAULT} & field.metadata.keys()]
    return batch.select("*", *(lit(None).cast(field.dataType).alias(field.name) for field in nulls))


def _identity(txn: Transaction) -> Identity:
    label = {"userMetadata": transaction_label(txn)}
    if txn.batch_id is None:
        return label
    return label | {"txnAppId": txn.writer, "txnVersion": str(txn.batch_id)}


def _table_compacts(configuration: Mapping[str, str]) -> str | None:
    if configuration.get("delta.autoOptimize", "").lower() == "true":
        return "true"
    return configuration.get("delta.autoOptimize.autoCompact")
