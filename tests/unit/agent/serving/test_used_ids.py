"""A stranger uses the id and the writer of a running transaction on another table: nothing changes for the transaction."""

from __future__ import annotations

from typing import Any

import pytest

from lakewarden.agent import clock
from lakewarden.agent.serving.partition import replay, tables
from lakewarden.events import DECISION_RECORD, Abort, Undecodable, decode
from lakewarden.handlers.table import machine
from tests.unit.agent.serving.owner_in_memory import TOPICS, Table
from tests.unit.agent.serving.set_clock import SetClock

URI = "s3://lake/orders"
FORBIDDEN = "gs://elsewhere/orders"
MARKER = [{"partition": "p", "file_group": "f", "operation": "merge"}]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    made = Table(URI, [("A", "w-A"), ("B", "w-B")])
    monkeypatch.setattr(clock, "time", SetClock(lambda: made.now))
    return made


def aborts(table: Table) -> list[tuple[str, str, str]]:
    """Table, transaction and reason of each abort."""
    found: list[Any] = [decode(DECISION_RECORD, record.value) for record in table.log.of(TOPICS.decisions)]
    assert not any(isinstance(each, Undecodable) for each in found)
    return [(each.table, each.transaction, each.reason) for each in found if isinstance(each, Abort)]


def fail(*_: Any) -> None:
    raise ZeroDivisionError("planted")


def test_a_restart_keeps_what_the_transaction_has_touched(table: Table) -> None:
    """A replay drops the markers of aborted transactions. Without those of A, B would overwrite its data."""
    table.send("commit-intent", 0)
    table.send("marker-created", 0, markers=MARKER)
    table.send("marker-created", 0, table=FORBIDDEN, markers=MARKER)
    assert aborts(table) == [(FORBIDDEN, "A", "not-allowed")]

    table.start()
    table.send("commit-intent", 1)
    table.send("marker-created", 1, markers=MARKER)

    assert aborts(table)[1:] == [(URI, "B", "conflict")]


def test_its_writer_learns_in_a_restart_that_its_table_is_stopped(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open transaction of a table that fails in the replay gets an abort, unless the log has one."""

    def failing(state: Any, event: Any, *rest: Any) -> Any:
        return fail() if event.transaction == "B" else machine.replay_event(state, event, *rest)

    table.send("commit-intent", 0)
    table.send("marker-created", 0, table=FORBIDDEN, markers=MARKER)
    table.send("commit-intent", 1)
    assert aborts(table) == [(FORBIDDEN, "A", "not-allowed")]

    monkeypatch.setattr(replay, "replay_event", failing)
    table.start()

    assert aborts(table)[1:] == [(URI, "A", "not-allowed")]


def test_its_intent_on_a_stopped_table_is_answered(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(tables, "step", fail)
        table.send("commit-intent", 1)
    assert aborts(table) == [(URI, "B", "not-allowed")]

    table.send("commit-intent", 0, table=FORBIDDEN)
    table.send("commit-intent", 0)

    assert aborts(table)[1:] == [(FORBIDDEN, "A", "not-allowed"), (URI, "A", "not-allowed")]
