"""The names and labels of all metrics, how the ends of sessions are named, and what is counted of one table and its lock."""

import re
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from lakewarden.agent.errors import KafkaUnreachableError, LogCutError
from lakewarden.agent.metrics.agent_metrics import AgentMetrics, Description
from lakewarden.agent.metrics.partition_metrics import PartitionMetrics
from lakewarden.events import (
    AuditEventUnion,
    CommitIntent,
    LockAcquired,
    LockLost,
    LockRefused,
    LockReleased,
    LockRenewed,
)
from lakewarden.handlers.lease.conditional import Unknown, Won
from lakewarden.handlers.table.machine import Input
from lakewarden.handlers.table.state import TableSettings, TableState
from tests.unit.events.building import made
from tests.unit.handlers.table import stories
from tests.unit.handlers.table.stories import Story
from tests.unit.handlers.table.world import TABLE, World, m

LOCK = "s3://lake/locks/orders.json"


@dataclass
class Counted(World):
    """A table whose steps are counted."""

    metrics: AgentMetrics = field(default_factory=AgentMetrics)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.observer = PartitionMetrics(self.metrics)

    def apply(self, input_: Input) -> World:
        super().apply(input_)
        self.observer.on_step(self.state, input_, self.effects)
        return self

    def value(self, name: str, **labels: str) -> float:
        """The value of a sample, 0 if it has none."""
        return self.metrics.registry.get_sample_value(name, {"table": TABLE, **labels}) or 0.0


def counts(w: Counted, expected: str) -> bool:
    """`grants_total is 1`, `lost_compute_seconds_total outcome=stopped is 10..10.1`: a sample, without its prefix and table."""
    name, *labels, _, amount = expected.split()
    low, _, high = amount.partition("..")
    found = w.value(f"lakewarden_{name}", **dict(each.split("=") for each in labels))
    return float(low) <= found <= float(high or low)


STORIES = """
the waits for admission and grant are counted from the events that began them
    # The agent has a backlog: it decides two seconds after it has read the intent.
    late_intent t1 lag=2.0; request t1 p/f; wait 4; lock
    → admission_wait_seconds_count is 1, admission_wait_seconds_sum is 1.99..2.01
    → grant_wait_seconds_count is 1, grant_wait_seconds_sum is 4..4.1, grants_total is 1
    complete t1; complete t1 → transactions_total outcome=committed is 1

a loser that computes is stopped and the work of one that has computed is wasted
    intent winner; intent computing; intent done; touch winner p/f p/g; wait 10; touch computing p/f; request done; wait 10
    touch done p/g → conflicts_total kind=marker outcome=stopped is 1, conflicts_total kind=marker outcome=wasted is 1
    → lost_compute_seconds_total outcome=stopped is 10..10.1, lost_compute_seconds_total outcome=wasted is 20..20.1
    → aborts_total reason=conflict is 2, transactions_total outcome=aborted is 2

a loser to two winners is two conflicts and its time is counted once
    intent w1; intent w2; intent loser; touch w1 p/f; touch w2 p/g; wait 10; touch loser p/f p/g
    → conflicts_total kind=marker outcome=stopped is 2, lost_compute_seconds_total outcome=stopped is 10..10.1

a lapse counts as an unknown outcome and a late report as a commit
    intent t1 batch_id=7; lock; request t1 p/f; tick 25 → grant_lapses_total is 1, transactions_total outcome=unknown is 1
    complete t1 → transactions_total outcome=committed is 1

a withdrawn grant is an abort and the transaction ends with its report
    intent t1; lock; request t1 p/f; lose_lock
    → aborts_total reason=lease-lost is 1, transactions_total outcome=aborted is 0
    complete t1 → transactions_total outcome=committed is 1

nothing is kept of a transaction that has ended
    # Its intent is delivered once more, later.
    where END is abandon t1 | lock; commits t1 p/f | forbid_lock
    intent t1; END; intent t1 → observer._open={}
"""


def late_intent(w: Counted, transaction: str, *, lag: float) -> World:
    return w.read(w.event(CommitIntent, transaction), lag=lag)


LANGUAGE = replace(stories.LANGUAGE, begin=lambda: Counted(TableSettings(max_priority=9)), holds=counts)


@pytest.mark.parametrize("story", LANGUAGE.stories(STORIES, late_intent=late_intent), ids=str)
def test_what_is_counted(story: Story) -> None:
    story.play()


