"""The Connect body of the engine: Spark's server starts a Python process for the function of a query's run, and calls it there.

What is classic's JVM in the driver is here a session that all queries of one client share. So nothing of it is set, and what a
batch adds to it has a name of its own.

- *Which query*: nothing says it of a batch. The process belongs to one query, so that is the client session's query with the
  writer's name, else its only one; else the batch is refused. From Spark 4.3 on a batch has a clone of that session. A batch that
  the client itself writes, outside of a query, has none.
- *Cancelling*: operations of a thread carry its tags, and `interruptTag` ends them. Spark doesn't show whether their tasks have
  ended, so files of such tasks are left to a later sweep.
- *A statement outlives its process*: the server runs it on. So no statement commits by itself here: a commit is a step of this
  process, or one that it allows (`sinks/delta/connect.py`), under its grant.
- *The process ends with its query*: `query.stop()` sends it SIGTERM, and by that the batch's statements are interrupted. A
  server that was killed sends nothing, and Spark's client would try its statements again for minutes: `_watch_server` sees that
  this process has another parent, and sends the signal.
- *SIGTERM ends the transaction*, in the thread of the batch's function, by `ProcessEnds`, which no `except Exception` catches.
  So the transaction is abandoned at once, and its grant doesn't lapse. A batch that the function writes in a thread of its own
  ends by its statement, which is interrupted. While a publish runs (`may_end`), the signal is only noted: its outcome would be
  unknown. Then the batch is reported as it ended, and nothing is begun any more.
- *Rows that all jobs see alike* are a local checkpoint: computed at once, and without lineage. The session's `clearCache` leaves
  them as they are, and the server drops them with the DataFrame.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Any

from lakewarden.spark_jobs.engine.cancelling import Tagged
from lakewarden.spark_jobs.engine.engine import Engine, Query, causes, quoted, unlike_any
from lakewarden.spark_jobs.gate.errors import InvalidArgument, UnsupportedSpark
from lakewarden.spark_jobs.gate.logs import EventLogger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField

WORKER_VARIABLE = "SPARK_CONNECT_LOCAL_URL"
"""Set by Spark's server in the process of a query's function, and nowhere else."""

SERVER_POLL_SECONDS = 0.5

ENDING_SECONDS = 15.0
"""For the transaction of a server that has ended. Then its process ends, and the grant lapses."""

UNKNOWN_PARALLELISM = 64
"""Tasks at most, where the session doesn't say how many the server runs at once."""

log = EventLogger("lakewarden.jobs")

_numbers = count(-1, -1)
"""In place of the ids of RDDs, which Connect doesn't show."""


class ProcessEnds(SystemExit):
    """The query was stopped, or Spark's server has ended. Nothing may catch it."""


class _Worker:
    """This process, if Spark's server started it for a query's function."""

    def __init__(self) -> None:
        self.stopped: str | None = None
        self.may_end: dict[int, Callable[[], bool]] = {}
        """Whether each thread's batch may end now."""
        self.operations: dict[int, TaggedOperations] = {}
        """The statements of each thread's batch."""
        self.session: Any = None
        """The client's."""
        self._main = threading.main_thread().ident or 0
        self._server: int | None = None

    def watch(self) -> None:
        """Watch for the end of the query and of the server."""
        if self._server is None and WORKER_VARIABLE in os.environ:
            from pyspark.sql.connect.session import SparkSession

            self._server = os.getppid()
            self.session = SparkSession.getActiveSession()
            with suppress(
                ValueError
            ):  # a gate that a thread of the body has made: only the main thread handles signals
                signal.signal(signal.SIGTERM, self._end)
            threading.Thread(target=self._watch_server, name="lakewarden-server-watch", daemon=True).start()

    def _end(self, *_: object) -> None:
        self.stopped = "the query" if os.getppid() == self._server else "Spark"
        self._interrupt_others()
        may_end = self.may_end.get(self._main)
        if may_end is None or may_end():
            self.may_end[self._main] = bool  # once: what ends the transaction isn't interrupted
            raise ProcessEnds(f"{self.stopped} was stopped")

    def _interrupt_others(self) -> None:
        """Interrupt what batches compute that other threads write. They see then that the query was stopped."""
        for thread, operations in [*self.operations.items()]:
            may_end = self.may_end.get(thread)
            if thread != self._main and may_end is not None and may_end():
                threading.Thread(target=operations.cancel_until_ended, daemon=True).start()

    def _watch_server(self) -> None:
        while os.getppid() == self._server:
            time.sleep(SERVER_POLL_SECONDS)
        if self.may_end:
            signal.pthread_kill(self._main, signal.SIGTERM)
        deadline = time.monotonic() + ENDING_SECONDS
        while self.may_end and time.monotonic() < deadline:
            time.sleep(0.01)
        os._exit(1)  # Spark's client would wait for the server


_WORKER = _Worker()


