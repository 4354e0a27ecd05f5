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

    @property
    def files(self) -> frozenset[tuple[str, int, str]]:
        """Partition, bucket and name of every file."""
        return frozenset(
            (repr(tuple(split.partition.values)), int(split.bucket), str(file.file_name))
            for split in self.splits
            for file in split.files
        )


def read_base(table: Any, partitions: Collection[Partition]) -> Base:
    """What the table holds in these partitions now."""
    snapshot = table.snapshot_manager().get_latest_snapshot()
    if snapshot is None:
        return Base(0, ())
    pinned = table.copy({"scan.snapshot-id": str(snapshot.id)})
    builder = pinned.new_read_builder()
    if table.partition_keys:
        builder = builder.with_filter(
            _is_one_of(builder.new_predicate_builder(), table.partition_keys, partitions)
        )
    return Base(int(snapshot.id), tuple(builder.new_scan().plan().splits()))


def _is_one_of(predicates: Any, keys: Iterable[str], partitions: Collection[Partition]) -> Any:
    def is_partition(partition: Partition) -> Any:
        return predicates.and_predicates(
            [
                predicates.is_null(key) if value is None else predicates.equal(key, value)
                for key, value in zip(keys, partition, strict=True)
            ]
        )

    return predicates.or_predicates([is_partition(partition) for partition in partitions])


def replacing(base: Base) -> list[Any]:
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
