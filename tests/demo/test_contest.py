"""The lines, the figures, the report and the picture of a scripted contest, and the comparison of its table."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import asdict, replace
from typing import Any
from xml.etree import ElementTree as ET

import pyarrow as pa
import pytest

from lakewarden.agent.attempts.trace import COMMITTING, COMPUTING, WAITING, segments
from lakewarden.agent.demo.contest import (
    Contest,
    Step,
    TableCheck,
    Transcript,
    caption,
    compare,
    draw,
    overlaps,
    report_lines,
    step_of,
    title,
)
from lakewarden.agent.demo.flights import expected_table, load_flights
from lakewarden.handlers.explain.life import End, Life

BEGAN = 1_700_000_000.0
CLEAN = TableCheck(10, 0, 0, 0)


def step(at: float, what: str, transaction: str, writer: str, batch: int = 0, **detail: Any) -> Step:
    """A writer's step, `at` seconds after the start of the run."""
    return Step(BEGAN + at, what, "file:///lake/t", writer, transaction, batch, 0, detail)


def committed(transaction: str, writer: str, began: float, computed: float) -> list[Step]:
    """An attempt that is admitted immediately, computes, waits half a second for its grant, and commits."""
    requested = began + computed
    times = {"intent": began, "admitted": began, "requested": requested}
    times |= {"granted": requested + 0.5, "completed": requested + 1.0}
    return [step(at, what, transaction, writer) for what, at in times.items()]


def lost(transaction: str, began: float, aborted: float, stopped: float) -> list[Step]:
    """An attempt of `arrivals` that receives an abort and stops a little later."""
    detail: dict[str, Any] = {
        "reason": "conflict",
        "others": ["departures:0b1c"],
        "conflicts": [["month=1/day=2", "*"]],
    }
    return [
        step(began, "intent", transaction, "arrivals"),
        step(began, "admitted", transaction, "arrivals"),
        step(aborted, "abort", transaction, "arrivals", **detail),
        step(stopped, "jobs-stopped", transaction, "arrivals"),
    ]


def attempts(*steps: Step) -> tuple[Life, ...]:
    transcript = Transcript(lambda _: None)
    for each in sorted(steps, key=lambda each: each.at):
        transcript.add(each)
    return transcript.attempts


def contest(admission: str | None, steps: Iterable[Step] = (), check: TableCheck = CLEAN) -> Contest:
    return Contest(admission, attempts(*steps), check)


COLLIDED = [
    *committed("d0", "departures", 0, 10),
    *committed("d1", "departures", 19, 10),
    *lost("a0", 1, 3.2, 3.5),
    *committed("a0b", "arrivals", 12, 4),
    *lost("a1", 18, 23.2, 24.0),
    *committed("a1b", "arrivals", 31, 6),
    *committed("a2", "arrivals", 40, 8),
]


STARTED = ("intent", "admitted")


@pytest.mark.parametrize(
    ("steps", "reason", "outcome"),
    [
        ([*STARTED, "requested", "granted", "completed"], None, End.COMMITTED),
        ([*STARTED, "requested", "granted", "abort", "completed"], None, End.COMMITTED),
        (["intent", "already-committed"], None, End.SKIPPED),
        ([*STARTED, "abort", "jobs-stopped"], None, End.CONFLICT),
        (["intent", "abort"], "lease-lost", End.ABORTED),
        ([*STARTED, "failed"], None, End.FAILED),
        ([*STARTED, "abandoned"], None, End.ABORTED),
        (["intent", "abandoned"], None, End.ABORTED),
        ([*STARTED, "markers"], None, End.RUNNING),
    ],
)
def test_the_outcome_of_an_attempt_follows_from_its_steps_and_their_reason(
    steps: list[str], reason: str | None, outcome: End
) -> None:
    detail: dict[str, Any] = {} if reason is None else {"reason": reason}
    (found,) = attempts(*(step(at, what, "t", "arrivals", **detail) for at, what in enumerate(steps)))

    assert found.end is outcome
    assert (found.ended is None) is (outcome is End.RUNNING)
    assert outcome in COMPUTING


