"""Where the demo's table is. Creates and reads one of Paimon, with pypaimon and without Spark.

Tables of the other formats are created and read by a program on Spark (`spark_jobs/jobs/demo_table.py`), which writes the rows
as Parquet files.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet
from pypaimon import CatalogFactory, Schema

from lakewarden.agent.demo.choices import DemoError, FormatChoice
from lakewarden.agent.demo.flights import KEYS, PARTITION_KEYS, TABLE_SCHEMA
from lakewarden.events import canonical_table

_DATABASE = "demo"

_SQL_TYPES = {pa.int32(): "int", pa.string(): "string"}

_PUBLIC = ("s3.endpoint", "s3.region", "s3.path-style-access")

_MERGED = {
    "bucket": "1",
    "file.format": "parquet",
    "merge-engine": "partial-update",  # each query has columns of its own
    "num-sorted-run.compaction-trigger": "2",  # 5 by default; a day gets about four files
    "write-only": "true",  # so that only the compactor compacts
}
"""Options of a table with a primary key."""

COLUMNS = ", ".join(f"{field.name} {_SQL_TYPES[field.type]}" for field in TABLE_SCHEMA)
"""The table's columns, for Spark's SQL."""


@dataclass(frozen=True, slots=True)
class TablePlace:
    """The warehouse of the demo's table, with pypaimon's options for it, and the table's format."""

    warehouse: str
    options: dict[str, str] = field(default_factory=dict, repr=False)
    name: str = "flights"
    form: FormatChoice = FormatChoice.PAIMON
    primary_key: bool = False
    """Whether the table has a primary key. Only of Paimon."""

    @property
    def public_options(self) -> tuple[str, ...]:
        """The options without credentials: `s3.region=eu-central-1`."""
        return tuple(f"{name}={self.options[name]}" for name in _PUBLIC if name in self.options)

    @property
    def identifier(self) -> str:
        return f"{_DATABASE}.{self.name}"

    @property
    def uri(self) -> str:
        database = _DATABASE if self.form.on_spark else f"{_DATABASE}.db"
        return canonical_table(f"{self.warehouse}/{database}/{self.name}")


def local_place(
    folder: Path, form: FormatChoice = FormatChoice.PAIMON, *, primary_key: bool = False
) -> TablePlace:
    """A warehouse on the local disk."""
    return TablePlace(f"file://{folder.resolve()}", form=form, primary_key=primary_key)


def s3_place(endpoint: str, bucket: str, prefix: str, *, primary_key: bool = False) -> TablePlace:
    """A warehouse below `prefix` in a bucket, which is created if missing. Credentials come from the environment."""
    key, secret = (_credential(name) for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    try:
        pyarrow.fs.S3FileSystem(
            access_key=key,
            secret_key=secret,
            session_token=os.environ.get("AWS_SESSION_TOKEN"),
            endpoint_override=endpoint,
            region=region,
            allow_bucket_creation=True,
            connect_timeout=5,
            request_timeout=10,
        ).create_dir(bucket, recursive=False)
    except OSError as error:
        raise DemoError(
            f"the bucket {bucket!r} at {endpoint} can't be used: {_first_line(error)}; check --s3-endpoint and credentials"
        ) from error
    options = {
        "s3.endpoint": endpoint,
        "s3.access-key": key,
        "s3.secret-key": secret,
        "s3.region": region,
        "s3.path-style-access": "true",
    }
    if token := os.environ.get("AWS_SESSION_TOKEN"):
        options["s3.session-token"] = token
    return TablePlace(f"s3://{bucket}/{prefix}", options, primary_key=primary_key)


def create_table(place: TablePlace) -> None:
    """Create the empty table, partitioned by month and day."""
    catalog = _catalog(place)
    catalog.create_database(_DATABASE, ignore_if_exists=True)
    catalog.create_table(place.identifier, _schema(place), ignore_if_exists=False)


def _schema(place: TablePlace) -> Any:
    if not place.primary_key:
        # The queries upsert by rewriting whole partitions, which causes their conflicts.
        options = {"bucket": "-1", "file.format": "parquet"}
        return Schema.from_pyarrow_schema(TABLE_SCHEMA, partition_keys=list(PARTITION_KEYS), options=options)
    columns = pa.schema([column.with_nullable(column.name not in KEYS) for column in TABLE_SCHEMA])
    return Schema.from_pyarrow_schema(
        columns, partition_keys=list(PARTITION_KEYS), primary_keys=list(KEYS), options=_MERGED
    )


def count_compactions(place: TablePlace) -> int:
    """Return the number of snapshots that compactions have committed."""
    snapshots = _catalog(place).get_table(place.identifier).snapshot_manager()
    newest = snapshots.get_latest_snapshot()
    found = (snapshots.get_snapshot_by_id(number + 1) for number in range(newest.id if newest else 0))
    return sum(each is not None and each.commit_kind == "COMPACT" for each in found)


def read_table(place: TablePlace) -> pa.Table:
    """Read all rows of the table."""
    builder = _catalog(place).get_table(place.identifier).new_read_builder()
    splits = builder.new_scan().plan().splits()
    if not splits:
        return TABLE_SCHEMA.empty_table()
    return builder.new_read().to_arrow(splits).select(TABLE_SCHEMA.names).cast(TABLE_SCHEMA)


def read_rows(folder: Path) -> pa.Table:
    """Read the rows that Spark has read from a table and written as Parquet files."""
    rows = pyarrow.parquet.read_table(folder)
    return rows.select(TABLE_SCHEMA.names).cast(TABLE_SCHEMA)


def _catalog(place: TablePlace) -> Any:
    return CatalogFactory.create({"warehouse": place.warehouse, **place.options})


def _credential(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise DemoError(f"{name} is not set; --s3-endpoint needs credentials in the environment")
    return value


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
