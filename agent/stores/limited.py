"""At most so many requests to a store at once; the others wait here, before their own time begins to run.

Many locks may be wanted, or fall due, at one moment: an agent starts on a thousand open tables, or its process stood still for
a while. Sent together, their requests share one processor and one pool of connections, and most would time out before they
are sent: unknown outcomes, each to be read back, which makes more of what was too much already. One after the other they
are answered well in time.

A lease counts from when its write was decided on, so what it waits here is taken off it, and a lease that can't be confirmed
in time is given up meanwhile as ever.
"""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

import anyio

from lakewarden.agent.stores.port import ConditionalStore
from lakewarden.handlers.lease.conditional import Condition, ReadOutcome, WriteOutcome

MAX_CONCURRENT: Final = 32
"""At 30 ms a request, as clouds take, a thousand a second: far more than one process can send. Fewer than the adapters'
connections, so that nobody waits for one of these."""


class LimitedStore:
    """A store that is asked by at most `max_concurrent` at once, in the order of asking."""

    def __init__(self, store: ConditionalStore, max_concurrent: int = MAX_CONCURRENT) -> None:
        self._store = store
        self._slots = anyio.Semaphore(max_concurrent, fast_acquire=True)

    async def read(self, uri: str) -> ReadOutcome:
        async with self._slots:
            return await self._store.read(uri)

    async def write(self, uri: str, body: bytes, condition: Condition) -> WriteOutcome:
        async with self._slots:
            return await self._store.write(uri, body, condition)

    async def delete(self, uri: str) -> None:
        async with self._slots:
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
