"""How table formats spell a value in a partition path. Sinks and watchers must spell alike: markers are compared as text."""

import base64
import re
from collections.abc import Collection
from ctypes import c_float
from decimal import Decimal
from math import isfinite, isnan
from typing import Any, Final
from urllib.parse import quote_plus

from lakewarden.events.tables import MAX_PATH
from lakewarden.handlers.unreadable import Unreadable

MAX_DIGITS: Final = 38
"""Digits of a decimal in Spark."""
HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
PAIMON_NULL: Final = "__DEFAULT_PARTITION__"

_PAIMON_ESCAPED: Final = frozenset("\"#%'*/:=?\\{}[]^\x7f") | {chr(code) for code in range(32)}
_ONLY_PYTHONS_SPACE: Final = frozenset("\x85\xa0\u2007\u202f")
_HIVE_ESCAPED: Final = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(1, 32)}


def require_short(columns: Collection[str]) -> None:
    """Raise `Unreadable` if no path can have the names of these partition columns: each file of a commit would repeat them."""
    if len(columns) + sum(map(len, columns)) > MAX_PATH:
        raise Unreadable(f"the names of its partition columns have more than {MAX_PATH:,} characters")


def escape_as_hive(text: str) -> str:
    """Escape as Hive, Delta and Spark do: `/` is `%2F`."""
    return "".join(f"%{ord(one):02X}" if one in _HIVE_ESCAPED else one for one in text)


def escape_as_paimon(text: str) -> str:
    """Escape as Paimon does: as Hive, and `}` and NUL, too."""
    return "".join(f"%{ord(one):02X}" if one in _PAIMON_ESCAPED else one for one in text)


def is_blank_in_java(text: str) -> bool:
    """Return whether a text is empty or white space, by Java's `Character.isWhitespace`. A no-break space is none."""
    return not text or (text.isspace() and _ONLY_PYTHONS_SPACE.isdisjoint(text))


def escape_as_java_url(text: str) -> str:
    """Escape as `java.net.URLEncoder` does, which Iceberg uses."""
    return quote_plus(text, safe="*").replace("~", "%7E")


def hudi_folder(path: str) -> str:
    """Return a partition of Hudi as its folder: a value may begin or end with a slash, or have two together."""
    return "/".join(part for part in path.split("/") if part)


def transformed(transform: str, value: Any) -> Any:
    """Return the value of one of Iceberg's partition fields as its paths spell it, where that isn't the value's own text."""
    match transform:
        case "year":
            return f"{1970 + value:04d}"
        case "month":
            return f"{1970 + value // 12:04d}-{value % 12 + 1:02d}"
        case "hour":
            return f"{date_of(value // 24)}-{value % 24:02d}"
        case _:
            return value


def date_of(days: int) -> str:
    """Return the date so many days after 1970-01-01, in the Gregorian calendar, with its year as Java's `%04d`."""
    era, day = divmod(days + 719_468, 146_097)  # from 0000-03-01 on, in cycles of 400 years
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    number = month + 3 if month < 10 else month - 9
    return f"{year + 400 * era + (number <= 2):04d}-{number:02d}-{day - (153 * month + 2) // 5 + 1:02d}"


def moment(micros: int) -> str:
    """Return a timestamp without a time zone as Spark casts it to text, and Delta stores it. Iceberg has a `T` in it."""
    seconds, rest = divmod(micros, 1_000_000)
    days, second = divmod(seconds, 86_400)
    year, month, day = date_of(days).rsplit("-", 2)
    number = int(year)
    sign = "+" if number > 9999 else "-" if number < 0 else ""
    time = f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
    return f"{sign}{abs(number):04d}-{month}-{day} {time}{_fraction(f'{rest:06d}')}"


def iceberg_moment(micros: int, *, zoned: bool) -> str:
    """Return a timestamp as Iceberg spells it."""
    return moment(micros).replace(" ", "T") + "+00:00" * zoned


_MOMENT: Final = re.compile(r"(\S+?)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?(Z?)")


def delta_value(text: str, kind: str) -> str:
    """Return a partition value of Delta's log as Delta's own writer spells it.

    Raises an error for a text that isn't of this type. A timestamp without a time zone is another instant for each reader.
    Delta writes that for years before 1 and after 9999.
    """
    if kind in {"timestamp", "timestamp_ntz"}:
        found = _MOMENT.fullmatch(text)
        if found is None or bool(found[4]) != (kind == "timestamp"):
            raise Unreadable(f"{text!r:.50} is no {kind}, or one without its time zone")
        date, time, fraction, zone = found.groups("")
        return f"{date}T{time}.{fraction:0<6}Z" if zone else f"{date} {time}" + _fraction(fraction)
    if kind in {"float", "double"}:
        return number_text(float(text), kind)
    if kind.startswith("decimal("):
        number = Decimal(text)
        if not abs(number.adjusted()) <= MAX_DIGITS:
            raise Unreadable(f"{text!r:.50} is no {kind}")
        return f"{number:f}"
    return text.lower() if kind == "boolean" else text


def _fraction(digits: str) -> str:
    return f".{digits}".rstrip("0").rstrip(".")


def number_text(value: float, kind: str) -> str:
    """Return a `float` or `double` as Java prints it from release 19 on: by the fewest digits, two at least, that mean it."""
    if not isfinite(value):
        return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"
    texts = (f"{value:.{digits}g}" for digits in range(2, 18))  # Java has two if one is enough: 4.9E-324
    number = Decimal(
        next(text for text in texts if _means(float(text), kind) == _means(value, kind))
    ).normalize()
    sign, digits, exponent = number.as_tuple()
    point = len(digits) + int(exponent)
    if -2 <= point <= 7:
        plain = f"{number:f}"
        return plain if "." in plain else f"{plain}.0"
    first, *others = map(str, digits)
    return f"{'-' * sign}{first}.{''.join(others) or '0'}E{point - 1}"


def _means(value: float, kind: str) -> float:
    return c_float(value).value if kind == "float" else value


def binary_text(value: bytes) -> str:
    """Return bytes as Iceberg spells them."""
    return base64.b64encode(value).decode()
