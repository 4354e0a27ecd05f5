"""The driver's metrics through OpenTelemetry: the same values as for Prometheus, read from the SDK's reader in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint
from prometheus_client import CollectorRegistry
from prometheus_client.samples import Sample

from lakewarden.spark_jobs.gate.counting import BUCKETS
from lakewarden.spark_jobs.gate.metrics import GateMetrics
from lakewarden.spark_jobs.gate.observer import GateEvent, Step
from lakewarden.spark_jobs.gate.otel import METER, OpenTelemetryMetrics

TABLE = "s3://lake/orders"
STEPS: tuple[tuple[Step, str, dict[str, Any]], ...] = (
    ("intent", "t1", {}),
    ("admitted", "t1", {}),
    ("requested", "t1", {}),
    ("granted", "t1", {}),
    ("completed", "t1", {"version": "7"}),
    ("intent", "t2", {}),
    ("abort", "t2", {"reason": "conflict"}),
    ("jobs-stopped", "t2", {"seconds": 0.25}),
    ("abandoned", "t2", {"reason": "CommitAborted"}),
    ("already-committed", "t3", {}),
    ("failed", "t4", {"outcome": "unknown"}),
)

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""By the name in Prometheus and the labels."""


class Clock:
    """Each look at it is a second later."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        self._now += 1.0
        return self._now


def count(observer: GateMetrics | OpenTelemetryMetrics) -> None:
    for what, transaction, detail in STEPS:
        observer(GateEvent(0.0, what, TABLE, "w", transaction, 1, 1, detail))


def points(reader: InMemoryMetricReader) -> Iterator[tuple[str, NumberDataPoint | HistogramDataPoint]]:
    """Each point with the name of its instrument."""
    data = reader.get_metrics_data()
    assert data is not None
    [resource] = data.resource_metrics
    [scope] = resource.scope_metrics
    assert scope.scope.name == METER
    for metric in scope.metrics:
        for point in metric.data.data_points:
            assert isinstance(point, NumberDataPoint | HistogramDataPoint)
            yield f"{metric.name} {metric.unit}".strip(), point


def labels(values: Mapping[str, Any] | None) -> frozenset[tuple[str, str]]:
    return frozenset((name, str(value)) for name, value in (values or {}).items())


def by_prometheus() -> Values:
    registry = CollectorRegistry()
    count(GateMetrics(registry, clock=Clock()))
    samples: list[Sample] = [each for family in registry.collect() for each in family.samples]
    wanted = ("_total", "_sum", "_count")
    return {(each.name, labels(each.labels)): each.value for each in samples if each.name.endswith(wanted)}


def by_opentelemetry() -> Values:
    """With the names that an exporter for Prometheus gives: dots become underscores, and the unit and `_total` are added."""
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    count(OpenTelemetryMetrics(provider, clock=Clock()))
    found: Values = {}
    for name, point in points(reader):
        prometheus = name.replace(".", "_").replace(" s", "_seconds")
        if isinstance(point, NumberDataPoint):
            found[f"{prometheus}_total", labels(point.attributes)] = float(point.value)
        else:
            assert tuple(point.explicit_bounds) == BUCKETS
            found[f"{prometheus}_sum", labels(point.attributes)] = point.sum
            found[f"{prometheus}_count", labels(point.attributes)] = float(point.count)
    provider.shutdown()
    return found


def test_opentelemetry_and_prometheus_count_the_same_under_the_same_names() -> None:
    found = by_opentelemetry()

    assert found == by_prometheus()
    assert found["lakewarden_gate_transactions_total", labels({"table": TABLE, "outcome": "committed"})] == 1
    assert found["lakewarden_gate_grant_wait_seconds_sum", labels({"table": TABLE})] == pytest.approx(1.0)


def test_without_a_provider_nothing_is_counted_and_nothing_fails() -> None:
    """The application has set no SDK up."""
    count(OpenTelemetryMetrics())
