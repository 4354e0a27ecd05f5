"""Writes a small Paimon table and keeps its metadata: `python -m tests.recorded_paimon.record`."""

from __future__ import annotations

import shutil
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
from pypaimon import CatalogFactory, Schema

from tests.recorded_paimon import FOLDER

SCHEMA = pa.schema([("day", pa.date32()), ("region", pa.string()), ("id", pa.int64())])
MONDAY, TUESDAY = date(2026, 11, 23), date(2026, 11, 24)


def write(warehouse: Path) -> None:
    """Five snapshots: two appends, an overwrite of Monday, an append with the gate's property, and another one without."""
    catalog = CatalogFactory.create({"warehouse": str(warehouse)})
    catalog.create_database("air", ignore_if_exists=True)
    keys = ["day", "region"]
    catalog.create_table(
        "air.flights", Schema.from_pyarrow_schema(SCHEMA, partition_keys=keys), ignore_if_exists=False
    )
    table = catalog.get_table("air.flights")

    def commit(
        rows: list[tuple[Any, ...]], *, replaced: dict[str, str] | None = None, **properties: dict[str, str]
    ) -> None:
        builder = table.new_batch_write_builder()
        if replaced is not None:
            builder = builder.overwrite(replaced)
        writer, committer = builder.new_write(), builder.new_commit()
        writer.write_arrow(
            pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)
        )
        messages = writer.prepare_commit()
        if properties:
            stream = table.new_stream_write_builder()
            stream.commit_user = "gate"
            stream.new_commit().commit(messages, 1, **properties)
        else:
            committer.commit(messages)
        writer.close()
        committer.close()

    commit([(MONDAY, "a b/c", 1), (TUESDAY, None, 2)])
    commit([(MONDAY, "a b/c", 3), (MONDAY, "a region with a long name", 4)])
    commit([(MONDAY, "a b/c", 5)], replaced={"day": "2026-11-23", "region": "a b/c"})
    commit([(TUESDAY, None, 6)], snapshot_properties={"lakewarden.transaction": "t"})
    commit([(TUESDAY, None, 7)])


def main() -> None:
    """Replace the recorded files."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        shutil.rmtree(FOLDER, ignore_errors=True)
        for part in ("snapshot", "schema", "manifest"):
            shutil.copytree(Path(folder, "air.db", "flights", part), FOLDER / part)


if __name__ == "__main__":
    main()
