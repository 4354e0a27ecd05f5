"""The four ways in which `PaimonSink` stages a batch. `sink.py` chooses one, and publishes what it has staged.

| way | table, mode | it marks | what another commit may not change before the publish |
| --- | --- | --- | --- |
| `Append` | append table, append | the files that it adds | – |
| `Merge` | append table, upsert | whole partitions | their files (`UnchangedBase`) |
| `FixedBuckets` | primary key | buckets | the order of sequence numbers (`GreaterNumbers`) |
| `DynamicBuckets` | primary key, `bucket=-1` | whole partitions | that order, and the index files of its partitions |

- `Merge` lists the files of its partitions (the *base*) only after its markers. From there on the agent checks each commit to
  them. It finds those that have keys of the batch (`matched_files.py`), merges the batch into them (`upsert.py`), and replaces
  exactly these files.
- Rows of a table with a primary key are numbered by the snapshot that was read and by the transaction's turn
  (`handlers/paimon/primary_key.py`). `FixedBuckets` reads no files, so a foreign commit changes no base. It takes its number
  before any Spark job: what other transactions read and commit during these doesn't change the order then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lakewarden.events import ALL_FILE_GROUPS, Marker, Operation
from lakewarden.handlers.maker import Winner, winner_of
from lakewarden.handlers.paimon.primary_key import first_sequence_number, missing_columns
from lakewarden.spark_jobs.engine.engine import quoted
from lakewarden.spark_jobs.gate.errors import base_changed
from lakewarden.spark_jobs.sinks.assignment import folding
from lakewarden.spark_jobs.sinks.paimon.base import (
    Base,
    changed_by,
    deletions_of,
    latest_snapshot_id,
    newest_snapshot,
    read_base,
)
from lakewarden.spark_jobs.sinks.paimon.frames import (
    all_columns,
    groups_of,
    one_task_each,
    partitions_of,
    read_frame,
    stage_files,
    to_rewrite,
    with_groups,
)
from lakewarden.spark_jobs.sinks.paimon.primary_key import GROUP, require_greater_numbers
from lakewarden.spark_jobs.sinks.paimon.stage import Staging
from lakewarden.spark_jobs.sinks.paimon.table import (
    TableAddress,
    has_dynamic_buckets,
    primary_key_table,
    upsert_rule,
)
from lakewarden.spark_jobs.sinks.paimon.values import Partition, partition_path
from lakewarden.spark_jobs.sinks.partitions import computed_once, require_computed_once, settle
from lakewarden.spark_jobs.sinks.upsert import latest, merge, require_order

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakewarden.spark_jobs.gate.transaction import Transaction

MAX_NAMED = 3
"""Files of each writer, and writers, listed in an error."""


@dataclass(frozen=True, slots=True)
class Staged:
    """What is ready to be published."""

    messages: list[Any]
    """Those of the staged files, and of the files that they replace."""
    checks: list[Callable[[Any], None]]

    def check(self, table: Any) -> None:
        """Raise if a commit to the table since the batch was computed forbids to publish it."""
        for each in self.checks:
            each(table)


@dataclass(slots=True)
class Work:
    """What one transaction stages."""

    txn: Transaction
    staging: Staging
    known: tuple[Any, ...]
    """The places of the batch, if its plan has them."""
    discard: Callable[[Work], None]
    """Removes what is staged, if it isn't committed."""
    paths: tuple[str, ...] = ()
    """The partitions that may have staged files, if the driver knows them."""
    checks: list[Callable[[Any], None]] = field(default_factory=list)
    staged: Staged | None = None
    """None: the staging has not succeeded, or the batch has no rows."""

    def stage(self, rows: DataFrame, also: Iterable[Any] = ()) -> None:
        """Write the rows' files. `also`: further messages of the commit."""
        self.txn.on_discard(lambda: self.discard(self))
        self.staged = Staged([*stage_files(rows, self.staging), *also], self.checks)


@dataclass(frozen=True, slots=True)
class Way(ABC):
    """How batches of one mode are staged in one kind of table. `keys` and `order_by` are spelled as the user did."""

    table: Any
    address: TableAddress
    keys: tuple[str, ...]
    order_by: str | None

    @abstractmethod
    def stage(self, rows: DataFrame, work: Work) -> None:
        """Publish the markers and stage the rows, which have the table's types."""


class Append(Way):
    """Add files."""

    def stage(self, rows: DataFrame, work: Work) -> None:
        work.stage(all_columns(rows, self.table, self.address.uri))


