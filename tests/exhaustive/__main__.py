"""Explores every scope for so long: `make explore MINUTES=10`. With `--sizes`, writes the rows of docs/guarantees.md."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import Any

from tests.exhaustive.engine import Exploration
from tests.exhaustive.scopes import SCOPES


def explore(name: str, seconds: float | None) -> tuple[str, Exploration[Any]]:
    """How far a scope gets in so many seconds. The graph stays in its process."""
    found = SCOPES[name].explore(seconds=seconds)
    found.graph, found.parents = [], []
    return name, found


def main() -> int:
    parser = argparse.ArgumentParser(description="Explore every order of the steps of small worlds.")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all scopes together (10)")
    parser.add_argument("-k", default="", help="only scopes whose names contain this")
    parser.add_argument("--sizes", action="store_true", help="the states of the scopes that are complete")
    arguments = parser.parse_args()
    cores = os.cpu_count() or 1
    # The complete ones first: what they leave of their share is for the others.
    order = sorted(SCOPES, key=lambda name: ("unit", "all", "explore").index(SCOPES[name].run))
    names = [name for name in order if arguments.k in name]
    if arguments.sizes:
        names = [name for name in names if SCOPES[name].run != "explore"]
    until = time.monotonic() + 60 * arguments.minutes
    ends: Counter[str] = Counter()
    rows: dict[str, str] = {}
    with ProcessPoolExecutor(cores) as pool:
        running: set[Future[tuple[str, Exploration[Any]]]] = set()
        while names or running:
            while names and len(running) < cores:
                share = max(0.0, until - time.monotonic()) * cores / len(names)
                running.add(pool.submit(explore, names.pop(0), None if arguments.sizes else share))
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for name, found in (each.result() for each in done):
                ends[found.end] += 1
                rows[name] = f"| {name} | {found.states:,} |"
                if not arguments.sizes:
                    print("\n    ".join([f"{name}: {found}", *(found.story or ())]), flush=True)
    if arguments.sizes:
        print(*(rows[name] for name in SCOPES if name in rows), sep="\n")
    print("; ".join(f"{count} scopes {end}" for end, count in ends.items()), file=sys.stderr)
    return 1 if ends["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
