"""`PaimonSink` writes micro-batches to one Paimon table, together with other writers.

    sink = PaimonSink("s3://lake/flights", mode="upsert", keys=["flight"])
    stream.writeStream.foreachBatch(gate.foreach_batch(sink, writer="arrivals")).start()

Executors publish markers and stage files. The driver commits all of them in one snapshot, under the grant.

| mode | what it does | markers | conflict rule |
| --- | --- | --- | --- |
| `append` | adds files | `(partition, bucket-N, create)` | `deleted-file`: two appends never conflict |
| `upsert` | replaces the files of the partitions that the batch touches | `(partition, *, merge)` | `file-group` |

- *Append.* If another commit took the snapshot id, the sink tries the next one under the same grant.
- *Upsert.* The sink publishes its markers as soon as it knows the partitions. Only then it reads their files (the *base*),
  merges the batch into them (`merge.py`), and replaces exactly these files, all partitions in one snapshot. So the agent
  knows of every commit to the base by another gate user. A commit that bypasses the gate is found by comparing the base:
  before the grant is requested, under it, and before each try to write the snapshot. `BaseChanged` names the files and the
  other commit user.
- *Scope.* The partitions of an upsert are its scope. If the gate asked for them, the sink doesn't list them again. Appends
  have no scope, because they never conflict.
- *Clean-up.* The sink registers it before the first file is staged (`txn.on_discard`). So it runs when the batch's tasks have
  ended. It removes the files by the transaction's prefix, since the messages of cancelled tasks are lost. The Python worker
  of a cancelled task may outlive it until it next reads or writes its socket, so the next batch looks for such files again.
- *Exactly once.* A replayed batch finds its own snapshot by commit user (the writer's wire name) and identifier (the batch
  id). That is this sink's `committed` (`sinks/contract.py`).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lakewarden.events import ALL_FILE_GROUPS, ConflictRule, Marker
from lakewarden.spark_jobs.gate.batch_scope import BatchScope
from lakewarden.spark_jobs.gate.errors import BaseChanged
from lakewarden.spark_jobs.gate.logs import EventLogger
from lakewarden.spark_jobs.sinks.contract import Sink
from lakewarden.spark_jobs.sinks.merge import latest, merge
from lakewarden.spark_jobs.sinks.paimon.commit import publish, remove_staged, sweep
from lakewarden.spark_jobs.sinks.paimon.frames import (
    all_columns,
    in_table_types,
    partitions_of,
    read_frame,
    stage_files,
)
from lakewarden.spark_jobs.sinks.paimon.stage import Staging
from lakewarden.spark_jobs.sinks.paimon.table import (
    UNNUMBERED,
    Base,
    Partition,
    TableAddress,
    address,
    changed_by,
    deletions_of,
    find_commit,
    latest_snapshot_id,
    partition_path,
    read_base,
    require_supported,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakewarden.spark_jobs.gate.transaction import Transaction

Mode: TypeAlias = Literal["append", "upsert"]

MAX_NAMED = 3
"""Files of each writer, and writers, listed in an error."""

FOOTPRINT_SECONDS = 10.0
"""For reading back from Kafka into which partitions cancelled tasks may have written."""

log = EventLogger("lakewarden.paimon")


@dataclass(slots=True)
class _StagedBatch:
    """What one transaction has staged so far."""

    staging: Staging
    messages: list[Any] | None = None
    """Of the staged files, and of those that they replace. None: the staging has not succeeded."""
    partitions: tuple[Partition, ...] = ()
    paths: tuple[str, ...] = ()
    base: Base | None = None
    unchanged_at: int = -1
    """The newest snapshot that is known to contain the base unchanged."""


@dataclass(frozen=True, slots=True)
class _PaimonScope(BatchScope):
    """The partitions of an upsert, with their values."""

    partitions: tuple[Partition, ...]


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
        if (mode == "upsert") != bool(keys):
            raise ValueError(
                f"mode {mode!r} with keys={list(keys)}: give `keys` for upsert, and only for upsert"
            )
        self._address: TableAddress = address(table, catalog_options)
        self._mode: Mode = mode
        self._keys = tuple(keys)
        self._order_by = order_by
        self._leftovers: list[tuple[tuple[str, ...], str]] = []

    @property
    def table(self) -> str:
        """Canonical URI of the table."""
        return self._address.uri

    @property
    def conflict_rule(self) -> ConflictRule:
        """The conflict rule of this sink's transactions."""
        return "deleted-file" if self._mode == "append" else "file-group"

    def scope(self, batch: DataFrame, /) -> _PaimonScope | None:
        """Return the partitions that an upsert of the batch rewrites, by one Spark job. None for an append."""
        if self._mode == "append":
            return None
        table = self._address.open()
        require_supported(table, rewrites=True)
        rows = in_table_types(batch, table)
        self._all_keys(table, rows)
        partitions = tuple(partitions_of(rows, table))
        paths = (partition_path(table, partition) for partition in partitions)
        return _PaimonScope(tuple(_whole_partition(path) for path in paths), partitions)

    def __call__(self, batch: DataFrame, txn: Transaction) -> None:
        """Write one batch in a transaction of the gate."""
        table = self._address.open()
        require_supported(table, rewrites=self._mode == "upsert")
        self._sweep_leftovers(table)
        txn.recognise(self.committed)
        staging = Staging(
            table=self._address,
            user=txn.writer,
            identifier=_identifier(txn.batch_id),
            prefix=f"data-{txn.id}-",
            channel=txn.executor_channel() if self._mode == "append" else None,
            allowed_partitions=None,
        )
        work = _StagedBatch(staging)
        self._stage(table, batch, work, txn)
        if work.messages:
            self._require_unchanged(table, work, txn)  # before it waits for a grant in vain
            self._commit(table, work, work.messages, txn)

    def committed(self, writer: str, batch_id: int, /) -> str | None:
        """Return the snapshot in which `writer` committed the batch, or None."""
        found = find_commit(self._address.open(), writer, batch_id)
        return None if found is None else str(found)

    def write(self, batch: DataFrame, batch_id: int) -> int | None:
        """Write one batch as pypaimon alone does, without agent, grant or check. Return the snapshot id.

        Upsert is then pypaimon's partition overwrite. It replaces whatever the partitions contain at that moment: a commit
        of another writer since the base was read is lost without an error. Use it for tables with one writer; the demo
        uses it to show the difference.
        """
        table = self._address.open()
        require_supported(table, rewrites=self._mode == "upsert")
        user = f"{uuid.uuid4()}"
        work = _StagedBatch(Staging(self._address, user, _identifier(batch_id), None, None, None))
        self._stage(table, batch, work, None)
        builder = table.new_batch_write_builder()
        builder.commit_user = user
        messages = work.messages or []
        if self._mode == "upsert":
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

    # staging

    def _stage(self, table: Any, batch: DataFrame, work: _StagedBatch, txn: Transaction | None) -> None:
        rows = in_table_types(batch, table)
        if self._mode == "append":
            self._discard_later(table, work, txn)
            work.messages = stage_files(all_columns(rows, table), work.staging)
            return
        keys = self._all_keys(table, rows)
        scope = txn.batch_scope if txn is not None else None
        # An empty one isn't trusted either: the user's function may have added rows to the batch since.
        known = scope.partitions if isinstance(scope, _PaimonScope) else ()
        rows = latest(rows, keys, self._order_by)
        if not known:
            rows.persist()  # it is computed twice, and must be the same rows both times
        try:
            work.partitions = known or tuple(partitions_of(rows, table))
            if not work.partitions:
                return
            work.paths = tuple(partition_path(table, partition) for partition in work.partitions)
            work.staging = replace(work.staging, allowed_partitions=frozenset(work.paths))
            if txn is not None:
                txn.touch_all(_whole_partition(path) for path in work.paths)
            # Only after the markers: from here on the agent checks every commit to these partitions against them.
            work.base = read_base(table, work.partitions)
            if txn is not None:
                txn.check()  # no Spark job runs in these steps, so an abort finds none to cancel
            merged = merge(read_frame(batch, table, self._address, work.base), rows, keys)
            if table.partition_keys:
                merged = merged.repartition(*table.partition_keys)
            if txn is not None:
                txn.check()
            self._discard_later(table, work, txn)
            work.messages = stage_files(merged, work.staging) + deletions_of(work.base)
        finally:
            if not known:
                rows.unpersist()

    def _all_keys(self, table: Any, rows: DataFrame) -> tuple[str, ...]:
        keys = tuple(dict.fromkeys((*table.partition_keys, *self._keys)))
        missing = [key for key in keys if key not in rows.columns]
        if missing:
            raise ValueError(
                f"the batch lacks key or partition columns {missing}, by which an upsert finds the rows to change; "
                f"table={self.table}"
            )
        return keys

    # committing

    def _commit(self, table: Any, work: _StagedBatch, messages: list[Any], txn: Transaction) -> None:
        staging = work.staging
        with txn.commit() as grant:

            def check() -> None:
                """Before every try: the newest snapshot must contain the base unchanged, and the grant must still count."""
                self._require_unchanged(table, work, txn)
                grant.check()

            try:
                self._require_unchanged(table, work, txn)
            except Exception:
                grant.not_published()
                raise
            grant.version = publish(
                table,
                messages,
                user=staging.user,
                identifier=staging.identifier,
                grant=grant,
                check=check,
                properties={"lakewarden.transaction": txn.id, "lakewarden.token": str(grant.token)},
            )

    def _require_unchanged(self, table: Any, work: _StagedBatch, txn: Transaction) -> None:
        base = work.base
        if base is None or latest_snapshot_id(table) in (base.snapshot_id, work.unchanged_at):
            return
        now = read_base(table, work.partitions)
        added, gone = now.files - base.files, base.files - now.files
        if added or gone:
            changes = _changes_text(changed_by(table, work.partitions, base, now))
            raise BaseChanged(
                f"the base of this batch changed: {len(added)} files were added and {len(gone)} removed in its partitions "
                f"since snapshot {base.snapshot_id}, by a writer that bypasses the gate: {changes}; nothing was published; "
                f"the batch must be computed again; table={self.table} writer={txn.writer} snapshot={now.snapshot_id}"
            )
        work.unchanged_at = now.snapshot_id

    # removing staged files

    def _discard_later(self, table: Any, work: _StagedBatch, txn: Transaction | None) -> None:
        """Have the gate remove what is going to be staged, unless it is committed."""
        if txn is not None:
            txn.on_discard(lambda: self._discard(table, work, txn))

    def _discard(self, table: Any, work: _StagedBatch, txn: Transaction) -> None:
        """Remove what was staged."""
        if work.messages is not None and not work.messages:
            return  # every task succeeded, and had no rows
        remove_staged(table, [message for message in work.messages or () if message.new_files])
        partitions = work.paths or tuple({marker.partition for marker in txn.footprint(FOOTPRINT_SECONDS)})
        prefix = work.staging.prefix
        if prefix is not None and partitions:
            sweep(table, partitions, prefix)
            # A Python worker whose task was cancelled may still write. The next batch sweeps again.
            self._leftovers.append((partitions, prefix))

    def _sweep_leftovers(self, table: Any) -> None:
        leftovers, self._leftovers = self._leftovers, []
        for partitions, prefix in leftovers:
            try:
                sweep(table, partitions, prefix)
            except Exception as error:  # noqa: BLE001 - files that no snapshot refers to only cost space
                log.warning("paimon.sweep-failed", table=self.table, prefix=prefix, error=repr(error))


def _whole_partition(path: str) -> Marker:
    return Marker(partition=path, file_group=ALL_FILE_GROUPS, operation="merge")


def _identifier(batch_id: int | None) -> int:
    return UNNUMBERED if batch_id is None else batch_id


def _changes_text(changes: Mapping[str, Sequence[str]]) -> str:
    """Return the commit users and the files that they changed, the first few of each."""
    named = [
        f"commit user {user!r} changed {', '.join(files[:MAX_NAMED])}"
        + (f" and {len(files) - MAX_NAMED} more" if len(files) > MAX_NAMED else "")
        for user, files in list(changes.items())[:MAX_NAMED]
    ]
    more = [f"{len(changes) - MAX_NAMED} more"] if len(changes) > MAX_NAMED else []
    return ", ".join(named + more)
