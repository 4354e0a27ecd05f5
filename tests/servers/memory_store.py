"""An in-memory store for tests and simulations, as strict as the real stores.

`Objects` is the store, without any delay. `MemoryStore` is a client of it, with a timeout and injected faults. The contract
suite tests both. The simulations, which have a network of their own, use `Objects`.

A version is the body's MD5 in quotes, as on S3. So writing the same bytes twice returns the same version, and tests find a
lock that relies on more. The module uses only anyio and therefore also runs on trio's virtual clock.

`Faults` has two hooks. A request may fail *before* the store acted, or its answer may be lost *after* the store acted. The
caller sees the same, but the object differs.
"""

import hashlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal, Protocol, Self, TypeAlias, TypeVar, assert_never

import anyio
import anyio.lowlevel

from lakewarden.agent.stores.locations import Location
from lakewarden.agent.stores.port import LocatingStore, require_timeout
from lakewarden.handlers.lease import conditional


@dataclass(frozen=True, slots=True)
class Request:
    """The request that a fault hook can inspect."""

    operation: Literal["read", "write", "delete"]
    uri: str
    body: bytes = b""
    condition: conditional.Condition | None = None


Fault: TypeAlias = conditional.Throttled | conditional.Unknown | conditional.Refused

_Outcome = TypeVar("_Outcome", bound=conditional.ReadOutcome | conditional.WriteOutcome | None)


class Faults(Protocol):
    """Hooks before and after the store acts. Each may sleep (`anyio.sleep`) for latency; None means no fault."""

    async def before(self, request: Request, /) -> Fault | None:
        """Return a fault to keep the store from acting."""
        ...

    async def after(
        self, request: Request, outcome: conditional.ReadOutcome | conditional.WriteOutcome | None, /
    ) -> conditional.Unknown | None:
        """Return `Unknown` to lose the answer. The store has already acted."""
        return None


class Objects:
    """The objects, and compare-and-swap on them. Instances with the same `contents` share the objects."""

    def __init__(self, contents: dict[str, bytes] | None = None) -> None:
        self.contents: dict[str, bytes] = {} if contents is None else contents

    def get(self, key: str) -> conditional.Absent | conditional.Found:
        body = self.contents.get(key)
        return conditional.Absent() if body is None else conditional.Found(body, version_of(body))

    def put(
        self, key: str, body: bytes, condition: conditional.Condition
    ) -> conditional.Won | conditional.Lost:
        stored = self.contents.get(key)
        match condition:
            case conditional.IfAbsent():
                if stored is not None:
                    return conditional.Lost("the object exists already")
            case conditional.IfMatch(version=version):
                if stored is None:
                    return conditional.Lost("the object does not exist")
                if version_of(stored) != version:
                    return conditional.Lost(
                        f"the object has another version: found={version_of(stored)} expected={version}"
                    )
            case _:
                assert_never(condition)
        self.contents[key] = body
        return conditional.Won(version_of(body))

    def remove(self, key: str) -> None:
        self.contents.pop(key, None)


def version_of(body: bytes) -> str:
    """The version of an object with this body, as S3's ETag."""
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


class MemoryStore(LocatingStore[str]):
    """A client for objects under any scheme. Clients with the same `objects` share them, as two agents share a bucket."""

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
        self._is_open = False

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        self._is_open = True
        try:
            yield self
        finally:
            self._is_open = False

    def _key_of(self, location: Location, uri: str) -> str:
        return f"{location.scheme}://{location.authority}/{location.key}"

    async def _read(self, key: str) -> conditional.ReadOutcome:
        return await self._request(Request("read", key), lambda: self._objects.get(key))

    async def _write(
        self, key: str, body: bytes, condition: conditional.Condition
    ) -> conditional.WriteOutcome:
        # Compare and swap, without an await in between.
        return await self._request(
            Request("write", key, body, condition), lambda: self._objects.put(key, body, condition)
        )

    async def _remove(self, key: str) -> None:
        await self._request(Request("delete", key), lambda: self._objects.remove(key))

    async def _request(self, request: Request, act: Callable[[], _Outcome]) -> _Outcome | Fault:
        if not self._is_open:
            raise RuntimeError("the store is not open; use it inside 'async with'")
        timed_out = conditional.Unknown(
            f"no answer within the timeout: request_timeout_seconds={self._timeout}"
        )
        with anyio.move_on_after(self._timeout):
            fault = await self._faults.before(request) if self._faults else None
            # As with a request over a network, other tasks run before the store acts.
            await anyio.lowlevel.checkpoint()
            if fault is not None:
                return fault
            outcome = act()
            lost = await self._faults.after(request, outcome) if self._faults else None
            return outcome if lost is None else lost
        return timed_out
