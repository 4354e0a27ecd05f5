from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from lakewarden.events import Marker
from lakewarden.handlers.hudi.markers import (
    is_direct_marker,
    is_markers_file,
    parse_marker,
    read_markers_file,
)
from lakewarden.handlers.hudi.metadata import read_metadata
from lakewarden.handlers.hudi.timeline import UnreadableHudi
from tests.recorded_hudi import recorded

GROUP = "56e599eb-7a94-416f-9fb2-7c2b302af75a-0"
GROUPS = ("601458c3-4233-412b-a22a-9523af524c00-0", "24c8d467-6e47-4aae-85cf-377134717a5a-0")
T = "20261121222921966"


@pytest.mark.parametrize(
    ("path", "partition", "operation"),
    [
        (f"p=d02/{GROUP}_1-82-206_{T}.parquet.marker.MERGE", "p=d02", "merge"),
        (f"p=d02/{GROUP}_1-82-206_{T}.parquet.marker.CREATE", "p=d02", "create"),
        (f"{GROUP}_1-82-206_{T}.parquet.marker.MERGE", "", "merge"),
        (f"event_date=2026/hour=1/{GROUP}_1-82-206_{T}.orc.marker.MERGE", "event_date=2026/hour=1", "merge"),
        (f"a.marker.b/{GROUP}_1-82-206_{T}.parquet.marker.MERGE", "a.marker.b", "merge"),
        (f"a//b//{GROUP}_1-82-206_{T}.parquet.marker.MERGE", "a/b", "merge"),
        (f"/a/{GROUP}_1-82-206_{T}.parquet.marker.MERGE", "a", "merge"),
        # Table version 8 and later: an update of an existing group is marked CREATE, of its log file.
        (f"p=d02/.{GROUP}_{T}.log.1_1-82-206.marker.CREATE", "p=d02", "append"),
        (f"p=d02/.{GROUP}_{T}.log.1_1-82-206.marker.APPEND", "p=d02", "append"),
        (f"p=d02/.{GROUP}_{T}.log.1_1-82-206.cdc.marker.CREATE", "p=d02", "append"),
    ],
)
def test_a_marker_names_partition_file_group_and_operation(path: str, partition: str, operation: str) -> None:
    """The partition ends at the last slash: Hudi's own detection cuts at the first underscore, and sees false conflicts."""
    marker = parse_marker(path)

    assert (marker.partition, marker.file_group, marker.operation) == (partition, GROUP, operation)


BUCKET = "00000003-946f-416f-9fb2-7c2b302af75a"
NON_BLOCKING = "00000003-0000-0000-0000-000000000000"


@pytest.mark.parametrize("suffix", ["", "-0"])
@pytest.mark.parametrize(
    ("group", "named"),
    [
        (BUCKET, "00000003"),
        (NON_BLOCKING, "00000003"),
        ("12345678-0000-4000-8000-000000000000", "12345678"),
        # Consistent hashing, and every other index
        ("0000000a-946f-416f-9fb2-7c2b302af75a", None),
        ("0000003-946f-416f-9fb2-7c2b302af75a", None),
        ("00000003-flights", None),
    ],
)
def test_the_file_group_of_a_bucket_is_its_bucket(group: str, named: str | None, suffix: str) -> None:
    """Hudi refuses the second of two commits to it. By whole names, both would compute to the end."""
    group += suffix
    for path in (f"p=d02/{group}_1-82-206_{T}.parquet", f"p=d02/.{group}_{T}.log.1_1-82-206"):
        assert parse_marker(f"{path}.marker.CREATE").file_group == (named or group)
    plan = {"operations": [{"partitionPath": "p=d02", "fileId": group}]}
    stats = {"partitionToWriteStats": {"p=d02": [{"fileId": group}]}, "operationType": "UPSERT"}
    for record in (plan, stats):
        (marker,) = read_metadata(json.dumps(record).encode()).touched
        assert (marker.partition, marker.file_group) == ("p=d02", named or group)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "MARKERS.type",
        ".marker.CREATE",
        f"p=d02/{GROUP}_1-82-206_{T}.parquet",
        f"p=d02/{GROUP}_1-82-206_{T}.parquet.marker.MOVE",
        "p=d02/notes.txt.marker.CREATE",
        f"{'p' * 1100}/{GROUP}_1-82-206_{T}.parquet.marker.MERGE",
    ],
)
def test_what_is_no_marker_is_refused(path: str) -> None:
    with pytest.raises(UnreadableHudi):
        parse_marker(path)


