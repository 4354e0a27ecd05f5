"""A statement of Spark whose commit waits for the grant: the staged table, its one commit, and the removal of its files.

- The statement writes to a `Table` of Java (`java/LakewardenStagedTable.java`). That reads from the table as it was when the
  statement began. Its writes go to an Iceberg `Transaction`, which no reader sees, and have the batch's properties.
- Below that transaction are `TableOperations` that check each swap of the table's metadata, Iceberg's last step: an object of
  Python in the driver (`driver.py`), one of Java on a server of Spark Connect (`connect.py`).

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

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, TypeAlias

from lakewarden.handlers.commit_label import TRANSACTION
from lakewarden.handlers.maker import Winner, winner_of
from lakewarden.spark_jobs.engine.java import java_text
from lakewarden.spark_jobs.gate.errors import (
    BaseChanged,
    GateError,
    base_changed,
    committed_meanwhile,
    conflict_found,
)
from lakewarden.spark_jobs.gate.grant import Grant
from lakewarden.spark_jobs.sinks.iceberg.metadata import (
    BATCH,
    WRITER,
    LastCommit,
    Loaded,
    Metadata,
    find_transaction,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_TRIES = 10
"""Tries of the swap under one grant. Another commit comes first only if its writer bypasses the gate, or lost its grant."""

MAX_NAMED = 3
"""Snapshots listed in an error."""

COMMIT_FAILED = "org.apache.iceberg.exceptions.CommitFailedException"
VALIDATION = "org.apache.iceberg.exceptions.ValidationException"

Check: TypeAlias = Callable[[Metadata], None]
"""Raises `GateError` if a try may not build on this version of the table."""


@dataclass(slots=True)
class Tries:
    """What became of the tries of a swap."""

    refusal: GateError | None = None
    overtaken: bool = False
    failure: Exception | None = None
    """Error of the last try. Java wraps it, with the text of a traceback."""
    unanswered: bool = False
    published: str | None = None
    """The snapshot."""


class StagedTable(ABC):
    """The table for one statement. Create it after the markers are published: it is the base of the batch."""

    def __init__(
        self, loaded: Loaded, properties: Mapping[str, str], tries: Tries, *, validated: bool
    ) -> None:
        """`loaded`: what the statement reads. `properties`: of its snapshot, the gate's transaction, the writer and the batch.

        `validated`: Iceberg validates the statement's commit against what came after its base.
        """
        self.loaded = loaded
        self._name = loaded.name
        self._tries = tries
        self._metadata = loaded.metadata
        self._now = loaded.metadata
        """The newest version that was looked at."""
        self._gate_transaction = properties[TRANSACTION]
        self._writer = properties[WRITER]
        self._batch = int(properties[BATCH]) if BATCH in properties else None
        self._validated = validated
        self._last = self._last_commit(self._metadata)
        self._has_files = False

    @abstractmethod
    def named(self, spark: SparkSession) -> AbstractContextManager[str]:
        """Give the table a name in the SQL of a session for the block, and yield it.

        `spark`: the statement's. That of a streaming query's batch is a clone, which doesn't see later settings of another one.
        """

    @abstractmethod
    def _list(self) -> bool:
        """Keep what `discard` is to remove. Return whether the statement's write is staged here."""

    @abstractmethod
    def _commit(self, check: Check, grant: Grant) -> None:
        """Let Iceberg commit. Raise if it didn't; `_tries` says what became of it."""

    @abstractmethod
    def _read(self) -> Metadata:
        """Return the table's metadata now."""

    @abstractmethod
    def _is_recreated(self) -> bool:
        """Return whether the table, as `_read` or `_commit` have found it, was dropped and created again in the same place."""

    @abstractmethod
    def _is_validation(self, error: Exception) -> bool:
        """Return whether Iceberg's validation raised this."""

    @abstractmethod
    def _named_by(self, text: str) -> Collection[int]:
        """Return the snapshots since the base, as `_read` has found them, that have changed a file which a text names."""

    @abstractmethod
    def _remove(self) -> None:
        """Remove the files of `_list`, and those of each try."""

    @property
    def base(self) -> int | None:
        """The snapshot that the statement reads, or None if the table has none."""
        newest = self._metadata.newest
        return None if newest is None else newest.id

    def staged(self) -> None:
        """Call it after the statement. Raise if its write isn't staged here."""
        self._has_files = self._list()
        if not self._has_files:
            raise RuntimeError(
                "Spark didn't write to the staged table, so its commit, if there was one, had no grant: this release of "
                f"Iceberg doesn't work with the sink; report it; {self._facts}"
            )

    def publish(self, grant: Grant) -> str:
        """Commit what was staged and return the snapshot's id. Report to `grant` if nothing was published."""
        tries = self._tries

        def check(base: Metadata) -> None:
            grant.check()
            reason = self._replaced(base)
            if reason is not None:
                raise self._base_changed(reason, self._newest_by_another(base))
            last = self._last_commit(base)
            # None: it was silent for so long that another writer's commit has removed its property.
            if last is not None and last != self._last:
                won = Winner(f"snapshot {last.snapshot}", last.transaction)
                raise committed_meanwhile(f"{self._facts} writer={self._writer}", won)

        for _ in range(MAX_TRIES):
            tries.overtaken = False
            try:
                self._commit(check, grant)
            except Exception as error:  # noqa: BLE001 - `_settled` raises it, unless it is answered
                found = tries.published or self._settled(error, grant)
                if found is not None:
                    return found
            else:
                assert tries.published is not None, (
                    "Iceberg reported a commit, and never swapped the metadata"
                )
                return tries.published
        others, winner = self._others()
        reason = f"other commits came first {MAX_TRIES} times while this one had the grant: {others}"
        raise self._base_changed(reason, winner)

    def _settled(self, error: Exception, grant: Grant) -> str | None:
        """Return the snapshot if a try took effect nevertheless, None if the next one may follow. Otherwise raise."""
        tries = self._tries
        if tries.overtaken:
            # The store may have seen one request twice, and have refused the second one.
            found = self._found()
            tries.unanswered = False
            return found
        if tries.unanswered:
            assert tries.failure is not None
            raise RuntimeError(
                f"the swap of the table's metadata: {java_text(tries.failure)}"
            ) from tries.failure
        grant.not_published()
        if tries.refusal is not None:
            raise tries.refusal from None
        reason = self._gone()
        if reason is not None:
            raise self._base_changed(reason) from error
        if self._is_validation(error):
            text = java_text(error)
            others, winner = self._others(text)
            raise conflict_found(f"{text}; commits since its base: {others}", self._facts, winner) from error
        raise error

    def _base_changed(self, reason: str, winner: Winner | None = None) -> BaseChanged:
        return base_changed(reason, self._facts, winner)

    @property
    def _facts(self) -> str:
        return f"table={self._name}"

    def _look(self) -> Metadata:
        self._now = self._read()
        return self._now

    def _gone(self) -> str | None:
        """Return why Iceberg can't commit to the table, if that is because it is another one, or none."""
        try:
            return self._replaced(self._look())
        except Exception as error:  # noqa: BLE001 - each catalog has its own
            return (
                f"the table was dropped, or dropped and created again, or can't be read: {java_text(error)}"
            )

    def _replaced(self, now: Metadata) -> str | None:
        """Return why what was staged doesn't belong to this metadata of the table, or None if it does.

        Iceberg itself would commit files of the former columns, and rows that a rollback or a replacement has removed.
        """
        then = self._metadata
        if self._is_recreated():
            return "the table was dropped and created again"
        if now.file == then.file:
            return None
        if (now.uuid, now.location) != (then.uuid, then.location):
            return f"the table was dropped and created again, or moved to {now.location}"
        if not then.same_layout(now):
            return "the table's columns or partition fields changed: ALTER TABLE, or CREATE OR REPLACE TABLE"
        if self.base is None:
            return None
        oldest = None
        for oldest in now.ancestors():
            if oldest.id == self.base:
                return None
        expired = oldest is not None and oldest.parent is not None and self.base not in now.snapshots
        if expired and not self._validated:
            return None  # an append reads nothing of its base
        if now.lists_newest_only:
            return (
                "the catalog lists the newest snapshot only, which is another writer's"
                if self._validated
                else None
            )
        return (
            f"snapshot {self.base}, from which the batch was computed, is no longer in the table's history: it was rolled back "
            "or has expired, or the table was replaced"
        )

    @property
    def _head(self) -> str:
        return LastCommit.head(self._writer, self._batch, self._gate_transaction)

    @property
    def _key(self) -> str:
        return LastCommit.key(self._writer, numbered=self._batch is not None)

    def _last_commit(self, metadata: Metadata) -> LastCommit | None:
        return LastCommit.of(metadata, self._writer, numbered=self._batch is not None)

    def _found(self) -> str | None:
        """Return the snapshot of this transaction if the table has it now."""
        now = self._look()
        last = self._last_commit(now)
        if last is not None and last.transaction == self._gate_transaction:
            return str(last.snapshot)
        return find_transaction(now, self._gate_transaction)

    def _may_be_committed(self) -> bool:
        """Where the catalog lists the newest snapshot only, a later commit of the same writer hides this one's."""
        if self._found() is not None:
            return True
        return self._now.lists_newest_only and self._last_commit(self._now) != self._last

    def _others(self, error: str = "") -> tuple[str, Winner | None]:
        """Return the snapshots since the base, for an error, and the one to which the batch was lost.

        `error`: what Iceberg's validation says. It names files of the winner.
        """
        since = list(takewhile(lambda each: each.id != self.base, self._look().ancestors()))
        named = [each.winner.text for each in since[:MAX_NAMED]]
        more = f" and {len(since) - MAX_NAMED} more" if len(since) > MAX_NAMED else ""
        changed = self._named_by(error) if error else ()
        guilty = [each for each in since if each.id in changed] or since
        text = "; ".join(named) + more or "none is left in the table's history"
        return text, winner_of([each.winner for each in guilty])

    def _newest_by_another(self, metadata: Metadata) -> Winner | None:
        """Return the newest snapshot, if it came after the base.

        Where the catalog lists others, one of the gate isn't why the table's layout or history is another one.
        """
        snapshot = metadata.newest
        if snapshot is None or snapshot.id == self.base:
            return None
        found = snapshot.winner
        return found if found.transaction is None or metadata.lists_newest_only else None

    def discard(self) -> None:
        """Remove the staged files, unless the transaction is in the table."""
        if self._has_files and not self._may_be_committed():
            self._remove()


class Catalog(ABC):
    """A table of this name, in a catalog of a Spark session: all that the sink needs of Iceberg.

    It has a body for the driver (`driver.py`) and one for a server of Spark Connect (`connect.py`). What follows from what they
    answer is decided here, in `metadata.py` and in `table.py`.
    """

    def __init__(self, spark: SparkSession, name: str) -> None:
        self.spark = spark
        self.name = name
        self.unhooked: str | None = None
        """Why no statement can be staged, so that Iceberg commits whole ones."""

    @abstractmethod
    def load(self) -> Loaded:
        """Return the table at its newest version, past the catalog's cache. Raise `ValueError` if there is none."""

    @abstractmethod
    def stage(self, properties: Mapping[str, str], *, validated: bool) -> StagedTable:
        """Return the newest version as a table for one statement, whose snapshot gets these properties."""

    @abstractmethod
    def show(self, snapshot: str | None) -> None:
        """Let readers of this session see a commit."""

    @abstractmethod
    def mergeable(self, rows: DataFrame) -> DataFrame:
        """Return the rows as a MERGE takes them, where it wouldn't take their plan."""
