"""Objects in a dictionary, as strict as the real stores: the public twin for tests and simulations.

`Objects` is the store itself, which acts at once; `MemoryStore` is a client of it, with a timeout and faults. A simulation
that carries the requests over a network of its own acts on `Objects`, which the contract suite vouches for.

Versions are what S3 makes of a body, its MD5 in quotes, so writing the same bytes twice gives the same version
here too: a lock that relies on more would be found out. Only anyio is used, so the twin runs unchanged on
trio's virtual clock.

Faults are a hook with two sides, because a request that fails *before* the store acted and one whose answer is
lost *after* it acted are different stories with the same ending for the caller.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal, Protocol, Self, TypeAlias, TypeVar, assert_never

import anyio
import anyio.lowlevel
from anyio import AsyncContextManagerMixin

from lakewarden.agent.stores.locations import LocationError, parse_location
from lakewarden.agent.stores.port import MAX_OBJECT_BYTES, require_probe_key, require_timeout, too_long
from lakewarden.handlers.lease.conditional import (
    Absent,
    Condition,
    Found,
    IfAbsent,
    IfMatch,
    Lost,
    ReadOutcome,
    Refused,
    Throttled,
    Unknown,
    Won,
    WriteOutcome,
)


@dataclass(frozen=True, slots=True)
class Request:
    """What a fault may look at."""

    operation: Literal["read", "write", "delete"]
    uri: str
    body: bytes = b""
    condition: Condition | None = None


@dataclass(frozen=True, slots=True)
class DelayedDelivery:
    """The caller hears nothing (unknown), and the write reaches the store that much later, condition and all."""

    seconds: float


Fault: TypeAlias = Throttled | Unknown | Refused

_Outcome = TypeVar("_Outcome", bound=ReadOutcome | WriteOutcome | None)


class Faults(Protocol):
    """Both sides of a request. Either may sleep (`anyio.sleep`) for latency; None lets the request pass."""

    async def before(self, request: Request, /) -> Fault | DelayedDelivery | None:
        """The store has not acted, and won't if a fault is returned."""
        ...

    async def after(self, request: Request, outcome: ReadOutcome | WriteOutcome | None, /) -> Unknown | None:
        """The store has acted; all that can go wrong now is that the answer is lost."""
        ...


class Objects:
    """What is kept, and the compare and swap on it. `contents` is shared by those who were given the same."""

    def __init__(self, contents: dict[str, bytes] | None = None) -> None:
        self.contents: dict[str, bytes] = {} if contents is None else contents

    def get(self, key: str) -> Absent | Found:
        """Body and version of this instant."""
        body = self.contents.get(key)
        return Absent() if body is None else Found(body, version_of(body))

    def put(self, key: str, body: bytes, condition: Condition) -> Won | Lost:
        """Write if the condition holds at this instant."""
        stored = self.contents.get(key)
        match condition:
            case IfAbsent():
                if stored is not None:
                    return Lost("an object is there already")
            case IfMatch(version=version):
                if stored is None:
                    return Lost("no object is there")
                if version_of(stored) != version:
                    return Lost(f"another version is there: found={version_of(stored)} expected={version}")
            case _:
                assert_never(condition)
        self.contents[key] = body
        return Won(version_of(body))

    def remove(self, key: str) -> None:
        """Delete, whether it is there or not."""
        self.contents.pop(key, None)


def version_of(body: bytes) -> str:
    """The version that a body has wherever it is written, as S3's ETag."""
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


@dataclass(order=True, slots=True)
class _DelayedRequest:
    at: float
    order: int
    act: Callable[[], object] = field(compare=False)


class MemoryStore(AsyncContextManagerMixin):
    """Objects under any scheme. Stores given the same `objects` share them, as two agents share a bucket."""

    def __init__(
        self,
        *,
        request_timeout_seconds: float,
        objects: dict[str, bytes] | None = None,
        faults: Faults | None = None,
    ) -> None:
        self._timeout = require_timeout(request_timeout_seconds)
        self._objects = Objects(objects)
        self._faults = faults
        self._delayed: list[_DelayedRequest] = []
        self._arrivals = 0
        self._is_open = False

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        self._is_open = True
        try:
            yield self
        finally:
            self._is_open = False

    async def read(self, uri: str) -> ReadOutcome:
        """Body and version of this moment."""
        key = _locate(uri)
        if isinstance(key, Refused):
            return key
        return await self._request(Request("read", key), lambda: self._objects.get(key))

    async def write(self, uri: str, body: bytes, condition: Condition) -> WriteOutcome:
        """Compare and swap; nothing awaits between the two."""
        key = _locate(uri)
        if isinstance(key, Refused):
            return key
        if len(body) > MAX_OBJECT_BYTES:
            return Refused(too_long(len(body)))
        return await self._request(
            Request("write", key, body, condition), lambda: self._put(key, body, condition)
        )

    async def delete(self, uri: str) -> None:
        """Remove a probe's key."""
        require_probe_key(uri)
        key = _locate(uri)
        if isinstance(key, str):
            await self._request(Request("delete", key), lambda: self._objects.remove(key))

    async def _request(self, request: Request, act: Callable[[], _Outcome]) -> _Outcome | Fault:
        if not self._is_open:
            raise RuntimeError("the store is not open; use it inside 'async with'")
        silence = Unknown(f"no answer in time: request_timeout_seconds={self._timeout}")
        with anyio.move_on_after(self._timeout):
            fault = await self._faults.before(request) if self._faults else None
            # A store is asked over a network: other tasks always get their turn before it acts.
            await anyio.lowlevel.checkpoint()
            self._deliver_due()
            if isinstance(fault, DelayedDelivery):
                heapq.heappush(
                    self._delayed, _DelayedRequest(anyio.current_time() + fault.seconds, self._arrivals, act)
                )
                self._arrivals += 1
                await anyio.sleep_forever()
            elif fault is not None:
                return fault
            outcome = act()
            lost = await self._faults.after(request, outcome) if self._faults else None
            return outcome if lost is None else lost
        return silence

    def _deliver_due(self) -> None:
        """Let the writes that were under way all along arrive, in the order of their times."""
        while self._delayed and self._delayed[0].at <= anyio.current_time():
            heapq.heappop(self._delayed).act()

    def _put(self, key: str, body: bytes, condition: Condition) -> WriteOutcome:
        return self._objects.put(key, body, condition)


def _locate(uri: str) -> str | Refused:
    """One spelling for one object, refused where a real store would refuse it."""
    try:
        location = parse_location(uri)
    except LocationError as error:
        return Refused(str(error))
    return f"{location.scheme}://{location.authority}/{location.key}"
