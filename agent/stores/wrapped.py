"""A store that passes each request to another one. A subclass adds something to some of them."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from lakewarden.agent.stores.port import ConditionalStore
from lakewarden.handlers.lease.conditional import Condition, ReadOutcome, WriteOutcome


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
