"""What runs in the executors for a table with dynamic buckets. Rule 7 of `handlers/paimon/primary_key.py` is behind it.

All rows of a partition are in one task, in their order. pypaimon's writer looks each key up in the index of the snapshot that
the driver read, gives new keys a bucket, and writes one index file for each bucket that got some.
"""

from collections.abc import Callable, Collection
from typing import Any

from lakewarden.spark_jobs.sinks.paimon.table import partition_path


def partition_writer(write: Any, table: Any, allowed: Collection[str] | None) -> Callable[[Any], None]:
    """Return a function that writes rows of the `allowed` partition paths, of any if it is None."""

    def write_rows(rows: Any) -> None:
        if allowed is not None:
            unknown = _paths_of(rows, table).difference(allowed)
            if unknown:
                raise RuntimeError(
                    f"the batch has rows for partitions {sorted(unknown)[:3]}, which it didn't have when its partitions were "
                    f"listed: the query is not deterministic; write it from stable data; table={table.table_path}"
                )
        write.write_arrow_batch(rows)

    return write_rows


def _paths_of(rows: Any, table: Any) -> set[str]:
    import pyarrow as pa

    keys = list(table.partition_keys)
    if not keys:
        return {""}
    distinct = pa.Table.from_batches([rows]).group_by(keys).aggregate([])
    return {partition_path(table, tuple(row[key] for key in keys)) for row in distinct.to_pylist()}


def name_index_files(write: Any, prefix: str) -> None:
    """Let the names of the index files begin with `prefix`, by which those of cancelled tasks are found."""
    maintainer = write.row_key_extractor._index_maintainer  # noqa: SLF001 - pypaimon has no other place; its version is pinned
    maintainer.table = _NamedIndexFiles(maintainer.table, prefix)


class _NamedIndexFiles:
    """A table, or its path factory, whose new index files have a prefix."""

    def __init__(self, wrapped: Any, prefix: str) -> None:
        self._wrapped = wrapped
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def path_factory(self) -> Any:
        return _NamedIndexFiles(self._wrapped.path_factory(), self._prefix)

    def new_bucket_index_path(self, partition: Any, bucket: int, file_name: str) -> Any:
        return self._wrapped.new_bucket_index_path(partition, bucket, f"{self._prefix}{file_name}")
