from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from lakewarden.agent.attempts.trace import Trace
from lakewarden.agent.demo.contest import Contest
from lakewarden.agent.demo.figures import (
    Stops,
    conflict_times,
    discrepancies,
    stop_seconds,
    waste,
)
from lakewarden.agent.demo.log import ConflictLog
from lakewarden.agent.demo.report import Report
from lakewarden.agent.demo.verification import TableCheck
from tests.demo.scripted import BEGAN, committed, conflict, lost, marked, step


@pytest.fixture
def log() -> ConflictLog:
    """Two conflicts. The first starts with the loser's marker, the second with the winner's."""
    return ConflictLog(
        conflicts=[conflict(3.1, "a0", "d0"), conflict(23.1, "a1", "d1")],
        writer_events=[
            marked(1, "d0", "departures"),
            marked(3, "a0", "arrivals"),
            marked(3.05, "a0", "arrivals", "month=1/day=9"),
            marked(20, "a1", "arrivals"),
            marked(23, "d1", "departures"),
        ],
    )


@pytest.fixture
def trace() -> Trace:
    return Trace(
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


def test_a_conflict_starts_when_the_later_of_its_two_markers_is_published(log: ConflictLog) -> None:
    assert conflict_times(log) == {"a0": BEGAN + 3, "a1": BEGAN + 23}


def test_the_time_to_stop_is_from_the_later_marker_to_the_end_of_the_jobs(
    trace: Trace, log: ConflictLog
) -> None:
    stops = stop_seconds(trace, log)

    assert stops.timed == 2
    assert stops.p50 == pytest.approx(0.75)
    assert stops.max == pytest.approx(1.0)


def test_without_a_conflict_there_is_no_time_to_stop() -> None:
    assert stop_seconds(Trace(), ConflictLog()) == Stops(None, None, 0)


def test_saved_time_is_the_writers_usual_time_minus_the_time_until_it_was_stopped(trace: Trace) -> None:
    """The median of arrivals' 4, 6 and 8 s is 6 s. Stopped after 2.5 s and after 6.0 s, it saves 3.5 s and 0 s."""
    wasted = waste(trace)

    assert wasted.spent == pytest.approx(8.5)
    assert wasted.saved == pytest.approx(3.5)


def test_time_in_the_queue_counts_neither_as_spent_nor_as_usual_time() -> None:
    queued = [
        step(0, "intent", "b", "arrivals"),
        step(100, "admitted", "b", "arrivals"),
        step(104, "requested", "b", "arrivals"),
        step(105, "completed", "b", "arrivals"),
    ]

    wasted = waste(Trace([*lost("a", 0, 0.5, 1), *queued]))

    assert (wasted.spent, wasted.saved) == pytest.approx((1.0, 3.0))


def test_an_attempt_stopped_while_it_waited_for_its_grant_saves_nothing() -> None:
    waiting = [*lost("a", 0, 7, 7.5), step(6, "requested", "a", "arrivals")]

    wasted = waste(Trace([*waiting, *committed("b", "arrivals", 10, 5)]))

    assert wasted.spent == pytest.approx(6.0)
    assert wasted.saved == 0.0


def test_a_writer_without_a_committed_attempt_saves_nothing() -> None:
    assert waste(Trace(lost("a", 0, 1, 2))).saved == 0.0


def test_sources_that_agree_produce_no_note(trace: Trace, log: ConflictLog) -> None:
    assert discrepancies([(trace, log), (Trace(), ConflictLog())], {"a0", "a1"}) == []


def test_sources_that_disagree_are_noted(log: ConflictLog) -> None:
    notes = discrepancies([(Trace(lost("a0", 1, 3.2, 3.5)), log)], None)

    assert notes == [
        "conflicts topic and writers disagree: 2 published, 1 received by writers, 1 in both",
        "conflicts topic and the third query disagree: 2 published, nothing in its Parquet files",
    ]


def test_jobs_that_did_not_stop_in_time_are_noted_and_excluded(log: ConflictLog) -> None:
    """The gate waits for Spark's jobs for a limited time; the end of that wait is not the end of the jobs."""
    running = [*lost("a0", 1, 3.2, 18.2)[:-1], step(18.2, "jobs-stopped", "a0", "arrivals", gone=False)]
    trace = Trace([*running, *lost("a1", 18, 23.2, 24.0)])

    assert stop_seconds(trace, log).timed == 1
    assert discrepancies([(trace, log)], {"a0", "a1"}) == [
        "Spark jobs of 1 aborted attempts did not stop in time; the figures exclude them"
    ]


def test_no_conflict_and_no_parquet_agree() -> None:
    assert discrepancies([(Trace(), ConflictLog())], None) == []


def report(contest: Contest, *more: Contest) -> Report:
    return Report(
        (contest, *more),
        seconds=61.2,
        picture=Path("/tmp/demo.png"),
        notes=("the arrivals query ended with code 1",),
    )


CLEAN = TableCheck(10, 10, 0, 0, 0)


@pytest.fixture
def optimistic(trace: Trace, log: ConflictLog) -> Contest:
    return Contest("optimistic", trace, CLEAN, log, {"departures": 0, "arrivals": 1})


@pytest.fixture
def auto() -> Contest:
    return Contest("auto", Trace(committed("d0", "departures", 0, 10)), CLEAN, ConflictLog(), {})


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
    assert (found["picture"], found["with_agent"], found["seconds"]) == ("/tmp/demo.png", True, 61.2)
    first, second = found["contests"]
    assert list(first) == [
        "admission",
        "expected",
        "present",
        "missing",
        "duplicated",
        "wrong",
        "conflicts",
        "stop_seconds",
        "saved_writer_seconds",
        "spent_writer_seconds",
        "batches",
        "restarts",
        "compactions",
        "seconds",
    ]
    assert (first["admission"], first["conflicts"], first["spent_writer_seconds"]) == ("optimistic", 2, 8.5)
    assert first["stop_seconds"] == {"p50": 0.75, "max": 1.0}
    assert first["restarts"] == {"departures": 0, "arrivals": 1}
    assert (second["admission"], second["conflicts"], second["spent_writer_seconds"]) == ("auto", 0, 0.0)
    assert (second["batches"], second["seconds"]) == (1, 11.0)


def test_the_text_report_has_a_column_for_each_contest(optimistic: Contest, auto: Contest) -> None:
    lines = {
        line[:22].strip(): line[22:].split()[:2] for line in printed(report(optimistic, auto)).splitlines()
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

    text = printed(report(Contest(None, Trace(), check)))

    assert "3 with wrong values from arrivals" in text
    assert "4 of 10 rows are lost or damaged." in text
    assert "conflicts" not in text
