"""Writes the batches of a situation by the sink and natively, and compares what is in the tables after each."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.formats import session_settings
from tests.spark.rows.memory_gate import MemoryGate
from tests.spark.rows.tables import FORMATS, Situation, Tables

SMALL = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",  # the default of Spark 4.0
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.variant.annotateLogicalType.enabled": "false",  # pyarrow, which compares the files, can't read it
}


REFUSED = (
    "storeAssignmentPolicy=legacy",  # MERGE, and Delta, store NULL for what doesn't fit
    "cast it in the batch",  # a partition column whose type isn't the batch's, where Delta compares or stores something else
    "depends on the release of Java",  # Paimon's folder of a float
    "loses and doubles rows",  # pypaimon with NaN in a primary key
    "have no name of a folder",  # Paimon's of binary values
    "has no single spelling",  # Delta's binary as a partition column, and types of Hudi's (partition_paths.py)
    "by which this sink finds",  # a key or partition column that the batch lacks, and Delta generates or has a default for
    "the table has files of",  # an older partition spec: keys hold within a partition, and an overwrite replaces none of them
    "is NOT NULL, and the batch has NULL in it",  # Delta's MERGE stores '' as NULL in such a partition column, and can't read it
    "replaces whole rows",  # Paimon's merge engine `deduplicate`, where the batch lacks columns
)
"""Texts of the sinks' errors for batches that they refuse by design, although the format's own writer may take them."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A batch of which the sink made something else than the format alone."""

    what: str
    batch: int
    """Its number in the situation."""
    native_error: str | None = None
    sink_error: str | None = None

    def __str__(self) -> str:
        errors = [
            f"{title} raised: {error}"
            for title, error in (("native", self.native_error), ("sink", self.sink_error))
            if error
        ]
        return "\n".join([f"batch {self.batch}: {self.what}", *errors])


class Unusable(Exception):
    """The format has no such table."""


def compare(
    spark: SparkSession, folder: Path, situation: Situation, table_format: str, mode: str
) -> Finding | None:
    """Return the first difference between the sink and the native write, or None."""
    with session_settings(spark, SMALL):
        try:
            with session_settings(spark, dict(situation.settings)):
                tables = FORMATS[table_format](spark, folder / uuid.uuid4().hex, situation, mode)
        except Exception as error:
            raise Unusable(str(error)) from error
        try:
            return _compare(spark, tables, situation)
        finally:
            tables.drop()


def _compare(spark: SparkSession, tables: Tables, situation: Situation) -> Finding | None:
    gate = MemoryGate(tables.folder)
    sink = lru_cache(1)(tables.make_sink)  # one sink for all batches, created with the first one
    for number, sql in enumerate(situation.batches):
        if sql.startswith("ALTER"):
            tables.alter(sql)
            tables.changed()
            continue
        with session_settings(spark, dict(situation.settings)):
            batch = spark.sql(sql)
            native_error = _error(partial(tables.write_natively, batch))
            sink_error = _error(partial(gate.write, sink, batch, number, declared=situation.declared))
        found = partial(Finding, batch=number, native_error=native_error, sink_error=sink_error)
        if sink_error and any(text in sink_error for text in REFUSED):
            return None
        if sink_error and not native_error:
            return found("only the sink refused")
        # Delta before 4 refuses to overwrite by no rows.
        if native_error and not sink_error and not batch.isEmpty():
            return found("the sink wrote what is refused natively")
        text = tables.difference()
        if text:
            return found(f"other rows: {text}")
        changed = tables.changed()
        scope, markers = gate.partitions()
        scope.discard(
            "_delta_log"
        )  # of rows that Delta numbers, also those of an append, which declares no partitions
        for title, declared in (("scope", scope), ("markers", markers)):
            if not changed <= declared and (declared or title == "markers"):
                return found(f"changed partitions {sorted(changed)}; {title} {sorted(declared)}")
    return None


def _error(write: Callable[[], object]) -> str | None:
    try:
        write()
    except Exception as error:  # noqa: BLE001 - whatever is raised is a refusal
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return None
