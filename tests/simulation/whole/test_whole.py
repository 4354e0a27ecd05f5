"""The agent's service, its core and the writers' rules through hundreds of seeds, and proof that a bug would be seen."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor, Future

import pytest

from tests.simulation.batch import processes, told
from tests.simulation.repeats import (
    require_nothing_left_of_what_was_planted,
    require_same_run_again,
    require_same_run_in_another_process,
)
from tests.simulation.timeline import spell
from tests.simulation.whole import oracles
from tests.simulation.whole.planted import BUGS
from tests.simulation.whole.run import run, stream
from tests.simulation.whole.scenario import SHARES, draw
from tests.simulation.whole.simulated import SIMULATION

SEEDS = 280
SEEDS_A_TEST = 40
SEEDS_A_BUG = 300
"""Of which those that may show it are run, until a planted bug is found; most show themselves in the first five."""


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with processes() as pool:
        yield pool


def test_seeds_that_failed_once_fail_no_more() -> None:
    failed = [result for result in map(SIMULATION.examine, SIMULATION.failed_once()) if result.violation]

    assert not failed, told(failed)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_A_TEST))
def test_nothing_is_violated(first: int, pool: Executor) -> None:
    seeds = range(first, first + SEEDS_A_TEST)
    results = list(SIMULATION.examine_many(seeds, pool))
    failed = [result for result in results if result.violation]

    for result in failed:
        SIMULATION.keep(result)
    assert not failed, told(failed)
    assert sum(result.counts["commits"] for result in results) > SEEDS_A_TEST, (
        "a run in which nobody commits proves nothing"
    )


@pytest.fixture(scope="module")
def hunts(pool: Executor) -> dict[str, Future[Counter[str]]]:
    return {bug: SIMULATION.hunt(bug, range(SEEDS_A_BUG), pool) for bug in BUGS}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, hunts: dict[str, Future[Counter[str]]]) -> None:
    """By the oracle that is there for it. Without this, hundreds of clean seeds might mean that nobody looks."""
    oracle, _ = BUGS[bug]

    found = hunts[bug].result()

    assert found[oracle], f"not found by {oracle!r} in {SEEDS_A_BUG} seeds; what others found: {found}"


def test_every_oracle_finds_a_bug() -> None:
    """The table of the oracles is the specification: what is in it is proven, and what is proven is in it."""
    rows = re.findall(r"^\| ([a-z ]+) \|", oracles.__doc__ or "", re.MULTILINE)

    assert {oracle for oracle, _ in BUGS.values()} == set(rows) - {"oracle"}


def test_what_was_planted_is_gone_afterwards() -> None:
    require_nothing_left_of_what_was_planted(SIMULATION)


@pytest.mark.parametrize("seed", range(3))
def test_a_seed_is_the_same_run_again(seed: int) -> None:
    require_same_run_again(SIMULATION, seed)


@pytest.mark.timeout(300)
def test_a_seed_is_the_same_run_in_another_process() -> None:
    require_same_run_in_another_process(SIMULATION, 5)


def test_the_scenarios_have_what_they_are_to_have() -> None:
    """Every kind of trouble is met by the seeds that the suite runs; a scenario that is never drawn proves nothing."""
    drawn = [draw(stream(seed, "scenario")) for seed in range(SEEDS)]
    tables = [table for scenario in drawn for table in scenario.tables]
    stops = [stop for scenario in drawn for machine in scenario.agents for stop in machine.stops]

    assert {scenario.kind for scenario in drawn} == set(SHARES)
    assert {len(scenario.agents) for scenario in drawn} == {1, 2, 3}
    assert {scenario.settings.policy for scenario in drawn} == {"first-intent", "first-committer"}
    assert {scenario.settings.hold for scenario in drawn} == {"while-active", "per-commit"}
    assert {scenario.settings.early_detection for scenario in drawn} == {True, False}
    assert {(table.fenced, table.tells) for table in tables} == {(True, True), (False, True), (False, False)}
    assert any(table.hudi for table in tables)
    assert {habits.rule for table in tables for _, habits in table.writers} == {"file-group", "deleted-file"}
    assert {(stop.orderly, stop.seconds is None) for stop in stops} == {
        (True, True),
        (False, True),
        (False, False),
    }
    assert any(scenario.lags for scenario in drawn)
    assert {spell.what for scenario in drawn for spell in scenario.kafka.spells} == {
        "outage",
        "slow",
        "cut off",
    }


def test_a_trace_tells_what_happened() -> None:
    trace = "\n".join(spell(line) for line in run(1).trace)

    assert ": commit-intent w0" in trace
    assert ": commit-granted w0" in trace
    assert " hears commit-granted" in trace
    assert "table    s3://lake/t0 1: w0" in trace
