"""Many markers: through a running agent, and at the restart of an agent.

- Throughput: while the agent is suspended (SIGSTOP), its log is filled with a backlog of 10,000 events of 100 different markers,
  of a few open transactions. After every hundredth event comes a transaction that is admitted, conflicts and is aborted. Then the
  agent resumes. The figure is the number of markers between the first and the last of those decisions, by the agent's clock in
  the decisions (`at`). It includes consuming, decoding, indexing, checking, deciding, and publishing 200 decisions and 100
  conflicts.
- Restart: that agent is stopped in order and started again on the same log. All its transactions are still open, so the agent
  replays the whole log. Measured are the time from the launch to ready, the replay's part of it, and the resident memory after
  it.
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
from tests.bench import writer_events
from tests.bench.agent_process import AgentProcess
from tests.bench.writers import Writers

TABLE = f"{writer_events.TABLES}/volume"
BATCH = 100
OPEN = 4
PROBE_EVERY = 100
SETTLE_SECONDS = 0.5
WITHIN_SECONDS = 45
"""No repetition starts later than this. On a busy machine there are fewer; the report has their number."""
PAUSED = {"session_timeout_seconds": "60"}
"""A suspended agent must not lose its partitions. The default is 10 s."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Encoded events, and the first and last transaction whose answers are timed."""

    opening: list[bytes]
    events: list[bytes]
    markers: int
    first: str
    last: str


def backlog(markers: int) -> Backlog:
    """Events of `OPEN` transactions in turn, with conflicting ones among them, at the beginning and at the end, too."""
    names = [f"open-{number}" for number in range(OPEN)]
    events: list[bytes] = []
    probes = 0

    def add_conflict() -> None:
        nonlocal probes
        name = f"probe-{probes}"
        probes += 1
        events.extend(
            [
                writer_events.intent(TABLE, name),
                writer_events.markers_created(TABLE, name, [writer_events.marker(0, 0)]),
            ]
        )

    opening = [writer_events.intent(TABLE, name) for name in names]
    opening.append(writer_events.markers_created(TABLE, names[0], [writer_events.marker(0, 0)]))
    add_conflict()
    for number, start in enumerate(range(1, markers + 1, BATCH)):
        touched = [writer_events.marker(each, (each // 7) % 336) for each in range(start, start + BATCH)]
        events.append(encode(writer_events.markers_created_event(TABLE, names[number % OPEN], touched)))
        if number % PROBE_EVERY == PROBE_EVERY - 1:
            add_conflict()
    if markers // BATCH % PROBE_EVERY:
        add_conflict()
    return Backlog(opening, events, markers, "probe-0", f"probe-{probes - 1}")


def measure_throughput(
    bootstrap_servers: str, prefix: str, folder: Path, filled: Backlog, *, repetitions: int
) -> tuple[dict[str, Any], str]:
    """The figures, and the topic prefix of the last repetition."""
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
        "markers_per_second": round(median(rates)),
        "markers_per_second_each": [round(rate) for rate in rates],
        "agent_cpu_us_per_marker": round(median(cpu), 3),
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
        agent.resume()
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
    """Medians over the restarts, beside the start of an agent with an empty log."""
    with AgentProcess(bootstrap_servers, f"{topics}-empty", folder / "empty") as agent:
        time.sleep(SETTLE_SECONDS)
        empty = {"ready_seconds": round(agent.ready_seconds, 3), **agent.memory()}
    runs: list[dict[str, float]] = []
    for number in _numbers(repetitions):
        with AgentProcess(bootstrap_servers, topics, folder / f"restart-{number}") as agent:
            busy = agent.cpu_seconds()
            time.sleep(SETTLE_SECONDS)
            live = next(line for line in agent.lines() if line["event"] == "partitions.live")
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
        "bytes_per_marker": round(
            (median(run["resident_mb"] for run in runs) - empty["resident_mb"]) * 1e6 / markers
        ),
        "empty_log": empty,
    }