class Connect(Engine):
    """Spark on a server."""

    def require_portable(self, parts: Mapping[str, object]) -> None:
        from pyspark import cloudpickle

        dumps: Callable[[object], bytes] = cloudpickle.dumps
        for name, part in parts.items():
            try:
                dumps(part)
            except Exception as error:
                raise InvalidArgument(
                    name,
                    part,
                    "Spark Connect sends it to its server, and it can't be pickled "
                    f"({' '.join(str(error).split())[:200]}): give what it is made from, such as the paths of certificates, or a "
                    "function that makes it there",
                ) from error

    def watch(self) -> None:
        _WORKER.watch()

    @contextmanager
    def running(self, may_end: Callable[[], bool]) -> Iterator[None]:
        _WORKER.watch()
        if _WORKER.stopped is not None:
            raise ProcessEnds(f"{_WORKER.stopped} was stopped")
        thread = threading.get_ident()
        around = _WORKER.may_end.get(thread)
        _WORKER.may_end[thread] = may_end
        try:
            yield
        finally:
            del _WORKER.may_end[thread]
            if around is not None:
                _WORKER.may_end[thread] = around

    def query_of(self, batch: DataFrame, writer: str, last: Query | None = None) -> Query | None:
        if last is not None or WORKER_VARIABLE not in os.environ:
            return last
        session: Any = batch.sparkSession
        if _WORKER.session is not None and session.session_id == type(session).active().session_id:
            session = _WORKER.session
        active = session.streams.active
        found = [query for query in active if query.name == writer] or active
        if len(found) != 1:
            why = "no query runs in the session of this DataFrame: pass the batch, or a DataFrame derived from it"
            if found:
                names = ", ".join(sorted(query.name or query.id for query in found))
                why = (
                    f"several queries run in its session ({names}), and none or several have the writer's name: add "
                    f".queryName({writer!r}) to the query"
                )
            raise UnsupportedSpark(
                f"foreach_batch: can't find the query of this batch, so its writer would lack the query id: {why}"
            )
        return Query(found[0].id, found[0], found[0].runId, None)

    def what_stopped(self, batch: DataFrame, query: Query | None) -> str | None:
        return _WORKER.stopped

    def operations(self, batch: DataFrame, tag: str) -> Tagged:
        return TaggedOperations(batch.sparkSession, tag)

    def kept(self, rows: DataFrame) -> tuple[DataFrame, int]:
        return rows.localCheckpoint(eager=True), next(_numbers)

    def are_kept(self, rows: DataFrame, rdd: int) -> bool:
        return True

    def let_go(self, rows: DataFrame) -> None:
        """The server drops them with the DataFrame."""

    def settle(self, rows: DataFrame) -> None:
        """They are computed already."""

    def fit_one_task(self, rows: DataFrame, most: int) -> bool:
        """Unknown, and counting them costs a job."""
        return False

    def parallelism(self, spark: SparkSession) -> int:
        given = spark.conf.get("spark.sql.leafNodeDefaultParallelism", None)
        return int(given or UNKNOWN_PARALLELISM)

    @contextmanager
    def as_view(self, rows: DataFrame, name: str) -> Iterator[str]:
        with super().as_view(unlike_any(rows), name) as view:
            yield view

    def drop_view(self, spark: SparkSession, name: str) -> None:
        spark.catalog.dropTempView(name)

    def stored_as(self, batch: DataFrame, columns: list[StructField], table: str) -> DataFrame:
        """Convert by `DataFrame.to`, which has the rules of the ANSI policy, and check NOT NULL of columns in the job."""
        from pyspark.sql import functions as f
        from pyspark.sql.types import StructField, StructType

        policy = str(batch.sparkSession.conf.get("spark.sql.storeAssignmentPolicy", "ANSI"))
        if policy.upper() != "ANSI":
            raise ValueError(f"spark.sql.storeAssignmentPolicy={policy}: set it to ANSI; table={table}")
        limited = [each.name for each in columns if "char(" in each.dataType.json()]
        if limited:
            raise ValueError(
                f"on Spark Connect, columns {limited} of CHAR or VARCHAR(n) can't be written; table={table}"
            )
        plain = [StructField(each.name, each.dataType, metadata=each.metadata) for each in columns]
        stored = {each.name: f.col(quoted(each.name)) for each in columns}
        given = batch.schema
        checked = {each.name for each in columns if not each.nullable and given[each.name].nullable}
        try:
            rows = batch.to(StructType(plain))
            rows.select("*").schema  # noqa: B018 - so the server analyzes it now: that of `rows` is what was asked for
        except Exception as error:
            if not any(cause.is_analysis for cause in causes(error)):
                raise
            text = next(causes(error)).text
            raise ValueError(f"the batch doesn't fit the table: {text}; table={table}") from None
        if not checked:
            return rows
        return rows.select(
            *(_required(name, column) if name in checked else column for name, column in stored.items())
        )


def _required(name: str, column: Any) -> Any:
    from pyspark.sql import functions as f

    text = f"NOT_NULL_ASSERT_VIOLATION: column {name!r} of the table is NOT NULL, and a row has NULL"
    return f.when(column.isNull(), f.raise_error(f.lit(text))).otherwise(column).alias(name)


class TaggedOperations(Tagged):
    """The operations that the current thread, and the inheritable threads that it starts, begin in this block."""

    def __init__(self, session: Any, tag: str) -> None:
        super().__init__(tag)
        self._session = session

    def __exit__(self, *details: object) -> None:
        if isinstance(details[1], ProcessEnds) and _WORKER.stopped != "Spark":
            self._cancel()
        super().__exit__(*details)

    def running(self) -> int:
        """Return how many were interrupted now: an operation is interrupted once."""
        return len(self._session.interruptTag(self.tag))

    def _set_tag(self) -> None:
        self._session.addTag(self.tag)
        _WORKER.operations[threading.get_ident()] = self

    def _remove_tag(self) -> None:
        _WORKER.operations.pop(threading.get_ident(), None)
        self._session.removeTag(self.tag)

    def _cancel_all(self) -> None:
        self._session.interruptTag(self.tag)


def no_jvm(what: str) -> UnsupportedSpark:
    """Return the refusal of something that needs the JVM of a driver."""
    return UnsupportedSpark(
        f"{what} is not supported on Spark Connect: its commit needs the JVM of the driver; use DeltaSink, IcebergSink, "
        "PaimonSink or a function of your own, or start the session without `remote(…)` and without SPARK_REMOTE"
    )
