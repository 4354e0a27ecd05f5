"""What a simulated program can use: its node, its way to the store, the oracles, and randomness."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.simulation.node import Node
from tests.simulation.oracles import Oracles
from tests.simulation.store import Wire


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment of one program."""

    wire: Wire
    oracles: Oracles
    random: Random
    fault_free_from: float

    @property
    def node(self) -> Node:
        """The process of the program."""
        return self.wire.node

    @property
    def fault_free(self) -> bool:
        """Whether the faults have ended. From now on every program finishes."""
        return self.node.timeline.now >= self.fault_free_from
