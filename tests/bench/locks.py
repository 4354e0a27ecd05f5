"""The cost of one lock on an S3 server: acquire, renew, release, and the hand-over from one agent to another.

- acquire: an existing free lock, from the request until the keeper confirms the lease.
- renew: from when the renewal is due until the keeper confirms it.
- release: from the request until the keeper reports it. All three with one client and a direct connection to the server.
- requests: counted by a proxy before the server, in separate rounds.
- hand-over: two agents, each with its own store client, producer and consumer. One holds the lock, the other was denied and
  waits. Measured from the holder's release until the other one holds the lock.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import anyio

from lakewarden.agent.settings import Settings
from lakewarden.events import AuditEventUnion, LockReleased
from lakewarden.handlers.lease import machine as lease
from tests.bench.figures import over_runs, summary
from tests.bench.lock_parties import AuditLog, Party, audit_log, keeping, s3_store
from tests.servers.proxy import Proxy
from tests.servers.s3 import S3Server

OPERATIONS = ("acquire", "renew", "release")
COUNTED_ROUNDS = 10
SOON = lease.LeaseSettings(renew_interval=0.01)
"""Renews almost immediately, so that a round doesn't take three seconds."""
WARM_UP = 5
SETTLE_SECONDS = 0.02
"""Pause between two hand-overs, in which all published events are consumed."""


async def measure_operations(server: S3Server, *, rounds: int, repetitions: int) -> dict[str, Any]:
    """Milliseconds of each operation over the repetitions, and the number of its requests."""
    bucket = server.bucket()
    report: dict[str, Any] = {"rounds": rounds, "repetitions": repetitions}
    runs = []
    for number in range(repetitions):
        uri = f"s3://{bucket}/locks/one-{number}.json"
        async with s3_store(server, uri) as store:
            party = Party("only", uri, store, SOON)
            async with keeping(party):
                await _round(party)  # creates the object
                times = [await _round(party) for _ in range(rounds)]
        runs.append({name: summary([each[name] * 1e3 for each in times]) for name in OPERATIONS})
    with Proxy(server.endpoint) as proxy:
        requests = await _count(server, proxy, f"s3://{bucket}/locks/counted.json")
    for name in OPERATIONS:
        report[name] = {"ms": over_runs([run[name] for run in runs]), "requests": requests[name]}
    return report


async def _round(party: Party) -> dict[str, float]:
    """Seconds of each operation."""
    requested = time.perf_counter()
    party.keeper.acquire(None)
    acquired = await party.acquired()
    due = party.store.writes[-1][0] + SOON.renew_interval
    renewed, _ = await party.wait_for(lease.Confirmed, "renewed")
    began = max(due, party.store.writes[-1][0])
    release_requested = time.perf_counter()
    party.keeper.release()
    released, _ = await party.wait_for(lease.Released)
    return {
        "acquire": acquired - requested,
        "renew": renewed - began,
        "release": released - release_requested,
    }


async def _count(server: S3Server, proxy: Proxy, uri: str) -> dict[str, float]:
    """The requests of each operation that arrived at the proxy: the mean of some rounds."""
    counts = dict.fromkeys(OPERATIONS, 0)
    async with s3_store(server, uri, proxy.endpoint) as store:
        party = Party("counted", uri, store, lease.LeaseSettings(renew_interval=0.2))
        async with keeping(party):
            await _counted_round(party, proxy)
            for _ in range(COUNTED_ROUNDS):
                for name, count in (await _counted_round(party, proxy)).items():
                    counts[name] += count
    return {name: count / COUNTED_ROUNDS for name, count in counts.items()}


async def _counted_round(party: Party, proxy: Proxy) -> dict[str, int]:
    totals = [proxy.requests.total()]
    party.keeper.acquire(None)
    await party.acquired()
    totals.append(proxy.requests.total())
    await party.wait_for(lease.Confirmed, "renewed")
    totals.append(proxy.requests.total())
    party.keeper.release()
    await party.wait_for(lease.Released)
    totals.append(proxy.requests.total())
    counts = [after - before for before, after in itertools.pairwise(totals)]
    return dict(zip(OPERATIONS, counts, strict=True))


async def measure_hand_over(server: S3Server, settings: Settings, *, rounds: int) -> dict[str, Any]:
    """Milliseconds from the request for the release until the other agent holds the lock: the whole, and each part."""
    uri = f"s3://{server.bucket()}/locks/handed-over.json"
    async with (
        audit_log(settings) as log,
        audit_log(settings) as other_log,
        s3_store(server, uri) as store,
        s3_store(server, uri) as other_store,
    ):
        holder = Side(Party("first", uri, store, lease.LeaseSettings(), log.publish), log)
        waiter = Side(Party("second", uri, other_store, lease.LeaseSettings(), other_log.publish), other_log)
        async with keeping(holder.party, waiter.party):
            holder.party.keeper.acquire(None)
            await holder.party.acquired()
            times = []
            for _ in range(WARM_UP + rounds):
                times.append(await _hand_over(holder, waiter))
                holder, waiter = waiter, holder
            holder.party.keeper.release()
            await holder.party.keeper.wait_released()
    parts = {name: [each[name] for each in times[WARM_UP:]] for name in times[0]}
    requests = parts.pop("requests")
    return {
        "rounds": rounds,
        "requests": round(sum(requests) / rounds, 2),
        "ms": {name: summary([each * 1e3 for each in values]) for name, values in parts.items()},
    }


class Side:
    """A party with its own audit log, and when it last observed a release of the other one."""

    def __init__(self, party: Party, log: AuditLog) -> None:
        self.party = party
        self.observed_at = 0.0
        log.listeners.append(self._observe)

    def _observe(self, event: AuditEventUnion) -> None:
        if isinstance(event, LockReleased) and event.agent != self.party.name:
            self.observed_at = time.perf_counter()
        self.party.observe(event)


async def _hand_over(holder: Side, waiter: Side) -> dict[str, float]:
    """Seconds of the whole and its parts, and the number of the waiter's requests. Afterwards the waiter holds the lock."""
    waiter.party.keeper.acquire(None)
    await waiter.party.wait_for(lease.LockDenied)
    await anyio.sleep(SETTLE_SECONDS)
    before = waiter.party.store.requests
    began = time.perf_counter()
    holder.party.keeper.release()
    held = await waiter.party.acquired()
    await holder.party.keeper.wait_released()
    released, read = holder.party.store.writes[-1][1], waiter.party.store.reads[-1][1]
    return {
        "whole": held - began,
        "release": released - began,
        "kafka": waiter.observed_at - released,
        "read": read - waiter.observed_at,
        "write": held - read,
        "requests": waiter.party.store.requests - before,
    }
