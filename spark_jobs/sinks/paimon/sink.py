"""`PaimonSink` writes micro-batches to one Paimon table, together with other writers. docs/paimon.md has its modes.

Executors publish markers and stage files. The driver commits all of them in one snapshot, under the grant.

- *Append.* If another commit took the snapshot id, the sink tries the next one under the same grant.
- *Publish.* The store refuses a snapshot whose id is taken, however late the put arrives (docs/decisions/0041). Before a batch
  the sink looks whether a writer without such a put has replaced its last snapshot, and commits a lost batch again.
- *Upsert.* The sink publishes its markers as soon as it knows the partitions. Only then it lists their files (the *base*),
  finds those that have keys of the batch (`matched_files.py`), merges the batch into them (`upsert.py`), and replaces exactly
  these files, all partitions in one snapshot. So the agent knows of every commit to the base by another gate user. A commit
  that bypasses the gate is found by comparing the base: before the grant is requested, under it, and before each put.
- *Primary key.* The sink reads the newest snapshot, publishes the markers of the batch's buckets, and numbers the rows by the
  snapshot and its turn (`handlers/paimon/primary_key.py`). It reads no files, so a foreign commit changes no base.
  With dynamic buckets its base are the index files of its partitions, which it reads after the markers, as any base.
- *Clean-up.* The sink registers it before the first file is staged (`txn.on_discard`). So it runs when the batch's tasks have
  ended. It removes the files by the transaction's prefix, since the messages of cancelled tasks are lost. The Python worker
  of a cancelled task may outlive it until it next reads or writes its socket, so the next batches look for such files again.
- *Exactly once.* Each snapshot carries the last batch of every writer (docs/decisions/0042), so a replayed batch is found after
  its snapshot has expired, too. That is this sink's `committed` (`sinks/contract.py`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from lakewarden.events import ALL_FILE_GROUPS, ConflictRule, Marker, Operation
from lakewarden.handlers.maker import Winner, winner_of
from lakewarden.handlers.paimon.primary_key import first_sequence_number, missing_columns
from lakewarden.handlers.paimon.publish import CommitName
from lakewarden.spark_jobs.gate.errors import BaseChanged, CommitReplaced, GateError, base_changed, repetition
from lakewarden.spark_jobs.gate.grant import Grant
from lakewarden.spark_jobs.gate.logs import EventLogger
from lakewarden.spark_jobs.gate.scope import BatchScope
from lakewarden.spark_jobs.sinks.assignment import folding, naming_values
from lakewarden.spark_jobs.sinks.contract import Plan, Sink, as_columns
from lakewarden.spark_jobs.sinks.paimon.base import (
    UNNUMBERED,
    Base,
    changed_by,
    deletions_of,
    find_commit,
    is_same_table,
    latest_snapshot_id,
    newest_snapshot,
    read_base,
)
from lakewarden.spark_jobs.sinks.paimon.commit import (
    NothingPublished,
    PublishedSnapshot,
    before_the_put,
    is_lost,
    publish,
    remove_staged,
    sweep,
)
from lakewarden.spark_jobs.sinks.paimon.frames import (
    all_columns,
    groups_of,
    in_table_types,
    one_task_each,
    partitions_of,
    read_frame,
    spark_schema,
    stage_files,
    to_rewrite,
    with_groups,
)
from lakewarden.spark_jobs.sinks.paimon.history import committed_version, writers_of
from lakewarden.spark_jobs.sinks.paimon.primary_key import (
    GROUP,
    require_free_numbers,
    require_greater_numbers,
)
from lakewarden.spark_jobs.sinks.paimon.snapshot_store import snapshot_store
from lakewarden.spark_jobs.sinks.paimon.stage import Staging
from lakewarden.spark_jobs.sinks.paimon.table import (
    TableAddress,
    address,
    has_dynamic_buckets,
    primary_key_table,
    require_supported,
    upsert_rule,
)
from lakewarden.spark_jobs.sinks.paimon.values import Partition, partition_path
from lakewarden.spark_jobs.sinks.partitions import (
    computed_once,
    quoted,
    require_computed_once,
    settle,
)
from lakewarden.spark_jobs.sinks.upsert import latest, merge, require_order

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakewarden.spark_jobs.gate.transaction import Transaction

Mode: TypeAlias = Literal["append", "upsert"]

MAX_NAMED = 3
"""Files of each writer, and writers, listed in an error."""

FOOTPRINT_SECONDS = 10.0
"""For reading back from Kafka into which partitions cancelled tasks may have written."""

WORKER_SECONDS = 60.0
"""How long after its task was cancelled a Python worker may still write a file. Each batch in this time sweeps again."""

log = EventLogger("lakewarden.paimon")


@dataclass(slots=True)
class _StagedBatch:
    """What one transaction has staged so far."""

    staging: Staging
    messages: list[Any] | None = None
    """Messages of the staged files, and of those that they replace. None: the staging has not succeeded."""
    partitions: tuple[Partition, ...] = ()
    paths: tuple[str, ...] = ()
    base: Base | None = None
    unchanged_at: tuple[int, str] = (-1, "")
    """The newest snapshot that is known to contain the base unchanged."""
    smaller_at: int = -1
    """The newest snapshot whose sequence numbers are known to be smaller."""
    commutes: bool = False
    """Whether sequence numbers don't matter."""
    lost: _LastCommit | None = None
    """The writer's last commit, if it must be committed again."""


