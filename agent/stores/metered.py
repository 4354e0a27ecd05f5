"""Reports each request to a store, with its answer and its duration. Time in the queue of `limited.py` doesn't count."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Literal, Self, TypeAlias

from lakewarden.agent.clock import monotonic
from lakewarden.agent.stores.port import ConditionalStore
from lakewarden.handlers.lease.conditional import Condition, ReadOutcome, WriteOutcome

OnRequest: TypeAlias = Callable[[Literal["read", "write"], ReadOutcome | WriteOutcome, float], None]
"""Called with the operation, the answer and the seconds."""


class MeteredStore:
    """Passes requests to `store`, and reports those that are answered or time out to `on_request`."""

    def __init__(self, store: ConditionalStore, on_request: OnRequest) -> None:
        self._store = store
        self._on_request = on_request

    async def read(self, uri: str) -> ReadOutcome:
        since = monotonic()
        outcome = await self._store.read(uri)
        self._on_request("read", outcome, monotonic() - since)
        return outcome

    async def write(self, uri: str, body: bytes, condition: Condition) -> WriteOutcome:
        since = monotonic()
        outcome = await self._store.write(uri, body, condition)
        self._on_request("write", outcome, monotonic() - since)
        return outcome

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
