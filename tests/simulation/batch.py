"""Runs many seeds of a simulation in several processes, and keeps those that failed.

`failing_seeds.txt` has one line per seed that ever failed: the seed, the version of the scenarios under which it failed, and
the violation. The tests run these seeds first. A seed of an older version means another scenario now, and is run as well.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from unittest.mock import patch

from tests.simulation.timeline import Line, digest, format_line

TRACE_LINES = 60
"""How many lines of a failing run's trace are printed. The command in the report prints all of them."""

GARBAGE_THRESHOLD = 20_000
"""Of the garbage collector in these processes. With Python's own, 700, a run takes a tenth longer."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one run, with its trace."""

    seed: int
    violations: tuple[str, ...]
    trace: tuple[Line, ...]
    seconds: float
    """Virtual seconds."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Further numbers, which are summed over all runs."""


Patch: TypeAlias = tuple[Any, str, Any]
"""Object, attribute, and the replacement."""


class Bug(NamedTuple):
    """A bug that can be planted."""

    oracle: str
    """The oracle that must find it."""
    patches: Sequence[Patch]
    kind: str | None
    """The kind of run that reveals it, if only one does."""
    addition: str | None
    """The addition to a scenario that reveals it."""


def around(where: Any, what: str, instead: Callable[..., Any]) -> Patch:
    """Replace this function by one that gets it as its first argument."""
    original = getattr(where, what)

    def replaced(*args: Any, **kwargs: Any) -> Any:
        return instead(original, *args, **kwargs)

    return where, what, replaced


class Bugs(dict[str, Bug]):
    """Bugs by their names. Each stands below the rule that it breaks, or has it as its docstring."""

    def add(
        self, name: str, oracle: str, *patches: Patch, kind: str | None = None, addition: str | None = None
    ) -> None:
        """Add the bug that these patches plant."""
        self[name] = Bug(oracle, patches, kind, addition)

    def skip(
        self, name: str, oracle: str, where: Any, what: str, result: Any = None, **revealed: str
    ) -> None:
        """Add the bug that this function only returns this."""
        self.add(name, oracle, (where, what, lambda *_, **__: result), **revealed)

    def plant(
        self, name: str, oracle: str, where: Any, what: str, **revealed: str
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Add the decorated function, `around` this one."""

        def add(instead: Callable[..., Any]) -> Callable[..., Any]:
            self.add(name, oracle, around(where, what, instead), **revealed)
            return instead

        return add


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one run, small enough to return from another process."""

    seed: int
    violation: str | None
    last_lines: str
    """The end of the trace, if there was a violation."""
    digest: str
    virtual_seconds: float
    counts: Mapping[str, int]
    replay: str
    """The command that prints the run."""

    def report(self) -> str:
        """A report of the violation, for the person who investigates it."""
        return f"seed {self.seed}: {self.violation}\n{self.last_lines}\nAll of it: {self.replay}"


def _any(_: str, __: int) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """A simulation: how to run a seed, and which bugs can be planted. Found as `SIMULATION` in `<module>.__main__`."""

    module: str
    """The module, as in `python -m <module>`."""
    version: int
    run: Callable[[int], Outcome]
    bugs: Bugs
    seeds_file: Path
    seeds_at_once: int
    """Number of seeds given to a process at once: some seconds of work."""
    may_reveal: Callable[[str, int], bool] = _any
    """Whether this bug can be expected to show under this seed."""

    def replay(self, seed: int) -> str:
        """Return the command that prints a run."""
        return f"python -m {self.module} --seed {seed} --trace"

    def examine(self, seed: int) -> Result:
        """Run a seed."""
        try:
            outcome = self.run(seed)
        except Exception as error:
            error.add_note(f"in {self.replay(seed)}")
            raise
        violation = outcome.violations[0] if outcome.violations else None
        last_lines = (
            "\n".join(format_line(line) for line in outcome.trace[-TRACE_LINES:]) if violation else ""
        )
        return Result(
            seed,
            violation,
            last_lines,
            digest(outcome.trace),
            outcome.seconds,
            outcome.counts,
            self.replay(seed),
        )

    def planted(self, bug: str) -> ExitStack:
        """Plant the bug while the returned context is active."""
        stack = ExitStack()
        for where, what, instead in self.bugs[bug].patches:
            stack.enter_context(patch.object(where, what, instead))
        return stack

    def hunt(self, bug: str, seeds: Sequence[int], pool: Executor) -> Future[Counter[str]]:
        """Plant a bug and run these seeds until its own oracle finds it. Return which oracles found something."""
        return pool.submit(_hunt, self.module, bug, seeds)

    def examine_many(self, seeds: Iterable[int], pool: Executor) -> Iterator[Result]:
        """Run these seeds and yield their results in order. Only as many are started as are needed soon."""
        remaining = iter(seeds)
        chunks = iter(lambda: tuple(islice(remaining, self.seeds_at_once)), ())
        ahead = [pool.submit(_examine_all, self.module, chunk) for chunk in islice(chunks, 16)]
        while ahead:
            yield from ahead.pop(0).result()
            ahead += [pool.submit(_examine_all, self.module, chunk) for chunk in islice(chunks, 1)]

    def failed_seeds(self) -> tuple[int, ...]:
        """The seeds in `failing_seeds.txt`."""
        lines = self.seeds_file.read_text().splitlines()
        return tuple(int(line.split()[0]) for line in lines if line and not line.startswith("#"))

    def keep_seed(self, result: Result) -> None:
        """Add a seed that failed to `failing_seeds.txt`."""
        if result.seed not in self.failed_seeds():
            with self.seeds_file.open("a") as file:
                file.write(f"{result.seed} v{self.version} {result.violation}\n")


@contextmanager
def processes(count: int | None = None) -> Iterator[Executor]:
    """Processes that run seeds: one per core by default."""
    with ProcessPoolExecutor(
        count or os.cpu_count(), get_context("spawn"), gc.set_threshold, (GARBAGE_THRESHOLD,)
    ) as pool:
        yield pool


def failure_report(failed: Sequence[Result]) -> str:
    """The message of a failing test."""
    reports = "\n\n".join(result.report() for result in failed[:3])
    return f"{reports}\n\nfailed: {[each.seed for each in failed]}"


# A process finds its simulation by name, because functions can't be sent to it.


def _simulation(module: str) -> Simulation:
    found = import_module(f"{module}.__main__").SIMULATION
    assert isinstance(found, Simulation)
    return found


def _examine_all(module: str, seeds: tuple[int, ...]) -> list[Result]:
    simulation = _simulation(module)
    return [simulation.examine(seed) for seed in seeds]


def _hunt(module: str, bug: str, seeds: Sequence[int]) -> Counter[str]:
    simulation = _simulation(module)
    found: Counter[str] = Counter()
    with simulation.planted(bug):
        for seed in seeds:
            if not simulation.may_reveal(bug, seed):
                continue
            found.update(violation.partition(":")[0] for violation in simulation.run(seed).violations[:1])
            if found[simulation.bugs[bug].oracle]:
                break
    return found
