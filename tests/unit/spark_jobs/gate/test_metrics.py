"""The driver's metrics, from the events of the gate's observer, as OpenTelemetry's exporter serves them to Prometheus."""

from __future__ import annotations

import sys
from typing import Any, get_args

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import REGISTRY, CollectorRegistry

from lakewarden.spark_jobs.gate import metrics as module
from lakewarden.spark_jobs.gate.metrics import BUCKETS, ENDS, GateMetrics
from lakewarden.spark_jobs.gate.observer import GateEvent, Step

TABLE = "s3://lake/orders"
WAITS = ("admission_wait", "grant_wait", "publish", "stopping")
NAMES = {f"{name}_total" for name in ("transactions", "aborts")} | {
    f"{name}_seconds_{part}" for name in WAITS for part in ("bucket", "sum", "count")
}


@pytest.fixture
def counted() -> Counted:
    return Counted()


class Counted:
    """Metrics with a clock that the test sets."""

    def __init__(self, max_tables: int = 100) -> None:
        self.now = 100.0
        self.registry = CollectorRegistry()
        reader = PrometheusMetricReader(scope_info_enabled=False, registry=self.registry)
        provider = MeterProvider([reader], shutdown_on_exit=False)
        self.metrics = GateMetrics(provider, max_tables=max_tables, clock=lambda: self.now)

    def step(self, what: Step, transaction: str = "t1", table: str = TABLE, **detail: Any) -> None:
        self.metrics(GateEvent(0.0, what, table, "w", transaction, 1, 1, detail))

    def value(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"lakewarden_gate_{name}", {"table": TABLE, **labels}) or 0.0


def every_step(metrics: GateMetrics) -> None:
    """Each step of one transaction, in the order of `Step`, and each end, of a transaction of its own."""
    steps: tuple[Step, ...] = get_args(Step)
    for what in steps:
        transaction = what if what in ENDS and what != "completed" else "t1"
        metrics(GateEvent(0.0, what, TABLE, "w", transaction, 1, 1, {}))


def test_a_commit_is_counted_with_its_waits(counted: Counted) -> None:
    for what, seconds in (("intent", 2.0), ("admitted", 30.0), ("requested", 4.0), ("granted", 1.0)):
        counted.step(what)  # type: ignore[arg-type]
        counted.now += seconds
    counted.step("completed", version="7")

    assert counted.value("admission_wait_seconds_sum") == 2.0
    assert counted.value("grant_wait_seconds_sum") == 4.0
    assert counted.value("publish_seconds_sum") == 1.0
    assert counted.value("transactions_total", outcome="committed") == 1


def test_an_abort_counts_by_its_reason_unless_it_came_too_late(counted: Counted) -> None:
    counted.step("abort", reason="conflict", late=False)
    counted.step("jobs-stopped", gone=True, seconds=0.25)
    counted.step("abandoned", reason="CommitAborted")
    counted.step("abort", "t2", reason="lease-lost", late=True)

    assert counted.value("aborts_total", reason="conflict") == 1
    assert counted.value("aborts_total", reason="lease-lost") == 0
    assert counted.value("stopping_seconds_sum") == 0.25
    assert counted.value("transactions_total", outcome="abandoned") == 1


def test_tables_and_open_transactions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OPEN", 3)
    counted = Counted(max_tables=1)
    for number in range(5):
        counted.step("intent", f"t{number}", f"s3://lake/{number}")
    counted.step("failed", "t4", "s3://lake/4")

    assert list(counted.metrics._times) == ["t2", "t3"]
    assert counted.value("transactions_total", outcome="failed", table="other") == 1


def test_nothing_is_kept_of_a_transaction_that_has_ended(counted: Counted) -> None:
    counted.step("intent")
    counted.step("already-committed")

    assert not counted.metrics._times


def test_without_a_provider_prometheus_reads_exactly_the_documented_names() -> None:
    """Names, suffixes and buckets: queries and dashboards of users have them."""
    every_step(GateMetrics())

    samples = [each for family in REGISTRY.collect() for each in family.samples]
    ours = [each for each in samples if each.name.startswith("lakewarden_gate_")]
    assert {each.name.removeprefix("lakewarden_gate_") for each in ours} == NAMES
    for name in WAITS:
        buckets = [each for each in ours if each.name == f"lakewarden_gate_{name}_seconds_bucket"]
        assert [each.labels["le"] for each in buckets] == [*map(str, BUCKETS), "+Inf"]


def test_an_application_without_an_sdk_counts_nothing_and_fails_nothing() -> None:
    every_step(GateMetrics(NoOpMeterProvider()))


def test_without_provider_and_exporter_the_error_names_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.prometheus", None)
    with pytest.raises(ImportError, match=r"pip install 'lakewarden\[metrics\]'; or pass a meter provider"):
        GateMetrics()