class Upsert(Way):
    """Change the rows of some partitions or buckets, the batch's *places*."""

    def stage(self, rows: DataFrame, work: Work) -> None:
        txn = work.txn
        rule = upsert_rule(self.table)
        if txn.intent.conflict_rule not in (rule, "file-group"):
            raise ValueError(
                f"the transaction has the conflict rule {txn.intent.conflict_rule!r}, and upserts into this table need {rule!r}: "
                f"leave out `conflict_rule`, and start the query again if the table was replaced; table={self.address.uri}"
            )
        self.begin(work)
        rows = self.prepared(rows)
        with self.once(rows, work) as rows:
            settle(rows)
            places = work.known or self.places(rows)
            if not places:
                return
            markers = self.markers(places)
            work.paths = tuple(dict.fromkeys(marker.partition for marker in markers))
            txn.touch_all(markers)
            self.write(rows, places, work)
            require_computed_once(rows, txn.facts)

    def begin(self, work: Work) -> None:
        """Do what must come before any Spark job."""

    @abstractmethod
    def prepared(self, rows: DataFrame) -> DataFrame:
        """Return the rows as `places` and `write` need them. Raises `ValueError` if they lack a column."""

    def once(self, rows: DataFrame, work: Work) -> AbstractContextManager[DataFrame]:
        """Return the rows as each of their Spark jobs sees them."""
        return computed_once(rows, work.txn.facts)

    @abstractmethod
    def places(self, rows: DataFrame) -> tuple[Any, ...]:
        """Find the partitions or buckets of prepared rows, by one Spark job."""

    @abstractmethod
    def markers(self, places: tuple[Any, ...]) -> tuple[Marker, ...]:
        """Return the markers of these places."""

    @abstractmethod
    def write(self, rows: DataFrame, places: tuple[Any, ...], work: Work) -> None:
        """Stage the rows, after the markers."""

    def order(self, rows: DataFrame) -> str | None:
        """Return the batch's spelling of the column that orders rows of one key."""
        if self.order_by is None:
            return None
        order = self.named(self.order_by, rows)
        if order not in rows.columns:
            raise ValueError(
                f"order_by={self.order_by!r} is not a column of both the batch and the table; table={self.address.uri}"
            )
        require_order(rows, order, self.address.uri)
        return order

    def named(self, column: str, rows: DataFrame) -> str:
        """Return the spelling that the batch, and so the table, has for a column."""
        folded = folding(rows.sparkSession)
        return next((name for name in rows.columns if folded(name) == folded(column)), column)


class WholePartitions(Upsert):
    """An upsert of which a partition may have only one at a time: it rewrites files, or reads an index."""

    operation: Operation

    def places(self, rows: DataFrame) -> tuple[Any, ...]:
        return tuple(partitions_of(rows, self.table))

    def markers(self, places: tuple[Any, ...]) -> tuple[Marker, ...]:
        paths = (partition_path(self.table, partition) for partition in places)
        return tuple(
            Marker(partition=path, file_group=ALL_FILE_GROUPS, operation=self.operation) for path in paths
        )

    def write(self, rows: DataFrame, places: tuple[Any, ...], work: Work) -> None:
        work.staging = replace(work.staging, allowed_partitions=frozenset(work.paths))
        # Only after the markers: from here on the agent checks every commit to these partitions against them.
        base = read_base(self.table, places)
        work.txn.check()  # no Spark job runs in these steps, so an abort finds none to cancel
        self.write_onto(base, rows, work)
        work.checks.append(UnchangedBase(self.address.uri, work.txn.writer, places, base))

    @abstractmethod
    def write_onto(self, base: Base, rows: DataFrame, work: Work) -> None:
        """Stage the rows for partitions that have this base."""


class Merge(WholePartitions):
    """Rewrite the files that have keys of the batch."""

    operation = "merge"

    def prepared(self, rows: DataFrame) -> DataFrame:
        missing = [key for key in self.all_keys(rows) if key not in rows.columns]
        if missing:
            raise ValueError(
                f"the batch lacks key or partition columns {missing}, by which an upsert finds the rows to change; "
                f"table={self.address.uri}"
            )
        return rows

    def once(self, rows: DataFrame, work: Work) -> AbstractContextManager[DataFrame]:
        return super().once(latest(rows, self.all_keys(rows), self.order(rows)), work)

    def write_onto(self, base: Base, rows: DataFrame, work: Work) -> None:
        keys = self.all_keys(rows)
        rewritten = to_rewrite(rows, self.table, self.address, base, keys)
        merged = merge(read_frame(rows, self.table, self.address, rewritten), rows, keys)
        if self.table.partition_keys:
            merged = merged.repartition(*map(quoted, self.table.partition_keys))
        work.txn.check()
        work.stage(merged, deletions_of(rewritten))

    def all_keys(self, rows: DataFrame) -> tuple[str, ...]:
        keys = (self.named(key, rows) for key in self.keys)
        return tuple(dict.fromkeys((*self.table.partition_keys, *keys)))


class _Numbered(Upsert):
    """An upsert into a table with a primary key."""

    def prepared(self, rows: DataFrame) -> DataFrame:
        facts = primary_key_table(self.table)
        missing = missing_columns(facts, self.table.field_names, rows.columns)
        if not missing:
            return rows
        remedy = "primary key columns"
        if not facts.keeps_missing_columns:
            remedy = "and merge-engine=deduplicate replaces whole rows: add them, or use merge-engine=partial-update"
        raise ValueError(f"the batch lacks columns {missing}, {remedy}; table={self.address.uri}")

    def require_numbers(self, written: Iterable[str], work: Work) -> None:
        """Have the publish look whether the numbers of these places are still greater than those of the table."""
        first = work.staging.first_sequence
        assert first is not None
        work.checks.append(GreaterNumbers(work.staging.user, frozenset(written), first))


