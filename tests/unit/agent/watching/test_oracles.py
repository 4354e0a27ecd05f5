"""What `assess` reads of generated tables is what their formats' libraries say: versions, operations, times, bytes, files."""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import fastavro
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hudi import HudiTableBuilder
from hypothesis import given, settings, strategies as st
from pyiceberg.catalog import load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from lakewarden.agent.watching.past import past
from lakewarden.handlers.assessment import Figure, TableHistory, assess
from tests.tuned import tuned
from tests.unit.agent.watching.written_tables import BEGAN, instant

ORACLES = ("delta", "iceberg", "paimon", "hudi layout 1", "hudi layout 2")
STEPS = ("append", "replace a", "delete b", "compact", "nothing")
HISTORIES = st.lists(st.sampled_from(STEPS), min_size=1, max_size=6)
Said = list[tuple[str, str, int, int]]
"""Of each commit that changes a file: version, operation, milliseconds, bytes that it adds."""


def rows(number: int, *partitions: str) -> pa.Table:
    return pa.table({"p": list(partitions), "v": pa.array([number] * len(partitions), pa.int64())})


def read(table: str, **more: Any) -> TableHistory:
    return anyio.run(lambda: past(table, tuned(**more), days=30))


def same(found: TableHistory, said: Said) -> None:
    ours = [(each.version, each.operation, round(each.ended * 1000), each.size) for each in found.commits]
    assert ours == said
    assert assess(found)["commits"] == Figure(len(said))
    assert list(found.leftovers or ()) == [], "each data file is named by a commit"


def delta(folder: Path, steps: Sequence[str]) -> tuple[TableHistory, Said]:
    table = str(folder / "t")
    write_deltalake(table, rows(0, "a", "b"), partition_by=["p"])
    for number, step in enumerate(steps):
        match step:
            case "append":
                write_deltalake(table, rows(number, "a", "c%/ d"), mode="append")
            case "replace a":
                write_deltalake(table, rows(number, "a"), mode="overwrite", predicate="p = 'a'")
            case "delete b":
                DeltaTable(table).delete("p = 'b'")
            case "compact":
                DeltaTable(table).optimize.compact()
            case _:
                continue
    said: Said = []
    before: set[str] = set()
    for each in sorted(DeltaTable(table).history(), key=lambda each: each["version"]):
        files = pa.table(DeltaTable(table, version=each["version"]).get_add_actions()).to_pylist()
        sizes = {file["path"]: file["size_bytes"] for file in files}
        if sizes.keys() != before:
            added = sum(size for path, size in sizes.items() if path not in before)
            said.append((str(each["version"]), each["operation"], each["timestamp"], added))
        before = {*sizes}
    return read(f"file://{table}"), said


def iceberg(folder: Path, steps: Sequence[str]) -> tuple[TableHistory, Said]:
    uri = f"sqlite:///{folder}/catalog.db"
    catalog = load_catalog("prod", type="sql", uri=uri, warehouse=f"file://{folder}")
    catalog.create_namespace("air")
    schema = IcebergSchema(NestedField(1, "p", StringType()), NestedField(2, "v", LongType()))
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"))
    table = catalog.create_table("air.t", schema, partition_spec=spec)
    table.append(rows(0, "a", "b"))
    for number, step in enumerate(steps):
        match step:
            case "append":
                table.append(rows(number, "a", "c%/ d"))
            case "replace a":
                table.overwrite(rows(number, "a"), "p == 'a'")
            case "delete b":
                table.delete("p == 'b'")
            case _:
                continue
    said: Said = []
    for each in table.snapshots():
        assert each.summary is not None
        fields = each.summary.additional_properties
        size = int(fields.get("added-files-size", 0))
        said.append((str(each.snapshot_id), each.summary.operation.value, each.timestamp_ms, size))
    return read("prod:air.t", catalogs={"prod": {"type": "sql", "uri": uri}}), said


def paimon(folder: Path, steps: Sequence[str]) -> tuple[TableHistory, Said]:
    pypaimon = pytest.importorskip("pypaimon", reason="it needs another pyarrow than Python 3.14 has")
    catalog = pypaimon.CatalogFactory.create({"warehouse": str(folder)})
    catalog.create_database("air", ignore_if_exists=True)
    made = pypaimon.Schema.from_pyarrow_schema(rows(0, "a").schema, partition_keys=["p"])
    catalog.create_table("air.t", made, ignore_if_exists=False)
    table = catalog.get_table("air.t")

    def commit(batch: pa.Table, replaced: dict[str, str] | None = None) -> None:
        builder = table.new_batch_write_builder()
        builder = builder if replaced is None else builder.overwrite(replaced)
        writer, committer = builder.new_write(), builder.new_commit()
        writer.write_arrow(batch)
        committer.commit(writer.prepare_commit())
        writer.close()
        committer.close()

    commit(rows(0, "a", "b"))
    for number, step in enumerate(steps):
        if step == "append":
            commit(rows(number, "a", "c%/ d"))
        elif step == "replace a":
            commit(rows(number, "a"), {"p": "a"})
    said: Said = []
    manager = table.snapshot_manager()
    for number in range(1, manager.get_latest_snapshot().id + 1):
        snapshot = manager.get_snapshot_by_id(number)
        said.append((str(snapshot.id), snapshot.commit_kind, snapshot.time_millis, -1))
    return read(f"file://{folder}/air.db/t"), said


