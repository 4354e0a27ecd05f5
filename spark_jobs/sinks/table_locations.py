"""Where a table is, by its name in one of Spark's catalogs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOCATION = "Location"
"""The row of DESCRIBE TABLE EXTENDED that has it, for Spark's own tables as for those of other catalogs."""

_IS_LOCATION = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")


def is_location(table: str) -> bool:
    """Whether `table` is a URI or an absolute path, and no name."""
    return _IS_LOCATION.match(table) is not None


def _quoted(spark: SparkSession, name: str) -> str:
    """Return a table's name for a statement.

    It is no parameter (`IDENTIFIER(:name)`): on Spark 4.1, the parsers of Delta, and of Iceberg before 1.12, lose parameters.
    """
    parts = spark._jsparkSession.sessionState().sqlParser().parseMultipartIdentifier(name)
    return ".".join(f"`{str(parts.apply(at)).replace('`', '``')}`" for at in range(parts.length()))


def location_of(name: str) -> str:
    """Return the location of a table of the active Spark session's catalogs, as the catalog spells it.

    Raises `ValueError` if there is no such table, or if its catalog doesn't give a location.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        spark = SparkSession.active()
        rows = spark.sql(f"DESCRIBE TABLE EXTENDED {_quoted(spark, name)}").collect()
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
