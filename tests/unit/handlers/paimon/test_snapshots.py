"""The footprint of a snapshot of Paimon, and the spelling of its partitions."""

from __future__ import annotations

import json
import struct
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import assume, given, settings, strategies as st
from pypaimon.schema.data_types import DataField, DataTypeParser
from pypaimon.table.row.generic_row import GenericRow, GenericRowSerializer
from pypaimon.utils.file_store_path_factory import FileStorePathFactory

from lakewarden.handlers.observations import UnreadableCommit
from lakewarden.handlers.paimon.partitions import PartitionSpelling
from lakewarden.handlers.paimon.snapshots import (
    TableLayout,
    changed_vectors,
    deletion_vectors,
    foreign_snapshot,
    manifests_of,
    newest_snapshot,
    read_schema,
    read_snapshot,
)
from lakewarden.handlers.partition_spelling import date_of, is_blank_in_java
from tests.recorded_paimon import metadata
from tests.unit.handlers.avro_files import avro_file

NO_KEYS = TableLayout(PartitionSpelling(()), has_primary_key=False)
MONDAY, LONG = "day=20780/region=a b%2Fc", "day=20780/region=a region with a long name"
TUESDAY = "day=20781/region=__DEFAULT_PARTITION__"


WRITTEN_BY_PAIMON: dict[str, Any] = {
    "append": (1, False, {(MONDAY, "delete"): 1, (TUESDAY, "delete"): 1}),
    "append, long text": (2, False, {(MONDAY, "delete"): 1, (LONG, "delete"): 1}),
    "overwrite": (3, False, {(MONDAY, "delete"): 2, (MONDAY, "create"): 1}),
    "append with keys": (1, True, {(MONDAY, "create"): 1, (TUESDAY, "create"): 1}),
    "overwrite with keys": (3, True, {(MONDAY, "delete"): 2, (MONDAY, "create"): 1}),
}


@pytest.mark.parametrize(("number", "keyed", "expected"), WRITTEN_BY_PAIMON.values(), ids=WRITTEN_BY_PAIMON)
def test_snapshots_that_paimon_wrote(number: int, keyed: bool, expected: dict[tuple[str, str], int]) -> None:
    """An added file refutes a rewrite of its partition on an append table: `PaimonSink` would find it in its base."""
    files = metadata()
    layout = TableLayout(read_schema(files["schema/schema-0"]).partitions, keyed)
    lists = manifests_of(files[read_snapshot(files[f"snapshot/snapshot-{number}"]).changes])

    found = foreign_snapshot(number, [files[path] for path in lists], layout)

    assert found is not None
    assert Counter((each.partition, each.operation) for each in found.markers) == expected
    assert found.version == str(number)


def footprint(number: int) -> list[tuple[str, str, str]]:
    """Partition, file and operation of each marker of a snapshot of the recorded table with deletion vectors."""
    files = metadata("vectors")
    layout = read_schema(files["schema/schema-0"])
    before, after = (
        read_snapshot(files[f"snapshot/snapshot-{each}"]).indexes if each else None
        for each in (number - 1, number)
    )
    vectors = changed_vectors(
        *({} if each is None else deletion_vectors(files[each], layout) for each in (before, after))
    )
    lists = manifests_of(files[read_snapshot(files[f"snapshot/snapshot-{number}"]).changes])
    found = foreign_snapshot(number, [files[path] for path in lists], layout, vectors)
    assert found is not None
    return [(each.partition, each.file_group, each.operation) for each in found.markers]


def test_deleted_rows_touch_their_files_only() -> None:
    """Java Paimon deletes rows of Monday's first file, then of its second one, then of the first one again."""
    monday = "day=20780"
    (first,) = (each for each in footprint(1) if each[0] == monday)
    (second,) = footprint(2)

    assert [footprint(number) for number in (3, 4, 5)] == [[first], [second], [first]]
    assert first[2] == second[2] == "delete"


