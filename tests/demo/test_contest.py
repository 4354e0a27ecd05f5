"""The lines, the figures and the report of a scripted contest."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from lakewarden.agent.attempts.trace import COMPUTING, AttemptOutcome
from lakewarden.agent.demo.contest import TableCheck, Transcript, overlaps, report_lines, step_of
from lakewarden.spark_jobs.gate.observer import EMPTY
from tests.demo.scripted import attempts, committed, contest, lost, step

COLLIDED = [
    *committed("d0", "departures", 0, 10),
    *committed("d1", "departures", 19, 10),
    *lost("a0", 1, 3.2, 3.5),
    *committed("a0b", "arrivals", 12, 4),
    *lost("a1", 18, 23.2, 24.0),
    *committed("a1b", "arrivals", 31, 6),
    *committed("a2", "arrivals", 40, 8),
]


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
    (found,) = attempts(*(step(at, what, "t", "arrivals") for at, what in enumerate(steps)))

    assert found.outcome is outcome
    assert (found.ended is None) is (outcome is AttemptOutcome.RUNNING)


@pytest.mark.parametrize(
    "reason, outcome",
    [
        ("BaseChanged: a writer that bypasses the gate committed …", AttemptOutcome.BYPASSED),
        (EMPTY, AttemptOutcome.EMPTY),
        ("left without commit()", AttemptOutcome.ABORTED),
    ],
)
def test_the_outcome_of_an_abandoned_attempt_follows_from_the_reason(
    reason: str, outcome: AttemptOutcome
) -> None:
    steps = [step(0, "intent", "t", "arrivals"), step(1, "abandoned", "t", "arrivals", reason=reason)]

    assert attempts(*steps)[0].outcome is outcome
    assert outcome in COMPUTING


def test_an_abort_for_another_reason_is_not_a_conflict() -> None:
    steps = [step(0, "intent", "t", "arrivals"), step(1, "abort", "t", "arrivals", reason="lease-lost")]

    assert attempts(*steps)[0].outcome is AttemptOutcome.ABORTED


def test_every_step_is_a_line_with_the_time_since_the_contest_began() -> None:
    for began in (0, 60):
        shown: list[str] = []
        transcript = Transcript(shown.append)
        steps = [
            *committed("d0", "departures", began, 4),
            *lost("a0", began + 1, began + 2, began + 2.25),
            *committed("a0b", "arrivals", began + 3, 4),
        ]
        for each in sorted(steps, key=lambda each: each.at):
            transcript.add(each)

        assert [attempt.transaction for attempt in transcript.attempts] == ["d0", "a0", "a0b"]
        assert shown == [
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


def test_a_queued_attempt_says_how_long_it_was_queued_and_a_retry_that_it_restarts() -> None:
    shown: list[str] = []
    transcript = Transcript(shown.append)
    for each in (
        step(0, "intent", "a", "arrivals", admission="queued"),
        step(4.4, "admitted", "a", "arrivals"),
        replace(step(9, "intent", "b", "arrivals", admission="queued"), attempt=2),
    ):
        transcript.add(each)

    assert [line[31:] for line in shown] == [
        "starts, queued for admission",
        "admitted after 4.4 s in the queue",
        "restarts, queued for admission",
    ]


def test_a_printed_step_is_read_with_the_configured_name_of_its_writer() -> None:
    found = step(1.5, "intent", "t", "arrivals:5f3a")

    assert step_of(json.dumps(asdict(found))) == replace(found, writer="arrivals")


def test_many_overlaps_are_shortened() -> None:
    assert overlaps([(f"day={day}", "*") for day in range(5)]) == "day=0, day=1 and 3 more"
    assert overlaps([("day=0", "file-1")]) == "day=0 file-1"


def test_computed_in_vain_is_the_time_until_the_jobs_of_the_losers_stopped() -> None:
    queued = [step(0, "intent", "a", "arrivals"), *lost("a", 5, 12, 12.5)[1:]]

    assert contest("auto", COLLIDED).wasted_seconds == pytest.approx(8.5)
    # Neither the time in the queue nor that after the request for the grant.
    late = contest("auto", [*queued, step(11, "requested", "a", "arrivals")])
    assert late.wasted_seconds == pytest.approx(6.0)


def test_the_report_has_a_column_for_each_contest_and_lists_restarts() -> None:
    optimistic = replace(contest("optimistic", COLLIDED), restarts={"departures": 0, "arrivals": 1})
    auto = contest("auto", committed("d0", "departures", 0, 10))

    *lines, verdict = report_lines([optimistic, auto], 61.2)

    assert {line[:19].strip(): line[19:].split()[:2] for line in lines} == {
        "admission": ["optimistic", "auto"],
        "rows expected": ["10", "10"],
        "rows missing": ["0", "0"],
        "rows duplicated": ["0", "0"],
        "rows wrong": ["0", "0"],
        "batches committed": ["5", "1"],
        "conflicts": ["2", "0"],
        "compute wasted": ["8.5", "s"],
        "contest time": ["49", "s"],
    }
    assert "restarted after a failure: arrivals 1×" in lines[5]
    assert verdict == "All 10 rows are present exactly once and correct in each table."


def test_rows_lost_in_one_of_the_contests_are_not_hidden_by_the_other() -> None:
    damaged = contest("auto", check=TableCheck(10, 1, 0, 0))

    *_, verdict = report_lines([contest("optimistic"), damaged], 1)

    assert verdict.startswith("1 of 20 rows are lost or damaged. A bug of lakewarden")


def test_the_report_without_an_agent_says_how_many_rows_were_lost_and_nothing_of_conflicts() -> None:
    *lines, verdict = report_lines([contest(None, check=TableCheck(10, 1, 0, 3))], 1)

    assert verdict.startswith("4 of 10 rows are lost or damaged. The queries reported no error")
    assert "conflicts" not in "".join(lines)
    *_, lucky = report_lines([contest(None)], 1)
    assert lucky.endswith("Without an agent this is chance.")
