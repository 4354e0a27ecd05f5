"""All metrics of the agent, with their names, labels and meanings. docs/metrics.md is generated from this file.

Names follow Prometheus' rules: the unit is a suffix in base units, a counter ends in `_total`. Every label has a bounded number
of values: there is none for transactions, writers or grants, and `table` is bounded by `DEFAULT_TABLES`.

Counters and histograms live as long as the process. They count what this process has decided, and nothing of a replay. Gauges are
set at each scrape (`agent/serving/gauges.py`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.process_collector import ProcessCollector

from lakewarden.agent import errors
from lakewarden.handlers.explain.condition import NAMES as CONDITIONS

DEFAULT_TABLES = 100
WAIT_BUCKETS = (0.005, 0.02, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
REQUEST_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0)
REPLAY_BUCKETS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
DELAY_BUCKETS = (0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Description:
    """One metric, for the documentation."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


class AgentMetrics:
    """The metrics of one agent."""

    def __init__(self, tables: int = DEFAULT_TABLES) -> None:
        """`tables`: how many tables get a value of the label `table` of their own."""
        self.registry = CollectorRegistry(auto_describe=False)
        self.descriptions: list[Description] = []
        self.tables = TableLabels(tables)
        ProcessCollector(registry=self.registry)

        # -- the agent and its partitions --
        self.info = self._gauge(
            "lakewarden_agent_info", "1, with the agent's version and name.", "version", "agent"
        )
        self.ready = self._gauge("lakewarden_ready", "1 if the agent is ready, as `/readyz` says, else 0.")
        self.condition = self._gauge(
            "lakewarden_ready_condition", "1 if this condition of `/readyz` holds, else 0.", "condition"
        )
        self.partitions = self._gauge(
            "lakewarden_partitions", "Kafka partitions that are assigned to this agent, by phase.", "phase"
        )
        self.lag_records = self._gauge(
            "lakewarden_partition_lag_records",
            "Records of `.writers` between the agent's position and the end of the log at the last periodic check.",
            "partition",
        )
        self.lag_seconds = self._gauge(
            "lakewarden_partition_lag_seconds",
            "How far the agent is behind the log, in seconds. An agent that has read everything shows up to two checks (2 s).",
            "partition",
        )
        self.incomplete_logs = self._gauge(
            "lakewarden_incomplete_logs",
            "Partitions whose log lacked records when this agent took them over.",
        )
        self.replay_seconds = self._histogram(
            "lakewarden_replay_seconds",
            "Time from an assignment of partitions until all of them are live.",
            REPLAY_BUCKETS,
        )
        self.sessions_ended = self._counter(
            "lakewarden_sessions_ended_total",
            "Sessions with Kafka that ended, by reason. `stopped`: an orderly stop. After any other, the agent replays the log.",
            "reason",
        )
        self.unacknowledged = self._gauge(
            "lakewarden_unacknowledged_records",
            "Records that the agent has queued for Kafka, and Kafka has not acknowledged.",
        )
        self.published = self._counter(
            "lakewarden_published_records_total",
            "Records that the agent has queued for Kafka, by topic. `dead-letters`: refused records of writers.",
            "topic",
        )
        self.undecodable = self._gauge(
            "lakewarden_undecodable_records",
            "Decisions, ledger entries and audit events that this process could not decode, and skipped.",
        )
        self.memory_used = self._gauge(
            "lakewarden_touched_memory_bytes",
            "Estimated memory for what open and landed transactions touch.",
        )
        self.memory_limit = self._gauge(
            "lakewarden_touched_memory_limit_bytes",
            "The setting `memory_mb`. Above it the agent aborts the largest open transaction.",
        )
        self.memory_evictions = self._counter(
            "lakewarden_memory_evictions_total",
            "Times that the agent was at `memory_mb` and aborted an open transaction, or dropped the index of a table.",
        )
        self.loop_delay = self._histogram(
            "lakewarden_event_loop_delay_seconds",
            "How late the agent's event loop ran a timer. One sample each half second.",
            DELAY_BUCKETS,
        )

        # -- transactions --
        self.served_tables = self._gauge("lakewarden_tables", "Tables whose state the agent has in memory.")
        self.stopped_tables = self._gauge(
            "lakewarden_stopped_tables", "Tables that the agent has stopped after an unexpected error."
        )
        self.open = self._gauge(
            "lakewarden_open_transactions",
            "Open transactions by phase: queued, active, waiting, granted, observed.",
            "table",
            "phase",
        )
        self.oldest = self._gauge(
            "lakewarden_oldest_transaction_seconds",
            "Age of the oldest open transaction in this phase, counted from when this agent read or replayed its intent.",
            "table",
            "phase",
        )
        self.table_condition = self._gauge(
            "lakewarden_table_condition_seconds",
            "How long a table is "
            + ", ".join(each for each in CONDITIONS if each != "ok")
            + "; bypassed also by unnamed commits. Of one label, the longest.",
            "table",
            "condition",
        )
        self.unreported = self._gauge(
            "lakewarden_unreported_outcomes",
            "Transactions whose grant lapsed in the last ten minutes, and whose writer has not reported since.",
            "table",
        )
        self.ended = self._counter(
            "lakewarden_transactions_total",
            "Transactions that ended, by outcome: committed, aborted, abandoned, skipped (already committed), unknown. "
            "An unknown one that is reported later also counts as committed.",
            "table",
            "outcome",
        )
        self.aborts = self._counter(
            "lakewarden_aborts_total",
            "Aborts, by reason as in the event `abort`, also of stopped tables and refused events.",
            "table",
            "reason",
        )
        self.conflicts = self._counter(
            "lakewarden_conflicts_total",
            "Conflicts. `kind`: marker (the winner was open), commit (it had committed). `outcome`: stopped (the loser was "
            "computing), wasted (it had computed), reported (both are observed).",
            "table",
            "kind",
            "outcome",
        )
        self.lost_seconds = self._counter(
            "lakewarden_lost_compute_seconds_total",
            "Time from intent to abort of transactions that lost a conflict. `stopped`: while they computed; `wasted`: after "
            "they had computed everything.",
            "table",
            "outcome",
        )
        self.admission_wait = self._histogram(
            "lakewarden_admission_wait_seconds",
            "Time from an intent to its admission.",
            WAIT_BUCKETS,
            "table",
        )
        self.grant_wait = self._histogram(
            "lakewarden_grant_wait_seconds",
            "Time from a transaction's request for the grant to the grant.",
            WAIT_BUCKETS,
            "table",
        )
        self.grants = self._counter("lakewarden_grants_total", "Grants.", "table")
        self.lapses = self._counter(
            "lakewarden_grant_lapses_total",
            "Grants whose lease ended without a report: the outcome of the transaction is unknown.",
            "table",
        )

        # -- locks and stores --
        self.leases = self._gauge("lakewarden_lock_leases", "Lock leases that this agent holds.")
        self.lock_steps = self._counter(
            "lakewarden_lock_steps_total",
            "Steps of locks, as in the topic `.audit`: acquired, renewed, released, lost, waiting, refused.",
            "step",
        )
        self.late_renewals = self._counter(
            "lakewarden_late_renewals_total",
            "Renewals of a lock after a fifth of its lease, or later.",
        )
        self.lock_wait = self._histogram(
            "lakewarden_lock_wait_seconds", "Time from the need of a lock to its acquisition.", WAIT_BUCKETS
        )
        self.store_requests = self._histogram(
            "lakewarden_store_request_seconds",
            "Requests to object stores, by answer: `won`, `lost`, `throttled`, `unknown`, `refused`, `found`, `absent`.",
            REQUEST_BUCKETS,
            "operation",
            "answer",
        )

        # A counter that appears with its first value shows no increase. So those of few values begin at 0.
        for step in ("acquired", "renewed", "released", "lost", "waiting", "refused"):
            self.lock_steps.labels(step)
        for reason in ("stopped", "kafka-error", "os-error", *map(_name_of, errors.SESSION_ENDS)):
            self.sessions_ended.labels(reason)
        for topic in ("decisions", "conflicts", "audit", "ledger", "dead-letters"):
            self.published.labels(topic)

    def on_store_request(self, operation: str, outcome: object, seconds: float) -> None:
        """Count a request to a store. `outcome`: one of `handlers/lease/conditional.py`."""
        self.store_requests.labels(operation, type(outcome).__name__.lower()).observe(seconds)

    def on_session_end(self, problem: Exception | None) -> None:
        """Count the end of a session. None: an orderly stop."""
        self.sessions_ended.labels(_reason(problem)).inc()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        self._describe(name, "counter", labels, text)
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        self._describe(name, "gauge", labels, text)
        return Gauge(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        self._describe(name, "histogram", labels, text)
        return Histogram(name, text, labels, registry=self.registry, buckets=buckets)

    def _describe(self, name: str, kind: str, labels: tuple[str, ...], text: str) -> None:
        self.descriptions.append(Description(name, kind, labels, text))


def _reason(problem: Exception | None) -> str:
    """The agent's own errors by name, and one value for each library's."""
    match problem:
        case None:
            return "stopped"
        case errors.AgentError():
            return _name_of(type(problem))
        case OSError():
            return "os-error"
        case _:
            return "kafka-error"


def _name_of(error: type[errors.AgentError]) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", error.__name__.removesuffix("Error")).lower()


OTHER = "other"
"""Not the URI of a table: it has no scheme."""


class TableLabels:
    """Gives the first `limit` tables that something is counted of a value of their own, until the process ends."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: set[str] = set()

    def of(self, uri: str) -> str:
        if uri in self._known:
            return uri
        if len(self._known) >= self._limit:
            return OTHER
        self._known.add(uri)
        return uri

    def known(self, uri: str) -> str:
        """The same for a name in a refused event, which gets no value of its own: there may be no such table."""
        return uri if uri in self._known else OTHER