@dataclass(frozen=True, slots=True)
class _LastCommit:
    """A writer's last commit, and what it takes to commit its files again."""

    published: PublishedSnapshot
    work: _StagedBatch


class PaimonSink(Sink):
    """Call it as `sink(batch_df, txn)`. Create one for each table and mode."""

    def __init__(
        self,
        table: str,
        *,
        mode: Mode = "append",
        keys: Sequence[str] = (),
        order_by: str | None = None,
        catalog_options: Mapping[str, str] | None = None,
    ) -> None:
        if mode not in get_args(Mode):
            raise ValueError(f"mode {mode!r} is none of {', '.join(get_args(Mode))}")
        if mode == "append" and keys:
            raise ValueError(f"mode {mode!r} with keys={list(keys)}: give `keys` only for upsert")
        self._address: TableAddress = address(table, catalog_options)
        self._mode: Mode = mode
        self._keys = as_columns(keys, "keys", self._address.uri)
        self._order_by = order_by
        self._warned = False
        self._numbers_free = False
        self._last: dict[str, _LastCommit] = {}
        self._leftovers: list[tuple[tuple[str, ...], str, float]] = []

    @property
    def table(self) -> str:
        return self._address.uri

    @property
    def conflict_rule(self) -> ConflictRule:
        """The conflict rule of this sink's transactions. For an upsert, it is looked up in the table."""
        return "deleted-file" if self._mode == "append" else upsert_rule(self._address.open())

    @property
    def reads_twice(self) -> bool:
        return self._mode != "append"

    def plan(self, batch: DataFrame, /) -> Plan:
        """Find the partitions or buckets that an upsert of the batch writes, by one Spark job."""
        if self._mode == "append":
            return Plan(None, partial(self._write, batch, ()))
        table = self._open(batch.sparkSession)
        rows = in_table_types(batch, table, self.table)
        with naming_values(batch, spark_schema(table), self.table):
            settle(batch)
            if _has_fixed_buckets(table):
                groups = tuple(groups_of(self._with_groups(table, rows), table))
                return Plan(BatchScope(_buckets(table, groups)), partial(self._write, batch, groups))
            self._require_columns(table, rows)
            partitions = tuple(partitions_of(rows, table))
        paths = (partition_path(table, partition) for partition in partitions)
        scope = BatchScope(_whole_partitions(table, paths))
        return Plan(scope, partial(self._write, batch, partitions))

    def _write(self, batch: DataFrame, known: tuple[Any, ...], txn: Transaction) -> None:
        table = self._open(batch.sparkSession)
        self._warn_unfenced(table)
        self._sweep_leftovers(table)
        staging = Staging(
            table=self._address,
            user=txn.writer,
            identifier=_identifier(txn.batch_id),
            prefix=f"data-{txn.id}-",
            channel=txn.executor_channel() if self._mode == "append" else None,
            allowed_partitions=None,
        )
        work = _StagedBatch(staging, lost=self._lost_commit(table, txn.writer))
        self._stage(table, batch, known, work, txn)
        if work.messages:
            self._require_unchanged(table, work, txn)  # before it waits for a grant that it could not use
        if work.messages or work.lost is not None:
            self._commit(table, work, txn)

    def committed(self, writer: str, batch_id: int, /) -> str | None:
        found = committed_version(self._address.open(), self.table, writer, batch_id)
        return None if found is None else str(found)

    def writers(self) -> list[str]:
        return writers_of(self._address.open())

    def write(self, batch: DataFrame, batch_id: int) -> int | None:
        """Write one batch as pypaimon alone does, without agent, grant or check. Return the snapshot id.

        On a table with a primary key, the rows then have pypaimon's own sequence numbers. Otherwise upsert is its partition
        overwrite. It replaces whatever the partitions contain at that moment: a commit of another writer since the base was
        read is lost without an error. Use it for tables with one writer; the demo uses it to show the difference.
        """
        table = self._open(batch.sparkSession)
        user = f"{uuid.uuid4()}"
        work = _StagedBatch(Staging(self._address, user, _identifier(batch_id), None, None, None))
        self._stage(table, batch, (), work, None)
        builder = table.new_batch_write_builder()
        builder.commit_user = user
        messages = work.messages or []
        if self._mode == "upsert" and not table.is_primary_key_table:
            builder = builder.overwrite()
            messages = [message for message in messages if message.new_files]
        if not messages:
            return None
        commit = builder.new_commit()
        try:
            commit.commit(messages)
        finally:
            commit.close()
        return find_commit(table, user, UNNUMBERED)

    def _open(self, spark: SparkSession) -> Any:
        table, folded = self._address.open(), folding(spark)
        spelling = {folded(name): name for name in table.field_names}
        keys = [key if key in table.field_names else spelling.get(folded(key), key) for key in self._keys]
        require_supported(table, upsert=self._mode == "upsert", keys=keys)
        return table

    # staging

    def _stage(
        self,
        table: Any,
        batch: DataFrame,
        known: tuple[Any, ...],
        work: _StagedBatch,
        txn: Transaction | None,
    ) -> None:
        rows = in_table_types(batch, table, self.table)
        try:
            with naming_values(batch, spark_schema(table), self.table):
                self._stage_rows(table, rows, known, work, txn)
        except GateError:
            raise
        except Exception as error:
            if txn is not None and _is_changed(table, self._address):
                raise self._other_table(txn) from error
            raise

    def _stage_rows(
        self, table: Any, rows: DataFrame, known: tuple[Any, ...], work: _StagedBatch, txn: Transaction | None
    ) -> None:
        if self._mode == "append":
            self._discard_later(table, work, txn)
            work.messages = stage_files(all_columns(rows, table, self.table), work.staging)
            return
        rule = upsert_rule(table)
        if txn is not None and txn.intent.conflict_rule not in (rule, "file-group"):
            raise ValueError(
                f"the transaction has the conflict rule {txn.intent.conflict_rule!r}, and upserts into this table need {rule!r}: "
                f"leave out `conflict_rule`, and start the query again if the table was replaced; table={self.table}"
            )
        if _has_fixed_buckets(table):
            self._stage_buckets(table, rows, known, work, txn)
            return
        self._require_columns(table, rows)
        if not table.is_primary_key_table:
            rows = latest(rows, self._all_keys(table, rows), self._order(rows))
        with computed_once(rows, self._facts(txn)) as rows:
            settle(rows)
            work.partitions = known or tuple(partitions_of(rows, table))
            if not work.partitions:
                return
            work.paths = tuple(partition_path(table, partition) for partition in work.partitions)
            work.staging = replace(work.staging, allowed_partitions=frozenset(work.paths))
            if txn is not None:
                txn.touch_all(_whole_partitions(table, work.paths))
            # Only after the markers: from here on the agent checks every commit to these partitions against them.
            work.base = read_base(table, work.partitions)
            if txn is not None:
                txn.check()  # no Spark job runs in these steps, so an abort finds none to cancel
            if table.is_primary_key_table:
                self._stage_dynamic_buckets(table, rows, work, work.base, txn)
            else:
                self._stage_merged(table, rows, work, work.base, txn)
            require_computed_once(rows, self._facts(txn))

    def _stage_merged(
        self, table: Any, rows: DataFrame, work: _StagedBatch, base: Base, txn: Transaction | None
    ) -> None:
        keys = self._all_keys(table, rows)
        # Without a transaction: pypaimon's overwrite replaces whole partitions.
        rewritten = base if txn is None else to_rewrite(rows, table, self._address, base, keys)
        merged = merge(read_frame(rows, table, self._address, rewritten), rows, keys)
        if table.partition_keys:
            merged = merged.repartition(*map(quoted, table.partition_keys))
        if txn is not None:
            txn.check()
        self._discard_later(table, work, txn)
        work.messages = stage_files(merged, work.staging) + deletions_of(rewritten)

    def _stage_dynamic_buckets(
        self, table: Any, rows: DataFrame, work: _StagedBatch, base: Base, txn: Transaction | None
    ) -> None:
        if txn is not None:
            self._number(table, work, first_sequence_number(base.snapshot_id))
            work.staging = replace(work.staging, index_snapshot=base.snapshot_id)
        self._discard_later(table, work, txn)
        ordered = one_task_each(all_columns(rows, table, self.table), table.partition_keys, self._order(rows))
        work.messages = stage_files(ordered, work.staging)

    def _stage_buckets(
        self, table: Any, rows: DataFrame, known: tuple[Any, ...], work: _StagedBatch, txn: Transaction | None
    ) -> None:
        if txn is not None:
            # Before any Spark job: what other transactions read and commit during these doesn't change the order then.
            self._number(table, work, first_sequence_number(latest_snapshot_id(table), txn.turn))
            work.commutes = upsert_rule(table) == "deleted-file"
        rows = self._with_groups(table, rows)
        # Known buckets are those of a batch that is persisted itself.
        with nullcontext(rows) if known else computed_once(rows, self._facts(txn)) as rows:
            settle(rows)
            groups = known or tuple(groups_of(rows, table))
            if not groups:
                return
            markers = _buckets(table, groups)
            work.paths = tuple(dict.fromkeys(marker.partition for marker in markers))
            work.staging = replace(work.staging, groups=frozenset(groups))
            if txn is not None:
                txn.touch_all(markers)
                txn.check()
            self._discard_later(table, work, txn)
            work.messages = stage_files(one_task_each(rows, [GROUP], self._order(rows)), work.staging)
            require_computed_once(rows, self._facts(txn))

    def _facts(self, txn: Transaction | None) -> str:
        return f"table={self.table}" if txn is None else txn.facts

    def _number(self, table: Any, work: _StagedBatch, first: int) -> None:
        work.staging = replace(work.staging, first_sequence=first)
        if not self._numbers_free:
            require_free_numbers(table)
            self._numbers_free = True

    def _with_groups(self, table: Any, rows: DataFrame) -> DataFrame:
        self._require_columns(table, rows)
        return with_groups(all_columns(rows, table, self.table), self._address)

    def _require_columns(self, table: Any, rows: DataFrame) -> None:
        if not table.is_primary_key_table:
            missing = [key for key in self._all_keys(table, rows) if key not in rows.columns]
            if missing:
                raise ValueError(
                    f"the batch lacks key or partition columns {missing}, by which an upsert finds the rows to change; "
                    f"table={self.table}"
                )
            return
        facts = primary_key_table(table)
        missing = missing_columns(facts, table.field_names, rows.columns)
        if missing:
            remedy = (
                "primary key columns"
                if facts.keeps_missing_columns
                else "and merge-engine=deduplicate replaces whole rows: add them, or use merge-engine=partial-update"
            )
            raise ValueError(f"the batch lacks columns {missing}, {remedy}; table={self.table}")

    def _all_keys(self, table: Any, rows: DataFrame) -> tuple[str, ...]:
        keys = (self._named(key, rows) for key in self._keys)
        return tuple(dict.fromkeys((*table.partition_keys, *keys)))

    def _named(self, column: str, rows: DataFrame) -> str:
        """Return the spelling that the batch, and so the table, has for a column."""
        folded = folding(rows.sparkSession)
        return next((name for name in rows.columns if folded(name) == folded(column)), column)

    def _order(self, rows: DataFrame) -> str | None:
        if self._order_by is None:
            return None
        order = self._named(self._order_by, rows)
        if order not in rows.columns:
            raise ValueError(
                f"order_by={self._order_by!r} is not a column of both the batch and the table; table={self.table}"
            )
        require_order(rows, order, self.table)
        return order

    # committing

    def _commit(self, table: Any, work: _StagedBatch, txn: Transaction) -> None:
        name = CommitName(work.staging.user, work.staging.identifier, txn.id)
        with txn.commit() as grant:

            def check() -> None:
                """Before every put: the newest snapshot must contain the base unchanged, and the grant must still count."""
                self._require_unchanged(table, work, txn)
                grant.check()

            try:
                if work.lost is not None:
                    grant.version = self._commit_again(table, work.lost, txn, grant)
                if work.messages:
                    self._require_unchanged_or_end(table, work, txn)
                    grant.version = self._publish(table, work, name, grant, check)
            except NothingPublished as nothing:
                grant.not_published()
                raise nothing.error from None

    def _other_table(self, txn: Transaction) -> BaseChanged:
        return base_changed(
            "the table was changed, or created again, while this batch was computed",
            f"table={self.table} writer={txn.writer}",
        )

    def _publish(
        self, table: Any, work: _StagedBatch, name: CommitName, grant: Grant, check: Callable[[], None]
    ) -> str:
        found = publish(table, work.messages or [], name=name, token=grant.token, check=check)
        self._last[name.user] = _LastCommit(found, replace(work, lost=None))
        return str(found.number)

    def _warn_unfenced(self, table: Any) -> None:
        if not self._warned and not snapshot_store(table).fenced:
            log.warning(
                "paimon.publish-not-fenced",
                table=self.table,
                detail="no conditional write is known for this store, so pypaimon's own publish is used: a writer that is "
                "suspended beyond its lease may replace another commit",
            )
        self._warned = True

    def _lost_commit(self, table: Any, writer: str) -> _LastCommit | None:
        """Return the writer's last commit if a foreign writer has replaced it. An error of the store only skips the look."""
        last = self._last.get(writer)
        try:
            return last if last is not None and is_lost(table, last.published) else None
        except OSError as error:
            log.warning("paimon.look-failed", table=self.table, writer=writer, error=repr(error))
            return None

    def _commit_again(self, table: Any, lost: _LastCommit, txn: Transaction, grant: Grant) -> str:
        """Commit the files of a batch again whose snapshot was replaced, unless an earlier attempt has done so.

        The base of an upsert must be as it was: a row that it inserted may have been inserted by another writer since.
        """
        name = lost.published.name
        with before_the_put():
            found = committed_version(table, self.table, name.user, name.identifier)
        if found is not None:
            del self._last[name.user]
            return str(found)
        try:
            self._require_unchanged_or_end(table, lost.work, txn)
            return self._publish(table, lost.work, name, grant, grant.check)
        except NothingPublished as nothing:
            if not isinstance(nothing.error, BaseChanged):
                raise
            del self._last[name.user]
            numbered = name.identifier != UNNUMBERED
            remedy = (
                repetition(self.table, txn.intent.writer, name.identifier) if numbered else "write them again"
            )
            raise NothingPublished(
                CommitReplaced(
                    f"batch {name.identifier} was committed as snapshot {lost.published.number}, which another commit "
                    f"replaced, and its files can't be committed again, because files that it was merged with changed; "
                    f"its rows are lost: {remedy}; table={self.table} writer={name.user}"
                )
            ) from nothing.error

    def _require_unchanged_or_end(self, table: Any, work: _StagedBatch, txn: Transaction) -> None:
        """Before pypaimon prepares the commit: its own conflict names neither the writer nor the files."""
        with before_the_put():
            if not is_same_table(table):
                raise self._other_table(txn)
            self._require_unchanged(table, work, txn)

    def _require_unchanged(self, table: Any, work: _StagedBatch, txn: Transaction) -> None:
        staging, first = work.staging, work.staging.first_sequence
        if first is not None and not work.commutes:
            written = staging.groups or staging.allowed_partitions or ()
            work.smaller_at = require_greater_numbers(table, staging.user, written, first, work.smaller_at)
        base = work.base
        if base is None:
            return
        newest = newest_snapshot(table)
        if newest in ((base.snapshot_id, base.identity), work.unchanged_at):
            return
        now = read_base(table, work.partitions, newest)
        added, gone = now.files - base.files, base.files - now.files
        if added or gone:
            changes = changed_by(table, work.partitions, base, now)
            cause = _changes_text(changes) if changes else "a rollback of the table"
            raise base_changed(
                f"the base of this batch changed: {len(added)} files were added and {len(gone)} removed in its partitions "
                f"since snapshot {base.snapshot_id}: {cause}",
                f"table={self.table} writer={txn.writer} snapshot={now.snapshot_id}",
                winner_of(list(reversed(changes))),
            )
        work.unchanged_at = newest

    # removing staged files

    def _discard_later(self, table: Any, work: _StagedBatch, txn: Transaction | None) -> None:
        """Have the gate remove what is going to be staged, unless it is committed."""
        if txn is not None:
            txn.on_discard(lambda: self._discard(table, work, txn))

    def _discard(self, table: Any, work: _StagedBatch, txn: Transaction) -> None:
        if work.messages is not None and not work.messages:
            return  # every task succeeded, and had no rows
        remove_staged(table, [message for message in work.messages or () if message.new_files])
        partitions = work.paths or tuple({marker.partition for marker in txn.footprint(FOOTPRINT_SECONDS)})
        prefix = work.staging.prefix
        if prefix is not None and partitions:
            sweep(table, partitions, prefix)
            # A Python worker whose task was cancelled may still write. The next batches sweep again.
            self._leftovers.append((partitions, prefix, time.monotonic()))

    def _sweep_leftovers(self, table: Any) -> None:
        leftovers, now = self._leftovers, time.monotonic()
        self._leftovers = [each for each in leftovers if now - each[2] < WORKER_SECONDS]
        for partitions, prefix, _ in leftovers:
            try:
                sweep(table, partitions, prefix)
            except Exception as error:  # noqa: BLE001 - files that no snapshot refers to only cost space
                log.warning("paimon.sweep-failed", table=self.table, prefix=prefix, error=repr(error))


