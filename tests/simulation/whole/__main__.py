"""Run one seed with its trace, or many seeds.

python -m tests.simulation.whole --seed 17 --trace
python -m tests.simulation.whole --seed 3 --trace --planted "lapse too early"
python -m tests.simulation.whole --seeds 2000            the first 2,000
python -m tests.simulation.whole --seeds 2000-3000       the thousand after them
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from tests.simulation.batch import Simulation
from tests.simulation.command import main
from tests.simulation.whole.additions import scenario_of
from tests.simulation.whole.drawing import draw_kind
from tests.simulation.whole.planted import BUGS
from tests.simulation.whole.run import run, stream
from tests.simulation.whole.scenario import VERSION


def _may_reveal(bug: str, seed: int) -> bool:
    """Most bugs show soon in hard runs, or by an addition."""
    if (addition := BUGS[bug].addition) is not None:
        return bool(getattr(scenario_of(seed, partial(stream, seed)).additions, addition))
    return draw_kind(stream(seed, "scenario")) == (BUGS[bug].kind or "hard")


SIMULATION = Simulation(
    module="tests.simulation.whole",
    version=VERSION,
    run=run,
    bugs=BUGS,
    seeds_file=Path(__file__).with_name("failing_seeds.txt"),
    seeds_at_once=5,
    may_reveal=_may_reveal,
)

if __name__ == "__main__":
    sys.exit(main(SIMULATION, __doc__))
