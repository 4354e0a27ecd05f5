"""What runs in the executors: reading the base's files, and staging new ones. No reader sees staged files before the commit.

Both are functions for `mapInArrow`, created on the driver and pickled. A task publishes its markers before it writes, and
returns its commit messages as bytes. A task that Spark retries writes new files; only the messages of the successful try
count.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from lakewarden.events import Marker
from lakewarden.spark_jobs.engine.java import MAX_TEXT
from lakewarden.spark_jobs.gate.executor import ExecutorChannel
from lakewarden.spark_jobs.sinks.assignment import NOT_STORED
from lakewarden.spark_jobs.sinks.paimon.primary_key import (
    GROUP,
    group_writer,
    name_index_files,
    not_deterministic,
    number_rows,
    partition_writer,
)
from lakewarden.spark_jobs.sinks.paimon.table import TableAddress, has_dynamic_buckets
from lakewarden.spark_jobs.sinks.paimon.values import (
    arrow_schema,
    in_types,
    needs_int96,
    partition_path,
    require_python_values,
    require_readable,
    spark_arrow_schema,
)

ArrowFunction: TypeAlias = Callable[[Iterable[Any]], Iterable[Any]]

STAGED_SCHEMA = "message binary"

_WRITER = {"write.native.enabled": "false"}
"""A native writer would number the rows itself."""

MAX_WRITE_ROWS = 100_000
"""Rows passed to pypaimon at once. It groups the rows of each call by partition, so many small calls are slow."""


@dataclass(frozen=True, slots=True)
class Staging:
    """How the files of one transaction are written."""

    table: TableAddress
    user: str
    identifier: int
    prefix: str | None
    """Prefix of the file names, by which files of cancelled tasks are found. None: pypaimon's own prefix."""
    channel: ExecutorChannel | None
    """Publishes `create` markers before their bucket is written. None: the driver has published all markers."""
    allowed_partitions: frozenset[str] | None
    """Partition paths that may be written. None: any."""
    groups: frozenset[str] = frozenset()
    """In a table with a primary key and fixed buckets: the buckets that may be written."""
    index_snapshot: int | None = None
    """In a table with dynamic buckets: the snapshot whose index says which bucket has a key. None: the newest one."""
    first_sequence: int | None = None
    """In a table with a primary key: the first row's sequence number. None: pypaimon's own numbers."""


def renaming(function: ArrowFunction, names: Sequence[str]) -> ArrowFunction:
    """Return `function` for batches whose columns have other names."""

    def renamed(batches: Iterable[Any]) -> Iterable[Any]:
        return function(batch.rename_columns(list(names)) for batch in batches)

    return renamed


def staging_function(staging: Staging) -> ArrowFunction:
    """Return a function that writes rows to the table's storage and yields the pickled commit messages."""

    def staging_task(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        table = staging.table.open(_WRITER | ({"data-file.prefix": staging.prefix} if staging.prefix else {}))
        builder = table.new_stream_write_builder()
        builder.commit_user = staging.user
        if staging.index_snapshot is not None:
            builder.with_restore_snapshot(staging.index_snapshot)
        write = builder.new_write()
        if needs_int96(table):
            _write_int96(write)
        schema, write_rows = _rows_writer(staging, table, write)
        try:
            for rows in _joined_batches(batches, schema, table):
                write_rows(rows)
            messages = write.prepare_commit(staging.identifier)
        except BaseException as error:
            write.abort()
            if isinstance(error, ValueError) and " do not match " in str(error):  # says fastavro
                raise ValueError(
                    f"{NOT_STORED}: pypaimon writes no NULL in an array in Avro: {str(error)[:MAX_TEXT]}; replace it, "
                    f"or create the table with file.format=parquet; table={table.table_path}"
                ) from error
            raise
        finally:
            write.close()
        if messages:
            pickled = [pickle.dumps(message) for message in messages]
            yield pa.RecordBatch.from_arrays([pa.array(pickled, pa.binary())], names=["message"])

    return staging_task


def _write_int96(write: Any) -> None:
    """Let pypaimon write all timestamps to Parquet as INT96."""
    files = write.file_store_write
    create = files._create_data_writer  # noqa: SLF001 - pypaimon has no option for it; its version is pinned

    def create_with_int96(*args: Any) -> Any:
        writer = create(*args)
        writer.parquet_writer_options["use_deprecated_int96_timestamps"] = True
        return writer

    files._create_data_writer = create_with_int96  # noqa: SLF001


def _rows_writer(staging: Staging, table: Any, write: Any) -> tuple[Any, Callable[[Any], None]]:
    """Return the schema of the rows to write, and a function that writes a batch of them."""
    import pyarrow as pa

    schema = arrow_schema(table)
    if table.is_primary_key_table:
        if staging.first_sequence is not None:
            number_rows(write, staging.first_sequence)
        if has_dynamic_buckets(table):
            if staging.prefix is not None:
                name_index_files(write, staging.prefix)
            return schema, partition_writer(write, table, staging.allowed_partitions)
        return schema.append(pa.field(GROUP, pa.string())), group_writer(write, staging.groups, table)
    publish_markers = _marker_publisher(staging, table)

    def write_rows(rows: Any) -> None:
        publish_markers(rows)
        write.write_arrow_batch(rows)

    return schema, write_rows


def _joined_batches(batches: Iterable[Any], schema: Any, table: Any) -> Iterator[Any]:
    """Yield Spark's small batches joined into larger ones, in the table's types."""
    import pyarrow as pa

    waiting: list[Any] = []
    rows = 0

    def together() -> Iterator[Any]:
        joined = pa.Table.from_batches(waiting)
        empty = [
            field.name for field in schema if not field.nullable and joined.column(field.name).null_count
        ]
        if empty:
            raise ValueError(
                f"the batch has rows without a value in columns {empty}, which are NOT NULL in the table: drop them before; "
                f"table={table.table_path}"
            )
        require_python_values(joined, table)
        require_readable(joined, table)
        yield from in_types(joined, schema, table).combine_chunks().to_batches()

    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= MAX_WRITE_ROWS:
            yield from together()
            waiting, rows = [], 0
    if waiting:
        yield from together()


def _marker_publisher(staging: Staging, table: Any) -> Callable[[Any], None]:
    """Return a function that checks the buckets of rows and publishes their markers, each bucket once per task."""
    extractor = table.create_row_key_extractor()
    known: set[tuple[Any, int]] = set()

    def publish_markers(rows: Any) -> None:
        new: list[Marker] = []
        for partition, bucket, _indices in extractor.extract_partition_bucket_groups(rows):
            if (partition, bucket) in known:
                continue
            known.add((partition, bucket))
            path = partition_path(table, partition)
            if staging.allowed_partitions is not None and path not in staging.allowed_partitions:
                raise not_deterministic(f"partition {path!r}", "partitions", staging.table.uri)
            new.append(Marker(partition=path, file_group=f"bucket-{bucket}", operation="create"))
        if new and staging.channel is not None:
            staging.channel.touch_all(new)

    return publish_markers


def reading_function(table: TableAddress, splits: list[bytes]) -> ArrowFunction:
    """Return a function that receives numbers of splits and yields their rows, in types that Spark reads."""

    def reading_task(numbers: Iterable[Any]) -> Iterator[Any]:
        opened = table.open()
        schema = spark_arrow_schema(opened)
        reader = opened.new_read_builder().new_read()
        for batch in numbers:
            chosen = [pickle.loads(splits[number]) for number in batch.column(0).to_pylist()]  # noqa: S301 - our own
            for split in chosen:
                yield from in_types(reader.to_arrow([split]), schema, opened).to_batches()

    return reading_task
