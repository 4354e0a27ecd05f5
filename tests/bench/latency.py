"""Latencies of a writer through Kafka: from just before it passes an event to its producer until it receives the answer.

Open loop: each trial starts on schedule, even if earlier ones have no answer yet. The first trials warm up and are not counted.
Each trial is a new transaction of a new writer, without any computation.

- marker → abort: the younger transaction publishes a marker for a place that an older one has touched, and receives its `abort`.
- intent → admitted, requested → granted, and the sum of both (intent → granted): the agent holds the lock already, because
  another transaction of the table is open, and no other grant runs.
- intent → granted on an idle table: the agent first acquires the lock on the local disk, and releases it after the commit.
- one pass through Kafka: an event until another consumer of this process receives it, without the agent. An answer takes two such
  passes and the agent's own time.

The part `load` measures the first and the last of these while writers without conflicts send `EVENTS_PER_SECOND`, of ten markers
each. On a busy machine this process sends late; that is part of the figures, not caused by the agent, and reported separately.
Its warm-up is for the broker: its JVM compiles for longer than the agent needs.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from lakewarden.events import encode
from tests.bench.figures import shown, summary
from tests.bench.run import Figures, Run
from tests.bench.writer_events import TABLES, abandoned, completed, intent, marker, requested, touched
from tests.bench.writers import Writers

PERIOD_SECONDS = 0.05
ANCHOR_TRIALS = 20
"""The open transaction that keeps the lock is replaced after so many commits, so that the agent doesn't keep all as evidence."""
EVENTS_PER_SECOND = 1_000
MARKERS = 10
BUSY = [(f"{TABLES}/load-{number % 4}", f"busy-{number}") for number in range(20)]
"""Table and transaction of the writers without conflicts."""

TITLES = {
    "once_through_kafka": ("one pass through Kafka, without the agent", ""),
    "marker_to_abort": ("marker → abort", "p50 < 15 ms"),
    "intent_to_admitted": ("intent → admitted", ""),
    "requested_to_granted": ("commit-requested → commit-granted", ""),
    "intent_to_granted": ("intent → grant, both", "p50 < 15 ms"),
    "intent_to_granted_acquiring_the_lock": ("intent → grant, idle table: includes acquiring the lock", ""),
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
            await _once_through(writers, times, trials)
            await _conflicts(writers, times, trials)
            await _commits(writers, f"{TABLES}/held", times, trials, anchored=True)
            await _commits(writers, f"{TABLES}/idle", times, trials, anchored=False)

    with run.agent():
        asyncio.run(all_trials())
    return {"trials": run.size.trials, **times.figures()}


def rows(report: Figures) -> Iterator[tuple[str, str, str]]:
    """Title, figure and target of each row."""
    for name, (title, aim) in TITLES.items():
        yield title, shown(report[name]), aim


def measure_load(run: Run) -> Figures:
    """Some of the latencies, and the CPU time of the agent."""
    seconds, warm_up = run.size.load_seconds + run.size.load_warm_up_seconds, run.size.load_warm_up_seconds
    times, trials = _Times(round(warm_up / PERIOD_SECONDS)), round(seconds / PERIOD_SECONDS)

    async def all_trials() -> float:
        async with run.writers() as writers:
            await writers.begin(*BUSY)
            busy, began = agent.cpu_seconds(), time.perf_counter()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_harmless(writers, times, round(seconds * EVENTS_PER_SECOND), began))
                tasks.create_task(_once_through(writers, times, trials))
                tasks.create_task(_conflicts(writers, times, trials))
            return (agent.cpu_seconds() - busy) / (time.perf_counter() - began)

    with run.agent() as agent:
        cores = asyncio.run(all_trials())
    return {"events_per_second": EVENTS_PER_SECOND, "agent_core": round(cores, 3), **times.figures()}


def load_rows(report: Figures) -> Iterator[tuple[str, str, str]]:
    """Title, figure and target of each row."""
    conflicts = report["marker_to_abort"]
    for title, figure, aim in (
        (f"marker → abort at {report['events_per_second']:,} events per second", conflicts, "p99 < 50 ms"),
        ("  one pass through Kafka meanwhile, without the agent", report["once_through_kafka"], ""),
        ("  sent later than due", report["sent_late"], ""),
    ):
        count = f" of {figure['count']}" if figure is conflicts else ""
        yield title, shown(figure, names="p50 p99 max", digits="110") + count, aim
    yield "  CPU of the agent meanwhile", f"{report['agent_core']:.2f} of a core", ""


async def _harmless(writers: Writers, times: _Times, count: int, began: float) -> None:
    """Events of the busy writers, which touch different places."""
    for number in range(count):
        table, name = BUSY[number % len(BUSY)]
        places = range(number * MARKERS, (number + 1) * MARKERS)
        value = encode(touched(table, name, [marker(place, place // 7 % 336) for place in places]))
        due = began + number / EVENTS_PER_SECOND
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        trial = int((due - began) / PERIOD_SECONDS)
        times.add("sent_late", trial, due, await writers.put(table, value))


async def _on_schedule(count: int, trial: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            await asyncio.sleep(began + number * PERIOD_SECONDS - time.perf_counter())
            tasks.create_task(trial(number))


async def _once_through(writers: Writers, times: _Times, count: int) -> None:
    """Events that the agent consumes and doesn't answer, because it doesn't know their transactions."""

    async def trial(number: int) -> None:
        name = f"unknown-{number}"
        began = await writers.send(abandoned(f"{TABLES}/unknown", name))
        times.add("once_through_kafka", number, began, await watcher.arrival(name))

    async with writers.watching() as watcher:
        await _on_schedule(count, trial)


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


async def _commits(writers: Writers, table: str, times: _Times, count: int, *, anchored: bool) -> None:
    def anchor(number: int) -> str:
        return f"{table} anchor {number}"

    async def trial(number: int) -> None:
        name = f"{table} commit {number}"
        began, admitted, _ = await writers.ask(intent(table, name), "admitted")
        asked, granted, grant = await writers.ask(requested(table, name), "commit-granted")
        if anchored:
            times.add("intent_to_admitted", number, began, admitted)
            times.add("requested_to_granted", number, asked, granted)
            times.add("intent_to_granted", number, began, granted)
        else:
            times.add("intent_to_granted_acquiring_the_lock", number, began, granted)
        await writers.send(completed(table, name, grant.grant))
        if anchored and number % ANCHOR_TRIALS == ANCHOR_TRIALS - 1:
            before = number // ANCHOR_TRIALS
            await writers.begin((table, anchor(before + 1)))
            await writers.send(abandoned(table, anchor(before)))

    if anchored:
        await writers.begin((table, anchor(0)))
    await _on_schedule(count, trial)
    if anchored:
        await writers.send(abandoned(table, anchor(count // ANCHOR_TRIALS)))
        await writers.flush()
