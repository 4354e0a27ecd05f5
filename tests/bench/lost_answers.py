"""The store's answer to one write of the lock object is lost: how long until a writer holds the lock again.

A proxy forwards the write and closes the connection instead of returning the store's answer. Both sides have a lease of
`LEASE_SECONDS` and renew it every `RENEW_SECONDS`. That is the shortest lease that Hudi accepts; its default is 300 s.

| the lost answer | measured |
| --- | --- |
| to the acquisition | from the request for the lock until the same writer holds it |
| to a renewal | from the loss until the writer has renewed its lease; if it is stopped, until another writer holds the lock |
| to the release | from the request for the release until another writer holds the lock |

In each case no other writer contends for the lock. The other writer is one that is started again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from statistics import median
from typing import Any

import anyio

from lakewarden.handlers.lease import machine as lease
from tests.bench import hudi_lock
from tests.bench.lock_parties import Party, keeping, s3_store
from tests.servers.proxy import Cut, Proxy
from tests.servers.s3 import S3Server

LEASE_SECONDS = 10
RENEW_SECONDS = 1
OPERATIONS = ("acquire", "renew", "release")

SETTINGS = lease.LeaseSettings(validity=LEASE_SECONDS, renew_interval=RENEW_SECONDS)
ANSWER = Cut(re.compile(rb"PUT "), answered=True, seconds=0.0)


def measure(server: S3Server, *, trials: int) -> dict[str, Any]:
    """Seconds of each case with the product: the median of the trials, and each."""
    return {
        name: _over_trials([{"seconds": anyio.run(_lose, server, name)} for _ in range(trials)])
        for name in OPERATIONS
    }


def measure_hudi(server: S3Server, *, trials: int) -> dict[str, Any]:
    """The same with Hudi's provider, and what became of the writer."""
    return {name: _over_trials([_lose_of_hudi(server, name) for _ in range(trials)]) for name in OPERATIONS}


def _over_trials(trials: list[dict[str, Any]]) -> dict[str, Any]:
    each = [round(trial["seconds"], 3) for trial in trials]
    return trials[0] | {"seconds": median(each), "each": each}


async def _lose(server: S3Server, operation: str) -> float:
    uri = f"s3://{server.bucket()}/locks/lost.json"
    with Proxy(server.endpoint) as proxy:
        async with AsyncExitStack() as stack:
            store = await stack.enter_async_context(s3_store(server, uri, proxy.endpoint))
            other_store = await stack.enter_async_context(s3_store(server, uri))
            party, other = Party("first", uri, store, SETTINGS), Party("other", uri, other_store, SETTINGS)
            await stack.enter_async_context(keeping(party, other))
            party.keeper.acquire(None)
            await party.acquired()
            if operation == "acquire":
                party.keeper.release()
                await party.keeper.wait_released()
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
                    party.keeper.release()
                    await party.keeper.wait_released()
                    other.keeper.acquire(None)
                    await other.acquired()
            took = time.time() - began
            assert proxy.cuts, "no answer was lost"
            return took


def _lose_of_hudi(server: S3Server, operation: str) -> dict[str, Any]:
    with Proxy(server.endpoint) as proxy:
        found = hudi_lock.run(
            f"lost-{operation}",
            server,
            lease_seconds=LEASE_SECONDS,
            endpoint=proxy.endpoint,
            on_ready=_arming(proxy),
        )
        assert proxy.cuts, "no answer was lost"
        lost_at = proxy.cut_at[0]
    if "held_at" not in found:
        return found
    stopped = found.get("interrupted_at")
    return {
        "seconds": found["held_at"] - lost_at,
        "stopped_after_seconds": None if stopped is None else round(stopped - lost_at, 3),
    }


def _arming(proxy: Proxy) -> Callable[[], None]:
    return lambda: proxy.arm(ANSWER)
