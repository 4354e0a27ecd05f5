"""A scripted run: the writers' steps, with round numbers."""

from __future__ import annotations

from typing import Any

from lakewarden.agent.attempts.trace import AttemptStep

TABLE = "file:///lake/demo.db/flights"
BEGAN = 1_700_000_000.0


def step(at: float, what: str, transaction: str, writer: str, batch: int = 0, **detail: Any) -> AttemptStep:
    """A writer's step, `at` seconds after the start of the run."""
    return AttemptStep(BEGAN + at, what, TABLE, writer, transaction, batch, 0, detail)


def committed(
    transaction: str, writer: str, began: float, computed: float, batch: int = 0
) -> list[AttemptStep]:
    """An attempt that is admitted immediately, computes, waits half a second for its grant, and commits."""
    requested = began + computed
    return [
        step(began, "intent", transaction, writer, batch),
        step(began, "admitted", transaction, writer, batch),
        step(requested, "requested", transaction, writer, batch),
        step(requested + 0.5, "granted", transaction, writer, batch),
        step(requested + 1.0, "completed", transaction, writer, batch),
    ]


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
