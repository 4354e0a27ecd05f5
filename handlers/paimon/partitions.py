"""The one spelling of a Paimon partition: the folder in which Java Paimon and pypaimon look for its files.

| type | `partition.legacy-name` (the default) | otherwise |
| --- | --- | --- |
| integers, `CHAR`, `VARCHAR`, `STRING`, `DECIMAL` | `7`, `a b`, `1.50` | the same |
| `BOOLEAN` | `true` | the same |
| `DATE` | days since 1970: `20455` | `2026-01-02` |
| `TIMESTAMP(p)` | `2026-01-02T03:04`, then `:05` and `.600` if not 0 | `2026-01-02 03:04:05.600` |
| `TIMESTAMP(p) WITH LOCAL TIME ZONE` | the same, in UTC | none: Java takes the time zone of its machine |
| `FLOAT`, `DOUBLE` | none: the digits depend on the release of Java | |
| `BINARY`, `TIME` and others | none | |

NULL, the empty text and a blank one share a folder, `__DEFAULT_PARTITION__`, and are three partitions in the manifests. Names and
values are escaped: `a/b` is `a%2Fb`.

In a manifest a partition is a `BinaryRow`:

4 bytes     number of fields, big-endian
1 byte      row kind
n bits      which fields are null; with the row kind in words of 8 bytes
8 bytes     per field: its value, little-endian; of a text its place, or the text itself if it has up to 7 bytes
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Self

from lakewarden.handlers.partition_spelling import PAIMON_NULL, date_of, escape_as_paimon, is_blank_in_java
from lakewarden.handlers.unreadable import Unreadable

_INTEGERS: Final = {"TINYINT": "<b", "SMALLINT": "<h", "INT": "<i", "INTEGER": "<i", "BIGINT": "<q"}
_TEXTS: Final = frozenset({"STRING", "VARCHAR", "CHAR"})
_DECIMALS: Final = frozenset({"DECIMAL", "NUMERIC"})
_SPELLED: Final = {*_INTEGERS, *_TEXTS, *_DECIMALS, "BOOLEAN", "DATE", "TIMESTAMP", "LTZ"}
_INLINE: Final = 0x80
_COMPACT_PRECISION: Final = 18
"""Precision of decimals that fit into a field."""
MAX_SCALE: Final = 38
_COMPACT_TIMESTAMP: Final = 3
"""Precision of timestamps that fit into a field."""
_DAY_NANOS: Final = 86_400_000_000_000
_MILLI, _MICRO, _SECOND = 1_000_000, 1_000, 1_000_000_000
_LAST_YEAR_DAYS: Final = 2_932_897
"""10000-01-01, from which on Java writes a plus before the year."""


@dataclass(frozen=True, slots=True)
class PaimonPartitionColumn:
    """A partition column, and its type without nullability: `DECIMAL(10, 2)`."""

    name: str
    kind: str

    @property
    def base(self) -> str:
        return "LTZ" if self._is_local else self.kind.partition("(")[0].strip()

    @property
    def _is_local(self) -> bool:
        return "LOCAL TIME ZONE" in self.kind or self.kind.startswith("TIMESTAMP_LTZ")

    def parameters(self, *default: int) -> tuple[int, ...]:
        inner = self.kind.partition("(")[2].partition(")")[0]
        given = tuple(int(number) for number in inner.split(",") if number.strip().isdigit())
        return given + default[len(given) :]


@dataclass(frozen=True, slots=True)
class PartitionSpelling:
    """The partition columns of a table, and the options that decide how their values are spelled."""

    columns: tuple[PaimonPartitionColumn, ...]
    null: str = PAIMON_NULL
    legacy: bool = True

    @classmethod
    def of(cls, columns: Iterable[tuple[str, str]], options: Mapping[str, str]) -> Self:
        """`columns` are names and types, as the table's schema has them."""
        return cls(
            tuple(
                PaimonPartitionColumn(name, kind.upper().removesuffix(" NOT NULL").strip())
                for name, kind in columns
            ),
            options.get("partition.default-name", PAIMON_NULL),
            options.get("partition.legacy-name", "true").lower() != "false",
        )

    @property
    def refusal(self) -> str | None:
        """Why the table's partitions have no single spelling. None: they have one."""
        for column in self.columns:
            if column.base in {"FLOAT", "REAL", "DOUBLE"}:
                why = "the name of its folder depends on the release of Java"
            elif column.base == "LTZ" and not self.legacy:
                why = "with partition.legacy-name=false the name of its folder depends on the time zone of a machine"
            elif column.base in _SPELLED:
                continue
            else:
                why = "its values have no name of a folder that all readers find"
            return f"partition column {column.name!r} is of type {column.kind}, and {why}"
        return None

    def path(self, values: Sequence[Any]) -> str:
        """Return the path of a partition. Raises `ValueError` for a type without a single spelling.

        A date is its days since 1970, a timestamp its nanoseconds.
        """
        return "/".join(
            f"{escape_as_paimon(column.name)}={escape_as_paimon(self._component(column, value))}"
            for column, value in zip(self.columns, values, strict=True)
        )

    def path_of_row(self, row: bytes) -> str:
        """Return the path of a partition in a manifest. Raises `ValueError`, also for types without a single spelling."""
        try:
            count = len(self.columns)
            return self.path(
                [_value(row[4:], number, count, each) for number, each in enumerate(self.columns)]
            )
        except (struct.error, IndexError) as error:
            raise ValueError(f"a partition's row ends too early: {error}") from error

    def _component(self, column: PaimonPartitionColumn, value: Any) -> str:
        if value is None:
            return self.null
        match column.base:
            case base if base in _INTEGERS:
                return str(int(value))
            case base if base in _DECIMALS:
                scale = min(column.parameters(10, 0)[1], MAX_SCALE)
                return f"{value:.{scale}f}"  # Spark's may have another scale than its type
            case base if base in _TEXTS:
                return self.null if is_blank_in_java(value) else str(value)
            case "BOOLEAN":
                return "true" if value else "false"
            case "DATE":
                return str(value) if self.legacy else date_of(value)
            case "TIMESTAMP":
                return self._timestamp(value, column.parameters(6)[0])
            case "LTZ" if self.legacy:
                return self._timestamp(value, 0)
            case _:
                raise Unreadable(str(self.refusal))

    def _timestamp(self, nanos: int, precision: int) -> str:
        days, rest = divmod(nanos, _DAY_NANOS)
        minutes, rest = divmod(rest, 60 * _SECOND)
        seconds, fraction = divmod(rest, _SECOND)
        day = f"+{date_of(days)}" if days >= _LAST_YEAR_DAYS else date_of(days)
        if self.legacy:
            text = f"{day}T{minutes // 60:02d}:{minutes % 60:02d}"
            if rest:
                text += f":{seconds:02d}"
            if fraction:
                digits = 3 if fraction % _MILLI == 0 else 6 if fraction % _MICRO == 0 else 9
                text += f".{fraction:09d}"[: 1 + digits]
            return text
        shown = f"{fraction:09d}"
        shown = shown[:precision] + shown[precision:].rstrip("0")
        text = f"{day.removeprefix('+')} {minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}"
        return f"{text}.{shown}" if shown else text


