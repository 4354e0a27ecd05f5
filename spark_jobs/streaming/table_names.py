"""Names of tables in Spark's catalogs, in place of URIs.

The protocol knows tables by their location, so that writers with different catalogs, or with none, exclude each other.
"""

from __future__ import annotations

import re

from lakewarden.events import canonical_table
from lakewarden.spark_jobs.streaming.spark_support import require_spark

_LOCATION = "Location"
"""The row of DESCRIBE TABLE EXTENDED that has it, for Spark's own tables as for those of other catalogs."""

_IS_LOCATION = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")


def table_uri(table: str) -> str:
    """Return the canonical URI of a table: from its URI, its absolute path, or its name in a catalog of the Spark session.

    Raises `ValueError` if there is no such table, or if its catalog doesn't give a location.
    """
    if _IS_LOCATION.match(table):
        return canonical_table(table)
    require_spark(f"the table name {table!r}, which is no URI and no absolute path,")
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        spark = SparkSession.active()
        rows = spark.sql("DESCRIBE TABLE EXTENDED IDENTIFIER(:name)", args={"name": table}).collect()
    except PySparkException as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"no table of this name: {table!r}; name a table of the Spark session's catalogs, or write "
            f"scheme://authority/path or an absolute local path; {reason}"
        ) from error
    found = [row["data_type"] for row in rows if row["col_name"] == _LOCATION]
    if not found or not found[-1]:
        raise ValueError(
            f"the catalog gives no location for table {table!r}; write its URI instead: scheme://authority/path"
        )
    return canonical_table(found[-1])
