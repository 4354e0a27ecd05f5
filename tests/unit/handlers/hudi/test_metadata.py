from __future__ import annotations

import io
import json
import re
import struct

import fastavro
import pytest
from hypothesis import given, strategies as st

from lakewarden.handlers.hudi.metadata import InstantMetadata, archived_commits, read_metadata
from lakewarden.handlers.hudi.timeline import UnreadableHudi
from tests.recorded_hudi import recorded
from tests.unit.handlers.avro_files import avro_file, schema_of

FIRST, SECOND = "a1079540-5309-48af-8815-49d4dc51cc56-0", "3a5185c7-b28a-4e0c-aaeb-b156e59295e7-0"

MOR_FIRST, MOR_SECOND = "601458c3-4233-412b-a22a-9523af524c00-0", "1767575c-4bc6-4b62-9e8a-1be4b2eead30-0"


def test_a_commit_names_every_file_group_that_it_wrote() -> None:
    metadata = read_metadata(recorded("cow-v9", "20261122135446024_20261122135634351.commit"))

    assert metadata.operation == "UPSERT"
    assert _touched(metadata) == [("p=d1", FIRST, "create"), ("p=d0", SECOND, "create")]


def test_the_inflight_of_an_upsert_names_the_groups_that_get_updates_but_not_those_of_inserts() -> None:
    """Hudi decides where inserts go after it has written the workload profile."""
    inserts = read_metadata(recorded("cow-v9", "20261122135446024.inflight"))
    updates = read_metadata(recorded("cow-v9", "20261122135643314.inflight"))

    assert _touched(inserts) == []
    assert _touched(updates) == [("p=d1", FIRST, "merge"), ("p=d0", SECOND, "merge")]


def test_a_commit_carries_what_its_writer_put_beside_it() -> None:
    """A sink finds its own batch again by this entry."""
    metadata = read_metadata(recorded("cow-v9", "20261122135643314_20261122135847753.commit"))

    assert json.loads(metadata.extra["_lakewarden"]) == {"writer": "ingest", "batch": 7, "transaction": "t-1"}
    assert _touched(metadata) == [("p=d1", FIRST, "merge"), ("p=d0", SECOND, "merge")]


def test_an_insert_overwrite_stands_for_its_whole_partitions_until_it_names_what_it_replaced() -> None:
    inflight = read_metadata(recorded("cow-v9", "20261122135850011.replacecommit.inflight"))
    completed = read_metadata(recorded("cow-v9", "20261122135850011_20261122135903033.replacecommit"))

    assert sorted(_touched(inflight)) == [("p=d0", "*", "delete"), ("p=d1", "*", "delete")]
    assert [each for each in _touched(completed) if each[2] == "delete"] == [
        ("p=d1", FIRST, "delete"),
        ("p=d0", SECOND, "delete"),
    ]
    assert len(completed.touched) == 4


def test_an_update_of_a_merge_on_read_table_is_an_append() -> None:
    """It goes into a log file. The inflight doesn't say so yet."""
    inflight = read_metadata(recorded("mor-v9", "20261122140059189.deltacommit.inflight"))
    completed = read_metadata(recorded("mor-v9", "20261122140059189_20261122140245803.deltacommit"))

    assert _touched(inflight) == [("p=d1", MOR_FIRST, "merge"), ("p=d0", MOR_SECOND, "merge")]
    assert _touched(completed) == [("p=d1", MOR_FIRST, "append"), ("p=d0", MOR_SECOND, "append")]


@pytest.mark.parametrize(
    ("table", "plan", "kind", "operation"),
    [
        ("mor-v9", "20261122140253806.compaction.requested", "COMPACT", "merge"),
        ("mor-v6", "20261122140752514.compaction.requested", "COMPACT", "merge"),
        # In layout 1 it is a `replacecommit` like that of an insert_overwrite; only the plan distinguishes them.
        ("cow-v6", "20261122140741473.replacecommit.requested", "CLUSTER", "delete"),
    ],
)
def test_a_plan_names_the_file_groups_that_it_is_going_to_rewrite_or_replace(
    table: str, plan: str, kind: str, operation: str
) -> None:
    metadata = read_metadata(recorded(table, plan))

    assert metadata.operation == kind
    assert sorted((each.partition, each.operation) for each in metadata.touched) == [
        ("p=d0", operation),
        ("p=d1", operation),
    ]


