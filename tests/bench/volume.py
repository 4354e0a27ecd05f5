"""Many markers: through a running agent, and through one that starts again.

Markers per second: while the agent is paused (SIGSTOP), its log is filled with a backlog: 10,000 events of 100 markers, no two
alike, of a few open transactions; and with every hundredth event a transaction that is admitted, collides and is aborted.
Then it goes on. Counted are the markers between the first and the last of those decisions, by the agent's own clock as the
decisions carry it (`at`): fetching, decoding, entering, checking, deciding, and publishing of 200 decisions and 100 conflicts.

Restart: that agent is stopped in order and started again on the same log, whose transactions are all still open; so all of
it is read and folded again. Measured are the time from the launch to ready, the part of it that the replay took, and
the resident memory then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from lakewarden.events import encode
from tests.bench import words
from tests.bench.agent_process import AgentProcess
from tests.bench.writers import Writers

TABLE = f"{words.TABLES}/volume"
BATCH = 100
OPEN = 4
PROBE_EVERY = 100
SETTLE_SECONDS = 0.5
WITHIN_SECONDS = 45
"""No repetition is begun later than this: a busy machine gets fewer of them, and says so."""
PAUSED = {"session_timeout_seconds": "60"}
"""A paused agent must not lose its partitions; the default is 10 s."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Encoded events, and the transactions among them whose answers tell the time."""

    opening: list[bytes]
    events: list[bytes]
    markers: int
    first: str
    last: str


def backlog(markers: int) -> Backlog:
    """Events of `OPEN` transactions by turns, and the colliding ones among them; one is first, one last."""
    names = [f"open-{number}" for number in range(OPEN)]
    events: list[bytes] = []
    probes = 0

    def collide() -> None:
        nonlocal probes
        name = f"probe-{probes}"
        probes += 1
        events.extend([words.intent(TABLE, name), words.touched(TABLE, name, [words.marker(0, 0)])])

    opening = [words.intent(TABLE, name) for name in names]
    opening.append(words.touched(TABLE, names[0], [words.marker(0, 0)]))
    collide()
    for number, start in enumerate(range(1, markers + 1, BATCH)):
        touched = [words.marker(each, (each // 7) % 336) for each in range(start, start + BATCH)]
        events.append(encode(words.make_touched(TABLE, names[number % OPEN], touched)))
        if number % PROBE_EVERY == PROBE_EVERY - 1:
            collide()
    if markers // BATCH % PROBE_EVERY:
        collide()
    return Backlog(opening, events, markers, "probe-0", f"probe-{probes - 1}")


def measure_throughput(
    bootstrap_servers: str, prefix: str, folder: Path, filled: Backlog, *, repetitions: int
) -> tuple[dict[str, Any], str]:
    """Figures, and the prefix of the topics that the last repetition filled."""
    rates: list[float] = []
    cpu: list[float] = []
    topics = prefix
    for number in _numbers(repetitions):
        topics = f"{prefix}-{number}"
        with AgentProcess(bootstrap_servers, topics, folder / topics, **PAUSED) as agent:
            seconds, busy = asyncio.run(_drain(bootstrap_servers, topics, agent, filled))
        rates.append(filled.markers / seconds)
        cpu.append(busy * 1e6 / filled.markers)
    figures = {
        "markers": filled.markers,
        "batch": BATCH,
        "repetitions": len(rates),
        "event_bytes": max(len(event) for event in filled.events),
        "markers_a_second": round(median(rates)),
        "markers_a_second_each": [round(rate) for rate in rates],
        "agent_cpu_us_a_marker": round(median(cpu), 3),
    }
    return figures, topics


async def _drain(
    bootstrap_servers: str, topics: str, agent: AgentProcess, filled: Backlog
) -> tuple[float, float]:
    async with Writers(bootstrap_servers, topics) as writers:
        await writers.send_all(TABLE, filled.opening)
        for number in range(OPEN):
            await writers.answer(f"open-{number}", "admitted")
        agent.pause()
        await writers.send_all(TABLE, filled.events)
        before = agent.cpu_seconds()
        agent.go_on()
        _, first = await writers.answer(filled.first, "admitted")
        _, last = await writers.answer(filled.last, "abort")
        return _seconds(first.at, last.at), agent.cpu_seconds() - before


def _numbers(repetitions: int) -> Iterator[int]:
    began = time.monotonic()
    for number in range(repetitions):
        if number and time.monotonic() - began > WITHIN_SECONDS:
            return
        yield number


def _seconds(first: datetime, last: datetime) -> float:
    return max((last - first).total_seconds(), 1e-6)


def measure_restart(
    bootstrap_servers: str, topics: str, folder: Path, markers: int, *, repetitions: int
) -> dict[str, Any]:
    """Medians over the restarts; an agent with an empty log beside it, for what a start costs anyway."""
    with AgentProcess(bootstrap_servers, f"{topics}-empty", folder / "empty") as agent:
        time.sleep(SETTLE_SECONDS)
        empty = {"ready_seconds": round(agent.ready_seconds, 3), **agent.memory()}
    runs: list[dict[str, float]] = []
    for number in _numbers(repetitions):
        with AgentProcess(bootstrap_servers, topics, folder / f"restart-{number}") as agent:
            busy = agent.cpu_seconds()
            time.sleep(SETTLE_SECONDS)
            live = next(line for line in agent.said if line["event"] == "partitions.live")
            runs.append(
                {
                    "ready_seconds": agent.ready_seconds,
                    "replay_seconds": live["replay_seconds"],
                    "cpu_seconds": busy,
                    **agent.memory(),
                }
            )
    return {
        "markers": markers,
        "repetitions": len(runs),
        **{name: round(median(run[name] for run in runs), 3) for name in runs[0]},
        "bytes_a_marker": round(
            (median(run["resident_mb"] for run in runs) - empty["resident_mb"]) * 1e6 / markers
        ),
        "empty_log": empty,
    }
