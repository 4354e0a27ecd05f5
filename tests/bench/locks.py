"""The cost of one lock on an S3 server, and the table of its figures: the agent's, and those of Hudi's own provider beside them.

- Operations: acquire, renew and release, and the hand-over from one holder to another (`agent_lock.py`, `hudi_lock.py`).
- Contention: eight contenders. Each holds the lock for 5 ms and requests it again immediately. A wait lasts from the request for
  the lock until it is held. A wait that is unfinished when the run ends counts only for the longest wait, with the time until
  then. Measured with and without a delay of the requests.
- Lost answers: a proxy forwards one write of the lock object and closes the connection instead of returning the store's answer.
  Both sides have the shortest lease that Hudi accepts; its default is 300 s. No other writer contends for the lock; the other
  writer of the table is one that is started again.

| the lost answer | measured |
| --- | --- |
| to the acquisition | from the request for the lock until the same writer holds it |
| to a renewal | from the loss until the writer has renewed its lease; if it is stopped, until another writer holds the lock |
| to the release | from the request for the release until another writer holds the lock |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any, Protocol, TypeAlias

from lakewarden.handlers.lease import machine as lease
from tests.bench.figures import jain, over_runs, shown, spread
from tests.bench.run import Figures, Rows, Size, progress
from tests.servers.hudi import HUDI_VERSION
from tests.servers.proxy import Cut, Proxy
from tests.servers.s3 import S3Server

REMOTE_DELAY_SECONDS = 0.015
"""Added to each request to the store: the latency of a store on another machine."""
CONTENDERS = 8
HOLD_SECONDS = 0.005
LOST_LEASE = lease.LeaseSettings(validity=10, renew_interval=1)
ANSWER = Cut(re.compile(rb"PUT "), answered=True, seconds=0.0)
OPERATIONS = {
    "acquire": ("acquire an existing free lock", "2 requests"),
    "renew": ("renew", "1 request"),
    "release": ("release", "1 request"),
}
LOST = {
    "acquire": "the answer to an acquisition is lost: until the writer holds the lock",
    "renew": "the answer to a renewal is lost: until it is renewed, or another writer holds the lock",
    "release": "the answer to the release is lost: until another writer holds the lock",
}

Span: TypeAlias = tuple[float, float]
"""When a contender requested the lock, and when it held it, in seconds since the run began."""


class Lock(Protocol):
    """The agent's lock, or Hudi's."""

    title: str

    def operations(self, rounds: int, repetitions: int) -> Figures:
        """Milliseconds of each operation over the repetitions, and the number of its requests."""

    def hand_over(self, rounds: int) -> dict[str, float]:
        """Milliseconds from the release on."""

    def contend(self, seconds: float, endpoint: str | None) -> dict[str, float]:
        """One run, through a proxy at this endpoint."""

    def lose(self, operation: str) -> Figures:
        """Seconds until a writer holds the lock again."""


def measure(lock: Lock, size: Size, server: S3Server) -> Figures:
    """All figures. The server's credentials are in the environment."""

    def contend(endpoint: str | None) -> dict[str, Any]:
        return over_runs(
            [lock.contend(size.contention_seconds, endpoint) for _ in range(size.contention_runs)]
        )

    progress(f"{lock.title}: acquire, renew, release")
    operations = lock.operations(size.lock_rounds, size.lock_repetitions)
    progress(f"{lock.title}: hand-over, {CONTENDERS} contenders")
    report: Figures = {
        "operations": operations,
        "hand_over_ms": lock.hand_over(size.lock_rounds),
        "contention": contend(None),
    }
    with Proxy(server.endpoint, delay_seconds=REMOTE_DELAY_SECONDS) as proxy:
        report["contention_delayed"] = contend(proxy.endpoint)
    progress(f"{lock.title}: lost answers")
    report["lost"] = {
        name: _over_trials([lock.lose(name) for _ in range(size.lost_answers)]) for name in OPERATIONS
    }
    return report


