"""Stores that pass each request to another one, and add a report of it, or a limit.

Many locks can be due at the same moment: an agent starts with a thousand open tables, or its process was suspended. If all
their requests were sent at once, they would share one processor and one connection pool, and most would time out before they
were sent. Each of these unknown outcomes must be read back, which adds load. In a queue, the store answers them all in time.

A lease counts from when its write was decided, so the time spent waiting here shortens it. A lease that can't be confirmed in
time is lost as usual.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Final, Literal, Self, TypeAlias

import anyio

from lakewarden.agent.clock import monotonic
from lakewarden.agent.stores.port import ConditionalStore
from lakewarden.handlers.lease.conditional import Condition, ReadOutcome, WriteOutcome

MAX_CONCURRENT: Final = 32
"""At 30 ms per cloud request this allows a thousand requests a second, far more than one process can send. It is less than
the size of the adapters' connection pools, so that no request waits for a connection."""

OnRequest: TypeAlias = Callable[[Literal["read", "write"], ReadOutcome | WriteOutcome, float], None]
"""Called with the operation, the answer and the seconds."""


class WrappedStore:
    """Opens and closes `store` with itself."""

    def __init__(self, store: ConditionalStore) -> None:
        self._store = store

    async def read(self, uri: str) -> ReadOutcome:
        return await self._store.read(uri)

    async def write(self, uri: str, body: bytes, condition: Condition) -> WriteOutcome:
        return await self._store.write(uri, body, condition)

    async def delete(self, uri: str) -> None:
        await self._store.delete(uri)

    async def __aenter__(self) -> Self:
        await self._store.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
        /,
    ) -> bool | None:
        return await self._store.__aexit__(exc_type, exc_val, exc_tb)


class LimitedStore(WrappedStore):
    """Sends at most `max_concurrent` requests at once to `store`, first come, first served."""

    def __init__(self, store: ConditionalStore, max_concurrent: int = MAX_CONCURRENT) -> None:
        super().__init__(store)
        self._slots = anyio.Semaphore(max_concurrent, fast_acquire=True)

    async def read(self, uri: str) -> ReadOutcome:
        async with self._slots:
            return await super().read(uri)

    async def write(self, uri: str, body: bytes, condition: Condition) -> WriteOutcome:
        async with self._slots:
            return await super().write(uri, body, condition)

    async def delete(self, uri: str) -> None:
        async with self._slots:
            await super().delete(uri)


class MeteredStore(WrappedStore):
    """Passes requests to `store`, and reports those that are answered or time out, without their time in a queue."""

    def __init__(self, store: ConditionalStore, on_request: OnRequest) -> None:
        super().__init__(store)
        self._on_request = on_request

    async def read(self, uri: str) -> ReadOutcome:
        since = monotonic()
        outcome = await super().read(uri)
        self._on_request("read", outcome, monotonic() - since)
        return outcome

    async def write(self, uri: str, body: bytes, condition: Condition) -> WriteOutcome:
        since = monotonic()
        outcome = await super().write(uri, body, condition)
        self._on_request("write", outcome, monotonic() - since)
        return outcome
