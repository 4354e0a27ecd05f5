"""Metrics of a driver's transactions through OpenTelemetry, as an observer of the gate. It needs `lakewarden[otel]`.

    from lakewarden.spark_jobs.gate.otel import OpenTelemetryMetrics

    gate = CommitGate("kafka:9092", observer=OpenTelemetryMetrics())

It needs the API alone (decision record 48). Without an SDK that the application sets up, nothing is counted anywhere.
`counting.py` says what is counted. The instruments have the names that exporters for Prometheus turn into those of `metrics.py`.
"""

import time
from collections.abc import Callable

from opentelemetry.metrics import MeterProvider, get_meter

from lakewarden.spark_jobs.gate import counting

METER = "lakewarden.gate"


class OpenTelemetryMetrics(counting.CountedSteps):
    """Counts the steps of transactions. One object serves all gates of a process."""

    def __init__(
        self,
        provider: MeterProvider | None = None,
        *,
        max_tables: int = 100,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`provider`: None is the global one."""
        super().__init__(max_tables=max_tables, clock=clock)
        meter = get_meter(METER, meter_provider=provider)
        self._counters = {
            name: meter.create_counter(f"{METER}.{name}", description=each.text)
            for name, each in counting.COUNTERS.items()
        }
        self._waits = {
            name: meter.create_histogram(
                f"{METER}.{name}",
                unit="s",
                description=text,
                explicit_bucket_boundaries_advisory=counting.BUCKETS,
            )
            for name, text in counting.WAITS.items()
        }

    def count(self, name: counting.CounterName, table: str, value: str) -> None:
        self._counters[name].add(1, {"table": table, counting.COUNTERS[name].label: value})

    def observe(self, name: counting.WaitName, table: str, seconds: float) -> None:
        self._waits[name].record(seconds, {"table": table})
