"""A limit on concurrent requests to one store. The others wait here, before their request timeout starts.

Many locks can be due at the same moment: an agent starts with a thousand open tables, or its process was suspended. If all
their requests were sent at once, they would share one processor and one connection pool, and most would time out before they
were sent. Each of these unknown outcomes must be read back, which adds load. In a queue, the store answers them all in time.

A lease counts from when its write was decided, so the time spent waiting here shortens it. A lease that can't be confirmed in
time is lost as usual.
"""

from __future__ import annotations

from typing import Final

import anyio

from lakewarden.agent.stores.port import ConditionalStore
from lakewarden.agent.stores.wrapped import WrappedStore
from lakewarden.handlers.lease.conditional import Condition, ReadOutcome, WriteOutcome

MAX_CONCURRENT: Final = 32
"""At 30 ms per cloud request this allows a thousand requests a second, far more than one process can send. It is less than
the size of the adapters' connection pools, so that no request waits for a connection."""


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
