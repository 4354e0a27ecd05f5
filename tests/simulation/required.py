"""What the tests require of every simulation: no violations, bugs that are found, and reproducible runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Executor
from pathlib import Path

from tests.simulation.batch import Result, Simulation, failure_report
from tests.simulation.timeline import digest

TESTING = Path(__file__).resolve().parents[2] / "docs" / "testing.md"
HASH_SEEDS = ("1", "4", "6")
"""Hash seeds under which Python iterates over a set of some topic partitions in three different orders."""


def require_no_violation(simulation: Simulation, seeds: Iterable[int], pool: Executor) -> list[Result]:
    """Return the results of the seeds. Seeds that failed are added to `failing_seeds.txt`."""
    results = list(simulation.examine_many(seeds, pool))
    failed = [result for result in results if result.violation]

    for result in failed:
        simulation.keep_seed(result)
    assert not failed, failure_report(failed)
    return results


def require_bug_found(simulation: Simulation, bug: str, found: Counter[str]) -> None:
    """Require that the bug's own oracle found it. Otherwise, seeds without violations might mean that no oracle works."""
    oracle = simulation.bugs[bug].oracle

    assert found[oracle], f"not found by {oracle!r}; found by other oracles: {found}"


def require_every_oracle_has_a_bug(simulation: Simulation, table: str | None, folder: str) -> None:
    """Require that the docstring's table of oracles has those of the planted bugs, and docs/testing.md the numbers of both."""
    rows = re.findall(r"^\| ([a-z][a-z -]*) \|", table or "", re.MULTILINE)
    oracles = {bug.oracle for bug in simulation.bugs.values()}
    assert oracles == set(rows) - {"oracle"}

    numbers = re.search(rf"\(`{folder}`\) \| (\d+)[^|]* \| (\d+) \|", TESTING.read_text(encoding="utf-8"))
    assert numbers is not None
    assert tuple(map(int, numbers.groups())) == (len(oracles), len(simulation.bugs))


def require_reproducible_in_another_process(simulation: Simulation, count: int) -> None:
    """Require the same traces with other hash seeds, so that the order of no set decides anything."""
    here = [f"{seed} {digest(simulation.run(seed).trace)}" for seed in range(count)]

    for hash_seed in HASH_SEEDS:
        assert _digests(simulation, count, hash_seed) == here


def require_planted_bugs_removed(simulation: Simulation) -> None:
    before = digest(simulation.run(1).trace)
    for bug in simulation.bugs:
        with simulation.planted(bug):
            pass

    assert digest(simulation.run(1).trace) == before


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
