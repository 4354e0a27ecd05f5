"""What taking, renewing and giving back one lock costs on an S3 server, and handing it over from one agent to another.

- acquire: an existing free lock; from the wish until the table is told that it may rely on it. Renew: from the moment the
  renewal is due. Release: from the wish until it is told. One client, nobody else, straight to the server.
- requests: counted by a proxy in front of the server, in rounds of their own.
- hand-over: two agents, each with its own store client, producer and consumer. One holds the lock, the other has been refused
  and waits. From the holder's wish to release until the other is told that it holds it.
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
from tests.bench.store_proxy import StoreProxy
from tests.servers.s3 import S3Server

OPERATIONS = ("acquire", "renew", "release")
COUNTED_ROUNDS = 10
SOON = lease.LeaseSettings(renew_interval=0.01)
"""Renews at once, so that a round takes no three seconds."""
WARM_UP = 5
SETTLE_SECONDS = 0.02
"""Between two hand-overs: until everything that was told is heard."""


async def measure_operations(server: S3Server, *, rounds: int, repetitions: int) -> dict[str, Any]:
    """Milliseconds of each operation over the repetitions, and requests of each."""
    bucket = server.bucket()
    report: dict[str, Any] = {"rounds": rounds, "repetitions": repetitions}
    runs = []
    for number in range(repetitions):
        uri = f"s3://{bucket}/locks/one-{number}.json"
        async with s3_store(server, uri) as store:
            party = Party("only", uri, store, SOON)
            async with keeping(party):
                await _round(party)  # creates the object
                took = [await _round(party) for _ in range(rounds)]
        runs.append({name: summary([each[name] * 1e3 for each in took]) for name in OPERATIONS})
    with StoreProxy(server.endpoint) as proxy:
        requests = await _count(server, proxy, f"s3://{bucket}/locks/counted.json")
    for name in OPERATIONS:
        report[name] = {"ms": over_runs([run[name] for run in runs]), "requests": requests[name]}
    return report


async def _round(party: Party) -> dict[str, float]:
    """Seconds of each operation."""
    wanted = time.perf_counter()
    party.keeper.acquire(None)
    acquired = await party.acquired()
    due = party.store.writes[-1][0] + SOON.renew_interval
    renewed, _ = await party.told(lease.Confirmed, "renewed")
    began = max(due, party.store.writes[-1][0])
    dropped = time.perf_counter()
    party.keeper.release()
    released, _ = await party.told(lease.Released)
    return {"acquire": acquired - wanted, "renew": renewed - began, "release": released - dropped}


async def _count(server: S3Server, proxy: StoreProxy, uri: str) -> dict[str, float]:
    """Requests of each operation as they arrived at the proxy, the mean of some rounds."""
    counts = dict.fromkeys(OPERATIONS, 0)
    async with s3_store(server, uri, proxy.endpoint) as store:
        party = Party("counted", uri, store, lease.LeaseSettings(renew_interval=0.2))
        async with keeping(party):
            await _counted_round(party, proxy)
            for _ in range(COUNTED_ROUNDS):
                for name, count in (await _counted_round(party, proxy)).items():
                    counts[name] += count
    return {name: count / COUNTED_ROUNDS for name, count in counts.items()}


async def _counted_round(party: Party, proxy: StoreProxy) -> dict[str, int]:
    totals = [proxy.requests().total()]
    party.keeper.acquire(None)
    await party.acquired()
    totals.append(proxy.requests().total())
    await party.told(lease.Confirmed, "renewed")
    totals.append(proxy.requests().total())
    party.keeper.release()
    await party.told(lease.Released)
    totals.append(proxy.requests().total())
    counts = [after - before for before, after in itertools.pairwise(totals)]
    return dict(zip(OPERATIONS, counts, strict=True))


async def measure_hand_over(server: S3Server, settings: Settings, *, rounds: int) -> dict[str, Any]:
    """Milliseconds from the wish to release until the other holds it, as a whole and part by part."""
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
            took = []
            for _ in range(WARM_UP + rounds):
                took.append(await _hand_over(holder, waiter))
                holder, waiter = waiter, holder
            holder.party.keeper.release()
            await holder.party.keeper.wait_released()
    parts = {name: [each[name] for each in took[WARM_UP:]] for name in took[0]}
    requests = parts.pop("requests")
    return {
        "rounds": rounds,
        "requests": round(sum(requests) / rounds, 2),
        "ms": {name: summary([each * 1e3 for each in values]) for name, values in parts.items()},
    }


class Side:
    """A party with an audit log of its own, and when it heard last that the other has released the lock."""

    def __init__(self, party: Party, log: AuditLog) -> None:
        self.party = party
        self.heard_at = 0.0
        log.listeners.append(self._hear)

    def _hear(self, event: AuditEventUnion) -> None:
        if isinstance(event, LockReleased) and event.agent != self.party.name:
            self.heard_at = time.perf_counter()
        self.party.hear(event)


async def _hand_over(holder: Side, waiter: Side) -> dict[str, float]:
    """Seconds of the whole and its parts, and the waiter's requests, after which it holds the lock."""
    waiter.party.keeper.acquire(None)
    await waiter.party.told(lease.LockDenied)
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
        "kafka": waiter.heard_at - released,
        "read": read - waiter.heard_at,
        "write": held - read,
        "requests": waiter.party.store.requests - before,
    }
