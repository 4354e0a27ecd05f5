"""Latencies of a writer through Kafka: from just before it passes an event to its producer until it receives the answer.

Open loop: each trial starts on schedule, even if earlier ones have no answer yet. The first trials warm up and are not counted.
Each trial is a new transaction of a new writer, without any computation.

- marker → abort: the younger transaction publishes a marker for a place that an older one has touched, and receives its `abort`.
- intent → admitted, requested → granted, and the sum of both (intent → granted): the agent holds the lock already, because
  another transaction of the table is open, and no other grant runs.
- intent → granted on an idle table: the agent first acquires the lock on the local disk, and releases it after the commit.
- one pass through Kafka: an event until another consumer of this process receives it, without the agent. An answer takes two such
  passes and the agent's own time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from lakewarden.events import CommitGranted
from tests.bench import writer_events
from tests.bench.figures import summary
from tests.bench.writers import Writers

PERIOD_SECONDS = 0.05
ANCHOR_TRIALS = 20
"""The open transaction that keeps the lock is replaced after so many commits, so that the agent doesn't keep all as evidence."""


async def measure(bootstrap_servers: str, prefix: str, *, trials: int, warm_up: int) -> dict[str, Any]:
    """All latencies, in milliseconds."""
    async with Writers(bootstrap_servers, prefix) as writers:
        once = _Times()
        await _once_through(writers, once, trials + warm_up)
        conflict, admitted = _Times(), _Times()
        await _conflicts(writers, conflict, admitted, trials + warm_up)
        held = [_Times() for _ in range(3)]
        await _commits(writers, f"{writer_events.TABLES}/held", held, trials + warm_up, anchored=True)
        idle = [_Times() for _ in range(3)]
        await _commits(writers, f"{writer_events.TABLES}/idle", idle, trials + warm_up, anchored=False)
    return {
        "trials": trials,
        "period_ms": PERIOD_SECONDS * 1e3,
        "once_through_kafka": once.summary(warm_up),
        "marker_to_abort": conflict.summary(warm_up),
        "intent_to_admitted": held[0].summary(warm_up),
        "requested_to_granted": held[1].summary(warm_up),
        "intent_to_granted": held[2].summary(warm_up),
        "intent_to_granted_acquiring_the_lock": idle[2].summary(warm_up),
    }


class _Times:
    """Milliseconds by trial."""

    def __init__(self) -> None:
        self.by_trial: dict[int, float] = {}

    def add(self, trial: int, began: float, ended: float) -> None:
        self.by_trial[trial] = (ended - began) * 1e3

    def summary(self, warm_up: int) -> dict[str, float]:
        return summary([value for trial, value in self.by_trial.items() if trial >= warm_up])


async def _on_schedule(count: int, trial: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            await asyncio.sleep(began + number * PERIOD_SECONDS - time.perf_counter())
            tasks.create_task(trial(number))


async def _once_through(writers: Writers, once: _Times, count: int) -> None:
    """Events that the agent consumes and doesn't answer, because it doesn't know their transactions."""
    table = f"{writer_events.TABLES}/unknown"

    async def trial(number: int) -> None:
        name = f"unknown-{number}"
        began = await writers.send(table, writer_events.abandoned(table, name))
        once.add(number, began, await watcher.arrival(name))

    async with writers.watching() as watcher:
        await _on_schedule(count, trial)


async def _conflicts(writers: Writers, conflict: _Times, admitted: _Times, count: int) -> None:
    table = f"{writer_events.TABLES}/conflicts"
    await writers.send(table, writer_events.intent(table, "older"))
    await writers.answer("older", "admitted")
    await writers.send(
        table,
        writer_events.markers_created(table, "older", [writer_events.marker(n, 1) for n in range(count)]),
    )

    async def trial(number: int) -> None:
        name = f"younger-{number}"
        began = await writers.send(table, writer_events.intent(table, name))
        admitted.add(number, began, (await writers.answer(name, "admitted"))[0])
        await asyncio.sleep(PERIOD_SECONDS / 2)
        began = await writers.send(
            table, writer_events.markers_created(table, name, [writer_events.marker(number, 1)])
        )
        conflict.add(number, began, (await writers.answer(name, "abort"))[0])

    await _on_schedule(count, trial)
    await writers.send_all(table, [writer_events.abandoned(table, "older")])


async def _commits(writers: Writers, table: str, times: list[_Times], count: int, *, anchored: bool) -> None:
    to_admitted, to_granted, whole = times

    async def anchor(number: int) -> None:
        await writers.send(table, writer_events.intent(table, f"{table} anchor {number}"))
        await writers.answer(f"{table} anchor {number}", "admitted")
        if number:
            await writers.send(table, writer_events.abandoned(table, f"{table} anchor {number - 1}"))

    async def trial(number: int) -> None:
        name = f"{table} commit {number}"
        began = await writers.send(table, writer_events.intent(table, name))
        ended, _ = await writers.answer(name, "admitted")
        to_admitted.add(number, began, ended)
        requested = await writers.send(table, writer_events.requested(table, name))
        ended, grant = await writers.answer(name, "commit-granted")
        to_granted.add(number, requested, ended)
        whole.add(number, began, ended)
        assert isinstance(grant, CommitGranted)
        await writers.send(table, writer_events.completed(table, name, grant.grant))
        if anchored and number % ANCHOR_TRIALS == ANCHOR_TRIALS - 1:
            await anchor(number // ANCHOR_TRIALS + 1)

    if anchored:
        await anchor(0)
    await _on_schedule(count, trial)
    if anchored:
        await writers.send_all(
            table, [writer_events.abandoned(table, f"{table} anchor {count // ANCHOR_TRIALS}")]
        )