def test_a_vector_without_a_number_of_rows_is_compared_by_its_place() -> None:
    """Older releases of Paimon didn't write the number."""
    vector = {"f0": "data-1.parquet", "f1": 1, "f2": 30}
    entry = {"_PARTITION": row(), "_INDEX_TYPE": "DELETION_VECTORS", "_FILE_NAME": "index-1"}
    hashes = {"_PARTITION": row(), "_INDEX_TYPE": "HASH", "_FILE_NAME": "index-2"}
    body = avro_file(
        entry | {"_DELETIONS_VECTORS_RANGES": [vector]}, hashes | {"_DELETIONS_VECTORS_RANGES": None}
    )

    found = deletion_vectors(body, NO_KEYS)

    place = ("", "data-1.parquet")
    assert found == {place: ("index-1", 1)}
    assert changed_vectors(found, {place: ("index-1", 1)}) == set()
    assert changed_vectors(found, {place: ("index-3", 1)}) == {place}


def test_the_gates_snapshots_have_its_property() -> None:
    files = metadata()
    gates = [number for number in range(1, 6) if read_snapshot(files[f"snapshot/snapshot-{number}"]).is_gates]

    assert gates == [4]
    assert newest_snapshot(files) == 5


def row(*fields: bytes, nulls: int = 0, tail: bytes = b"") -> bytes:
    return struct.pack(">i", len(fields)) + bytes([0, nulls]) + bytes(6) + b"".join(fields) + tail


def inline(text: str) -> bytes:
    data = text.encode()
    return data.ljust(7, b"\0") + bytes([0x80 | len(data)])


@pytest.mark.parametrize(
    ("kind", "partition", "spelled"),
    [
        ("INT", row(struct.pack("<q", 7)), "7"),
        ("BIGINT", row(struct.pack("<q", -(2**40))), "-1099511627776"),
        ("TINYINT", row(bytes([255]) + bytes(7)), "-1"),
        ("BOOLEAN", row(bytes([1]) + bytes(7)), "true"),
        ("DATE", row(struct.pack("<q", 20_780)), "20780"),
        ("STRING", row(inline("a/b")), "a%2Fb"),
        ("VARCHAR(10)", row(inline("  ")), "__DEFAULT_PARTITION__"),
        ("STRING", row(struct.pack("<Q", 16 << 32 | 11), tail=b"twelve char\0"), "twelve char"),
        ("STRING", row(bytes(8), nulls=1), "__DEFAULT_PARTITION__"),
        ("DECIMAL(10, 2)", row(struct.pack("<q", -150)), "-1.50"),
        (
            "DECIMAL(20, 2)",
            row(struct.pack("<Q", 16 << 32 | 2), tail=(1234).to_bytes(2, "big") + bytes(6)),
            "12.34",
        ),
    ],
)
def test_partitions_are_spelled_as_by_the_sink(kind: str, partition: bytes, spelled: str) -> None:
    assert PartitionSpelling.of([("p", kind)], {}).path_of_row(partition) == f"p={spelled}"


TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(" /%={}\t\0"), max_size=12)
MOMENTS = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31))  # noqa: DTZ001 - without a zone
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "TINYINT": st.integers(-128, 127),
    "INT NOT NULL": st.integers(-(2**31), 2**31 - 1),
    "BIGINT": st.integers(-(2**63), 2**63 - 1),
    "BOOLEAN": st.booleans(),
    "DATE": st.dates(),
    "STRING": TEXTS,
    "VARCHAR(40)": TEXTS,
    "DECIMAL(10, 2)": st.decimals(-9_000, 9_000, places=2),
    "DECIMAL(30, 9)": st.decimals(-(10**20), 10**20, places=9),
    "TIMESTAMP(0)": MOMENTS.map(lambda each: each.replace(microsecond=0)),
    "TIMESTAMP(3)": MOMENTS.map(lambda each: each.replace(microsecond=each.microsecond // 1000 * 1000)),
    "TIMESTAMP(6)": MOMENTS,
    "TIMESTAMP(9)": MOMENTS,
    "TIMESTAMP(6) WITH LOCAL TIME ZONE": MOMENTS.map(lambda each: each.replace(tzinfo=UTC)),
}


@given(data=st.data())
@settings(max_examples=400, deadline=None)
def test_partitions_are_spelled_as_the_folder_in_which_pypaimon_writes(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3))
    values = [data.draw(st.none() | VALUES[kind]) for kind in kinds]
    assume(all(is_blank_in_java(each) or not each.isspace() for each in values if isinstance(each, str)))
    legacy = data.draw(st.booleans()) or any("LOCAL" in kind for kind in kinds)
    names = [f"{number}:a b" for number in range(len(kinds))]
    fields = [
        DataField(0, name, DataTypeParser.parse_data_type(kind))
        for name, kind in zip(names, kinds, strict=True)
    ]
    types = [field.type for field in fields]
    factory = FileStorePathFactory(
        "/t",
        names,
        "NULLS",
        "parquet",
        "data-",
        "changelog-",
        legacy_partition_name=legacy,
        file_suffix_include_compression=False,
        file_compression="zstd",
        partition_types=types,
    )
    options = {"partition.default-name": "NULLS", "partition.legacy-name": str(legacy).lower()}
    spelling = PartitionSpelling.of(zip(names, kinds, strict=True), options)

    expected = factory.relative_bucket_path(tuple(values), 0, canonical_partition=True).removesuffix(
        "/bucket-0"
    )

    assert spelling.refusal is None
    assert spelling.path_of_row(GenericRowSerializer.to_bytes(GenericRow(values, fields))) == expected


@pytest.mark.parametrize("kind", ["FLOAT", "DOUBLE", "BYTES", "BINARY(3)", "TIME(3)"])
def test_types_without_a_single_spelling_are_refused(kind: str) -> None:
    assert f"partition column 'p' is of type {kind}, and " in (
        PartitionSpelling.of([("p", kind)], {}).refusal or ""
    )


def test_dates_are_those_of_the_calendar() -> None:
    for days in (-800_000 // 2, -1, 0, 59, 60, 365, 11_016, 20_780, 2_000_000):
        expected = date(1970, 1, 1) + timedelta(days=days)
        assert date_of(days) == expected.isoformat()


@pytest.mark.parametrize(
    ("kind", "partition", "why"),
    [
        ("DOUBLE", row(bytes(8)), "depends on the release of Java"),
        ("INT", b"\0\0\0\1", "ends too early"),
        ("STRING", row(b"\xff" + bytes(6) + b"\x81"), "can't decode"),
    ],
)
def test_a_partition_that_can_not_be_read_is_an_error(kind: str, partition: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        PartitionSpelling.of([("p", kind)], {}).path_of_row(partition)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"version": 4}', "version 4 of Paimon's snapshots is unknown"),
        (b"{}", "version 1 of Paimon's snapshots is unknown"),
        (json.dumps({"version": 3, "schemaId": 0}).encode(), "lacks"),
    ],
)
def test_a_snapshot_that_can_not_be_read_is_an_error(body: bytes, why: str) -> None:
    with pytest.raises(UnreadableCommit, match=why):
        read_snapshot(body)


def test_a_damaged_manifest_or_schema_is_an_error() -> None:
    with pytest.raises(UnreadableCommit, match="the Avro file can't be read: it begins otherwise"):
        manifests_of(b"not avro")
    with pytest.raises(UnreadableCommit, match="the list of index files can't be read: it lacks"):
        deletion_vectors(metadata()[next(path for path in metadata() if "manifest-list" in path)], NO_KEYS)
    with pytest.raises(UnreadableCommit, match="the schema can't be read: it lacks"):
        read_schema(b'{"fields": []}')
