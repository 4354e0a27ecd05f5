"""A scripted run: the writers' steps, with round numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lakewarden.agent.attempts.trace import Attempt, AttemptStep
from lakewarden.agent.demo.contest import Contest, TableCheck, Transcript

BEGAN = 1_700_000_000.0
CLEAN = TableCheck(10, 0, 0, 0)


def step(at: float, what: str, transaction: str, writer: str, batch: int = 0, **detail: Any) -> AttemptStep:
    """A writer's step, `at` seconds after the start of the run."""
    return AttemptStep(BEGAN + at, what, "file:///lake/t", writer, transaction, batch, 0, detail)


def committed(
    transaction: str, writer: str, began: float, computed: float, batch: int = 0
) -> list[AttemptStep]:
    """An attempt that is admitted immediately, computes, waits half a second for its grant, and commits."""
    requested = began + computed
    times = {"intent": began, "admitted": began, "requested": requested}
    times |= {"granted": requested + 0.5, "completed": requested + 1.0}
    return [step(at, what, transaction, writer, batch) for what, at in times.items()]


def lost(transaction: str, began: float, aborted: float, stopped: float) -> list[AttemptStep]:
    """An attempt of `arrivals` that receives an abort and stops a little later."""
    detail: dict[str, Any] = {
        "reason": "conflict",
        "others": ["departures:0b1c"],
        "conflicts": [["month=1/day=2", "*"]],
    }
    return [
        step(began, "intent", transaction, "arrivals"),
        step(began, "admitted", transaction, "arrivals"),
        step(aborted, "abort", transaction, "arrivals", **detail),
        step(stopped, "jobs-stopped", transaction, "arrivals"),
    ]


def attempts(*steps: AttemptStep) -> tuple[Attempt, ...]:
    transcript = Transcript(lambda _: None)
    for each in sorted(steps, key=lambda each: each.at):
        transcript.add(each)
    return transcript.attempts


def contest(admission: str | None, steps: Iterable[AttemptStep] = (), check: TableCheck = CLEAN) -> Contest:
    return Contest(admission, attempts(*steps), check)
