"""The conflict check in memory: a few markers to a million, two writers to a thousand. Without Kafka.

It measures the production core, in a separate process for each size, in CPU time of the thread: nothing here waits, and a busy
machine doesn't change the figures. Events are built outside the timed part; the throughput figures include decoding.

- arrival: the cost of a marker that arrives in events of up to 100, from the writers in turn (`handlers.table.machine.step`). It
  consists of adding it to the index, the check and the decisions. Part of it is per event: with 1,500 markers of 1,000 writers,
  an event has one or two markers.
- sweep: the check of the whole index (`handlers.table.detection.sweep`), as after a replay, in three variants:

    apart          no two writers touch the same place
    shared         a tenth of every second writer's places are another writer's, too. Paimon's rule allows it (both merge), so
                   each is checked and no writer is aborted
    conflicting    as a replay may leave it: each writer but the first conflicts with the first in one place. All of them are
                   aborted, and all that they touched is removed

- memory: the growth of the process by the index, per marker. Only for sizes that are large enough to show it.
- quiet tables: the periodic check of a partition's owner with one busy table, alone and beside many quiet ones.

A size is the number of all markers, and the number of writers that share them. `HUDI` has the sizes that were measured with Hudi,
beside its figures.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Literal, cast

import anyio
import anyio.abc
import psutil

from lakewarden.agent.locks.keeper import Stores
from lakewarden.agent.publisher import Publisher
from lakewarden.agent.serving.partition.owner import PartitionOwner
from lakewarden.agent.settings import Settings
from lakewarden.events import Abort, Admitted, Marker, MarkerCreated
from lakewarden.handlers.table.detection import sweep
from lakewarden.handlers.table.machine import replay_event
from lakewarden.handlers.table.state import TableState
from lakewarden.handlers.table.step_context import StepContext
from tests.bench import writer_events
from tests.bench.child import Child
from tests.bench.core import TABLE, Core
from tests.bench.run import Figures, Run
from tests.bench.writer_events import intent, marker, touched

BATCH = 100
PARTITIONS = 336
SHARED_EVERY = 10
"""In the variant `shared`: one of so many places of every second writer is another writer's, too."""
MEMORY_FROM = 100_000
"""Number of markers from which the memory is measured. With fewer, a process grows in too coarse steps."""
QUIET_TABLES = 10_000

