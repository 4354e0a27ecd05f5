"""The statement of Spark that writes one batch, to the table itself or to a staged one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakewarden.handlers.commit_label import TRANSACTION
from lakewarden.spark_jobs.engine.engine import quoted
from lakewarden.spark_jobs.engine.kinds import engine_of
from lakewarden.spark_jobs.sinks.iceberg.table import OpenTable
from lakewarden.spark_jobs.sinks.partitions import Partition
from lakewarden.spark_jobs.sinks.upsert import Mode, Upsert, unused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
        with engine_of(rows).as_view(rows, f"lakewarden_{self.properties[TRANSACTION]}") as source:
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
