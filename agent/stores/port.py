"""The interface between the lock and a store: a read and a conditional write, each with a timeout.

Every adapter returns an outcome of `lakewarden.handlers.lease.conditional` and raises no exception. The lock's state machine
distinguishes "lost", "throttled" and "unknown"; an exception would merge them into "failed". Only two things raise:
cancellation, which passes through, and a programming error (a negative timeout, a delete outside the probe's folder).
"""

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import cached_property
from typing import Final, Generic, Literal, Protocol, TypeAlias, TypeVar

import anyio
import structlog
from anyio import AsyncContextManagerMixin

from lakewarden.agent.clock import monotonic
from lakewarden.agent.stores.locations import Location, LocationError, parse_location
from lakewarden.handlers.lease.conditional import Condition, ReadOutcome, Refused, WriteOutcome

log = structlog.get_logger(__name__)

Key = TypeVar("Key")
_Outcome = TypeVar("_Outcome", bound=ReadOutcome | WriteOutcome)

MAX_CONCURRENT: Final = 32
"""At 30 ms per cloud request this allows a thousand requests a second, far more than one process can send. It is less than
the size of the adapters' connection pools, so that no request waits for a connection."""

OnRequest: TypeAlias = Callable[[Literal["read", "write"], ReadOutcome | WriteOutcome, float], None]
"""Called with the operation, the answer and the seconds."""

MAX_OBJECT_BYTES: Final = 1024 * 1024
"""Longest object that is read or written. A lock object has less than 200 bytes, so a longer object is not a lock. Reading it
whole would let a foreign object fill the agent's memory."""

PROBE_FOLDER: Final = ".lakewarden-probe"
"""The only folder that `delete` accepts. A lock object is never deleted: its holder's next write if-match would find nothing."""


class ConditionalStore(AbstractAsyncContextManager["ConditionalStore"], Protocol):
    """A store with conditional writes. Use it inside `async with`; `request_timeout_seconds` bounds each call."""

    requests: int
    """How many were sent, deletions included."""
    seconds_between_writes: float
    """How long the store wants between two writes of one object. The probe keeps to it; a lock writes less often."""
    keeps_versions: bool | None
    """Whether each write adds a version that the store keeps, as the last write's answer said. None: not known."""
    on_request: OnRequest
    """Called with each request that is answered or times out, without its time in the queue."""

    async def read(self, uri: str) -> ReadOutcome:
        """Read the body and the version that belongs to it."""
        ...

    async def write(self, uri: str, body: bytes, condition: Condition) -> WriteOutcome:
        """Write the whole object if the condition holds. One request is sent, and no layer below resends it."""
        ...

    async def delete(self, uri: str) -> None:
        """Delete a probe's key. If the store forbids it, log a warning and leave the key behind."""
        ...


class LocatingStore(AsyncContextManagerMixin, Generic[Key]):
    """What all stores do with a request: they refuse what names none of their objects and what is too long, limit and report.

    Many locks can be due at the same moment: an agent starts with a thousand open tables, or its process was suspended. If all
    their requests were sent at once, they would share one processor and one connection pool, and most would time out before
    they were sent. Each of these unknown outcomes must be read back, which adds load. So at most `MAX_CONCURRENT` are sent at
    once, first come, first served. A lease counts from when its write was decided, so the time in this queue shortens it.
    """

    requests = 0
    seconds_between_writes = 0.0
    keeps_versions: bool | None = None
    on_request: OnRequest = lambda *_: None

    @cached_property
    def _slots(self) -> anyio.Semaphore:
        return anyio.Semaphore(MAX_CONCURRENT, fast_acquire=True)

    @abstractmethod
    def _key_of(self, location: Location, uri: str) -> Key | Refused:
        """What names the object in this store, or why it is none."""

    @abstractmethod
    async def _read(self, key: Key) -> ReadOutcome: ...

    @abstractmethod
    async def _write(self, key: Key, body: bytes, condition: Condition) -> WriteOutcome: ...

    @abstractmethod
    async def _remove(self, key: Key) -> str | None:
        """Delete a probe's key. Return why that failed, if it did."""

    async def read(self, uri: str) -> ReadOutcome:
        key = self._locate(uri)
        return key if isinstance(key, Refused) else await self._sent("read", lambda: self._read(key))

    async def write(self, uri: str, body: bytes, condition: Condition) -> WriteOutcome:
        key = self._locate(uri)
        if isinstance(key, Refused):
            return key
        if len(body) > MAX_OBJECT_BYTES:
            return Refused(too_long(len(body)))
        return await self._sent("write", lambda: self._write(key, body, condition))

    async def _sent(
        self, operation: Literal["read", "write"], request: Callable[[], Awaitable[_Outcome]]
    ) -> _Outcome:
        async with self._slots:
            self.requests += 1
            since = monotonic()
            outcome = await request()
            self.on_request(operation, outcome, monotonic() - since)
            return outcome

    async def delete(self, uri: str) -> None:
        if f"/{PROBE_FOLDER}/" not in uri:
            raise ValueError(f"only keys below {PROBE_FOLDER}/ can be deleted: uri={uri}")
        key = self._locate(uri)
        async with self._slots:
            self.requests += 1
            why = key.why if isinstance(key, Refused) else await self._remove(key)
        if why is not None:
            log.warning("store.probe_key_left_behind", uri=uri, why=why)

    def _locate(self, uri: str) -> Key | Refused:
        try:
            return self._key_of(parse_location(uri), uri)
        except LocationError as error:
            return Refused(str(error), unusable=True)


def require_timeout(seconds: float) -> float:
    """Return the timeout, or raise `ValueError` unless it is positive and finite."""
    if not 0 < seconds < float("inf"):
        raise ValueError(
            f"request_timeout_seconds must be positive and finite: request_timeout_seconds={seconds}"
        )
    return seconds


def too_long(length: int) -> str:
    """The reason for refusing an object longer than `MAX_OBJECT_BYTES`."""
    return f"the object is not a lock: it is longer than {MAX_OBJECT_BYTES} bytes: bytes={length}"
