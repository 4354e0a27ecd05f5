r"""Partition paths made from rows, as each table format spells them.

Markers are compared as strings. Two writers that spell one partition in two ways (`day=3` and `day=03`) never conflict, and
nothing shows it. So a path is made here, from values in the types of the *table's* partition columns, never of the batch's:

    days = PartitionPaths("hudi", {"region": "string", "day": "date"})
    days.path({"region": "eu", "day": "2026-11-21"})  # eu/2026-11-21
    gate.foreach_batch(write, table=…, writer=…, admission="queued", scope=days.scope)

| format | `region='a b'`, `day=NULL` | escaped |
| --- | --- | --- |
| `hive`, `delta` | `region=a b/day=__HIVE_DEFAULT_PARTITION__` | control characters and `"#%'*/:=?\{[]^`, as `%2F` |
| `hudi` | `a b/__HIVE_DEFAULT_PARTITION__`; with `hive_style` as `hive` | nothing; with `url_encode` the same as `hive` |
| `iceberg` | `region=a+b/day=null` | as in a URL's query |
| `paimon` | `region=a b/day=__DEFAULT_PARTITION__` | as `hive`, and `}` and NUL |

An empty string is spelled as NULL, except by Iceberg. Paimon does so with blank strings too, and spells a date as its days since
1970, unless the table has `partition.legacy-name=false`. `PaimonSink` spells the same way. Hudi's `/a//b/` is the folder `a/b`;
parts `.` and `..` are refused.

Delta and Iceberg also have timestamps, as instants in UTC, and floating-point numbers, as Java prints them from release 19 on;
Iceberg has binary, in base 64. Other formats spell them by the session's time zone, or by the release of Java, so they are
refused there. So is binary in Delta, which changes bytes that are no UTF-8. Iceberg's transforms (`days(ts)`, `bucket(…)`) aren't
computed here: name the partition field and its type, and pass the transform's value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lakewarden.events import Marker, Operation
from lakewarden.handlers.partition_spelling import (
    HIVE_NULL,
    PAIMON_NULL,
    binary_text,
    delta_value,
    escape_as_hive,
    escape_as_java_url,
    escape_as_paimon,
    hudi_folder,
    iceberg_moment,
    is_blank_in_java,
    moment,
    number_text,
)
from lakewarden.spark_jobs.engine.engine import quoted
from lakewarden.spark_jobs.gate.scope import BatchScope, as_markers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

TableFormat: TypeAlias = Literal["hive", "delta", "hudi", "iceberg", "paimon"]

MAX_PARTITIONS = 10_000
"""Partitions of one scope: as many markers as one intent holds."""


Reader: TypeAlias = Callable[[Any], "str | None"]
"""Spells a value. None: it isn't of the type."""


@dataclass(frozen=True, slots=True)
class _Spelling:
    null: str
    named: bool = True
    escape: Callable[[str], str] = str
    is_null: Callable[[str], bool] = lambda text: not text
    folder: Callable[[str], str] = str
    """Returns the path as the folder that it names."""
    readers: Mapping[str, Reader] = field(default_factory=dict)
    """Readers of types that this format spells in its own way."""


def _spelling(table_format: TableFormat, *, hive_style: bool, url_encode: bool) -> _Spelling:
    match table_format:
        case "delta":
            return _Spelling(HIVE_NULL, escape=escape_as_hive, readers=_DELTA)
        case "hive":
            return _Spelling(HIVE_NULL, escape=escape_as_hive)
        case "hudi":
            escape = escape_as_hive if url_encode else str
            return _Spelling(
                HIVE_NULL, named=hive_style, escape=escape, folder=_hudi_folder, readers={_DECIMAL: str}
            )
        case "iceberg":
            return _Spelling("null", escape=escape_as_java_url, is_null=lambda _: False, readers=_ICEBERG)
        case "paimon":
            return _Spelling(PAIMON_NULL, escape=escape_as_paimon, is_null=is_blank_in_java, readers=_PAIMON)


def _hudi_folder(path: str) -> str:
    if not {".", ".."}.isdisjoint(path.split("/")):
        raise ValueError(
            f"the partition {path!r} has a part '.' or '..', which is another folder in each file system: write another value"
        )
    return hudi_folder(path)


def collected(kind: str, value: str) -> str:
    """Return SQL that collects a value, given as SQL, without Python's time zone and beyond its years.

    It is equal for values that Spark's `=` takes for equal: -0.0 is collected as 0.0.
    """
    match kind:
        case "date":
            return f"CAST({value} AS string)"
        case "timestamp":
            return f"unix_micros({value})"
        case "timestamp_ntz":
            return f"unix_micros(CAST(concat(CAST({value} AS string), 'Z') AS timestamp_ltz))"
        case "float" | "double":
            return f"CAST({value} + CAST(0 AS {kind}) AS string)"
        case "binary":
            return f"hex({value})"
        case _:
            return value


