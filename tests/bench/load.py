"""Marker → abort while the agent is kept busy: so many events a second through a real broker, conflicts among them.

Open loop: each event has its time, and is sent then, whether or not answers are late. A conflict's time counts from when its
marker was *due*, so that what waits in our own queue counts too; how late we sent is told beside it, for on a busy machine
that is part of the figure and none of the agent's.

Of each 50 events one is the marker of a transaction that will lose, one the intent of another that will, and one a control: it
concerns no transaction, and is timed until another consumer of this process has it. An abort is two such ways through
Kafka and the agent's own time. The other 47 are markers of writers who meet nobody, ten in each event.

The warm-up is the broker's: one that has just started compiles itself beside everything else, for longer than the agent needs.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lakewarden.events import Marker
from tests.bench import words
from tests.bench.agent_process import AgentProcess
from tests.bench.figures import summary
from tests.bench.writers import Writers

EVENTS_A_SECOND = 1_000
CONFLICT_EVERY = 50
MARKERS = 10
WRITERS = 20
TABLES = 4
LEAD = 25
"""Losers between the intent of one and its marker: 1.25 s, in which it is admitted."""


@dataclass(frozen=True, slots=True)
class Due:
    """An event, its table, and the transaction whose time is taken."""

    table: str
    value: bytes
    loser: str | None = None
    control: str | None = None


async def measure(
    bootstrap_servers: str, prefix: str, agent: AgentProcess, *, seconds: float, warm_up_seconds: float
) -> dict[str, Any]:
    """Milliseconds from the time a marker was due until its abort was in hand; and what the agent needed for it."""
    schedule = list(_schedule(round((warm_up_seconds + seconds) * EVENTS_A_SECOND)))
    warm_up = round(warm_up_seconds * EVENTS_A_SECOND)
    async with Writers(bootstrap_servers, prefix) as writers:
        await _open(writers, sum(each.loser is not None for each in schedule))
        async with writers.watching() as seen:
            busy, began = agent.cpu_seconds(), time.perf_counter()
            late = (await _send_at_their_times(writers, schedule, began))[warm_up:]
            timed = [
                (event, began + number / EVENTS_A_SECOND)
                for number, event in enumerate(schedule)
                if number >= warm_up
            ]
            took = [
                ((await writers.answer(event.loser, "abort"))[0] - due) * 1e3
                for event, due in timed
                if event.loser is not None
            ]
            control = [
                (await seen.arrival(event.control) - due) * 1e3
                for event, due in timed
                if event.control is not None
            ]
            needed = (agent.cpu_seconds() - busy) / (time.perf_counter() - began)
    return {
        "events_a_second": EVENTS_A_SECOND,
        "markers_a_second": EVENTS_A_SECOND * MARKERS * (CONFLICT_EVERY - 3) // CONFLICT_EVERY,
        "seconds": seconds,
        "tables": TABLES,
        "writers": WRITERS,
        "marker_to_abort_ms": summary(took),
        "once_through_kafka_ms": summary(control),
        "sent_late_ms": summary(late),
        "agent_core": round(needed, 3),
    }


async def _send_at_their_times(writers: Writers, schedule: list[Due], began: float) -> list[float]:
    """How late each was sent, in milliseconds."""
    late = []
    for number, event in enumerate(schedule):
        due = began + number / EVENTS_A_SECOND
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        late.append((await writers.send(event.table, event.value) - due) * 1e3)
    return late


def rows(report: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """What, how much, and the aim."""
    took, late = report["marker_to_abort_ms"], report["sent_late_ms"]
    yield (
        f"marker → abort at {report['events_a_second']:,} events a second",
        f"p50 {took['p50']:.1f} ms, p99 {took['p99']:.1f} ms, largest {took['max']:.0f} ms of {took['count']}",
        "p99 < 50 ms",
    )
    once = report["once_through_kafka_ms"]
    yield (
        "  once through Kafka meanwhile, no agent",
        f"p50 {once['p50']:.1f} ms, p99 {once['p99']:.1f} ms, largest {once['max']:.0f} ms",
        "",
    )
    yield (
        "  sent later than due",
        f"p50 {late['p50']:.1f} ms, p99 {late['p99']:.1f} ms, largest {late['max']:.0f} ms",
        "",
    )
    yield "  the agent meanwhile", f"{report['agent_core']:.2f} of a core", ""


async def _open(writers: Writers, losers: int) -> None:
    """The writers, and in each table one who has touched what the losers are going to touch."""
    names = [(_table(number), f"busy-{number}") for number in range(WRITERS)]
    names += [(_table(number), _older(number)) for number in range(TABLES)]
    for table, name in names:
        await writers.send(table, words.intent(table, name))
    for _, name in names:
        await writers.answer(name, "admitted")
    for number in range(losers):
        touched = words.touched(_table(number), _older(number), [_disputed(number)])
        await writers.send_all(_table(number), [touched])


def _schedule(count: int) -> Iterator[Due]:
    """So many events, in the order in which they are due."""
    busy = itertools.count()
    for number in range(count):
        group, place = divmod(number, CONFLICT_EVERY)
        loser = group - LEAD
        if place == CONFLICT_EVERY // 2:
            yield Due(_table(group), words.intent(_table(group), _loser(group)))
        elif place == 0 and loser >= 0:
            touched = words.touched(_table(loser), _loser(loser), [_disputed(loser)])
            yield Due(_table(loser), touched, _loser(loser))
        elif place == 1:
            yield Due(
                _table(group), words.abandoned(_table(group), f"control-{group}"), None, f"control-{group}"
            )
        else:
            yield _harmless(next(busy))


def _harmless(number: int) -> Due:
    table = _table(number % WRITERS)
    places = range(number * MARKERS, (number + 1) * MARKERS)
    touched = [words.marker(place, place // 7 % 336) for place in places]
    return Due(table, words.touched(table, f"busy-{number % WRITERS}", touched))


def _table(number: int) -> str:
    return f"{words.TABLES}/load-{number % TABLES}"


def _older(number: int) -> str:
    return f"older-{number % TABLES}"


def _loser(number: int) -> str:
    return f"loser-{number}"


def _disputed(number: int) -> Marker:
    return Marker(partition="disputed", file_group=f"{number:08x}", operation="merge")
