from __future__ import annotations

from collections import defaultdict
from xml.etree import ElementTree as ET

import pytest

from lakewarden.agent.attempts.trace import (
    COMMITTING,
    COMPUTING,
    WAITING,
    AttemptOutcome,
    AttemptStep,
    segments,
)
from lakewarden.agent.demo.contest import TableCheck
from lakewarden.agent.demo.picture import caption, draw, title
from tests.demo.scripted import attempts, committed, contest, lost, step

LOST = TableCheck(10, 3, 0, 0)


@pytest.mark.parametrize(
    ("steps", "drawn"),
    [
        (
            committed("d0", "departures", 0, 10),
            [(0, 10, COMPUTING[AttemptOutcome.COMMITTED][0]), (10, 10.5, WAITING), (10.5, 11, COMMITTING)],
        ),
        (lost("a0", 0, 2, 3), [(0, 3, COMPUTING[AttemptOutcome.CONFLICT][0])]),
        (
            [step(0, "intent", "d", "w"), step(4, "requested", "d", "w"), step(5, "completed", "d", "w")],
            [(0, 4, COMPUTING[AttemptOutcome.COMMITTED][0]), (4, 5, COMMITTING)],
        ),
        ([step(0, "intent", "d", "w")], [(0, 20, COMPUTING[AttemptOutcome.RUNNING][0])]),
    ],
    ids=[
        "committed",
        "lost, until its jobs have stopped",
        "committed without an agent",
        "running, to the end",
    ],
)
def test_an_attempt_is_drawn_in_its_phases(
    steps: list[AttemptStep], drawn: list[tuple[float, float, str]]
) -> None:
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
    green, red = COMPUTING[AttemptOutcome.COMMITTED][0], COMPUTING[AttemptOutcome.CONFLICT][0]
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
