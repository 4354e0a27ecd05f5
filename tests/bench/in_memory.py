"""The conflict check in this process: two writers with 1,500 markers each. Without Kafka.

- incremental: the second writer's 1,500 markers arrive in 15 events of 100. A step adds an event to the index, checks it and
  decides. Measured with markers that are all different from the first writer's, and with an event whose markers all conflict.
- sweep: the check of the whole index, as after a replay.
- periodic: the periodic check, with the invariants.
- event_beside_open: an event while so many others are open, all `queued` behind one, or all `ordered` and waiting for their turn:
  a heartbeat; one of a transaction of another place (`other`); one of the first one, which shares a place with all (`next`); the
  intent of one more (`joins`).
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from lakewarden.events import Abort, CommitCompleted, CommitIntent, CommitRequested, Marker, WriterHeartbeat
from lakewarden.handlers.table.liveness import CaughtUp
from lakewarden.handlers.table.machine import EventRead, LockConfirmed, Replayed, Tick, step
from lakewarden.handlers.table.state import LockView, TableSettings, TableState
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


OPEN = (10, 100, 999)
BEATS = 200


def measure_open(*, repetitions: int) -> dict[str, Any]:
    """CPU ms of one event, by admission and number of open transactions: medians over the repetitions."""
    return {
        kind: {
            str(others + 1): {
                name: round(statistics.median(each[name] for each in found) * 1e3, 4) for name in found[0]
            }
            for others in OPEN
            for found in [[_beside(kind, others) for _ in range(repetitions)]]
        }
        for kind in ("queued", "ordered")
    }


def _beside(kind: str, others: int) -> dict[str, float]:
    state = TableState(TABLE, TableSettings(max_open=2_000))
    offsets = iter(range(10**9))

    def run(name: str, event: Any, **fields: Any) -> float:
        made = event(**writer_events.common(TABLE, name), **fields)
        began = time.process_time()
        step(state, EventRead(made, next(offsets), 0.0, 0.0))
        return time.process_time() - began

    def ends(name: str) -> float:
        seconds = run(name, CommitRequested, seq=1)
        return seconds + run(name, CommitCompleted, grant=state.transactions[name].granted)

    bucket = (Marker(partition="p", file_group="bucket-0", operation="merge"),)
    rule = {"admission": "queued"} if kind == "queued" else {"conflict_rule": "ordered"}
    fields: dict[str, Any] = {"scope": bucket, **rule}
    for number in range(others + 1):
        run(f"T{number}", CommitIntent, **fields)
        if kind == "ordered" and number:
            run(f"T{number}", CommitRequested, seq=1)
    step(state, LockConfirmed(0.0, 0, LockView("agent", 1e9, 0.0)))
    gc.collect()
    gc.freeze()  # as an agent does (decision 51)
    beats = [run(f"T{number % others + 1}", WriterHeartbeat, seq=2) for number in range(BEATS)]
    other = [run("other", CommitIntent, scope=(Marker(partition="q", file_group="f", operation="merge"),))]
    other.append(ends("other"))
    return {
        "heartbeat": statistics.fmean(beats),
        "other": sum(other) / 3,
        "joins": statistics.fmean(run(f"J{number}", CommitIntent, **fields) for number in range(5)),
        "next": statistics.fmean(ends(f"T{number}") / 2 for number in range(min(5, others))),
    }


def open_rows(report: dict[str, dict[str, dict[str, float]]]) -> Iterator[tuple[str, str, str]]:
    """Title, figure and target of each row."""
    titles = {
        "heartbeat": "a heartbeat",
        "other": "a transaction of another place",
        "joins": "the intent of one more",
        "next": "the end of the first one",
    }
    for kind, sizes in report.items():
        for name, title in titles.items():
            figures = ", ".join(f"{figure[name]:.3f}" for figure in sizes.values())
            yield f"{title}, ms of CPU per event beside {', '.join(sizes)} {kind}", figures, "< 1 ms"


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
    assert any(isinstance(each, Abort) for each in effects) == conflicting
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
