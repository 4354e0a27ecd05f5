"""Run one seed with its trace, or many seeds.

python -m tests.simulation.whole --seed 17 --trace
python -m tests.simulation.whole --seed 3 --trace --planted "lapse too early"
python -m tests.simulation.whole --seeds 2000            the first 2,000
python -m tests.simulation.whole --seeds 2000-3000       the thousand after them
"""

from __future__ import annotations

import sys

from tests.simulation.command import main
from tests.simulation.whole.simulated import SIMULATION

if __name__ == "__main__":
    sys.exit(main(SIMULATION, __doc__))
