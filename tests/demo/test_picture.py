from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from PIL import Image

from lakewarden.agent.attempts.segments import COMMITTING, COMPUTING, WAITING, segments
from lakewarden.agent.attempts.trace import Outcome, Step, Trace
from lakewarden.agent.demo.contest import Contest
from lakewarden.agent.demo.log import ConflictLog
from lakewarden.agent.demo.picture import caption, draw, title
from lakewarden.agent.demo.verification import TableCheck
from tests.demo.scripted import BEGAN, committed, conflict, lost, step


def test_an_attempt_is_drawn_in_its_phases() -> None:
    attempt = Trace(committed("d0", "departures", 0, 10)).attempts[0]

    drawn = [(part.begin - BEGAN, part.end - BEGAN, part.colour) for part in segments(attempt, BEGAN + 20)]

    assert drawn == [(0, 10, COMPUTING[Outcome.COMMITTED]), (10, 10.5, WAITING), (10.5, 11, COMMITTING)]


def test_a_losing_attempt_is_drawn_until_its_jobs_have_stopped() -> None:
    attempt = Trace(lost("a0", 1, 3, 4)).attempts[0]

    assert [(part.end - BEGAN, part.colour) for part in segments(attempt, BEGAN + 20)] == [
        (4, COMPUTING[Outcome.CONFLICT])
    ]


def test_a_commit_without_an_agent_is_drawn_as_a_commit() -> None:
    steps = [step(0, "intent", "d", "departures"), step(4, "requested", "d", "departures")]
    attempt = Trace([*steps, step(5, "completed", "d", "departures")]).attempts[0]

    assert [part.colour for part in segments(attempt, BEGAN + 5)] == [
        COMPUTING[Outcome.COMMITTED],
        COMMITTING,
    ]


def test_a_running_attempt_is_drawn_to_the_end_of_the_picture() -> None:
    attempt = Trace([step(0, "intent", "d", "departures")]).attempts[0]

    assert [part.end - BEGAN for part in segments(attempt, BEGAN + 9)] == [9]


def test_the_picture_is_a_readable_png_of_moderate_size(tmp_path: Path) -> None:
    optimistic = contest("optimistic", [*committed("d0", "departures", 0, 10), *lost("a0", 1, 3, 4)])
    auto = contest("auto", [*committed("d0", "departures", 0, 10), *committed("a0", "arrivals", 11, 8)])

    path = tmp_path / "demo.png"
    draw([optimistic, auto], path)

    with Image.open(path) as opened:
        image = opened.convert("RGB")
        halves = [
            image.crop((left, 0, left + image.width // 2, image.height)) for left in (0, image.width // 2)
        ]
        left, right = (colours_of(half) for half in halves)
    assert image.width > 1000
    assert path.stat().st_size < 200_000
    for colour in (COMPUTING[Outcome.COMMITTED], COMMITTING):
        assert colour in left & right
    red = COMPUTING[Outcome.CONFLICT]
    assert red in left, "the abort is drawn in the time line of its contest"
    assert red not in right


def colours_of(image: Image.Image) -> set[str]:
    found: Any = image.getcolors(1 << 20)
    return {f"#{bytes(colour).hex()}" for _, colour in found}


def contest(admission: str | None, steps: Iterable[Step] = (), *, missing: int = 0) -> Contest:
    check = TableCheck(10, 10 - missing, missing, 0, 0)
    trace = Trace(steps)
    victims = [attempt.transaction for attempt in trace.of(Outcome.CONFLICT)]
    return Contest(admission, trace, check, ConflictLog([conflict(3, victim, "d0") for victim in victims]))


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


def test_a_run_without_transactions_is_drawn(tmp_path: Path) -> None:
    draw([contest("auto")], tmp_path / "empty.png")

    assert (tmp_path / "empty.png").exists()
