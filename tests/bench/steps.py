"""The longest steps of one table's state machine at the documented limits. Without Kafka and without publishing.

A step runs in the agent's event loop: while it runs, no other table is served and no heartbeat of the group is sent. Each
figure is CPU time of this thread, because other programs on the machine would show in wall-clock time. `TITLES` names the
steps; each figure is the worst step of its kind. Garbage collections are included, with the rules by which the agent keeps them
short (`lasting.py`).

- Up to 2,000,000 markers a transaction, in events of 10,000. The worst of them includes the growth of a dictionary.
- Two writers that share all places without a conflict (Paimon's rule), from their markers to their completions.
- 1,000 open transactions that share 1,001 places without a conflict; then one of them ends all others.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator
from typing import Any

from lakewarden.agent.serving.lasting import FullCollections
from lakewarden.events import Marker
from lakewarden.handlers.table.machine import Input, Replayed, Tick
from lakewarden.handlers.table.memory import used_bytes
from lakewarden.handlers.table.state import TableSettings
from lakewarden.handlers.table.transactions import Phase
from tests.bench import writer_events
from tests.bench.core import TABLE, Core
from tests.bench.run import Figures, Run
from tests.bench.writer_events import intent, requested

TARGET_MS = 50
EVENT = 10_000
"""Markers of one event: the limit of the decoder."""
SHARED = 1_000
"""Places that all of the open transactions share."""


class Table(Core):
    """A table whose garbage is collected as an agent does it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(TableSettings(**settings))
        self._collections = FullCollections()
        self._collections.collect()

    def step(self, given: Input) -> float:
        seconds = super().step(given)
        began = time.thread_time()
        self._collections.note(used_bytes(self.state))
        return seconds + time.thread_time() - began

    def open(self, *transactions: str, **fields: Any) -> None:
        """Open transactions."""
        for each in transactions:
            self.read(intent(TABLE, each, **fields))

    def touch(self, transaction: str, markers: Iterable[Marker]) -> float:
        """Publish markers in events of the largest size; the worst of the steps."""
        worst, rest = 0.0, iter(markers)
        while event := tuple(marker for marker, _ in zip(rest, range(EVENT), strict=False)):
            worst = max(worst, self.read(writer_events.touched(TABLE, transaction, event)))
        return worst

    def collect(self) -> float:
        """The worst of the steps that drop what was removed."""
        worst = 0.0
        while self.state.footprints.garbage:
            worst = max(worst, self.step(Tick(self.now, self.offset, None)))
        return worst


def measure(run: Run) -> Figures:
    """The milliseconds of each step."""
    markers, transactions = run.size.step_markers, run.size.step_transactions
    seconds: dict[str, float] = {}
    try:
        _star(seconds, markers)
        _two_writers(seconds, markers)
        _many_open(seconds, transactions)
    finally:
        gc.unfreeze()
    return {
        "markers": markers,
        "transactions": transactions,
        "ms": {name: round(value * 1e3, 2) for name, value in seconds.items()},
    }


def _places(count: int, operation: Any = "merge") -> Iterator[Marker]:
    return (
        Marker(partition="dt=2026-11-22", file_group=f"fg-{number:08}", operation=operation)
        for number in range(count)
    )


STAR = Marker(partition="dt=2026-11-22", file_group="*", operation="merge")


def _star(figures: dict[str, float], markers: int) -> None:
    table = Table(max_markers=markers, max_priority=1)
    table.open("large", "star")
    figures["event"] = table.touch("large", _places(markers))
    figures["star_loses"] = table.touch("star", [STAR])
    table.open("stronger", priority=1)
    figures["star_wins"] = table.touch("stronger", [STAR])
    assert set(table.state.transactions) == {"stronger"}
    figures["collect"] = table.collect()


def _two_writers(figures: dict[str, float], markers: int) -> None:
    """Two appends under Paimon's rule touch the same places without a conflict."""
    table = Table(max_markers=markers)
    table.open("first", "second", "early", conflict_rule="deleted-file")
    table.lock()
    table.touch("first", _places(markers, "append"))
    figures["meeting_event"] = table.touch("second", _places(markers, "append"))
    figures["replayed"] = table.step(Replayed(table.now, table.offset))
    requests, completions = zip(table.commit("first"), table.commit("second"), strict=True)
    figures["request"], figures["completion"] = max(requests), max(completions)
    figures["last_ends"] = table.read(requested(TABLE, "early"))
    assert table.state.transactions["early"].phase is Phase.GRANTED
    figures["last_ends"] += table.commit("early")[1]
    figures["collect"] = max(figures["collect"], table.collect())
    assert not table.state.footprints.index


def _many_open(figures: dict[str, float], transactions: int) -> None:
    names = [f"t{number}" for number in range(transactions)]
    table = Table(max_open=transactions)
    table.open(*names, conflict_rule="deleted-file")
    table.lock()
    shared = [*_places(SHARED, "append"), STAR.model_copy(update={"operation": "append"})]
    figures["many_touch"] = max(table.touch(name, shared) for name in names)
    figures["many_replayed"] = table.step(Replayed(table.now, table.offset))
    figures["many_check"] = table.step(Tick(table.now, table.offset, None))
    figures["many_commit"] = max(table.commit(names[0]))
    # All others build on what the next one deletes: its commit ends them.
    for name in names[2:]:
        table.touch(name, [Marker(partition="p", file_group="f", operation="merge")])
    deleted = Marker(partition="p", file_group="f", operation="delete")
    figures["many_end"] = table.touch(names[1], [deleted])
    figures["collect"] = max(figures["collect"], table.collect())


TITLES = {
    "event": "an event of 10,000 markers",
    "meeting_event": "  all of which meet another writer's, without a conflict",
    "star_loses": "`*` against all markers, and it loses",
    "star_wins": "`*` against all markers, and it wins",
    "request": "request and grant, of two writers that share all places",
    "completion": "completion of these",
    "last_ends": "the end of the last transaction that keeps their evidence",
    "collect": "dropping a part of a removed footprint",
    "replayed": "the end of a replay with both",
    "many_touch": "1,001 places that all open transactions share",
    "many_replayed": "the end of a replay with all of them",
    "many_check": "the periodic check of all of them",
    "many_commit": "request, grant and completion among them",
    "many_end": "one transaction ends all others",
}


def rows(figures: Figures) -> Iterator[tuple[str, str, str]]:
    """Title, figure and target of each step."""
    yield (
        f"one step, {figures['markers']:,} markers a transaction, {figures['transactions']:,} open transactions",
        "CPU, worst",
        "",
    )
    for name, title in TITLES.items():
        yield f"  {title}", f"{figures['ms'][name]:.1f} ms", f"≤ {TARGET_MS} ms"
