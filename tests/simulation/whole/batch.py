"""Many seeds of the whole, and what is kept of those that failed; as `../batch.py` does for the lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tests.simulation.timeline import digest, spell
from tests.simulation.whole.planted import BUGS, planted
from tests.simulation.whole.run import run, stream
from tests.simulation.whole.scenario import VERSION, draw

KEPT = Path(__file__).with_name("failing_seeds.txt")
STORY_LINES = 60
"""How much of a failing run's trace is told at once; the rest is a command away."""
SEEDS_AT_ONCE = 5


@dataclass(frozen=True, slots=True)
class Result:
    """What is left of a run."""

    seed: int
    violation: str | None
    story: str
    """The end of the trace, if something was violated."""
    digest: str
    virtual_seconds: float
    commits: int
    windows: int

    def told(self) -> str:
        """For a person who has to find out."""
        return f"seed {self.seed}: {self.violation}\n{self.story}\nThe whole of it: {replay(self.seed)}"


def replay(seed: int) -> str:
    """The command that shows a run."""
    return f"python -m tests.simulation.whole --seed {seed} --trace"


def examine(seed: int) -> Result:
    """Run a seed."""
    try:
        outcome = run(seed)
    except Exception as error:
        error.add_note(f"in {replay(seed)}")
        raise
    violation = outcome.violations[0] if outcome.violations else None
    story = "\n".join(spell(line) for line in outcome.trace[-STORY_LINES:]) if violation else ""
    return Result(
        seed,
        violation,
        story,
        digest(outcome.trace),
        outcome.seconds,
        outcome.commits,
        outcome.windows,
    )


def hunt(bug: str, seeds: range) -> Counter[str]:
    """Plant a bug, and run the hard ones of these seeds until its own oracle finds it; which oracles found something."""
    found: Counter[str] = Counter()
    with planted(bug):
        for seed in (each for each in seeds if draw(stream(each, "scenario")).kind == "hard"):
            found.update(violation.partition(":")[0] for violation in run(seed).violations[:1])
            if found[BUGS[bug][0]]:
                break
    return found


def _examine_all(seeds: tuple[int, ...]) -> list[Result]:
    return [examine(seed) for seed in seeds]


def examine_many(seeds: Iterable[int], pool: Executor) -> Iterator[Result]:
    """Run these seeds, and yield what they show, in their order. No more are begun than are soon needed."""
    remaining = iter(seeds)
    chunks = iter(lambda: tuple(islice(remaining, SEEDS_AT_ONCE)), ())
    ahead = [pool.submit(_examine_all, chunk) for chunk in islice(chunks, 16)]
    while ahead:
        yield from ahead.pop(0).result()
        ahead += [pool.submit(_examine_all, chunk) for chunk in islice(chunks, 1)]


def kept() -> tuple[int, ...]:
    """Seeds that failed once."""
    lines = KEPT.read_text().splitlines()
    return tuple(int(line.split()[0]) for line in lines if line and not line.startswith("#"))


def keep(result: Result) -> None:
    """Remember a seed that failed."""
    if result.seed not in kept():
        with KEPT.open("a") as file:
            file.write(f"{result.seed} v{VERSION} {result.violation}\n")