Variant = Literal["apart", "shared", "conflicting"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One size."""

    markers: int
    writers: int
    target_ms: float | None = None
    """Target for the sweep in the variant `apart`."""
    hudi: str = ""
    """The time of Hudi 1.2.0's asynchronous check with as many, warm. It is one writer's check; every writer runs it."""


HUDI = (
    Cell(2 * 1_500, 2, 0.5, "6.7 ms"),
    Cell(10 * 1_500, 10, None, "27 ms"),
    Cell(50 * 1_500, 50, 15.0, "268 ms"),
    Cell(2 * 15_000, 2, None, "28.8 ms"),
    Cell(2 * 150_000, 2, None, "292 ms"),
)
GRID = tuple(
    Cell(markers, writers, 200.0 if markers == 1_000_000 else None)
    for markers in (1_500, 15_000, 150_000, 1_000_000)
    for writers in (2, 10, 50, 1_000)
    if (markers, writers) != (1_000_000, 10)  # between its neighbours, and a large size takes long
)
QUICK = (Cell(300, 2), Cell(1_500, 10))


def measure(run: Run) -> Figures:
    """Medians over the repetitions. Each size runs in a new process."""
    sweeps = run.size.sweeps
    return {
        "cells": [_in_a_process(run, cell) for cell in (QUICK if run.size.quick_cells else (*HUDI, *GRID))],
        "quiet": {
            "tables": QUIET_TABLES,
            "alone_ms": round(_tick_seconds(_owner(0), sweeps) * 1e3, 4),
            "beside_ms": round(_tick_seconds(_owner(QUIET_TABLES), sweeps) * 1e3, 4),
        },
    }


def rows(report: Figures) -> Iterator[tuple[str, ...]]:
    """A heading, and a row for each size."""
    yield (
        "conflict check in memory",
        "arrival",
        "sweep, apart",
        "target",
        "sweep, shared",
        "sweep, conflicting",
        "memory",
        "Hudi 1.2.0 (**)",
    )
    for cell in report["cells"]:
        sweep = cell["sweep_ms"]
        yield (
            f"{cell['markers']:,} markers, {cell['writers']:,} writers",
            f"{cell['arrival_ns']['apart']:,.0f} ns per marker",
            f"{sweep['apart']:.2f} ms",
            f"< {cell['target_ms']:g} ms" if cell["target_ms"] else "",
            f"{sweep['shared']:.2f} ms",
            f"{sweep['conflicting']:.1f} ms",
            f"{cell['bytes_per_marker']} bytes per marker" if cell["bytes_per_marker"] else "",
            cell["hudi"],
        )
    quiet = report["quiet"]
    yield (
        f"periodic check beside {quiet['tables']:,} quiet tables",
        "",
        f"{quiet['beside_ms']:.2f} ms",
        f"{quiet['alone_ms']:.2f} ms alone",
        *[""] * 4,
    )


FOOTNOTE = (
    "(**) Asynchronous early detection: one writer's check of all other writers' markers on a local disk, warm, every 30 s.\n"
    "     Measured once on a machine of the same kind, not measured again here."
)


def _in_a_process(run: Run, cell: Cell) -> Figures:
    sizes = map(str, (cell.markers, cell.writers, run.size.sweeps))
    child = Child([sys.executable, "-m", "tests.bench.detection", *sizes], run.folder / "detection.log")
    return {**asdict(cell), **child.figures()}


def measure_cell(markers: int, writers: int, repetitions: int) -> Figures:
    """All figures of one size. This process must not have done anything else before."""
    _arrive(BATCH * writers, writers, "apart")  # warm
    gc.collect()
    before = psutil.Process().memory_info().rss
    grown = None
    arrival: dict[str, float] = {}
    sweeps: dict[str, float] = {}
    for variant in ("apart", "shared"):
        state, arrival[variant] = _arrive(markers, writers, variant)
        if grown is None:
            gc.collect()
            grown = psutil.Process().memory_info().rss - before
        sweeps[variant] = statistics.median(_sweep_seconds(state, aborts=0) for _ in range(repetitions))
        del state
    sweeps["conflicting"] = _sweep_seconds(_replayed(markers, writers), aborts=writers - 1)
    return {
        "arrival_ns": {name: round(value * 1e9, 1) for name, value in arrival.items()},
        "sweep_ms": {name: round(seconds * 1e3, 4) for name, seconds in sweeps.items()},
        "bytes_per_marker": round((grown or 0) / markers) if markers >= MEMORY_FROM else None,
    }


def _arrive(markers: int, writers: int, variant: Variant) -> tuple[TableState, float]:
    """The state with all markers, and seconds per marker."""
    core = _opened(writers, variant)
    elapsed = sum(core.read(event) for event in _events(markers, writers, variant))
    assert len(core.state.open()) == writers, "a writer was aborted"
    return core.state, elapsed / markers


def _replayed(markers: int, writers: int) -> TableState:
    core = _opened(writers, "conflicting")
    for offset, event in enumerate(_events(markers, writers, "conflicting"), writers):
        replay_event(core.state, event, offset, core.now)
    return core.state


def _opened(writers: int, variant: Variant) -> Core:
    core, rule = Core(), "deleted-file" if variant == "shared" else "file-group"
    for number in range(writers):
        core.read(intent(TABLE, f"writer-{number}", conflict_rule=rule))
        assert any(isinstance(each, Admitted) for each in core.effects)
    return core


def _events(markers: int, writers: int, variant: Variant) -> Iterator[MarkerCreated]:
    """Each writer's share of the markers in events of up to `BATCH`, from the writers in turn."""
    each, more = divmod(markers, writers)
    shares = [each + (number < more) for number in range(writers)]
    for start in range(0, shares[0], BATCH):
        for writer, share in enumerate(shares):
            numbers = range(start, min(start + BATCH, share))
            if numbers:
                places = [_marker(writer, number, shares[0], writers, variant) for number in numbers]
                yield touched(TABLE, f"writer-{writer}", places)


def _marker(writer: int, number: int, each: int, writers: int, variant: Variant) -> Marker:
    """A place of this writer alone, or one that it shares in this variant."""
    place = writer * each + number
    if variant == "shared" and number % SHARED_EVERY == 0 and writer % 2 and writers > 1:
        place = (writer - 1) * each + number
    elif variant == "conflicting" and number == 0:
        place = 0
    return marker(place, place % PARTITIONS)


def _sweep_seconds(state: TableState, *, aborts: int) -> float:
    context = StepContext(state, 0.0, 0.0, None, 0)
    began = time.thread_time()
    sweep(context)
    seconds = time.thread_time() - began
    aborted = sum(isinstance(each, Abort) for each in context.effects)
    assert aborted == aborts, f"{aborted} writers aborted, not {aborts}"
    return seconds


def _owner(quiet: int) -> PartitionOwner:
    """An owner in the phase `live` with one busy table. It has no publisher."""
    settings = Settings.load(tables=[f"{writer_events.TABLES}/*"])
    owner = PartitionOwner(
        0, settings, cast("Publisher", None), cast("Stores", None), cast("anyio.abc.TaskGroup", None)
    )
    owner.tables.states[TABLE], _ = _arrive(3_000, 2, "apart")
    for number in range(quiet):
        uri = f"{writer_events.TABLES}/quiet-{number}"
        owner.tables.states[uri] = TableState(uri, owner.tables.states[TABLE].settings)
    owner._progress.phase = "live"
    return owner


def _tick_seconds(owner: PartitionOwner, repetitions: int) -> float:
    async def tick() -> float:
        began = time.thread_time()
        await owner.tick(0.0, 0.0, 0, stalled=False)
        return time.thread_time() - began

    async def ticks() -> list[float]:
        return [await tick() for _ in range(1 + repetitions)]

    return statistics.median(anyio.run(ticks)[1:])


if __name__ == "__main__":
    print(json.dumps(measure_cell(*map(int, sys.argv[1:4]))))
