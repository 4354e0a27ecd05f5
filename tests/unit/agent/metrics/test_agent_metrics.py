"""The names and labels of all metrics, their reference, and how the ends of sessions are named."""

from __future__ import annotations

import re

import pytest
from aiokafka.errors import KafkaConnectionError

from lakewarden.agent.errors import KafkaUnreachableError, LogCutError
from lakewarden.agent.metrics.agent_metrics import AgentMetrics, Description
from lakewarden.handlers.lease.conditional import Unknown, Won

BOUNDED = {
    *("agent", "answer", "condition", "kind", "operation", "outcome", "partition", "phase", "reason"),
    *("step", "table", "topic", "version"),
}
ALL = AgentMetrics().descriptions


@pytest.mark.parametrize("metric", ALL, ids=[each.name for each in ALL])
def test_a_name_follows_the_rules_of_prometheus(metric: Description) -> None:
    """https://prometheus.io/docs/practices/naming: a prefix, base units, and `_total` for counters alone."""
    assert re.fullmatch(r"lakewarden(_[a-z]+)+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert not re.search(r"_(ms|millis|milliseconds|minutes|kb|mb|megabytes)(_|$)", metric.name)
    assert set(metric.labels) <= BOUNDED
    assert metric.text.endswith(".")


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (None, "stopped"),
        (KafkaUnreachableError("no broker"), "kafka-unreachable"),
        (LogCutError("cut"), "log-cut"),
        (KafkaConnectionError("gone"), "kafka-error"),
        (OSError("reset"), "os-error"),
    ],
)
def test_the_end_of_a_session_is_counted_by_its_reason(problem: Exception | None, reason: str) -> None:
    metrics = AgentMetrics()
    metrics.on_session_end(problem)

    assert metrics.registry.get_sample_value("lakewarden_sessions_ended_total", {"reason": reason}) == 1


def test_a_request_to_a_store_is_counted_by_its_answer() -> None:
    metrics = AgentMetrics()
    metrics.on_store_request("write", Won("v1"), 0.03)
    metrics.on_store_request("write", Unknown("timeout"), 2.0)

    for answer in ("won", "unknown"):
        labels = {"operation": "write", "answer": answer}
        assert metrics.registry.get_sample_value("lakewarden_store_request_seconds_count", labels) == 1
