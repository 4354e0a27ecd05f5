"""The simulation of the lock, for the batch runner."""

from __future__ import annotations

from pathlib import Path

from tests.simulation.batch import Simulation
from tests.simulation.planted import BUGS
from tests.simulation.run import run
from tests.simulation.scenario import VERSION

SIMULATION = Simulation(
    module="tests.simulation",
    version=VERSION,
    run=run,
    bugs=BUGS,
    seeds_file=Path(__file__).with_name("failing_seeds.txt"),
    seeds_at_once=10,
)