def _value(row: bytes, number: int, count: int, column: PaimonPartitionColumn) -> Any:
    bit = number + 8
    if row[bit // 8] & (1 << bit % 8):
        return None
    at = (count + 63 + 8) // 64 * 8 + 8 * number
    match column.base:
        case base if base in _INTEGERS:
            return struct.unpack_from(_INTEGERS[base], row, at)[0]
        case "DATE":
            return struct.unpack_from("<i", row, at)[0]
        case "BOOLEAN":
            return row[at] != 0
        case base if base in _TEXTS:
            return _bytes(row, at).decode()
        case base if base in _DECIMALS:
            precision, scale = column.parameters(10, 0)
            if precision <= _COMPACT_PRECISION:
                (unscaled,) = struct.unpack_from("<q", row, at)
            else:
                unscaled = int.from_bytes(_at_place(row, at), "big", signed=True)
            digits = tuple(int(digit) for digit in str(abs(unscaled)))  # arithmetic would round to 28 digits
            return Decimal((int(unscaled < 0), digits, -scale))
        case "TIMESTAMP" | "LTZ":
            if column.parameters(6)[0] <= _COMPACT_TIMESTAMP:
                return struct.unpack_from("<q", row, at)[0] * _MILLI
            (place,) = struct.unpack_from("<Q", row, at)
            (millis,) = struct.unpack_from("<q", row, place >> 32)
            return millis * _MILLI + (place & 0xFFFFFFFF)
        case _:
            return b""  # its spelling is refused


def _bytes(row: bytes, at: int) -> bytes:
    if row[at + 7] & _INLINE:
        return row[at : at + (row[at + 7] & ~_INLINE)]
    return _at_place(row, at)


def _at_place(row: bytes, at: int) -> bytes:
    (place,) = struct.unpack_from("<Q", row, at)
    return row[place >> 32 :][: place & 0xFFFFFFFF]
