"""Marker → abort under load: a constant rate of events through a real broker, with conflicts among them.

Open loop: each event is sent on schedule, even if answers are late. The time of a conflict counts from when its marker was *due*,
so it includes time in our own queue. How late this process sent is reported separately: on a busy machine it is part of the
figure, and not caused by the agent.

Each 50 events consist of:

    1     marker of a transaction that loses
    1     intent of a transaction that will lose
    1     control event without a transaction, timed until another consumer of this process receives it
    47    events with ten markers each, of writers without conflicts

An abort takes two passes through Kafka, like that of the control event, and the agent's own time.

The warm-up is for the broker: its JVM compiles for longer than the agent needs.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lakewarden.events import Marker
from tests.bench import writer_events
from tests.bench.agent_process import AgentProcess
from tests.bench.figures import summary
from tests.bench.writers import Writers

EVENTS_PER_SECOND = 1_000
CONFLICT_EVERY = 50
MARKERS = 10
WRITERS = 20
TABLES = 4
LEAD = 25
"""Number of losers between the intent of one and its marker: 1.25 s, in which it is admitted."""


@dataclass(frozen=True, slots=True)
class Due:
    """An event, its table, and the transaction whose time is measured."""

    table: str
    value: bytes
    loser: str | None = None
    control: str | None = None


async def measure(
    bootstrap_servers: str, prefix: str, agent: AgentProcess, *, seconds: float, warm_up_seconds: float
) -> dict[str, Any]:
    """Milliseconds from when a marker was due until its abort was received, and the CPU time of the agent."""
    schedule = list(_schedule(round((warm_up_seconds + seconds) * EVENTS_PER_SECOND)))
    warm_up = round(warm_up_seconds * EVENTS_PER_SECOND)
    async with Writers(bootstrap_servers, prefix) as writers:
        await _open(writers, sum(each.loser is not None for each in schedule))
        async with writers.watching() as watcher:
            busy, began = agent.cpu_seconds(), time.perf_counter()
            late = (await _send_on_schedule(writers, schedule, began))[warm_up:]
            timed = [
                (event, began + number / EVENTS_PER_SECOND)
                for number, event in enumerate(schedule)
                if number >= warm_up
            ]
            latencies = [
                ((await writers.answer(event.loser, "abort"))[0] - due) * 1e3
                for event, due in timed
                if event.loser is not None
            ]
            control = [
                (await watcher.arrival(event.control) - due) * 1e3
                for event, due in timed
                if event.control is not None
            ]
            cores = (agent.cpu_seconds() - busy) / (time.perf_counter() - began)
    return {
        "events_per_second": EVENTS_PER_SECOND,
        "markers_per_second": EVENTS_PER_SECOND * MARKERS * (CONFLICT_EVERY - 3) // CONFLICT_EVERY,
        "seconds": seconds,
        "tables": TABLES,
        "writers": WRITERS,
        "marker_to_abort_ms": summary(latencies),
        "once_through_kafka_ms": summary(control),
        "sent_late_ms": summary(late),
        "agent_core": round(cores, 3),
    }


async def _send_on_schedule(writers: Writers, schedule: list[Due], began: float) -> list[float]:
    """How late each event was sent, in milliseconds."""
    late = []
    for number, event in enumerate(schedule):
        due = began + number / EVENTS_PER_SECOND
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        late.append((await writers.send(event.table, event.value) - due) * 1e3)
    return late


def rows(report: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Title, figure and target of each row."""
    latency, late = report["marker_to_abort_ms"], report["sent_late_ms"]
    yield (
        f"marker → abort at {report['events_per_second']:,} events per second",
        f"p50 {latency['p50']:.1f} ms, p99 {latency['p99']:.1f} ms, max {latency['max']:.0f} ms of {latency['count']}",
        "p99 < 50 ms",
    )
    once = report["once_through_kafka_ms"]
    yield (
        "  one pass through Kafka meanwhile, without the agent",
        f"p50 {once['p50']:.1f} ms, p99 {once['p99']:.1f} ms, max {once['max']:.0f} ms",
        "",
    )
    yield (
        "  sent later than due",
        f"p50 {late['p50']:.1f} ms, p99 {late['p99']:.1f} ms, max {late['max']:.0f} ms",
        "",
    )
    yield "  CPU of the agent meanwhile", f"{report['agent_core']:.2f} of a core", ""


async def _open(writers: Writers, losers: int) -> None:
    """Open the writers' transactions, and in each table one that touches what the losers will touch."""
    names = [(_table(number), f"busy-{number}") for number in range(WRITERS)]
    names += [(_table(number), _older(number)) for number in range(TABLES)]
    for table, name in names:
        await writers.send(table, writer_events.intent(table, name))
    for _, name in names:
        await writers.answer(name, "admitted")
    for number in range(losers):
        touched = writer_events.markers_created(_table(number), _older(number), [_disputed(number)])
        await writers.send_all(_table(number), [touched])


def _schedule(count: int) -> Iterator[Due]:
    """`count` events, in the order in which they are due."""
    busy = itertools.count()
    for number in range(count):
        group, place = divmod(number, CONFLICT_EVERY)
        loser = group - LEAD
        if place == CONFLICT_EVERY // 2:
            yield Due(_table(group), writer_events.intent(_table(group), _loser(group)))
        elif place == 0 and loser >= 0:
            touched = writer_events.markers_created(_table(loser), _loser(loser), [_disputed(loser)])
            yield Due(_table(loser), touched, _loser(loser))
        elif place == 1:
            yield Due(
                _table(group),
                writer_events.abandoned(_table(group), f"control-{group}"),
                None,
                f"control-{group}",
            )
        else:
            yield _harmless(next(busy))


def _harmless(number: int) -> Due:
    table = _table(number % WRITERS)
    places = range(number * MARKERS, (number + 1) * MARKERS)
    touched = [writer_events.marker(place, place // 7 % 336) for place in places]
    return Due(table, writer_events.markers_created(table, f"busy-{number % WRITERS}", touched))


def _table(number: int) -> str:
    return f"{writer_events.TABLES}/load-{number % TABLES}"


def _older(number: int) -> str:
    return f"older-{number % TABLES}"


def _loser(number: int) -> str:
    return f"loser-{number}"


def _disputed(number: int) -> Marker:
    return Marker(partition="disputed", file_group=f"{number:08x}", operation="merge")
