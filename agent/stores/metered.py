"""Reports each request to a store, with its answer and its duration. Time in the queue of `limited.py` doesn't count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from lakewarden.agent.clock import monotonic
from lakewarden.agent.stores.port import ConditionalStore
from lakewarden.agent.stores.wrapped import WrappedStore
from lakewarden.handlers.lease.conditional import Condition, ReadOutcome, WriteOutcome

OnRequest: TypeAlias = Callable[[Literal["read", "write"], ReadOutcome | WriteOutcome, float], None]
"""Called with the operation, the answer and the seconds."""


class MeteredStore(WrappedStore):
    """Passes requests to `store`, and reports those that are answered or time out to `on_request`."""

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
