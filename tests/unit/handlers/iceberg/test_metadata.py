"""The metadata of Iceberg tables, and the footprint of their snapshots."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from lakewarden.events import Operation
from lakewarden.handlers.iceberg.metadata import (
    IcebergSnapshot,
    SpecField,
    TableMetadata,
    foreign_snapshot,
    has_other_catalog,
    manifests_of,
    metadata_of,
    past_snapshot,
    read_metadata,
    relative_path,
    version_path,
    versions,
)
from lakewarden.handlers.observations import EVERYTHING, UnreadableCommit
from tests.recorded_iceberg import recorded
from tests.unit.handlers.avro_files import avro_file

MONDAY = "at_day=2026-11-23/later_hour=2026-11-23-05/region=a+b%2Fc/id_bucket={}"
NULL = "at_day=1969-12-31/later_hour=null/region=null/id_bucket={}"

Footprint = dict[tuple[str, Operation], int]


def version(number: int) -> TableMetadata:
    return read_metadata(recorded(version_path(number)))


def footprint(number: int, **changes: Any) -> Footprint | None:
    """The footprint of the snapshot that a version has added, with other facts of the table."""
    metadata = replace(version(number), **changes)
    ((snapshot,), _) = metadata.since(version(number - 1).newest)
    listed = manifests_of(recorded(relative_path(snapshot.manifests, metadata.location)), snapshot.id)
    bodies = [(each.spec, recorded(relative_path(each.path, metadata.location))) for each in listed]
    found = foreign_snapshot(snapshot, bodies, metadata)
    if found is None:
        return None
    assert found.version == str(snapshot.id)
    return dict(Counter((each.partition.rpartition("=")[0], each.operation) for each in found.markers))


SNAPSHOTS = tuple(IcebergSnapshot(number, "append", "m", is_gates=False) for number in (3, 2, 1))
BUCKETS = {name: path.rpartition("=")[0] for name, path in (("monday", MONDAY), ("null", NULL))}


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (2, {("monday", "delete"): 1, ("null", "delete"): 1}),
        (4, {("monday", "delete"): 1, ("monday", "create"): 1}),
        (5, {("null", "delete"): 1}),
        (7, None),
    ],
    ids=["append", "copy-on-write MERGE", "DELETE of a whole file", "no file"],
)
def test_snapshots_that_iceberg_wrote(number: int, expected: dict[tuple[str, Operation], int] | None) -> None:
    named = None
    if expected is not None:
        named = {(BUCKETS[name], operation): count for (name, operation), count in expected.items()}

    assert footprint(number) == named


def test_a_compaction_refutes_by_its_removed_files_only() -> None:
    found = footprint(8)

    assert found is not None
    assert {operation for _, operation in found} == {"create", "delete"}


def test_an_append_refutes_nothing_under_snapshot_isolation() -> None:
    found = footprint(2, appends_invalidate=False)

    assert found is not None
    assert {operation for _, operation in found} == {"create"}


def test_a_delete_file_refutes_rewrites_of_its_partition_and_an_existing_file_none() -> None:
    """An equality delete of a streaming writer names no data file."""
    entries = [
        {
            "status": status,
            "snapshot_id": None,
            "data_file": {
                "content": content,
                "file_path": f"s3://b/t/data/{name}",
                "partition": {"m": month},
            },
        }
        for status, content, name, month in ((1, 2, "deletes", 10), (1, 0, "rows", 10), (0, 0, "old", -1))
    ]
    metadata = TableMetadata(
        (), {0: (SpecField("m", "month"),)}, appends_invalidate=True, location="s3://b/t"
    )

    found = foreign_snapshot(SNAPSHOTS[0], [(0, avro_file(*entries))], metadata)

    assert found is not None
    assert [(each.partition, each.file_group, each.operation) for each in found.markers] == [
        ("m=1970-11", "deletes", "delete"),
        ("m=1970-11", "rows", "create"),
    ]


def test_a_version_without_a_new_snapshot_reports_nothing() -> None:
    """Version 6 sets a property of the table. Version 7 has the gate's property in its summary."""
    assert version(6).since(version(5).newest) == ([], True)
    ((snapshot,), _) = version(7).since(version(6).newest)
    assert snapshot.is_gates