def _is_changed(table: Any, where: TableAddress) -> bool:
    """Return whether the table has another schema now, which explains most errors of the tasks that open it."""
    try:
        return bool(where.open().table_schema.id != table.table_schema.id) or not is_same_table(table)
    except Exception:  # noqa: BLE001 - the error of the batch says more
        return False


def _has_fixed_buckets(table: Any) -> bool:
    return table.is_primary_key_table and not has_dynamic_buckets(table)


def _whole_partitions(table: Any, paths: Iterable[str]) -> tuple[Marker, ...]:
    """Return the markers of what only one transaction at a time may write: it rewrites files, or reads an index."""
    operation: Operation = "append" if table.is_primary_key_table else "merge"
    return tuple(Marker(partition=path, file_group=ALL_FILE_GROUPS, operation=operation) for path in paths)


def _buckets(table: Any, groups: Iterable[str]) -> tuple[Marker, ...]:
    operation: Operation = "append" if upsert_rule(table) == "deleted-file" else "merge"
    names = (group.rpartition("/") for group in groups)
    return tuple(Marker(partition=path, file_group=bucket, operation=operation) for path, _, bucket in names)


def _identifier(batch_id: int | None) -> int:
    return UNNUMBERED if batch_id is None else batch_id


def _changes_text(changes: Mapping[Winner, Sequence[str]]) -> str:
    """Return the commits and the files that they changed, the first few of each."""
    named = [
        f"{commit.text} changed {', '.join(files[:MAX_NAMED])}"
        + (f" and {len(files) - MAX_NAMED} more" if len(files) > MAX_NAMED else "")
        for commit, files in list(changes.items())[:MAX_NAMED]
    ]
    more = [f"{len(changes) - MAX_NAMED} more"] if len(changes) > MAX_NAMED else []
    return ", ".join(named + more)
