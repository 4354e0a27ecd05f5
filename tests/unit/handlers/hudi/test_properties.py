from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from lakewarden.handlers.hudi.properties import HudiTable, parse_properties, read_properties
from lakewarden.handlers.hudi.timeline import UnreadableHudi
from tests.recorded_hudi import recorded

LINE = ".hoodie/timeline/"
VERSION_9 = HudiTable(9, 2, LINE, f"{LINE}history/", "COPY_ON_WRITE")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (recorded("cow-v9", "hoodie.properties"), VERSION_9),
        (
            recorded("cow-v6", "hoodie.properties"),
            HudiTable(6, 1, ".hoodie/", ".hoodie/archived/", "COPY_ON_WRITE"),
        ),
        (
            b"hoodie.table.version=8\nhoodie.timeline.layout.version=2\nhoodie.table.type=MERGE_ON_READ\n",
            replace(VERSION_9, version=8, kind="MERGE_ON_READ"),
        ),
        (
            b"hoodie.table.version=9\nhoodie.timeline.path=line\n",
            replace(VERSION_9, timeline=".hoodie/line/", archive=".hoodie/line/history/"),
        ),
    ],
    ids=["of Hudi 1.2", "of Hudi 0.15", "version 8", "another folder of the timeline"],
)
def test_the_properties_name_version_layout_and_folders(body: bytes, expected: HudiTable) -> None:
    assert read_properties(body) == expected


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "hoodie.table.version in hoodie.properties is missing"),
        (b"hoodie.table.version=nine", "is not a number"),
        (b"hoodie.table.version=10", "table version 10 is unknown; known are 6, 8, 9"),
        (b"hoodie.table.version=9\nhoodie.timeline.layout.version=1", "expected layout 2"),
        (b"hoodie.table.version=9\nhoodie.timeline.path=../elsewhere", "not a plain name"),
        (b"\xff\xfe", "not text"),
    ],
)
def test_properties_that_can_not_be_relied_on_are_refused(body: bytes, why: str) -> None:
    """A reader that guesses would miss commits."""
    with pytest.raises(UnreadableHudi, match=why):
        read_properties(body)


def test_the_syntax_is_that_of_java() -> None:
    body = b"# comment\n! comment\n a.b = x=y \nc\\:d:e\\u0041\\n\nempty=\nalone\n"

    assert parse_properties(body) == {"a.b": "x=y ", "c:d": "eA\n", "empty": "", "alone": ""}


@given(st.binary() | st.text().map(str.encode) | st.from_regex(rb"hoodie\.table\.version=\d+(\n.*)*"))
def test_no_properties_raise_another_error(body: bytes) -> None:
    try:
        table = read_properties(body)
    except UnreadableHudi:
        return

    assert table.version in (6, 8, 9)


def test_a_file_that_is_too_long_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(UnreadableHudi, match="more than 1,048,576 bytes"):
        read_properties(b"#" * (1 << 20) + b"\nhoodie.table.version=8\n")
