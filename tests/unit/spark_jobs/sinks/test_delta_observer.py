"""What the observer of a Delta statement makes of its end, with Delta replaced by objects that behave like it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lakewarden.spark_jobs import OutcomeUnknown
from lakewarden.spark_jobs.gate.grant import Grant, PublishOutcome
from lakewarden.spark_jobs.sinks.delta import observer
from lakewarden.spark_jobs.sinks.delta.log import CommitFile
from lakewarden.spark_jobs.sinks.delta.observer import CommitObserver

TABLE = "file:/lake/flights"


class JavaClass:
    def __init__(self, *names: str) -> None:
        self.names = names

    def getName(self) -> str:  # noqa: N802 - of Java
        return self.names[0]

    def getSimpleName(self) -> str:  # noqa: N802 - of Java
        return self.names[0].rpartition(".")[2]

    def getSuperclass(self) -> JavaClass | None:  # noqa: N802 - of Java
        return JavaClass(*self.names[1:]) if len(self.names) > 1 else None


class Conflict(Exception):
    """What py4j raises for Delta's conflicts."""

    def __init__(self) -> None:
        super().__init__("An error occurred while calling o1.save")
        names = (
            "io.delta.exceptions.ConcurrentAppendException",
            "org.apache.spark.sql.delta.DeltaConcurrentModificationException",
            "java.lang.Exception",
        )
        self.java_exception = SimpleNamespace(
            getClass=lambda: JavaClass(*names),
            getCause=lambda: None,
            getMessage=lambda: "files were added\nto day=1",
        )


class World:
    """One transaction of the gate, one of Delta, and the log of the table."""

    def __init__(self, *, committed: int | None = None, readable: bool = True) -> None:
        self.reports: list[str | None] = []
        self.batches: list[tuple[str, int]] = []
        self.committed, self.readable = committed, readable
        txn: Any = SimpleNamespace(
            id="t1", table=TABLE, writer="w", batch_id=7, check=lambda: None, request_grant=lambda: self.grant
        )
        self.grant: Grant = Grant(
            "g",
            1,
            check=lambda: 20.0,
            completed=lambda grant: self.reports.append(grant.version),
            failed=self.unknown,
        )
        spark: Any = SimpleNamespace()
        table: Any = SimpleNamespace(
            data_path=TABLE, version_of=self.version_of, known=None, commits=self.commits
        )
        self.observer = CommitObserver(spark, txn, table)

    def unknown(self, grant: Grant, error: Exception) -> bool:
        raise OutcomeUnknown(f"{error}", retriable=True)

    def commits(self, since: int) -> list[CommitFile]:
        return [CommitFile(since, 1, 100)]

    def version_of(self, transaction: str, since: int) -> int | None:
        if not self.readable:
            raise OSError("no route to host")
        assert (transaction, since) == ("delta-1", 3)
        return self.committed

    def start(self, path: str = TABLE) -> None:
        folder = SimpleNamespace(toString=lambda: path)
        made = SimpleNamespace(
            txnId=lambda: "delta-1",
            readVersion=lambda: 3,
            readTxn=lambda: SimpleNamespace(**{"$plus$eq": lambda _writer: None}),
            updateSetTransaction=lambda writer, batch, _: self.batches.append((writer, batch)),
            metadata=lambda: SimpleNamespace(json=lambda: "{}"),
            deltaLog=lambda: SimpleNamespace(dataPath=lambda: folder),
        )
        self.observer.startingTransaction(SimpleNamespace(apply=lambda: made))

    def begin_commit(self) -> World:
        """Delta starts a transaction, and begins to commit it."""
        self.start()
        self.observer.preparingCommit(SimpleNamespace(apply=lambda: None))
        self.observer.beginDoCommit()
        return self

    def end(self, error: Exception | None = None) -> None:
        """What `run` does after the statement."""
        if error is None:
            self.observer._settle_returned()
        else:
            self.observer._settle_failed(error)


@pytest.fixture(autouse=True)
def scala_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only class that the observer asks the JVM for, but for a session of the transaction's own."""
    option = SimpleNamespace(apply=lambda value: value)
    monkeypatch.setattr(observer, "_OwnSession", lambda *_: SimpleNamespace(leave=lambda: "4"))
    monkeypatch.setattr(observer, "java_type", lambda _spark, name: {"scala.Option": option}[name])


def test_a_conflict_of_the_commit_with_itself_is_a_published_commit() -> None:
    """The store wrote the commit file and its answer was lost. Delta tried again, found the file, and saw a conflict."""
    world = World(committed=4).begin_commit()

    world.end(Conflict())

    assert world.grant.outcome is PublishOutcome.PUBLISHED
    assert world.reports == ["4"]


def test_a_conflict_is_unknown_if_the_log_cannot_be_read() -> None:
    """The conflict may be with the commit itself."""
    world = World(readable=False).begin_commit()

    with pytest.raises(OutcomeUnknown):
        world.end(Conflict())

    assert world.grant.outcome is PublishOutcome.UNKNOWN


def test_what_fails_after_the_commit_does_not_fail_the_batch() -> None:
    world = World().begin_commit()
    world.observer.beginPostCommit()

    world.end(RuntimeError("the checkpoint could not be written"))

    assert world.reports == ["4"]


def test_a_second_transaction_after_the_commit_is_refused() -> None:
    """Auto compaction, for example, would commit without a grant."""
    world = World().begin_commit()
    world.observer.beginPostCommit()

    with pytest.raises(RuntimeError, match="would commit without a grant"):
        world.start()


def test_a_statement_that_delta_starts_again_before_its_commit_is_one_transaction() -> None:
    """MERGE does so when a part of its materialised source was lost."""
    world = World()

    world.start()
    world.start()

    assert world.batches == [("w", 7), ("w", 7)]


def test_a_statement_on_another_table_is_refused() -> None:
    with pytest.raises(RuntimeError, match="writes another table, file:/lake/other"):
        World().start("file:/lake/other")


def test_a_statement_that_never_called_the_observer_is_an_error() -> None:
    with pytest.raises(Exception, match="may have committed without a grant"):
        World().end()