def in_sql(kind: str) -> str:
    """Return a type for SQL, where `spark.sql.timestampType` may give `timestamp` another meaning than a schema does."""
    return "timestamp_ltz" if kind == "timestamp" else kind


def in_hex(text: str, kind: str = "string") -> str:
    """Return a text as SQL that needs no escapes."""
    return f"CAST(X'{text.encode().hex()}' AS {kind})"


def type_in_sql(kind: DataType) -> str:
    """Return a type for SQL, as `in_sql`, with its fields' names quoted: `simpleString()` writes them as they are."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    match kind:
        case StructType():
            fields = (f"{quoted(field.name)}: {type_in_sql(field.dataType)}" for field in kind.fields)
            return f"STRUCT<{', '.join(fields)}>"
        case ArrayType():
            return f"ARRAY<{type_in_sql(kind.elementType)}>"
        case MapType():
            return f"MAP<{type_in_sql(kind.keyType)}, {type_in_sql(kind.valueType)}>"
        case _:
            return in_sql(kind.simpleString())


class PartitionPaths:
    """Makes the partition paths of one table. `columns` maps its partition columns, in order, to their Spark types."""

    def __init__(
        self,
        table_format: TableFormat,
        columns: Mapping[str, str],
        *,
        hive_style: bool = False,
        url_encode: bool = False,
    ) -> None:
        """`hive_style` and `url_encode` are Hudi's options of these names, and only Hudi's."""
        if (hive_style or url_encode) and table_format != "hudi":
            raise ValueError(f"hive_style and url_encode are options of Hudi tables, not of {table_format!r}")
        self._spelling = _spelling(table_format, hive_style=hive_style, url_encode=url_encode)
        readers = self._spelling.readers
        self._columns = {name: (kind, _reader(name, kind, readers)) for name, kind in columns.items()}

    def path(self, row: Mapping[str, Any] | Sequence[Any]) -> str:
        """Return the path of a row's partition: of its values by name, or of the partition values in the table's order.

        It is empty for an unpartitioned table. Raises `ValueError` for a value that isn't of its column's type.
        """
        values = [row[name] for name in self._columns] if isinstance(row, Mapping) else list(row)
        path = "/".join(
            self._component(name, value) for name, value in zip(self._columns, values, strict=True)
        )
        return self._spelling.folder(path)

    def marker(self, row: Mapping[str, Any] | Sequence[Any], file_group: str, operation: Operation) -> Marker:
        return Marker(partition=self.path(row), file_group=file_group, operation=operation)

    def scope(self, batch: DataFrame) -> BatchScope | None:
        """Return the batch's partitions, each as a whole, by one Spark job. None if there are more than `MAX_PARTITIONS`.

        The batch's columns are cast to the table's types. An unpartitioned table is one partition.
        """
        if not self._columns:
            partitions: list[tuple[Any, ...]] = [()]
        else:
            values = (
                collected(kind, f"CAST({quoted(name)} AS {in_sql(kind)})")
                for name, (kind, _) in self._columns.items()
            )
            rows = batch.selectExpr(*values).distinct().limit(MAX_PARTITIONS + 1).collect()
            partitions = [tuple(row) for row in rows]
        if len(partitions) > MAX_PARTITIONS:
            return None
        return BatchScope(as_markers(dict.fromkeys(map(self.path, partitions))))

    def _component(self, name: str, value: Any) -> str:
        spelling = self._spelling
        text = None if value is None else self._columns[name][1](value)
        spelled = spelling.null if text is None or spelling.is_null(text) else spelling.escape(text)
        return f"{spelling.escape(name)}={spelled}" if spelling.named else spelled


_DECIMAL = "decimal(p,s)"
"""Hudi and Iceberg spell a small one with an exponent, as Java's `toString`, which has the rule of Python's `str`: `1E-10`."""
TYPES = ("string", "boolean", "tinyint", "smallint", "int", "bigint", "date", _DECIMAL)
"""Spark types of partition columns, with the aliases `integer`, `long`, `short` and `byte`."""

_FAR_DATE = re.compile(r"(?:0000|-\d{4,7}|\+\d{5,7})-\d{2}-\d{2}")
"""A date before the year 1 or after 9999, as Spark casts it to text. Python has none."""


def _reader(name: str, kind: str, readers: Mapping[str, Reader]) -> Callable[[Any], str]:
    """Return the function that spells a value of this type; it raises `ValueError` for values of other types."""
    lowered = kind.lower().replace(" ", "")
    read = readers.get(lowered) or _READERS.get(lowered)
    if read is None and lowered.startswith("decimal("):
        spell = readers.get(_DECIMAL, "{:f}".format)
        read = partial(_decimal, scale=int(lowered[8:-1].partition(",")[2] or "0"), spell=spell)
    if read is None:
        types = ", ".join([*TYPES, *(other for other in readers if other not in TYPES)])
        raise ValueError(
            f"partition column {name!r} is of type {kind!r}, which has no single spelling; partition by one of {types}"
        )

    def spelled(value: Any) -> str:
        text = read(value)
        if text is None:
            raise ValueError(f"partition column {name!r} is of type {kind}, and {value!r} isn't")
        return text

    return spelled


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _integer(value: Any) -> str | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        text = value.strip()
        return (
            str(int(text)) if text.removeprefix("-").isascii() and text.removeprefix("-").isdigit() else None
        )
    return str(value) if isinstance(value, int) else None


def _boolean(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return value.lower() if isinstance(value, str) and value.lower() in {"true", "false"} else None


def _date(value: Any) -> str | None:
    if isinstance(value, datetime):
        return None
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str) and _FAR_DATE.fullmatch(value):
        return value
    try:
        return date.fromisoformat(value).isoformat() if isinstance(value, str) else None
    except ValueError:
        return None


def _decimal(value: Any, scale: int, spell: Reader) -> str | None:
    if isinstance(value, bool) or not isinstance(value, Decimal | int | str):
        return None
    try:
        number = Decimal(value)
        return (
            spell(number.quantize(Decimal(1).scaleb(-scale), context=_EXACT)) if number.is_finite() else None
        )
    except InvalidOperation:
        return None


def _moment(spell: Callable[[int], str], *, zoned: bool, from_text: Reader = lambda _: None) -> Reader:
    def read(value: Any) -> str | None:
        if isinstance(value, datetime) and (value.tzinfo is not None) == zoned:
            value = (value.replace(tzinfo=value.tzinfo or UTC) - _EPOCH) // timedelta(microseconds=1)
        if isinstance(value, str):
            return from_text(value)
        return spell(value) if isinstance(value, int) and not isinstance(value, bool) else None

    return read


def _delta_instant(micros: int) -> str:
    text = moment(micros)
    if text[0] in "+-" or text.startswith("0000"):
        raise ValueError(
            f"Delta stores instants before the year 1 or after 9999 without their time zone: {text} UTC"
        )
    return delta_value(f"{text}Z", "timestamp")


def _number(value: Any, kind: str) -> str | None:
    return number_text(float(value), kind) if isinstance(value, str | int | float) else None


def _binary(value: Any) -> str | None:
    """A text is hexadecimal."""
    return binary_text(bytes.fromhex(value) if isinstance(value, str) else bytes(value))


def _year_of_java(value: Any) -> str | None:
    """Return a date with its year as Java's `%04d`."""
    year, month, day = (_date(value) or "--").rsplit("-", 2)
    return f"{int(year):04d}-{month}-{day}" if month else None


