"""The footprint of a commit of Delta, and what follows from listings of its log."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from lakewarden.events import Marker
from lakewarden.handlers.delta.log import (
    PartitionLayout,
    actions_of,
    checkpoint_version,
    foreign_commit,
    layout_of,
    newest_version,
    read_checksum,
    version_of,
)
from lakewarden.handlers.observations import EVERYTHING, ObservedCommit, UnreadableCommit
from tests.recorded_delta import commit, recorded

DAYS = PartitionLayout((("day", "day", "date"), ("region", "region", "string")))
FLAT = PartitionLayout(())
VALUES = {"region": "a b/c", "day": "2026-11-23"}
DAY = "day=2026-11-23/region=a b%2Fc"

Action = dict[str, Any]


def add(name: str, values: Mapping[str, str | None] | None = None, **more: Any) -> Action:
    return {"add": {"path": name, "partitionValues": values or {}, "dataChange": True} | more}


def remove(name: str, values: Mapping[str, str | None] | None = None, **more: Any) -> Action:
    return {"remove": {"path": name, "partitionValues": values or {}, "dataChange": True} | more}


def info(**fields: Any) -> Action:
    return {"commitInfo": {"operation": "WRITE"} | fields}


def body(*actions: Action) -> bytes:
    return "\n".join(json.dumps(each) for each in actions).encode()


def metadata(schema: list[Action], *columns: str) -> Action:
    return {"metaData": {"schemaString": json.dumps({"fields": schema}), "partitionColumns": list(columns)}}


def touched(layout: PartitionLayout, *actions: Action) -> dict[tuple[str, str], str] | None:
    found = foreign_commit(7, actions_of(body(*actions)), layout)
    return None if found is None else {(each.partition, each.file_group): each.operation for each in found.markers}  # fmt: skip


REFUTING: dict[str, Any] = {
    "blind append": ([info(isBlindAppend=True), add("day=x/new")], {"new": "create"}),
    "an append that has read": ([info(isBlindAppend=False), add("new")], {"new": "delete"}),
    "no isBlindAppend": ([info(), add("new")], {"new": "delete"}),
    "no commitInfo": ([add("new")], {"new": "delete"}),
    "rewrite": ([info(isBlindAppend=False), remove("old"), add("new")], {"old": "delete", "new": "create"}),
    "compaction": (
        [info(isBlindAppend=False), remove("old", dataChange=False), add("new", dataChange=False)],
        {"old": "delete", "new": "create"},
    ),
    "statistics written again": (
        [info(isBlindAppend=False), add("same", dataChange=False)],
        {"same": "create"},
    ),
    "deletion vector": (
        [info(), remove("one"), add("one", deletionVector={"storageType": "u"})],
        {"one": "delete"},
    ),
}


@pytest.mark.parametrize(("actions", "expected"), REFUTING.values(), ids=REFUTING)
def test_what_refutes_a_rewrite_is_a_delete(actions: list[Action], expected: dict[str, str]) -> None:
    assert touched(FLAT, *actions) == {("", name): operation for name, operation in expected.items()}


def test_rows_inserted_by_a_merge_refute_rewrites_of_their_partition_only() -> None:
    """Its other partition has a removed file, which says it already."""
    other = VALUES | {"day": "2026-11-24"}
    found = touched(
        DAYS, info(isBlindAppend=False), remove("old", VALUES), add("new", VALUES), add("more", other)
    )

    assert found == {
        (DAY, "old"): "delete",
        (DAY, "new"): "create",
        ("day=2026-11-24/region=a b%2Fc", "more"): "delete",
    }


@pytest.mark.parametrize(
    "actions",
    [
        [info(userMetadata='{"lakewarden.transaction": "t"}'), remove("old"), add("new")],
        [info(operation="SET TBLPROPERTIES")],
        [{"txn": {"appId": "w", "version": 3}}],
    ],
    ids=["the gate's", "no file", "only a batch"],
)
def test_a_commit_of_the_gate_and_one_without_files_are_not_reported(actions: list[Action]) -> None:
    assert touched(FLAT, *actions) is None


@pytest.mark.parametrize("label", ["nightly job", "[1]", '{"other": 1}', "", None])
def test_another_label_is_no_label_of_the_gate(label: str | None) -> None:
    assert touched(FLAT, info(userMetadata=label, isBlindAppend=True), add("new")) is not None


@pytest.mark.parametrize(
    ("kind", "value", "spelled"),
    [
        ("string", 'a/b="c"', "a%2Fb%3D%22c%22"),
        ("string", "", "__HIVE_DEFAULT_PARTITION__"),
        ("date", None, "__HIVE_DEFAULT_PARTITION__"),
        ("boolean", "TRUE", "true"),
        ("integer", "-3", "-3"),
        ("decimal(10,2)", "1.50", "1.50"),
        ("decimal(10,8)", "0E-8", "0.00000000"),
        ("timestamp", "2026-10-25T00:30:00.5Z", "2026-10-25T00%3A30%3A00.500000Z"),
        ("timestamp", "+12000-06-01 00:30:00Z", "+12000-06-01T00%3A30%3A00.000000Z"),
        ("timestamp_ntz", "2026-10-25T02:30:00.500", "2026-10-25 02%3A30%3A00.5"),
        ("timestamp_ntz", "2026-10-25 02:30:00", "2026-10-25 02%3A30%3A00"),
        ("double", "1E10", "1.0E10"),
        ("double", "1.9999999999999998E23", "2.0E23"),
        ("float", "1.10", "1.1"),
        ("double", "-0.0", "-0.0"),
        ("double", "NaN", "NaN"),
    ],
)
def test_partitions_are_spelled_as_by_the_sink(kind: str, value: str | None, spelled: str) -> None:
    assert PartitionLayout((("p", "col-1", kind),)).path({"col-1": value}) == f"p={spelled}"


@pytest.mark.parametrize(
    ("kind", "value"),
    [("timestamp", "2026-10-25 02:30:00"), ("timestamp_ntz", "now"), ("double", "x"), ("decimal(9,2)", "x")],
)
def test_a_value_that_each_reader_takes_for_another_is_unreadable(kind: str, value: str) -> None:
    with pytest.raises(UnreadableCommit, match=f"isn't of type {kind.partition('(')[0]}"):
        PartitionLayout((("p", "p", kind),)).path({"p": value})


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (b"", "has no action"),
        (b'{"add":', "not JSON"),
        (b"[1]", "not an action"),
        (body({"protocol": {"minReaderVersion": 4}}), "reader version 4"),
        (
            body({"protocol": {"minReaderVersion": 3, "readerFeatures": ["catalogManaged"]}}),
            "a catalog keeps",
        ),
    ],
)
def test_a_commit_that_can_not_be_read_says_why(broken: bytes, why: str) -> None:
    with pytest.raises(UnreadableCommit, match=why):
        foreign_commit(7, actions_of(broken), layout_of(actions_of(broken)) or FLAT)


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({"remove": {"path": "x"}}, "doesn't say its partition"),
        ({"add": {"partitionValues": VALUES}}, "has no path"),
        ({"add": 5}, "doesn't say its partition|has no path"),
        (add("x", partitionValues={"day": 7}), "is no text"),
        (add("x", {"day": "2026-11-23", "region": "\ud800"}), "no text"),
        (metadata([{"name": "other", "type": "string"}], "gone"), "metadata can't be read: it lacks 'gone'"),
    ],
)
def test_a_piece_that_can_not_be_read_counts_as_everything_and_costs_no_other(
    broken: Action, why: str
) -> None:
    actions = actions_of(body(info(), remove("old", VALUES), broken, add("late", VALUES)))
    found = foreign_commit(7, actions, layout_of(actions) or DAYS)

    assert found is not None
    assert found.markers[0] == EVERYTHING
    assert [each.file_group for each in found.markers[1:]] == ["late", "old"] * ("metaData" not in broken)
    assert re.search(why, found.unread[0].why)


def test_what_refutes_nothing_needs_no_partition() -> None:
    """A blind append of delta-rs into a timestamp without a time zone."""
    moment = PartitionLayout((("t", "t", "timestamp"),))
    found = foreign_commit(
        7, actions_of(body(info(isBlindAppend=True), add("x", {"t": "2026-01-02 03:04:05"}))), moment
    )

    assert found is None or not found.markers


@pytest.mark.parametrize("prefix", ["", "s3://elsewhere/t/", "/mnt/t/", "../t/"])
def test_a_removed_file_without_values_has_those_of_its_folders(prefix: str) -> None:
    path = f"{prefix}day=2026-11-23/region=a%20b%252Fc/old"

    assert touched(DAYS, {"remove": {"path": path, "dataChange": True}}) == {(DAY, "old"): "delete"}


def test_a_commit_is_named_by_its_version_and_its_partitions_by_their_logical_names() -> None:
    schema = [{"name": "p", "type": "string", "metadata": {"delta.columnMapping.physicalName": "col-1"}}]
    layout = layout_of(actions_of(body(metadata(schema, "p"))))
    assert layout is not None

    found = foreign_commit(8, actions_of(body(info(), add("new", {"col-1": "x"}))), layout)

    assert found == ObservedCommit("8", (Marker(partition="p=x", file_group="new", operation="delete"),))


@pytest.mark.parametrize(
    ("path", "version"),
    [
        ("_delta_log/00000000000000000012.json", 12),
        ("_delta_log/00000000000000000012.checkpoint.parquet", 12),
        ("_delta_log/00000000000000000012.checkpoint.0000000001.0000000002.parquet", 12),
        ("_delta_log/00000000000000000012.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json", 12),
        ("_delta_log/00000000000000000012.crc", None),
        ("_delta_log/00000000000000000010.00000000000000000012.compacted.json", None),
        ("_delta_log/_staged_commits/00000000000000000012.80a083e8.json", None),
        ("_delta_log/_last_checkpoint", None),
        ("_delta_log/.00000000000000000012.json.crc", None),
    ],
)
def test_only_commits_and_checkpoints_have_a_version(path: str, version: int | None) -> None:
    assert version_of(path) == version


@pytest.mark.parametrize(
    ("text", "version"), [(b'{"version":40,"size":3}', 40), (b"{", 0), (b"[]", 0), (b'{"version":"x"}', 0)]
)
def test_a_damaged_checkpoint_hint_means_the_whole_log(text: bytes, version: int) -> None:
    assert checkpoint_version(text) == version


def test_a_checkpoint_alone_is_a_version() -> None:
    """Log retention has removed the commit of an idle table."""
    assert newest_version(["_delta_log/00000000000000000005.checkpoint.parquet", "_delta_log/x"]) == 5
    assert newest_version([]) is None


def test_a_checksum_file_without_metadata_says_nothing() -> None:
    assert read_checksum(b'{"tableSizeBytes":1}') is None
    assert read_checksum(b"not json") is None
    assert layout_of([]) is None


MONDAY, NULL_DAY = "region=a b%2Fc/day=2026-11-23", "region=__HIVE_DEFAULT_PARTITION__/day=2026-11-24"


WRITTEN_BY_DELTA: dict[str, Any] = {
    "append": (1, {(MONDAY, "create"): 1, (NULL_DAY, "create"): 1}),
    "MERGE": (3, {(MONDAY, "create"): 1, (MONDAY, "delete"): 2}),
    "OPTIMIZE": (4, {(NULL_DAY, "create"): 1, (NULL_DAY, "delete"): 2}),
    "MERGE that only inserts": (5, {(MONDAY, "delete"): 1}),
    "ALTER TABLE": (6, None),
    "a DELETE with the gate's label": (7, None),
}


@pytest.mark.parametrize(("version", "expected"), WRITTEN_BY_DELTA.values(), ids=WRITTEN_BY_DELTA)
def test_commits_that_delta_wrote(version: int, expected: dict[tuple[str, str], int] | None) -> None:
    """A `remove` lacks the partition columns that are NULL."""
    layout = layout_of(actions_of(commit("days", 0)))
    assert layout is not None
    assert layout == read_checksum(recorded("days", f"{7:020d}.crc"))

    found = foreign_commit(version, actions_of(commit("days", version)), layout)

    counted = None if found is None else Counter((each.partition, each.operation) for each in found.markers)
    assert counted == expected


def test_a_deletion_vector_on_a_table_with_column_mapping() -> None:
    """The file is removed and added again. Its folder has the column's physical name, the partition the logical one."""
    layout = read_checksum(recorded("mapped", f"{2:020d}.crc"))
    assert layout is not None

    found = foreign_commit(2, actions_of(commit("mapped", 2)), layout)

    assert found is not None
    assert [(each.partition, each.operation) for each in found.markers] == [("day=2026-11-23", "delete")]
