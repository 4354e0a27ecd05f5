"""How table formats spell a value in a partition path. Sinks and watchers must spell alike: markers are compared as text."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote_plus

HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
PAIMON_NULL: Final = "__DEFAULT_PARTITION__"

_PAIMON_ESCAPED: Final = frozenset("\"#%'*/:=?\\{}[]^\x7f") | {chr(code) for code in range(32)}
_ONLY_PYTHONS_SPACE: Final = frozenset("\x85\xa0\u2007\u202f")
_HIVE_ESCAPED: Final = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(1, 32)}


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
    """Return the date so many days after 1970-01-01, in the Gregorian calendar."""
    era, day = divmod(days + 719_468, 146_097)  # from 0000-03-01 on, in cycles of 400 years
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    number = month + 3 if month < 10 else month - 9
    return f"{year + 400 * era + (number <= 2):04d}-{number:02d}-{day - (153 * month + 2) // 5 + 1:02d}"
