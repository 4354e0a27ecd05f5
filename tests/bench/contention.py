"""Eight contenders for one lock. Each holds it for 5 ms and requests it again immediately.

Each contender has its own keeper and store client. They share a process, its producer and its consumer of the audit topic, as
Hudi's eight providers shared a JVM when they were measured. A wait lasts from the request for the lock until it is held. The
benchmark asserts that no two contenders hold the lock at once.
"""

from __future__ import annotations

import resource
import time
from contextlib import AsyncExitStack
from typing import Any

import anyio

from lakewarden.agent.settings import Settings
from lakewarden.handlers.lease import machine as lease
from tests.bench.figures import jain, summary
from tests.bench.lock_parties import Party, audit_log, keeping, s3_store
from tests.servers.s3 import S3Server

CONTENDERS = 8
HOLD_SECONDS = 0.005


class Contest:
    """The results of one run."""

    def __init__(self) -> None:
        self.holders = 0
        self.grants = dict.fromkeys(range(CONTENDERS), 0)
        self.waits: list[float] = []
        self.over = False

    async def contend(self, number: int, party: Party) -> None:
        """Acquire, hold and release the lock until the run is over."""
        while not self.over:
            requested = time.perf_counter()
            party.keeper.acquire(None)
            held = await party.acquired()
            self.holders += 1
            assert self.holders == 1, "two contenders hold the lock at once"
            if not self.over:
                self.waits.append(held - requested)
                self.grants[number] += 1
            await anyio.sleep(HOLD_SECONDS)
            self.holders -= 1
            party.keeper.release()
            await party.keeper.wait_released()


async def measure(
    server: S3Server, settings: Settings, *, seconds: float, endpoint: str | None = None
) -> dict[str, Any]:
    """One run. Waits are in milliseconds."""
    uri = f"s3://{server.bucket()}/locks/contended.json"
    contest = Contest()
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(audit_log(settings))
        stores = [await stack.enter_async_context(s3_store(server, uri, endpoint)) for _ in range(CONTENDERS)]
        parties = [
            Party(f"contender-{number}", uri, store, lease.LeaseSettings(), log.publish)
            for number, store in enumerate(stores)
        ]
        log.listeners.extend(party.observe for party in parties)
        await stack.enter_async_context(keeping(*parties))
        began, busy = time.perf_counter(), _cpu_seconds()
        async with anyio.create_task_group() as tasks:
            for number, party in enumerate(parties):
                tasks.start_soon(contest.contend, number, party)
            await anyio.sleep(seconds)
            contest.over = True
            took, busy = time.perf_counter() - began, _cpu_seconds() - busy
            requests = sum(store.requests for store in stores)
    waits = summary([wait * 1e3 for wait in contest.waits])
    cycles = len(contest.waits)
    return {
        "seconds": round(took, 1),
        "cycles_per_second": round(cycles / took, 1),
        "jain": round(jain(list(contest.grants.values())), 4),
        "longest_wait_ms": waits["max"],
        "wait_p50_ms": waits["p50"],
        "wait_p99_ms": waits["p99"],
        "requests_per_cycle": round(requests / cycles, 2),
        "cpu_share": round(busy / took, 2),
    }


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
