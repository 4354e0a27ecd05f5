"""What the gate and the sinks need of the Spark that runs a batch: one `Engine`, and a body for each kind of Spark.

| | classic (`classic.py`) | Spark Connect (`connect.py`) |
| --- | --- | --- |
| a batch's function runs | in the driver, beside its JVM | in a process that Spark's server starts for the query |
| its query is known by | the batch's session and the thread | the name, among those of the client's session |
| an abort | cancels jobs with the attempt's tag | interrupts operations with that tag |
| the rows of a batch are kept by | `persist`, without lineage | `localCheckpoint` |
| the end of the query | a flag of the query in the JVM | SIGTERM, or another parent process |

- *One question, one place.* `kinds.py` looks which Spark a DataFrame or a session is of. Nothing else asks.
- *No JVM outside of this room*, but for what belongs to one table format: `sinks/delta`, `sinks/iceberg`, `sinks/hudi` and
  `sinks/paimon/java_table.py`. `java.py` has what these rooms and the classic body share.
- *An engine has no state.* What it learns of a batch, it returns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from lakewarden.spark_jobs.engine.cancelling import Tagged
from lakewarden.spark_jobs.engine.java import java_causes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField


@dataclass(frozen=True, slots=True)
class Query:
    """A streaming query that runs."""

    id: str
    handle: Any
    """The engine's own."""
    run: str
    ends_itself: bool | None
    """Whether it ends when it has read what there is. None: that isn't known."""


@dataclass(frozen=True, slots=True)
class Cause:
    """An error of Spark, or one that caused it."""

    kind: str
    """The name of its class."""
    text: str

    @property
    def is_analysis(self) -> bool:
        """Whether Spark found it before it read a row. There is an ExtendedAnalysisException, too."""
        return self.kind.endswith("AnalysisException")


class Engine(ABC):
    """One kind of Spark."""

    # the batch of a query

    def require_portable(self, parts: Mapping[str, object]) -> None:  # noqa: B027 - a driver calls what it made
        """Raise `InvalidArgument` if a batch's function can't run where Spark calls it. `parts`: what it has, by name."""

    def watch(self) -> None:  # noqa: B027 - a driver ends by itself
        """Watch for the end of the query and of Spark. In the main thread of a process that received a batch's function."""

    def running(self, may_end: Callable[[], bool]) -> AbstractContextManager[None]:
        """Return the block in which a batch is written. Its end may be that of its process, where `may_end` allows it."""
        return nullcontext()

    @abstractmethod
    def query_of(self, batch: DataFrame, writer: str, last: Query | None = None) -> Query | None:
        """Return the streaming query that a batch of a writer belongs to, or None if no query runs here.

        `last`: of the batch before.

        Raises `GateError` if a query runs and nothing says whether the batch is one of its own.
        """

    @abstractmethod
    def what_stopped(self, batch: DataFrame, query: Query | None) -> str | None:
        """Return what was stopped while the batch was written: its `query` (of `query_of`) or all of Spark. None: nothing."""

    @abstractmethod
    def operations(self, batch: DataFrame, tag: str) -> Tagged:
        """Return the block in which what the batch lets Spark do carries a tag that no other batch has."""

    # rows

    @abstractmethod
    def kept(self, rows: DataFrame) -> tuple[DataFrame, int]:
        """Return the rows as all jobs are going to see them, once one has computed them, and the id of their RDD."""

    @abstractmethod
    def are_kept(self, rows: DataFrame, rdd: int) -> bool:
        """Return whether jobs still see the rows of `kept` as the first one has computed them."""

    @abstractmethod
    def let_go(self, rows: DataFrame) -> None:
        """End `kept`."""

    @abstractmethod
    def settle(self, rows: DataFrame) -> None:
        """Compute rows of `kept`, unless they are."""

    @abstractmethod
    def fit_one_task(self, rows: DataFrame, most: int) -> bool:
        """Return whether one task may read the rows: they are `most` at most, or have one partition. They are computed then."""

    @abstractmethod
    def parallelism(self, spark: SparkSession) -> int:
        """Return how many tasks a job has that reads nothing."""

    @contextmanager
    def as_view(self, rows: DataFrame, name: str) -> Iterator[str]:
        """Give the rows a name in the session's SQL for the block. No other batch of the session may use the name."""
        rows.createOrReplaceTempView(name)
        try:
            yield quoted(name)
        finally:
            self.drop_view(rows.sparkSession, name)

    @abstractmethod
    def drop_view(self, spark: SparkSession, name: str) -> None:
        """Forget a temporary view. Rows that it shows stay persisted."""

    # types

    @abstractmethod
    def stored_as(self, batch: DataFrame, columns: list[StructField], table: str) -> DataFrame:
        """Return the batch with these columns, by Spark's store assignment. Raise `ValueError` for types that don't fit."""


def causes(error: BaseException) -> Iterator[Cause]:
    """Yield what Spark says of an error that one of its jobs or statements raised, and of its causes."""
    found = [Cause(str(java.getClass().getName()), str(java.getMessage())) for java in java_causes(error)]
    if not found and type(error).__module__.startswith("pyspark.errors."):  # of a server, as text
        found = [Cause(type(error).__name__, str(error).split("JVM stacktrace:")[0].strip())]
    yield from found


def unlike_any(rows: DataFrame) -> DataFrame:
    """Return the rows under a plan that nothing else has, so no other user of the session drops what Spark keeps of them."""
    return rows.where(f"'{uuid4().hex}' IS NOT NULL")  # Spark's optimizer removes the condition


def quoted(name: str) -> str:
    """Return an identifier for SQL. No other function writes a name into SQL."""
    return f"`{name.replace('`', '``')}`"
