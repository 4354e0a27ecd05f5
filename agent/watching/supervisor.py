"""Keeps the agent's watcher running, a child process: docs/decisions/0054-watching-in-the-agent.md.

The watcher starts with the agent's first assignment. When it fails, that is logged, and it starts again after a back-off. No
failure of it reaches the agent.

The agent writes to the watcher's stdin: the settings, then its assignment, again after each change. One line each.
"""

import base64
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

import anyio
import structlog
from anyio.abc import ByteSendStream

from lakewarden.agent.bound_child import bound
from lakewarden.agent.clock import monotonic
from lakewarden.agent.settings import Settings
from lakewarden.events.access import partition_of

log = structlog.get_logger(__name__)

COMMAND = (sys.executable, "-P", "-m", "lakewarden.agent.watching.child")
RETRY_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Back-off between two starts; the last value repeats, until a watcher has run for `HEALTHY_SECONDS`."""
HEALTHY_SECONDS = 60.0
ASSIGNMENT_SECONDS = 1.0
"""Between two looks whether the assignment has changed."""

MAX_LINE_BYTES = 16 * 1024 * 1024
"""Limit of the settings, which may name thousands of tables."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The partitions of `writers` that the consumer group has assigned to an agent. Its watcher watches their tables."""

    partitions: int
    """How many there are."""
    own: frozenset[int]
    """Those of the agent."""

    def has(self, table: str) -> bool:
        """Whether the table's events are in one of the agent's partitions."""
        return partition_of(table, self.partitions) in self.own


def encode(instruction: Settings | Assignment) -> bytes:
    """A line. The settings have their secrets, so they go through a pipe, and not into the environment or a file."""
    return base64.b64encode(pickle.dumps(instruction)) + b"\n"


def decode(line: bytes) -> Any:
    """What a line has: the settings as the agent has read and checked them, or an assignment."""
    return pickle.loads(base64.b64decode(line))  # noqa: S301 - only the agent writes to the pipe


Assigned = Callable[[], Assignment | None]
"""The agent's present assignment, or None between two assignments: the former one counts until then."""


async def keep_watching(
    settings: Settings,
    assigned: Assigned,
    *,
    log_to: IO[str] | None = None,
    command: tuple[str, ...] = COMMAND,
) -> None:
    """Run the watcher until cancelled. Call it in the main thread (`bound_child.py`). It logs to `log_to` (None: stdout)."""
    while assigned() is None:  # noqa: ASYNC110 - it is a function of the session's state, which has no event
        await anyio.sleep(ASSIGNMENT_SECONDS)
    failures = 0
    while True:
        began = monotonic()
        ended = await _run(settings, assigned, log_to, command)
        failures = 0 if monotonic() - began >= HEALTHY_SECONDS else failures
        wait = RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)]
        failures += 1
        log.warning("watch.ended", why=ended, retry_seconds=wait, detail="the agent starts its watcher again")
        await anyio.sleep(wait)


async def _run(
    settings: Settings, assigned: Assigned, log_to: IO[str] | None, command: tuple[str, ...]
) -> str:
    """Run one process until it ends. Return why it has ended. A cancellation kills it."""
    try:
        with anyio.CancelScope(shield=True):  # cancelled in between, it would not be waited for
            process = await anyio.open_process(
                bound(command), stdin=subprocess.PIPE, stdout=log_to, stderr=None, start_new_session=True
            )
    except OSError as error:
        return f"the process could not be started: {error}"
    async with process, anyio.create_task_group() as tasks:
        assert process.stdin is not None
        tasks.start_soon(_instruct, process.stdin, settings, assigned)
        status = await process.wait()
        tasks.cancel_scope.cancel()
    return f"exit status {status}" if status >= 0 else f"signal {-status}"


async def _instruct(stdin: ByteSendStream, settings: Settings, assigned: Assigned) -> None:
    known: Assignment | None = None
    try:
        await stdin.send(encode(settings))
        while True:
            current = assigned()
            if current is not None and current != known:
                await stdin.send(encode(current))
                known = current
            await anyio.sleep(ASSIGNMENT_SECONDS)
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        return  # the process has ended
