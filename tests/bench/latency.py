"""How long a writer waits, through Kafka: from just before an event is handed to the producer until the answer is in its hands.

Open loop: each trial starts at its time, whether or not the one before it has its answer. The first ones warm up and are
not counted. Each trial is a new transaction of a new writer; nothing is computed in between.

- marker → abort: an older transaction has touched what a younger one now sends as its marker; until the younger's `abort`.
- intent → admitted, requested → granted, and both together (intent → granted): the lock is held already (another
  transaction of the table is open), and no other grant runs.
- intent → granted on an idle table, where the agent first takes the lock on local disk and gives it back after the commit.
- once through Kafka: an event until another consumer of this process has it, without the agent. An answer is two of these
  and the agent's own time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from lakewarden.events import CommitGranted
from tests.bench import words
from tests.bench.figures import summary
from tests.bench.writers import Writers

PERIOD_SECONDS = 0.05
ANCHOR_TRIALS = 20
"""After so many commits the open transaction that holds the lock is replaced: else all of them would be kept as evidence."""


async def measure(bootstrap_servers: str, prefix: str, *, trials: int, warm_up: int) -> dict[str, Any]:
    """All latencies, in milliseconds."""
    async with Writers(bootstrap_servers, prefix) as writers:
        once = _Times()
        await _once_through(writers, once, trials + warm_up)
        conflict, admitted = _Times(), _Times()
        await _conflicts(writers, conflict, admitted, trials + warm_up)
        held = [_Times() for _ in range(3)]
        await _commits(writers, f"{words.TABLES}/held", held, trials + warm_up, anchored=True)
        idle = [_Times() for _ in range(3)]
        await _commits(writers, f"{words.TABLES}/idle", idle, trials + warm_up, anchored=False)
    return {
        "trials": trials,
        "period_ms": PERIOD_SECONDS * 1e3,
        "once_through_kafka": once.summary(warm_up),
        "marker_to_abort": conflict.summary(warm_up),
        "intent_to_admitted": held[0].summary(warm_up),
        "requested_to_granted": held[1].summary(warm_up),
        "intent_to_granted": held[2].summary(warm_up),
        "intent_to_granted_taking_the_lock": idle[2].summary(warm_up),
    }


class _Times:
    """Milliseconds by trial."""

    def __init__(self) -> None:
        self.took: dict[int, float] = {}

    def note(self, trial: int, began: float, ended: float) -> None:
        self.took[trial] = (ended - began) * 1e3

    def summary(self, warm_up: int) -> dict[str, float]:
        return summary([value for trial, value in self.took.items() if trial >= warm_up])


async def _at_their_times(count: int, trial: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            await asyncio.sleep(began + number * PERIOD_SECONDS - time.perf_counter())
            tasks.create_task(trial(number))


async def _once_through(writers: Writers, once: _Times, count: int) -> None:
    """Events that the agent reads and, as they concern no transaction that it knows, does not answer."""
    table = f"{words.TABLES}/unknown"

    async def trial(number: int) -> None:
        name = f"unknown-{number}"
        began = await writers.send(table, words.abandoned(table, name))
        once.note(number, began, await seen.arrival(name))

    async with writers.watching() as seen:
        await _at_their_times(count, trial)


async def _conflicts(writers: Writers, conflict: _Times, admitted: _Times, count: int) -> None:
    table = f"{words.TABLES}/conflicts"
    await writers.send(table, words.intent(table, "older"))
    await writers.answer("older", "admitted")
    await writers.send(table, words.touched(table, "older", [words.marker(n, 1) for n in range(count)]))

    async def trial(number: int) -> None:
        name = f"younger-{number}"
        began = await writers.send(table, words.intent(table, name))
        admitted.note(number, began, (await writers.answer(name, "admitted"))[0])
        await asyncio.sleep(PERIOD_SECONDS / 2)
        began = await writers.send(table, words.touched(table, name, [words.marker(number, 1)]))
        conflict.note(number, began, (await writers.answer(name, "abort"))[0])

    await _at_their_times(count, trial)
    await writers.send_all(table, [words.abandoned(table, "older")])


async def _commits(writers: Writers, table: str, times: list[_Times], count: int, *, anchored: bool) -> None:
    to_admitted, to_granted, whole = times

    async def anchor(number: int) -> None:
        await writers.send(table, words.intent(table, f"{table} anchor {number}"))
        await writers.answer(f"{table} anchor {number}", "admitted")
        if number:
            await writers.send(table, words.abandoned(table, f"{table} anchor {number - 1}"))

    async def trial(number: int) -> None:
        name = f"{table} commit {number}"
        began = await writers.send(table, words.intent(table, name))
        ended, _ = await writers.answer(name, "admitted")
        to_admitted.note(number, began, ended)
        asked = await writers.send(table, words.requested(table, name))
        ended, grant = await writers.answer(name, "commit-granted")
        to_granted.note(number, asked, ended)
        whole.note(number, began, ended)
        assert isinstance(grant, CommitGranted)
        await writers.send(table, words.completed(table, name, grant.grant))
        if anchored and number % ANCHOR_TRIALS == ANCHOR_TRIALS - 1:
            await anchor(number // ANCHOR_TRIALS + 1)

    if anchored:
        await anchor(0)
    await _at_their_times(count, trial)
    if anchored:
        await writers.send_all(table, [words.abandoned(table, f"{table} anchor {count // ANCHOR_TRIALS}")])
