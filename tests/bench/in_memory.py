"""The conflict check in this process, without Kafka, in CPU time of the thread.

- incremental: the second of two writers' 1,500 markers arrive in 15 events of 100, all different from the first writer's. A step
  adds an event to the index, checks it and decides.
- sweep: the check of the whole index of these two, as after a replay.
- large: the same of a million markers.

    shared       a tenth of every second writer's places are another writer's, too. Paimon's rule allows it (both merge), so
                 each is checked and no writer is aborted
    conflicting  as a replay may leave it: each writer but the first conflicts with the first in one place. All of them are
                 aborted, and all that they touched is removed

- beside: an event while so many others are open, all `queued` behind one, the same with the whole partition as their scope
  (`queued, *`), or all `ordered` and waiting for their turn. The event is a heartbeat; one of a transaction of another place
  (`other`); one of the first one, which shares a place with all (`next`); the intent of one more (`joins`); the periodic check
  (`check`); a renewal of the lock (`renewal`); the end of a replay (`replayed`).
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from lakewarden.events import Abort, Marker, WriterHeartbeat
from lakewarden.handlers.table.detection import sweep
from lakewarden.handlers.table.liveness import CaughtUp
from lakewarden.handlers.table.machine import LockConfirmed, Replayed, Tick, replay_event
from lakewarden.handlers.table.state import LockView, TableSettings, TableState
from lakewarden.handlers.table.step_context import StepContext
from tests.bench.core import FOREVER, TABLE, Core
from tests.bench.figures import medians
from tests.bench.run import Figures, Run
from tests.bench.writer_events import common, intent, marker, requested, touched

MARKERS = 1_500
BATCH = 100
LARGE = {"shared": (1_000,), "conflicting": (50, 1_000)}
"""Numbers of writers."""
SHARED_EVERY = 10
"""One of so many places of every second writer is another writer's, too."""
PARTITIONS = 336
OPEN = (10, 100, 400, 999)
BEATS = 200
BESIDE_RUNS = 3


def measure(run: Run) -> Figures:
    """Medians over the repetitions."""
    both = _first_writer()
    _touch(both, "second", MARKERS)
    assert len(both.state.open()) == 2
    timed: dict[str, tuple[Callable[[], float], int]] = {
        "incremental": (_incremental, MARKERS),
        "sweep": (lambda: both.step(Replayed(0.0, 0)), 2 * MARKERS),
    }
    report: Figures = {}
    for name, (once, markers) in timed.items():
        once()
        seconds = statistics.median(once() for _ in range(run.size.checks))
        report[name] = {"ms": round(seconds * 1e3, 4), "ns_per_marker": round(seconds * 1e9 / markers, 1)}
    report["large"] = {
        "markers": run.size.large_check,
        **{
            variant: {str(each): _large(run, each, conflicting=variant == "conflicting") for each in writers}
            for variant, writers in LARGE.items()
        },
    }
    report["beside"] = {
        kind: {
            str(others + 1): medians([_beside(kind, others) for _ in range(BESIDE_RUNS)], 4)
            for others in OPEN
        }
        for kind in ("queued", "queued, *", "ordered")
    }
    return report


def _beside(kind: str, others: int) -> dict[str, float]:
    """Milliseconds of an event."""
    core = Core(TableSettings(max_open=2_000))

    def end(name: str) -> float:
        return sum(core.commit(name))

    file_group = "*" if kind.endswith("*") else "bucket-0"
    bucket = (Marker(partition="p", file_group=file_group, operation="merge"),)
    elsewhere = (Marker(partition="q", file_group="f", operation="merge"),)
    rule = {"conflict_rule": "ordered"} if kind == "ordered" else {"admission": "queued"}
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
    view = LockView("agent", FOREVER, 0.0)
    checks = [core.step(Tick(0.0, core.offset, CaughtUp(0.0, 0.0))) for _ in range(5)]
    renewals = [core.step(LockConfirmed(0.0, core.offset, view)) for _ in range(BEATS)]
    other = core.read(intent(TABLE, "other", scope=elsewhere)) + end("other")
    seconds = {
        "heartbeat": statistics.fmean(beats),
        "check": statistics.fmean(checks),
        "renewal": statistics.fmean(renewals),
        "other": other / 3,
        "joins": statistics.fmean(core.read(intent(TABLE, f"J{number}", **fields)) for number in range(5)),
        "next": statistics.fmean(end(f"T{number}") / 2 for number in range(min(5, others))),
    }
    core.state.recheck_all()
    seconds["replayed"] = core.step(Replayed(0.0, core.offset))
    return {name: each * 1e3 for name, each in seconds.items()}


