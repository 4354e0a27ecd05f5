"""The process that runs now. Through it, production code that reads "the" clock or opens "a" Kafka client finds its own.

Every process has its own event loop, and all code runs in one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.simulation.node import Node
from tests.simulation.store import Wire
from tests.simulation.whole.connection import Connection


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
    """Cancel what is left of a program after the run."""
    process.node.dispose()
    del _processes[process.node.loop]
