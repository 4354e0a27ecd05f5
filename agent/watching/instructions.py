"""What an agent writes to the stdin of its watcher: the settings, then its assignment, again after each change. One line each."""

from __future__ import annotations

import base64
import json
import pickle
from dataclasses import dataclass

from lakewarden.agent.settings import Settings
from lakewarden.events.access import partition_of

MAX_LINE_BYTES = 16 * 1024 * 1024
"""Of the settings, which may name thousands of tables."""


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


def encode_assignment(assignment: Assignment) -> bytes:
    """The line of an assignment."""
    return json.dumps([assignment.partitions, sorted(assignment.own)]).encode() + b"\n"


def decode_assignment(line: bytes) -> Assignment:
    """The assignment of a line."""
    partitions, own = json.loads(line)
    return Assignment(partitions, frozenset(own))


def encode_settings(settings: Settings) -> bytes:
    """The line of the settings. It has their secrets, so it goes through a pipe, and not into the environment or a file."""
    return base64.b64encode(pickle.dumps(settings)) + b"\n"


def decode_settings(line: bytes) -> Settings:
    """The settings of a line, as the agent has read and checked them."""
    settings = pickle.loads(base64.b64decode(line))  # noqa: S301 - only the agent writes to the pipe
    assert isinstance(settings, Settings)
    return settings
