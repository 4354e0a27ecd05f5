"""What every simulation must show: that nothing is violated, that a bug would be, and the same run for the same seed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Executor

from tests.simulation.batch import Result, Simulation, failure_report
from tests.simulation.timeline import digest

HASH_SEEDS = ("1", "4", "6")
"""Under which Python goes through a set of a few topics' partitions in three different orders."""


def require_no_violation(simulation: Simulation, seeds: Iterable[int], pool: Executor) -> list[Result]:
    """What the seeds have shown. Those that failed are kept."""
    results = list(simulation.examine_many(seeds, pool))
    failed = [result for result in results if result.violation]

    for result in failed:
        simulation.keep_seed(result)
    assert not failed, failure_report(failed)
    return results


def require_bug_found(simulation: Simulation, bug: str, found: Counter[str]) -> None:
    """By the oracle that is there for it. Without this, many clean seeds might mean that nobody looks."""
    oracle, _ = simulation.bugs[bug]

    assert found[oracle], f"not found by {oracle!r}; what others found: {found}"


def require_every_oracle_has_a_bug(simulation: Simulation, table: str | None) -> None:
    """The table of the oracles is the specification: what is in it is proven, and what is proven is in it."""
    rows = re.findall(r"^\| ([a-z][a-z -]*) \|", table or "", re.MULTILINE)

    assert {oracle for oracle, _ in simulation.bugs.values()} == set(rows) - {"oracle"}


def require_reproducible(simulation: Simulation, seed: int) -> None:
    assert simulation.run(seed).trace == simulation.run(seed).trace


def require_reproducible_in_another_process(simulation: Simulation, count: int) -> None:
    """Also where strings hash otherwise, so that the order of no set decides anything."""
    here = [f"{seed} {digest(simulation.run(seed).trace)}" for seed in range(count)]

    for hash_seed in HASH_SEEDS:
        assert _digests(simulation, count, hash_seed) == here


def require_planted_bugs_removed(simulation: Simulation) -> None:
    traces = {digest(simulation.run(1).trace)}
    for bug in simulation.bugs:
        with simulation.planted(bug):
            pass
        traces.add(digest(simulation.run(1).trace))

    assert len(traces) == 1


def _digests(simulation: Simulation, count: int, hash_seed: str) -> list[str]:
    arguments = ["--seeds", str(count), "--processes", "1", "--digests"]
    completed = subprocess.run(
        [sys.executable, "-m", simulation.module, *arguments],
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return completed.stdout.splitlines()[:count]
