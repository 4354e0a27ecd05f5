"""A statement of Spark whose commit waits for the grant: the staged table, its one commit, and the removal of its files.

- `StagedTable` has an Iceberg `Transaction`, and the `Table` that the statement writes to, a class of Java
  (`java/LakewardenStagedTable.java`). That reads from the table as it was when the statement began. Its writes go to the
  transaction, which no reader sees, and have the batch's properties.
- `CheckedOperations` are the `TableOperations` below that transaction: an object of Python, which the JVM calls through py4j.
  Their `commit` is Iceberg's last step, the swap of the table's metadata. The gate's check runs right before it, each time
  that it is tried.

`publish` commits the transaction under the grant. If the table has moved, Iceberg applies the staged write to the new version
and validates it, as for any commit of its own. None of this is done here: files that are added to a new commit by hand were
committed beside a compaction's, and the rows were doubled.

| Iceberg says | in the table | the sink |
| --- | --- | --- |
| `CommitFailedException`: another commit came first | no, after a look | tries again, `MAX_TRIES` times, then `BaseChanged` |
| `ValidationException`: the files it read or replaces have changed | no | `BaseChanged` |
| nothing, but the table was replaced, has other columns or partition fields, or its base is gone | no | `BaseChanged` |
| nothing, but a commit of this writer came after the base | no | `BaseChanged` |
| any error before the swap was tried | no | raises it |
| any other error of the swap | unknown | the gate looks the batch up |

Each try adds the writer's `LastCommit` to the metadata, so data and property are published by one swap. A try is refused if the
version on which it builds has another `LastCommit` of the writer than the base: a catalog may carry out the swap of a dead driver
after its batch was looked up, and Iceberg would append to it. The catalog compares that version with the table's once more.

The files to remove are listed when they are staged, and at each try, never later: after a failed commit the transaction shows
the other writer's snapshot. `discard` removes nothing if the table has the transaction, or can't show that it hasn't.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

from lakewarden.handlers.commit_label import TRANSACTION
from lakewarden.handlers.maker import Winner, of_iceberg, winner_of
from lakewarden.spark_jobs.engine.java import (
    accept_callbacks,
    elements,
    gateway_of,
    is_instance,
    java_exception,
    java_map,
    java_text,
    java_type,
)
from lakewarden.spark_jobs.gate.errors import (
    BaseChanged,
    GateError,
    base_changed,
    committed_meanwhile,
    conflict_found,
)
from lakewarden.spark_jobs.gate.grant import Grant
from lakewarden.spark_jobs.sinks.iceberg.release import STAGED_TABLE
from lakewarden.spark_jobs.sinks.iceberg.table import (
    BATCH,
    WRITER,
    LastCommit,
    ancestors,
    another_is_in_its_place,
    find_transaction,
    lists_newest_only,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_TRIES = 10
"""Tries of the swap under one grant. Another commit comes first only if its writer bypasses the gate, or lost its grant."""

MAX_NAMED = 3
"""Snapshots listed in an error."""

MAX_FILES = 1000
"""Files of a snapshot that are compared with the text of an error. Each is a call into the JVM."""

COMMIT_FAILED = "org.apache.iceberg.exceptions.CommitFailedException"
VALIDATION = "org.apache.iceberg.exceptions.ValidationException"


class CheckedOperations:
    """`TableOperations` whose `commit` runs a check first, and remembers what became of each try."""

    def __init__(self, operations: Any, seen: Callable[[Any], None], signed: Callable[[Any], Any]) -> None:
        """`operations` were just refreshed. `seen` gets each try's snapshot. `signed` adds the writer's `LastCommit`."""
        self._operations = operations
        self._fresh = True
        self._seen = seen
        self._signed = signed
        self.check: Callable[[Any], None] | None = None
        """Gets the metadata on which a try is based."""
        self.refusal: GateError | None = None
        self.overtaken = False
        self.failure: Exception | None = None
        """Error of the last try. Java wraps it, with the text of a traceback."""
        self.unanswered = False
        self.published: str | None = None

    def refresh(self) -> Any:
        """Look for newer metadata; not for a transaction that begins on what was just loaded."""
        fresh, self._fresh = self._fresh, False
        return self._operations.current() if fresh else self._operations.refresh()

    def commit(self, base: Any, metadata: Any) -> None:
        """Check, then let Iceberg publish `metadata`."""
        snapshot = metadata.currentSnapshot()
        self._seen(snapshot)
        assert self.check is not None, "Iceberg published outside of `publish`"
        try:
            self.check(base)
        except GateError as error:
            self.refusal = error
            raise
        signed, published = self._signed(metadata), str(snapshot.snapshotId())
        before, self.unanswered = self.unanswered, True
        try:
            self._swap(base, signed)
        except Exception as error:
            self.failure = error
            self.overtaken = _is(error, COMMIT_FAILED)
            raise
        # No call into the JVM comes between the answer and this: the JVM may have ended.
        self.published, self.unanswered = published, before

    def _swap(self, base: Any, metadata: Any) -> None:
        self._operations.commit(base, metadata)

    def requireStrictCleanup(self) -> bool:
        """Keep Iceberg from removing files after an error that it doesn't know, such as a refusal."""
        return True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._operations, name)

    class Java:
        """Read by py4j."""

        implements = ("org.apache.iceberg.TableOperations",)


