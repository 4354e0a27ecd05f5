"""What the agent counts of the decisions of one table, and of its lock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from lakewarden.agent.metrics.agent_metrics import AgentMetrics
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
from lakewarden.handlers.table.machine import Input
from lakewarden.handlers.table.state import TableSettings, TableState
from tests.unit.events.building import made
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


@pytest.fixture
def table() -> Counted:
    return Counted(TableSettings())


def test_the_waits_for_admission_and_grant_are_counted_from_the_events_that_began_them(
    table: Counted,
) -> None:
    """The agent has a backlog: it decides two seconds after it has read the intent."""
    table.read(table.event(CommitIntent, "t1"), lag=2.0)
    table.request("t1", m("p/f"))
    table.now += 4.0
    table.lock()

    assert table.value("lakewarden_admission_wait_seconds_count") == 1
    assert table.value("lakewarden_admission_wait_seconds_sum") == pytest.approx(2.0)
    assert table.value("lakewarden_grant_wait_seconds_count") == 1
    assert 4.0 <= table.value("lakewarden_grant_wait_seconds_sum") <= 4.1
    assert table.value("lakewarden_grants_total") == 1

    table.complete("t1")
    table.complete("t1")

    assert table.value("lakewarden_transactions_total", outcome="committed") == 1, (
        "the repetition counts nothing"
    )


def test_a_loser_that_computes_is_stopped_and_one_that_has_computed_did_so_in_vain(table: Counted) -> None:
    table.intent("winner").intent("computing").intent("done")
    table.touch("winner", m("p/f"), m("p/g"))
    table.now += 10.0
    table.touch("computing", m("p/f"))
    table.request("done")
    table.now += 10.0
    table.touch("done", m("p/g"))

    assert table.value("lakewarden_conflicts_total", kind="marker", outcome="stopped") == 1
    assert table.value("lakewarden_conflicts_total", kind="marker", outcome="in-vain") == 1
    assert 10.0 <= table.value("lakewarden_lost_compute_seconds_total", outcome="stopped") <= 10.1
    assert 20.0 <= table.value("lakewarden_lost_compute_seconds_total", outcome="in-vain") <= 20.1
    assert table.value("lakewarden_aborts_total", reason="conflict") == 2
    assert table.value("lakewarden_transactions_total", outcome="aborted") == 2


def test_lost_seconds_are_0_from_the_first_admission_on_so_that_a_rate_has_the_first_loss(
    table: Counted,
) -> None:
    table.intent("t1")

    for outcome in ("stopped", "in-vain"):
        labels = {"table": TABLE, "outcome": outcome}
        found = table.metrics.registry.get_sample_value("lakewarden_lost_compute_seconds_total", labels)
        assert found == 0.0


def test_a_loser_to_two_winners_is_two_conflicts_and_its_time_is_counted_once(table: Counted) -> None:
    table.intent("w1").intent("w2").intent("loser")
    table.touch("w1", m("p/f")).touch("w2", m("p/g"))
    table.now += 10.0
    table.touch("loser", m("p/f"), m("p/g"))

    assert table.value("lakewarden_conflicts_total", kind="marker", outcome="stopped") == 2
    assert 10.0 <= table.value("lakewarden_lost_compute_seconds_total", outcome="stopped") <= 10.1


def test_a_lapse_counts_as_an_unknown_outcome_and_a_late_report_as_a_commit(table: Counted) -> None:
    table.intent("t1", batch_id=7)
    table.lock()
    table.request("t1", m("p/f"))
    table.tick(after=25.0)

    assert table.value("lakewarden_grant_lapses_total") == 1
    assert table.value("lakewarden_transactions_total", outcome="unknown") == 1

    table.complete("t1")

    assert table.value("lakewarden_transactions_total", outcome="committed") == 1


def test_a_withdrawn_grant_is_an_abort_and_the_transaction_ends_with_its_report(table: Counted) -> None:
    table.intent("t1")
    table.lock()
    table.request("t1", m("p/f"))
    table.lose_lock()

    assert table.value("lakewarden_aborts_total", reason="lease-lost") == 1
    assert table.value("lakewarden_transactions_total", outcome="aborted") == 0

    table.complete("t1")

    assert table.value("lakewarden_transactions_total", outcome="committed") == 1


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


@pytest.mark.parametrize(
    "end",
    [
        lambda table: table.abandon("t1"),
        lambda table: table.lock().commits("t1", m("p/f")),
        lambda table: table.forbid_lock(),
    ],
    ids=["abandoned", "committed", "aborted"],
)
def test_nothing_is_kept_of_a_transaction_that_has_ended(
    table: Counted, end: Callable[[Counted], object]
) -> None:
    """Its intent is delivered once more, later."""
    table.intent("t1")
    end(table)
    table.intent("t1")

    assert table.observer._open == {}


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
