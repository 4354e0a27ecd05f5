"""One seed with its trace, or many seeds.

python -m tests.simulation.whole --seed 17 --trace
python -m tests.simulation.whole --seed 3 --trace --planted "lapse too soon"
python -m tests.simulation.whole --seeds 2000            the first 2,000
python -m tests.simulation.whole --seeds 2000-3000       the thousand after them
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import nullcontext

from tests.simulation.batch import processes
from tests.simulation.timeline import digest, spell
from tests.simulation.whole.batch import examine_many, keep, replay
from tests.simulation.whole.planted import BUGS, planted
from tests.simulation.whole.run import run

PROGRESS_SECONDS = 10.0


def main() -> int:
    """0: nothing was violated; 1: something was."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.whole",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="one seed")
    which.add_argument("--seeds", type=_range, help="how many seeds, or from-to")
    parser.add_argument("--trace", action="store_true", help="print what happened, of one seed")
    parser.add_argument("--planted", choices=BUGS, help="with a bug, of one seed")
    parser.add_argument("--digests", action="store_true", help="print what identifies each run's trace")
    parser.add_argument("--processes", type=int, help="default: as many as there are cores")
    given = parser.parse_args()
    if given.seed is not None:
        return _one(given.seed, trace=given.trace, bug=given.planted)
    return _many(given.seeds, count=given.processes, digests=given.digests)


def _range(text: str) -> range:
    first, dash, last = text.replace("_", "").partition("-")
    return range(int(first), int(last)) if dash else range(int(first))


def _one(seed: int, *, trace: bool, bug: str | None) -> int:
    with planted(bug) if bug else nullcontext():
        outcome = run(seed)
    if trace:
        print("\n".join(spell(line) for line in outcome.trace))
    verdict = "; ".join(outcome.violations) or "nothing was violated"
    print(
        f"seed {seed}: {verdict}; {outcome.commits} commits in {outcome.seconds:.1f} s of virtual time, "
        f"trace {digest(outcome.trace)}"
    )
    return int(bool(outcome.violations))


def _many(seeds: range, *, count: int | None, digests: bool) -> int:
    began = told_at = time.monotonic()
    failed: list[int] = []
    virtual, commits, windows = 0.0, 0, 0
    with processes(count) as pool:
        for done, result in enumerate(examine_many(seeds, pool), start=1):
            virtual += result.virtual_seconds
            commits += result.commits
            windows += result.windows
            if digests:
                print(result.seed, result.digest)
            if result.violation is not None:
                failed.append(result.seed)
                keep(result)
                print(f"seed {result.seed}: {result.violation}\n  {replay(result.seed)}", flush=True)
            now = time.monotonic()
            if now - told_at >= PROGRESS_SECONDS:
                told_at = now
                print(
                    f"{done:,} of {len(seeds):,} seeds, {done / (now - began):.1f} a second, {len(failed)} failed",
                    flush=True,
                )
    seconds = time.monotonic() - began
    print(
        f"{len(seeds):,} seeds in {seconds:.0f} s, {len(seeds) / seconds:.1f} a second, {virtual / 3600:.1f} h of virtual "
        f"time, {commits:,} commits, {windows} of them in the window that no lock closes; "
        + (f"failed and kept: {' '.join(map(str, failed))}" if failed else "nothing was violated")
    )
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
