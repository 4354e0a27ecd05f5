"""Tables with a primary key: their rows in the executors, their numbers. `handlers/paimon/primary_key.py` has the rules.

- *Groups.* A first step names the bucket of each row, `month=1/day=1/bucket-0`, by pypaimon's own hash. All rows of a bucket then
  go to one task, in their order, so one task numbers all rows of a key.
- *Sequence numbers.* pypaimon asks its writer for the greatest number of a bucket, and continues after it. `number_rows` answers
  with the transaction's own number, which also saves a scan of all manifests in each task.
- *Deletes.* pypaimon 2.1.0 writes 0 as the number of deletes of each file. Then readers and compactions take a file that
  overlaps no other for one without deletes, and show the deleted rows. `number_rows` sets the right number.
- *Dynamic buckets* (rule 7). All rows of a partition are in one task, in their order. pypaimon's writer looks each key up in the
  index of the snapshot that the driver read, gives new keys a bucket, and writes one index file for each bucket that got some.
- *Greater numbers* (rules 4 and 5). The driver looks whether the table has numbers that the transaction's aren't greater than.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final

from lakewarden.handlers.paimon.primary_key import SEQUENCE_BITS, first_sequence_number
from lakewarden.spark_jobs.gate.errors import base_changed
from lakewarden.spark_jobs.sinks.paimon.base import latest_snapshot_id, winner_in
from lakewarden.spark_jobs.sinks.paimon.table import TableAddress
from lakewarden.spark_jobs.sinks.paimon.values import (
    arrow_schema,
    partition_path,
    partition_spelling,
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


def not_deterministic(found: str, listed: str, table: str) -> RuntimeError:
    """Return the error for rows of what the batch didn't have when it was computed before."""
    return RuntimeError(
        f"the batch has rows for {found}, which it didn't have when its {listed} were listed: the query is not deterministic; "
        f"write it from stable data; table={table}"
    )


def group_writer(write: Any, groups: frozenset[str], table: Any) -> Callable[[Any], None]:
    """Return a function that writes rows, sorted by `GROUP`, to their buckets.

    Several partitions share the folder of blank texts, and so a group, which pypaimon divides.
    """
    import pyarrow.compute as pc

    shared = partition_spelling(table).null

    def write_groups(rows: Any) -> None:
        runs = pc.run_end_encode(rows.column(GROUP))
        without = rows.drop_columns([GROUP])
        start = 0
        for group, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            if group not in groups:
                raise not_deterministic(f"bucket {group!r}", "buckets", table.table_path)
            bucket = None if shared in group else int(group.rpartition("bucket-")[2])
            write.write_arrow_batch(without.slice(start, end - start), bucket)
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


def partition_writer(write: Any, table: Any, allowed: Collection[str] | None) -> Callable[[Any], None]:
    """Return a function that writes rows of the `allowed` partition paths, of any if it is None."""

    def write_rows(rows: Any) -> None:
        if allowed is not None:
            unknown = _paths_of(rows, table).difference(allowed)
            if unknown:
                raise not_deterministic(f"partitions {sorted(unknown)[:3]}", "partitions", table.table_path)
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


def require_free_numbers(table: Any) -> None:
    """Raise `ValueError` if a file has a sequence number that the next transaction would give to its rows."""
    splits = (
        table.new_read_builder().new_scan().plan_for_write().splits() if latest_snapshot_id(table) else []
    )
    used = max((file.max_sequence_number for split in splits for file in split.files), default=-1)
    newest = latest_snapshot_id(table)  # after the files: other transactions may have committed since
    if used >= first_sequence_number(newest):
        raise ValueError(
            f"the table has rows with sequence number {used}, more than its {newest} snapshots allow, as in a cloned "
            f"table: new rows would count as older ones; rewrite the table (INSERT OVERWRITE by Java Paimon numbers all "
            f"rows from 0); table={table.table_path}"
        )


def require_greater_numbers(
    table: Any, writer: str, written: Collection[str], first: int, checked: int
) -> int:
    """Raise `BaseChanged` if a newer file of the batch's buckets or partitions has a number that isn't smaller than `first`.

    Return the newest snapshot's id. Snapshots up to `checked`, and up to the one by which the rows are numbered, aren't read.
    `written`: the buckets by the names of their groups, or the paths of the partitions.
    """
    from pypaimon.manifest.manifest_file_manager import ManifestFileManager
    from pypaimon.manifest.manifest_list_manager import ManifestListManager

    manager, lists, files = table.snapshot_manager(), ManifestListManager(table), ManifestFileManager(table)
    newest = latest_snapshot_id(table)
    for number in range(max(checked, first >> SEQUENCE_BITS) + 1, newest + 1):
        snapshot = manager.get_snapshot_by_id(number)
        where = f"table={table.table_path} writer={writer} snapshot={number}"
        if snapshot is None:
            raise base_changed(
                "a snapshot expired that was committed while this batch was computed, so its files are unknown",
                where,
            )
        for manifest in lists.read_delta(snapshot):
            for entry in files.read(manifest.file_name):
                path = partition_path(table, tuple(entry.partition.values))
                group = group_name(path, entry.bucket)
                own = group in written or path in written
                if own and entry.file.max_sequence_number >= first:
                    raise base_changed(
                        f"commit user {snapshot.commit_user!r} has written {group} with sequence numbers that aren't smaller "
                        "than those of this batch: its publish arrived late",
                        where,
                        winner_in(snapshot),
                    )
    return newest
