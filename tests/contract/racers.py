"""The programs of the racing processes that `test_stores_racing.py` forks."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import anyio
import pytest

from lakewarden.agent.stores import ConditionalStore, LocalStore, open_store
from lakewarden.handlers.lease.conditional import (
    Condition,
    Found,
    IfAbsent,
    IfMatch,
    Lost,
    Throttled,
    Unknown,
    Won,
)
from tests.servers.memory_store import MemoryStore
from tests.tuned import tuned

# Each limit only ends a hang.
REQUEST_SECONDS = 60.0
BARRIER_SECONDS = 150.0


def with_variables(variables: dict[str, str], target: Callable[..., None], *arguments: Any) -> None:
    """Run the target in the environment of the test: the process is forked from one that has an earlier one."""
    os.environ.update(variables)
    target(*arguments)


@dataclass(frozen=True, slots=True)
class Place:
    """A store, and an unused folder in it, in a form that can be passed to another process."""

    folder: str
    root: Path | None = None
    endpoint: str | None = None

    def open(self, seconds: float = REQUEST_SECONDS) -> ConditionalStore:
        if self.folder.startswith("memory://"):
            return MemoryStore(request_timeout_seconds=seconds)
        endpoints = dict.fromkeys(("s3_endpoint", "gcs_endpoint", "azure_endpoint"), self.endpoint)
        settings = tuned(request_timeout_seconds=seconds, **endpoints)
        return open_store(self.folder if self.root is None else self.root.as_uri(), settings)

    def __truediv__(self, name: str) -> str:
        return f"{self.folder}/{name}"


def place_in(kind: str, request: pytest.FixtureRequest, folder: Path) -> Place:
    """A place in a store of this kind: in memory, in this folder, or on the session's server."""
    match kind:
        case "memory":
            return Place("memory://twin/locks")
        case "local":
            return Place(f"file://{folder}/new/locks", root=folder)
        case "az":
            azure = request.getfixturevalue("azure_credentials")
            return Place(f"az://{azure.container()}/locks", endpoint=azure.endpoint)
        case _:
            server = request.getfixturevalue({"s3": "s3_credentials", "gs": "gcs_credentials"}[kind])
            return Place(f"{kind}://{server.bucket()}/locks", endpoint=server.endpoint)


def race_for_rounds(place: Place, racer: int, rounds: int, gate: Barrier, results: Queue[Any]) -> None:
    """In each round, all processes create the same new object at once, then they all replace it at once."""

    async def race() -> list[str]:
        outcomes: list[str] = []
        async with place.open() as store:
            for number in range(rounds):
                uri = place / f"round-{number}.json"
                await _wait_for_all(gate)
                outcomes.append(await _settled_write(store, uri, f"{racer} created".encode(), IfAbsent()))
                await _wait_for_all(gate)
                found = await store.read(uri)
                assert isinstance(found, Found), found
                await _wait_for_all(gate)
                replaced = f"{racer} replaced".encode()
                outcomes.append(await _settled_write(store, uri, replaced, IfMatch(found.version)))
        return outcomes

    results.put((racer, anyio.run(race)))


async def _wait_for_all(gate: Barrier) -> None:
    await anyio.to_thread.run_sync(gate.wait, BARRIER_SECONDS)


async def _settled_write(store: ConditionalStore, uri: str, body: bytes, condition: Condition) -> str:
    """Write, and read back an inconclusive outcome; returns whether this process won."""
    outcome = await store.write(uri, body, condition)
    if isinstance(outcome, Unknown | Throttled):
        found = await store.read(uri)
        assert isinstance(found, Found), (outcome, found)
        return f"{type(outcome).__name__}, then {'won' if found.body == body else 'lost'}"
    return type(outcome).__name__.lower()


def count_up(place: Place, racer: int, times: int, gate: Barrier, results: Queue[Any]) -> None:
    """Add one to a shared counter `times` times, each time by compare-and-swap."""

    async def count() -> dict[str, int]:
        async with place.open() as store:
            await _wait_for_all(gate)
            return await increment(store, place / "counter.json", racer, times)

    results.put((racer, anyio.run(count)))


async def increment(
    store: ConditionalStore,
    uri: str,
    racer: int,
    times: int,
    pause: Callable[[float], Awaitable[None]] = anyio.sleep,
) -> dict[str, int]:
    """Read, add one, write if unchanged; returns how often each outcome occurred."""
    counts: dict[str, int] = {}
    for turn in range(times):
        while True:
            found = await store.read(uri)
            number = json.loads(found.body)["number"] if isinstance(found, Found) else 0
            condition = IfMatch(found.version) if isinstance(found, Found) else IfAbsent()
            body = json.dumps({"number": number + 1, "racer": racer, "turn": turn}).encode()
            outcome = await store.write(uri, body, condition)
            name = type(outcome).__name__.lower()
            counts[name] = counts.get(name, 0) + 1
            if isinstance(outcome, Won):
                break
            assert isinstance(outcome, Lost | Unknown | Throttled), outcome
            # A pause of different length for each loser avoids a livelock; this tests safety, not fairness.
            await pause(0.001 * (1 + racer))
    return counts


def rewrite_forever(root: str, uri: str) -> None:
    """Replace an object repeatedly until killed. The body contains its own length, so that half a body is recognised."""

    def started() -> None:
        Path(root, "started").touch()

    async def rewrite() -> None:
        async with LocalStore(root, request_timeout_seconds=REQUEST_SECONDS) as store:
            number = 0
            while True:
                number += 1
                found = await store.read(uri)
                condition = IfMatch(found.version) if isinstance(found, Found) else IfAbsent()
                await store.write(uri, whole_body(number), condition)
                started()

    anyio.run(rewrite)


def whole_body(number: int) -> bytes:
    filling = str(number) * 2000
    return json.dumps({"length": len(filling), "filling": filling}).encode()


def is_whole(body: bytes) -> bool:
    content = json.loads(body)
    return bool(content["length"] == len(content["filling"]))
