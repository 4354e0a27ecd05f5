"""Latencies of a writer through Kafka: from just before it passes an event to its producer until it receives the answer.

Open loop: each trial starts on schedule, even if earlier ones have no answer yet. The first trials warm up and are not counted.
Each trial is a new transaction of a new writer, without any computation.

- marker → abort: the younger transaction publishes a marker for a place that an older one has touched, and receives its `abort`.
- intent → admitted, requested → granted, and the sum of both (intent → granted): the agent holds the lock already, because
  another transaction of the table is open, and no other grant runs.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from tests.bench.figures import shown, summary
from tests.bench.run import Figures, Run
from tests.bench.writer_events import TABLES, abandoned, completed, intent, marker, requested, touched
from tests.bench.writers import Writers

PERIOD_SECONDS = 0.05
ANCHOR_TRIALS = 20
"""The open transaction that keeps the lock is replaced after so many commits, so that the agent doesn't keep all as evidence."""

TITLES = {
    "marker_to_abort": ("marker → abort", "p50 < 15 ms"),
    "intent_to_admitted": ("intent → admitted", ""),
    "requested_to_granted": ("commit-requested → commit-granted", ""),
    "intent_to_granted": ("intent → grant, both", "p50 < 15 ms"),
}


class _Times:
    """Milliseconds by name and trial. Those of the warm-up are not counted."""

    def __init__(self, warm_up: int) -> None:
        self._warm_up = warm_up
        self._by_name: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, name: str, trial: int, began: float, ended: float) -> None:
        if trial >= self._warm_up:
            self._by_name[name].append((ended - began) * 1e3)

    def figures(self) -> Figures:
        return {name: summary(values) for name, values in self._by_name.items()}


def measure(run: Run) -> Figures:
    """All latencies, in milliseconds."""
    trials, times = run.size.trials + run.size.warm_up, _Times(run.size.warm_up)

    async def all_trials() -> None:
        async with run.writers() as writers:
            await _conflicts(writers, times, trials)
            await _commits(writers, times, trials)

    with run.agent():
        asyncio.run(all_trials())
    return {"trials": run.size.trials, **times.figures()}


def rows(report: Figures) -> Iterator[tuple[str, str, str]]:
    """Title, figure and target of each row."""
    for name, (title, aim) in TITLES.items():
        yield title, shown(report[name]), aim


async def _on_schedule(count: int, trial: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            await asyncio.sleep(began + number * PERIOD_SECONDS - time.perf_counter())
            tasks.create_task(trial(number))


async def _conflicts(writers: Writers, times: _Times, count: int) -> None:
    table = f"{TABLES}/conflicts"
    await writers.begin((table, "older"))
    await writers.send(touched(table, "older", [marker(number, 1) for number in range(count)]))

    async def trial(number: int) -> None:
        name = f"younger-{number}"
        await writers.begin((table, name))
        await asyncio.sleep(PERIOD_SECONDS / 2)
        began, ended, _ = await writers.ask(touched(table, name, [marker(number, 1)]), "abort")
        times.add("marker_to_abort", number, began, ended)

    await _on_schedule(count, trial)
    await writers.send(abandoned(table, "older"))
    await writers.flush()


async def _commits(writers: Writers, times: _Times, count: int) -> None:
    table = f"{TABLES}/held"

    def anchor(number: int) -> str:
        return f"anchor {number}"

    async def trial(number: int) -> None:
        name = f"commit {number}"
        began, admitted, _ = await writers.ask(intent(table, name), "admitted")
        asked, granted, grant = await writers.ask(requested(table, name), "commit-granted")
        times.add("intent_to_admitted", number, began, admitted)
        times.add("requested_to_granted", number, asked, granted)
        times.add("intent_to_granted", number, began, granted)
        await writers.send(completed(table, name, grant.grant))
        if number % ANCHOR_TRIALS == ANCHOR_TRIALS - 1:
            before = number // ANCHOR_TRIALS
            await writers.begin((table, anchor(before + 1)))
            await writers.send(abandoned(table, anchor(before)))

    await writers.begin((table, anchor(0)))
    await _on_schedule(count, trial)
    await writers.send(abandoned(table, anchor(count // ANCHOR_TRIALS)))
    await writers.flush()
