"""What an upsert of `PaimonSink` into an append table costs, if its keys are close together and if they are scattered.

The table has one partition of many files, on the local disk. The batch has one percent of the keys. Each is measured twice:

- matched files: only files that have keys of the batch are rewritten (docs/decisions/0044);
- whole partitions: all files of the batch's partitions are rewritten, as before.

The CPU time is that of the driver, its JVM and its Python workers, so other work on the machine changes it little. Each run has a
fresh copy of the table. The first run of each isn't counted: it starts Python workers, and the JVM compiles.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pypaimon import CatalogFactory, Schema
from pyspark.sql import SparkSession

from lakewarden.spark_jobs import CommitGate, PaimonSink
from lakewarden.spark_jobs.jobs.spark_session import spark_session
from lakewarden.spark_jobs.sinks.paimon import matched_files
from lakewarden.spark_jobs.sinks.paimon.table import address
from tests.bench.figures import cpu_seconds, medians
from tests.bench.run import Figures, Run, Size, progress
from tests.spark.fake_agent import fake_agent, grant_everything

VALUES: Final = 6

SCHEMA: Final = pa.schema(
    [("part", pa.string()), ("key", pa.int64())]
    + [(f"value{number}", pa.float64()) for number in range(VALUES)]
    + [("text", pa.string())]
)

WAYS: Final = {"matched files": matched_files.SMALL_BYTES, "whole partitions": 1 << 62}
"""The size below which a file is rewritten without a look. Every file is below the second one."""

BATCH: Final = 1_000_000
"""The seed of its values, which no file has."""

PERCENT: Final = 1
"""Of the keys of the table are in the batch."""


def measure(run: Run) -> Figures:
    """The figures of each case and way: the median of its runs."""
    size, folder = run.size, run.folder
    template = _table(folder, size)
    spark = spark_session("lakewarden-bench", master="local[2,4]")
    cases = _cases(size)
    found: dict[tuple[str, str], list[dict[str, float]]] = {(case, way): [] for case in cases for way in WAYS}
    try:
        with (
            fake_agent(run.servers, run.prefix, grant_everything),
            CommitGate(run.servers, topic_prefix=run.prefix) as gate,
        ):
            for number in range(size.upsert_runs + 1):
                for (case, way), figures in found.items():
                    with patch.object(matched_files, "SMALL_BYTES", WAYS[way]):
                        figures.append(_upsert(spark, gate, template, folder / "run", cases[case]))
                    text = ", ".join(f"{name} {value:.2f}" for name, value in figures[-1].items())
                    progress(f"run {number}, {case} keys, {way}: {text}")
    finally:
        spark.stop()
    return {
        "files": size.upsert_files,
        "rows": size.upsert_rows,
        "cases": {case: {way: medians(found[case, way][1:], 2) for way in WAYS} for case in cases},
    }


def _cases(size: Size) -> dict[str, list[int]]:
    """The batch's keys."""
    keys = size.upsert_files * size.upsert_rows
    count, first = max(1, keys * PERCENT // 100), keys // 2
    scattered = np.random.default_rng(1).choice(keys, count, replace=False)
    return {"clustered": list(range(first, first + count)), "scattered": sorted(map(int, scattered))}


def _table(folder: Path, size: Size) -> Path:
    catalog = CatalogFactory.create({"warehouse": str(folder)})
    catalog.create_database("bench", ignore_if_exists=True)
    catalog.create_table("bench.t", Schema.from_pyarrow_schema(SCHEMA, partition_keys=["part"]), False)  # noqa: FBT003
    table = catalog.get_table("bench.t")
    for number in range(size.upsert_files):
        builder = table.new_batch_write_builder()
        write, committer = builder.new_write(), builder.new_commit()
        write.write_arrow(
            _rows(range(number * size.upsert_rows, (number + 1) * size.upsert_rows), seed=number)
        )
        committer.commit(write.prepare_commit())
        write.close()
        committer.close()
    return folder / "bench.db" / "t"


def _rows(keys: Iterable[int], *, seed: int) -> pa.Table:
    chosen = list(keys)
    numbers = np.random.default_rng(seed)
    columns: list[Any] = [pa.array(["x"] * len(chosen)), pa.array(chosen, pa.int64())]
    columns += [pa.array(numbers.random(len(chosen))) for _ in range(VALUES)]
    return pa.table([*columns, pa.array([f"{key:032d}" for key in chosen])], schema=SCHEMA)


def _upsert(
    spark: SparkSession, gate: CommitGate, template: Path, place: Path, keys: list[int]
) -> dict[str, float]:
    """Upsert the keys into a copy of the table, which is removed again."""
    shutil.copytree(template, place)
    try:
        before = _files(place)
        pq.write_table(_rows(keys, seed=BATCH), place.with_suffix(".parquet"))
        batch = spark.read.parquet(str(place.with_suffix(".parquet")))
        sink = PaimonSink(str(place), mode="upsert", keys=["key"])
        cpu, began = cpu_seconds(), time.monotonic()
        with gate.transaction(
            table=sink.table, writer="bench", batch_id=0, conflict_rule=sink.conflict_rule
        ) as txn:
            sink(batch, txn)
        seconds, cpu = time.monotonic() - began, cpu_seconds() - cpu
        after = _files(place)
    finally:
        shutil.rmtree(place)
    return {
        "cpu_seconds": cpu,
        "seconds": seconds,
        "files": len(before.keys() - after.keys()),
        "megabytes": sum(size for name, size in after.items() if name not in before) / 1e6,
    }


def _files(place: Path) -> dict[str, int]:
    """Name and size of each file of the newest snapshot."""
    splits = address(str(place)).open().new_read_builder().new_scan().plan().splits()
    return {file.file_name: file.file_size for split in splits for file in split.files}


def rows(report: Figures) -> Iterator[tuple[str, ...]]:
    """The table that `make bench` prints."""
    table = f"an upsert of {PERCENT} % of the keys, {report['files']} files × {report['rows']:,} rows"
    yield (table, "rewritten", "CPU s", "s", "files rewritten", "MB written")
    for case, ways in report["cases"].items():
        for way, found in ways.items():
            figures = (f"{found['cpu_seconds']:.1f}", f"{found['seconds']:.1f}")
            yield (case, way, *figures, f"{found['files']:.0f}", f"{found['megabytes']:.1f}")
