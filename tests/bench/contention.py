"""Eight contenders for one lock. Each holds it for 5 ms and requests it again immediately.

Each contender has its own keeper and store client. They share a process, its producer and its consumer of the audit topic, as
Hudi's eight providers share a JVM (`hudi_lock.py`). A wait lasts from the request for the lock until it is held. A wait that
is unfinished when the run ends counts only for the longest wait, with the time until then. The benchmark asserts that no two
contenders hold the lock at once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeAlias

import anyio

from lakewarden.agent.settings import Settings
from lakewarden.handlers.lease import machine as lease
from tests.bench.figures import jain, summary
from tests.bench.lock_parties import Party, audit_log, keeping, s3_store
from tests.servers.s3 import S3Server

CONTENDERS = 8
HOLD_SECONDS = 0.005


Span: TypeAlias = tuple[float, float]
"""When a contender requested the lock, and when it held it, in seconds since the run began."""


class Contest:
    """The results of one run."""

    def __init__(self) -> None:
        self.holders = 0
        self.spans: list[list[Span]] = [[] for _ in range(CONTENDERS)]
        self.over = False
        self.began = time.perf_counter()

    async def contend(self, number: int, party: Party) -> None:
        """Acquire, hold and release the lock until the run is over."""
        while not self.over:
            requested = time.perf_counter()
            party.keeper.acquire(None)
            held = await party.acquired()
            self.holders += 1
            assert self.holders == 1, "two contenders hold the lock at once"
            self.spans[number].append((requested - self.began, held - self.began))
            await anyio.sleep(HOLD_SECONDS)
            self.holders -= 1
            party.keeper.release()
            await party.keeper.wait_released()


def figures_of(spans: Sequence[Sequence[Span]], seconds: float, requests: int) -> dict[str, float]:
    """The figures of a run that was over after `seconds`. `spans`: of each contender. Waits are in milliseconds."""
    finished = [[held - requested for requested, held in each if held <= seconds] for each in spans]
    unfinished = [seconds - requested for each in spans for requested, held in each if held > seconds]
    every = [wait for waits in finished for wait in waits]
    waits = summary([wait * 1e3 for wait in every])
    return {
        "seconds": round(seconds, 1),
        "cycles_per_second": round(len(every) / seconds, 1),
        "jain": round(jain([len(waits) for waits in finished]), 4),
        "longest_wait_ms": round(max([*every, *unfinished]) * 1e3, 2),
        "wait_p50_ms": waits["p50"],
        "wait_p99_ms": waits["p99"],
        "requests_per_cycle": round(requests / len(every), 2),
    }


async def measure(
    server: S3Server, settings: Settings, *, seconds: float, endpoint: str | None = None
) -> dict[str, Any]:
    """One run."""
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
        contest.began, busy = time.perf_counter(), time.thread_time()
        async with anyio.create_task_group() as tasks:
            for number, party in enumerate(parties):
                tasks.start_soon(contest.contend, number, party)
            await anyio.sleep(seconds)
            contest.over = True
            took, busy = time.perf_counter() - contest.began, time.thread_time() - busy
            requests = sum(store.requests for store in stores)
    return {**figures_of(contest.spans, took, requests), "cpu_share": round(busy / took, 2)}
