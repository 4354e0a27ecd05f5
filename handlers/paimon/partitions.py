"""The partition of a file in a Paimon manifest: a `BinaryRow`, and its path as `PaimonSink` spells it.

4 bytes     number of fields, big-endian
1 byte      row kind
n bits      which fields are null; with the row kind in words of 8 bytes
8 bytes     per field: its value, little-endian; of a text its place, or the text itself if it has up to 7 bytes
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from lakewarden.handlers.observations import UnreadableCommit
from lakewarden.handlers.partition_spelling import PAIMON_NULL, date_of

_INTEGERS: Final = {
    "TINYINT": "<b",
    "SMALLINT": "<h",
    "INT": "<i",
    "INTEGER": "<i",
    "BIGINT": "<q",
    "DATE": "<i",
}
_INLINE: Final = 0x80
_COMPACT_PRECISION: Final = 18
"""Of decimals that fit into a field."""


@dataclass(frozen=True, slots=True)
class PartitionColumn:
    """A partition column, and its type without nullability: `DECIMAL(10, 2)`."""

    name: str
    kind: str


def partition_path(row: bytes, columns: Sequence[PartitionColumn]) -> str:
    """Return the path. Raises `UnreadableCommit`, also for types that have no single spelling."""
    try:
        return "/".join(
            f"{column.name}={_spelled(_value(row[4:], number, len(columns), column.kind))}"
            for number, column in enumerate(columns)
        )
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise UnreadableCommit(f"a partition can't be read: {error!r}") from error


def _spelled(text: str | None) -> str:
    return PAIMON_NULL if text is None or not text.strip() else text


def _value(row: bytes, number: int, count: int, kind: str) -> str | None:
    bit = number + 8
    if row[bit // 8] & (1 << bit % 8):
        return None
    at = (count + 63 + 8) // 64 * 8 + 8 * number
    base = kind.partition("(")[0].strip()
    if base in _INTEGERS:
        (found,) = struct.unpack_from(_INTEGERS[base], row, at)
        return date_of(found) if base == "DATE" else str(found)
    match base:
        case "BOOLEAN":
            return str(row[at] != 0)
        case "STRING" | "VARCHAR" | "CHAR":
            return _bytes(row, at).decode()
        case "DECIMAL" | "NUMERIC":
            precision, scale = _precision(kind)
            if precision <= _COMPACT_PRECISION:
                (unscaled,) = struct.unpack_from("<q", row, at)
            else:
                (place,) = struct.unpack_from("<Q", row, at)
                unscaled = int.from_bytes(row[place >> 32 :][: place & 0xFFFFFFFF], "big", signed=True)
            return f"{Decimal(unscaled).scaleb(-scale):f}"
        case _:
            raise UnreadableCommit(f"a partition column is of type {kind}, which has no single spelling")


def _bytes(row: bytes, at: int) -> bytes:
    if row[at + 7] & _INLINE:
        return row[at : at + (row[at + 7] & ~_INLINE)]
    (place,) = struct.unpack_from("<Q", row, at)
    return row[place >> 32 :][: place & 0xFFFFFFFF]


def _precision(kind: str) -> tuple[int, int]:
    inner = kind.partition("(")[2].rstrip(") ")
    precision, _, scale = inner.partition(",")
    return (int(precision), int(scale or 0)) if precision.strip().isdigit() else (10, 0)
