"""What becomes of a Delta statement whose commit waits for the grant, wherever it runs.

`observer.py` executes it in the driver, `connect.py` on a server of Spark Connect. How it ended decides the outcome, in this
order:

1. The commit was reported: what fails afterwards (a checkpoint, a hook) is a warning.
2. The grant was refused, or its lease had ended before the commit: nothing was published.
3. A commit since the base has this transaction's id: published. A conflict doesn't disprove it: a write whose answer was lost
   makes Delta find its own commit.
4. Delta reports a conflict: nothing was published, `BaseChanged`.
5. Otherwise the outcome is unknown.

Delta checks the commits after the base, but not whether the base is still there. If the table was dropped and created again, it
would put its commit after a gap in the new log, and that table couldn't be read. So the base is looked at under the grant.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lakewarden.handlers.commit_label import TRANSACTION
from lakewarden.handlers.maker import Winner
from lakewarden.spark_jobs.engine.java import java_text
from lakewarden.spark_jobs.gate.errors import (
    BaseChanged,
    GateError,
    UnsupportedSpark,
    base_changed,
    conflict_found,
)
from lakewarden.spark_jobs.gate.grant import Grant, PublishOutcome
from lakewarden.spark_jobs.gate.logs import EventLogger
from lakewarden.spark_jobs.gate.scope import ALONE
from lakewarden.spark_jobs.sinks.delta.log import CommitFile, TableLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakewarden.spark_jobs.gate.transaction import Transaction

OWN_TRANSACTION_IDS = ("spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion")

USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
"""Text that Delta writes into commits of the active session. The sink names its transaction there, unless the user has set it."""

IDENTITY_SETTINGS = dict(
    zip(("txnAppId", "txnVersion", "userMetadata"), (*OWN_TRANSACTION_IDS, USER_METADATA), strict=True)
)
"""The settings of a session that do what the options of an `Identity` do, for SQL."""

CONFLICT = "DeltaConcurrentModificationException"
"""Base class of what Delta's conflict check raises."""

log = EventLogger("lakewarden.delta")


Identity: TypeAlias = Mapping[str, str]
"""Options of a write by which Delta identifies its commit. A statement whose commit waits for the grant has none."""


@dataclass(frozen=True, slots=True)
class Write:
    """What Spark is to do: append the rows, overwrite the partitions that they have, or execute the SQL."""

    kind: Literal["append", "overwrite", "sql"]
    rows: DataFrame
    sql: str = ""

    def run(self, target: str, identity: Identity) -> None:
        """Do it in the driver, with a commit of this identity."""
        if self.kind == "sql":
            _run_sql(self.rows.sparkSession, self.sql, identity)
            return
        write = self.rows.writeTo(target).options(**identity)
        write.append() if self.kind == "append" else write.overwritePartitions()


def _run_sql(spark: SparkSession, statement: str, identity: Identity) -> None:
    """SQL takes its identity from the settings of its session, so it gets a session of its own."""
    if not identity:
        spark.sql(statement)
        return
    own = spark._jsparkSession.cloneSession()
    for option, value in identity.items():
        own.conf().set(IDENTITY_SETTINGS[option], value)
    own.sql(statement)


