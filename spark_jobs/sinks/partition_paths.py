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
1970, unless the table has `partition.legacy-name=false`. `PaimonSink` spells the same way.

Values of other types than those in `TYPES` are refused: the spelling of a timestamp depends on the session's time zone, that
of a float on the library. Iceberg's transforms (`days(ts)`, `bucket(…)`) aren't computed here: name the partition field and its
type, and pass the transform's value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lakewarden.events import ALL_FILE_GROUPS, Marker, Operation
from lakewarden.handlers.partition_spelling import (
    HIVE_NULL,
    PAIMON_NULL,
    escape_as_hive,
    escape_as_java_url,
    escape_as_paimon,
    is_blank_in_java,
)
from lakewarden.spark_jobs.gate.batch_scope import BatchScope

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TableFormat: TypeAlias = Literal["hive", "delta", "hudi", "iceberg", "paimon"]

MAX_PARTITIONS = 10_000
"""Partitions of one scope: as many markers as one intent holds."""


@dataclass(frozen=True, slots=True)
class _Spelling:
    null: str
    named: bool = True
    escape: Callable[[str], str] = str
    is_null: Callable[[str], bool] = lambda text: not text
    date: Callable[[str], str] = str


def _spelling(table_format: TableFormat, *, hive_style: bool, url_encode: bool) -> _Spelling:
    match table_format:
        case "hive" | "delta":
            return _Spelling(HIVE_NULL, escape=escape_as_hive)
        case "hudi":
            return _Spelling(HIVE_NULL, named=hive_style, escape=escape_as_hive if url_encode else str)
        case "iceberg":
            return _Spelling("null", escape=escape_as_java_url, is_null=lambda _: False, date=_as_iceberg)
        case "paimon":
            return _Spelling(PAIMON_NULL, escape=escape_as_paimon, is_null=is_blank_in_java, date=_epoch_days)


def _epoch_days(text: str) -> str:
    return str((date.fromisoformat(text) - date(1970, 1, 1)).days)


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
        self._columns = {name: (kind, _reader(name, kind)) for name, kind in columns.items()}
        self._spelling = _spelling(table_format, hive_style=hive_style, url_encode=url_encode)

    def path(self, row: Mapping[str, Any] | Sequence[Any]) -> str:
        """Return the path of a row's partition: of its values by name, or of the partition values in the table's order.

        It is empty for an unpartitioned table. Raises `ValueError` for a value that isn't of its column's type.
        """
        values = [row[name] for name in self._columns] if isinstance(row, Mapping) else list(row)
        return "/".join(
            self._component(name, value) for name, value in zip(self._columns, values, strict=True)
        )

    def marker(self, row: Mapping[str, Any] | Sequence[Any], file_group: str, operation: Operation) -> Marker:
        """Return a marker in a row's partition."""
        return Marker(partition=self.path(row), file_group=file_group, operation=operation)

    def scope(self, batch: DataFrame) -> BatchScope | None:
        """Return the batch's partitions, each as a whole, by one Spark job. None if there are more than `MAX_PARTITIONS`.

        The batch's columns are cast to the table's types. An unpartitioned table is one partition.
        """
        if not self._columns:
            partitions: list[tuple[Any, ...]] = [()]
        else:
            # Dates are texts, because a year may be beyond those of Python.
            values = (
                f"CAST(CAST(`{name.replace('`', '``')}` AS {kind}) AS {'string' if kind.lower() == 'date' else kind})"
                for name, (kind, _) in self._columns.items()
            )
            rows = batch.selectExpr(*values).distinct().limit(MAX_PARTITIONS + 1).collect()
            partitions = [tuple(row) for row in rows]
        if len(partitions) > MAX_PARTITIONS:
            return None
        paths = dict.fromkeys(self.path(partition) for partition in partitions)
        return BatchScope(
            tuple(Marker(partition=path, file_group=ALL_FILE_GROUPS, operation="merge") for path in paths)
        )

    def _component(self, name: str, value: Any) -> str:
        spelling = self._spelling
        kind, read = self._columns[name]
        text = None if value is None else read(value)
        if text is not None and kind.lower() == "date":
            text = spelling.date(text)
        spelled = spelling.null if text is None or spelling.is_null(text) else spelling.escape(text)
        return f"{spelling.escape(name)}={spelled}" if spelling.named else spelled


TYPES = ("string", "boolean", "tinyint", "smallint", "int", "bigint", "date", "decimal(p,s)")
"""Spark types of partition columns, with the aliases `integer`, `long`, `short` and `byte`."""

_FAR_DATE = re.compile(r"(?:0000|-\d{4,7}|\+\d{5,7})-\d{2}-\d{2}")
"""A date before the year 1 or after 9999, as Spark casts it to text. Python has none."""


def _as_iceberg(text: str) -> str:
    """Return a date with its year as Java's `%04d`."""
    year, month, day = text.rsplit("-", 2)
    return f"{int(year):04d}-{month}-{day}"


_INTEGERS = {"tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long"}


def _reader(name: str, kind: str) -> Callable[[Any], str]:
    """Return the function that spells a value of this type; it raises `ValueError` for values of other types."""
    lowered = kind.lower().replace(" ", "")
    if lowered == "string":
        read: Callable[[Any], str | None] = _text
    elif lowered in _INTEGERS:
        read = _integer
    elif lowered == "boolean":
        read = _boolean
    elif lowered == "date":
        read = _date
    elif lowered.startswith("decimal(") and lowered.endswith(")"):
        scale = int(lowered[8:-1].partition(",")[2] or "0")

        def read(value: Any) -> str | None:
            return _decimal(value, scale)

    else:
        raise ValueError(
            f"partition column {name!r} is of type {kind!r}, which has no single spelling; "
            f"partition by one of {', '.join(TYPES)}"
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


def _decimal(value: Any, scale: int) -> str | None:
    if isinstance(value, bool) or not isinstance(value, Decimal | int | str):
        return None
    try:
        number = Decimal(value)
        return (
            f"{number.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP):f}" if number.is_finite() else None
        )
    except InvalidOperation:
        return None
