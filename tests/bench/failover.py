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
from pathlib import Path
from statistics import median
from typing import Any

from lakewarden.events import CommitGranted
from tests.bench import writer_events
from tests.bench.agent_process import AgentProcess
from tests.bench.writers import Writers

DEFAULTS: dict[str, str] = {}
TIGHT_SESSION_SECONDS = 1.5
TIGHT = {
    "session_timeout_seconds": str(TIGHT_SESSION_SECONDS),
    "validity_seconds": "5",
}
BROKER = {"group.min.session.timeout.ms": "1000"}
"""By default, brokers refuse session timeouts below 6 s."""
TABLE = f"{writer_events.TABLES}/orphaned"


def measure(
    bootstrap_servers: str, prefix: str, folder: Path, *, settings: dict[str, str], repetitions: int
) -> dict[str, Any]:
    """Seconds to the next decision, and from there to the next grant: the median of the repetitions, and each of them."""
    runs = [
        _once(bootstrap_servers, f"{prefix}-{number}", folder / f"{prefix}-{number}", settings)
        for number in range(repetitions)
    ]
    return {
        name: {
            "median": round(median(run[name] for run in runs), 2),
            "each": [round(run[name], 2) for run in runs],
        }
        for name in ("decision_seconds", "grant_seconds")
    } | {"settings": settings}


def _once(bootstrap_servers: str, prefix: str, folder: Path, settings: dict[str, str]) -> dict[str, float]:
    agents = {
        name: AgentProcess(
            bootstrap_servers,
            prefix,
            folder / name,
            agent_id=name,
            lock_root=(folder / "locks").as_uri(),
            **settings,
        )
        for name in ("one", "two")
    }
    with agents["one"], agents["two"]:
        return asyncio.run(_kill_the_owner(bootstrap_servers, prefix, agents))


async def _kill_the_owner(
    bootstrap_servers: str, prefix: str, agents: dict[str, AgentProcess]
) -> dict[str, float]:
    async with Writers(bootstrap_servers, prefix) as writers:
        await writers.send(TABLE, writer_events.intent(TABLE, "before"))
        await writers.send(TABLE, writer_events.requested(TABLE, "before"))
        _, granted = await writers.answer("before", "commit-granted")
        assert isinstance(granted, CommitGranted)
        await writers.send(TABLE, writer_events.completed(TABLE, "before", granted.grant))
        await writers.send(TABLE, writer_events.intent(TABLE, "open"))
        _, admitted = await writers.answer("open", "admitted")
        began = time.perf_counter()
        agents[admitted.agent].kill()
        await writers.send(TABLE, writer_events.intent(TABLE, "after"))
        decided, decision = await writers.answer("after", "admitted")
        assert decision.agent != admitted.agent
        await writers.send(TABLE, writer_events.requested(TABLE, "after"))
        granted_at, _ = await writers.answer("after", "commit-granted")
    return {"decision_seconds": decided - began, "grant_seconds": granted_at - decided}


def rows(report: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Title, figure and target of each row."""
    titles = {
        "default": ("default settings", "< 8 s"),
        "tight": (
            f"session timeout {TIGHT_SESSION_SECONDS:g} s, lock lease 5 s (*)",
            "< 3 s",
        ),
    }
    found = []
    for name, (title, target) in titles.items():
        if name in report:
            decision, grant = report[name]["decision_seconds"], report[name]["grant_seconds"]
            found.append((f"SIGKILL of the owner → next decision, {title}", _spread(decision), target))
            found.append(("  from that decision → next new grant", _spread(grant), "< 1 s"))
    return found


FOOTNOTE = "(*) Brokers allow it by group.min.session.timeout.ms=1000 (default: 6,000). The embedded broker of this run does."


def _spread(figure: dict[str, Any]) -> str:
    return f"{figure['median']:.1f} s ({min(figure['each']):.1f}–{max(figure['each']):.1f})"