def test_the_metadata_of_table_version_6_is_json() -> None:
    inflight = read_metadata(recorded("cow-v6", "20261122140722059.inflight"))
    completed = read_metadata(recorded("cow-v6", "20261122140722059.commit"))

    assert recorded("cow-v6", "20261122140722059.commit").startswith(b"{")
    assert _touched(inflight) == _touched(completed)
    assert [each[::2] for each in _touched(completed)] == [("p=d1", "merge"), ("p=d0", "merge")]
    assert json.loads(completed.extra["_lakewarden"])["batch"] == 7


def test_a_commit_without_files_touches_nothing() -> None:
    body = avro_file({"partitionToWriteStats": None, "extraMetadata": {"a": "b", "c": None}})

    assert read_metadata(body) == InstantMetadata(None, (), {"a": "b"})


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "the file is empty"),
        (b"{", "not JSON, from character 1"),
        (b"[]", "no record"),
        (b"Obj\x01", "ends too early"),
        (b'{"partitionToWriteStats": 5}', "of another type"),
        (b'{"a": 1}', "neither a commit's metadata nor a plan"),
    ],
)
def test_what_is_no_metadata_is_refused(body: bytes, why: str) -> None:
    with pytest.raises(UnreadableHudi, match=why):
        read_metadata(body)


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (1, "of another type"),
        ({"fileId": 7}, "of another type"),
        ({"fileId": "f", "path": 7}, "of another type"),
        ({"fileId": "\ud800"}, "too long"),
    ],
)
def test_a_file_group_that_can_not_be_read_costs_no_other(odd: object, why: str) -> None:
    found = read_metadata(json.dumps({"partitionToWriteStats": {"p": [odd, {"fileId": "g"}]}}).encode())

    assert [each.file_group for each in found.touched] == ["g"]
    assert re.search(why, found.unread[0])


@given(st.integers(0, 3971))
def test_a_file_that_is_cut_off_is_refused_or_read_whole(length: int) -> None:
    """On a local disk a file may be read while it is written. A part of its file groups would be a wrong footprint."""
    whole = recorded("cow-v9", "20261122135446024_20261122135634351.commit")
    try:
        metadata = read_metadata(whole[:length])
    except UnreadableHudi:
        return

    assert metadata == read_metadata(whole)


@given(st.binary(max_size=200) | st.integers(0, 3972))
def test_no_bytes_raise_another_error(damage: bytes | int) -> None:
    body = bytearray(recorded("cow-v9", "20261122135446024_20261122135634351.commit"))
    if isinstance(damage, int):
        body[damage] ^= 0xFF
    try:
        read_metadata(bytes(body) if isinstance(damage, int) else damage)
    except UnreadableHudi:
        return


@given(st.integers(0, 700))
def test_the_archive_of_layout_1_is_read_as_far_as_its_blocks_are_whole(length: int) -> None:
    """An archiving that was killed leaves a block cut off, and the next one begins behind it."""
    first, last = (_archive_block([(each, "COMPLETED"), ("9", "INFLIGHT")]) for each in ("1", "2"))

    found = list(archived_commits(first[:length] + last))

    whole = [("1", {"_lakewarden": "1"})] if length >= len(first) else []
    assert found == [*whole, ("2", {"_lakewarden": "2"})]


def _archive_block(entries: list[tuple[str, str]]) -> bytes:
    """A block of Hudi's log, with Avro records of archived instants, as far as it matters here."""
    records = [
        {
            "commitTime": time,
            "actionState": state,
            "hoodieCommitMetadata": {"extraMetadata": {"_lakewarden": time}},
            "hoodieReplaceCommitMetadata": None,
        }
        for time, state in entries
    ]
    schema = schema_of(records, "HoodieArchivedMetaEntry")
    content = struct.pack(">ii", 3, len(records))
    for record in records:
        body = io.BytesIO()
        fastavro.schemaless_writer(body, schema, record)
        content += struct.pack(">i", len(body.getvalue())) + body.getvalue()
    header = json.dumps(schema).encode()
    block = struct.pack(">iiiii", 1, 3, 1, 2, len(header)) + header
    block += struct.pack(">q", len(content)) + content + struct.pack(">i", 0)
    return b"#HUDI#" + struct.pack(">q", len(block) + 8) + block + struct.pack(">q", len(block) + 14)


def _touched(metadata: InstantMetadata) -> list[tuple[str, str, str]]:
    return [(each.partition, each.file_group, each.operation) for each in metadata.touched]
