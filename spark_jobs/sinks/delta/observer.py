"""Puts the commit of one Delta statement under a grant: Delta's `TransactionExecutionObserver`, implemented in Python.

Delta keeps an observer per JVM thread and calls it in that thread. PySpark pins a Python thread to its JVM thread, so the
methods run in the Python thread that called the statement.

| Delta calls | the sink |
| --- | --- |
| `startingTransaction` | refuses another table or layout, or a second transaction; adds the batch (`SetTransaction`) to it |
| `preparingCommit` | keeps the actions of the commit, and so the staged files; publishes an append's markers; sets the label |
| `beginDoCommit` | requests the grant, checks its lease and the base; an error here ends the statement: nothing is published |
| `beginPostCommit`, after the commit file is written | reports the commit |

Delta's conflict check and its tries at the next versions are between the last two, and so under the grant. Delta checks the
commits after the base, but not whether the base is still there. If the table was dropped and created again, it would put its
commit after a gap in the new log, and that table couldn't be read.

The label is a setting of a session (`userMetadata`), and so is the version (`lastCommitVersionInSession`). Other threads write
in the batch's session too: other sinks, and the user. So Delta finds both in a session of the transaction's own, a clone that is
the active one of this thread alone, from the end of `preparingCommit`, where Delta reads the label, to `beginPostCommit`.

How the statement ended decides the outcome, in this order:

1. The commit was reported: what fails afterwards (a checkpoint, a hook) is a warning.
2. The grant was refused, or its lease had ended before the commit: nothing was published.
3. A commit since the base has this transaction's id: published. A conflict doesn't disprove it: a write whose answer was lost
   makes Delta find its own commit.
4. Delta reports a conflict: nothing was published, `BaseChanged`.
5. Otherwise the outcome is unknown.

The interface is internal to Delta. A release may change its methods, or when it calls them. So it is compared with what the sink
implements (`require_release`). A method that the sink lacks would fail in the middle of a commit. Without the observer the whole
statement is granted (`sinks/spark_sink.py`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from lakewarden.handlers.commit_label import TRANSACTION
from lakewarden.handlers.maker import Winner
from lakewarden.spark_jobs.engine.java import (
    accept_callbacks,
    elements,
    gateway_of,
    is_instance,
    java_causes,
    java_class,
    java_text,
    java_type,
    threads_are_pinned,
)
from lakewarden.spark_jobs.gate.errors import (
    BaseChanged,
    GateError,
    UnsupportedSpark,
    base_changed,
    conflict_found,
)
from lakewarden.spark_jobs.gate.grant import Grant, PublishOutcome
from lakewarden.spark_jobs.gate.jvm_errors import CallbackErrors
from lakewarden.spark_jobs.gate.logs import EventLogger
from lakewarden.spark_jobs.gate.scope import ALONE
from lakewarden.spark_jobs.sinks.delta.log import CommitFile, TableLog
from lakewarden.spark_jobs.sinks.releases import DELTA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakewarden.spark_jobs.gate.transaction import Transaction

OBSERVER = "org.apache.spark.sql.delta.TransactionExecutionObserver"

_STATIC = 8
"""A bit of `java.lang.reflect.Modifier`. Scala adds static methods, those of the companion object."""


USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
"""Text that Delta writes into commits of the active session. The sink names its transaction there, unless the user has set it."""

LAST_VERSION = "spark.databricks.delta.lastCommitVersionInSession"
"""Where Delta keeps the version that the active session committed last. It writes it before `beginPostCommit`."""

CONFLICT = "DeltaConcurrentModificationException"
"""Base class of what Delta's conflict check raises."""

log = EventLogger("lakewarden.delta")