@given(st.text() | st.from_regex(r"(.*/)?\.?[^_]+_[0-9-]+_[0-9]+\.\w+\.marker\.(MERGE|CREATE)"))
def test_no_marker_raises_another_error(path: str) -> None:
    """Any program may put a file into the folder."""
    try:
        marker = parse_marker(path)
    except UnreadableHudi:
        return

    assert path.startswith(marker.partition)
    assert marker.file_group in path


def test_a_file_of_the_timeline_server_is_read_line_by_line() -> None:
    lines = read_markers_file(recorded("cow-v9", "MARKERS0"))

    assert lines.unreadable == ()
    assert lines.markers == (
        Marker(partition="p=d1", file_group="a1079540-5309-48af-8815-49d4dc51cc56-0", operation="create"),
    )


@pytest.mark.parametrize("table", ["mor-v9", "mor-v6"])
def test_the_marker_of_a_log_file_is_an_append(table: str) -> None:
    """Hudi 1.2.0 marks it `CREATE`, Hudi 0.15.0 `APPEND`."""
    (marker,) = read_markers_file(recorded(table, "MARKERS0")).markers

    assert marker.partition == "p=d1"
    assert marker.operation == "append"
    assert marker.file_group in GROUPS


def test_a_line_without_a_newline_is_not_read_yet() -> None:
    """On a local disk the file may be read while it is written."""
    line = f"p=d02/{GROUP}_1-82-206_{T}.parquet.marker.MERGE"

    assert read_markers_file(line.encode()).markers == ()
    assert len(read_markers_file(f"{line}\n".encode()).markers) == 1


def test_task_retries_are_one_file_group() -> None:
    body = "".join(f"p/{GROUP}_1-82-{attempt}_{T}.parquet.marker.MERGE\n" for attempt in range(3))

    assert len(read_markers_file(body.encode()).markers) == 1


def test_lines_joined_with_commas_are_separated() -> None:
    """After a restart, Hudi's timeline server rewrites its file with commas instead of newlines."""
    lines = [f"p,q=1/{GROUP[:-1]}{n}_1-82-1_{T}.parquet.marker.CREATE" for n in range(3)]

    markers = read_markers_file((",".join(lines) + "\n").encode())

    assert [each.file_group[-1] for each in markers.markers] == ["0", "1", "2"]
    assert {each.partition for each in markers.markers} == {"p,q=1"}


def test_a_line_that_is_no_marker_hides_no_other() -> None:
    body = f"garbage\np/{GROUP}_1-82-1_{T}.parquet.marker.CREATE\n\xff\n".encode("latin-1")

    lines = read_markers_file(body)

    assert len(lines.markers) == 1
    assert lines.unreadable == ("garbage", "\N{REPLACEMENT CHARACTER}")


@given(st.binary())
def test_no_file_of_markers_raises(body: bytes) -> None:
    read_markers_file(body)


def test_the_files_in_a_marker_folder_are_told_apart() -> None:
    direct = f"p=d1/{GROUP}_0-28-28_{T}.parquet.marker.MERGE"
    names = ["MARKERS.type", "MARKERS0", "MARKERS19", direct]

    assert [each for each in names if is_markers_file(each)] == ["MARKERS0", "MARKERS19"]
    assert [each for each in names if is_direct_marker(each)] == [direct]
