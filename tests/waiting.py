"""Waiting for another task, thread or process: look until it holds. The bound ends a test that hangs, and measures nothing."""

import time
from collections.abc import Callable
from typing import TypeVar

import anyio

PATIENCE_SECONDS = 120.0
"""A busy machine may use most of it."""
POLL_SECONDS = 0.01

T = TypeVar("T")


async def until(holds: Callable[[], T], seconds: float = PATIENCE_SECONDS) -> T:
    """Wait in a task until `holds` returns a true value. Return that value."""
    with anyio.fail_after(seconds):
        while not (found := holds()):
            await anyio.sleep(POLL_SECONDS)
    return found


def wait_until(holds: Callable[[], T], seconds: float = PATIENCE_SECONDS) -> T:
    """The same in a thread."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, f"the condition was not true within {seconds:g} s"
        time.sleep(POLL_SECONDS)
    return found