class FixedBuckets(_Numbered):
    """Add files to the buckets of the batch's rows."""

    def begin(self, work: Work) -> None:
        first = first_sequence_number(latest_snapshot_id(self.table), work.txn.turn)
        work.staging = replace(work.staging, first_sequence=first)

    def prepared(self, rows: DataFrame) -> DataFrame:
        rows = super().prepared(rows)
        return with_groups(all_columns(rows, self.table, self.address.uri), self.address)

    def once(self, rows: DataFrame, work: Work) -> AbstractContextManager[DataFrame]:
        # Known buckets are those of a batch that is persisted itself.
        return nullcontext(rows) if work.known else super().once(rows, work)

    def places(self, rows: DataFrame) -> tuple[Any, ...]:
        return tuple(groups_of(rows, self.table))

    def markers(self, places: tuple[Any, ...]) -> tuple[Marker, ...]:
        operation: Operation = "append" if self.commutes else "merge"
        names = (group.rpartition("/") for group in places)
        return tuple(
            Marker(partition=path, file_group=bucket, operation=operation) for path, _, bucket in names
        )

    def write(self, rows: DataFrame, places: tuple[Any, ...], work: Work) -> None:
        work.staging = replace(work.staging, groups=frozenset(places))
        work.txn.check()
        work.stage(one_task_each(rows, [GROUP], self.order(rows)))
        if not self.commutes:
            self.require_numbers(places, work)

    @property
    def commutes(self) -> bool:
        """Whether sequence numbers don't matter."""
        return upsert_rule(self.table) == "deleted-file"


class DynamicBuckets(_Numbered, WholePartitions):
    """Add files, and to the index of the partitions the buckets of new keys."""

    operation = "append"

    def write_onto(self, base: Base, rows: DataFrame, work: Work) -> None:
        first = first_sequence_number(base.snapshot_id)
        work.staging = replace(work.staging, first_sequence=first, index_snapshot=base.snapshot_id)
        every = all_columns(rows, self.table, self.address.uri)
        work.stage(one_task_each(every, self.table.partition_keys, self.order(rows)))
        self.require_numbers(work.paths, work)


def way_of(
    table: Any, address: TableAddress, *, upsert: bool, keys: tuple[str, ...], order_by: str | None
) -> Way:
    """Return how a sink with these arguments stages batches of this table, which it supports."""
    kind: type[Way] = Append
    if upsert and not table.is_primary_key_table:
        kind = Merge
    elif upsert:
        kind = DynamicBuckets if has_dynamic_buckets(table) else FixedBuckets
    return kind(table, address, keys, order_by)


# what another commit may not change


@dataclass(slots=True)
class GreaterNumbers:
    """The rows' sequence numbers must be greater than those of the same places in the table."""

    user: str
    written: frozenset[str]
    first: int
    smaller_at: int = -1
    """The newest snapshot whose sequence numbers are known to be smaller."""

    def __call__(self, table: Any) -> None:
        self.smaller_at = require_greater_numbers(table, self.user, self.written, self.first, self.smaller_at)


@dataclass(slots=True)
class UnchangedBase:
    """The partitions must have the files that the batch was merged with, or the index that it was written by."""

    uri: str
    writer: str
    partitions: tuple[Partition, ...]
    base: Base
    unchanged_at: tuple[int, str] = (-1, "")
    """The newest snapshot that is known to contain the base unchanged."""

    def __call__(self, table: Any) -> None:
        newest = newest_snapshot(table)
        base = self.base
        if newest in ((base.snapshot_id, base.identity), self.unchanged_at):
            return
        now = read_base(table, self.partitions, newest)
        added, gone = now.files - base.files, base.files - now.files
        if added or gone:
            changes = changed_by(table, self.partitions, base, now)
            cause = _changes_text(changes) if changes else "a rollback of the table"
            raise base_changed(
                f"the base of this batch changed: {len(added)} files were added and {len(gone)} removed in its partitions "
                f"since snapshot {base.snapshot_id}: {cause}",
                f"table={self.uri} writer={self.writer} snapshot={now.snapshot_id}",
                winner_of(list(reversed(changes))),
            )
        self.unchanged_at = newest


def _changes_text(changes: Mapping[Winner, Sequence[str]]) -> str:
    """Return the commits and the files that they changed, the first few of each."""
    named: list[str] = []
    for commit, files in list(changes.items())[:MAX_NAMED]:
        text = f"{commit.text} changed {', '.join(files[:MAX_NAMED])}"
        if len(files) > MAX_NAMED:
            text += f" and {len(files) - MAX_NAMED} more"
        named.append(text)
    if len(changes) > MAX_NAMED:
        named.append(f"{len(changes) - MAX_NAMED} more")
    return ", ".join(named)
