"""The command line of a simulation: one seed with its trace, or many seeds."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from contextlib import nullcontext

from tests.simulation.batch import Simulation, processes
from tests.simulation.timeline import digest, format_line

PROGRESS_SECONDS = 10.0


def main(simulation: Simulation, description: str | None) -> int:
    """Return the exit code: 0 without violations, 1 with violations."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {simulation.module}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="run one seed")
    which.add_argument("--seeds", type=_range, help="run so many seeds, or the range from-to[/step]")
    parser.add_argument("--trace", action="store_true", help="print the trace of one seed")
    parser.add_argument("--planted", choices=simulation.bugs, help="plant this bug, with --seed")
    parser.add_argument("--digests", action="store_true", help="print a digest of each trace")
    parser.add_argument("--processes", type=int, help="number of processes, by default the number of cores")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return _one(simulation, arguments.seed, trace=arguments.trace, bug=arguments.planted)
    return _many(simulation, arguments.seeds, count=arguments.processes, digests=arguments.digests)


def _range(text: str) -> range:
    first, dash, last = text.replace("_", "").partition("-")
    last, _, step = last.partition("/")
    return range(int(first), int(last), int(step or 1)) if dash else range(int(first))


def _one(simulation: Simulation, seed: int, *, trace: bool, bug: str | None) -> int:
    with simulation.planted(bug) if bug else nullcontext():
        outcome = simulation.run(seed)
    if trace:
        print("\n".join(format_line(line) for line in outcome.trace))
    verdict = "; ".join(outcome.violations) or "no violations"
    counted = "".join(f"{number:,} {what}, " for what, number in outcome.counts.items())
    print(
        f"seed {seed}: {verdict}; {counted}{outcome.seconds:.1f} s of virtual time, trace {digest(outcome.trace)}"
    )
    return int(bool(outcome.violations))


def _many(simulation: Simulation, seeds: range, *, count: int | None, digests: bool) -> int:
    began = reported_at = time.monotonic()
    failed: list[int] = []
    virtual, counts = 0.0, Counter[str]()
    with processes(count) as pool:
        for done, result in enumerate(simulation.examine_many(seeds, pool), start=1):
            virtual += result.virtual_seconds
            counts.update(result.counts)
            if digests:
                print(result.seed, result.digest)
            if result.violation is not None:
                failed.append(result.seed)
                simulation.keep_seed(result)
                print(f"seed {result.seed}: {result.violation}\n  {result.replay}", flush=True)
            now = time.monotonic()
            if now - reported_at >= PROGRESS_SECONDS:
                reported_at = now
                print(
                    f"{done:,} of {len(seeds):,} seeds, {done / (now - began):.1f} a second, {len(failed)} failed",
                    file=sys.stderr,  # the output of --digests must not depend on the duration
                )
    seconds = time.monotonic() - began
    print(
        f"{len(seeds):,} seeds in {seconds:.0f} s, {len(seeds) / seconds:.1f} a second, "
        f"{virtual / 3600:.1f} h of virtual time{''.join(f', {n:,} {what}' for what, n in counts.items())}; "
        + (f"failed, added to failing_seeds.txt: {' '.join(map(str, failed))}" if failed else "no violations")
    )
    return int(bool(failed))
