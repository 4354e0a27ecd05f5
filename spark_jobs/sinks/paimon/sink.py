"""`PaimonSink` writes micro-batches to one Paimon table, together with other writers. docs/paimon.md has its modes.

Executors publish markers and stage files. The driver commits all of them in one snapshot, under the grant.

- *Append.* If another commit took the snapshot id, the sink tries the next one under the same grant.
- *Publish.* The store refuses a snapshot whose id is taken, however late the put arrives (docs/decisions/0041). Before a batch
  the sink looks whether a writer without such a put has replaced its last snapshot, and commits a lost batch again.
- *Staging.* `ways.py` has the four ways to stage a batch. What forbids to publish it is looked for before the grant is
  requested, under it, and before each put: so a commit that bypasses the gate is found, too.
- *Clean-up.* The sink registers it before the first file is staged (`txn.on_discard`). So it runs when the batch's tasks have
  ended. It removes the files by the transaction's prefix, since the messages of cancelled tasks are lost. The Python worker
  of a cancelled task may outlive it until it next reads or writes its socket, so the next batches look for such files again.
- *Exactly once.* Each snapshot carries the last batch of every writer (docs/decisions/0042), so a replayed batch is found after
  its snapshot has expired, too. That is this sink's `committed` (`sinks/contract.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from lakewarden.events import ConflictRule
from lakewarden.handlers.paimon.publish import CommitName
from lakewarden.spark_jobs.gate.errors import BaseChanged, CommitReplaced, GateError, base_changed, repetition
from lakewarden.spark_jobs.gate.grant import Grant
from lakewarden.spark_jobs.gate.logs import EventLogger
from lakewarden.spark_jobs.gate.scope import BatchScope
from lakewarden.spark_jobs.sinks.assignment import folding, naming_values
from lakewarden.spark_jobs.sinks.contract import Plan, Sink, as_columns
from lakewarden.spark_jobs.sinks.paimon.base import UNNUMBERED, is_same_table
from lakewarden.spark_jobs.sinks.paimon.commit import (
    NothingPublished,
    PublishedSnapshot,
    before_the_put,
    is_lost,
    publish,
    remove_staged,
    sweep,
)
from lakewarden.spark_jobs.sinks.paimon.frames import in_table_types, spark_schema
from lakewarden.spark_jobs.sinks.paimon.history import committed_version, writers_of
from lakewarden.spark_jobs.sinks.paimon.primary_key import require_free_numbers
from lakewarden.spark_jobs.sinks.paimon.snapshot_store import snapshot_store
from lakewarden.spark_jobs.sinks.paimon.stage import Staging
from lakewarden.spark_jobs.sinks.paimon.table import TableAddress, address, require_supported, upsert_rule
from lakewarden.spark_jobs.sinks.paimon.ways import Staged, Upsert, Way, Work, way_of
from lakewarden.spark_jobs.sinks.partitions import settle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakewarden.spark_jobs.gate.transaction import Transaction

Mode: TypeAlias = Literal["append", "upsert"]

FOOTPRINT_SECONDS = 10.0
"""For reading back from Kafka into which partitions cancelled tasks may have written."""

WORKER_SECONDS = 60.0
"""How long after its task was cancelled a Python worker may still write a file. Each batch in this time sweeps again."""

log = EventLogger("lakewarden.paimon")


@dataclass(frozen=True, slots=True)
class _LastCommit:
    """A writer's last commit, and what it takes to commit its files again."""

    published: PublishedSnapshot
    staged: Staged


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
        way = self._way(table)
        assert isinstance(way, Upsert)
        rows = in_table_types(batch, table, self.table)
        with naming_values(batch, spark_schema(table), self.table):
            settle(batch)
            places = way.places(way.prepared(rows))
        return Plan(BatchScope(way.markers(places)), partial(self._write, batch, places))

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
        lost = self._lost_commit(table, txn.writer)
        work = Work(txn, staging, known, partial(self._discard, table))
        self._stage(table, batch, work)
        staged = work.staged if work.staged and work.staged.messages else None
        if staged is not None:
            staged.check(table)  # before it waits for a grant that it could not use
        if staged is not None or lost is not None:
            self._commit(table, CommitName(staging.user, staging.identifier, txn.id), staged, lost, txn)

    def committed(self, writer: str, batch_id: int, /) -> str | None:
        found = committed_version(self._address.open(), self.table, writer, batch_id)
        return None if found is None else str(found)

    def writers(self) -> list[str]:
        return writers_of(self._address.open())

    def _open(self, spark: SparkSession) -> Any:
        table, folded = self._address.open(), folding(spark)
        spelling = {folded(name): name for name in table.field_names}
        keys = [key if key in table.field_names else spelling.get(folded(key), key) for key in self._keys]
        require_supported(table, upsert=self._mode == "upsert", keys=keys)
        return table

    def _way(self, table: Any) -> Way:
        upsert = self._mode == "upsert"
        if upsert and table.is_primary_key_table and not self._numbers_free:
            require_free_numbers(table)
            self._numbers_free = True
        return way_of(table, self._address, upsert=upsert, keys=self._keys, order_by=self._order_by)

    def _stage(self, table: Any, batch: DataFrame, work: Work) -> None:
        rows = in_table_types(batch, table, self.table)
        try:
            with naming_values(batch, spark_schema(table), self.table):
                self._way(table).stage(rows, work)
        except GateError:
            raise
        except Exception as error:
            if _is_changed(table, self._address):
                raise self._other_table(work.txn) from error
            raise

    # committing

    def _commit(
        self, table: Any, name: CommitName, staged: Staged | None, lost: _LastCommit | None, txn: Transaction
    ) -> None:
        with txn.commit() as grant:

            def check() -> None:
                """Before every put: the newest snapshot must allow it, and the grant must still count."""
                if staged is not None:
                    staged.check(table)
                grant.check()

            try:
                if lost is not None:
                    grant.version = self._commit_again(table, lost, txn, grant)
                if staged is not None:
                    self._check_or_end(table, staged, txn)
                    grant.version = self._publish(table, staged, name, grant, check)
            except NothingPublished as nothing:
                grant.not_published()
                raise nothing.error from None

    def _other_table(self, txn: Transaction) -> BaseChanged:
        return base_changed(
            "the table was changed, or created again, while this batch was computed",
            f"table={self.table} writer={txn.writer}",
        )

    def _publish(
        self, table: Any, staged: Staged, name: CommitName, grant: Grant, check: Callable[[], None]
    ) -> str:
        found = publish(table, staged.messages, name=name, token=grant.token, check=check)
        self._last[name.user] = _LastCommit(found, staged)
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
            self._check_or_end(table, lost.staged, txn)
            return self._publish(table, lost.staged, name, grant, grant.check)
        except NothingPublished as nothing:
            if not isinstance(nothing.error, BaseChanged):
                raise
            del self._last[name.user]
            remedy = "write them again"
            if name.identifier != UNNUMBERED:
                remedy = repetition(self.table, txn.intent.writer, name.identifier)
            raise NothingPublished(
                CommitReplaced(
                    f"batch {name.identifier} was committed as snapshot {lost.published.number}, which another commit "
                    f"replaced, and its files can't be committed again, because files that it was merged with changed; "
                    f"its rows are lost: {remedy}; table={self.table} writer={name.user}"
                )
            ) from nothing.error

    def _check_or_end(self, table: Any, staged: Staged, txn: Transaction) -> None:
        """Before pypaimon prepares the commit: its own conflict names neither the writer nor the files."""
        with before_the_put():
            if not is_same_table(table):
                raise self._other_table(txn)
            staged.check(table)

    # removing staged files

    def _discard(self, table: Any, work: Work) -> None:
        if work.staged is not None:
            if not work.staged.messages:
                return  # every task succeeded, and had no rows
            remove_staged(table, [message for message in work.staged.messages if message.new_files])
        partitions = work.paths or tuple(
            {marker.partition for marker in work.txn.footprint(FOOTPRINT_SECONDS)}
        )
        if partitions:
            prefix = f"data-{work.txn.id}-"
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


def _identifier(batch_id: int | None) -> int:
    return UNNUMBERED if batch_id is None else batch_id
