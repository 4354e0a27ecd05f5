"""Milliseconds per request of the stores: a conditional write over the version of the one before, and a read.

The stores are those that run without an account: memory, the local disk, and an S3 server on this machine. The object has the
size of a lock object. Nothing else uses the store, and each request waits for the one before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from lakewarden.agent.stores import ConditionalStore
from lakewarden.agent.stores.local import LocalStore
from lakewarden.agent.stores.s3 import S3Options, S3Store
from lakewarden.handlers.lease.conditional import Condition, Found, IfAbsent, IfMatch, Won
from lakewarden.handlers.lease.lock_object import LockRecord, render
from tests.bench.figures import shown, summary
from tests.bench.run import Figures, Run
from tests.servers.memory_store import MemoryStore
from tests.servers.s3 import S3Server

REQUEST_TIMEOUT_SECONDS = 2.0
"""The setting's default."""
OWNER = "0f8fad5b-d9cb-469f-a165-70867728950e"


def measure(run: Run, server: S3Server) -> Figures:
    """For each store, the milliseconds of a write and of a read."""
    run.folder.mkdir(parents=True, exist_ok=True)
    s3 = S3Options(endpoint_url=server.endpoint)
    stores: dict[str, tuple[ConditionalStore, str]] = {
        "memory": (MemoryStore(request_timeout_seconds=REQUEST_TIMEOUT_SECONDS), "memory://bench"),
        "local disk": (
            LocalStore(run.folder, request_timeout_seconds=REQUEST_TIMEOUT_SECONDS),
            run.folder.as_uri(),
        ),
        "S3": (S3Store(s3, request_timeout_seconds=REQUEST_TIMEOUT_SECONDS), f"s3://{server.bucket()}"),
    }
    return {
        kind: asyncio.run(_requests(store, f"{root}/locks/bench.json", run.size.store_requests))
        for kind, (store, root) in stores.items()
    }


async def _requests(opened: ConditionalStore, uri: str, requests: int) -> Figures:
    async with opened as store:
        await store.read(uri)  # loads the client's modules
        condition: Condition = IfAbsent()
        writes, reads = [], []
        for number in range(requests):
            body = render(LockRecord(expired=False, valid_until=1_800_000_000_000 + number, owner=OWNER))
            began = time.perf_counter()
            written = await store.write(uri, body, condition)
            ended = time.perf_counter()
            assert isinstance(written, Won), written
            found = await store.read(uri)
            reads.append((time.perf_counter() - ended) * 1e3)
            writes.append((ended - began) * 1e3)
            assert isinstance(found, Found)
            condition = IfMatch(found.version)
        return {"write_ms": summary(writes), "read_ms": summary(reads)}


def rows(report: Figures) -> Iterator[tuple[str, str, str]]:
    """A heading, and a row for each store."""
    yield ("one request to a store", "conditional write", "read")
    for kind, figures in report.items():
        yield kind, shown(figures["write_ms"], digits="2"), shown(figures["read_ms"], digits="2")
