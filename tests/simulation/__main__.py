"""Run one seed with its trace, or many seeds.

python -m tests.simulation --seed 17 --trace
python -m tests.simulation --seed 39 --trace --planted "409 treated as lost"
python -m tests.simulation --seeds 20000            the first 20,000
python -m tests.simulation --seeds 20000-30000      the ten thousand after them
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.simulation.batch import Simulation
from tests.simulation.command import main
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

if __name__ == "__main__":
    sys.exit(main(SIMULATION, __doc__))