def test_the_isolation_level_is_the_tables_property() -> None:
    assert version(2).appends_invalidate


def branch(*chain: tuple[int, int | None], listed: tuple[int, ...] = ()) -> TableMetadata:
    """Metadata whose main branch has these snapshots with their parents, and that lists others, too."""
    snapshots = tuple(
        IcebergSnapshot(each, "append", "m", is_gates=False, age=(each, 0), parent=parent)
        for each, parent in chain
    )
    known = frozenset((*(each for each, _ in chain), *listed))
    return TableMetadata(snapshots, {}, appends_invalidate=True, location="/t", listed=known)


WHOLE = ((3, 2), (2, 1), (1, None))


@pytest.mark.parametrize(
    ("metadata", "known", "expected", "is_all"),
    [
        pytest.param(branch(*WHOLE), 3, [], True, id="nothing new"),
        pytest.param(branch(*WHOLE), 1, [2, 3], True, id="two new ones"),
        pytest.param(branch(*WHOLE), None, [1, 2, 3], True, id="a table that was empty"),
        pytest.param(branch(), None, [], True, id="an empty table"),
        pytest.param(branch((1, None), listed=(2,)), 2, [], True, id="set back"),
        pytest.param(branch((1, None)), 2, [], True, id="set back, and the known one has expired"),
        pytest.param(branch((3, 1), (1, None), listed=(2,)), 2, [3], True, id="set back, then written to"),
        pytest.param(branch((4, None), listed=(3,)), 3, [4], True, id="replaced by CREATE OR REPLACE"),
        pytest.param(branch((4, 3)), 3, [4], True, id="refs only, one new one"),
        pytest.param(branch((4, 3)), 2, [4], False, id="refs only, two new ones"),
        pytest.param(branch((4, 3)), None, [4], False, id="refs only, a table that was empty"),
        pytest.param(
            branch((4, 3), listed=(1,)), 1, [4], False, id="an ancestor has expired, the known one not"
        ),
        pytest.param(branch((5, None)), 3, [5], False, id="Nessie: the newest one only, without its parent"),
    ],
)
def test_snapshots_since_a_known_one(
    *, metadata: TableMetadata, known: int | None, expected: list[int], is_all: bool
) -> None:
    before = None if known is None else IcebergSnapshot(known, "append", "m", is_gates=False, age=(known, 0))

    found, whole = metadata.since(before)

    assert ([each.id for each in found], whole) == (expected, is_all)


def test_format_1_has_no_sequence_numbers_so_a_childs_clock_may_be_behind() -> None:
    """Iceberg permits a minute."""
    chain = tuple(replace(each, age=(0, 1000 - each.id), parent=each.id - 1 or None) for each in SNAPSHOTS)
    metadata = TableMetadata(chain, {}, appends_invalidate=True, location="/t")

    found, whole = metadata.since(chain[-1])

    assert ([each.id for each in found], whole) == ([2, 3], True)


@pytest.mark.parametrize(
    ("path", "location", "relative"),
    [
        ("s3a://b/t/metadata/x.avro", "s3://b/t", "metadata/x.avro"),
        ("file:/lake/t/metadata/x.avro", "/lake/t", "metadata/x.avro"),
        ("file:///lake/t/metadata/x.avro", "file:/lake/t/", "metadata/x.avro"),
    ],
)
def test_files_are_found_below_the_table(path: str, location: str, relative: str) -> None:
    assert relative_path(path, location) == relative


def test_a_file_elsewhere_is_an_error() -> None:
    with pytest.raises(UnreadableCommit, match="outside of its location"):
        relative_path("s3://other/t/x.avro", "s3://b/t")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "can't be read"),
        (b"[]", "can't be read"),
        (b'{"format-version": 5}', "format version 5 of Iceberg is unknown"),
        (b'{"format-version": 2}', "can't be read"),
        pytest.param(gzip.compress(b'{"format-version": 4}'), "format version 4", id="packed"),
        pytest.param(gzip.compress(b"{}")[:-4], "can't be read", id="packed-and-cut"),
    ],
)
def test_metadata_that_can_not_be_read_is_an_error(body: bytes, why: str) -> None:
    with pytest.raises(UnreadableCommit, match=why):
        read_metadata(body)


