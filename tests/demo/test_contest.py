"""The lines, the figures and the picture of contests whose page is a stand-in, and the comparison of a table."""

from __future__ import annotations

import json
import urllib.error
from collections import defaultdict
from collections.abc import Collection, Iterable
from email.message import Message
from io import BytesIO
from typing import Any

import pyarrow as pa
import pytest
from compare import Check, compare
from contest import Contest, TimeLine, report
from flights import expected_table, load_flights
from picture import draw

BEGAN = 1_700_000_000.0
CLEAN, LOST = Check(10, 0, 0, 0), Check(10, 1, 0, 3)
GREEN, RED, GREY = "#3fa66b", "#e0524d", "#d5dae0"
Bar = tuple[str, dict[str, Any]]


def bar(writer: str, batch: int, *segments: tuple[str, str, float, float], lost: bool = False) -> Bar:
    """A transaction as the page has it: label, colour, begin and end of each segment, from the start of the contest."""
    end = BEGAN + segments[-1][3]
    return writer, {
        "transaction": f"{writer}-{batch}-{lost}",
        "batch_id": batch,
        "outcome": "aborted by conflict" if lost else "committed",
        "started": BEGAN + segments[0][2],
        "ended": end,
        "lost_to": ["departures:0b1c"] if lost else [],
        "aborted_at": end if lost else None,
        "segments": [
            {"label": label, "colour": colour, "begin": BEGAN + begin, "end": BEGAN + until}
            for label, colour, begin, until in segments
        ],
    }


FIRST = bar("departures", 0, ("computing, then committed", GREEN, 0, 10), ("committing", GREY, 10, 11))
ABORTED = bar("arrivals", 0, ("computing, then aborted by a conflict", RED, 1, 4), lost=True)
WAITED = bar("arrivals", 0, ("waiting for admission or grant", GREY, 4, 8.5), ("computing", GREEN, 8.5, 15))


def contest(
    monkeypatch: pytest.MonkeyPatch, admission: str, bars: Iterable[Bar], check: Check = CLEAN
) -> tuple[Contest, list[str]]:
    """A contest whose page answers once with an error, then with these bars. Also the lines that it has printed."""
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for writer, each in bars:
        rows[writer].append(each)
    page = {
        "timeline": {"writers": [{"writer": f"{name}:0b1c", "attempts": each} for name, each in rows.items()]}
    }
    answers = [urllib.error.HTTPError("", 503, "busy", Message(), None), BytesIO(json.dumps(page).encode())]
    monkeypatch.setattr("urllib.request.urlopen", lambda _: _answer(answers))
    shown: list[str] = []
    line = TimeLine("http://page/", "file:///lake/t", shown.append)
    line.update()
    line.update()
    return Contest(admission, check, {"departures": 0, "arrivals": 1}, line), shown


def _answer(answers: list[Any]) -> BytesIO:
    answer = answers.pop(0)
    if isinstance(answer, Exception):
        raise answer
    assert isinstance(answer, BytesIO)
    return answer


def test_each_transaction_that_has_ended_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    _, shown = contest(monkeypatch, "optimistic", [FIRST, ABORTED, WAITED])

    assert shown == [
        "   4.0 s  arrivals   batch 0   aborted: CONFLICT with departures, 3.0 s of compute",
        "  11.0 s  departures batch 0   committed, 10.0 s of compute",
        "  15.0 s  arrivals   batch 0   committed, 6.5 s of compute, 4.5 s in the queue",
    ]


def test_the_report_has_a_column_for_each_contest_and_lists_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    optimistic, _ = contest(monkeypatch, "optimistic", [FIRST, ABORTED, WAITED])
    auto, _ = contest(monkeypatch, "auto", [FIRST])

    *lines, verdict = report([optimistic, auto], 61.2)

    assert {line[:19].strip(): line[19:].split()[:2] for line in lines} == {
        "admission": ["optimistic", "auto"],
        "rows expected": ["10", "10"],
        "rows missing": ["0", "0"],
        "rows duplicated": ["0", "0"],
        "rows wrong": ["0", "0"],
        "restarts": ["1", "1"],
        "batches committed": ["2", "1"],
        "conflicts": ["1", "0"],
        "compute wasted": ["3.0", "s"],
        "contest time": ["15", "s"],
    }
    assert verdict == "All 10 rows are present exactly once and correct in each table."


def test_lost_rows_are_named_and_so_is_their_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    clean, _ = contest(monkeypatch, "optimistic", [FIRST])
    damaged, _ = contest(monkeypatch, "auto", [FIRST], LOST)

    *_, bug = report([clean, damaged], 1)
    *lines, alone = report([Contest(None, LOST, {}, None)], 1)
    *_, lucky = report([Contest(None, CLEAN, {}, None)], 1)

    assert bug.startswith("4 of 20 rows are lost or damaged. A bug of lakewarden")
    assert alone.startswith("4 of 10 rows are lost or damaged. The jobs reported no error")
    assert lucky.endswith("Without an agent this is chance.")
    assert "conflicts" not in "".join(lines)
    assert "; 4 rows lost or damaged" in draw([clean, damaged])


# -- the comparison of the table ---------------------------------------------------------------------------------------

CANCELLED = 838
"""The first flight that did not leave."""
COLUMNS = ("dep_time", "arr_time", "tailnum", "month", "time_hour")
DIFFERENCES: dict[str, tuple[Collection[int], list[tuple[int, dict[str, Any]]], tuple[int, int, int]]] = {
    "none, in another order": ((), [], (0, 0, 0)),
    "rows that are missing": ((7, 8), [], (2, 0, 0)),
    "two more copies of a row": ((), [(7, {}), (7, {})], (0, 2, 0)),
    **{f"a wrong {column}": ([7], [(7, {column: None})], (0, 0, 1)) for column in COLUMNS},
    "a value where nothing is expected": ([CANCELLED], [(CANCELLED, {"arr_time": 830})], (0, 0, 1)),
    "a wrong copy beside the correct one": ((), [(7, {"dep_time": 1})], (0, 1, 1)),
    "a flight that is in no feed": ((), [(7, {"flight_id": 999_999})], (0, 0, 1)),
}
"""Flights without their row, further rows (those of flights, with other values), and what is missing, duplicated and wrong."""


@pytest.mark.parametrize(("removed", "added", "found"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_every_difference_of_a_table_is_found(
    removed: Collection[int], added: list[tuple[int, dict[str, Any]]], found: tuple[int, int, int]
) -> None:
    expected = expected_table(load_flights(days=2))
    rows = {row["flight_id"]: row for row in expected.to_pylist()}
    assert rows[CANCELLED]["dep_time"] is None
    written = [row for flight, row in rows.items() if flight not in removed]
    written += [rows[flight] | values for flight, values in added]

    check = compare(pa.Table.from_pylist(written[::-1], expected.schema), expected)

    assert check == Check(len(rows), *found)
    assert check.clean == (found == (0, 0, 0))


def test_in_an_empty_table_every_row_is_missing() -> None:
    expected = expected_table(load_flights(days=2))

    assert compare(expected.schema.empty_table(), expected) == Check(1785, 1785, 0, 0)
