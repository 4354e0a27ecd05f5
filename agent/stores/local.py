"""Objects on the local disk, `file:///absolute/path`, for tables and lock roots that lie there.

The swap itself is in `disk.py` and blocks; here it runs in threads, so a slow disk delays its own caller and
nobody else, and waiting for another process is a sleep of the event loop and not a thread that hangs.

A thread that hangs in the disk can't be called back. Its caller is answered in time all the same, and the thread counts until
it ends: when `_MAX_THREADS` hang, nothing more is begun.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Self, TypeVar

import anyio
import anyio.to_thread
import structlog
from anyio import AsyncContextManagerMixin, CapacityLimiter

from lakewarden.agent.stores import disk
from lakewarden.agent.stores.disk import Busy, ObjectPath
from lakewarden.agent.stores.locations import LocationError, parse_location
from lakewarden.agent.stores.port import MAX_OBJECT_BYTES, require_probe_key, require_timeout, too_long
from lakewarden.handlers.lease.conditional import (
    Condition,
    ReadOutcome,
    Refused,
    Throttled,
    Unknown,
    WriteOutcome,
)

log = structlog.get_logger(__name__)

_MAX_THREADS: Final = 16
"""Of one store at once. A disk that hangs keeps them; a process that started more and more would run out of memory."""

_FIRST_PAUSE_SECONDS: Final = 0.0005
_LONGEST_PAUSE_SECONDS: Final = 0.01
"""Between tries for the file lock. A swap takes about a millisecond (two syncs), so longer pauses only add waiting."""

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class _NoThreadFree:
    """As many threads as may be are still in the disk: nothing was done."""


class LocalStore(AsyncContextManagerMixin):
    """Files below one root. Everything outside is refused, however its path is spelled."""

    def __init__(self, root: str | os.PathLike[str], *, request_timeout_seconds: float) -> None:
        self._timeout = require_timeout(request_timeout_seconds)
        given = Path(root).absolute()
        if not given.is_dir():
            raise ValueError(f"the allowed root is no folder; create it or name another: root={given}")
        self._root = given.resolve()
        # The root itself is trusted, so a location may spell it with its links or without them.
        self._spellings = (given.parts[1:], self._root.parts[1:])
        self._threads: CapacityLimiter | None = None
        # Taken and given back in the threads themselves: the limiter lets go of a thread that is given up on.
        self._disk_slots = threading.Semaphore(_MAX_THREADS)

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        self._threads = CapacityLimiter(_MAX_THREADS)
        try:
            yield self
        finally:
            self._threads = None

    async def read(self, uri: str) -> ReadOutcome:
        """Body and version of one moment."""
        path = self._locate(uri)
        if isinstance(path, Refused):
            return path
        return await self._retry_while_busy(partial(disk.read, path))

    async def write(self, uri: str, body: bytes, condition: Condition) -> WriteOutcome:
        """Compare and swap. One given up on in time may still land, as on any store: it is unknown."""
        path = self._locate(uri)
        if isinstance(path, Refused):
            return path
        if len(body) > MAX_OBJECT_BYTES:
            return Refused(too_long(len(body)))
        return await self._retry_while_busy(partial(disk.swap, path, body, condition))

    async def delete(self, uri: str) -> None:
        """Remove a probe's key."""
        require_probe_key(uri)
        path = self._locate(uri)
        given = (
            path if isinstance(path, Refused) else await self._retry_while_busy(partial(disk.remove, path))
        )
        if given is not None:
            log.warning("store.probe_key_left_behind", uri=uri, why=given.why)

    async def _retry_while_busy(
        self, operation: Callable[[], _Result | Busy]
    ) -> _Result | Throttled | Unknown:
        """Act as soon as no other process is at it, within the timeout."""
        obstacle: Busy | _NoThreadFree | None = None
        with anyio.move_on_after(self._timeout):
            pause = _FIRST_PAUSE_SECONDS
            while True:
                obstacle = None
                result = await self._in_thread(operation)
                if not isinstance(result, Busy | _NoThreadFree):
                    return result
                obstacle = result
                await anyio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        within = f"request_timeout_seconds={self._timeout:g}"
        match obstacle:
            case None:
                return Unknown(f"the disk did not answer in time: {within}")
            case Busy():
                return Throttled(f"another process kept the file lock: {within}")
            case _NoThreadFree():
                return Throttled(
                    f"the disk has not answered {_MAX_THREADS} requests before this one: {within}"
                )

    async def _in_thread(self, operation: Callable[[], _Result]) -> _Result | _NoThreadFree:
        if self._threads is None:
            raise RuntimeError("the store is not open; use it inside 'async with'")

        def run_with_slot() -> _Result | _NoThreadFree:
            if not self._disk_slots.acquire(blocking=False):
                return _NoThreadFree()
            try:
                return operation()
            finally:
                self._disk_slots.release()

        return await anyio.to_thread.run_sync(run_with_slot, abandon_on_cancel=True, limiter=self._threads)

    def _locate(self, uri: str) -> ObjectPath | Refused:
        try:
            location = parse_location(uri)
        except LocationError as error:
            return Refused(str(error))
        if location.scheme != "file" or location.authority not in {"", "localhost"}:
            return Refused(f"a local object is written file:///absolute/path: uri={uri!r}")
        if location.parts[-1].endswith((disk.LOCK_SUFFIX, disk.TEMPORARY_SUFFIX)):
            return Refused(f"that name belongs to another object's lock: uri={uri!r}")
        for spelling in self._spellings:
            below = location.parts[len(spelling) :]
            if below and location.parts[: len(spelling)] == spelling:
                return ObjectPath(self._root, below[:-1], below[-1])
        return Refused(
            f"outside the allowed root; name a path below it or allow another: root={self._root} uri={uri!r}"
        )
