"""Metrics of a driver's transactions through OpenTelemetry's API, as an observer of the gate.

    from lakewarden.spark_jobs.gate.metrics import GateMetrics

    gate = CommitGate("kafka:9092", observer=GateMetrics())
    prometheus_client.start_http_server(9101)

- Without an argument, OpenTelemetry's exporter serves them to Prometheus (`lakewarden[metrics]`).
- With a meter provider, they go where the application's SDK sends them, and the API suffices (`lakewarden[otel]`, decision
  record 48). `opentelemetry.metrics.get_meter_provider()` returns the global one.
- The label `table` names at most `max_tables` tables, all others are `other`. There is no label for writers or transactions.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from opentelemetry.metrics import Counter, Histogram, Meter, MeterProvider

from lakewarden.spark_jobs.gate.observer import GateEvent, Step

METER: Final = "lakewarden.gate"
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


class GateMetrics:
    """Counts the steps of transactions. One object serves all gates of a process."""

    def __init__(
        self,
        provider: MeterProvider | None = None,
        *,
        max_tables: int = 100,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`provider`: None is one of its own, which `prometheus_client` serves from its default registry."""
        self._clock = clock
        self._max_tables = max_tables
        self._tables: set[str] = set()
        self._times: OrderedDict[str, dict[Step, float]] = OrderedDict()
        self._changed = threading.Lock()
        meter = (provider or _for_prometheus()).get_meter(METER)
        self._transactions = _counter(
            meter,
            "transactions",
            "Attempts that ended, by outcome: committed, skipped (already committed), abandoned, failed (outcome unknown).",
        )
        self._aborts = _counter(meter, "aborts", "Aborts that arrived before the publish began, by reason.")
        self._admission = _seconds(meter, "admission_wait", "Time from the intent to the admission.")
        self._grant = _seconds(meter, "grant_wait", "Time from the request for the grant to the grant.")
        self._publish = _seconds(meter, "publish", "Time from the grant to the report of the commit.")
        self._stopping = _seconds(meter, "stopping", "Time until an aborted batch's Spark jobs had ended.")

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
        labels = {"table": table}
        match event.what:
            case "admitted" if "intent" in times:
                self._admission.record(now - times["intent"], labels)
            case "granted" if "requested" in times:
                self._grant.record(now - times["requested"], labels)
            case "abort" if not event.detail.get("late"):
                self._aborts.add(1, {**labels, "reason": str(event.detail.get("reason"))})
            case "jobs-stopped":
                self._stopping.record(float(event.detail.get("seconds", 0.0)), labels)
            case "completed" if "granted" in times:
                self._publish.record(now - times["granted"], labels)
            case _:
                pass
        if event.what in ENDS:
            self._transactions.add(1, {**labels, "outcome": ENDS[event.what]})

    def _label(self, table: str) -> str:
        if table not in self._tables and len(self._tables) >= self._max_tables:
            return OTHER
        self._tables.add(table)
        return table


def _for_prometheus() -> MeterProvider:
    try:
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from opentelemetry.sdk.metrics import MeterProvider as Provider
    except ImportError as error:
        raise ImportError(
            "GateMetrics() needs OpenTelemetry's exporter for Prometheus: pip install 'lakewarden[metrics]'; "
            "or pass a meter provider of your application: GateMetrics(provider)"
        ) from error
    return Provider([PrometheusMetricReader(disable_target_info=True)])


def _counter(meter: Meter, name: str, text: str) -> Counter:
    return meter.create_counter(f"{METER}.{name}", description=text)


def _seconds(meter: Meter, name: str, text: str) -> Histogram:
    return meter.create_histogram(
        f"{METER}.{name}", unit="s", description=text, explicit_bucket_boundaries_advisory=BUCKETS
    )
