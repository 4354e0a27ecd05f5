"""All clock readings and random values of the agent, so that a simulation can replace them in one place.

`monotonic` includes the time for which the machine was suspended, where the system has such a clock (CLOCK_BOOTTIME). Leases of
other processes go on running while a machine sleeps, so this one's must too.
"""

import random
import time
import uuid
from datetime import UTC, datetime

from lakewarden.handlers.lease.machine import Moment

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def monotonic() -> float:
    """Seconds of a clock that never goes back."""
    return time.clock_gettime(_CLOCK)


def moment() -> Moment:
    """The current time with a new owner id and a jitter, as the lock's state machine expects them."""
    return Moment(monotonic(), wall_ms(), str(uuid.uuid4()), random.random())


def wall_ms() -> int:
    """Wall-clock time in Unix milliseconds."""
    return time.time_ns() // 1_000_000


def utc_now() -> datetime:
    """Wall-clock time for the field `at` of an event; no decision depends on it."""
    return datetime.now(UTC)


def fresh_id() -> str:
    """A new unique id."""
    return uuid.uuid4().hex
