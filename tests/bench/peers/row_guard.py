"""What it costs that all jobs of a batch see the same rows (`computed_once`), beside rows that Spark keeps and may compute again.

One driver writes each batch twice, into two tables that are alike: with the guard and without it, in turns. The gate grants at
once, without Kafka, so a batch's time is Spark's and the sink's. A figure is the median of the pairs' ratios, with their range.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from pyspark.sql import DataFrame, SparkSession

from lakewarden.spark_jobs.jobs.spark_session import spark_session
from lakewarden.spark_jobs.sinks import spark_sink
from lakewarden.spark_jobs.streaming import batches
from tests.bench.child import Child
from tests.bench.figures import cpu_seconds, over_runs, spread
from tests.bench.peers.tables import settings_of, table_of
from tests.bench.peers.workload import FIRST_ROWS, Workload
from tests.bench.run import Figures, Run
from tests.spark.rows.memory_gate import MemoryGate

FORMATS = ("delta", "iceberg")
TARGET = 1.02
WARM_UP = 2
"""Pairs that aren't counted: the JVM compiles."""


def measure(run: Run) -> Figures:
    """Guarded by unguarded, of each format, for batches that the user has persisted and for those that the gate persists."""
    sizes = run.size.guard_pairs, run.size.guard_rows
    command = [sys.executable, "-m", "tests.bench.peers.row_guard", str(run.folder), *map(str, sizes)]
    ratios: Figures = Child(command, run.folder / "driver.log").figures()
    return {"pairs": sizes[0], "rows": sizes[1], "ratios": ratios}


def rows(figures: Figures) -> Iterator[tuple[str, str, str]]:
    """Title, figure and target."""
    yield f"a batch of {figures['rows']:,} rows, guarded by unguarded ({figures['pairs']} pairs)", "", ""
    for name, ratios in figures["ratios"].items():
        wall, cpu = (spread(ratios[measured], ".2f") for measured in ("wall", "cpu"))
        yield f"  {name}", f"wall {wall}, CPU {cpu}", f"≤ {TARGET}"


@contextmanager
def _persisted(batch: DataFrame, _facts: str, _txn: object = None) -> Iterator[DataFrame]:
    own = not batch.storageLevel.useMemory
    yield batch.persist() if own else batch
    if own:
        batch.unpersist()


@contextmanager
def _unguarded() -> Iterator[None]:
    with (
        patch.multiple(batches, computed_once=_persisted, require_computed_once=lambda *_: None),
        patch.object(spark_sink, "is_computed_once", lambda batch: batch.storageLevel.useMemory),
    ):
        yield


def _ratios(
    spark: SparkSession, folder: Path, size: Workload, table_format: str, *, by_user: bool
) -> Figures:
    source = folder / "source"
    gate = MemoryGate(folder)
    name = f"{table_format}_{by_user}".lower()
    tables = [table_of(table_format, spark, folder, f"{name}_{way}", None) for way in range(2)]
    for table in tables:
        table.create(spark.read.parquet(str(source / FIRST_ROWS)))
    guarded, unguarded = (gate.foreach_batch(each.sink(), writer="w", admission="queued") for each in tables)

    def seconds(write: Callable[[DataFrame, int], None], number: int) -> tuple[float, float]:
        batch = spark.read.parquet(str(source / "0" / f"{number:04}.parquet")).repartition(2)
        if by_user:
            batch.persist().count()
        began, cpu = time.monotonic(), cpu_seconds()
        write(batch, number)
        spent = time.monotonic() - began, cpu_seconds() - cpu
        batch.unpersist()
        return spent

    pairs = []
    for number in range(size.batches):
        spent: dict[bool, tuple[float, float]] = {}
        for guard in (number % 2 == 0, number % 2 == 1):
            if guard:
                spent[guard] = seconds(guarded, number)
                continue
            with _unguarded():
                spent[guard] = seconds(unguarded, number)
        wall, cpu = (mine / other for mine, other in zip(spent[True], spent[False], strict=True))
        pairs.append({"wall": round(wall, 3), "cpu": round(cpu, 3)})
    counts = [table.read().count() for table in tables]
    assert counts[0] == counts[1] == sum(size.expected().values()), counts
    return over_runs(pairs[WARM_UP:])


def main() -> None:
    """Write the batches of both formats, and print the ratios."""
    folder, pairs, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    size = Workload(
        1, overlap=False, batches=WARM_UP + pairs, rows_per_day=count, rows_per_batch=count, days_per_batch=5
    )
    size.write_files(folder / "source")
    spark = spark_session(
        "lakewarden-row-guard", master="local[2]", memory="2g", **settings_of("delta", None)
    )
    ratios = {
        f"{table_format}{', persisted by the user' if by_user else ''}": _ratios(
            spark, folder, size, table_format, by_user=by_user
        )
        for by_user in (False, True)
        for table_format in FORMATS
    }
    spark.stop()
    print(json.dumps(ratios), flush=True)


if __name__ == "__main__":
    main()
