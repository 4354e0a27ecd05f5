"""A Paimon table as a writer needs it: opened by path, its partitions named, its snapshots and files looked up.

pypaimon only, no Spark: drivers and executors both use it. What was found out about pypaimon 2.1.0, and is relied on:

- A table opens by its path alone (`FileStoreTable.from_path`), with options `s3.endpoint`, `s3.access-key`,
  `s3.secret-key`, `s3.region`, `s3.session-token`, `s3.path-style-access`.
- A snapshot names its commit user and identifier, which is how a batch recognises itself (`find_commit`). Python has
  no `filterCommitted` of its own: committing the same messages twice writes the rows twice.
- One user's identifiers rise, so the search may stop at that user's first smaller one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from lakewarden.events import canonical_table

Partition: TypeAlias = tuple[Any, ...]
"""Values of the partition columns, in the table's order; empty for an unpartitioned table."""

UNNUMBERED = 0x7FFF_FFFF_FFFF_FFFF
"""The commit identifier of a batch without a number, as Paimon's batch writers use it; it can't be recognised."""


MAX_CHANGES_TRACED = 50
"""Snapshots searched for who changed a base: each is a scan, and only an error message needs it."""


@dataclass(frozen=True, slots=True)
class TableAddress:
    """Where the table is, and what pypaimon needs to reach it. Small, and pickles into a Spark closure."""

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def open(self, dynamic: dict[str, str] | None = None) -> Any:
        """The table itself, with some of its options changed for this use."""
        from pypaimon.table.file_store_table import FileStoreTable

        table = FileStoreTable.from_path(self.uri, dict(self.options))
        return table.copy(dynamic) if dynamic else table


def address(table: str, options: Mapping[str, str] | None = None) -> TableAddress:
    """The address of a table given by URI or absolute path."""
    return TableAddress(canonical_table(table), dict(options or {}))


def require_supported(table: Any, *, rewrites: bool) -> None:
    """Refuse tables whose layout this sink doesn't write rightly, and say why."""
    where = f"table={table.table_path}"
    if table.is_primary_key_table:
        raise ValueError(
            f"the table has a primary key, so Paimon merges its rows itself; this sink writes append tables; {where}"
        )
    if rewrites and (table.options.deletion_vectors_enabled() or table.options.data_evolution_enabled()):
        raise ValueError(
            f"upsert rewrites whole files, which a table with deletion vectors or data evolution doesn't allow; {where}"
        )


def arrow_schema(table: Any) -> Any:
    """The table's columns as Arrow has them."""
    from pypaimon.schema.data_types import PyarrowFieldParser

    return PyarrowFieldParser.from_paimon_schema(table.table_schema.fields)


def partition_path(table: Any, partition: Partition) -> str:
    """The partition as Paimon writes it: `month=1/day=3`; empty for an unpartitioned table."""
    default = table.path_factory().default_part_value
    return "/".join(
        f"{name}={default if value is None or not str(value).strip() else value}"
        for name, value in zip(table.partition_keys, partition, strict=True)
    )


def find_commit(table: Any, user: str, identifier: int) -> int | None:
    """The snapshot that `user` committed under `identifier`, looked for from the newest down.

    Expired snapshots end the search: they are missing from the bottom up, and a batch as old as that has long been
    recorded in the query's checkpoint.
    """
    manager = table.snapshot_manager()
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
    """The files of some partitions in one snapshot: what a rewrite reads, and what it replaces."""

    snapshot_id: int
    splits: tuple[Any, ...]
    files: frozenset[str]
    """As people find them: `month=1/day=3/bucket-0/data-….parquet`."""


def latest_snapshot_id(table: Any) -> int:
    """Of the newest snapshot; 0 for a table without any."""
    snapshot = table.snapshot_manager().get_latest_snapshot()
    return 0 if snapshot is None else int(snapshot.id)


def read_base(table: Any, partitions: Collection[Partition], snapshot_id: int | None = None) -> Base:
    """What the table holds in these partitions, now or in an earlier snapshot."""
    at = latest_snapshot_id(table) if snapshot_id is None else snapshot_id
    if at == 0:
        return Base(0, (), frozenset())
    pinned = table.copy({"scan.snapshot-id": str(at)})
    builder = pinned.new_read_builder()
    if table.partition_keys:
        builder = builder.with_filter(
            _is_one_of(builder.new_predicate_builder(), table.partition_keys, partitions)
        )
    splits = tuple(builder.new_scan().plan().splits())
    return Base(at, splits, frozenset(_file_names(table, splits)))


def _file_names(table: Any, splits: Iterable[Any]) -> Iterable[str]:
    for split in splits:
        partition = partition_path(table, tuple(split.partition.values))
        folder = "/".join(part for part in (partition, f"bucket-{split.bucket}") if part)
        for file in split.files:
            yield f"{folder}/{file.file_name}"


def changed_by(table: Any, partitions: Collection[Partition], base: Base, now: Base) -> dict[str, list[str]]:
    """Who changed these partitions between two snapshots, by commit user, and the files that each added or removed.

    Snapshots that are gone again, and those beyond the last `MAX_CHANGES_TRACED`, are laid to the user of the next one kept.
    """
    manager = table.snapshot_manager()
    changes: dict[str, list[str]] = {}
    before = base.files
    for number in range(
        max(base.snapshot_id + 1, now.snapshot_id - MAX_CHANGES_TRACED + 1), now.snapshot_id + 1
    ):
        snapshot = manager.get_snapshot_by_id(number)
        if snapshot is None:
            continue
        files = now.files if number == now.snapshot_id else read_base(table, partitions, number).files
        if files != before:
            changes.setdefault(snapshot.commit_user, []).extend(sorted(files ^ before))
        before = files
    return changes


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
    """Commit messages that take exactly the files of `base` out of the table.

    Committed together with the new files they make one OVERWRITE snapshot, over any number of partitions. It removes
    these files by name, so a file that it never read stays, and a file that is gone already fails the commit: unlike
    pypaimon's partition overwrite, which removes whatever the partition holds when it commits.
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
