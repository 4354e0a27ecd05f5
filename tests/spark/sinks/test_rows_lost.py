"""A persisted batch that is lost while it is written, and whose rows are others when they are computed again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession

from lakewarden.spark_jobs import GateEvent
from lakewarden.spark_jobs.engine.java import java_type
from tests.spark.conftest import MakeTable
from tests.spark.formats import HAS_DELTA, HAS_HUDI, HAS_ICEBERG
from tests.spark.rows.memory_gate import MemoryGate
from tests.spark.sinks.cases import COLUMNS, PAIMON_KEYED, make_case

pytestmark = [pytest.mark.real]

MODES = ["paimon-upsert", *PAIMON_KEYED]
if HAS_DELTA:
    MODES += ["delta-upsert", "delta-overwrite"]
if HAS_ICEBERG:
    MODES += ["iceberg-upsert", "iceberg-overwrite", "iceberg-append"]
if HAS_HUDI:
    MODES.append("hudi")

FIRST = "1,2,10\n"

CHANGES = {
    "partition": ("1,1,10\n1,1,11\n", "1,2,10\n1,1,11\n"),
    "key": ("1,2,11\n1,2,12\n", "1,2,13\n1,2,13\n"),
}
"""What the batch's file has when the scope is found, and when the rows are computed again: in a partition outside of the scope,
and with one key twice in a partition of the scope."""

EXPECTED = {
    "upsert": {"partition": [10, 11], "key": [10, 13]},
    "overwrite": {"partition": [10, 11], "key": [13, 13]},
    "append": {"partition": [10, 10, 11], "key": [10, 13, 13]},
}
"""The table's keys after `FIRST` and the batch as it was computed again."""


def blocks(spark: SparkSession) -> None:
    """What remains when executors end: Spark knows that the rows are persisted, and has none."""
    master = java_type(spark, "org.apache.spark.SparkEnv").get().blockManager().master()
    for number in list(spark.sparkContext._jsc.getPersistentRDDs()):
        master.removeRdd(number, True)  # noqa: FBT003 - of Java


def rdds(spark: SparkSession) -> None:
    for each in spark.sparkContext._jsc.getPersistentRDDs().values():
        each.unpersist()


def cache(spark: SparkSession) -> None:
    spark.catalog.clearCache()


LOSSES = {each.__name__: each for each in (blocks, rdds, cache)}

ADMISSIONS, PERSISTED_BY = ("queued", "optimistic"), ("sink", "user")

SHORT = {
    ("delta-upsert", "partition", "blocks", "queued", "sink"),
    ("iceberg-upsert", "key", "cache", "optimistic", "sink"),
}
"""In `make test`."""

WIDE = {
    (
        mode,
        change,
        [*LOSSES][number % 3],
        ADMISSIONS[number // 3 % 2],
        PERSISTED_BY[(number + number // 2) % 2],
    )
    for number, (mode, change) in enumerate(product(MODES, CHANGES))
}
"""In `make test-all`: each mode with each change, and each pair of the others. The matrix has all."""


def situations() -> Iterator[Any]:
    for each in product(MODES, CHANGES, LOSSES, ADMISSIONS, PERSISTED_BY):
        mark = pytest.mark.wide if each in WIDE else pytest.mark.matrix
        if each[0] != "hudi" or each[3] == "queued":  # without a scope, Hudi itself persists what it writes
            yield pytest.param(each, id="-".join(each), marks=[mark] * (each not in SHORT))


@pytest.mark.parametrize("situation", list(situations()))
def test_lost_rows_let_the_batch_be_computed_again_with_a_new_scope(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path, situation: tuple[str, ...]
) -> None:
    mode, change, loss, admission, persisted_by = situation
    case = make_case(mode, make_table, tmp_path, spark)
    before, after = CHANGES[change]
    file = tmp_path / "batch.csv"
    gate = MemoryGate(tmp_path)
    events: list[GateEvent] = []
    gate.observer = events.append
    body = gate.foreach_batch(case.sink, writer="w", admission=cast("Any", admission))

    def batch(content: str) -> DataFrame:
        file.write_text(content)
        rows = spark.read.schema(COLUMNS).csv(f"{file}")
        return rows.persist() if persisted_by == "user" else rows

    body(batch(FIRST), 0)
    spark.catalog.clearCache()
    lost_in: list[str] = []
    answer = gate._memory.answer

    def losing(event: Any, offset: int) -> Any:
        known = event.type == "marker-created" or (event.type == "commit-intent" and event.scope)
        if known and not lost_in:
            lost_in.append(event.transaction)
            file.write_text(after)
            LOSSES[loss](spark)
        return answer(event, offset)

    gate._memory.answer = losing  # type: ignore[method-assign]
    body(batch(before), 1)
    spark.catalog.clearCache()

    found = case.flights()
    expected = EXPECTED.get(mode.partition("-")[2], EXPECTED["upsert"])[change]
    assert (sorted({*found}) if mode in PAIMON_KEYED else found) == expected
    (completed,) = [event for event in events if event.what == "completed" and event.batch_id == 1]
    assert (len(lost_in), completed.attempt) == (1, 2)
    days = {line[:3].replace("1,", "month=1/day=") for line in after.split()}
    assert days <= gate.partitions()[1]