class CommitObserver:
    """The observer of one statement. `run` executes the statement."""

    def __init__(
        self,
        spark: SparkSession,
        txn: Transaction,
        table: TableLog,
        prepared: Callable[[Iterator[dict[str, Any]]], object] = lambda _: None,
        started: Callable[[Any], object] = lambda _: None,
    ) -> None:
        """`prepared` is called with the actions of the commit, read as they are used, before the grant is requested.

        `started` is called with the transaction's `DeltaLog`.
        """
        self._spark = spark
        self._txn = txn
        self._table = table
        self._base: list[CommitFile] = []
        self._prepared = prepared
        self._started = started
        self._errors = CallbackErrors()
        self._delta: Any = None
        self._java_actions: Any = None
        self._own: _OwnSession | None = None
        self._looked_up = False
        self.grant: Grant | None = None
        # py4j calls these methods by their names in Java.
        keep = self._errors.keep
        self.startingTransaction = keep(self._start)
        self.preparingCommit = keep(self._prepare)
        self.beginDoCommit = keep(self._before_commit)
        self.beginPostCommit = keep(self._after_commit)

    def run(self, statement: Callable[[], object]) -> None:
        """Execute the statement. If this returns, its commit is in the table, or it had nothing to commit."""
        accept_callbacks(gateway_of(self._spark))
        registry = getattr(java_type(self._spark, f"{OBSERVER}$"), "MODULE$")
        before = registry.getObserver()
        registry.setObserver(self)
        try:
            try:
                statement()
            finally:
                registry.setObserver(before)
                self._leave_own_session()
        except Exception as error:  # noqa: BLE001 - whatever Delta raises
            self._settle_failed(error)
        else:
            self._settle_returned()

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

    @property
    def base_version(self) -> int | None:
        """The version that the statement has read, or None if it didn't come so far."""
        return None if self._delta is None else int(self._delta.readVersion())

    # what Delta calls, with the names of Java

    def beginBackfill(self) -> None:
        """Between the commit file and its checksum. `beginPostCommit` follows."""

    def transactionCommitted(self) -> None:
        """After the checkpoint and the other hooks."""

    def transactionAborted(self) -> None:
        """The statement's error says why."""

    def createChild(self) -> CommitObserver:
        """For a transaction that Delta splits."""
        return self

    def advanceToNextThreadObserver(self) -> None:
        """There is no next one."""

    def nextObserver(self) -> Any:
        """There is none."""
        return java_type(self._spark, "scala.Option").empty()

    def getNextObserver(self) -> Any:
        """Added by Delta 4.4. py4j calls it although Java has a default."""
        return self.nextObserver()

    def setNextObserver(self, observer: Any) -> None:
        """For Delta's own tests."""

    def toString(self) -> str:
        return f"lakewarden {self._txn.id}"

    class Java:
        """py4j reads it."""

        implements = (OBSERVER,)

    def _start(self, make: Any) -> Any:
        if self.grant is not None:
            raise RuntimeError(
                f"Delta began another transaction after the batch's commit, which would commit without a grant; "
                f"{self._facts()}"
            )
        self._txn.check()
        delta = make.apply()
        delta_log = delta.deltaLog()
        written = str(delta_log.dataPath().toString())
        if written != self._table.data_path:
            raise RuntimeError(f"the statement writes another table, {written}; {self._facts()}")
        self._delta = delta
        if self._changes_layout():
            raise self._base_changed(
                "the table was replaced, or its columns, partition columns or properties changed, while the batch was prepared"
            )
        self._base = self._table.commits(int(delta.readVersion()))[:1]
        self._started(delta_log)
        if self._txn.batch_id is not None:
            # What the transaction has read: a commit of the writer by another process is then a conflict.
            getattr(delta.readTxn(), "$plus$eq")(self._txn.writer)  # of Scala 2.12 and 2.13
            now = java_type(self._spark, "scala.Option").apply(int(time.time() * 1000))
            delta.updateSetTransaction(self._txn.writer, self._txn.batch_id, now)
        return delta

    def _changes_layout(self) -> bool:
        """Return whether the transaction has other columns or properties than the batch was prepared for."""
        return self._table.known is not None and self._table.known != self._table.parsed(
            self._delta.metadata()
        )

    def _prepare(self, make: Any) -> Any:
        self._txn.check()
        self._java_actions = make.apply()
        self._prepared(self._actions())
        if self._changes_layout():
            self._txn.touch_all([ALONE])  # Delta refuses every commit that began before this one
        self._own = _OwnSession(self._spark, transaction_label(self._txn))
        return self._java_actions

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
        try:
            found = self._table.commits(int(self._delta.readVersion()))[:1]
        except Exception as error:
            raise self._base_changed(
                f"the table was dropped, or its log can't be read: {java_text(error)}"
            ) from error
        if found != self._base:
            raise self._base_changed("the table was dropped and created again")

    def _winner(self, error: Exception) -> Winner | None:
        assert self._delta is not None, "a grant is requested by a transaction of Delta"
        try:
            return self._table.winner(int(self._delta.readVersion()), self._txn.id, str(error))
        except Exception as failure:  # noqa: BLE001 - only an error's text lacks it
            log.warning("delta.log-unreadable", **self._names(), error=java_text(failure))
            return None

    def _base_changed(self, reason: str) -> BaseChanged:
        return base_changed(reason, self._facts())

    def _after_commit(self) -> None:
        version = self._leave_own_session()
        if self.grant is not None:
            self._report(self.grant, version)

    def _leave_own_session(self) -> str | None:
        """Return the version that was committed in it."""
        own, self._own = self._own, None
        return None if own is None else own.leave()

    def _report(self, grant: Grant, version: str | None) -> None:
        grant.published(version)

    # how the statement ended

    def _settle_returned(self) -> None:
        if self._delta is None:
            raise UnsupportedSpark(
                "Delta didn't call its observer, so the statement may have committed without a grant: compare the table's "
                f"history (DESCRIBE HISTORY) before you restart; set PYSPARK_PIN_THREAD to true; {self._facts()}"
            )
        if self.grant is not None and self.grant.outcome is PublishOutcome.UNKNOWN:
            self._settle_failed(RuntimeError("Delta didn't report its commit to the observer"))

    def _settle_failed(self, error: Exception) -> None:
        """Return if the commit is in the table, else raise."""
        grant, own = self.grant, self._errors.first
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
        if self._looked_up and own is None and is_conflict(error):
            grant.not_published()
            raise conflict_found(java_text(error), self._facts(), self._winner(error)) from error
        grant.unknown(cause)

    def _committed_version(self) -> int | None:
        """Return the version of this transaction, if it is in the log and the log can be read."""
        assert self._delta is not None, "a grant is requested by a transaction of Delta"
        try:
            version = self._table.version_of(str(self._delta.txnId()), int(self._delta.readVersion()))
        except Exception as failure:  # noqa: BLE001 - whatever it is, the outcome stays unknown
            log.warning("delta.log-unreadable", **self._names(), error=java_text(failure))
            return None
        self._looked_up = True
        return version

    def _actions(self) -> Iterator[dict[str, Any]]:
        if self._java_actions is None:
            return
        for action in elements(self._java_actions):
            yield json.loads(action.json())

    def _names(self) -> dict[str, str]:
        return {"table": self._txn.table, "writer": self._txn.writer, "transaction": self._txn.id}

    def _facts(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self._names().items())


