from __future__ import annotations

import json
from pathlib import Path

import pytest

from lakewarden.agent.attempts.trace import AttemptOutcome, AttemptStep, AttemptTrace, StepsFile
from lakewarden.agent.demo.contest import line_of, overlaps
from tests.demo.scripted import BEGAN, committed, lost, step


@pytest.mark.parametrize(
    "steps, outcome",
    [
        (["intent", "admitted", "requested", "granted", "completed"], AttemptOutcome.COMMITTED),
        (["intent", "admitted", "requested", "granted", "abort", "completed"], AttemptOutcome.COMMITTED),
        (["intent", "already-committed"], AttemptOutcome.SKIPPED),
        (["intent", "admitted", "abort", "jobs-stopped"], AttemptOutcome.CONFLICT),
        (["intent", "admitted", "failed"], AttemptOutcome.FAILED),
        (["intent", "admitted", "abandoned"], AttemptOutcome.ABORTED),
        (["intent", "admitted", "markers"], AttemptOutcome.RUNNING),
    ],
)
def test_the_outcome_of_an_attempt_follows_from_its_steps(steps: list[str], outcome: AttemptOutcome) -> None:
    trace = AttemptTrace(step(at, what, "t", "arrivals") for at, what in enumerate(steps))

    assert [attempt.outcome for attempt in trace.attempts] == [outcome]


def test_an_abort_for_another_reason_is_not_a_conflict() -> None:
    trace = AttemptTrace(
        [step(0, "intent", "t", "arrivals"), step(1, "abort", "t", "arrivals", reason="lease-lost")]
    )

    assert trace.attempts[0].outcome is AttemptOutcome.ABORTED


def test_steps_of_two_writers_are_ordered_by_time() -> None:
    trace = AttemptTrace([*lost("a0", 1, 3, 4), *committed("d0", "departures", 0, 5)])

    assert [attempt.writer for attempt in trace.attempts] == ["departures", "arrivals"]
    assert trace.attempts[1].winner == "departures"


def test_a_line_is_read_when_its_newline_is_written(tmp_path: Path) -> None:
    """The writer may have written half a line when the file is read."""
    path = tmp_path / "events.jsonl"
    line = json.dumps({"at": 1.5, "what": "intent", "transaction": "t", "writer": "w:5f3a", "new": "field"})
    steps = StepsFile(path)

    assert list(steps.read_new()) == []
    path.write_text(line[:10])
    assert list(steps.read_new()) == []
    path.write_text(line + "\n")
    assert list(steps.read_new()) == [AttemptStep(1.5, "intent", "", "w", "t", None, 0)]
    assert list(steps.read_new()) == []


def test_the_line_of_a_conflict_names_the_other_writer_and_the_partition() -> None:
    trace = AttemptTrace()
    lines = [line_of(each, trace.add(each)) for each in lost("a0", 1, 3, 3.25)]

    assert [line[0] for line in lines if line] == [
        "starts",
        "aborted: CONFLICT with departures on month=1/day=2",
        "Spark jobs stopped 0.25 s after the abort",
    ]


def test_the_lines_of_a_queued_attempt_say_how_long_it_was_queued() -> None:
    steps = [
        step(0, "intent", "t", "arrivals", admission="queued"),
        step(4.4, "admitted", "t", "arrivals"),
    ]
    trace = AttemptTrace()

    lines = [line_of(each, trace.add(each)) for each in steps]

    assert [line[0] for line in lines if line] == [
        "starts, queued for admission",
        "admitted after 4.4 s in the queue",
    ]


def test_many_overlaps_are_shortened() -> None:
    assert overlaps([(f"day={day}", "*") for day in range(5)]) == "day=0, day=1 and 3 more"
    assert overlaps([("day=0", "file-1")]) == "day=0 file-1"


def test_a_running_attempt_has_no_end() -> None:
    attempt = AttemptTrace([step(2, "intent", "t", "w")]).attempts[0]

    assert attempt.ended is None
    assert attempt.started == BEGAN + 2
