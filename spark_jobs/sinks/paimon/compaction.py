"""`PaimonCompactor` compacts one Paimon table beside its writers, by Java Paimon in the JVM of the Spark driver.

    compactor = PaimonCompactor(gateway_of(spark), gate, "s3://lake/air.db/flights")
    for commit in compactor.run_round():
        print(commit)

A round plans what Java Paimon would compact now, in transactions of some units each, and merges manifests if many are small.

| step of a transaction | under the grant |
| --- | --- |
| intent with `TABLE_SERVICE_PRIORITY` and the rule `deleted-file` | no |
| a `delete` marker for each file to be replaced, or the scope has it; for buckets after the compute, which chooses them | no |
| the compute: compacted files, which no reader sees | no |
| Java's commit, published by the sink's fenced publish (`java_table.py`) | yes |

- *Who loses.* Appends, and upserts of tables with fixed buckets, never conflict with it. Those of append tables and of dynamic
  buckets touch whole partitions: if both compute, the compaction is aborted. `handlers/paimon/compaction.py` says how it gets its
  commit in the end, without an abort of an upsert that computes.
- *A lost conflict* removes the compacted files. So does a conflict that Java finds with a writer that bypasses the gate
  (`BaseChanged`).
- *An unknown outcome* removes nothing: files that no snapshot refers to only cost space.
- *A killed compactor* leaves the table as it is. The agent aborts its transaction when heartbeats are missed.
"""

import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakewarden.events import TABLE_SERVICE_PRIORITY
from lakewarden.handlers.paimon.compaction import Effort, Last, effort_after
from lakewarden.spark_jobs.gate.errors import BaseChanged, CommitAborted, GateError, GrantTimeout
from lakewarden.spark_jobs.gate.gate import TransactionGate
from lakewarden.spark_jobs.gate.logs import EventLogger
from lakewarden.spark_jobs.gate.transaction import Transaction
from lakewarden.spark_jobs.sinks.paimon.base import latest_snapshot_id
from lakewarden.spark_jobs.sinks.paimon.commit import NothingPublished, PublishedSnapshot
from lakewarden.spark_jobs.sinks.paimon.java_table import JavaTable, Unit
from lakewarden.spark_jobs.sinks.paimon.table import address

log = EventLogger("lakewarden.paimon")


@dataclass(frozen=True, slots=True)
class CompactionCommit:
    """What one transaction has committed. Both numbers are 0 if it only merged manifests."""

    snapshot: int
    files_before: int
    files_after: int

    def __str__(self) -> str:
        if not self.files_before:
            return f"snapshot {self.snapshot}: manifests merged"
        return f"snapshot {self.snapshot}: {self.files_before} files became {self.files_after}"


class Stopped(Exception):
    """`PaimonCompactor.stop` was called. Nothing of the transaction was committed."""


