"""The production state machine and shell through five hundred seeds, and proof that the oracles find bugs."""

from __future__ import annotations

from typing import ClassVar

from tests.simulation import oracles
from tests.simulation.__main__ import SIMULATION
from tests.simulation.required import SimulationTests
from tests.simulation.run import run, stream
from tests.simulation.scenario import draw
from tests.simulation.timeline import format_line

SEEDS = 500


class TestSimulation(SimulationTests):
    simulation = SIMULATION
    oracles: ClassVar = oracles
    seeds = SEEDS
    seeds_a_test = 100
    seeds_a_bug = 400
    rarely_revealed: ClassVar = {"409 treated as lost": [138]}
    reproduced = 8


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
