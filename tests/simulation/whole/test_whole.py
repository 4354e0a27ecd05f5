"""The agent, its core and the writers' rules through hundreds of seeds, and proof that the oracles find bugs."""

from __future__ import annotations

from concurrent.futures import Executor
from functools import partial
from typing import ClassVar

import pytest

from tests.simulation.required import SimulationTests
from tests.simulation.timeline import format_line
from tests.simulation.whole import oracles
from tests.simulation.whole.__main__ import SIMULATION
from tests.simulation.whole.additions import MEMORY_MB, scenario_of
from tests.simulation.whole.drawing import SHARES, draw
from tests.simulation.whole.run import run, stream
from tests.simulation.whole.scenario import Additions

SEEDS = 240


class TestWhole(SimulationTests):
    simulation = SIMULATION
    oracles: ClassVar = oracles
    seeds = SEEDS
    seeds_a_test = 40
    seeds_a_bug = 300
    rarely_revealed: ClassVar = {
        "decisions of other tables believed": [375],
        "grants extended for ever": [190],
        "offsets of a deleted topic believed": [1678],
        "requests in a replay not answered": [139],
        "the named lock obeyed": [481],
    }
    reproduced = 13

    @pytest.mark.wide
    def test_seeds_that_failed_once_pass(self, pool: Executor) -> None:
        super().test_seeds_that_failed_once_pass(pool)

    def test_no_oracle_is_violated(self, first: int, pool: Executor) -> None:
        results = self.run_without_violation(range(first, first + self.seeds_a_test), pool)

        assert sum(result.counts["commits"] for result in results) > self.seeds_a_test, (
            "a run without commits proves nothing"
        )


def test_the_scenarios_contain_every_kind_of_fault() -> None:
    """The seeds of the suite contain every kind of fault. A scenario that is never drawn proves nothing."""
    drawn = [draw(stream(seed, "scenario")) for seed in range(SEEDS)]
    tables = [table for scenario in drawn for table in scenario.tables]
    stops = [stop for scenario in drawn for machine in scenario.agents for stop in machine.stops]

    assert {scenario.kind for scenario in drawn} == set(SHARES)
    assert {len(scenario.agents) for scenario in drawn} == {1, 2, 3}
    assert {scenario.settings.conflict_policy for scenario in drawn} == {"first-intent", "first-committer"}
    assert {scenario.settings.lock_hold for scenario in drawn} == {"while-active", "per-commit"}
    assert {scenario.settings.early_detection for scenario in drawn} == {True, False}
    assert {(table.fenced, table.records_batches) for table in tables} == {
        (True, True),
        (False, True),
        (False, False),
    }
    assert any(table.hudi for table in tables)
    assert {workload.rule for table in tables for _, workload in table.writers} == {
        "file-group",
        "deleted-file",
    }
    assert {(stop.orderly, stop.seconds is None) for stop in stops} == {
        (True, True),
        (False, True),
        (False, False),
    }
    assert any(scenario.lags for scenario in drawn)
    assert {period.what for scenario in drawn for period in scenario.kafka.periods} == {
        "outage",
        "slow",
        "cut off",
    }


def test_the_seeds_of_the_suite_have_every_addition() -> None:
    drawn = {seed: scenario_of(seed, partial(stream, seed)).additions for seed in range(SEEDS)}
    with_errors = [error.where for each in drawn.values() for error in each.errors]

    losses = [loss for each in drawn.values() for loss in each.losses]

    assert {seed % 10 for seed, each in drawn.items() if each != Additions()} == set(range(10)) - {3}
    assert len({(loss.topic, loss.what) for loss in losses}) == 9
    assert any(each.checkpoints_restored for each in drawn.values())
    assert any(each.ordered for each in drawn.values())
    assert {loss.restart is None for loss in losses} == {False, True}
    for addition, values in {
        "watched": {0.0, 2.0, 6.0},
        "suspensions_before_resume": {0.0, 0.5},
        "misplaced": {0.0, 0.3},
        "hung_bodies": {0.0, 0.1},
        "used_ids": {0.0, 0.2},
        "operators": {0.0, 0.3},
        "editions": {0.0, 1.0},
        "refused_intents": {0.0, 0.2},
        "memory_mb": {0.0, *MEMORY_MB},
        "strangers": {0.0, 0.05, 0.2},
    }.items():
        assert {getattr(each, addition) for each in drawn.values()} == values, addition
    for addition in ("refusals", "rolled_back"):
        assert {getattr(each, addition) is None for each in drawn.values()} == {False, True}, addition
    deletions = [each.deletion for each in drawn.values() if each.deletion]
    assert {each.restart for each in deletions} == {False, True}
    assert set(with_errors) == {"before the step", "after the step", "in building a record"}


def test_a_trace_contains_events_decisions_and_commits() -> None:
    trace = "\n".join(format_line(line) for line in run(1).trace)

    assert ": commit-intent w0" in trace
    assert ": commit-granted w0" in trace
    assert " applies commit-granted" in trace
    assert "table    s3://lake/t0 1: w0" in trace
