"""What the agent's lock costs on an S3 server: production keepers, each with its own store client.

- acquire: an existing free lock, from the request until the keeper confirms the lease.
- renew: from when the renewal is due until the keeper confirms it.
- release: from the request until the keeper reports it. All three with one client and a direct connection to the server.
- requests: counted by a proxy before the server, in separate rounds.
- hand-over: two agents, each with its own store client, producer and consumer. One holds the lock, the other was denied and
  waits. Measured from the holder's release until the other one holds the lock.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import AsyncExitStack

import anyio

from lakewarden.agent.kafka import ensure_topics
from lakewarden.handlers.lease import machine as lease
from tests.bench.figures import over_runs, shown, spread, summary
from tests.bench.lock_parties import Party, audit_log, keeping, s3_store
from tests.bench.run import Figures, Rows, Run
from tests.servers.proxy import Proxy
from tests.servers.s3 import S3Server

OPERATIONS = {
    "acquire": ("acquire an existing free lock", "2 requests"),
    "renew": ("renew", "1 request"),
    "release": ("release", "1 request"),
}
COUNTED_ROUNDS = 10
SOON = lease.LeaseSettings(renew_interval=0.01)
"""Renews almost immediately, so that a round doesn't take three seconds."""
WARM_UP = 5
SETTLE_SECONDS = 0.02
"""Pause between two hand-overs, in which all published events are consumed."""


def measure(run: Run, server: S3Server) -> Figures:
    """All figures. The server's credentials are in the environment."""
    return asyncio.run(_measure(run, server))


async def _measure(run: Run, server: S3Server) -> Figures:
    settings = run.settings()
    await ensure_topics(settings, settings.topics, settings.partitions, settings.replication)
    times = [await _operations(run, server, number) for number in range(run.size.lock_repetitions)]
    requests = await _requests(server)
    operations = {
        name: {"ms": over_runs([each[name] for each in times]), "requests": requests[name]}
        for name in OPERATIONS
    }
    return {"operations": operations, "hand_over_ms": await _hand_overs(run, server)}


def rows(report: Figures) -> Rows:
    """The rows that are printed."""
    for name, (title, aim) in OPERATIONS.items():
        figure = report["operations"][name]
        p50, p99 = figure["ms"]["p50"], figure["ms"]["p99"]
        requests = f"{figure['requests']:g} requests"
        yield title, f"p50 {spread(p50, '.1f')} ms, p99 {spread(p99, '.0f')} ms, {requests}", aim
    yield (
        "hand-over to a waiting agent, from the release on",
        shown(report["hand_over_ms"], names="p50 p99 max", digits="10"),
        "",
    )


async def _operations(run: Run, server: S3Server, number: int) -> dict[str, dict[str, float]]:
    """Milliseconds of each operation."""
    uri = f"s3://{server.bucket()}/locks/one-{number}.json"
    async with s3_store(server, uri) as store:
        party = Party("only", uri, store, SOON)
        async with keeping(party):
            await _round(party)  # creates the object
            times = [await _round(party) for _ in range(run.size.lock_rounds)]
    return {name: summary([each[name] * 1e3 for each in times]) for name in OPERATIONS}


async def _requests(server: S3Server) -> dict[str, float]:
    """The requests of each operation that arrive at a proxy: the mean of some rounds."""
    uri = f"s3://{server.bucket()}/locks/counted.json"
    with Proxy(server.endpoint) as proxy:
        async with s3_store(server, uri, proxy.endpoint) as store:
            party = Party("counted", uri, store, lease.LeaseSettings(renew_interval=0.2))
            async with keeping(party):
                await _counted_round(party, proxy)
                rounds = [await _counted_round(party, proxy) for _ in range(COUNTED_ROUNDS)]
    return {
        name: sum(each[number] for each in rounds) / COUNTED_ROUNDS for number, name in enumerate(OPERATIONS)
    }


async def _hand_overs(run: Run, server: S3Server) -> dict[str, float]:
    """Milliseconds from the request for the release until the other agent holds the lock."""
    uri = f"s3://{server.bucket()}/locks/handed-over.json"
    async with AsyncExitStack() as stack:
        parties = []
        for name in ("first", "second"):
            log = await stack.enter_async_context(audit_log(run.settings()))
            store = await stack.enter_async_context(s3_store(server, uri))
            parties.append(Party(name, uri, store, lease.LeaseSettings(), log.publish))
            log.listeners.append(parties[-1].observe)
        holder, waiter = parties
        await stack.enter_async_context(keeping(holder, waiter))
        holder.keeper.acquire(None)
        await holder.acquired()
        times = []
        for _ in range(WARM_UP + run.size.lock_rounds):
            times.append(await _hand_over(holder, waiter) * 1e3)
            holder, waiter = waiter, holder
        await holder.release()
    return summary(times[WARM_UP:])


async def _round(party: Party) -> dict[str, float]:
    """Seconds of each operation."""
    requested = time.perf_counter()
    party.keeper.acquire(None)
    acquired = await party.acquired()
    due = party.store.wrote_at + SOON.renew_interval
    renewed, _ = await party.wait_for(lease.Confirmed, "renewed")
    began = max(due, party.store.wrote_at)
    release_requested = time.perf_counter()
    party.keeper.release()
    released, _ = await party.wait_for(lease.Released)
    return {
        "acquire": acquired - requested,
        "renew": renewed - began,
        "release": released - release_requested,
    }


async def _counted_round(party: Party, proxy: Proxy) -> list[int]:
    """The requests of each operation."""
    totals = [proxy.requests.total()]
    party.keeper.acquire(None)
    await party.acquired()
    totals.append(proxy.requests.total())
    await party.wait_for(lease.Confirmed, "renewed")
    totals.append(proxy.requests.total())
    party.keeper.release()
    await party.wait_for(lease.Released)
    totals.append(proxy.requests.total())
    return [after - before for before, after in itertools.pairwise(totals)]


async def _hand_over(holder: Party, waiter: Party) -> float:
    """Seconds. Afterwards the waiter holds the lock."""
    waiter.keeper.acquire(None)
    await waiter.wait_for(lease.LockDenied)
    await anyio.sleep(SETTLE_SECONDS)
    began = time.perf_counter()
    holder.keeper.release()
    held = await waiter.acquired()
    await holder.keeper.wait_released()
    return held - began
