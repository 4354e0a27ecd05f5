"""What every simulation must show: the same run for the same seed, in whatever process."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.simulation.batch import Simulation
from tests.simulation.timeline import digest

HASH_SEEDS = ("1", "4", "6")
"""Under which Python goes through a set of a few topics' partitions in three different orders."""


def require_same_run_again(simulation: Simulation, seed: int) -> None:
    assert simulation.run(seed).trace == simulation.run(seed).trace


def require_same_run_in_another_process(simulation: Simulation, count: int) -> None:
    """Also where strings hash otherwise, so that the order of no set decides anything."""
    here = [f"{seed} {digest(simulation.run(seed).trace)}" for seed in range(count)]

    for hash_seed in HASH_SEEDS:
        assert _digests(simulation, count, hash_seed) == here


def require_nothing_left_of_what_was_planted(simulation: Simulation) -> None:
    traces = {digest(simulation.run(1).trace)}
    for bug in simulation.bugs:
        with simulation.planted(bug):
            pass
        traces.add(digest(simulation.run(1).trace))

    assert len(traces) == 1


def _digests(simulation: Simulation, count: int, hash_seed: str) -> list[str]:
    given = ["--seeds", str(count), "--processes", "1", "--digests"]
    told = subprocess.run(
        [sys.executable, "-m", simulation.module, *given],
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return told.stdout.splitlines()[:count]
