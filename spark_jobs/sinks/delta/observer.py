"""Puts the commit of one Delta statement under a grant: Delta's `TransactionExecutionObserver`, implemented in Python.

Delta keeps an observer per JVM thread and calls it in that thread. PySpark pins a Python thread to its JVM thread, so the
methods run in the Python thread that called the statement.

| Delta calls | the sink |
| --- | --- |
| `startingTransaction` | refuses another table or layout, or a second transaction; adds the batch (`SetTransaction`) to it |
| `preparingCommit` | keeps the actions of the commit, and so the staged files; publishes an append's markers; sets the label |
| `beginDoCommit` | requests the grant, checks its lease and the base; an error here ends the statement: nothing is published |
| `beginPostCommit`, after the commit file is written | reports the commit |

Delta's conflict check and its tries at the next versions are between the last two, and so under the grant. `statement.py` has
what follows from the statement's end.

The label is a setting of a session (`userMetadata`), and so is the version (`lastCommitVersionInSession`). Other threads write
in the batch's session too: other sinks, and the user. So Delta finds both in a session of the transaction's own, a clone that is
the active one of this thread alone, from the end of `preparingCommit`, where Delta reads the label, to `beginPostCommit`.

The interface is internal to Delta. A release may change its methods, or when it calls them. So it is compared with what the sink
implements (`require_release`). A method that the sink lacks would fail in the middle of a commit. Without the observer the whole
statement is granted (`sinks/spark_sink.py`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from lakewarden.spark_jobs.engine.java import (
    accept_callbacks,
    elements,
    gateway_of,
    is_instance,
    java_causes,
    java_class,
    java_type,
    threads_are_pinned,
)
from lakewarden.spark_jobs.gate.jvm_errors import CallbackErrors
from lakewarden.spark_jobs.sinks.delta.log import TableLog
from lakewarden.spark_jobs.sinks.delta.statement import (
    CONFLICT,
    USER_METADATA,
    GrantedStatement,
    Write,
    transaction_label,
)
from lakewarden.spark_jobs.sinks.releases import DELTA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakewarden.spark_jobs.gate.transaction import Transaction

OBSERVER = "org.apache.spark.sql.delta.TransactionExecutionObserver"

_STATIC = 8
"""A bit of `java.lang.reflect.Modifier`. Scala adds static methods, those of the companion object."""


LAST_VERSION = "spark.databricks.delta.lastCommitVersionInSession"
"""Where Delta keeps the version that the active session committed last. It writes it before `beginPostCommit`."""


class CommitObserver(GrantedStatement):
    """The observer of one statement."""

    def __init__(
        self,
        spark: SparkSession,
        txn: Transaction,
        table: TableLog,
        prepared: Callable[[Iterator[dict[str, Any]]], object] = lambda _: None,
        started: Callable[[Any], object] = lambda _: None,
    ) -> None:
        """`started` is called with the transaction's `DeltaLog`."""
        super().__init__(txn, table, prepared)
        self._spark = spark
        self._started = started
        self._errors = CallbackErrors()
        self._delta: Any = None
        self._java_actions: Any = None
        self._own: _OwnSession | None = None
        # py4j calls these methods by their names in Java.
        keep = self._errors.keep
        self.startingTransaction = keep(self._start)
        self.preparingCommit = keep(self._prepare)
        self.beginDoCommit = keep(self._before_commit)
        self.beginPostCommit = keep(self._after_commit)

    def execute(self, write: Write, target: str) -> None:
        accept_callbacks(gateway_of(self._spark))
        registry = getattr(java_type(self._spark, f"{OBSERVER}$"), "MODULE$")
        before = registry.getObserver()
        registry.setObserver(self)
        try:
            try:
                write.run(target, {})
            finally:
                registry.setObserver(before)
                self._leave_own_session()
        except Exception as error:  # noqa: BLE001 - whatever Delta raises
            self._settle_failed(error)
        else:
            self._settle_returned()

    @property
    def base_version(self) -> int | None:
        return None if self._delta is None else int(self._delta.readVersion())

    @property
    def _delta_id(self) -> str:
        return str(self._delta.txnId())

    @property
    def _first_error(self) -> BaseException | None:
        return self._errors.first

    def _is_conflict(self, error: Exception) -> bool:
        return is_conflict(error)

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
        self._require_layout(str(delta.metadata().json()))
        self._base = self._table.commits(int(delta.readVersion()))[:1]
        self._started(delta_log)
        if self._txn.batch_id is not None:
            # What the transaction has read: a commit of the writer by another process is then a conflict.
            getattr(delta.readTxn(), "$plus$eq")(self._txn.writer)  # of Scala 2.12 and 2.13
            now = java_type(self._spark, "scala.Option").apply(int(time.time() * 1000))
            delta.updateSetTransaction(self._txn.writer, self._txn.batch_id, now)
        return delta

    def _prepare(self, make: Any) -> Any:
        self._txn.check()
        self._java_actions = make.apply()
        self._publish_markers(str(self._delta.metadata().json()))
        self._own = _OwnSession(self._spark, transaction_label(self._txn))
        return self._java_actions

    def _after_commit(self) -> None:
        version = self._leave_own_session()
        if self.grant is not None:
            self._report(self.grant, version)

    def _leave_own_session(self) -> str | None:
        """Return the version that was committed in it."""
        own, self._own = self._own, None
        return None if own is None else own.leave()

    def _actions(self) -> Iterator[dict[str, Any]]:
        if self._java_actions is None:
            return
        for action in elements(self._java_actions):
            yield json.loads(action.json())


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
