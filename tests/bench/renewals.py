"""The cost of keeping many locks in one agent: `lakewarden agent` as a process with its default settings, on an S3 server.

1. As many tables as locks get an open transaction each, all at once. So the agent holds their locks, and renews each every 3 s.
2. After the last lock is acquired and some renewals have passed, the agent's CPU time is measured over a while.
3. The process is suspended for longer than an interval, so that all renewals are due at the same moment.

The other figures come from the audit topic, in milliseconds. The `validUntil` of a renewal is the time at which it was sent plus
the length of the lease. So the difference between two of them minus the interval is the delay of the second one. (It includes
the random delay with which the agent spreads renewals.)
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Iterable

from lakewarden.agent.log import Log
from lakewarden.agent.settings import RENEWALS_PER_VALIDITY, Settings
from lakewarden.events import AUDIT_EVENT, LockAcquired, LockEvent, LockLost, LockRenewed, Undecodable, decode
from tests.bench.agent_process import AgentProcess
from tests.bench.figures import summary
from tests.bench.run import Figures, Run
from tests.bench.writer_events import TABLES
from tests.servers.s3 import S3Server

SETTLE_INTERVALS = 2
PAUSE_INTERVALS = 1.5
AFTER_PAUSE_INTERVALS = 2


def measure(run: Run, server: S3Server) -> Figures:
    """Shares of a core, delays, and leases lost."""
    settings = run.settings(validity_seconds=run.size.renew_seconds * RENEWALS_PER_VALIDITY)
    with run.agent(
        lock_root=f"s3://{server.bucket()}/bench",
        s3_endpoint=server.endpoint,
        validity_seconds=str(settings.validity_seconds),
    ) as agent:
        return asyncio.run(_measure(run, settings, agent))


async def _measure(run: Run, settings: Settings, agent: AgentProcess) -> Figures:
    locks, interval = run.size.locks, settings.renew_seconds
    tables = [f"{TABLES}/kept-{number}" for number in range(locks)]
    async with run.writers() as writers:
        await writers.begin(*((table, table) for table in tables))
    await _all_acquired(settings, locks)
    await asyncio.sleep(SETTLE_INTERVALS * interval)
    began, busy, calm_from = time.monotonic(), agent.cpu_seconds(), _wall_ms()
    await asyncio.sleep(run.size.locks_seconds)
    core, calm_until = (agent.cpu_seconds() - busy) / (time.monotonic() - began), _wall_ms()
    paused = _wall_ms()
    agent.pause()
    await asyncio.sleep(PAUSE_INTERVALS * interval)
    agent.resume()
    resumed = _wall_ms()
    await asyncio.sleep(AFTER_PAUSE_INTERVALS * interval)
    history = await _history(settings)
    late = [
        event.valid_until - before.valid_until - interval * 1e3
        for before, event in _renewals(history)
        if calm_from <= event.valid_until - settings.validity_seconds * 1e3
        and event.at.timestamp() * 1e3 < calm_until
    ]
    after = _first_renewals_after(history, resumed)
    return {
        "locks": locks,
        "renew_seconds": interval,
        "late_ms": summary(late),
        "agent_core": round(core, 3),
        "lost": sum(isinstance(event, LockLost) for events in history.values() for event in events),
        "pause": {
            "seconds": round((resumed - paused) / 1e3, 1),
            "all_renewed_after_seconds": round(max(after) / 1e3, 2),
            "renewed": len(after),
        },
    }


def _renewals(history: dict[str, list[LockEvent]]) -> Iterable[tuple[LockEvent, LockRenewed]]:
    """Each renewal, and the one or the acquisition before it."""
    for events in history.values():
        held = [each for each in events if isinstance(each, LockAcquired | LockRenewed)]
        for before, event in itertools.pairwise(held):
            if isinstance(event, LockRenewed):
                yield before, event


def _first_renewals_after(history: dict[str, list[LockEvent]], wall_ms: float) -> list[float]:
    """For each lock, how long after this time its first renewal was confirmed."""
    waits = []
    for events in history.values():
        confirmed = [each.at.timestamp() * 1e3 for each in events if isinstance(each, LockRenewed)]
        waits.extend([at - wall_ms for at in confirmed if at >= wall_ms][:1])
    return waits


async def _all_acquired(settings: Settings, locks: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        history = await _history(settings)
        acquired = {
            each.lock for events in history.values() for each in events if isinstance(each, LockAcquired)
        }
        if len(acquired) == locks:
            return
        assert time.monotonic() < deadline, f"{len(acquired)} of {locks} locks are acquired"
        await asyncio.sleep(0.5)


async def _history(settings: Settings) -> dict[str, list[LockEvent]]:
    """The published steps of each lock, in the order of the log."""
    async with Log(settings) as log:
        found = await log.read(dict.fromkeys(await log.partitions(log.topics.audit)))
    steps: defaultdict[str, list[LockEvent]] = defaultdict(list)
    for records in found.values():
        for record in records:
            event = decode(AUDIT_EVENT, record.value)
            assert not isinstance(event, Undecodable)
            steps[event.lock].append(event)
    return steps


def _wall_ms() -> float:
    return time.time() * 1e3
