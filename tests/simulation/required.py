"""What the tests require of every simulation: no violations, bugs that are found, and reproducible runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest

from tests.simulation.batch import Result, Simulation, failure_report, processes
from tests.simulation.timeline import digest

TESTING = Path(__file__).resolve().parents[2] / "docs" / "testing.md"
HASH_SEEDS = ("1", "4", "6")
"""Hash seeds under which Python iterates over a set of some topic partitions in three different orders."""


class SimulationTests:
    """The tests of a simulation. Without bugs that are found, seeds without violations might mean that no oracle works."""

    simulation: ClassVar[Simulation]
    oracles: ClassVar[ModuleType]
    """Its docstring has a table of the oracles."""
    seeds: ClassVar[int]
    seeds_a_test: ClassVar[int]
    seeds_a_bug: ClassVar[int]
    """Seeds per planted bug, of which only those that may reveal it are run. Most bugs are found within five, or 20."""
    rarely_revealed: ClassVar[Mapping[str, Sequence[int]]] = {}
    """Seeds that reveal a bug, where few of the first ones do. They are run first."""
    reproduced: ClassVar[int]
    """How many seeds are run in other processes, too."""

    @pytest.fixture(scope="class")
    @staticmethod
    def pool() -> Iterator[Executor]:
        """Processes that run seeds, one per core."""
        with processes() as pool:
            yield pool

    @pytest.fixture(scope="class")
    @staticmethod
    def hunts(request: pytest.FixtureRequest, pool: Executor) -> dict[str, Future[Counter[str]]]:
        suite = request.cls
        return {
            bug: suite.simulation.hunt(
                bug, [*suite.rarely_revealed.get(bug, ()), *range(suite.seeds_a_bug)], pool
            )
            for bug in suite.simulation.bugs
        }

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """`make unit` and `make test` run the first piece of the seeds."""
        if "bug" in metafunc.fixturenames:
            metafunc.parametrize("bug", self.simulation.bugs)
        if "first" in metafunc.fixturenames:
            later = range(self.seeds_a_test, self.seeds, self.seeds_a_test)
            pieces = [pytest.param(first, marks=pytest.mark.wide) for first in later]
            metafunc.parametrize("first", [pytest.param(0, marks=pytest.mark.unit), *pieces])

    def test_seeds_that_failed_once_pass(self, pool: Executor) -> None:
        self.run_without_violation(self.simulation.failed_seeds(), pool)

    def test_no_oracle_is_violated(self, first: int, pool: Executor) -> None:
        self.run_without_violation(range(first, first + self.seeds_a_test), pool)

    @pytest.mark.wide
    def test_a_planted_bug_is_found_by_its_oracle(
        self, bug: str, hunts: dict[str, Future[Counter[str]]]
    ) -> None:
        oracle, found = self.simulation.bugs[bug].oracle, hunts[bug].result()

        assert found[oracle], f"not found by {oracle!r}; found by other oracles: {found}"

    def test_every_oracle_has_a_planted_bug(self) -> None:
        """docs/testing.md has the numbers of both."""
        rows = re.findall(r"^\| ([a-z][a-z -]*) \|", self.oracles.__doc__ or "", re.MULTILINE)
        oracles = {bug.oracle for bug in self.simulation.bugs.values()}
        assert oracles == set(rows) - {"oracle"}

        folder = self.simulation.module.replace(".", "/")
        numbers = re.search(
            rf"\(`{folder}/`\) \| (\d+)[^|]* \| (\d+) \|", TESTING.read_text(encoding="utf-8")
        )
        assert numbers is not None
        assert tuple(map(int, numbers.groups())) == (len(oracles), len(self.simulation.bugs))

    @pytest.mark.wide
    def test_a_seed_gives_the_same_run_in_another_process(self) -> None:
        """Also with other hash seeds, so that the order of no set decides anything."""
        here = [f"{seed} {digest(self.simulation.run(seed).trace)}" for seed in range(self.reproduced)]

        for hash_seed in HASH_SEEDS:
            assert self._digests(hash_seed) == here

    def run_without_violation(self, seeds: Iterable[int], pool: Executor) -> list[Result]:
        """Return the results of the seeds. Seeds that failed are added to `failing_seeds.txt`."""
        results = list(self.simulation.examine_many(seeds, pool))
        failed = [result for result in results if result.violation]

        for result in failed:
            self.simulation.keep_seed(result)
        assert not failed, failure_report(failed)
        return results

    def _digests(self, hash_seed: str) -> list[str]:
        arguments = ["--seeds", str(self.reproduced), "--processes", "1", "--digests"]
        completed = subprocess.run(
            [sys.executable, "-m", self.simulation.module, *arguments],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
            timeout=600,
        )
        return completed.stdout.splitlines()[: self.reproduced]
