"""Explores every scope for so long: `make explore MINUTES=10`. With `--sizes`, writes the rows of docs/guarantees.md.

Ctrl-C ends it early. It says how far each scope got, too.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import active_children
from threading import Event

from tests.exhaustive.engine import Exploration
from tests.exhaustive.scopes import SCOPES

STOPPED = Event()
"""Of this process."""


def stop_at_interrupt() -> None:
    signal.signal(signal.SIGINT, lambda *_: STOPPED.set())


def explore(name: str, until: float) -> tuple[str, Exploration]:
    """How far a scope gets until then. The graph stays in its process."""
    found = SCOPES[name].explore(late=lambda: STOPPED.is_set() or time.monotonic() >= until)
    found.graph, found.parents = [], []
    return name, found


def main() -> int:
    parser = argparse.ArgumentParser(description="Explore every order of the steps of small worlds.")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all scopes together (10)")
    parser.add_argument("-k", default="", help="only scopes whose names contain this")
    parser.add_argument("--sizes", action="store_true", help="the states of the scopes that are complete")
    arguments = parser.parse_args()
    # The complete ones first: what they leave of their share is for the others.
    order = sorted(SCOPES, key=lambda name: ("unit", "all", "explore").index(SCOPES[name].run))
    names = [name for name in order if arguments.k in name]
    until = time.monotonic() + 60 * arguments.minutes
    if arguments.sizes:
        names = [name for name in names if SCOPES[name].run != "explore"]
        until = math.inf
    ends: Counter[str] = Counter()
    rows: dict[str, str] = {}
    cores = os.cpu_count() or 1
    running: set[Future[tuple[str, Exploration]]] = set()
    with ProcessPoolExecutor(cores, initializer=stop_at_interrupt) as pool:
        while names or running:
            try:
                while names and len(running) < cores:
                    now = time.monotonic()
                    share = max(0.0, until - now) * cores / len(names)
                    running.add(pool.submit(explore, names.pop(0), now + share))
                done, running = wait(running, return_when=FIRST_COMPLETED)
            except KeyboardInterrupt:
                ends["not explored"] += len(names)
                names = []
                for each in active_children():
                    os.kill(each.pid or 0, signal.SIGINT)
                continue
            for name, found in (each.result() for each in done):
                ends[found.end] += 1
                rows[name] = f"| {name} | {found.states:,} |"
                if not arguments.sizes:
                    print(f"{name}: {found}", flush=True)
    if arguments.sizes:
        print(*(rows[name] for name in SCOPES if name in rows), sep="\n")
    print("; ".join(f"{count} scopes {end}" for end, count in ends.items()), file=sys.stderr)
    return 1 if ends["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
