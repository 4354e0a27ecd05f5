"""The conflict check in this process: two writers with 1,500 markers each. Without Kafka.

- incremental: the second writer's 1,500 markers arrive in 15 events of 100. A step adds an event to the index, checks it and
  decides. Measured with markers that are all different from the first writer's, and with an event whose markers all conflict.
- sweep: the check of the whole index, as after a replay.
- periodic: the periodic check, with the invariants.
- beside: an event while so many others are open, all `queued` behind one, or all `ordered` and waiting for their turn. The event
  is a heartbeat; one of a transaction of another place (`other`); one of the first one, which shares a place with all (`next`);
  the intent of one more (`joins`).
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator
from typing import Any

from lakewarden.events import Abort, Marker, WriterHeartbeat
from lakewarden.handlers.table.liveness import CaughtUp
from lakewarden.handlers.table.machine import Replayed, Tick
from lakewarden.handlers.table.state import TableSettings
from tests.bench.core import TABLE, Core
from tests.bench.figures import medians
from tests.bench.run import Figures, Run
from tests.bench.writer_events import common, intent, marker, requested, touched

MARKERS = 1_500
BATCH = 100
OPEN = (10, 100, 999)
BEATS = 200
BESIDE_RUNS = 3


def measure(run: Run) -> Figures:
    """Medians over the repetitions."""
    both = _first_writer()
    _touch(both, "second", MARKERS, MARKERS)
    assert len(both.state.open()) == 2
    timed: dict[str, tuple[Callable[[], float], int]] = {
        "incremental": (lambda: _incremental(conflicting=False), MARKERS),
        "incremental_all_conflicting": (lambda: _incremental(conflicting=True), BATCH),
        "sweep": (lambda: both.step(Replayed(0.0, 0)), 2 * MARKERS),
        "periodic": (lambda: both.step(Tick(0.0, 0, CaughtUp(0.0, 0.0))), 2 * MARKERS),
    }
    report: Figures = {}
    for name, (once, markers) in timed.items():
        once()
        seconds = statistics.median(once() for _ in range(run.size.checks))
        report[name] = {"ms": round(seconds * 1e3, 4), "ns_per_marker": round(seconds * 1e9 / markers, 1)}
    report["beside"] = {
        kind: {
            str(others + 1): medians([_beside(kind, others) for _ in range(BESIDE_RUNS)], 4)
            for others in OPEN
        }
        for kind in ("queued", "ordered")
    }
    return report


def _beside(kind: str, others: int) -> dict[str, float]:
    """Milliseconds of an event."""
    core = Core(TableSettings(max_open=2_000))

    def end(name: str) -> float:
        return sum(core.commit(name))

    bucket = (Marker(partition="p", file_group="bucket-0", operation="merge"),)
    elsewhere = (Marker(partition="q", file_group="f", operation="merge"),)
    rule = {"admission": "queued"} if kind == "queued" else {"conflict_rule": "ordered"}
    fields: dict[str, Any] = {"scope": bucket, **rule}
    for number in range(others + 1):
        core.read(intent(TABLE, f"T{number}", **fields))
        if kind == "ordered" and number:
            core.read(requested(TABLE, f"T{number}"))
    core.lock()
    gc.collect()
    gc.freeze()  # as an agent does (decision 51)
    beats = [
        core.read(WriterHeartbeat(**common(TABLE, f"T{number % others + 1}"), seq=2))
        for number in range(BEATS)
    ]
    other = core.read(intent(TABLE, "other", scope=elsewhere)) + end("other")
    seconds = {
        "heartbeat": statistics.fmean(beats),
        "other": other / 3,
        "joins": statistics.fmean(core.read(intent(TABLE, f"J{number}", **fields)) for number in range(5)),
        "next": statistics.fmean(end(f"T{number}") / 2 for number in range(min(5, others))),
    }
    return {name: each * 1e3 for name, each in seconds.items()}


def rows(report: Figures) -> Iterator[tuple[str, str, str]]:
    """Title, figure and target of each row."""
    titles = {
        "incremental": ("check of 1,500 markers as they arrive", "< 1 ms"),
        "incremental_all_conflicting": ("  an event of 100 markers that all conflict", ""),
        "sweep": ("check of all 2 × 1,500 markers at once", "< 1 ms"),
        "periodic": ("periodic check with the invariants of these", "< 1 ms"),
    }
    for name, (title, aim) in titles.items():
        yield title, f"{report[name]['ms']:.3f} ms, {report[name]['ns_per_marker']:.0f} ns per marker", aim
    events = {
        "heartbeat": "a heartbeat",
        "other": "a transaction of another place",
        "joins": "the intent of one more",
        "next": "the end of the first one",
    }
    for kind, sizes in report["beside"].items():
        for name, title in events.items():
            figures = ", ".join(f"{figure[name]:.3f}" for figure in sizes.values())
            yield f"{title}, ms of CPU per event beside {', '.join(sizes)} {kind}", figures, "< 1 ms"


def _incremental(*, conflicting: bool) -> float:
    """Seconds for the second writer's markers. If they conflict with the first writer's, its first event ends it."""
    core = _first_writer()
    seconds = _touch(core, "second", *((0, BATCH) if conflicting else (MARKERS, MARKERS)))
    assert any(isinstance(each, Abort) for each in core.effects) == conflicting
    return seconds


def _first_writer() -> Core:
    core = Core()
    for writer in ("first", "second"):
        core.read(intent(TABLE, writer))
    _touch(core, "first", 0, MARKERS)
    return core


def _touch(core: Core, writer: str, start: int, count: int) -> float:
    """Seconds for so many markers, in events of `BATCH`."""
    events = [
        touched(TABLE, writer, [marker(each, each % 28) for each in range(first, first + BATCH)])
        for first in range(start, start + count, BATCH)
    ]
    return sum(core.read(event) for event in events)
