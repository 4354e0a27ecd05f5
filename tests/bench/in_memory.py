"""The conflict check in this process: two writers with 1,500 markers each. Without Kafka.

- incremental: the second writer's 1,500 markers arrive in 15 events of 100. A step adds an event to the index, checks it and
  decides. Measured with markers that are all different from the first writer's, and with an event whose markers all conflict.
- sweep: the check of the whole index, as after a replay.
- periodic: the periodic check, with the invariants.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from lakewarden.handlers.table.liveness import CaughtUp
from lakewarden.handlers.table.machine import EventRead, Replayed, Tick, step
from lakewarden.handlers.table.state import TableSettings, TableState
from lakewarden.handlers.table.verdicts import AbortTransaction
from tests.bench import writer_events

TABLE = f"{writer_events.TABLES}/in-memory"
MARKERS = 1_500
BATCH = 100


def measure(*, repetitions: int) -> dict[str, Any]:
    """Medians over the repetitions."""
    figures: dict[str, Any] = {"markers": MARKERS, "writers": 2, "batch": BATCH, "repetitions": repetitions}
    figures["incremental"] = _timed(lambda: _incremental(conflicting=False), MARKERS, repetitions)
    figures["incremental_all_conflicting"] = _timed(
        lambda: _incremental(conflicting=True), BATCH, repetitions
    )
    state = _two_writers()
    figures["sweep"] = _timed(lambda: _step_time(state, Replayed(0.0, 0)), 2 * MARKERS, repetitions)
    figures["periodic"] = _timed(
        lambda: _step_time(state, Tick(0.0, 0, CaughtUp(0.0, 0.0))), 2 * MARKERS, repetitions
    )
    return figures


def _timed(run: Callable[[], float], markers: int, repetitions: int) -> dict[str, float]:
    run()
    seconds = statistics.median(run() for _ in range(repetitions))
    return {"ms": round(seconds * 1e3, 4), "ns_per_marker": round(seconds * 1e9 / markers, 1)}


def _two_writers() -> TableState:
    state = _opened()
    for writer in ("first", "second"):
        _apply_all(state, _events(writer, 0 if writer == "first" else MARKERS))
    assert len(state.open()) == 2
    return state


def _incremental(*, conflicting: bool) -> float:
    """Seconds for the second writer's markers. If they conflict with the first writer's, its first event ends it."""
    state = _opened()
    _apply_all(state, _events("first", 0))
    events = _events("second", 0 if conflicting else MARKERS)[: 1 if conflicting else None]
    began = time.perf_counter()
    effects = _apply_all(state, events)
    seconds = time.perf_counter() - began
    assert any(isinstance(each, AbortTransaction) for each in effects) == conflicting
    return seconds


def _opened() -> TableState:
    state = TableState(TABLE, TableSettings())
    for offset, writer in enumerate(("first", "second")):
        step(state, EventRead(writer_events.intent_event(TABLE, writer), offset, 0.0, 0.0))
    return state


def _events(writer: str, start: int) -> list[EventRead]:
    return [
        EventRead(
            writer_events.markers_created_event(
                TABLE, writer, [writer_events.marker(n, n % 28) for n in range(first, first + BATCH)]
            ),
            10 + first,
            0.0,
            0.0,
        )
        for first in range(start, start + MARKERS, BATCH)
    ]


def _apply_all(state: TableState, events: list[EventRead]) -> list[object]:
    effects: list[object] = []
    for event in events:
        effects += step(state, event)
    return effects


def _step_time(state: TableState, input_: Replayed | Tick) -> float:
    began = time.perf_counter()
    step(state, input_)
    return time.perf_counter() - began
