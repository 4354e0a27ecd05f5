from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from lakewarden.agent.attempts.trace import AttemptTrace
from lakewarden.agent.demo.contest import Contest
from lakewarden.agent.demo.report import Report
from lakewarden.agent.demo.verification import TableCheck
from tests.demo.scripted import committed, lost, step

CLEAN = TableCheck(10, 10, 0, 0, 0)


@pytest.fixture
def trace() -> AttemptTrace:
    return AttemptTrace(
        [
            *committed("d0", "departures", 0, 10),
            *committed("d1", "departures", 19, 10),
            *lost("a0", 1, 3.2, 3.5),
            *committed("a0b", "arrivals", 12, 4),
            *lost("a1", 18, 23.2, 24.0),
            *committed("a1b", "arrivals", 31, 6),
            *committed("a2", "arrivals", 40, 8),
        ]
    )


def test_computed_in_vain_is_the_time_until_the_jobs_of_the_losers_stopped(trace: AttemptTrace) -> None:
    assert Contest("auto", trace, CLEAN).wasted_seconds == pytest.approx(8.5)


def test_time_in_the_queue_or_while_it_waited_for_its_grant_is_not_computed_in_vain() -> None:
    queued = [step(0, "intent", "a", "arrivals"), *lost("a", 5, 12, 12.5)[1:]]

    contest = Contest("auto", AttemptTrace([*queued, step(11, "requested", "a", "arrivals")]), CLEAN)

    assert contest.wasted_seconds == pytest.approx(6.0)


def report(contest: Contest, *more: Contest) -> Report:
    return Report(
        (contest, *more),
        seconds=61.2,
        picture=Path("/tmp/demo.svg"),
        notes=("the arrivals query ended with code 1",),
    )


@pytest.fixture
def optimistic(trace: AttemptTrace) -> Contest:
    return Contest("optimistic", trace, CLEAN, {"departures": 0, "arrivals": 1})


@pytest.fixture
def auto() -> Contest:
    return Contest("auto", AttemptTrace(committed("d0", "departures", 0, 10)), CLEAN)


def printed(report: Report) -> str:
    console = Console(width=140, record=True, quiet=False, file=None, highlight=False, soft_wrap=False)
    with console.capture() as captured:
        report.print(console)
    return captured.get()


def test_the_json_report_is_one_object_with_the_figures_of_each_contest(
    optimistic: Contest, auto: Contest
) -> None:
    text = report(optimistic, auto).as_json()

    assert "\n" not in text
    found = json.loads(text)
    assert list(found) == ["contests", "picture", "with_agent", "seconds", "notes"]
    assert (found["picture"], found["with_agent"], found["seconds"]) == ("/tmp/demo.svg", True, 61.2)
    first, second = found["contests"]
    assert list(first) == [
        "admission",
        "expected",
        "present",
        "missing",
        "duplicated",
        "wrong",
        "conflicts",
        "wasted_seconds",
        "batches",
        "restarts",
        "compactions",
        "seconds",
    ]
    assert (first["admission"], first["conflicts"], first["wasted_seconds"]) == ("optimistic", 2, 8.5)
    assert first["restarts"] == {"departures": 0, "arrivals": 1}
    assert (second["admission"], second["conflicts"], second["wasted_seconds"]) == ("auto", 0, 0.0)
    assert (second["batches"], second["seconds"]) == (1, 11.0)


def test_the_text_report_has_a_column_for_each_contest(optimistic: Contest, auto: Contest) -> None:
    lines = {
        line[:19].strip(): line[19:].split()[:2] for line in printed(report(optimistic, auto)).splitlines()
    }

    assert lines["admission"] == ["optimistic", "auto"]
    assert lines["conflicts"] == ["2", "0"]
    assert lines["rows wrong"] == ["0", "0"]
    assert lines["batches committed"] == ["5", "1"]
    assert lines["contest time"] == ["49", "s"]


def test_the_text_report_states_that_no_row_was_lost_and_lists_restarts_and_notes(
    optimistic: Contest,
) -> None:
    text = printed(report(optimistic))

    assert "All 10 rows are present exactly once and correct." in text
    assert "restarted after a failure: arrivals 1 time" in text
    assert "note: the arrivals query ended with code 1" in text


def test_rows_lost_in_one_of_the_contests_are_not_hidden_by_the_other(
    optimistic: Contest, auto: Contest
) -> None:
    damaged = replace(auto, check=TableCheck(10, 9, 1, 0, 0))

    found = report(optimistic, damaged)

    assert not found.clean
    assert "1 of 20 rows are lost or damaged. This is a bug of lakewarden" in printed(found)


def test_the_text_report_without_an_agent_states_how_many_rows_of_which_feed_were_lost() -> None:
    check = TableCheck(10, 9, 1, 0, 3, {"departures": 0, "arrivals": 3})

    text = printed(report(Contest(None, AttemptTrace(), check)))

    assert "3 with wrong values from arrivals" in text
    assert "4 of 10 rows are lost or damaged." in text
    assert "conflicts" not in text
