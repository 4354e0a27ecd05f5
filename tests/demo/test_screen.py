from __future__ import annotations

import io

from rich.console import Console

from lakewarden.agent.demo.screen import Screen
from tests.demo.scripted import BEGAN, committed, lost


def played(*, terminal: bool) -> str:
    shown = io.StringIO()
    with Screen(Console(file=shown, force_terminal=terminal, width=100, color_system=None)) as screen:
        screen.note("starting")
        screen.expect("departures", 1)
        screen.expect("arrivals", 1)
        story = [
            *committed("d0", "departures", 0, 4),
            *lost("a0", 1, 2, 2.25),
            *committed("a0b", "arrivals", 3, 4),
        ]
        for step in sorted(story, key=lambda step: step.at):
            screen.tick(BEGAN + 10)
            screen.show(step)
    return shown.getvalue()


def test_without_a_terminal_every_event_is_a_plain_line() -> None:
    assert played(terminal=False).splitlines() == [
        "starting",
        "   0.0 s  departures batch 0   begins",
        "   1.0 s  arrivals   batch 0   begins",
        "   2.0 s  arrivals   batch 0   CONFLICT with departures on month=1/day=2",
        "   2.2 s  arrivals   batch 0   its Spark jobs are cancelled 0.25 s after the abort",
        "   3.0 s  arrivals   batch 0   begins",
        "   4.5 s  departures batch 0   commit granted after 0.50 s",
        "   5.0 s  departures batch 0   committed",
        "   7.5 s  arrivals   batch 0   commit granted after 0.50 s",
        "   8.0 s  arrivals   batch 0   committed",
    ]


def test_on_a_terminal_the_events_scroll_above_the_state_of_both_writers() -> None:
    shown = played(terminal=True)

    assert "CONFLICT with departures on month=1/day=2" in shown
    assert "batch 0: committed" in shown
    assert "1/1" in shown