class StagedTable:
    """The table for one statement. Create it after the markers are published: it is the base of the batch."""

    def __init__(
        self, spark: SparkSession, table: Any, properties: Mapping[str, str], *, validated: bool
    ) -> None:
        """`properties`: of the statement's snapshot, the gate's transaction, the writer and the batch.

        `validated`: Iceberg validates the statement's commit against what came after its base.

        `require_release` must have found that statements can be staged: it defines the class of the table.
        """
        accept_callbacks(gateway_of(spark))
        self._spark = spark
        self._table = table
        self._gate_transaction = properties[TRANSACTION]
        self._writer = properties[WRITER]
        self._batch = int(properties[BATCH]) if BATCH in properties else None
        self._validated = validated
        self._files: dict[str, None] = {}
        self._operations = CheckedOperations(table.operations(), self._list_files, self._signed)
        begin = java_type(spark, "org.apache.iceberg.Transactions").newTransaction
        self._transaction = begin(table.name(), self._operations)
        operations = self._transaction.table().operations()
        self._pinned = java_type(spark, "org.apache.iceberg.BaseTable")(operations, table.name())
        self._base = self._pinned.currentSnapshot()
        self._metadata = operations.current()
        self._last = self._last_commit(self._metadata)
        self._silent = LastCommit.silent(self._metadata)
        self.java = java_type(spark, STAGED_TABLE).of(
            self._pinned, self._transaction, java_map(spark, properties)
        )
        """`org.apache.iceberg.Table`, for the statement."""

    @property
    def base(self) -> int | None:
        """The snapshot that the statement reads, or None if the table has none."""
        return None if self._base is None else int(self._base.snapshotId())

    def staged(self) -> None:
        """Call it after the statement. Raise if its write isn't staged here."""
        snapshot = self._pinned.currentSnapshot()
        if snapshot is None or snapshot.summary().get(TRANSACTION) != self._gate_transaction:
            raise RuntimeError(
                "Spark didn't write to the staged table, so its commit, if there was one, had no grant: this release of "
                f"Iceberg doesn't work with the sink; report it; table={self._pinned.name()}"
            )
        self._list_files(snapshot)

    def publish(self, grant: Grant) -> str:
        """Commit what was staged and return the snapshot's id. Report to `grant` if nothing was published."""
        operations = self._operations

        def check(base: Any) -> None:
            grant.check()
            reason = self._replaced(base)
            if reason is not None:
                raise self._base_changed(reason, self._newest_by_another(base))
            last = self._last_commit(base)
            # None: it was silent for so long that another writer's commit has removed its property.
            if last is not None and last != self._last:
                won = Winner(f"snapshot {last.snapshot}", last.transaction)
                raise committed_meanwhile(f"table={self._table.name()} writer={self._writer}", won)

        operations.check = check
        for _ in range(MAX_TRIES):
            operations.overtaken = False
            try:
                self._transaction.commitTransaction()
            except Exception as error:  # noqa: BLE001 - `_settled` raises it, unless it is answered
                found = operations.published or self._settled(error, grant)
                if found is not None:
                    return found
            else:
                assert operations.published is not None, (
                    "Iceberg reported a commit, and never swapped the metadata"
                )
                return operations.published
        others, winner = self._others()
        reason = f"other commits came first {MAX_TRIES} times while this one had the grant: {others}"
        raise self._base_changed(reason, winner)

    def _settled(self, error: Exception, grant: Grant) -> str | None:
        """Return the snapshot if a try took effect nevertheless, None if the next one may follow. Otherwise raise."""
        operations = self._operations
        if operations.overtaken:
            # The store may have seen one request twice, and have refused the second one.
            self._table.refresh()
            found = self._found()
            operations.unanswered = False
            return found
        if operations.unanswered:
            assert operations.failure is not None
            raise RuntimeError(
                f"the swap of the table's metadata: {java_text(operations.failure)}"
            ) from operations.failure
        grant.not_published()
        if operations.refusal is not None:
            raise operations.refusal from None
        reason = self._gone()
        if reason is not None:
            raise self._base_changed(reason) from error
        if _is(error, VALIDATION):
            text = java_text(error)
            others, winner = self._others(text)
            raise conflict_found(f"{text}; commits since its base: {others}", self._facts, winner) from error
        raise error

    def _base_changed(self, reason: str, winner: Winner | None = None) -> BaseChanged:
        return base_changed(reason, self._facts, winner)

    @property
    def _facts(self) -> str:
        return f"table={self._table.name()}"

    def _gone(self) -> str | None:
        """Return why Iceberg can't commit to the table, if that is because it is another one, or none."""
        try:
            return self._replaced(self._table.operations().refresh())
        except Exception as error:  # noqa: BLE001 - each catalog has its own
            return (
                f"the table was dropped, or dropped and created again, or can't be read: {java_text(error)}"
            )

    def _replaced(self, now: Any) -> str | None:
        """Return why what was staged doesn't belong to this metadata of the table, or None if it does.

        Iceberg itself would commit files of the former columns, and rows that a rollback or a replacement has removed.
        """
        then = self._metadata
        if another_is_in_its_place(self._spark, self._table.operations()):
            return "the table was dropped and created again"
        if now.metadataFileLocation() == then.metadataFileLocation():
            return None
        if (now.uuid(), now.location()) != (then.uuid(), then.location()):
            return f"the table was dropped and created again, or moved to {now.location()}"
        if not then.schema().sameSchema(now.schema()) or then.spec().specId() != now.spec().specId():
            return "the table's columns or partition fields changed: ALTER TABLE, or CREATE OR REPLACE TABLE"
        if self.base is None:
            return None
        oldest = None
        for oldest in ancestors(now):
            if oldest.snapshotId() == self.base:
                return None
        expired = oldest is not None and oldest.parentId() is not None and now.snapshot(self.base) is None
        if expired and not self._validated:
            return None  # an append reads nothing of its base
        if lists_newest_only(now):
            return (
                "the catalog lists the newest snapshot only, which is another writer's"
                if self._validated
                else None
            )
        return (
            f"snapshot {self.base}, from which the batch was computed, is no longer in the table's history: it was rolled back "
            "or has expired, or the table was replaced"
        )

    def _signed(self, metadata: Any) -> Any:
        snapshot = metadata.currentSnapshot()
        last = LastCommit(
            writer=self._writer,
            batch=self._batch,
            transaction=self._gate_transaction,
            snapshot=int(snapshot.snapshotId()),
            sequence=int(snapshot.sequenceNumber()),
            at_ms=int(snapshot.timestampMillis()),
        )
        return last.added_to(self._spark, metadata, self._silent)

    def _last_commit(self, metadata: Any) -> LastCommit | None:
        return LastCommit.of(metadata, self._writer, numbered=self._batch is not None)

    def _found(self) -> str | None:
        """Return the snapshot of this transaction if the table, as it was last read, has it."""
        last = self._last_commit(self._table)
        if last is not None and last.transaction == self._gate_transaction:
            return str(last.snapshot)
        return find_transaction(self._table, self._gate_transaction)

    def _may_be_committed(self) -> bool:
        """Where the catalog lists the newest snapshot only, a later commit of the same writer hides this one's."""
        if self._found() is not None:
            return True
        now = self._table.operations().current()
        return lists_newest_only(now) and self._last_commit(now) != self._last

    def _others(self, error: str = "") -> tuple[str, Winner | None]:
        """Return the snapshots since the base, for an error, and the one to which the batch was lost.

        `error`: what Iceberg's validation says. It names files of the winner.
        """
        self._table.refresh()
        since = list(takewhile(lambda each: each.snapshotId() != self.base, ancestors(self._table)))
        named = [_winner(each).text for each in since[:MAX_NAMED]]
        more = f" and {len(since) - MAX_NAMED} more" if len(since) > MAX_NAMED else ""
        guilty = [each for each in since if self._changed_one_of(each, error)] or since
        text = "; ".join(named) + more or "none is left in the table's history"
        return text, winner_of([_winner(each) for each in guilty])

    def _changed_one_of(self, snapshot: Any, text: str) -> bool:
        """Return whether a text names a file that the snapshot has added or removed, of the first `MAX_FILES` of each kind."""
        io = self._table.io()
        kinds = (snapshot.addedDataFiles, snapshot.removedDataFiles, snapshot.addedDeleteFiles)
        return any(
            str(file.path()) in text for files in kinds for file in islice(elements(files(io)), MAX_FILES)
        )

    def _newest_by_another(self, metadata: Any) -> Winner | None:
        """Return the newest snapshot, if it came after the base.

        Where the catalog lists others, one of the gate isn't why the table's layout or history is another one.
        """
        snapshot = metadata.currentSnapshot()
        if snapshot is None or snapshot.snapshotId() == self.base:
            return None
        found = _winner(snapshot)
        return found if found.transaction is None or lists_newest_only(metadata) else None

    def _list_files(self, snapshot: Any) -> None:
        io = self._pinned.io()
        if snapshot is None or snapshot.summary().get(TRANSACTION) != self._gate_transaction:
            return
        if str(snapshot.manifestListLocation()) in self._files:
            return
        for added in (snapshot.addedDataFiles(io), snapshot.addedDeleteFiles(io)):
            for file in elements(added):
                self._files[str(file.path())] = None
        parent = snapshot.parentId()
        before = None if parent is None else (self._pinned.snapshot(parent) or self._table.snapshot(parent))
        # In the JVM: a table may have thousands of manifests, and each call from Python takes time.
        new_list = java_type(self._spark, "java.util.ArrayList")
        manifests = new_list(snapshot.allManifests(io))
        if before is not None:
            manifests.removeAll(java_type(self._spark, "java.util.HashSet")(before.allManifests(io)))
        for manifest in elements(manifests):
            self._files[str(manifest.path())] = None
        self._files[str(snapshot.manifestListLocation())] = None

    def discard(self) -> None:
        """Remove the staged files, unless the transaction is in the table."""
        if not self._files:
            return
        self._table.refresh()
        if self._may_be_committed():
            return
        paths = java_type(self._spark, "java.util.ArrayList")()
        for path in self._files:
            paths.add(path)
        io = self._table.io()
        try:
            io.deleteFiles(paths)
        except Exception:  # noqa: BLE001 - not every one can delete many at once, and a catalog may not sign that request
            for path in self._files:
                io.deleteFile(path)


def _winner(snapshot: Any) -> Winner:
    summary = snapshot.summary()
    commit = of_iceberg(summary).of_commit(f"snapshot {snapshot.snapshotId()}", snapshot.operation())
    return Winner(commit, summary.get(TRANSACTION))


def _is(error: Exception, name: str) -> bool:
    """Return whether this is an exception of Iceberg's class. Not whether it is caused by one: that says less."""
    java = java_exception(error)
    return java is not None and is_instance(java, name)
