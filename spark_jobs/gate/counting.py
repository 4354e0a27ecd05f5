"""What is counted of a driver's transactions, from the steps that the gate's observer receives.

`metrics.py` counts it for Prometheus, `otel.py` through OpenTelemetry. The label `table` names at most `max_tables` tables, all
others are `other`. There is no label for writers or transactions.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from lakewarden.spark_jobs.gate.observer import GateEvent, Step

OTHER: Final = "other"
MAX_OPEN: Final = 10_000
"""Transactions whose times are kept at once. The oldest are dropped, and their waits aren't observed."""
BUCKETS: Final = (0.02, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
ENDS: Final[dict[Step, str]] = {
    "completed": "committed",
    "already-committed": "skipped",
    "abandoned": "abandoned",
    "failed": "failed",
}

CounterName = Literal["transactions", "aborts"]
WaitName = Literal["admission_wait", "grant_wait", "publish", "stopping"]


@dataclass(frozen=True, slots=True)
class CounterDescription:
    """A counter, and its label beside `table`."""

    label: str
    text: str


COUNTERS: Final[dict[CounterName, CounterDescription]] = {
    "transactions": CounterDescription(
        "outcome",
        "Attempts that ended, by outcome: committed, skipped (already committed), abandoned, failed (outcome unknown).",
    ),
    "aborts": CounterDescription("reason", "Aborts that arrived before the publish began, by reason."),
}
WAITS: Final[dict[WaitName, str]] = {
    "admission_wait": "Time from the intent to the admission.",
    "grant_wait": "Time from the request for the grant to the grant.",
    "publish": "Time from the grant to the report of the commit.",
    "stopping": "Time until an aborted batch's Spark jobs had ended.",
}
"""Histograms of seconds."""


class CountedSteps(ABC):
    """Counts the steps of transactions. One object serves all gates of a process."""

    def __init__(self, *, max_tables: int = 100, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._max_tables = max_tables
        self._tables: set[str] = set()
        self._times: OrderedDict[str, dict[Step, float]] = OrderedDict()
        self._changed = threading.Lock()

    @abstractmethod
    def count(self, name: CounterName, table: str, value: str) -> None:
        """Count one. `value`: of the counter's own label."""

    @abstractmethod
    def observe(self, name: WaitName, table: str, seconds: float) -> None:
        """Add a time to a histogram."""

    def __call__(self, event: GateEvent) -> None:
        """Count one step. The gate calls it, from several threads."""
        now = self._clock()
        with self._changed:
            table = self._label(event.table)
            times = self._times.setdefault(event.transaction, {})
            times.setdefault(event.what, now)
            if event.what in ENDS:
                del self._times[event.transaction]
            elif len(self._times) > MAX_OPEN:
                self._times.popitem(last=False)
        match event.what:
            case "admitted":
                self._observe_since("admission_wait", table, times, "intent", now)
            case "granted":
                self._observe_since("grant_wait", table, times, "requested", now)
            case "abort" if not event.detail.get("late"):
                self.count("aborts", table, str(event.detail.get("reason")))
            case "jobs-stopped":
                self.observe("stopping", table, float(event.detail.get("seconds", 0.0)))
            case "completed":
                self._observe_since("publish", table, times, "granted", now)
            case _:
                pass
        if event.what in ENDS:
            self.count("transactions", table, ENDS[event.what])

    def _label(self, table: str) -> str:
        if table not in self._tables and len(self._tables) >= self._max_tables:
            return OTHER
        self._tables.add(table)
        return table

    def _observe_since(
        self, name: WaitName, table: str, times: dict[Step, float], since: Step, now: float
    ) -> None:
        if since in times:
            self.observe(name, table, now - times[since])
