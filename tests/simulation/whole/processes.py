"""The process that runs now. Through it, production code that reads "the" clock or opens "a" Kafka client finds its own.

Every process has its own event loop, and all code runs in one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.simulation.loop import enter
from tests.simulation.node import TIMER_LATENESS_SECONDS, Node
from tests.simulation.store import Wire
from tests.simulation.whole.connection import Connection

MAX_UNWINDING = 100_000
"""Callbacks after which a cancelled program counts as never ending."""


@dataclass(slots=True)
class Process:
    """A process and what it can use."""

    node: Node
    random: Random
    kafka: Connection
    store: Wire
    report_violation: Callable[[str, str], None]
    """Records a violation."""
    cluster: str | None = "kafka"
    """The id of the Kafka cluster, as this process knows it."""


_processes: dict[asyncio.AbstractEventLoop, Process] = {}


def current_process() -> Process:
    """Return the process that runs now."""
    return _processes[asyncio.get_running_loop()]


def register(process: Process) -> Process:
    """Register a process, so that production code finds it while it runs."""
    _processes[process.node.loop] = process
    return process


def dispose(process: Process) -> None:
    """Cancel what is left of a program after the run. Its time advances until it has ended."""
    node = process.node
    tasks = [each for each in asyncio.all_tasks(node.loop) if not each.done()]
    main = getattr(node, "_main")  # noqa: B009 - the lock's simulation disposes of its programs differently
    enter(node.loop)
    try:
        if main is not None:
            main.cancel()
        _unwind(node, [main] if main is not None else [])
        for each in tasks:
            each.cancel()
        _unwind(node, tasks)
        for each in tasks:
            if each.done() and not each.cancelled():
                each.exception()
    finally:
        enter(None)
        node.loop.close()
        del _processes[node.loop]


def _unwind(node: Node, tasks: list[asyncio.Task[Any]]) -> None:
    for _ in range(MAX_UNWINDING):
        if node.loop.run_one():
            continue
        when = node.loop.next_timer()
        if when is None or all(each.done() for each in tasks):
            return
        node.timeline.now = max(node.timeline.now, node.true_time(when)) + TIMER_LATENESS_SECONDS
        node.loop.queue_due_timers()
