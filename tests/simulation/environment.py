"""What a program of the simulation is given: its node, its way to the store, who watches, chance, and when the run is fault_free."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.simulation.node import Node
from tests.simulation.oracles import Oracles
from tests.simulation.store import Wire


@dataclass(frozen=True, slots=True)
class Environment:
    """A node, and what is at hand there."""

    wire: Wire
    oracles: Oracles
    random: Random
    fault_free_from: float

    @property
    def node(self) -> Node:
        """The process itself."""
        return self.wire.node

    @property
    def fault_free(self) -> bool:
        """Whether the faults are over: from now on everybody finishes."""
        return self.node.timeline.now >= self.fault_free_from
