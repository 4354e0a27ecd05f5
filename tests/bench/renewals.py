"""The cost of keeping many locks in one agent: `lakewarden agent` as a process with its default settings, on an S3 server.

1. As many tables as locks get an open transaction each, all at once. So the agent holds their locks, and renews each every 3 s.
2. After the last lock is acquired and some renewals have passed, the CPU time of agent and store is measured over a while.
3. The process is suspended for longer than an interval, so that all renewals are due at the same moment.

The other figures come from the audit topic, in milliseconds. The `validUntil` of a renewal is the time at which it was sent plus
the length of the lease. So the difference between two of them minus the interval is the delay of the second one. (It includes
the random delay with which the agent spreads renewals.) The duration of a renewal counts from when it was due until its
confirmation.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Iterable
from urllib.parse import urlsplit

import psutil

from lakewarden.agent.log import Log
from lakewarden.agent.settings import RENEWALS_PER_VALIDITY, Settings
from lakewarden.events import AUDIT_EVENT, LockAcquired, LockEvent, LockLost, LockRenewed, Undecodable, decode
from tests.bench.agent_process import AgentProcess
from tests.bench.figures import cpu_seconds, summary
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
        return asyncio.run(_measure(run, server, settings, agent))


async def _measure(run: Run, server: S3Server, settings: Settings, agent: AgentProcess) -> Figures:
    locks, interval = run.size.locks, settings.renew_seconds
    tables = [f"{TABLES}/kept-{number}" for number in range(locks)]
    store = _store_process(server)
    async with run.writers() as writers:
        await writers.begin(*((table, table) for table in tables))
    await _all_acquired(settings, locks)
    await asyncio.sleep(SETTLE_INTERVALS * interval)
    calm = _Span(agent, store)
    await asyncio.sleep(run.size.locks_seconds)
    calm.end()
    paused = _wall_ms()
    agent.pause()
    await asyncio.sleep(PAUSE_INTERVALS * interval)
    agent.resume()
    resumed = _wall_ms()
    await asyncio.sleep(AFTER_PAUSE_INTERVALS * interval)
    history = await _history(settings)
    renewals = [
        each
        for each in _renewals(history, settings.validity_seconds * 1e3, interval * 1e3)
        if calm.covers(each["sent"]) and calm.covers(each["done"])
    ]
    after = _first_renewals_after(history, resumed)
    return {
        "locks": locks,
        "renew_seconds": interval,
        "renewals": len(renewals),
        "late_ms": summary([each["late"] for each in renewals]),
        "duration_ms": summary([each["duration"] for each in renewals]),
        "agent_core": round(calm.agent_share, 3),
        "store_core": None if store is None else round(calm.store_share, 3),
        "lost": sum(isinstance(event, LockLost) for events in history.values() for event in events),
        "pause": {
            "seconds": round((resumed - paused) / 1e3, 1),
            "all_renewed_after_seconds": round(max(after) / 1e3, 2),
            "renewed": len(after),
        },
    }


class _Span:
    """The CPU time from its creation to `end`."""

    def __init__(self, agent: AgentProcess, store: psutil.Process | None) -> None:
        self._agent, self._store = agent, store
        self._from, self._until = _wall_ms(), 0.0
        self._began = self._times()
        self.agent_share = self.store_share = 0.0

    def end(self) -> None:
        """Read the clocks again, and compute the shares of a core."""
        wall, agent, store = (
            after - before for before, after in zip(self._began, self._times(), strict=True)
        )
        self._until = _wall_ms()
        self.agent_share, self.store_share = agent / wall, store / wall

    def covers(self, wall_ms: float) -> bool:
        return self._from <= wall_ms < self._until

    def _times(self) -> tuple[float, float, float]:
        return (
            time.monotonic(),
            self._agent.cpu_seconds(),
            0.0 if self._store is None else cpu_seconds(self._store.pid),
        )


def _renewals(
    history: dict[str, list[LockEvent]], lease_ms: float, interval_ms: float
) -> Iterable[dict[str, float]]:
    for events in history.values():
        held = [each for each in events if isinstance(each, LockAcquired | LockRenewed)]
        for before, event in itertools.pairwise(held):
            if isinstance(event, LockRenewed):
                yield {
                    "sent": event.valid_until - lease_ms,
                    "done": event.at.timestamp() * 1e3,
                    "late": event.valid_until - before.valid_until - interval_ms,
                    "duration": event.duration_ms,
                }


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


def _store_process(server: S3Server) -> psutil.Process | None:
    """The process of the server, if this process started it."""
    port = urlsplit(server.endpoint).port
    for child in psutil.Process().children(recursive=True):
        if any(
            each.laddr.port == port for each in child.net_connections() if each.status == psutil.CONN_LISTEN
        ):
            return child
    return None


def _wall_ms() -> float:
    return time.time() * 1e3