@pytest.mark.parametrize(
    ("path", "location", "expected"),
    [
        ("t/metadata/a", "./t", "metadata/a"),
        ("./t/metadata/a", "t/", "metadata/a"),
        ("s3a://b/t/metadata/a?b#c", "s3://b/t", "metadata/a?b#c"),
        ("file:/t/metadata/a", "file:///t", "metadata/a"),
        ("/t/metadata/a", "file://localhost/t", "metadata/a"),
        ("s3://b/t/../u/a", "s3://b/t", None),
        ("s3://b/tt/a", "s3://b/t", None),
        ("t/metadata/a", "s3://b/t", None),
    ],
)
def test_a_path_is_relative_to_the_location_however_both_are_spelled(
    path: str, location: str, expected: str | None
) -> None:
    if expected is None:
        with pytest.raises(UnreadableCommit, match="outside of its location"):
            relative_path(path, location)
    else:
        assert relative_path(path, location) == expected


def entry(**file: Any) -> bytes:
    record = {
        "status": 1,
        "snapshot_id": 3,
        "data_file": {"file_path": "s3://b/t/f", "partition": {"p": 7}} | file,
    }
    return avro_file(record)


DROPPED = replace(version(2), specs={0: (SpecField("p", "identity", None),)}, location="s3://b/t")


def test_a_spec_whose_column_was_dropped_costs_the_partition_unless_its_value_is_a_text() -> None:
    odd = foreign_snapshot(SNAPSHOTS[0], [(0, entry())], DROPPED)
    text = foreign_snapshot(SNAPSHOTS[0], [(0, entry(partition={"p": "x"}))], DROPPED)

    assert odd is not None
    assert odd.markers == (EVERYTHING,)
    assert "was dropped" in odd.unread[0].why
    assert text is not None
    assert [each.partition for each in text.markers] == ["p=x"]


def test_a_manifest_that_is_not_to_be_had_costs_no_other() -> None:
    metadata = replace(DROPPED, specs={0: (SpecField("p", "identity", "int"),)})
    found = foreign_snapshot(
        SNAPSHOTS[0], [(0, UnreadableCommit("gone")), (0, b"cut"), (0, entry())], metadata
    )

    assert found is not None
    assert [each.partition for each in found.markers] == ["*", "p=7"]
    assert [each.what for each in found.unread] == ["2 of 3 manifests of commit 3"]


def test_a_deletion_vector_has_its_own_size_and_not_that_of_the_file_that_it_shares() -> None:
    metadata = replace(DROPPED, specs={0: (SpecField("p", "identity", "int"),)})
    vectors = [entry(content=1, file_size_in_bytes=1_000, content_size_in_bytes=size) for size in (30, 40)]

    commit, _ = past_snapshot(SNAPSHOTS[0], [(0, each) for each in vectors], metadata)

    assert commit.size == 70


def test_an_odd_spec_or_snapshot_costs_itself() -> None:
    fields = json.loads(recorded("metadata/v8.metadata.json"))
    fields["partition-specs"].append({"spec-id": 9, "fields": 5})
    fields["snapshots"].insert(0, {"snapshot-id": "x"})

    assert metadata_of(fields) == version(8)


def test_only_a_hadoop_catalogs_names_count() -> None:
    """`00002-….metadata.json` may have lost the swap in its catalog."""
    other = "metadata/00002-80a083e8-7026-4e79-81be-64bd76c43a11.metadata.json"

    assert versions([other, "metadata/snap-1.avro"]) == []
    assert has_other_catalog([other])
    named = [
        f"metadata/v{each}"
        for each in ("9.metadata.json", "10.gz.metadata.json", "011.metadata.json", "8.metadata.json.gz")
    ]
    assert [version_path(*each) for each in versions(named)] == [named[1], named[0], named[3]]
    assert not has_other_catalog(["metadata/v9.metadata.json"])
