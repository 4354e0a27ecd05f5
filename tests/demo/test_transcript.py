from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from lakewarden.agent.demo.contest import Transcript, line_of
from tests.demo.scripted import committed, lost, step


def test_every_step_is_a_line_with_the_time_since_the_contest_began() -> None:
    for began in (0, 60):
        shown = io.StringIO()
        transcript = Transcript(Console(file=shown, width=100, color_system=None))
        steps = [
            *committed("d0", "departures", began, 4),
            *lost("a0", began + 1, began + 2, began + 2.25),
            *committed("a0b", "arrivals", began + 3, 4),
        ]
        for each in sorted(steps, key=lambda each: each.at):
            transcript.show(each)

        assert [attempt.transaction for attempt in transcript.trace.attempts] == ["d0", "a0", "a0b"]
        assert shown.getvalue().splitlines() == [
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


def test_a_first_attempt_that_is_queued_starts_and_a_retry_restarts() -> None:
    first = step(0, "intent", "a", "arrivals", admission="queued")
    again = replace(step(9, "intent", "b", "arrivals", admission="queued"), attempt=2)

    lines = [line_of(each, None) for each in (first, again)]

    assert [line and line[0] for line in lines] == [
        "starts, queued for admission",
        "restarts, queued for admission",
    ]