TEXT = ["null", "string"]
STATS: dict[str, Any] = {
    "type": "array",
    "items": {
        "type": "record",
        "name": "HoodieWriteStat",
        "fields": [{"name": name, "type": TEXT} for name in ("fileId", "path", "prevCommit")],
    },
}
COMMIT_METADATA = {
    "type": "record",
    "name": "HoodieCommitMetadata",
    "fields": [
        {"name": "partitionToWriteStats", "type": ["null", {"type": "map", "values": STATS}]},
        {"name": "operationType", "type": TEXT},
    ],
}
HUDI_STEPS = {
    "append": ("commit", "INSERT", "ac"),
    "replace a": ("replacecommit", "INSERT_OVERWRITE", "a"),
    "delete b": ("deltacommit", "DELETE", "b"),
    "compact": ("compaction", "COMPACT", "a"),
    "nothing": ("commit", "", ""),
}
"""Action, operation and partitions of each step. One without an operation stays pending."""


def hudi(folder: Path, steps: Sequence[str], layout: int) -> tuple[TableHistory, Said]:
    """Timelines as Hudi names them, and metadata as it writes it. `Said` has when an instant was requested."""
    version, timeline = {1: (6, folder / ".hoodie"), 2: (8, folder / ".hoodie/timeline")}[layout]
    timeline.mkdir(parents=True)
    properties = {
        "table.name": "t", "table.type": "MERGE_ON_READ", "table.version": version, "timeline.layout.version": layout,
        "table.timeline.timezone": "UTC",
    }  # fmt: skip
    text = "\n".join(f"hoodie.{name}={value}" for name, value in properties.items())
    (folder / ".hoodie/hoodie.properties").write_text(text)

    def put(name: str, at: float, body: bytes = b"") -> None:
        (timeline / name).write_bytes(body)
        os.utime(timeline / name, (at, at))

    for number, step in enumerate(("append", *steps)):
        (action, operation, partitions), at = HUDI_STEPS[step], BEGAN + 60 * number
        began, ended = instant(at), instant(at + 30)
        put(f"{began}.{action}.requested", at)
        if not operation:
            continue
        put(
            f"{began}.inflight" if action == "commit" and layout == 1 else f"{began}.{action}.inflight",
            at + 1,
        )
        stat = {"fileId": "f", "path": f"f_0-1-2_{began}.parquet", "prevCommit": "null"}
        record = {
            "partitionToWriteStats": {f"p={each}": [stat] for each in partitions},
            "operationType": operation,
        }
        body = io.BytesIO()
        if layout == 2:
            fastavro.writer(body, COMMIT_METADATA, [record])
        else:
            body.write(json.dumps(record).encode())
        completed = action.replace("compaction", "commit")
        put(
            f"{began}_{ended}.{completed}" if layout == 2 else f"{began}.{completed}",
            at + 30,
            body.getvalue(),
        )

    theirs = HudiTableBuilder.from_base_uri(str(folder)).build().get_timeline()
    groups = (
        theirs.get_completed_commits,
        theirs.get_completed_deltacommits,
        theirs.get_completed_replacecommits,
    )
    found = read(f"file://{folder}")
    ours = {each.version: each for each in found.commits}
    said: Said = []
    for each in sorted((one for group in groups for one in group()), key=lambda one: str(one.timestamp)):
        metadata = json.loads(theirs.get_instant_metadata_in_json(each))
        assert ours[each.timestamp].partitions == {*metadata["partitionToWriteStats"]}
        said.append((each.timestamp, metadata["operationType"], each.epoch_mills, 0))
    assert {each.seconds for each in found.commits} <= {30, 29}, "a compaction's from its execution on"
    requested = [replace(each, ended=each.ended - 30) for each in found.commits]
    return replace(found, commits=requested), said


Make = Callable[[Path, Sequence[str]], tuple[TableHistory, Said]]


@pytest.mark.filterwarnings("ignore:Delete operation did not match")
@pytest.mark.parametrize("examples", [3, pytest.param(60, marks=pytest.mark.wide)])
@pytest.mark.parametrize(
    "make", [delta, iceberg, paimon, partial(hudi, layout=1), partial(hudi, layout=2)], ids=ORACLES
)
def test_a_history_is_that_which_the_formats_own_library_reads(make: Make, examples: int) -> None:
    @settings(max_examples=examples)
    @given(HISTORIES)
    def run(steps: list[str]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            found, said = make(Path(folder), steps)
            sizes = {each.version: each.size for each in found.commits}
            same(found, [(*each[:3], sizes.get(each[0], -1) if each[3] < 0 else each[3]) for each in said])

    run()
