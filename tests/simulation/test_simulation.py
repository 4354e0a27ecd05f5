"""The production state machine and shell through five hundred seeds, and proof that the oracles find bugs."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Executor, Future

import pytest

from tests.simulation import oracles
from tests.simulation.planted import BUGS
from tests.simulation.required import (
    require_bug_found,
    require_every_oracle_has_a_bug,
    require_no_violation,
    require_planted_bugs_removed,
    require_reproducible_in_another_process,
)
from tests.simulation.run import run, stream
from tests.simulation.scenario import draw
from tests.simulation.simulated import SIMULATION
from tests.simulation.timeline import format_line

SEEDS = 500
SEEDS_A_TEST = 100
SEEDS_A_BUG = 400
"""Seeds per planted bug. Most bugs are found within 20."""


def test_seeds_that_failed_once_pass(pool: Executor) -> None:
    require_no_violation(SIMULATION, SIMULATION.failed_seeds(), pool)


FIRST_SEEDS = [
    pytest.param(0, marks=pytest.mark.unit),
    *(pytest.param(first, marks=pytest.mark.wide) for first in range(SEEDS_A_TEST, SEEDS, SEEDS_A_TEST)),
]
"""The first seed of each test; `make unit` and `make test` run the first test."""


@pytest.mark.parametrize("first", FIRST_SEEDS)
def test_no_oracle_is_violated(first: int, pool: Executor) -> None:
    require_no_violation(SIMULATION, range(first, first + SEEDS_A_TEST), pool)


@pytest.fixture(scope="module")
def hunts(pool: Executor) -> dict[str, Future[Counter[str]]]:
    return {bug: SIMULATION.hunt(bug, range(SEEDS_A_BUG), pool) for bug in BUGS}


@pytest.mark.wide
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found_by_its_oracle(bug: str, hunts: dict[str, Future[Counter[str]]]) -> None:
    require_bug_found(SIMULATION, bug, hunts[bug].result())


def test_every_oracle_has_a_planted_bug() -> None:
    require_every_oracle_has_a_bug(SIMULATION, oracles.__doc__, "tests/simulation/")


def test_planted_bugs_are_removed_afterwards() -> None:
    require_planted_bugs_removed(SIMULATION)


def test_a_seed_gives_the_same_run_in_another_process() -> None:
    require_reproducible_in_another_process(SIMULATION, 8)


def test_the_scenarios_contain_every_kind_of_fault() -> None:
    """The seeds of the suite contain every kind of fault. A scenario that is never drawn proves nothing."""
    drawn = [draw(stream(seed, "scenario")) for seed in range(SEEDS)]

    assert {scenario.kind for scenario in drawn} == {"fault-free", "usual", "clocks apart"}
    assert {len(scenario.hudi) for scenario in drawn} == {0, 1, 2}
    assert {scenario.assumed.settings.strict for scenario in drawn} == {False, True}
    assert any(scenario.tampering for scenario in drawn)
    assert any(scenario.forged_hints for scenario in drawn)
    assert any(stop.seconds is None for each in drawn for machine in each.agents for stop in machine.stops)
    assert {period.what for scenario in drawn for period in scenario.profile.periods} == {
        "outage",
        "throttling",
        "conflicts",
        "slow",
        "cut off",
        "refusals",
    }


def test_a_trace_contains_requests_and_acquisitions() -> None:
    trace = "\n".join(format_line(line) for line in run(1).trace)

    assert " → PUT lock-1 if-absent" in trace
    assert " acquired lock-1 as " in trace