def test_every_step_is_a_line_with_the_time_since_the_contest_began() -> None:
    for began in (0, 60):
        shown: list[str] = []
        transcript = Transcript(shown.append)
        steps = [
            *committed("d0", "departures", began, 4),
            *lost("a0", began + 1, began + 2, began + 2.25),
            *committed("a0b", "arrivals", began + 3, 4),
        ]
        for each in sorted(steps, key=lambda each: each.at):
            transcript.add(each)

        assert [attempt.transaction for attempt in transcript.attempts] == ["d0", "a0", "a0b"]
        assert shown == [
            "   0.0 s  departures batch 0   starts",
            "   1.0 s  arrivals   batch 0   starts",
            "   2.0 s  arrivals   batch 0   aborted: CONFLICT with departures on month=1/day=2",
            "   2.2 s  arrivals   batch 0   Spark jobs stopped 0.25 s after the abort",
            "   3.0 s  arrivals   batch 0   starts",
            "   4.5 s  departures batch 0   commit granted 0.50 s after its request",
            "   5.0 s  departures batch 0   committed",
            "   7.5 s  arrivals   batch 0   commit granted 0.50 s after its request",
            "   8.0 s  arrivals   batch 0   committed",
        ]


def test_a_queued_attempt_says_how_long_it_was_queued_and_a_retry_that_it_restarts() -> None:
    shown: list[str] = []
    transcript = Transcript(shown.append)
    for each in (
        step(0, "intent", "a", "arrivals", admission="queued"),
        step(4.4, "admitted", "a", "arrivals"),
        replace(step(9, "intent", "b", "arrivals", admission="queued"), attempt=2),
    ):
        transcript.add(each)

    assert [line[31:] for line in shown] == [
        "starts, queued for admission",
        "admitted after 4.4 s in the queue",
        "restarts, queued for admission",
    ]


def test_a_printed_step_is_read_with_the_configured_name_of_its_writer() -> None:
    found = step(1.5, "intent", "t", "arrivals:5f3a")

    assert step_of(json.dumps(asdict(found))) == replace(found, writer="arrivals")


def test_many_overlaps_are_shortened() -> None:
    assert overlaps([(f"day={day}", "*") for day in range(5)]) == "day=0, day=1 and 3 more"
    assert overlaps([("day=0", "file-1")]) == "day=0 file-1"


def test_computed_in_vain_is_the_time_until_the_jobs_of_the_losers_stopped() -> None:
    queued = [step(0, "intent", "a", "arrivals"), *lost("a", 5, 12, 12.5)[1:]]

    assert contest("auto", COLLIDED).wasted_seconds == pytest.approx(8.5)
    # Neither the time in the queue nor that after the request for the grant.
    late = contest("auto", [*queued, step(11, "requested", "a", "arrivals")])
    assert late.wasted_seconds == pytest.approx(6.0)


def test_the_report_has_a_column_for_each_contest_and_lists_restarts() -> None:
    optimistic = replace(contest("optimistic", COLLIDED), restarts={"departures": 0, "arrivals": 1})
    auto = contest("auto", committed("d0", "departures", 0, 10))

    *lines, verdict = report_lines([optimistic, auto], 61.2)

    assert {line[:19].strip(): line[19:].split()[:2] for line in lines} == {
        "admission": ["optimistic", "auto"],
        "rows expected": ["10", "10"],
        "rows missing": ["0", "0"],
        "rows duplicated": ["0", "0"],
        "rows wrong": ["0", "0"],
        "batches committed": ["5", "1"],
        "conflicts": ["2", "0"],
        "compute wasted": ["8.5", "s"],
        "contest time": ["49", "s"],
    }
    assert "restarted after a failure: arrivals 1×" in lines[5]
    assert verdict == "All 10 rows are present exactly once and correct in each table."


def test_rows_lost_in_one_of_the_contests_are_not_hidden_by_the_other() -> None:
    damaged = contest("auto", check=TableCheck(10, 1, 0, 0))

    *_, verdict = report_lines([contest("optimistic"), damaged], 1)

    assert verdict.startswith("1 of 20 rows are lost or damaged. A bug of lakewarden")


