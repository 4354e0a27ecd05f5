"""Fail-over: how long a table has no owner after its agent is killed.

Two agents of one group. The owner of a table is killed while a transaction of the table is open, so it holds the table's lock.
The time counts from just before the SIGKILL:

- until the next decision: an intent that is sent immediately after the SIGKILL is answered with `admitted`. The time consists of
  the group's session timeout, the rebalance and the replay.
- from then until the next new grant for that table: the new owner takes the dead agent's lock over
  (`docs/decisions/0058-…`).

Each repetition has its own topics, agents and group.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

from lakewarden.agent.embedded.kafka import EmbeddedKafka
from tests.bench.agent_process import AgentProcess
from tests.bench.figures import over_runs, spread
from tests.bench.run import Figures, Run, progress
from tests.bench.writer_events import TABLES, completed, intent, requested

TIGHT = {"session_timeout_seconds": "1.5", "validity_seconds": "5"}
BROKER = {"group.min.session.timeout.ms": "1000"}
"""By default, brokers refuse session timeouts below 6 s."""
TABLE = f"{TABLES}/orphaned"
FOOTNOTE = "(*) Brokers allow it by group.min.session.timeout.ms=1000 (default: 6,000). The embedded broker of this run does."


def measure(run: Run) -> Figures:
    """Seconds to the next decision, and from there to the next grant. The smoke run measures the shorter one, once."""
    times, report = run.size.failovers, {}
    if times:
        report["default"] = over_runs([_once(run.within(f"default-{number}"), {}) for number in range(times)])
    progress("fail-over, short timeouts")
    with EmbeddedKafka(run.folder / "kafka-tight", on_progress=progress, properties=BROKER) as broker:
        tight = [
            replace(run, servers=broker.bootstrap_servers).within(f"tight-{n}") for n in range(times or 1)
        ]
        report["tight"] = over_runs([_once(each, TIGHT) for each in tight])
    return report


def _once(run: Run, settings: Mapping[str, str]) -> dict[str, float]:
    agents = {
        name: run.agent(name, agent_id=name, lock_root=(run.folder / "locks").as_uri(), **settings)
        for name in ("one", "two")
    }
    with agents["one"], agents["two"]:
        return asyncio.run(_kill_the_owner(run, agents))


async def _kill_the_owner(run: Run, agents: Mapping[str, AgentProcess]) -> dict[str, float]:
    async with run.writers() as writers:
        await writers.begin((TABLE, "before"))
        *_, granted = await writers.ask(requested(TABLE, "before"), "commit-granted")
        await writers.send(completed(TABLE, "before", granted.grant))
        *_, admitted = await writers.ask(intent(TABLE, "open"), "admitted")
        began = time.perf_counter()
        agents[admitted.agent].kill()
        _, decided, decision = await writers.ask(intent(TABLE, "after"), "admitted")
        assert decision.agent != admitted.agent
        _, granted_at, _ = await writers.ask(requested(TABLE, "after"), "commit-granted")
    return {"decision_seconds": decided - began, "grant_seconds": granted_at - decided}


def rows(report: Figures) -> Iterator[tuple[str, str, str]]:
    """Title, figure and target of each row."""
    titles = {
        "default": ("default settings", "< 8 s"),
        "tight": (
            "session timeout {session_timeout_seconds} s, lock lease {validity_seconds} s (*)",
            "< 3 s",
        ),
    }
    for name, figures in report.items():
        title, aim = titles[name]
        decision, grant = (f"{spread(figure, '.1f')} s" for figure in figures.values())
        yield f"SIGKILL of the owner → next decision, {title.format(**TIGHT)}", decision, aim
        yield "  from that decision → next new grant", grant, "< 1 s"
