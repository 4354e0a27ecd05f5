"""Which files an upsert of an append table looks into and rewrites, on real tables on disk, without Spark."""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from lakewarden.spark_jobs.sinks.paimon import matched_files
from lakewarden.spark_jobs.sinks.paimon.base import deletions_of, read_base
from lakewarden.spark_jobs.sinks.paimon.matched_files import (
    FILE,
    keys_function,
    large_files,
    may_have_keys,
    without_files,
)
from lakewarden.spark_jobs.sinks.paimon.table import TableAddress, address
from lakewarden.spark_jobs.sinks.paimon.values import in_types
from tests.spark.conftest import commit_alone, create_table

Fill = Callable[..., TableAddress]


@pytest.fixture
def fill(tmp_path: Path) -> Fill:
    """A function that creates a table with one file for each list of keys, in the partition day=1."""

    def fill(*files: list[Any], kind: pa.DataType | None = None, **options: str) -> TableAddress:
        schema = pa.schema([("day", pa.int32()), ("key", kind or pa.int64()), ("value", pa.string())])
        named = {name.replace("_", "."): value for name, value in options.items()}
        where = create_table(str(tmp_path), "t", schema, partition_keys=["day"], options=named)
        for keys in files:
            commit_alone(where, [{"day": 1, "key": key, "value": "a"} for key in keys])
        return address(where)

    return fill


@pytest.fixture
def all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matched_files, "SMALL_BYTES", 0)


def in_range(where: TableAddress, lowest: Any, greatest: Any) -> list[int]:
    """Return the smallest key of each file that the range may meet."""
    table = where.open()
    ranges = {"day=1": {"key": (lowest, greatest)}}
    splits = [split for split in large_files(read_base(table, [(1,)])) if may_have_keys(table, split, ranges)]
    reader = table.new_read_builder().new_read()
    return sorted(min(reader.to_arrow([split])["key"].to_pylist()) for split in splits)


@pytest.mark.usefixtures("all_are_large")
def test_a_file_whose_range_the_batch_does_not_meet_is_left_out(fill: Fill) -> None:
    where = fill([1, 5], [10, 50], [30, 70])
    assert in_range(where, 6, 9) == []
    assert in_range(where, 5, 10) == [1, 10]
    assert in_range(where, 40, 40) == [10, 30]
    assert in_range(where, 71, 10**15) == []


@pytest.mark.usefixtures("all_are_large")
@pytest.mark.parametrize(
    ("kind", "keys", "inside", "outside"),
    [
        (pa.string(), ["b", "é"], ("c", "é"), ("ê", "日本")),
        (
            pa.date32(),
            [dt.date(2013, 1, 1), dt.date(2013, 2, 1)],
            (dt.date(2013, 1, 9),) * 2,
            (dt.date(2014, 1, 1),) * 2,
        ),
        (
            pa.timestamp("us"),
            [dt.datetime(2013, 1, 1, 5), dt.datetime(2013, 1, 1, 6)],  # noqa: DTZ001 - without a time zone
            (dt.datetime(2013, 1, 1, 5, 30),) * 2,  # noqa: DTZ001
            (dt.datetime(2013, 1, 1, 6, 0, 0, 1),) * 2,  # noqa: DTZ001
        ),
        (pa.int32(), [-5, 5], (0, 0), (6, 2**40)),
    ],
    ids=["string", "date", "timestamp", "int"],
)
def test_ranges_of_other_types(
    *, fill: Fill, kind: pa.DataType, keys: list[Any], inside: tuple[Any, Any], outside: tuple[Any, Any]
) -> None:
    where = fill(keys, kind=kind)
    assert in_range(where, *inside) == [min(keys)]
    assert in_range(where, *outside) == []


@pytest.mark.usefixtures("all_are_large")
def test_values_that_can_not_be_compared_leave_no_file_out(fill: Fill) -> None:
    assert in_range(fill([1, 5]), "x", "y") == [1]


@pytest.mark.usefixtures("all_are_large")
@pytest.mark.parametrize("format_name", ["orc", "avro"])
def test_a_file_without_a_footer_of_ranges_is_looked_into(fill: Fill, format_name: str) -> None:
    assert in_range(fill([1, 5], file_format=format_name), 100, 200) == [1]


@pytest.mark.usefixtures("all_are_large")
def test_the_keys_of_the_remaining_files_are_read_with_their_file(fill: Fill) -> None:
    where = fill([1, 5], [10, None], [70, 71])
    splits = large_files(read_base(where.open(), [(1,)]))
    numbers = [pa.RecordBatch.from_pydict({"id": [0, 1, 2]})]
    function = keys_function(
        where, [pickle.dumps(each) for each in splits], ["day", "key"], {"day=1": {"key": (2, 60)}}
    )

    found = pa.Table.from_batches(list(function(numbers))).to_pylist()

    assert sorted((row["key"] or 0, row["day"]) for row in found) == [(0, 1), (1, 1), (5, 1), (10, 1)]
    by_file = {row[FILE] for row in found if row["key"] in {10, None}}
    assert len(by_file) == 1


def test_small_files_are_rewritten_without_a_look(fill: Fill) -> None:
    base = read_base(fill([1, 5], [10, 50]).open(), [(1,)])
    assert large_files(base) == []
    assert without_files(base, []).files == base.files


@pytest.mark.usefixtures("all_are_large")
def test_files_that_stay_are_part_of_the_base_and_not_removed(fill: Fill) -> None:
    base = read_base(fill([1, 5], [10, 50], [70]).open(), [(1,)])
    stays = large_files(base)[0]
    rewritten = without_files(base, [stays])
    removed = [file.file_name for message in deletions_of(rewritten) for file in message.deleted_files]
    assert len(removed) == 2
    assert stays.files[0].file_name not in removed
    assert rewritten.files == base.files, "a change of any file of the partition is noticed"
    assert without_files(base, large_files(base)).splits == ()


def test_nested_values_get_the_tables_types() -> None:
    """A NULL struct may have a field that is NOT NULL. Of an array without elements Java sends no offsets."""
    entry = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.int32())])
    maps = pa.Array.from_buffers(pa.map_(*entry), 0, [None, None], children=[pa.array([], entry)])
    empty = pa.ListArray.from_arrays(pa.array([0, 0, 0], pa.int32()), maps)
    pairs = pa.array([None, {"a": 1, "b": None}], pa.struct([("a", pa.int32()), ("b", pa.string())]))
    required = pa.struct([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string())])
    schema = pa.schema([("pair", required), ("maps", pa.list_(pa.field("item", maps.type)))])

    for rows in (
        pa.table([pairs, empty], names=["pair", "maps"]),
        pa.table([pairs, empty], names=["pair", "maps"]).slice(1),
    ):
        found = in_types(rows, schema, None)
        found.validate(full=True)
        assert found.schema == schema
        assert found.to_pylist() == rows.to_pylist()
        assert found.nbytes

    nowhere = pa.array([{"a": None, "b": "x"}], pairs.type)
    with pytest.raises(ValueError, match=r"column 'pair'.*NULL where the table has NOT NULL"):
        in_types(
            pa.table({"pair": nowhere}), pa.schema([schema.field("pair")]), SimpleNamespace(table_path="t")
        )