def contention(spans: Sequence[Sequence[Span]], seconds: float) -> dict[str, float]:
    """The figures of a run that was over after `seconds`. `spans`: of each contender. Waits are in milliseconds."""
    finished = [[held - requested for requested, held in each if held <= seconds] for each in spans]
    unfinished = [seconds - requested for each in spans for requested, held in each if held > seconds]
    every = [wait for waits in finished for wait in waits]
    return {
        "cycles_per_second": round(len(every) / seconds, 1),
        "jain": round(jain([len(waits) for waits in finished]), 4),
        "longest_wait_ms": round(max([*every, *unfinished]) * 1e3, 2),
    }


def _over_trials(trials: Sequence[Figures]) -> Figures:
    each = [round(trial["seconds"], 3) for trial in trials]
    return trials[0] | {"seconds": median(each), "each": each}


def rows(report: Figures) -> Rows:
    """The table that is printed. `report` has the figures of `agent`, and perhaps those of `hudi`."""
    sides = [report[name] for name in ("agent", "hudi") if name in report]
    yield ("the lock, on a local S3 server", "measured", "target", f"Hudi {HUDI_VERSION}")[: 2 + len(sides)]
    for title, aim, text in _rows():
        yield title, text(sides[0]), aim, *map(text, sides[1:])


def footnote(report: Figures) -> str:
    """What the table's figures are."""
    if "hudi" not in report:
        return 'Beside Hudi\'s own lock: make bench PEERS=hudi ARGS="--workload lock", and docs/benchmarks.md, "The lock".'
    return (
        "Hudi: its StorageBasedLockProvider on the same server in this run, all contenders in one JVM, with the tests' own\n"
        "client for S3. A wait that is unfinished at the end of a run counts with the time until then."
    )


def _rows() -> Iterator[tuple[str, str, Callable[[Figures], str]]]:
    """Title, aim, and the text of a side's figures."""
    for name, (title, aim) in OPERATIONS.items():
        yield title, aim, partial(_operation, name)
    yield "hand-over to a waiting agent, from the release on", "", _hand_over
    delay = f"the same, each request {REMOTE_DELAY_SECONDS * 1e3:.0f} ms later"
    hold = f"{CONTENDERS} contenders, each holding it for {HOLD_SECONDS * 1e3:.0f} ms"
    for name, title, aim in (
        ("contention", hold, "≥ 60 cycles per second"),
        ("contention_delayed", delay, ""),
    ):
        yield title, aim, partial(_cycles, name)
        yield "  fairness and waits", "Jain ≥ 0.99, longest < 1 s", partial(_waits, name)
    for name, title in LOST.items():
        what = f"lease {LOST_LEASE.validity:g} s, renewed every {LOST_LEASE.renew_interval:g} s; {title}"
        yield what, "", partial(_lost, name)


def _operation(name: str, side: Figures) -> str:
    figure = side["operations"][name]
    p50, p99 = figure["ms"]["p50"], figure["ms"]["p99"]
    requests = f"{figure['requests']:g} request{'s' if figure['requests'] != 1 else ''}"
    return f"p50 {spread(p50, '.1f')} ms, p99 {spread(p99, '.0f')} ms, {requests}"


def _hand_over(side: Figures) -> str:
    return shown(side["hand_over_ms"], names="p50 p99 max", digits="10")


def _cycles(name: str, side: Figures) -> str:
    return f"{spread(side[name]['cycles_per_second'], '.0f')} cycles per second"


def _waits(name: str, side: Figures) -> str:
    figure = side[name]
    longest = max(figure["longest_wait_ms"]["each"]) / 1e3
    return f"Jain {spread(figure['jain'], '.3f')}, longest {longest:.2f} s"


def _lost(name: str, side: Figures) -> str:
    figure = side["lost"][name]
    seconds: float = figure["seconds"]
    text = f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
    if (stopped := figure.get("stopped_after_seconds")) is not None:
        text += f"; the writer is interrupted after {stopped:.1f} s"
    if "raised" in figure:
        text += f"; the release raises {figure['raised']}"
    return text