class GrantedStatement(ABC):
    """One statement of one transaction of the gate."""

    def __init__(
        self,
        txn: Transaction,
        table: TableLog,
        prepared: Callable[[Iterator[dict[str, Any]]], object] = lambda _: None,
    ) -> None:
        """`prepared` is called with the actions of the commit, read as they are used, before the grant is requested."""
        self._txn = txn
        self._table = table
        self._prepared = prepared
        self._base: list[CommitFile] = []
        """The commit that the statement has read."""
        self._looked_up = False
        self.grant: Grant | None = None

    @property
    @abstractmethod
    def base_version(self) -> int | None:
        """The version that the statement has read, or None if it didn't come so far."""

    @property
    @abstractmethod
    def _delta_id(self) -> str:
        """The id of Delta's transaction."""

    @property
    @abstractmethod
    def _first_error(self) -> BaseException | None:
        """What the gate, or this class, raised between the statement's start and its commit."""

    @abstractmethod
    def execute(self, write: Write, target: str) -> None:
        """Execute it on the table of this name. If this returns, its commit is in the table, or it had nothing to commit."""

    @abstractmethod
    def _actions(self) -> Iterator[dict[str, Any]]:
        """Yield the actions of the commit."""

    @abstractmethod
    def _is_conflict(self, error: Exception) -> bool:
        """Return whether Delta's conflict check raised this."""

    @property
    def staged_files(self) -> list[str]:
        """Paths, as in the log, of the files that the statement has written for its commit."""
        actions = [dict(action) for action in self._actions()]
        removed = {action["remove"]["path"] for action in actions if "remove" in action}
        added = (action["add"] for action in actions if "add" in action)
        changes = (action["cdc"]["path"] for action in actions if "cdc" in action)
        return [
            *(add["path"] for add in added if add["path"] not in removed and not add.get("deletionVector")),
            *changes,
        ]

    # before the commit

    def _require_layout(self, metadata: str) -> None:
        """Raise `BaseChanged` if the statement has begun with other columns or properties than the batch was prepared for."""
        if self._changes_layout(metadata):
            raise self._base_changed(
                "the table was replaced, or its columns, partition columns or properties changed, while the batch was prepared"
            )

    def _changes_layout(self, metadata: str) -> bool:
        return self._table.known is not None and self._table.known != self._table.parsed(metadata)

    def _publish_markers(self, metadata: str) -> None:
        """Publish the markers of what the commit has. `metadata`: what the table has after it."""
        self._prepared(self._actions())
        if self._changes_layout(metadata):
            self._txn.touch_all([ALONE])  # Delta refuses every commit that began before this one

    def _before_commit(self) -> None:
        self.grant = self._txn.request_grant()
        self._last_check(self.grant)

    def _last_check(self, grant: Grant) -> None:
        try:
            grant.check()
            self._require_base()
        except GateError:
            grant.not_published()
            raise

    def _require_base(self) -> None:
        """Raise `BaseChanged` if the commit that the statement has read is another one now, or none."""
        assert self.base_version is not None, "a grant is requested by a transaction of Delta"
        try:
            found = self._table.commits(self.base_version)[:1]
        except Exception as error:
            raise self._base_changed(
                f"the table was dropped, or its log can't be read: {java_text(error)}"
            ) from error
        if found != self._base:
            raise self._base_changed("the table was dropped and created again")

    def _winner(self, error: Exception) -> Winner | None:
        assert self.base_version is not None, "a grant is requested by a transaction of Delta"
        try:
            return self._table.winner(self.base_version, self._txn.id, str(error))
        except Exception as failure:  # noqa: BLE001 - only an error's text lacks it
            log.warning("delta.log-unreadable", **self._names(), error=java_text(failure))
            return None

    def _base_changed(self, reason: str) -> BaseChanged:
        return base_changed(reason, self._facts())

    # how the statement ended

    def _report(self, grant: Grant, version: str | None) -> None:
        grant.published(version)

    def _settle_returned(self) -> None:
        if self.base_version is None:
            raise UnsupportedSpark(
                "Delta didn't call its observer, so the statement may have committed without a grant: compare the table's "
                f"history (DESCRIBE HISTORY) before you restart; set PYSPARK_PIN_THREAD to true; {self._facts()}"
            )
        if self.grant is not None and self.grant.outcome is PublishOutcome.UNKNOWN:
            self._settle_failed(RuntimeError("Delta didn't report its commit to the observer"))

    def _settle_failed(self, error: Exception) -> None:
        """Return if the commit is in the table, else raise."""
        grant, own = self.grant, self._first_error
        cause = own if isinstance(own, Exception) else error
        if grant is None or grant.outcome is PublishOutcome.NOT_PUBLISHED:
            raise cause from (None if cause is error else error)
        if grant.outcome is PublishOutcome.PUBLISHED:
            log.warning("delta.failed-after-commit", **self._names(), error=java_text(cause))
            return
        version = self._committed_version()
        if version is not None:
            log.warning("delta.published-after-all", **self._names(), version=version, error=java_text(cause))
            grant.published(str(version))
            return
        if self._looked_up and own is None and self._is_conflict(error):
            grant.not_published()
            raise conflict_found(java_text(error), self._facts(), self._winner(error)) from error
        grant.unknown(cause)

    def _committed_version(self) -> int | None:
        """Return the version of this transaction, if it is in the log and the log can be read."""
        assert self.base_version is not None, "a grant is requested by a transaction of Delta"
        try:
            version = self._table.version_of(self._delta_id, self.base_version)
        except Exception as failure:  # noqa: BLE001 - whatever it is, the outcome stays unknown
            log.warning("delta.log-unreadable", **self._names(), error=java_text(failure))
            return None
        self._looked_up = True
        return version

    def _names(self) -> dict[str, str]:
        return {"table": self._txn.table, "writer": self._txn.writer, "transaction": self._txn.id}

    def _facts(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self._names().items())


def transaction_label(txn: Transaction) -> str:
    """Return the `userMetadata` of a commit."""
    return json.dumps({TRANSACTION: txn.id})
