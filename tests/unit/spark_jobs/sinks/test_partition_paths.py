"""How each format spells a partition, and that one partition has one spelling."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakewarden.events import Marker
from lakewarden.handlers.hudi.markers import parse_marker
from lakewarden.spark_jobs import PartitionPaths
from lakewarden.spark_jobs.sinks.paimon.commit import sweep
from lakewarden.spark_jobs.sinks.paimon.stage import Staging, staging_function
from lakewarden.spark_jobs.sinks.paimon.table import TableAddress, address
from lakewarden.spark_jobs.sinks.partition_paths import TableFormat
from tests.spark.conftest import create_table, data_files_of, rows_of

COLUMNS = {"region": "string", "day": "date"}
ROW = {"region": "a b/c", "day": date(2026, 11, 21), "other": 1}


@pytest.mark.parametrize(
    ("table_format", "path", "null"),
    [
        ("hive", "region=a b%2Fc/day=2026-11-21", "region=__HIVE_DEFAULT_PARTITION__"),
        ("delta", "region=a b%2Fc/day=2026-11-21", "region=__HIVE_DEFAULT_PARTITION__"),
        ("hudi", "a b/c/2026-11-21", "__HIVE_DEFAULT_PARTITION__"),
        ("iceberg", "region=a+b%2Fc/day=2026-11-21", "region=null"),
        ("paimon", "region=a b%2Fc/day=20778", "region=__DEFAULT_PARTITION__"),
    ],
)
def test_each_format_has_its_spelling(table_format: TableFormat, path: str, null: str) -> None:
    paths = PartitionPaths(table_format, COLUMNS)

    assert paths.path(ROW) == path
    assert paths.path(("a b/c", "2026-11-21")) == path
    assert paths.path({"region": None, "day": None}).startswith(f"{null}/")
    empty = paths.path({"region": "", "day": None})
    assert empty.startswith("region=/" if table_format == "iceberg" else f"{null}/")


def test_hudi_spells_as_its_options_say() -> None:
    assert PartitionPaths("hudi", {"n": "decimal(38,10)"}).path([0]) == "0E-10"
    assert PartitionPaths("hudi", COLUMNS, hive_style=True).path(ROW) == "region=a b/c/day=2026-11-21"
    assert PartitionPaths("hudi", COLUMNS, url_encode=True).path(ROW) == "a b%2Fc/2026-11-21"
    plain, styled = (PartitionPaths("hudi", {"p": "string"}, hive_style=style) for style in (False, True))
    folders = ["a", "a", "a/b", "a b ", " ", "a\u00a0", "e\u0301", "a%2Fb", "p=a", "..a"]
    for value, folder in zip(
        ("a/", "/a", "a//b/", "a b ", " ", "a\u00a0", "e\u0301", "a%2Fb", "p=a", "..a"), folders, strict=True
    ):
        assert plain.path([value]) == folder
        assert parse_marker(f"{plain.path([value])}/g_1-2-3_4.parquet.marker.MERGE").partition == folder
        assert parse_marker(f"{value}/g_1-2-3_4.parquet.marker.MERGE").partition == folder
    assert (styled.path(["/a/"]), styled.path([".."])) == ("p=/a", "p=..")
    for value in (".", "..", "a/../b", "a/."):
        with pytest.raises(ValueError, match="another folder in each file system"):
            plain.path([value])
    with pytest.raises(ValueError, match="options of Hudi tables, not of 'delta'"):
        PartitionPaths("delta", COLUMNS, hive_style=True)


def test_iceberg_spells_as_java() -> None:
    """Its encoder leaves `*`, and Python's function leaves `~`. Small decimals have an exponent."""
    paths = PartitionPaths("iceberg", {"k": "string", "n": "decimal(38,10)"})
    assert paths.path(["*-_.~é=", "0.5"]) == "k=*-_.%7E%C3%A9%3D/n=0.5000000000"
    assert paths.path(["", 0]) == "k=/n=0E-10"


