"""How long a table is without an owner when its agent is killed.

Two agents of one group; the owner of a table is killed while a transaction there is open, so it holds the table's lock. From just
before the SIGKILL:

- until the next verdict: an intent that is sent right after it is answered `admitted`. That is the group's session timeout, the
  rebalance and the replay;
- until the next new grant on that table: the dead agent's lease must end first (`docs/decisions/0004-…`), as for any challenger.

Each repetition has topics, agents and a group of its own.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from statistics import median
from typing import Any

from lakewarden.events import CommitGranted
from tests.bench import words
from tests.bench.agent_process import AgentProcess
from tests.bench.writers import Writers

DEFAULTS: dict[str, str] = {}
TIGHT_SESSION_SECONDS = 1.5
TIGHT = {
    "session_timeout_seconds": str(TIGHT_SESSION_SECONDS),
    "validity_seconds": "5",
    "renew_seconds": "0.5",
    "request_timeout_seconds": "0.4",
    "margin_seconds": "0.5",
    "grant_seconds": "4",
}
BROKER = {"group.min.session.timeout.ms": "1000"}
"""Brokers refuse session timeouts below 6 s unless they are told otherwise."""
TABLE = f"{words.TABLES}/orphaned"


def measure(
    bootstrap_servers: str, prefix: str, folder: Path, *, settings: dict[str, str], repetitions: int
) -> dict[str, Any]:
    """Seconds to the next verdict and to the next grant: the median of the repetitions, and each."""
    runs = [
        _once(bootstrap_servers, f"{prefix}-{number}", folder / f"{prefix}-{number}", settings)
        for number in range(repetitions)
    ]
    return {
        name: {
            "median": round(median(run[name] for run in runs), 2),
            "each": [round(run[name], 2) for run in runs],
        }
        for name in ("verdict_seconds", "grant_seconds")
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
        await writers.send(TABLE, words.intent(TABLE, "before"))
        await writers.send(TABLE, words.requested(TABLE, "before"))
        _, granted = await writers.answer("before", "commit-granted")
        assert isinstance(granted, CommitGranted)
        await writers.send(TABLE, words.completed(TABLE, "before", granted.grant))
        await writers.send(TABLE, words.intent(TABLE, "open"))
        _, admitted = await writers.answer("open", "admitted")
        began = time.perf_counter()
        agents[admitted.agent].kill()
        await writers.send(TABLE, words.intent(TABLE, "after"))
        verdict, heir = await writers.answer("after", "admitted")
        assert heir.agent != admitted.agent
        await writers.send(TABLE, words.requested(TABLE, "after"))
        grant, _ = await writers.answer("after", "commit-granted")
    return {"verdict_seconds": verdict - began, "grant_seconds": grant - began}


def rows(report: dict[str, Any]) -> list[tuple[str, str, str]]:
    """What, how much, and the aim."""
    titles = {
        "default": ("default settings", "< 12 s"),
        "tight": (
            f"session timeout {TIGHT_SESSION_SECONDS:g} s, lock lease 5 s (*)",
            "< 3 s",
        ),
    }
    found = []
    for name, (title, aim) in titles.items():
        if name in report:
            verdict, grant = report[name]["verdict_seconds"], report[name]["grant_seconds"]
            found.append((f"SIGKILL of the owner → next verdict, {title}", _spread(verdict), aim))
            found.append(("  → next new grant, once the dead agent's lease is over", _spread(grant), ""))
    return found


FOOTNOTE = "(*) The broker must allow it: group.min.session.timeout.ms=1000, by default 6,000; here an embedded one that does."


def _spread(figure: dict[str, Any]) -> str:
    return f"{figure['median']:.1f} s ({min(figure['each']):.1f}–{max(figure['each']):.1f})"
