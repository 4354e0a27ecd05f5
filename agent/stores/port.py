"""What the lock needs of a store: one conditional read and one conditional write, each bounded in time.

Every adapter answers with an outcome of `lakewarden.handlers.lease.conditional` and never with an exception,
because "lost", "throttled" and "unknown" are what the lock's automaton decides on; an exception would
fold them into "failed". Only two things leave a method otherwise: cancellation, which passes through,
and a mistake in our own code (a negative timeout, a delete of something that isn't the probe's).
"""

from __future__ import annotations

from types import TracebackType
from typing import Final, Protocol, Self

from lakewarden.handlers.lease.conditional import Condition, ReadOutcome, WriteOutcome

MAX_OBJECT_BYTES: Final = 1024 * 1024
"""Longest object read or written. A lock is under 200 bytes and a table's pointer a few KiB, so whatever is
longer isn't ours, and reading it whole would let a stranger's object eat the agent's memory."""

PROBE_FOLDER: Final = ".lakewarden-probe"
"""The only folder `delete` touches: a lock object is never deleted (a holder's if-match would find nothing)."""

MAX_WHY_CHARACTERS: Final = 300
"""A reason goes to logs and events; a store's error page must not."""


class ConditionalStore(Protocol):
    """A store that writes under a condition. Use it inside `async with`; `request_timeout_seconds` bounds each call."""

    async def read(self, uri: str) -> ReadOutcome:
        """Body and version of one moment, or why not."""
        ...

    async def write(self, uri: str, body: bytes, condition: Condition) -> WriteOutcome:
        """Write the whole object if the condition holds: one request, never sent twice by anybody below."""
        ...

    async def delete(self, uri: str) -> None:
        """Remove a probe's own key, as well as it goes: a store that forbids it leaves a few bytes behind."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
        /,
    ) -> bool | None: ...


def require_timeout(seconds: float) -> float:
    """A timeout that bounds something: positive and finite."""
    if not 0 < seconds < float("inf"):
        raise ValueError(
            f"request_timeout_seconds must be positive and finite: request_timeout_seconds={seconds}"
        )
    return seconds


def require_probe_key(uri: str) -> None:
    """Deleting anything but a probe's key is a bug, and one that could free a held lock."""
    if f"/{PROBE_FOLDER}/" not in uri:
        raise ValueError(f"only keys below {PROBE_FOLDER}/ are ever deleted: uri={uri}")


def too_long(length: int) -> str:
    """Why an object past the bound is left alone."""
    return f"longer than the {MAX_OBJECT_BYTES} bytes a lock may take; is it really one? bytes={length}"


def shorten(why: str) -> str:
    """One line of bounded length."""
    return " ".join(why.split())[:MAX_WHY_CHARACTERS]
