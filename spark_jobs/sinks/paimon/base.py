"""The snapshots of a Paimon table, and the files from which a batch is computed: its base.

A snapshot contains its commit user and identifier, by which a batch is found. pypaimon 2.1.0 has no `filterCommitted`: committing
the same messages twice writes the rows twice.
"""

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from lakewarden.handlers.commit_label import TRANSACTION
from lakewarden.handlers.maker import Winner
from lakewarden.spark_jobs.sinks.paimon.snapshot_store import HINT, FolderStore, folder_store, snapshot_store
from lakewarden.spark_jobs.sinks.paimon.table import has_dynamic_buckets
from lakewarden.spark_jobs.sinks.paimon.values import Partition, partition_path

UNNUMBERED = 0x7FFF_FFFF_FFFF_FFFF
"""Commit identifier of a batch without a number, the same as of Paimon's batch writers. Such a batch can't be found again."""


MAX_CHANGES_TRACED = 50
"""Snapshots searched for the writers that changed a base. Each is a scan, and only for an error message."""


def partition_folder(table: Any, path: str) -> str:
    """Return where the buckets of a partition are, as pypaimon's file IO takes it: it decodes `%2F` in a URI only."""
    root = table.path_factory().data_file_path().rstrip("/")
    if root.startswith("file:") and "%" in path:
        root = table.file_io.to_filesystem_path(root)
    return "/".join(part for part in (root, path) if part)


def is_same_table(table: Any) -> bool:
    """Return whether the schema with which the table was opened is still there, by one request.

    A table that was dropped and created again has another one, under the same id. Files of the old one must not come into it.
    """
    schema = table.table_schema
    found = folder_store(table, table.schema_manager.schema_path).read(f"schema-{schema.id}")
    return found is not None and json.loads(found.body).get("timeMillis") == schema.time_millis


def snapshot_manager(table: Any, store: FolderStore | None = None) -> Any:
    """Return pypaimon's manager of the table's snapshots, which finds the newest one by 3 requests on S3 instead of 10.

    If the hint isn't right, it searches as pypaimon does. `store` is that of the snapshots, if there is an open one.
    """
    snapshots = store or snapshot_store(table)
    manager = table.snapshot_manager()
    search = manager._get_latest_snapshot_from_filesystem  # noqa: SLF001 - pypaimon's version is pinned
    manager._get_latest_snapshot_from_filesystem = lambda: _hinted_snapshot(snapshots) or search()  # noqa: SLF001
    return manager


def _hinted_snapshot(store: FolderStore) -> Any | None:
    """Return the snapshot that the hint names, if it is the newest one. None: the hint isn't right, or can't be read."""
    from pypaimon.common.json_util import JSON
    from pypaimon.snapshot.snapshot import Snapshot

    if not store.fenced:  # it has no cheaper requests than pypaimon
        return None
    try:
        hint = store.read(HINT)
        if hint is None or not hint.body.strip().isdigit():
            return None
        found = store.read(f"snapshot-{int(hint.body)}")
        if found is None or store.version(f"snapshot-{int(hint.body) + 1}") is not None:
            return None
    except OSError:  # pypaimon's client repeats its requests
        return None
    return JSON.from_json(found.body.decode(), Snapshot)


def find_commit(table: Any, user: str, identifier: int) -> int | None:
    """Return the retained snapshot that `user` committed under `identifier`, or None. The search starts at the newest one."""
    manager = snapshot_manager(table)
    snapshot = manager.get_latest_snapshot()
    while snapshot is not None:
        if snapshot.commit_user == user:
            if snapshot.commit_identifier == identifier:
                return int(snapshot.id)
            if snapshot.commit_identifier < identifier:
                return None
        snapshot = manager.get_snapshot_by_id(snapshot.id - 1) if snapshot.id > 1 else None
    return None


@dataclass(frozen=True, slots=True)
class Base:
    """What a batch is computed from, in one snapshot.

    For a rewrite, the files of some partitions, which it reads and replaces. For dynamic buckets, their index files.
    """

    snapshot_id: int
    identity: str
    """Identity of the snapshot. After a rollback another one may have the id."""
    splits: tuple[Any, ...]
    """Splits of data files."""
    files: frozenset[str]
    """Relative paths: `month=1/day=3/bucket-0/data-….parquet`."""


def latest_snapshot_id(table: Any) -> int:
    """Return the id of the newest snapshot, 0 for a table without snapshots."""
    return newest_snapshot(table)[0]