@pytest.mark.parametrize(
    ("kind", "values", "path"),
    [
        ("int", [3, "3", "03", " 3"], "k=3"),
        ("bigint", [-3, "-03"], "k=-3"),
        ("boolean", [True, "TRUE", "true"], "k=true"),
        ("date", [date(2026, 1, 2), "2026-01-02", "20260102"], "k=2026-01-02"),
        ("decimal(9,2)", [Decimal("1.5"), "1.50", "1.500", "1.5E0"], "k=1.50"),
        ("decimal(9)", [7, "7"], "k=7"),
        ("decimal(38,2)", ["-" + 36 * "9" + ".990"], "k=-" + 36 * "9" + ".99"),
    ],
)
def test_values_that_are_equal_in_the_tables_type_have_one_spelling(
    kind: str, values: list[Any], path: str
) -> None:
    paths = PartitionPaths("hive", {"k": kind})
    assert {paths.path([value]) for value in values} == {path}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("string", 3),
        ("int", "three"),
        ("int", 3.0),
        ("int", True),
        ("boolean", 1),
        ("date", datetime(2026, 1, 2, 3, 4, tzinfo=UTC)),
        ("date", "yesterday"),
        ("decimal(9,2)", 1.5),
        ("decimal(9,2)", "NaN"),
        ("decimal(9,2)", "1,5"),
    ],
)
def test_a_value_of_another_type_is_refused(kind: str, value: Any) -> None:
    """A string of `3` and of `03` are two partitions, so a number can't stand for one of them."""
    with pytest.raises(ValueError, match=r"partition column 'k' is of type .*, and .* isn't"):
        PartitionPaths("hive", {"k": kind}).path([value])


@pytest.mark.parametrize(
    ("table_format", "kind"),
    [*(("hive", kind) for kind in ("timestamp", "double", "binary", "array<int>")), ("delta", "binary")],
)
def test_types_without_a_single_spelling_are_refused(table_format: TableFormat, kind: str) -> None:
    with pytest.raises(
        ValueError, match=r"'k' is of type .*, which has no single spelling; partition by one of"
    ):
        PartitionPaths(table_format, {"k": kind})


NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
LOCAL = NOON.replace(tzinfo=None)


@pytest.mark.parametrize(
    ("kind", "values", "delta", "iceberg"),
    [
        (
            "timestamp",
            [NOON, 1_767_355_200_000_000],
            "2026-01-02T12%3A00%3A00.000000Z",
            "2026-01-02T12%3A00%3A00%2B00%3A00",
        ),
        ("timestamp", [-62_198_755_200_000_001], None, "-0002-12-31T23%3A59%3A59.999999%2B00%3A00"),
        (
            "timestamp_ntz",
            [LOCAL, 1_767_355_200_000_000],
            "2026-01-02 12%3A00%3A00",
            "2026-01-02T12%3A00%3A00",
        ),
        (
            "timestamp_ntz",
            [316_542_384_001_500_000],
            "+12000-10-30 00%3A00%3A01.5",
            "%2B12000-10-30T00%3A00%3A01.5",
        ),
        ("double", [1e10, "1E10"], "1.0E10", "1.0E10"),
        ("double", [5e-324, "4.9E-324"], "4.9E-324", "4.9E-324"),
        ("double", [1e-323, "9.9E-324"], "9.9E-324", "9.9E-324"),
        ("float", [1.401298464324817e-45, "1.4E-45"], "1.4E-45", "1.4E-45"),
        ("double", [2e23, "2.0E23", "1.9999999999999998E23"], "2.0E23", "2.0E23"),
        ("float", [1.100000023841858, "1.1"], "1.1", "1.1"),
        ("float", [16777216.0, "1.6777216E7"], "1.6777216E7", "1.6777216E7"),
        ("double", [float("nan"), "NaN"], "NaN", "NaN"),
        ("double", [-0.0, "-0.0"], "-0.0", "-0.0"),
        ("double", [0.001, 1e-3], "0.001", "0.001"),
        ("double", [9.5e-4], "9.5E-4", "9.5E-4"),
        ("binary", [b"\xff\xfe", "FFFE"], None, "%2F%2F4%3D"),
        ("binary", [b""], None, ""),
    ],
)
def test_moments_numbers_and_bytes_are_spelled_as_in_the_log_or_the_metadata(
    kind: str, values: list[Any], delta: str | None, iceberg: str
) -> None:
    """The situations of `tests/spark/rows/` compare these with what the formats wrote. None: refused."""
    formats: list[tuple[TableFormat, str | None]] = [("delta", delta), ("iceberg", iceberg)]
    for table_format, spelled in formats:
        if spelled is None:
            with pytest.raises(ValueError, match=r"without their time zone|no single spelling"):
                PartitionPaths(table_format, {"k": kind}).path(values[:1])
        else:
            paths = PartitionPaths(table_format, {"k": kind})
            assert {paths.path([value]) for value in values} == {f"k={spelled}"}


