"""Time and chance for the core, read in one place.

Monotonic time counts a suspended machine's sleep where the system can (CLOCK_BOOTTIME): the others' leases run on
while a laptop is closed, and so must ours.
"""

from __future__ import annotations

import random
import time
import uuid
from datetime import UTC, datetime

from lakewarden.handlers.lease.machine import Moment

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def monotonic() -> float:
    """Seconds that never go back."""
    return time.clock_gettime(_CLOCK)


def moment() -> Moment:
    """Now, with a fresh id and a random share, as the lock's automaton takes them."""
    return Moment(monotonic(), time.time_ns() // 1_000_000, str(uuid.uuid4()), random.random())


def utc_now() -> datetime:
    """Wall time for the `at` of an event: informative only."""
    return datetime.now(UTC)


def fresh_id() -> str:
    """An id that no other event has."""
    return uuid.uuid4().hex