def _epoch_days(value: Any) -> str | None:
    text = _date(value)
    return None if text is None else str((date.fromisoformat(text) - date(1970, 1, 1)).days)


_EXACT = Context(prec=2 * 38, rounding=ROUND_HALF_UP)
"""Spark's decimals have up to 38 digits. Python's own context has 28."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_READERS: Mapping[str, Reader] = {
    **dict.fromkeys(("tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long"), _integer),
    "string": _text,
    "boolean": _boolean,
    "date": _date,
}
_NUMBERS: Mapping[str, Reader] = {kind: partial(_number, kind=kind) for kind in ("float", "double")}
_DELTA: Mapping[str, Reader] = {
    "timestamp": _moment(_delta_instant, zoned=True, from_text=partial(delta_value, kind="timestamp")),
    "timestamp_ntz": _moment(moment, zoned=False, from_text=partial(delta_value, kind="timestamp_ntz")),
    **_NUMBERS,
}
_ICEBERG: Mapping[str, Reader] = {
    "date": _year_of_java,
    "timestamp": _moment(partial(iceberg_moment, zoned=True), zoned=True),
    "timestamp_ntz": _moment(partial(iceberg_moment, zoned=False), zoned=False),
    "binary": _binary,
    _DECIMAL: str,
    **_NUMBERS,
}
_PAIMON: Mapping[str, Reader] = {"date": _epoch_days}
