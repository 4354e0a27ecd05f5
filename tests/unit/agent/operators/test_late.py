"""Which writers have not committed for three times their usual interval, and that a question is one entry of a table."""

from __future__ import annotations

import pytest

from lakewarden.agent.operators.past import Timelines
from lakewarden.agent.operators.questions import QUESTIONS, Question, late_writers
from lakewarden.agent.operators.text import cells, lines
from lakewarden.events import CommitCompleted, CommitIntent, encode
from tests.unit.agent.serving.owner_in_memory import consumed
from tests.unit.events.building import made

NOW = 100_000.0
TABLE = "s3://lake/t"


def committed(*ago: float, ends: bool | None = None, writer: str = "shop", opened: bool = False) -> Timelines:
    """A writer that has committed so many seconds ago."""
    found = Timelines()
    for number, each in enumerate(ago):
        names = {"table": TABLE, "writer": writer, "transaction": f"T{number}"}
        for event in (
            made(CommitIntent, **names, ends_itself=ends),
            made(CommitCompleted, **names, grant="g"),
        ):
            found.add_event(consumed(encode(event), at_ms=round((NOW - each) * 1000)))
    if opened:
        names = {"table": TABLE, "writer": writer, "transaction": "open"}
        intent = made(CommitIntent, **names, ends_itself=ends)
        found.add_event(consumed(encode(intent), at_ms=round(NOW * 1000)))
    return found


STEADY = (290.0, 260.0, 230.0, 200.0)
RUNS = (25_203.0, 25_202.0, 21_602.0, 18_002.0)


@pytest.mark.parametrize(
    ("timelines", "standing"),
    [
        (committed(*STEADY, ends=False), "late, unless it was stopped"),
        (committed(*STEADY), "late, unless its job has ended"),
        (committed(*STEADY, ends=True), None),
        (committed(90, 60, 30, ends=False), None),
        (committed(33, 32, 31, ends=False), None),
        (committed(200, ends=False), None),
        (committed(*RUNS, ends=True), "late"),
        (committed(*STEADY, ends=False, opened=True), "late"),
        (committed(*STEADY, writer="delta:49"), None),
    ],
)
def test_a_writer_is_late_against_its_own_pace(timelines: Timelines, standing: str | None) -> None:
    found = list(late_writers(timelines, NOW))

    assert [each.standing for each in found] == ([] if standing is None else [standing])
    opened = "open" in timelines.tables[TABLE]
    assert all((each.transaction == "open") is opened for each in found)


def test_each_row_of_a_question_is_a_line_with_a_cell_for_each_column() -> None:
    rows = list(late_writers(committed(*STEADY, ends=False), NOW))

    columns, line = cells(rows)

    assert columns == ("table", "writer", "standing", "pause", "usual", "last commit", "transaction")
    assert line[:5] == (TABLE, "shop", "late, unless it was stopped", "3 min", "30 s")
    assert cells([]) == [()]


@pytest.mark.parametrize("asked", QUESTIONS, ids=lambda asked: asked.name)
def test_each_question_is_printed_with_its_rows_and_without(asked: Question) -> None:
    found = committed(*STEADY, ends=False)
    rows = list(asked.rows(found, NOW))

    head, first = lines("rows", rows, question=asked)[:2]
    assert (head.split()[0], first.split()[0]) == ("table", TABLE)
    assert lines("rows", [], question=asked) == [asked.none]
