"""Java Paimon reads what `PaimonSink` writes: each type, in each format of files, plain and nested. The rest is refused."""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pypaimon import CatalogFactory, Schema
from pypaimon.schema.data_types import ArrayType, AtomicType, DataField, MapType, PyarrowFieldParser, RowType

from lakewarden.spark_jobs.sinks.paimon.primary_key import GROUP, grouping_function
from lakewarden.spark_jobs.sinks.paimon.stage import Staging, staging_function
from lakewarden.spark_jobs.sinks.paimon.table import (
    COMPRESSIONS,
    OPTIONS,
    TableAddress,
    address,
    require_supported,
)
from lakewarden.spark_jobs.sinks.paimon.values import arrow_schema, in_types
from tests.spark.java_paimon import JavaPaimon
from tests.spark.rows.values import rendered
from tests.unit.spark_jobs.sinks.test_paimon_primary_key import commit

pytestmark = [pytest.mark.real, pytest.mark.wide]

FORMATS = ("parquet", "orc", "avro")

SECOND = 1_000_000
EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - without a zone
MICROS = [
    None,
    *(
        (dt.datetime(*day) - EPOCH) // dt.timedelta(microseconds=1) + rest  # noqa: DTZ001
        for day, rest in (
            ((2026, 1, 1), 123_456),
            ((2026, 7, 1), 0),  # summer time in Berlin
            ((1970, 1, 1), 1),
            ((1969, 12, 31, 23, 59, 59), 999_999),
            ((1969, 12, 31, 23, 59, 59), 999_000),
            ((1960, 1, 1), 1),
            ((1900, 1, 1), 0),
            ((1700, 1, 1), 500_000),
            ((1582, 10, 4), 0),
            ((1, 1, 1), 123_456),
            ((9999, 12, 31, 23, 59, 59), 999_999),
            ((2262, 4, 11), 0),
        )
    ),
    -377_705_116_800 * SECOND,
    266_057_654_400 * SECOND,
]
DAYS = [None, 0, 20_455, -1, -141_427, -141_428, -719_162, -719_163, 2_932_896, 2_932_897]
FLOATS = [
    None,
    0.0,
    -0.0,
    1.5,
    float("nan"),
    float("inf"),
    float("-inf"),
    3.4028234663852886e38,
    1.401298464324817e-45,
]


def _integers(bits: int) -> list[int | None]:
    return [None, -(2 ** (bits - 1)), -1, 0, 1, 2 ** (bits - 1) - 1]


def _decimals(precision: int, scale: int) -> list[Decimal | None]:
    greatest = Decimal((0, (9,) * precision, -scale))
    return [None, greatest, greatest.copy_negate(), Decimal((0, (1,), -scale)), Decimal((0, (0,), -scale))]


def _moments(digits: int) -> list[int | None]:
    kept = SECOND if digits == 0 else 1_000 if digits <= 3 else 1
    return [None if each is None else each // kept * kept for each in MICROS]


TYPES: dict[str, list[Any]] = {
    "BOOLEAN": [None, True, False],
    "TINYINT": _integers(8),
    "SMALLINT": _integers(16),
    "INT": _integers(32),
    "BIGINT": _integers(64),
    "FLOAT": FLOATS,
    "DOUBLE": [*FLOATS, 1.7976931348623157e308, 5e-324],
    **{
        f"DECIMAL({digits}, {scale})": _decimals(digits, scale)
        for digits, scale in ((9, 2), (18, 4), (38, 10), (38, 38))
    },
    "STRING": [None, "", "a", "é", "x" * 5_000, "\0", "\U0001f600"],
    "CHAR(3)": [None, "abc", "a  "],
    "VARCHAR(5)": [None, "", "abcde", "ä  "],
    "BYTES": [None, b"", b"\xff\x00", b"x" * 3_000],
    "BINARY(3)": [None, b"abc"],
    "VARBINARY(5)": [None, b"", b"abcde"],
    "DATE": DAYS,
    **{
        f"TIMESTAMP({digits}){zone}": _moments(digits)
        for digits in (0, 1, 3, 4, 6, 7, 9)
        for zone in ("", " WITH LOCAL TIME ZONE")
    },
    "VARIANT": [None, {"value": b"\x0c\x09", "metadata": b"\x01\x00\x00"}],
}
"""Values of each type: least, greatest, typical ones, before 1970, NULL. Moments are microseconds, days count from 1970."""

NOT_IN_AVRO = ("(7)", "(9)")


def _array(kind: str, values: list[Any]) -> pa.Array:
    """Return the values as a batch of Spark has them."""
    arrow = PyarrowFieldParser.from_paimon_type(AtomicType(kind))
    if pa.types.is_timestamp(arrow):
        return pa.array(values, pa.timestamp("us", arrow.tz))
    return pa.array(values, pa.int32()).cast(arrow) if kind == "DATE" else pa.array(values, arrow)


def _in_array(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, 0, *range(1, len(values) + 1)], pa.int32()), values)


