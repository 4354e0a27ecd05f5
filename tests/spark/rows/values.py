"""Rows as they are in a table's files, each as one text: equal texts are equal rows, to the last bit that Spark distinguishes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

Rows: TypeAlias = Counter[tuple[str, str]]
"""How often each row is in a partition: by the partition as the format spells it, and the row as a text."""


def rendered(table: pa.Table) -> list[str]:
    """Return each row as a text. Dates and timestamps are numbers: a year may be beyond Python's.

    A file may have its columns in another order, and may lack one that is NULL.
    """
    plain = {name: _plain(table.column(name).combine_chunks()) for name in sorted(table.column_names)}
    return [
        ", ".join(f"{name}={values[row]!r}" for name, values in plain.items() if values[row] is not None)
        for row in range(table.num_rows)
    ]


def file_rows(path: str) -> pa.Table:
    """Return the rows of a Parquet file."""
    return pq.ParquetFile(path, coerce_int96_timestamp_unit="us").read()


def counted(rows: Iterable[tuple[str, pa.Table]]) -> Rows:
    """Count the rows of partitions."""
    return Counter((partition, text) for partition, table in rows for text in rendered(table))


def difference(native: Rows, sink: Rows) -> str:
    """Return what differs, or an empty text."""
    return "; ".join(
        f"{title} {count} x {partition or '(no partition)'}: {row}"
        for title, rows in (("only native", native - sink), ("only sink", sink - native))
        for (partition, row), count in sorted(rows.items())
    )


def _plain(column: Any) -> list[Any]:
    """Return the values of an Arrow array as what Python prints exactly."""
    kind = column.type
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in _plain(chunk)]
    if pa.types.is_struct(kind):
        fields = [
            (kind.field(number).name, _plain(column.field(number))) for number in range(kind.num_fields)
        ]
        return _with_nulls(
            column, [{name: values[row] for name, values in fields} for row in range(len(column))]
        )
    if pa.types.is_map(kind):
        keys, items, offsets = _plain(column.keys), _plain(column.items), column.offsets.to_pylist()
        first = offsets[0] if offsets else 0
        entries = list(zip(keys, items, strict=True))
        spans = [(start - first, end - first) for start, end in pairwise(offsets)]
        return _with_nulls(column, [_Entries(entries[start:end]) for start, end in spans])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [None if one is None else _plain(one) for one in (each.values for each in column)]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        texts = column.cast(pa.large_binary()).to_pylist()
        return [None if text is None else text.decode(errors="backslashreplace") for text in texts]
    if pa.types.is_timestamp(kind):
        return _with_nulls(
            column, [_Number(f"{each}{kind.unit}") for each in column.cast(pa.int64()).to_pylist()]
        )
    if pa.types.is_date32(kind):
        return _with_nulls(column, [_Number(f"{each}d") for each in column.cast(pa.int32()).to_pylist()])
    return list(column.to_pylist())


class _Number(str):
    """A count of units since 1970, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class _Entries(list[Any]):
    """The entries of a map, in their order."""

    def __repr__(self) -> str:
        return f"map{super().__repr__()}"


def _with_nulls(column: Any, values: list[Any]) -> list[Any]:
    return [
        value if valid else None for value, valid in zip(values, column.is_valid().to_pylist(), strict=True)
    ]
