"""What runs in the executors for a table with a primary key and fixed buckets. `handlers/paimon/primary_key.py` has the rules.

- *Groups.* A first step names the bucket of each row, `month=1/day=1/bucket-0`, by pypaimon's own hash. All rows of a bucket then
  go to one task, in their order, so one task numbers all rows of a key.
- *Sequence numbers.* pypaimon asks its writer for the greatest number of a bucket, and continues after it. `number_rows` answers
  with the transaction's own number, which also saves a scan of all manifests in each task.
- *Deletes.* pypaimon 2.1.0 writes 0 as the number of deletes of each file. Then readers and compactions take a file that
  overlaps no other for one without deletes, and show the deleted rows. `number_rows` sets the right number.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from lakewarden.spark_jobs.sinks.paimon.table import (
    TableAddress,
    arrow_schema,
    partition_path,
    require_python_values,
)

GROUP: Final = "_lakewarden_group"
"""Column: partition path and bucket of a row."""

_DELETES: Final = (1, 3)
"""Paimon's row kinds -U and -D."""


def group_name(path: str, bucket: int) -> str:
    """Return the name of a bucket's group."""
    return "/".join(part for part in (path, f"bucket-{bucket}") if part)


def grouping_function(where: TableAddress) -> Callable[[Iterable[Any]], Iterable[Any]]:
    """Return a function that adds the column `GROUP` to rows of the table."""

    def grouping_task(batches: Iterable[Any]) -> Iterator[Any]:
        import numpy as np
        import pyarrow as pa

        table = where.open()
        extractor = table.create_row_key_extractor()
        schema = arrow_schema(table)
        routing = pa.schema([schema.field(name) for name in table.primary_keys])
        for batch in batches:
            if not batch.num_rows:
                continue
            keys = pa.Table.from_batches([batch]).select(routing.names)
            _require_keys(keys, table)
            require_python_values(keys, table)
            (keys,) = keys.cast(routing).combine_chunks().to_batches()
            names: list[str] = []
            codes = np.zeros(batch.num_rows, dtype=np.int32)
            for partition, bucket, indices in extractor.extract_partition_bucket_groups(keys):
                if indices is not None:
                    codes[indices.to_numpy()] = len(names)
                names.append(group_name(partition_path(table, partition), bucket))
            groups = pa.DictionaryArray.from_arrays(codes, names).cast(pa.string())
            yield pa.RecordBatch.from_arrays([*batch.columns, groups], names=[*batch.schema.names, GROUP])

    return grouping_task


def _require_keys(keys: Any, table: Any) -> None:
    null = [name for name in keys.column_names if keys[name].null_count]
    if null:
        raise ValueError(
            f"the batch has rows without a value in primary key columns {null}: drop them before; table={table.table_path}"
        )


def group_writer(write: Any, groups: frozenset[str], uri: str) -> Callable[[Any], None]:
    """Return a function that writes rows, sorted by `GROUP`, to their buckets."""
    import pyarrow.compute as pc

    def write_groups(rows: Any) -> None:
        runs = pc.run_end_encode(rows.column(GROUP))
        without = rows.drop_columns([GROUP])
        start = 0
        for group, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            if group not in groups:
                raise RuntimeError(
                    f"the batch has rows for bucket {group!r}, which it didn't have when its buckets were listed: the query "
                    f"is not deterministic; write it from stable data; table={uri}"
                )
            write.write_arrow_batch(without.slice(start, end - start), int(group.rpartition("bucket-")[2]))
            start = end

    return write_groups


def number_rows(write: Any, first: int) -> None:
    """Let pypaimon's writer number the rows of each bucket from `first`, and count the deletes of each file."""
    files = write.file_store_write
    files.max_seq_numbers = _Everywhere(_Everywhere(first - 1))
    create = files._create_data_writer  # noqa: SLF001 - pypaimon has no other place for it; its version is pinned

    def create_counting(*args: Any) -> Any:
        writer = create(*args)
        write_file = writer._write_data_to_file  # noqa: SLF001

        def write_counted(data: Any) -> None:
            known = len(writer.committed_files)
            write_file(data)
            for file in writer.committed_files[known:]:
                file.delete_row_count = _deletes_of(data)

        writer._write_data_to_file = write_counted  # noqa: SLF001
        return writer

    files._create_data_writer = create_counting  # noqa: SLF001


def _deletes_of(data: Any) -> int:
    import pyarrow as pa
    import pyarrow.compute as pc

    deletes = pc.is_in(data.column("_VALUE_KIND"), value_set=pa.array(_DELETES, pa.int8()))
    return int(pc.sum(deletes).as_py() or 0)


class _Everywhere(dict[Any, Any]):
    """Has one value under every key: for every partition, and in it for every bucket."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self._value = value

    def get(self, key: Any, default: Any = None) -> Any:  # noqa: ARG002 - dict's
        return self._value