@pytest.mark.parametrize(
    ("text", "delta", "iceberg"),
    [
        ("+12000-06-01", "+12000-06-01", "12000-06-01"),
        ("-0001-03-01", "-0001-03-01", "-001-03-01"),
        ("0000-05-06", "0000-05-06", "0000-05-06"),
        ("1500-02-28", "1500-02-28", "1500-02-28"),
    ],
)
def test_dates_that_python_lacks_are_texts_of_spark(text: str, delta: str, iceberg: str) -> None:
    """Delta and Iceberg wrote these folders."""
    assert PartitionPaths("delta", {"k": "date"}).path([text]) == f"k={delta}"
    assert PartitionPaths("iceberg", {"k": "date"}).path([text]) == f"k={iceberg}"


def test_an_unpartitioned_table_is_one_partition() -> None:
    paths = PartitionPaths("hudi", {})
    assert paths.marker([], "file-1", "merge") == Marker(partition="", file_group="file-1", operation="merge")


AT = datetime(1582, 10, 4, 3, 4, 5, 678_000)  # noqa: DTZ001 - without a zone
PAIMON_PARTITIONS: list[tuple[Any, ...]] = [
    ("x%y", date(2026, 1, 2), True, AT, Decimal("-1.50")),
    ("a/b", date(1500, 2, 28), False, AT.replace(year=1, second=0, microsecond=0), Decimal("0.00")),
    ('a b=c:d"{}[]^#?é\t', date(9999, 12, 31), None, AT.replace(microsecond=1), None),
    ("e\u0301", date(1, 1, 1), True, AT.replace(microsecond=0), Decimal("1.00")),
    ("", None, None, None, None),
    (" ", None, None, None, None),
    (None, None, None, None, None),
    ("%2F", None, None, None, None),
    (".", None, None, None, None),
]
PAIMON_TYPES = {
    "name": pa.string(),
    "day": pa.date32(),
    "flag": pa.bool_(),
    "at": pa.timestamp("us"),
    "price": pa.decimal128(30, 2),
}


class MarkersOnly:
    """An executors' channel to nowhere."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def touch_all(self, markers: Iterable[Marker]) -> None:
        self.paths += [marker.partition for marker in markers]


PAIMON_SCHEMA = pa.schema([*(pa.field(*each) for each in PAIMON_TYPES.items()), ("id", pa.int64())])
PAIMON_ROWS = [
    dict(zip(PAIMON_SCHEMA.names, (*each, number), strict=True))
    for number, each in enumerate(PAIMON_PARTITIONS)
]


def stage_in_all_partitions(where: TableAddress, prefix: str) -> tuple[list[Any], set[str]]:
    """Stage the rows as the sink's executors do. Return the commit messages, and the partitions in the markers."""
    channel: Any = MarkersOnly()
    staging = Staging(where, "w", 1, prefix, channel, None)
    batches = pa.Table.from_pylist(PAIMON_ROWS, schema=PAIMON_SCHEMA).to_batches()
    (staged,) = staging_function(staging)(batches)
    return [pickle.loads(each.as_py()) for each in staged.column(0)], set(channel.paths)  # noqa: S301 - our own


@pytest.mark.parametrize("legacy", ["true", "false"])
def test_paimons_markers_folders_and_clean_up_agree_for_partitions_of_all_kinds(
    tmp_path: Path, legacy: str
) -> None:
    """A cancelled task's files are found by the markers alone."""
    options = {"partition.legacy-name": legacy}
    root = create_table(str(tmp_path), "t", PAIMON_SCHEMA, partition_keys=list(PAIMON_TYPES), options=options)
    where = address(root)

    messages, paths = stage_in_all_partitions(where, "data-kept-")
    builder = where.open().new_stream_write_builder()
    builder.new_commit().commit(messages, 1)
    folders = {str(file.parent.parent.relative_to(root)) for file in Path(root).rglob("data-kept-*")}
    assert folders == paths
    assert {PartitionPaths("paimon", {"name": "string"}).path([each[0]]) for each in PAIMON_PARTITIONS} == {
        path.partition("/")[0] for path in paths
    }

    stage_in_all_partitions(where, "data-cancelled-")
    sweep(where.open(), paths, "data-cancelled-")

    assert len(data_files_of(root)) == len(PAIMON_ROWS)
    assert sorted(rows_of(root), key=lambda row: row["id"]) == PAIMON_ROWS
