"""A sink of your own with each batch exactly once: Parquet files, and a manifest for each commit.

    table = ParquetTable("/lake/clicks")
    clicks.writeStream.foreachBatch(gate.foreach_batch(table, table=table.uri, writer="web")).start()

A commit is one file, `manifests/00000007.json`: it names the folder of the batch's data, and the writer and batch id that
it came from. So "who wrote batch 3" and "what is in the table" are one fact, written in one atomic step; `committed`
reads it back. The file is linked into place, which fails where somebody has that number: the publish is conditional,
and a writer that slept through its lease can't overwrite anybody. An object store does the same by a PUT if absent.
"""
# ruff: noqa: INP001 - a file of its own, to be copied

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakewarden.spark_jobs import GateError, Grant, Transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class ParquetTable:
    """A table in a local folder that batches are appended to."""

    conflict_rule = "deleted-file"  # batches only add files, so no two of them conflict

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder).absolute()
        self._manifests = self._folder / "manifests"
        self._manifests.mkdir(parents=True, exist_ok=True)

    @property
    def uri(self) -> str:
        """What the gate calls the table."""
        return self._folder.as_uri()

    def __call__(self, batch: DataFrame, txn: Transaction) -> None:
        """Stage, then publish under the grant."""
        data = self._folder / "data" / txn.id
        txn.touch("", txn.id, "create")  # before it is written
        try:
            batch.write.parquet(str(data))
            with txn.commit() as grant:
                grant.version = self._publish(data, txn, grant)
        except BaseException:
            if txn.discardable:  # else it is in the table, or may be
                shutil.rmtree(data, ignore_errors=True)
            raise

    def committed(self, writer: str, batch_id: int) -> str | None:
        """The version in which `writer` committed the batch: what makes it exactly once."""
        for version, entry in self._commits():
            if (entry["writer"], entry["batch_id"]) == (writer, batch_id):
                return str(version)
        return None

    def read(self, spark: SparkSession) -> DataFrame:
        """All committed rows."""
        return spark.read.parquet(*(str(self._folder / entry["data"]) for _, entry in self._commits()))

    def _commits(self) -> list[tuple[int, dict[str, Any]]]:
        """Newest first. A table of your own would keep a checkpoint of old ones."""
        files = sorted(self._manifests.glob("*.json"), reverse=True)
        return [(int(file.stem), json.loads(file.read_text())) for file in files]

    def _publish(self, data: Path, txn: Transaction, grant: Grant) -> str:
        entry = {
            "writer": txn.writer,
            "batch_id": txn.batch_id,
            "token": grant.token,
            "data": str(data.relative_to(self._folder)),
        }
        prepared = self._manifests / f"{txn.id}.prepared"
        prepared.write_text(json.dumps(entry))
        try:
            while True:
                version = 1 + max((number for number, _ in self._commits()), default=0)
                try:
                    grant.check()  # the last thing before the last step
                except GateError:
                    grant.not_published()
                    raise
                try:
                    os.link(prepared, self._manifests / f"{version:08d}.json")
                except FileExistsError:
                    continue  # a writer without the agent has this number
                return str(version)
        finally:
            prepared.unlink()
