from __future__ import annotations

from pathlib import Path

from PIL import Image

from lakewarden.agent.demo.picture import COMMITTING, COMPUTING, WAITING, draw, segments
from lakewarden.agent.demo.trace import Outcome, Trace
from tests.demo.scripted import BEGAN, committed, lost, step


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
    trace = Trace([*committed("d0", "departures", 0, 10), *lost("a0", 1, 3, 4)])

    path = draw(trace, tmp_path / "demo.png", "a title", "a subtitle")

    with Image.open(path) as image:
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 20) or ()}
    assert image.format == "PNG"
    assert image.width > 1000
    assert path.stat().st_size < 200_000
    for colour in (COMPUTING[Outcome.COMMITTED], COMPUTING[Outcome.CONFLICT], COMMITTING):
        assert tuple(bytes.fromhex(colour.removeprefix("#"))) in colours


def test_a_run_without_transactions_is_drawn(tmp_path: Path) -> None:
    assert draw(Trace(), tmp_path / "empty.png", "no transactions").exists()
