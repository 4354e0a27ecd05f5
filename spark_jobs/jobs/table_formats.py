"""The formats that `conflicts_job` writes: Parquet files, or a Delta Lake or Iceberg table.

    format     --output               exactly once by
    parquet    folder or URI          the file sink's log beside the files; other readers than Spark ignore it
    delta      folder or URI          the query's id and batch in Delta's log
    iceberg    name of a table        the query's id and epoch in the snapshot's summary; the catalog is Spark's configuration

Each is partitioned by `day`. A table that doesn't exist is created.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

Format: TypeAlias = Literal["parquet", "delta", "iceberg"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)

EXTENSIONS: Final[dict[Format, str]] = {
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
    "iceberg": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}
DELTA_CATALOG: Final = "org.apache.spark.sql.delta.catalog.DeltaCatalog"


def session_settings(form: Format) -> dict[str, str]:
    """The settings of a session that writes this format, but for Iceberg's catalog."""
    if form == "parquet":
        return {}
    extension = {"spark.sql.extensions": EXTENSIONS[form]}
    return extension | ({"spark.sql.catalog.spark_catalog": DELTA_CATALOG} if form == "delta" else {})


def start_writing(
    rows: DataFrame, form: Format, *, name: str, output: str, checkpoint: str, once: bool
) -> StreamingQuery:
    """Append the rows of a stream, every two seconds, or (`once`) those that exist now."""
    writer = (
        rows.writeStream.queryName(name)
        .format(form)
        .partitionBy("day")
        .option("checkpointLocation", checkpoint)
    )
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime="2 seconds")
    if form == "iceberg":
        # A batch's rows may be of several days, in any order.
        return writer.option("fanout-enabled", "true").toTable(output)
    return writer.option("path", output).start()