def test_the_report_without_an_agent_says_how_many_rows_were_lost_and_nothing_of_conflicts() -> None:
    *lines, verdict = report_lines([contest(None, check=TableCheck(10, 1, 0, 3))], 1)

    assert verdict.startswith("4 of 10 rows are lost or damaged. The queries reported no error")
    assert "conflicts" not in "".join(lines)
    *_, lucky = report_lines([contest(None)], 1)
    assert lucky.endswith("Without an agent this is chance.")


# -- the picture -------------------------------------------------------------------------------------------------------


LOST = TableCheck(10, 3, 0, 0)


@pytest.mark.parametrize(
    ("steps", "drawn"),
    [
        (
            committed("d0", "departures", 0, 10),
            [(0, 10, COMPUTING[End.COMMITTED][0]), (10, 10.5, WAITING), (10.5, 11, COMMITTING)],
        ),
        (lost("a0", 0, 2, 3), [(0, 3, COMPUTING[End.CONFLICT][0])]),
        (
            [step(0, "intent", "d", "w"), step(4, "requested", "d", "w"), step(5, "completed", "d", "w")],
            [(0, 4, COMPUTING[End.COMMITTED][0]), (4, 5, COMMITTING)],
        ),
        ([step(0, "intent", "d", "w")], [(0, 20, COMPUTING[End.RUNNING][0])]),
    ],
    ids=[
        "committed",
        "lost, until its jobs have stopped",
        "committed without an agent",
        "running, to the end",
    ],
)
def test_an_attempt_is_drawn_in_its_phases(steps: list[Step], drawn: list[tuple[float, float, str]]) -> None:
    (attempt,) = attempts(*steps)

    assert [(part.begin, part.end, part.colour) for part in segments(attempt, 20)] == drawn


def test_each_time_line_shows_its_own_contest() -> None:
    optimistic = contest("optimistic", [*committed("d0", "departures", 0, 10), *lost("a0", 1, 3, 4)])
    auto = contest("auto", [*committed("d0", "departures", 0, 10), *committed("a0", "arrivals", 11, 8)])

    drawn = ET.fromstring(draw([optimistic, auto]))  # noqa: S314 - it is our own

    found = defaultdict(set)
    for each in drawn.iter("{http://www.w3.org/2000/svg}rect"):
        if each.get("height") == "50.0":
            found[float(each.get("x", 0)) > 780].add(each.get("fill"))
    green, red = COMPUTING[End.COMMITTED][0], COMPUTING[End.CONFLICT][0]
    assert found == {False: {green, WAITING, COMMITTING, red}, True: {green, WAITING, COMMITTING}}
    texts = {each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert {title([optimistic, auto]), caption(optimistic), caption(auto), "departures", "10 s", "0"} <= texts


def test_the_captions_name_the_figures_of_each_contest() -> None:
    optimistic = contest("optimistic", [*committed("d0", "departures", 0, 10), *lost("a0", 1, 3, 4)])
    auto = contest("auto", committed("d0", "departures", 0, 10))

    assert caption(optimistic) == "optimistic: 1 conflict, 3.0 s of compute wasted, 1 batches in 11 s"
    assert caption(auto) == "auto: no conflicts, 0.0 s of compute wasted, 1 batches in 11 s"
    assert title([optimistic, auto]) == (
        "Two streaming queries, one table: 1 conflict with optimistic admission, none with auto; no row lost"
    )


def test_a_picture_of_lost_rows_says_so() -> None:
    assert "3 rows lost or damaged" in title([contest("auto", check=LOST)])
    assert "3 rows lost or damaged, and no error" in title([contest(None, check=LOST)])


def test_a_run_without_transactions_is_drawn() -> None:
    assert "0 batches in 0 s" in draw([contest("auto")])


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

    assert check == TableCheck(len(rows), *found)
    assert check.clean == (found == (0, 0, 0))


def test_in_an_empty_table_every_row_is_missing() -> None:
    expected = expected_table(load_flights(days=2))

    assert compare(expected.schema.empty_table(), expected) == TableCheck(1785, 1785, 0, 0)
