"""The agent, its core and the writers' rules through hundreds of seeds, and proof that the oracles find bugs."""

from __future__ import annotations

from concurrent.futures import Executor
from functools import partial
from typing import ClassVar

import pytest

from tests.simulation.required import SimulationTests
from tests.simulation.timeline import format_line
from tests.simulation.whole import oracles
from tests.simulation.whole.additions import (
    ADDITIONS_EVERY,
    DELETION_FROM,
    EDITIONS_FROM,
    LATER_ADDITIONS_FROM,
    LEDGER_FAULTS_FROM,
    LOG_FAULTS_FROM,
    MEMORY_MB,
    ORDERED_FROM,
    REQUESTS_FROM,
    SUSPENSIONS_FROM,
    WATCHED_FROM,
    scenario_of,
)
from tests.simulation.whole.drawing import SHARES, draw
from tests.simulation.whole.run import run, stream
from tests.simulation.whole.scenario import Additions
from tests.simulation.whole.simulated import SIMULATION

SEEDS = 240


class TestWhole(SimulationTests):
    simulation = SIMULATION
    oracles: ClassVar = oracles
    seeds = SEEDS
    seeds_a_test = 40
    seeds_a_bug = 300
    rarely_revealed: ClassVar = {
        "decisions of other tables believed": [375],
        "offsets of a deleted topic believed": [1678],
        "requests in a replay not answered": [239],
        "the named lock obeyed": [481],
    }
    reproduced = 5

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

    residues = {
        0,
        REQUESTS_FROM,
        2,
        4,
        5,
        SUSPENSIONS_FROM,
        LATER_ADDITIONS_FROM,
        WATCHED_FROM,
        LOG_FAULTS_FROM,
    }
    assert {seed % 10 for seed, each in drawn.items() if each != Additions()} == residues
    assert len({(loss.topic, loss.what) for loss in losses}) == 9
    assert any(each.checkpoints_restored for each in drawn.values())
    assert any(each.ordered for each in drawn.values())
    assert {each.watched for each in drawn.values()} == {0.0, 2.0, 6.0}
    assert {each.suspensions_before_resume for each in drawn.values()} == {0.0, 0.5}
    assert {each.misplaced for each in drawn.values()} == {0.0, 0.3}
    assert {loss.restart is None for loss in losses} == {False, True}
    assert {each.refusals is None for each in drawn.values()} == {False, True}
    assert {each.hung_bodies for each in drawn.values()} == {0.0, 0.1}
    assert {each.used_ids for each in drawn.values()} == {0.0, 0.2}
    assert {each.operators for each in drawn.values()} == {0.0, 0.3}
    assert {each.editions for each in drawn.values()} == {0.0, 1.0}
    assert {each.refused_intents for each in drawn.values()} == {0.0, 0.2}
    assert {each.memory_mb for each in drawn.values()} == {0.0, *MEMORY_MB}
    assert {each.rolled_back is None for each in drawn.values()} == {False, True}
    deletions = [each.deletion for each in drawn.values() if each.deletion]
    assert {each.restart for each in deletions} == {False, True}
    assert {each.strangers for each in drawn.values()} == {0.0, 0.05, 0.2}
    assert set(with_errors) == {"before the step", "after the step", "in building a record"}


@pytest.mark.parametrize(
    "seed",
    [
        2 * ADDITIONS_EVERY,
        LATER_ADDITIONS_FROM,
        LOG_FAULTS_FROM,
        LOG_FAULTS_FROM + 10,
        LEDGER_FAULTS_FROM,
        DELETION_FROM,
        EDITIONS_FROM,
        ORDERED_FROM,
        REQUESTS_FROM + 60,
        SUSPENSIONS_FROM,
        WATCHED_FROM,
    ],
)
def test_a_seed_with_additions_gives_the_same_run_again(seed: int) -> None:
    assert SIMULATION.run(seed).trace == SIMULATION.run(seed).trace


def test_a_trace_contains_events_decisions_and_commits() -> None:
    trace = "\n".join(format_line(line) for line in run(1).trace)

    assert ": commit-intent w0" in trace
    assert ": commit-granted w0" in trace
    assert " applies commit-granted" in trace
    assert "table    s3://lake/t0 1: w0" in trace
