"""Writes small Paimon tables and keeps their metadata: `python -m tests.recorded_paimon.record [flights | vectors]`."""

from __future__ import annotations

import shutil
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
from pypaimon import CatalogFactory, Schema

from tests.recorded_paimon import FOLDER
from tests.spark.java_paimon import java_paimon

SCHEMA = pa.schema([("day", pa.date32()), ("region", pa.string()), ("id", pa.int64())])
MONDAY, TUESDAY = date(2026, 11, 23), date(2026, 11, 24)


def write_flights(warehouse: Path) -> None:
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


def write_vectors(warehouse: Path) -> None:
    """Five snapshots: two appends, and deletes of rows of Monday's first file, of its second one, and again of the first."""
    catalog = CatalogFactory.create({"warehouse": str(warehouse)})
    catalog.create_database("air", ignore_if_exists=True)
    schema = pa.schema([SCHEMA.field("day"), SCHEMA.field("id")])
    made = Schema.from_pyarrow_schema(
        schema, partition_keys=["day"], options={"deletion-vectors.enabled": "true"}
    )
    catalog.create_table("air.vectors", made, ignore_if_exists=False)
    table = catalog.get_table("air.vectors")
    for days in ((MONDAY, TUESDAY), (MONDAY,)):
        builder = table.new_batch_write_builder()
        writer, committer = builder.new_write(), builder.new_commit()
        rows = [{"day": day, "id": number} for day in days for number in range(4)]
        writer.write_arrow(pa.Table.from_pylist(rows, schema))
        committer.commit(writer.prepare_commit())
        writer.close()
        committer.close()
    splits = table.new_read_builder().new_scan().plan().splits()
    monday = (file for split in splits if split.partition.values[0] == MONDAY for file in split.files)
    first, second = (file.file_name for file in sorted(monday, key=lambda file: file.max_sequence_number))
    with java_paimon(warehouse) as java:
        path = str(warehouse / "air.db" / "vectors")
        java.delete_rows(path, {first: [0]})
        java.delete_rows(path, {second: [1, 2]})
        java.delete_rows(path, {first: [3]})


TABLES = {"flights": write_flights, "vectors": write_vectors}


def main() -> None:
    """Replace the recorded files."""
    for name in sys.argv[1:] or TABLES:
        with tempfile.TemporaryDirectory() as folder:
            TABLES[name](Path(folder))
            shutil.rmtree(FOLDER / name, ignore_errors=True)
            for part in ("snapshot", "schema", "manifest"):
                shutil.copytree(Path(folder, "air.db", name, part), FOLDER / name / part)


if __name__ == "__main__":
    main()
