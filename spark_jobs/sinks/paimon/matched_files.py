"""Which files of an upsert's base have rows that the batch changes. An upsert of an append table rewrites only those.

1. A file below `SMALL_BYTES` is rewritten without a look: that costs no more than the look, and keeps the number of files low.
2. Executors read the footer of every other file. If the range of a key column doesn't meet the batch's range in that
   partition, the file stays. Only Parquet has such ranges, and only files of the table's current schema are compared by them.
3. Of the files that remain, executors read the key columns. A file stays if it has none of the batch's keys.

A key of the batch that is in no rewritten file is thus in no file at all, so it is a new row. The conflict check is still that of
whole partitions: a file that another writer has added since may have any key.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from lakewarden.spark_jobs.sinks.paimon.base import Base
from lakewarden.spark_jobs.sinks.paimon.table import TableAddress
from lakewarden.spark_jobs.sinks.paimon.values import in_types, partition_path, spark_arrow_schema

SMALL_BYTES = 1 << 20
"""Size of a file that is always rewritten. A read of 1 MiB takes about as long as one request to an object store."""

FILE: Final = "_lakewarden_file"
"""Column: the number of the file that has this key."""

Ranges: TypeAlias = Mapping[str, Mapping[str, tuple[Any, Any]]]
"""Partition path -> key column -> the batch's smallest and greatest value. Columns that can't be compared are left out."""


def large_files(base: Base) -> list[Any]:
    """Return a split for each file that is looked into."""
    return [
        split.filter_file(lambda each, file=file: each is file)
        for split in base.splits
        for file in split.files
        if file.file_size >= SMALL_BYTES
    ]


def without_files(base: Base, kept: Iterable[Any]) -> Base:
    """Return `base` without the files of these splits, which stay in the table as they are."""
    names = {file.file_name for split in kept for file in split.files}
    splits = (split.filter_file(lambda file: file.file_name not in names) for split in base.splits)
    return replace(base, splits=tuple(split for split in splits if split is not None))


def keys_function(
    where: TableAddress, splits: list[bytes], keys: Sequence[str], ranges: Ranges
) -> Callable[[Iterable[Any]], Iterable[Any]]:
    """Return a function that receives numbers of files and yields their keys, unless the ranges exclude the file."""

    def keys_task(numbers: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        table = where.open()
        schema = pa.schema([spark_arrow_schema(table).field(name) for name in keys])
        reader = table.new_read_builder().with_projection(list(keys)).new_read()
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                split = pickle.loads(splits[number])  # noqa: S301 - our own
                if not may_have_keys(table, split, ranges):
                    continue
                found = in_types(reader.to_arrow([split]), schema, table)
                files = pa.array([number] * found.num_rows, pa.int64())
                yield from found.append_column(FILE, files).to_batches()

    return keys_task


def may_have_keys(table: Any, split: Any, ranges: Ranges) -> bool:
    """Return whether the ranges in the footer of a split's one file meet the batch's ranges."""
    import pyarrow.parquet as pq

    (file,) = split.files
    wanted = ranges.get(partition_path(table, tuple(split.partition.values)), {})
    if not wanted or not file.file_name.endswith(".parquet") or file.schema_id != table.table_schema.id:
        return True
    with table.file_io.new_input_stream(file.file_path) as stream:
        footer = pq.read_metadata(stream)
    return any(_meets(footer.row_group(number), wanted) for number in range(footer.num_row_groups))


def _meets(rows: Any, wanted: Mapping[str, tuple[Any, Any]]) -> bool:
    columns = (rows.column(number) for number in range(rows.num_columns))
    found = {column.path_in_schema: column.statistics for column in columns}
    for name, (lowest, greatest) in wanted.items():
        statistics = found.get(name)
        if statistics is None or not statistics.has_min_max:
            continue
        try:
            if greatest < statistics.min or lowest > statistics.max:
                return False
        except TypeError:  # a type that Spark and Parquet show differently
            continue
    return True
