"""Explores every scope for so long: `make explore MINUTES=10`."""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.exhaustive.engine import explore
from tests.exhaustive.scopes import SCOPES


def report(name: str, seconds: float) -> str:
    """How far a scope gets in so many seconds of CPU, and the story of a violation."""
    found = explore(SCOPES[name].model, seconds=seconds)
    return "\n    ".join([f"{name}: {found}", *(found.story or ())])


def main() -> None:
    parser = argparse.ArgumentParser(description="Explore every order of the steps of small worlds.")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all scopes together (10)")
    parser.add_argument("-k", default="", help="only scopes whose names contain this")
    arguments = parser.parse_args()
    chosen = [name for name in SCOPES if arguments.k in name]
    cores = os.cpu_count() or 1
    share = arguments.minutes * 60 * cores / len(chosen)
    with ProcessPoolExecutor(cores) as pool:
        for text in pool.map(partial(report, seconds=share), chosen):
            print(text, flush=True)


if __name__ == "__main__":
    main()