class PaimonCompactor:
    """Call `run_round` repeatedly. Create one for each table; two with one `writer` abort each other's transactions."""

    def __init__(
        self,
        gateway: Any,
        gate: TransactionGate,
        table: str,
        *,
        writer: str = "compactor",
        full: bool = False,
        catalog_options: Mapping[str, str] | None = None,
    ) -> None:
        """`gateway` is py4j's to a JVM with Java Paimon (`java_table.BUNDLE`).

        With `full`, each bucket is compacted into its greatest level, whatever it costs.
        """
        self._gateway = gateway
        self._gate = gate
        self._address = address(table, catalog_options)
        self._writer = writer
        self._full = full
        self._stopped = threading.Event()
        self._transaction: Transaction | None = None
        self._warned = False
        self._done_at: int | None = None
        self._last = Last.UNKNOWN
        self.lost = 0
        """Transactions that lost to writers since the last one that didn't."""

    @property
    def table(self) -> str:
        return self._address.uri

    def stop(self) -> None:
        """End a running round at its next step. Call it from another thread."""
        self._stopped.set()
        transaction = self._transaction
        if transaction is not None:
            transaction.waits.interrupt()

    def run_round(self) -> Iterator[CompactionCommit]:
        """Compact what there is now, and yield each commit. A transaction that loses is counted in `lost`, and ends the round.

        Raises `ValueError` for tables that can't be compacted, `GateError` if the agent or Kafka fails, and `Stopped`.
        """
        newest = latest_snapshot_id(self._address.open())
        if newest in (0, self._done_at):
            return
        with tempfile.TemporaryDirectory(prefix="lakewarden-compaction-") as spill:
            table = JavaTable(self._gateway, self._address, user=self._writer, spill=spill)
            self._warn_compacting_writers(table)
            ended = newest
            for commit in self._commits(table):
                ended = commit.snapshot
                yield commit
        if self.lost == 0 and (self._full or ended == newest):
            self._done_at = ended

    def _commits(self, table: JavaTable) -> Iterator[CompactionCommit]:
        units = table.plan(full=self._full)
        while units:
            effort = effort_after(self._last, self.lost)
            commit = self._run(table, units[: effort.units], effort)
            if self._last is Last.NOT_ADMITTED and effort.admission == "queued":
                continue
            if self.lost:
                return
            units = units[effort.units :]
            if commit is not None:
                yield commit
        if table.small_manifests():
            commit = self._run(table, None, effort_after(Last.DONE, 0))
            if commit is not None:
                yield commit

    def _warn_compacting_writers(self, table: JavaTable) -> None:
        if not table.write_only and not self._warned:
            log.warning(
                "paimon.not-write-only",
                table=self.table,
                detail="the table's option write-only isn't set, so Java writers also compact: their commits and this compaction "
                "make each other fail; set it with ALTER TABLE … SET ('write-only' = 'true')",
            )
        self._warned = True

    def _run(self, table: JavaTable, units: Sequence[Unit] | None, effort: Effort) -> CompactionCommit | None:
        """Run one transaction: of these units, or the merge of manifests (`None`)."""
        scope = [marker for unit in units or () for marker in unit.scope]
        queued = bool(scope) and effort.admission == "queued"
        try:
            with self._gate.transaction(
                table=self.table,
                writer=self._writer,
                admission="queued" if queued else "optimistic",
                scope=scope if queued else (),
                priority=TABLE_SERVICE_PRIORITY,
                conflict_rule="deleted-file",
                reason=effort.reason,
            ) as txn:
                self._transaction = txn
                found = self._compact(table, units, txn)
        except GateError as error:
            if self._stopped.is_set():
                raise Stopped from None
            if not self._is_loss(error):
                raise
            self.lost += 1
            self._last = Last.NOT_ADMITTED if isinstance(error, GrantTimeout) else Last.LOST
            log.warning("paimon.compaction-lost", table=self.table, lost=self.lost, error=str(error))
            return None
        finally:
            self._transaction = None
        self.lost, self._last = 0, Last.DONE
        return found

    def _is_loss(self, error: GateError) -> bool:
        """Return whether writers came first, so that the next transaction should take on less."""
        if isinstance(error, CommitAborted):
            return error.reason == "conflict"
        # The wait for the admission may be one in the queue.
        return isinstance(error, BaseChanged) or (
            isinstance(error, GrantTimeout) and self._last is not Last.DONE
        )

    def _compact(
        self, table: JavaTable, units: Sequence[Unit] | None, txn: Transaction
    ) -> CompactionCommit | None:
        def check() -> None:
            if self._stopped.is_set():
                raise Stopped
            txn.check()

        check()
        if units is None:
            merged = self._publish(table, None, txn)
            return None if merged is None else CompactionCommit(merged.number, 0, 0)
        messages: list[Any] = []
        txn.on_discard(lambda: table.remove(messages))
        known = [marker for unit in units for marker in unit.markers]
        txn.touch_all(known)
        table.compute(units, messages, check, full=self._full)
        if not messages:
            return None
        if not known:
            txn.touch_all(table.markers(messages))
        check()
        published = self._publish(table, messages, txn)
        assert published is not None, "Java reported a commit, and never published a snapshot"
        changes = [message.compactIncrement() for message in messages]
        return CompactionCommit(
            published.number,
            sum(change.compactBefore().size() for change in changes),
            sum(change.compactAfter().size() for change in changes),
        )

    def _publish(
        self, table: JavaTable, messages: list[Any] | None, txn: Transaction
    ) -> PublishedSnapshot | None:
        with txn.commit() as grant:
            try:
                published = table.commit(messages, transaction=txn.id, token=grant.token, check=grant.check)
            except NothingPublished as nothing:
                grant.not_published()
                raise nothing.error from None
            if published is None:
                grant.not_published()
            else:
                grant.version = str(published.number)
        return published
