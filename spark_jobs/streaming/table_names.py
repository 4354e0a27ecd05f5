"""Names of tables in Spark's catalogs, in place of URIs.

The protocol knows tables by their location, so that writers with different catalogs, or with none, exclude each other.
"""

from __future__ import annotations

from lakewarden.events import canonical_table
from lakewarden.spark_jobs.sinks.table_locations import is_location, location_of
from lakewarden.spark_jobs.streaming.spark_support import require_spark


def table_uri(table: str) -> str:
    """Return the canonical URI of a table: from its URI, its absolute path, or its name in a catalog of the Spark session.

    Raises `ValueError` if there is no such table, or if its catalog doesn't give a location.
    """
    if not is_location(table):
        require_spark(f"the table name {table!r}, which is no URI and no absolute path,")
        table = location_of(table)
    return canonical_table(table)