def newest_snapshot(table: Any) -> tuple[int, str]:
    """Return the id and the identity of the newest snapshot, 0 and a blank for a table without snapshots."""
    snapshot = snapshot_manager(table).get_latest_snapshot()
    return (0, "") if snapshot is None else (int(snapshot.id), str(snapshot.delta_manifest_list))


def read_base(table: Any, partitions: Collection[Partition], snapshot: tuple[int, str] | None = None) -> Base:
    """Return what a batch of these partitions is computed from, in the newest snapshot or in the given one."""
    at, identity = newest_snapshot(table) if snapshot is None else snapshot
    if at == 0:
        return Base(0, "", (), frozenset())
    if has_dynamic_buckets(table):
        return Base(
            at, identity, (), _index_files(table, {partition_path(table, each) for each in partitions}, at)
        )
    pinned = table.copy({"scan.snapshot-id": str(at)})
    builder = pinned.new_read_builder()
    if table.partition_keys:
        builder = builder.with_filter(
            _is_one_of(builder.new_predicate_builder(), table.partition_keys, partitions)
        )
    splits = tuple(builder.new_scan().plan().splits())
    return Base(at, identity, splits, frozenset(_file_names(table, splits)))


def _index_files(table: Any, paths: Collection[str], snapshot_id: int) -> frozenset[str]:
    from pypaimon.index.dynamic_bucket import HASH_INDEX
    from pypaimon.index.index_file_handler import IndexFileHandler

    snapshot = table.snapshot_manager().get_snapshot_by_id(snapshot_id)
    entries = IndexFileHandler(table).scan(snapshot) if snapshot is not None else ()
    found = (
        (partition_path(table, tuple(entry.partition.values)), entry.bucket, entry.index_file)
        for entry in entries
        if entry.index_file.index_type == HASH_INDEX
    )
    return frozenset(
        "/".join(part for part in (path, f"bucket-{bucket}", file.file_name) if part)
        for path, bucket, file in found
        if path in paths
    )


def _file_names(table: Any, splits: Iterable[Any]) -> Iterable[str]:
    for split in splits:
        partition = partition_path(table, tuple(split.partition.values))
        folder = "/".join(part for part in (partition, f"bucket-{split.bucket}") if part)
        for file in split.files:
            yield f"{folder}/{file.file_name}"


def changed_by(
    table: Any, partitions: Collection[Partition], base: Base, now: Base
) -> dict[Winner, list[str]]:
    """Return the files that were added or removed in these partitions between two snapshots, by commit user and transaction.

    Changes of expired snapshots, and of those before the last `MAX_CHANGES_TRACED`, count for the next snapshot.
    """
    manager = table.snapshot_manager()
    changes: dict[Winner, list[str]] = {}
    before, traced = base.files, base.snapshot_id
    for number in range(
        max(base.snapshot_id + 1, now.snapshot_id - MAX_CHANGES_TRACED + 1), now.snapshot_id + 1
    ):
        snapshot = manager.get_snapshot_by_id(number)
        if snapshot is None:
            continue
        files = now.files if number == now.snapshot_id else read_base(table, partitions, (number, "")).files
        if files != before:
            also = "" if traced == number - 1 else " or an earlier one"
            changes.setdefault(winner_in(snapshot, also), []).extend(sorted(files ^ before))
        before, traced = files, number
    return changes


def winner_in(snapshot: Any, also: str = "") -> Winner:
    """Return the commit that wrote a snapshot. `also`: which others it may have been."""
    label = (snapshot.properties or {}).get(TRANSACTION)
    return Winner(f"commit user {snapshot.commit_user!r}{also}", None if also else label, is_known=not also)


def _is_one_of(predicates: Any, keys: Iterable[str], partitions: Collection[Partition]) -> Any:
    def is_partition(partition: Partition) -> Any:
        return predicates.and_predicates(
            [
                predicates.is_null(key) if value is None else predicates.equal(key, value)
                for key, value in zip(keys, partition, strict=True)
            ]
        )

    return predicates.or_predicates([is_partition(partition) for partition in partitions])


def deletions_of(base: Base) -> list[Any]:
    """Return commit messages that remove exactly the files of `base` from the table.

    Committed together with the new files, they make one OVERWRITE snapshot over any number of partitions. It removes the
    files by name: a file that was never read stays, and a file that is already gone fails the commit. pypaimon's partition
    overwrite would remove whatever the partitions contain when it commits.
    """
    from pypaimon.write.commit_message import CommitMessage

    return [
        CommitMessage(
            partition=tuple(split.partition.values),
            bucket=split.bucket,
            new_files=[],
            deleted_files=list(split.files),
            total_buckets=split.total_buckets,
        )
        for split in base.splits
    ]
