from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from lakewarden.agent.demo.narration import line_for_step
from lakewarden.agent.demo.screen import Screen
from tests.demo.scripted import BEGAN, committed, lost, step


def output_of_a_run(*, terminal: bool) -> str:
    shown = io.StringIO()
    with Screen(Console(file=shown, force_terminal=terminal, width=100, color_system=None)) as screen:
        screen.note("starting")
        screen.expect("departures", 1)
        screen.expect("arrivals", 1)
        steps = [
            *committed("d0", "departures", 0, 4),
            *lost("a0", 1, 2, 2.25),
            *committed("a0b", "arrivals", 3, 4),
        ]
        for each in sorted(steps, key=lambda each: each.at):
            screen.tick(BEGAN + 10)
            screen.show(each)
    return shown.getvalue()


def test_without_a_terminal_every_step_is_a_plain_line() -> None:
    assert output_of_a_run(terminal=False).splitlines() == [
        "starting",
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


def test_on_a_terminal_the_lines_are_above_the_state_of_both_writers() -> None:
    shown = output_of_a_run(terminal=True)

    assert "aborted: CONFLICT with departures on month=1/day=2" in shown
    assert "batch 0: committed" in shown
    assert "1/1" in shown


def test_a_contest_has_a_trace_and_a_time_of_its_own() -> None:
    shown = io.StringIO()
    with Screen(Console(file=shown, width=100, color_system=None)) as screen:
        traces = []
        for began in (0, 60):
            traces.append(screen.begin())
            screen.expect("departures", 1)
            for each in committed(f"d{began}", "departures", began, 4):
                screen.show(each)

    assert [[attempt.transaction for attempt in trace.attempts] for trace in traces] == [["d0"], ["d60"]]
    assert [line[:8].strip() for line in shown.getvalue().splitlines()] == ["0.0 s", "4.5 s", "5.0 s"] * 2


def test_a_first_attempt_that_is_queued_starts_and_a_retry_restarts() -> None:
    first = step(0, "intent", "a", "arrivals", admission="queued")
    again = replace(step(9, "intent", "b", "arrivals", admission="queued"), attempt=2)

    lines = [line_for_step(each, None) for each in (first, again)]

    assert [line and line.text for line in lines] == [
        "starts, queued for admission",
        "restarts, queued for admission",
    ]
