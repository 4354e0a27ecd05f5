"""How a statement under one grant ends, with the gate's transaction and the table replaced by a few lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from lakewarden.spark_jobs import BaseChanged
from lakewarden.spark_jobs.sinks.spark_sink import run_under_grant


class Table:
    """What the table has of the batch, and the transaction that asks for it."""

    def __init__(self, version: str | None, batch_id: int | None = 7) -> None:
        self.steps: list[str] = []
        self.version = version
        self.grant = SimpleNamespace(version=None, check=lambda: self.steps.append("check"))
        self.txn: Any = SimpleNamespace(
            id="t1",
            table="lake",
            writer="w",
            batch_id=batch_id,
            check=lambda: None,
            commit=self.commit,
            facts="",
        )

    @contextmanager
    def commit(self) -> Iterator[Any]:
        self.steps.append("granted")
        yield self.grant

    def run(self, statement: Callable[[], object]) -> None:
        run_under_grant(
            self.txn,
            statement,
            lambda writer, batch: self.version if (writer, batch) == ("w", 7) else None,
            lambda error: "conflict" in str(error),
        )


def fail(message: str) -> Callable[[], object]:
    def statement() -> None:
        raise OSError(message)

    return statement


def test_a_statement_runs_under_the_grant_and_its_version_is_found_in_the_table() -> None:
    table = Table("5")

    table.run(lambda: table.steps.append("statement"))

    assert table.steps == ["granted", "check", "statement"]
    assert table.grant.version == "5"


def test_a_transaction_without_a_batch_has_no_version() -> None:
    table = Table(None, batch_id=None)

    table.run(lambda: None)

    assert table.grant.version is None


def test_a_refused_commit_that_the_table_does_not_show_was_not_published() -> None:
    with pytest.raises(BaseChanged, match="conflict with day=1; nothing was published"):
        Table(None).run(fail("conflict with day=1"))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (Table("5"), "conflict with itself"),
        (Table(None), "connection reset"),
        (Table(None, batch_id=None), "conflict"),
    ],
    ids=["the batch is there", "no conflict", "no batch to look for"],
)
def test_any_other_end_is_left_to_the_gate(table: Table, message: str) -> None:
    """It looks the batch up, and reports the outcome as unknown if it can't be found."""
    with pytest.raises(OSError, match=message):
        table.run(fail(message))


def test_a_statement_whose_batch_the_table_does_not_show_is_no_success() -> None:
    with pytest.raises(RuntimeError, match="the table doesn't show its batch"):
        Table(None).run(lambda: None)
