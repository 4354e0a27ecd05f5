"""What `DeltaSink` and `IcebergSink` share: their options, their scope, and the batch in the names and types of the table.

The format's own Spark statement writes the batch, in one of three modes, and only its commit is under the grant. Where the hook
into the commit can't be used, the whole statement is (`run_under_grant`). The format's own conflict check decides whether it
commits, as without the gate. What is lost:

| with the hook | under one grant |
| --- | --- |
| statements compute side by side, and only commits wait | the statements of all partitions wait for one another |
| the lease is checked right before the commit | a driver that was paused beyond its lease commits if the format's check lets it |
| what was staged and refused is removed | it stays until the format's own clean-up |
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from lakewarden.events import ConflictRule, Marker
from lakewarden.spark_jobs.engine.java import java_text
from lakewarden.spark_jobs.gate.errors import conflict_found
from lakewarden.spark_jobs.gate.outcome import CommitLookup
from lakewarden.spark_jobs.gate.scope import ALONE, BatchScope, as_markers
from lakewarden.spark_jobs.gate.transaction import Transaction
from lakewarden.spark_jobs.sinks.assignment import naming_values
from lakewarden.spark_jobs.sinks.contract import Plan, Sink, as_columns
from lakewarden.spark_jobs.sinks.partitions import (
    BatchContent,
    Field,
    Partition,
    as_lost,
    content_of,
    covered,
    is_computed_once,
)
from lakewarden.spark_jobs.sinks.upsert import (
    Mode,
    Upsert,
    converted_keys,
    lossless,
    require_comparable,
    unused,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

COST = (
    "each statement has the grant from its start to its end, so writers of this table wait for one another's whole "
    "statements, also in other partitions"
)
"""For the warning of a sink."""


class Layout(Protocol):
    """The columns and partition fields of a table, as they are now."""

    @property
    def fields(self) -> tuple[Field, ...]: ...

    @property
    def columns(self) -> StructType: ...

    def paths_of(self, partitions: Sequence[Partition]) -> list[str]: ...


L = TypeVar("L", bound=Layout)


@dataclass(frozen=True, slots=True)
class Prepared(Generic[L]):
    """A batch in the names of a table, and what a query found in it."""

    layout: L
    upsert: Upsert
    named: DataFrame
    """The batch in the names of the table."""
    rows: DataFrame
    """The same with the columns `stored`."""
    stored: dict[str, str]
    """By partition column: the column that has its values as the table stores them."""
    converted: dict[str, str]
    """As of `converted_keys`."""
    content: BatchContent

    @property
    def partitions(self) -> tuple[Partition, ...]:
        return self.content.partitions

    def one_row_per_key(self, table: str) -> DataFrame:
        """Return the rows as a MERGE needs them."""
        if not self.content.keys_repeat and not self.converted:
            return self.rows
        return self.upsert.one_row_per_key(self.rows, self.layout.fields, table, self.stored, self.converted)


class SparkSink(Sink, Generic[L]):
    """Call it as `sink(batch_df, txn)`. Create one for each table and mode.

    A plan has the partitions of the batch, found by one query.

    `delete_condition` and `update_condition` are SQL over the table's row `t` and the batch's row `s`. A row that meets the
    first is deleted; one that isn't in the table isn't inserted then, so the condition may name only columns of `s`. A row
    that doesn't meet the second keeps its values. The batch may have columns for them, and for `order_by`, that the table lacks.
    """

    _uri: str

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
        """`table` is a name in a catalog of the active Spark session; for `DeltaSink`, a URI or an absolute path, too."""
        self._upsert = Upsert(as_columns(keys, "keys", table), order_by, delete_condition, update_condition)
        self._upsert.require_mode(mode)
        self._mode: Mode = mode
        self._untried_release = untried_release
        self._find(table)

    @property
    def table(self) -> str:
        return self._uri

    @property
    def conflict_rule(self) -> ConflictRule:
        return "deleted-file" if self._mode == "append" else "file-group"

    def plan(self, batch: DataFrame, /) -> Plan:
        spark = batch.sparkSession
        return self._plan(batch, self._layout(spark), spark)

    def _prepared(self, batch: DataFrame, layout: L, spark: SparkSession) -> Prepared[L]:
        upsert = self._upsert.of_columns(layout.columns.names, spark, self.table)
        named = self._rows(batch, layout, upsert)
        converted = converted_keys(upsert.keys, named.schema, layout.columns)
        with naming_values(batch, layout.columns, self.table):
            rows, stored = self._with_stored(named, layout, upsert)
            content = content_of(
                rows,
                layout.fields,
                upsert.keys,
                self.table,
                persisted=is_computed_once(batch),
                stored=stored,
                checked=lossless(converted, named.schema, layout.columns),
            )
        return Prepared(layout, upsert, named, rows, stored, converted, content)

    def _plan(self, batch: DataFrame, layout: L, spark: SparkSession) -> Plan:
        prepared = self._prepared(batch, layout, spark)
        markers = self._markers(batch, prepared)

        def stage(txn: Transaction) -> None:
            if not prepared.partitions:
                return
            with naming_values(batch, layout.columns, self.table):
                txn.touch_all(markers)
                self._stage(prepared, txn)

        return Plan(None if self._mode == "append" else BatchScope(markers), stage)

    @abstractmethod
    def _stage(self, prepared: Prepared[L], txn: Transaction) -> None:
        """Write the batch, after its markers."""

    @abstractmethod
    def _find(self, table: str) -> None:
        """Set `_uri`."""

    @abstractmethod
    def _layout(self, spark: SparkSession) -> L:
        """Return the table's layout now. Raise `ValueError` for a table or session with which the sink can't write rightly."""

    @abstractmethod
    def _rows(self, batch: DataFrame, layout: L, upsert: Upsert) -> DataFrame:
        """Return the batch, its columns spelled as the table's. Raise `ValueError` if it lacks one, or has one too many."""

    @abstractmethod
    def _cast(self, rows: DataFrame, layout: L, stored: Mapping[str, str]) -> DataFrame:
        """Return the rows with columns of the names `stored`, which have the values of the batch's in the table's types."""

    def _markers(self, batch: DataFrame, prepared: Prepared[L]) -> tuple[Marker, ...]:  # noqa: ARG002 - Delta numbers some
        """Return what the batch touches."""
        paths = self._paths(prepared)
        return (ALONE,) if paths is None else as_markers(dict.fromkeys(paths))

    def _paths(self, prepared: Prepared[L]) -> list[str] | None:
        """Return the partitions that the statement reads. None: too many to be named."""
        read = covered(prepared.partitions) if self._mode == "upsert" else prepared.partitions
        return None if read is None else prepared.layout.paths_of(read)

    def _with_stored(self, rows: DataFrame, layout: L, upsert: Upsert) -> tuple[DataFrame, dict[str, str]]:
        """Return the rows with their partition columns as the table stores them, and the names of those that this adds."""
        given, columns = rows.schema, layout.columns
        stored = {
            field.column: unused(f"_lakewarden_stored_{field.column}", rows.columns)
            for field in layout.fields
            if given[field.column].dataType != columns[field.column].dataType
        }
        if not stored:
            return rows, {}
        require_comparable(upsert.keys, stored, given, columns, self.table)
        return self._cast(rows, layout, stored), stored


def run_under_grant(
    txn: Transaction,
    statement: Callable[[], object],
    committed: CommitLookup,
    is_conflict: Callable[[Exception], bool],
) -> None:
    """Request the grant and execute the statement. `is_conflict` returns whether the format's check refused the commit."""

    def version() -> str | None:
        return None if txn.batch_id is None else committed(txn.writer, txn.batch_id)

    txn.check()
    with txn.commit() as grant:
        grant.check()
        try:
            statement()
        except Exception as error:
            lost = as_lost(error, txn.facts)
            # A commit whose answer was lost can look like a conflict with itself.
            if txn.batch_id is None or not (lost or is_conflict(error)) or version() is not None:
                raise
            if lost is not None:
                grant.not_published()
                raise lost from error
            facts = f"table={txn.table} writer={txn.writer} transaction={txn.id}"
            raise conflict_found(java_text(error), facts, None) from error
        grant.version = version()
        if txn.batch_id is not None and grant.version is None:
            raise RuntimeError("the statement succeeded, and the table doesn't show its batch")
