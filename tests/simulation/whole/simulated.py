"""The simulation of the whole system, for the batch runner."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tests.simulation.batch import Simulation
from tests.simulation.whole.additions import scenario_of
from tests.simulation.whole.drawing import draw_kind
from tests.simulation.whole.planted import BUGS
from tests.simulation.whole.run import CountedOutcome, run, stream
from tests.simulation.whole.scenario import VERSION


def _may_reveal(bug: str, seed: int) -> bool:
    """Most bugs show soon in hard runs, or by an addition."""
    if (addition := BUGS[bug].addition) is not None:
        return bool(getattr(scenario_of(seed, partial(stream, seed)).additions, addition))
    return draw_kind(stream(seed, "scenario")) == (BUGS[bug].kind or "hard")


def _counts(outcome: CountedOutcome) -> Mapping[str, int]:
    return {"commits": outcome.commits, "commits after their grant without a fence": outcome.windows}


SIMULATION = Simulation(
    module="tests.simulation.whole",
    version=VERSION,
    run=run,
    bugs=BUGS,
    seeds_file=Path(__file__).with_name("failing_seeds.txt"),
    seeds_at_once=5,
    may_reveal=_may_reveal,
    counts=_counts,
)