@pytest.fixture
def table() -> Counted:
    return Counted(TableSettings())


def test_lost_seconds_are_0_from_the_first_admission_on_so_that_a_rate_has_the_first_loss(
    table: Counted,
) -> None:
    table.intent("t1")

    for outcome in ("stopped", "wasted"):
        labels = {"table": TABLE, "outcome": outcome}
        found = table.metrics.registry.get_sample_value("lakewarden_lost_compute_seconds_total", labels)
        assert found == 0.0


def test_a_transaction_from_before_a_take_over_is_counted_at_its_end_without_its_waits(
    table: Counted,
) -> None:
    table.intent("t1")
    later = Counted(table.settings, now=table.now + 5.0, offset=table.offset, seqs=dict(table.seqs))
    for fact in table.log:
        later.replay(fact)
    later.replayed()
    later.lock()
    later.request("t1", m("p/f"))
    later.complete("t1")

    assert later.value("lakewarden_admission_wait_seconds_count") == 0
    assert later.value("lakewarden_grant_wait_seconds_count") == 1
    assert later.value("lakewarden_transactions_total", outcome="committed") == 1


def test_nothing_is_kept_of_a_table_that_is_stopped(table: Counted) -> None:
    table.intent("t1")
    table.observer.forget_table(TABLE)

    assert table.observer._open == {}


def test_the_tables_beyond_the_limit_share_one_label() -> None:
    metrics = AgentMetrics(tables=2)
    for number in range(5):
        table = Counted(TableSettings(), metrics=metrics)
        table.state = TableState(f"s3://lake/{number}", TableSettings())
        table.intent("t1")
        table.lock()
        table.commits("t1", m("p/f"))

    counted = metrics.registry.get_sample_value
    assert counted("lakewarden_grants_total", {"table": "s3://lake/1"}) == 1
    assert counted("lakewarden_grants_total", {"table": "s3://lake/2"}) is None
    assert counted("lakewarden_grants_total", {"table": "other"}) == 3


def test_hostile_names_of_tables_are_escaped() -> None:
    metrics = AgentMetrics()
    name = 's3://lake/"} 1\nlakewarden_ready 1\\'
    metrics.grants.labels(metrics.tables.of(name)).inc()

    samples = [
        sample
        for family in text_string_to_metric_families(generate_latest(metrics.registry).decode())
        for sample in family.samples
        if sample.name == "lakewarden_grants_total"
    ]

    assert [each.labels["table"] for each in samples] == [name]


def lock_event(kind: type[AuditEventUnion], valid_until: int, **fields: Any) -> AuditEventUnion:
    return made(kind, table=TABLE, lock=LOCK, valid_until=valid_until, duration_ms=250.0, **fields)


def test_a_renewal_that_follows_a_failed_one_is_late() -> None:
    metrics = AgentMetrics()
    observer = PartitionMetrics(metrics)
    for kind, valid_until in (
        (LockAcquired, 30_000),
        (LockRenewed, 33_100),
        (LockRenewed, 39_300),
        (LockLost, 39_300),
        (LockAcquired, 90_000),
        (LockRenewed, 93_000),
        (LockReleased, 93_000),
    ):
        observer.on_lock_event(lock_event(kind, valid_until), renew_seconds=3.0)

    value = metrics.registry.get_sample_value
    assert value("lakewarden_late_renewals_total") == 1
    assert value("lakewarden_lock_wait_seconds_count") == 2
    assert value("lakewarden_lock_wait_seconds_sum") == 0.5
    assert value("lakewarden_lock_steps_total", {"step": "renewed"}) == 3
    assert value("lakewarden_lock_steps_total", {"step": "lost"}) == 1
    assert observer._renewed == {}


@pytest.mark.parametrize(("waiting", "step"), [(True, "waiting"), (False, "refused")])
def test_a_lock_that_another_agent_has_is_waited_for_and_one_that_a_store_forbids_is_refused(
    waiting: bool, step: str
) -> None:
    metrics = AgentMetrics()
    PartitionMetrics(metrics).on_lock_event(lock_event(LockRefused, 0, waiting=waiting), 3.0)

    assert metrics.registry.get_sample_value("lakewarden_lock_steps_total", {"step": step}) == 1


# -- all metrics ---------------------------------------------------------------------------------------------------------

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
