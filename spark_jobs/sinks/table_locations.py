"""Where a table is, by its name in one of Spark's catalogs."""

from __future__ import annotations

import re

from lakewarden.spark_jobs.engine.engine import quoted

_PART = re.compile(r"`(?:[^`]|``)+`|[^`.]+")
"""One part of a name in a catalog."""

_LOCATION = "Location"
"""The row of DESCRIBE TABLE EXTENDED that has it, for Spark's own tables as for those of other catalogs."""

_IS_LOCATION = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")


def is_location(table: str) -> bool:
    """Whether `table` is a URI or an absolute path, and no name."""
    return _IS_LOCATION.match(table) is not None


def quoted_name(name: str) -> str:
    """Return a table's name for a statement.

    It is no parameter (`IDENTIFIER(:name)`): on Spark 4.1, the parsers of Delta, and of Iceberg before 1.12, lose parameters.
    Raises `ValueError` for a name that Spark would read otherwise than as parts with dots between them.
    """
    parts = _PART.findall(name)
    if ".".join(parts) != name:
        raise ValueError(
            f"no name of a table in a catalog: {name!r}; quote a part with other characters by `…`"
        )
    return ".".join(part if part.startswith("`") else quoted(part.strip()) for part in parts)


def location_of(name: str) -> str:
    """Return the location of a table of the active Spark session's catalogs, as the catalog spells it.

    Raises `ValueError` if there is no such table, or if its catalog doesn't give a location.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        rows = SparkSession.active().sql(f"DESCRIBE TABLE EXTENDED {quoted_name(name)}").collect()
    except PySparkException as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"no table of this name: {name!r}; name a table of the Spark session's catalogs, or write "
            f"scheme://authority/path or an absolute local path; {reason}"
        ) from error
    found = [str(row["data_type"] or "") for row in rows if row["col_name"] == _LOCATION]
    if not found or not found[-1]:
        raise ValueError(
            f"the catalog gives no location for table {name!r}; write its URI instead: scheme://authority/path"
        )
    return found[-1]
