"""The simulation of the whole, as the batch runner knows it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.simulation.batch import Simulation
from tests.simulation.whole.planted import BUGS, SHOWN_BY
from tests.simulation.whole.run import CountedOutcome, run, stream
from tests.simulation.whole.scenario import VERSION, draw_kind


def _may_show(bug: str, seed: int) -> bool:
    return draw_kind(stream(seed, "scenario")) == SHOWN_BY.get(bug, "hard")


def _counts(outcome: CountedOutcome) -> Mapping[str, int]:
    return {"commits": outcome.commits, "in the window that no lock closes": outcome.windows}


SIMULATION = Simulation(
    module="tests.simulation.whole",
    version=VERSION,
    run=run,
    bugs=BUGS,
    kept=Path(__file__).with_name("failing_seeds.txt"),
    seeds_at_once=5,
    worth_hunting=_may_show,
    counts=_counts,
)
