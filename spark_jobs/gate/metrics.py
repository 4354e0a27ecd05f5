"""Metrics of a driver's transactions for Prometheus, as an observer of the gate. It needs `lakewarden[metrics]`.

    from lakewarden.spark_jobs.gate.metrics import GateMetrics

    gate = CommitGate("kafka:9092", observer=GateMetrics())
    prometheus_client.start_http_server(9101)

`counting.py` says what is counted.
"""

import time
from collections.abc import Callable

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram

from lakewarden.spark_jobs.gate import counting


class GateMetrics(counting.CountedSteps):
    """Counts the steps of transactions. One object serves all gates of a process."""

    def __init__(
        self,
        registry: CollectorRegistry = REGISTRY,
        *,
        max_tables: int = 100,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(max_tables=max_tables, clock=clock)
        self._counters = {
            name: Counter(
                f"lakewarden_gate_{name}_total", each.text, ("table", each.label), registry=registry
            )
            for name, each in counting.COUNTERS.items()
        }
        self._waits = {
            name: Histogram(
                f"lakewarden_gate_{name}_seconds",
                text,
                ("table",),
                registry=registry,
                buckets=counting.BUCKETS,
            )
            for name, text in counting.WAITS.items()
        }

    def count(self, name: counting.CounterName, table: str, value: str) -> None:
        self._counters[name].labels(table, value).inc()

    def observe(self, name: counting.WaitName, table: str, seconds: float) -> None:
        self._waits[name].labels(table).observe(seconds)
