"""What an agent writes to the stdin of its watcher: the settings, then its assignment, again after each change. One line each."""

import base64
import pickle
from dataclasses import dataclass
from typing import Any

from lakewarden.agent.settings import Settings
from lakewarden.events.access import partition_of

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
