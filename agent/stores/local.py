"""Objects on the local disk, `file:///absolute/path`.

`disk.py` contains the blocking operations. This module runs them in threads, so that a slow disk delays only its own caller.
Waiting for another process is a sleep in the event loop, not a blocked thread.

A thread that hangs in a disk operation can't be cancelled. Its caller still gets `Unknown` within the timeout. At most
`_MAX_THREADS` threads run at once, hanging ones included.
"""

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
from anyio import CapacityLimiter

from lakewarden.agent.stores import disk
from lakewarden.agent.stores.disk import Busy, ObjectPath
from lakewarden.agent.stores.locations import Location
from lakewarden.agent.stores.port import LocatingStore, require_timeout
from lakewarden.handlers.lease.conditional import (
    Condition,
    ReadOutcome,
    Refused,
    Throttled,
    Unknown,
    WriteOutcome,
)

_MAX_THREADS: Final = 16
"""Limit for one store. Threads on a hanging disk accumulate, and without a limit the process would run out of memory."""

_FIRST_PAUSE_SECONDS: Final = 0.0005
_LONGEST_PAUSE_SECONDS: Final = 0.01
"""Pauses between tries for the file lock. A swap takes about a millisecond (two syncs), so longer pauses only add delay."""

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class _NoThreadFree:
    """All threads are in disk operations. Nothing was done."""


class LocalStore(LocatingStore[ObjectPath]):
    """Objects below one root folder. Every other path is refused, however it is spelled."""

    keeps_versions: bool | None = False

    def __init__(self, root: str | os.PathLike[str], *, request_timeout_seconds: float) -> None:
        self._timeout = require_timeout(request_timeout_seconds)
        folder = Path(root).absolute()
        if not folder.is_dir():
            raise ValueError(f"the root is not a folder; create it or choose another: root={folder}")
        self._root = folder.resolve()
        # The root itself is trusted, so a location may contain its symbolic links or the resolved path.
        self._spellings = (folder.parts[1:], self._root.parts[1:])
        self._threads: CapacityLimiter | None = None
        # Acquired and released in the threads: the limiter releases an abandoned thread before that has ended.
        self._disk_slots = threading.Semaphore(_MAX_THREADS)

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        self._threads = CapacityLimiter(_MAX_THREADS)
        try:
            yield self
        finally:
            self._threads = None

    async def _read(self, key: ObjectPath) -> ReadOutcome:
        return await self._retry_while_busy(partial(disk.read, key))

    async def _write(self, key: ObjectPath, body: bytes, condition: Condition) -> WriteOutcome:
        # A write that exceeds the timeout may still be applied, as on any store: it is unknown.
        return await self._retry_while_busy(partial(disk.swap, key, body, condition))

    async def _remove(self, key: ObjectPath) -> str | None:
        failure = await self._retry_while_busy(partial(disk.remove, key))
        return None if failure is None else failure.why

    async def _retry_while_busy(
        self, operation: Callable[[], _Result | Busy]
    ) -> _Result | Throttled | Unknown:
        """Run the operation, and retry within the timeout while another process has the file lock."""
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
        limit = f"request_timeout_seconds={self._timeout:g}"
        match obstacle:
            case None:
                return Unknown(f"the disk did not answer within the timeout: {limit}")
            case Busy():
                return Throttled(f"another process held the file lock: {limit}")
            case _NoThreadFree():
                return Throttled(f"{_MAX_THREADS} earlier disk operations have not ended: {limit}")

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

    def _key_of(self, location: Location, uri: str) -> ObjectPath | Refused:
        if location.scheme != "file" or location.authority not in {"", "localhost"}:
            return Refused(
                f"a local object's URI has the form file:///absolute/path: uri={uri!r}", unusable=True
            )
        if location.parts[-1].endswith((disk.LOCK_SUFFIX, disk.TEMPORARY_SUFFIX)):
            return Refused(
                f"this name is reserved for the lock files of other objects: uri={uri!r}", unusable=True
            )
        for spelling in self._spellings:
            below = location.parts[len(spelling) :]
            if below and location.parts[: len(spelling)] == spelling:
                return ObjectPath(self._root, below[:-1], below[-1])
        return Refused(
            f"the object is outside the root folder; choose a path below it: root={self._root} uri={uri!r}",
            unusable=True,
        )
