"""A sink for a table format of your own, with each batch exactly once: Parquet files, and a manifest per commit.

    sink = ParquetSink("/lake/clicks")
    clicks.writeStream.foreachBatch(gate.foreach_batch(sink, writer="web")).start()

A commit is one file, `manifests/00000007.json`. It names the folder with the batch's data, the writer and the batch id. So
one atomic step publishes the data and records the batch, and `committed` reads the record back.

The publish is conditional: the manifest is linked into place, which fails if another commit has that number. A writer whose
lease expired while it was suspended can't overwrite a commit. On an object store, use a conditional PUT (`If-None-Match: *`).
Each try looks for the batch in the commits before it: a request of a process that has died may be carried out late.
"""
# ruff: noqa: INP001 - a file of its own, to be copied

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakewarden.spark_jobs import BaseChanged, GateError, Grant, Sink, Transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakewarden.events import ConflictRule


class ParquetSink(Sink):
    """Appends batches to a table in a local folder."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder).absolute()
        self._manifests = self._folder / "manifests"
        self._manifests.mkdir(parents=True, exist_ok=True)

    @property
    def table(self) -> str:
        """URI of the table."""
        return f"file://{self._folder}"

    @property
    def conflict_rule(self) -> ConflictRule:
        """Batches only add files, so two of them never conflict. That is why there is no scope to wait for, either."""
        return "deleted-file"

    def __call__(self, batch: DataFrame, txn: Transaction) -> None:
        """Stage the batch, then publish it under the grant."""
        data = self._folder / "data" / txn.id
        txn.on_discard(lambda: shutil.rmtree(data, ignore_errors=True))
        txn.touch("", txn.id, "create")  # before the files are written
        batch.write.parquet(str(data))
        with txn.commit() as grant:
            grant.version = self._publish(data, txn, grant)

    def committed(self, writer: str, batch_id: int) -> str | None:
        """Return the version in which `writer` committed the batch, or None. The gate calls it before it writes a batch."""
        for version, entry in self._commits():
            if (entry["writer"], entry["batch_id"]) == (writer, batch_id):
                return str(version)
        return None

    def read(self, spark: SparkSession) -> DataFrame:
        """Return all committed rows."""
        return spark.read.parquet(*(str(self._folder / entry["data"]) for _, entry in self._commits()))

    def _commits(self) -> list[tuple[int, dict[str, Any]]]:
        """Return all commits, the newest first. A real table format would summarise old ones in a checkpoint file."""
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
                commits = self._commits()
                version = 1 + max((number for number, _ in commits), default=0)
                batches = [(other["writer"], other["batch_id"]) for _, other in commits]
                if txn.batch_id is not None and (txn.writer, txn.batch_id) in batches:
                    raise BaseChanged("a late request of an earlier process has committed this batch")
                try:
                    grant.check()  # right before the last step
                except GateError:
                    grant.not_published()
                    raise
                try:
                    os.link(prepared, self._manifests / f"{version:08d}.json")
                except FileExistsError:
                    continue  # a writer that bypasses the gate took this number
                return str(version)
        finally:
            prepared.unlink()
