"""Explores every scope for so long: `make explore MINUTES=10`. With `--sizes`, writes the rows of docs/guarantees.md."""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.exhaustive.scopes import SCOPES


def report(name: str, seconds: float) -> str:
    """How far a scope gets in so many seconds of CPU, and the story of a violation."""
    found = SCOPES[name].explore(seconds=seconds)
    return "\n    ".join([f"{name}: {found}", *(found.story or ())])


def size(name: str) -> str:
    return f"| {name} | {SCOPES[name].explore().states:,} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Explore every order of the steps of small worlds.")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all scopes together (10)")
    parser.add_argument("-k", default="", help="only scopes whose names contain this")
    parser.add_argument("--sizes", action="store_true", help="the states of the scopes that are complete")
    arguments = parser.parse_args()
    cores = os.cpu_count() or 1
    chosen = [name for name in SCOPES if arguments.k in name]
    work = partial(report, seconds=arguments.minutes * 60 * cores / max(1, len(chosen)))
    if arguments.sizes:
        chosen = [name for name in chosen if SCOPES[name].run != "explore"]
        work = partial(size)
    with ProcessPoolExecutor(cores) as pool:
        for text in pool.map(work, chosen):
            print(text, flush=True)


if __name__ == "__main__":
    main()
