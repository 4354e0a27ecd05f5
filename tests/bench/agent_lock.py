"""The agent's lock on an S3 server: production keepers, each with its own store client.

- acquire: an existing free lock, from the request until the keeper confirms the lease.
- renew: from when the renewal is due until the keeper confirms it.
- release: from the request until the keeper reports it. All three with one client and a direct connection to the server.
- requests: counted by a proxy before the server, in separate rounds.
- hand-over: two agents, each with its own store client, producer and consumer. One holds the lock, the other was denied and
  waits. Measured from the holder's release until the other one holds the lock.
- contention: the contenders share a process, its producer and its consumer of the audit topic, as Hudi's share a JVM. The
  benchmark asserts that no two of them hold the lock at once.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import AsyncExitStack

import anyio

from lakewarden.agent.kafka import ensure_topics
from lakewarden.handlers.lease import machine as lease
from tests.bench.figures import over_runs, summary
from tests.bench.lock_parties import Party, audit_log, keeping, s3_store
from tests.bench.locks import ANSWER, CONTENDERS, HOLD_SECONDS, LOST_LEASE, OPERATIONS, Span, contention
from tests.bench.run import Figures, Run
from tests.servers.proxy import Proxy
from tests.servers.s3 import S3Server

COUNTED_ROUNDS = 10
SOON = lease.LeaseSettings(renew_interval=0.01)
"""Renews almost immediately, so that a round doesn't take three seconds."""
WARM_UP = 5
SETTLE_SECONDS = 0.02
"""Pause between two hand-overs, in which all published events are consumed."""


class AgentLock:
    """The product."""

    title = "the lock"

    def __init__(self, run: Run, server: S3Server) -> None:
        self._server = server
        self._settings = settings = run.settings()
        asyncio.run(ensure_topics(settings, settings.topics, settings.partitions, settings.replication))

    def operations(self, rounds: int, repetitions: int) -> Figures:
        return asyncio.run(self._operations(rounds, repetitions))

    def hand_over(self, rounds: int) -> dict[str, float]:
        return asyncio.run(self._hand_over(rounds))

    def contend(self, seconds: float, endpoint: str | None) -> dict[str, float]:
        return asyncio.run(self._contend(seconds, endpoint))

    def lose(self, operation: str) -> Figures:
        return {"seconds": asyncio.run(self._lose(operation))}

    async def _operations(self, rounds: int, repetitions: int) -> Figures:
        bucket = self._server.bucket()
        runs = []
        for number in range(repetitions):
            uri = f"s3://{bucket}/locks/one-{number}.json"
            async with s3_store(self._server, uri) as store:
                party = Party("only", uri, store, SOON)
                async with keeping(party):
                    await _round(party)  # creates the object
                    times = [await _round(party) for _ in range(rounds)]
            runs.append({name: summary([each[name] * 1e3 for each in times]) for name in OPERATIONS})
        with Proxy(self._server.endpoint) as proxy:
            requests = await self._count(proxy, f"s3://{bucket}/locks/counted.json")
        return {
            name: {"ms": over_runs([run[name] for run in runs]), "requests": requests[name]}
            for name in OPERATIONS
        }

    async def _count(self, proxy: Proxy, uri: str) -> dict[str, float]:
        """The requests of each operation that arrived at the proxy: the mean of some rounds."""
        async with s3_store(self._server, uri, proxy.endpoint) as store:
            party = Party("counted", uri, store, lease.LeaseSettings(renew_interval=0.2))
            async with keeping(party):
                await _counted_round(party, proxy)
                rounds = [await _counted_round(party, proxy) for _ in range(COUNTED_ROUNDS)]
        return {
            name: sum(each[number] for each in rounds) / COUNTED_ROUNDS
            for number, name in enumerate(OPERATIONS)
        }

    async def _hand_over(self, rounds: int) -> dict[str, float]:
        """Milliseconds from the request for the release until the other agent holds the lock."""
        uri = f"s3://{self._server.bucket()}/locks/handed-over.json"
        async with AsyncExitStack() as stack:
            parties = []
            for name in ("first", "second"):
                log = await stack.enter_async_context(audit_log(self._settings))
                store = await stack.enter_async_context(s3_store(self._server, uri))
                parties.append(Party(name, uri, store, lease.LeaseSettings(), log.publish))
                log.listeners.append(parties[-1].observe)
            holder, waiter = parties
            await stack.enter_async_context(keeping(holder, waiter))
            holder.keeper.acquire(None)
            await holder.acquired()
            times = []
            for _ in range(WARM_UP + rounds):
                times.append(await _hand_over(holder, waiter) * 1e3)
                holder, waiter = waiter, holder
            await holder.release()
        return summary(times[WARM_UP:])

    async def _contend(self, seconds: float, endpoint: str | None) -> dict[str, float]:
        uri = f"s3://{self._server.bucket()}/locks/contended.json"
        async with AsyncExitStack() as stack:
            log = await stack.enter_async_context(audit_log(self._settings))
            parties = []
            for number in range(CONTENDERS):
                store = await stack.enter_async_context(s3_store(self._server, uri, endpoint))
                parties.append(Party(f"contender-{number}", uri, store, lease.LeaseSettings(), log.publish))
            log.listeners.extend(party.observe for party in parties)
            await stack.enter_async_context(keeping(*parties))
            contest = Contest()
            async with anyio.create_task_group() as tasks:
                for number, party in enumerate(parties):
                    tasks.start_soon(contest.contend, number, party)
                await anyio.sleep(seconds)
                contest.over = True
                took = time.perf_counter() - contest.began
        return contention(contest.spans, took)

    async def _lose(self, operation: str) -> float:
        """Seconds until a writer holds the lock again."""
        uri = f"s3://{self._server.bucket()}/locks/lost.json"
        async with AsyncExitStack() as stack:
            proxy = stack.enter_context(Proxy(self._server.endpoint))
            store = await stack.enter_async_context(s3_store(self._server, uri, proxy.endpoint))
            other_store = await stack.enter_async_context(s3_store(self._server, uri))
            party = Party("first", uri, store, LOST_LEASE)
            other = Party("other", uri, other_store, LOST_LEASE)
            await stack.enter_async_context(keeping(party, other))
            party.keeper.acquire(None)
            await party.acquired()
            if operation == "acquire":
                await party.release()
            proxy.arm(ANSWER)
            began = time.time()
            match operation:
                case "acquire":
                    party.keeper.acquire(None)
                    await party.acquired()
                case "renew":
                    while not proxy.cut_at:
                        await party.wait_for(lease.Confirmed, "renewed")
                    began = proxy.cut_at[0]
                case _:
                    await party.release()
                    other.keeper.acquire(None)
                    await other.acquired()
            took = time.time() - began
            assert proxy.cuts, "no answer was lost"
            return took


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


class Contest:
    """The contenders of one run, and when each requested and held the lock."""

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
            await party.release()
