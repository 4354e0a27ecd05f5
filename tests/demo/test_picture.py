from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from xml.etree import ElementTree as ET

from lakewarden.agent.attempts.segments import COMMITTING, COMPUTING, WAITING, segments
from lakewarden.agent.attempts.trace import AttemptOutcome, AttemptStep, AttemptTrace
from lakewarden.agent.demo.contest import Contest
from lakewarden.agent.demo.picture import caption, draw, title
from lakewarden.agent.demo.verification import TableCheck
from tests.demo.scripted import BEGAN, committed, lost, step


def test_an_attempt_is_drawn_in_its_phases() -> None:
    attempt = AttemptTrace(committed("d0", "departures", 0, 10)).attempts[0]

    drawn = [(part.begin - BEGAN, part.end - BEGAN, part.colour) for part in segments(attempt, BEGAN + 20)]

    assert drawn == [
        (0, 10, COMPUTING[AttemptOutcome.COMMITTED]),
        (10, 10.5, WAITING),
        (10.5, 11, COMMITTING),
    ]


def test_a_losing_attempt_is_drawn_until_its_jobs_have_stopped() -> None:
    attempt = AttemptTrace(lost("a0", 1, 3, 4)).attempts[0]

    assert [(part.end - BEGAN, part.colour) for part in segments(attempt, BEGAN + 20)] == [
        (4, COMPUTING[AttemptOutcome.CONFLICT])
    ]


def test_a_commit_without_an_agent_is_drawn_as_a_commit() -> None:
    steps = [step(0, "intent", "d", "departures"), step(4, "requested", "d", "departures")]
    attempt = AttemptTrace([*steps, step(5, "completed", "d", "departures")]).attempts[0]

    assert [part.colour for part in segments(attempt, BEGAN + 5)] == [
        COMPUTING[AttemptOutcome.COMMITTED],
        COMMITTING,
    ]


def test_a_running_attempt_is_drawn_to_the_end_of_the_picture() -> None:
    attempt = AttemptTrace([step(0, "intent", "d", "departures")]).attempts[0]

    assert [part.end - BEGAN for part in segments(attempt, BEGAN + 9)] == [9]


def test_each_time_line_shows_its_own_contest() -> None:
    optimistic = contest("optimistic", [*committed("d0", "departures", 0, 10), *lost("a0", 1, 3, 4)])
    auto = contest("auto", [*committed("d0", "departures", 0, 10), *committed("a0", "arrivals", 11, 8)])

    drawn = ET.fromstring(draw([optimistic, auto]))  # noqa: S314 - it is our own

    found = defaultdict(set)
    for each in drawn.iter("{http://www.w3.org/2000/svg}rect"):
        if each.get("height") == "50.0":
            found[float(each.get("x", 0)) > 780].add(each.get("fill"))
    green, red = COMPUTING[AttemptOutcome.COMMITTED], COMPUTING[AttemptOutcome.CONFLICT]
    assert found == {False: {green, WAITING, COMMITTING, red}, True: {green, WAITING, COMMITTING}}
    texts = {each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert {title([optimistic, auto]), caption(optimistic), caption(auto), "departures", "10 s", "0"} <= texts


def contest(admission: str | None, steps: Iterable[AttemptStep] = (), *, missing: int = 0) -> Contest:
    return Contest(admission, AttemptTrace(steps), TableCheck(10, 10 - missing, missing, 0, 0))


def test_the_captions_name_the_figures_of_each_contest() -> None:
    optimistic = contest("optimistic", [*committed("d0", "departures", 0, 10), *lost("a0", 1, 3, 4)])
    auto = contest("auto", committed("d0", "departures", 0, 10))

    assert caption(optimistic) == "optimistic: 1 conflict, 3.0 s computed in vain, 1 batches in 11 s"
    assert caption(auto) == "auto: no conflicts, 0.0 s computed in vain, 1 batches in 11 s"
    assert title([optimistic, auto]) == (
        "Two streaming queries, one table: 1 conflict with optimistic admission, none with auto; no row lost"
    )


def test_a_picture_of_lost_rows_says_so() -> None:
    assert "3 rows lost or damaged" in title([contest("auto", missing=3)])
    assert "3 rows lost or damaged, and no error" in title([contest(None, missing=3)])


def test_a_run_without_transactions_is_drawn() -> None:
    assert "0 batches in 0 s" in draw([contest("auto")])
