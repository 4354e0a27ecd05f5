"""What each of several racing processes does to one object. Run as spawned processes by `test_stores_racing.py`."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import anyio

from lakewarden.agent.stores import ConditionalStore, open_store
from lakewarden.agent.stores.s3 import S3Options
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

REQUEST_SECONDS = 10.0
BARRIER_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Ground:
    """Where the race takes place, in a form that another process can be given."""

    folder: str
    root: str | None = None
    endpoint: str | None = None

    def open(self, seconds: float = REQUEST_SECONDS) -> ConditionalStore:
        s3 = S3Options(endpoint_url=self.endpoint, region="us-east-1")
        return open_store(
            self.folder, request_timeout_seconds=seconds, root=self.root, s3=s3, endpoint=self.endpoint
        )


def race_for_rounds(ground: Ground, who: int, rounds: int, gate: Barrier, results: Queue[Any]) -> None:
    """Each round twice: everyone creates the same new object at once, then everyone replaces it at once."""

    async def race() -> list[str]:
        told: list[str] = []
        async with ground.open() as store:
            for number in range(rounds):
                uri = f"{ground.folder}/round-{number}.json"
                await _at_once(gate)
                told.append(await _try(store, uri, f"{who} created".encode(), IfAbsent()))
                await _at_once(gate)
                found = await store.read(uri)
                assert isinstance(found, Found), found
                await _at_once(gate)
                told.append(await _try(store, uri, f"{who} replaced".encode(), IfMatch(found.version)))
        return told

    results.put((who, anyio.run(race)))


async def _at_once(gate: Barrier) -> None:
    await anyio.to_thread.run_sync(gate.wait, BARRIER_SECONDS)


async def _try(store: ConditionalStore, uri: str, body: bytes, condition: Condition) -> str:
    """A process' own verdict: an answer that leaves it open is read back."""
    outcome = await store.write(uri, body, condition)
    if isinstance(outcome, Unknown | Throttled):
        found = await store.read(uri)
        assert isinstance(found, Found), (outcome, found)
        return f"{type(outcome).__name__}, then {'won' if found.body == body else 'lost'}"
    return type(outcome).__name__.lower()


def count_up(ground: Ground, who: int, times: int, gate: Barrier, results: Queue[Any]) -> None:
    """Add one to the same number so many times, each time by compare-and-swap."""

    async def count() -> dict[str, int]:
        async with ground.open() as store:
            await _at_once(gate)
            return await increment(store, f"{ground.folder}/counter.json", who, times)

    results.put((who, anyio.run(count)))


async def increment(
    store: ConditionalStore,
    uri: str,
    who: int,
    times: int,
    pause: Callable[[float], Awaitable[None]] = anyio.sleep,
) -> dict[str, int]:
    """Read, add one, write if unchanged; what each write was told, counted by outcome."""
    told: dict[str, int] = {}
    for turn in range(times):
        while True:
            found = await store.read(uri)
            number = json.loads(found.body)["number"] if isinstance(found, Found) else 0
            condition = IfMatch(found.version) if isinstance(found, Found) else IfAbsent()
            body = json.dumps({"number": number + 1, "who": who, "turn": turn}).encode()
            outcome = await store.write(uri, body, condition)
            name = type(outcome).__name__.lower()
            told[name] = told.get(name, 0) + 1
            if isinstance(outcome, Won):
                break
            assert isinstance(outcome, Lost | Unknown | Throttled), outcome
            # Who lost waits a little, each for another while: this measures safety, not fairness.
            await pause(0.001 * (1 + who))
    return told


def rewrite_forever(root: str, uri: str) -> None:
    """Replace an object again and again until killed: the body says its own length, so half of one shows."""

    def started() -> None:
        Path(root, "started").touch()

    async def rewrite() -> None:
        async with open_store(uri, request_timeout_seconds=REQUEST_SECONDS, root=root) as store:
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
    told = json.loads(body)
    return bool(told["length"] == len(told["filling"]))