def rows(report: Figures) -> Iterator[tuple[str, str, str]]:
    """Title, figure and target of each row."""
    titles = {
        "incremental": "check of 1,500 markers as they arrive",
        "sweep": "check of all 2 × 1,500 markers at once",
    }
    for name, title in titles.items():
        text = f"{report[name]['ms']:.3f} ms, {report[name]['ns_per_marker']:.0f} ns per marker"
        yield title, text, "< 1 ms"
    for variant in LARGE:
        for writers, ms in report["large"][variant].items():
            markers = f"{report['large']['markers']:,} markers of {int(writers):,} writers"
            yield f"check of {markers} at once, {variant}", f"{ms:.1f} ms", ""
    inputs = {
        "heartbeat": ("a heartbeat", "< 1 ms"),
        "other": ("a transaction of another place", "< 1 ms"),
        "joins": ("the intent of one more", "< 1 ms"),
        "next": ("the end of the first one", "< 1 ms"),
        "renewal": ("a renewal of the lock", "< 1 ms"),
        "check": ("the periodic check", "< 12 ms: eight tables, a tenth of a core"),
        "replayed": ("the end of a replay", "≤ 50 ms"),
    }
    for kind, sizes in report["beside"].items():
        for name, (title, target) in inputs.items():
            figures = ", ".join(f"{figure[name]:.3f}" for figure in sizes.values())
            yield f"{title}, ms of CPU beside {', '.join(sizes)} {kind}", figures, target


def _incremental() -> float:
    """Seconds for the second writer's markers."""
    return _touch(_first_writer(), "second", MARKERS)


def _first_writer() -> Core:
    core = Core()
    for writer in ("first", "second"):
        core.read(intent(TABLE, writer))
    _touch(core, "first", 0)
    return core


def _touch(core: Core, writer: str, start: int) -> float:
    """Seconds for the markers of a writer, in events of `BATCH`."""
    events = [
        touched(TABLE, writer, [marker(each, each % 28) for each in range(first, first + BATCH)])
        for first in range(start, start + MARKERS, BATCH)
    ]
    return sum(core.read(event) for event in events)


def _large(run: Run, writers: int, *, conflicting: bool) -> float:
    """Milliseconds for the check of a large index. A check without conflicts changes nothing, so it is repeated."""
    core, each = Core(), run.size.large_check // writers
    for number in range(writers):
        rule = "file-group" if conflicting else "deleted-file"
        core.read(intent(TABLE, f"writer-{number}", conflict_rule=rule))
    for start in range(0, each, BATCH):
        for writer in range(writers):
            numbers = range(start, min(start + BATCH, each))
            places = [_place(writer, number, each, conflicting=conflicting) for number in numbers]
            event = touched(
                TABLE, f"writer-{writer}", [marker(place, place % PARTITIONS) for place in places]
            )
            core.offset += 1
            replay_event(core.state, event, core.offset, core.now)
    rounds = 1 if conflicting else run.size.sweeps
    aborts = writers - 1 if conflicting else 0
    return round(statistics.median(_sweep_seconds(core.state, aborts) for _ in range(rounds)) * 1e3, 4)


def _place(writer: int, number: int, each: int, *, conflicting: bool) -> int:
    """A place of this writer alone, or one that it shares."""
    if conflicting and number == 0:
        return 0
    shared = not conflicting and writer % 2 and number % SHARED_EVERY == 0
    return (writer - 1 if shared else writer) * each + number


def _sweep_seconds(state: TableState, aborts: int) -> float:
    context = StepContext(state, 0.0, 0.0, None, 0)
    began = time.thread_time()
    sweep(context)
    seconds = time.thread_time() - began
    aborted = sum(isinstance(each, Abort) for each in context.effects)
    assert aborted == aborts, f"{aborted} writers aborted, not {aborts}"
    return seconds