class _OwnSession:
    """A clone of the active session, with the label of a commit: the active session of this thread until it is left."""

    def __init__(self, spark: SparkSession, label: str) -> None:
        given = spark._jsparkSession
        self._sessions = getattr(java_type(spark, f"{given.getClass().getName()}$"), "MODULE$")
        self._before = self._sessions.getActiveSession()
        own = (self._before.get() if self._before.isDefined() else given).cloneSession()
        self._settings = own.conf()
        self._settings.unset(LAST_VERSION)
        if self._settings.getOption(USER_METADATA).isEmpty():
            self._settings.set(USER_METADATA, label)
        self._sessions.setActiveSession(own)

    def leave(self) -> str | None:
        """Return the version that was committed in it."""
        if self._before.isDefined():
            self._sessions.setActiveSession(self._before.get())
        else:
            self._sessions.clearActiveSession()
        version = self._settings.getOption(LAST_VERSION)
        return str(version.get()) if version.isDefined() else None


def transaction_label(txn: Transaction) -> str:
    """Return the `userMetadata` of a commit."""
    return json.dumps({TRANSACTION: txn.id})


def is_conflict(error: Exception) -> bool:
    """Return whether Delta's conflict check raised this."""
    return any(is_instance(java, CONFLICT) for java in java_causes(error))


def require_release(spark: SparkSession, *, untried: bool) -> str | None:
    """Return why the commit can't be put under the grant alone, or None if it can.

    Raise `UnsupportedSpark` if Delta is missing from the session, or its release is unknown and not `untried`.
    """
    try:
        version = str(java_class(spark, "io.delta.package$").getField("MODULE$").get(None).VERSION())
    except Exception as error:
        raise DELTA.missing(spark.version) from error
    DELTA.require(version, spark.version, untried=untried)
    differing = DELTA.differing(_methods(spark))
    if differing:
        return f"Delta Lake {version} has another {OBSERVER}: {', '.join(differing)} differ"
    if not threads_are_pinned():
        return "PySpark doesn't pin its threads: PYSPARK_PIN_THREAD is not true"
    return None


def _methods(spark: SparkSession) -> set[str]:
    """Return the names of the observer's methods, or none if the release has no observer."""
    try:
        methods = java_class(spark, OBSERVER).getMethods()
    except Exception:  # noqa: BLE001 - py4j raises what Java throws for a missing class
        return set()
    return {str(method.getName()) for method in methods if not method.getModifiers() & _STATIC}
