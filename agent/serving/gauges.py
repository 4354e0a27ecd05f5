"""Sets the gauges from the agent's state, at each scrape.

Between some tables and the next ones other tasks run, so a scrape of ten thousand tables doesn't delay a decision. The gauges are
set together at the end: two scrapes at once don't mix their numbers.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import anyio.lowlevel
from prometheus_client import Gauge

from lakewarden.agent.metrics.agent_metrics import AgentMetrics
from lakewarden.agent.serving.partition.owner import PartitionOwner
from lakewarden.handlers.explain.condition import Facts, Open, condition
from lakewarden.handlers.explain.life import Ends
from lakewarden.handlers.explain.waits import waits
from lakewarden.handlers.group.readiness import ReadinessCondition, is_ready
from lakewarden.handlers.table.state import TableSettings, TableState
from lakewarden.handlers.table.transactions import OPEN, Phase

MAX_WAITING = 20
"""Transactions of a table for which a scrape looks whom they wait for."""
TABLES_AT_ONCE = 200
"""Tables that are visited before other tasks run: about a millisecond where nothing is open."""


@dataclass(slots=True)
class Measured:
    """What one scrape has found in the owners."""

    tables: int = 0
    stopped: int = 0
    leases: int = 0
    incomplete: int = 0
    open: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By table label and phase, as `oldest`."""
    oldest: dict[tuple[str, str], float] = field(default_factory=dict)
    unreported: Counter[tuple[str]] = field(default_factory=Counter)
    conditions: dict[tuple[str, str], float] = field(default_factory=dict)
    """Seconds, by table label and name."""
    phases: Counter[tuple[str]] = field(default_factory=Counter)
    unread: dict[tuple[int], int] = field(default_factory=dict)
    """Records, by partition, as `behind`."""
    behind: dict[tuple[int], float] = field(default_factory=dict)
    """Seconds."""


async def measure(owners: Iterable[PartitionOwner], metrics: AgentMetrics, now: float) -> Measured:
    """Visit all tables of these owners. `now`: monotonic seconds."""
    found = Measured()
    for owner in list(owners):
        facts = owner.facts()
        found.phases[facts.phase,] += 1
        found.unread[owner.number,] = facts.unread
        if facts.reached_at is not None:
            found.behind[owner.number,] = now - facts.reached_at
        found.incomplete += owner.seen.missing is not None
        found.stopped += len(owner.tables.stopped.reasons)
        for number, (uri, state) in enumerate(list(owner.tables.states.items()), start=1):
            found.tables += 1
            if uri not in owner.tables.stopped.reasons:
                _visit(state, metrics, now, found)
            _judge(owner, state, metrics, now, found)
            if number % TABLES_AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()
        for uri in owner.observer.ends.keys() - owner.tables.states.keys():
            _judge(owner, TableState(uri, TableSettings()), metrics, now, found)
    return found


def _visit(state: TableState, metrics: AgentMetrics, now: float, found: Measured) -> None:
    found.leases += state.lock is not None and state.lock.expires_at > now
    if state.lapsed:
        waiting = sum(each.until >= now and not each.observed for each in state.lapsed.values())
        if waiting:
            found.unreported[metrics.tables.of(state.uri),] += waiting
    for each in state.transactions.values():
        if each.phase in OPEN:
            key = metrics.tables.of(state.uri), each.phase.value
            found.open[key] += 1
            found.oldest[key] = max(found.oldest.get(key, 0.0), now - each.opened_at)


def _judge(
    owner: PartitionOwner, state: TableState, metrics: AgentMetrics, now: float, found: Measured
) -> None:
    """Note the condition of a table, if it isn't ok."""
    seen, uri = owner.observer, state.uri
    ends = seen.ends.get(uri)
    if not state.transactions and ends is None and uri not in owner.tables.stopped:
        return
    transactions: list[Open] = []
    waiting = 0
    for each in state.open():
        behind: tuple[str, ...] = ()
        since = each.opened_at
        if each.phase in (Phase.QUEUED, Phase.WAITING) and waiting < MAX_WAITING:
            waiting += 1
            behind = tuple(one.other.id for one in islice(waits(state, each), 1))
            since = seen.requested_at(uri, each.id) or since
        elif each.grant is not None:
            since = each.grant.since
        phase: Any = each.phase.value
        withdrawn = each.grant is not None and each.grant.revoked
        transactions.append(Open(each.id, each.writer, phase, now - since, behind, withdrawn=withdrawn))
    known = condition(
        Facts(
            uri,
            now,
            agents=True,
            refused="an unexpected error" if uri in owner.tables.stopped else None,
            denied=seen.denied.get(uri),
            open=tuple(transactions),
            waits_known=not state.without_index,
            ends=ends or Ends(),
        )
    )
    if known.name != "ok":
        key = metrics.tables.of(uri), known.name
        found.conditions[key] = max(found.conditions.get(key, 0.0), known.seconds or 0.0)


def set_partition_gauges(metrics: AgentMetrics, found: Measured) -> None:
    """Set what `measure` has found. What is not there any more has no sample."""
    metrics.served_tables.set(found.tables)
    metrics.stopped_tables.set(found.stopped)
    metrics.leases.set(found.leases)
    metrics.incomplete_logs.set(found.incomplete)
    found_by_gauge: tuple[tuple[Gauge, Mapping[Any, float]], ...] = (
        (metrics.open, found.open),
        (metrics.oldest, found.oldest),
        (metrics.table_condition, found.conditions),
        (metrics.unreported, found.unreported),
        (metrics.partitions, found.phases),
        (metrics.lag_records, found.unread),
        (metrics.lag_seconds, found.behind),
    )
    for gauge, samples in found_by_gauge:
        gauge.clear()
        for labels, value in samples.items():
            gauge.labels(*labels).set(value)


def set_readiness_gauges(metrics: AgentMetrics, found: tuple[ReadinessCondition, ...]) -> None:
    """Set the conditions of readiness."""
    metrics.ready.set(is_ready(found))
    for each in found:
        metrics.condition.labels(each.name).set(each.holds)