def _in_map(values: pa.Array) -> pa.Array:
    offsets = pa.array([0, 0, *range(1, len(values) + 1)], pa.int32())
    return pa.MapArray.from_arrays(offsets, pa.array([f"k{at}" for at in range(len(values))]), values)


def _as_key(values: pa.Array) -> pa.Array:
    keys = values.drop_null()
    return pa.MapArray.from_arrays(
        pa.array([0, *range(len(keys) + 1)], pa.int32()), keys, pa.array(range(len(keys)), pa.int32())
    )


def _in_row(values: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([values, pa.array(range(len(values)), pa.int32())], ["a", "b"])


def _row_of(kind: Any) -> Any:
    return RowType(True, [DataField(1, "a", kind), DataField(2, "b", AtomicType("INT"))])  # noqa: FBT003 - nullable


def _map_of(kind: Any) -> Any:
    return MapType(True, AtomicType("STRING", False), kind)  # noqa: FBT003


def _array_of(kind: Any) -> Any:
    return ArrayType(True, kind)  # noqa: FBT003


NESTS: dict[str, tuple[Callable[[Any], Any], Callable[[pa.Array], pa.Array]]] = {
    "plain": (lambda kind: kind, lambda values: values),
    "array": (_array_of, _in_array),
    "map": (_map_of, _in_map),
    "key of a map": (
        lambda kind: MapType(True, AtomicType(str(kind), False), AtomicType("INT")),  # noqa: FBT003
        _as_key,
    ),
    "row": (_row_of, _in_row),
    "row of NOT NULL": (
        lambda kind: RowType(True, [DataField(1, "a", AtomicType(str(kind), False))]),  # noqa: FBT003
        lambda values: pa.StructArray.from_arrays([values.drop_null()], ["a"]),
    ),
    "array of NOT NULL": (
        lambda kind: _array_of(AtomicType(str(kind), False)),  # noqa: FBT003
        lambda values: _in_array(values.drop_null()),
    ),
    "map of NOT NULL": (
        lambda kind: _map_of(AtomicType(str(kind), False)),  # noqa: FBT003
        lambda values: _in_map(values.drop_null()),
    ),
    "row in an array": (lambda kind: _array_of(_row_of(kind)), lambda values: _in_array(_in_row(values))),
    "array in a map": (lambda kind: _map_of(_array_of(kind)), lambda values: _in_map(_in_array(values))),
}


class _Tables:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._catalog = CatalogFactory.create({"warehouse": str(folder)})
        self._catalog.create_database("test", ignore_if_exists=True)
        self._number = 0

    def create(self, kind: Any, options: dict[str, str], *, keyed: bool = False) -> TableAddress:
        self._number += 1
        fields = [DataField(0, "id", AtomicType("INT", not keyed)), DataField(9, "v", kind)]
        made = Schema(fields, primary_keys=["id"] if keyed else [], options=options)
        self._catalog.create_table(f"test.t{self._number}", made, ignore_if_exists=False)
        return address(str(self._folder / "test.db" / f"t{self._number}"))


def _staged(where: TableAddress, rows: pa.Table) -> list[Any]:
    """Return the commit messages of the executors' function."""
    staging = Staging(where, "w", 1, "data-", None, None)
    if where.open().is_primary_key_table:
        rows = pa.Table.from_batches(list(_grouping(where, rows)))
        staging = Staging(
            where, "w", 1, "data-", None, None, groups=frozenset(rows[GROUP].to_pylist()), first_sequence=1
        )
    staged = staging_function(staging)(rows.to_batches())
    return [pickle.loads(message.as_py()) for batch in staged for message in batch.column(0)]  # noqa: S301 - our own


def _grouping(where: TableAddress, rows: pa.Table) -> Iterator[pa.RecordBatch]:
    yield from grouping_function(where)(rows.to_batches())


def _read(where: TableAddress) -> list[str]:
    builder = where.open().new_read_builder()
    return sorted(rendered(builder.new_read().to_arrow(builder.new_scan().plan().splits())))


def _refusal(what: Callable[[], object]) -> str | None:
    try:
        what()
    except ValueError as error:
        return str(error)
    return None


def _accepted(where: TableAddress, rows: pa.Table) -> pa.Table:
    """Return the rows that the sink doesn't refuse. The others' error names column and table."""
    if _refusal(lambda: _staged(where, rows)) is None:
        return rows
    kept = []
    for row in (rows.take([at]) for at in range(rows.num_rows)):
        refused = _refusal(partial(_staged, where, row))
        if refused is None:
            kept.append(row)
            continue
        assert where.uri.removeprefix("file://") in refused
        assert "column 'v'" in refused or "in an array in Avro" in refused
    return pa.concat_tables(kept)


def _is_refused(where: TableAddress, kind: str, nest: str) -> bool:
    """Return whether the sink refuses the table, which must be one of the documented ones."""
    table = where.open()
    refused = _refusal(lambda: require_supported(table, upsert=True, keys=["id"]))
    if refused is None:
        return False
    file_format = table.table_schema.options["file.format"]
    assert where.uri.removeprefix("file://") in refused
    in_orc = "ZONE" in kind or nest == "row of NOT NULL"
    in_avro = "map" in nest or any(each in kind for each in NOT_IN_AVRO)
    documented = {"parquet": False, "orc": in_orc, "avro": in_avro}[file_format]
    assert documented or (kind == "VARIANT" and file_format != "parquet"), refused
    return True


def _create(
    tables: _Tables, kind: str, nest: str, file_format: str, *, keyed: bool = False
) -> TableAddress | None:
    """Return a new table that the sink accepts. None: it accepts none of this type and format."""
    for more in ({}, {"orc.timestamp-ltz.legacy.type": "false"}):
        options = {"file.format": file_format, **more, **({"bucket": "1"} if keyed else {})}
        where = tables.create(NESTS[nest][0](AtomicType(kind)), options, keyed=keyed)
        if not _is_refused(where, kind, nest):
            return where
    return None


def _written(where: TableAddress, rows: pa.Table) -> list[str]:
    """Write what the sink accepts of the rows. Return these, as the table's types have them."""
    rows = _accepted(where, rows)
    commit(where, _staged(where, rows))
    table = where.open()
    return sorted(rendered(in_types(rows, arrow_schema(table), table)))


def _as_java_has(rows: list[str], kind: str, file_format: str) -> list[str]:
    """Java's reader of ORC leaves out the blanks of a CHAR, of its own rows too."""
    return [row.replace("a  ", "a") for row in rows] if (kind, file_format) == ("CHAR(3)", "orc") else rows


def _rows(values: pa.Array) -> pa.Table:
    return pa.table({"id": pa.array(range(len(values)), pa.int32()), "v": values})


@pytest.mark.parametrize(
    ("nest", "file_format"),
    [
        pytest.param(
            nest,
            form,
            marks=[] if form in (FORMATS if nest == "plain" else FORMATS[number % 3]) else pytest.mark.matrix,
        )
        for number, nest in enumerate(NESTS)
        for form in FORMATS
    ],
)
def test_java_and_pypaimon_read_what_was_written(
    tmp_path: Path, java: JavaPaimon, nest: str, file_format: str
) -> None:
    tables = _Tables(tmp_path)
    for kind, values in TYPES.items():
        where = _create(tables, kind, nest, file_format)
        if where is None:
            continue
        written = _written(where, _rows(NESTS[nest][1](_array(kind, values))))
        assert _read(where) == written, kind
        assert sorted(rendered(java.table(where.uri))) == _as_java_has(written, kind, file_format), kind


@pytest.mark.parametrize("file_format", FORMATS)
def test_java_compacts_what_was_written(tmp_path: Path, java: JavaPaimon, file_format: str) -> None:
    """With a primary key. Two batches, so that there is something to compact."""
    tables = _Tables(tmp_path)
    for kind, values in TYPES.items():
        where = _create(tables, kind, "plain", file_format, keyed=True)
        if where is None:
            continue
        rows = _rows(_array(kind, values))
        _written(where, rows)
        written = _written(where, rows)
        java.compact(where.uri, 1)
        expected = _as_java_has(written, kind, file_format)
        assert sorted(rendered(java.table(where.uri))) == expected, kind
        assert [row.replace("a  ", "a") for row in _read(where)] == [
            row.replace("a  ", "a") for row in written
        ], kind


@pytest.mark.parametrize("file_format", FORMATS)
def test_java_reads_each_codec(tmp_path: Path, java: JavaPaimon, file_format: str) -> None:
    """Those of files and of manifests that `require_supported` accepts."""
    tables = _Tables(tmp_path)
    accepted, _ = OPTIONS["manifest.compression"]
    for option, codecs in (
        ("file.compression", COMPRESSIONS[file_format]),
        ("manifest.compression", accepted),
    ):
        for codec in codecs:
            where = tables.create(
                AtomicType("STRING"), {"file.format": file_format, option: codec}, keyed=False
            )
            assert not _is_refused(where, "STRING", "plain")
            written = _written(where, _rows(_array("STRING", ["a" * 500] * 50)))
            assert sorted(rendered(java.table(where.uri))) == written, codec
