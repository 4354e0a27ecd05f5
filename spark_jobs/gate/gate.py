"""The gate: ask before you compute, say what you touch, publish only while you are granted to.

    gate = CommitGate("kafka:9092")
    with gate.transaction(table="s3://lake/flights", writer="arrivals", batch_id=7) as txn:
        txn.touch("month=1/day=3", "*", "merge")
        staged = compute()
        with txn.commit() as grant:
            grant.version = publish(staged)

What holds, whatever happens in between:

- The body runs only after an agent has the intent in hands. No agent, no work (`AgentUnreachable`).
- The publish runs only under a grant whose lease, counted by this writer, has time left (`LeaseLost`, `GrantTimeout`).
- An abort stops the body as soon as it looks (`touch`, `check`, `commit`), calls `on_abort` at once, and ends as
  `CommitAborted`, chained to whatever the body died of. After the publish began it changes nothing but `grant.check()`.
- What this writer knows, it says: completed, or abandoned. What it doesn't know, it doesn't claim.

The states and their races are in `progress.py`; for Spark's micro-batches see `batches.py`.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import structlog

from lakewarden.events import (
    DEFAULT_PREFIX,
    Admission,
    ConflictRule,
    Marker,
    Topics,
    canonical_table,
)
from lakewarden.spark_jobs.gate.channel import Channel
from lakewarden.spark_jobs.gate.errors import CommitAborted, GateError
from lakewarden.spark_jobs.gate.event_publisher import Intent, Timing
from lakewarden.spark_jobs.gate.grant_deadline import monotonic_seconds
from lakewarden.spark_jobs.gate.kafka import KafkaSettings
from lakewarden.spark_jobs.gate.markers import as_scope
from lakewarden.spark_jobs.gate.observer import Observer
from lakewarden.spark_jobs.gate.transaction import Transaction

log = structlog.get_logger("lakewarden.gate")


class TransactionGate:
    """A driver's gate to its agents: one for a driver, shared by its queries and threads.

    `observer` is told every step (`GateEvent`); it must be quick, and is called from several threads.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        topic_prefix: str = DEFAULT_PREFIX,
        kafka: KafkaSettings | None = None,
        heartbeat_seconds: float = 5.0,
        admission_timeout_seconds: float = 30.0,
        queue_timeout_seconds: float = 600.0,
        grant_timeout_seconds: float = 600.0,
        margin_seconds: float = 1.0,
        observer: Observer | None = None,
        clock: Callable[[], float] = monotonic_seconds,
    ) -> None:
        self.observer = observer
        self._clock = clock
        self._timing = Timing(
            heartbeat_seconds=heartbeat_seconds,
            admission_timeout_seconds=admission_timeout_seconds,
            queue_timeout_seconds=queue_timeout_seconds,
            grant_timeout_seconds=grant_timeout_seconds,
            margin_seconds=margin_seconds,
        )
        self._channel = Channel(bootstrap_servers, topics=Topics(topic_prefix), kafka=kafka)
        self._losers: set[tuple[str, str]] = set()
        """Tables and writers that have lost a conflict and not committed since: their next intent may wait in line, unasked."""
        atexit.register(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Say goodbye to Kafka. Open transactions fall silent, and the agent ends them."""
        atexit.unregister(self.close)
        self._channel.close()

    @contextmanager
    def transaction(
        self,
        *,
        table: str,
        writer: str,
        batch_id: int | None = None,
        admission: Admission = "optimistic",
        scope: Iterable[Marker] = (),
        priority: int = 0,
        conflict_rule: ConflictRule = "file-group",
        lock: str | None = None,
        attempt: int = 1,
    ) -> Iterator[Transaction]:
        """Open a transaction; the block is its body.

        `writer` must be the same after a restart, and `batch_id` the same for the same data: together they are how a
        batch that is committed already is recognised (`AlreadyCommitted`). With `admission="queued"` the body waits
        until nothing ahead overlaps `scope`; after lost conflicts it may have to wait without asking for it. Of two that
        conflict the lower `priority` loses: `TABLE_SERVICE_PRIORITY` for compaction and the like.
        """
        intent = Intent(
            table=canonical_table(table),
            writer=writer,
            batch_id=batch_id,
            admission=admission,
            scope=as_scope(scope),
            priority=priority,
            conflict_rule=conflict_rule,
            lock=lock,
            attempt=attempt,
        )
        key = (intent.table, writer)
        may_queue = admission == "queued" or key in self._losers
        txn = Transaction(
            self._channel, intent, self._timing, self._clock, self.observer, may_queue=may_queue
        )
        try:
            txn.open()
            yield txn
        except BaseException as error:
            txn.finish(error)
            verdict = self._verdict(txn, key)
            if verdict is not None and isinstance(error, Exception) and not isinstance(error, GateError):
                # The body died of what the abort did to it (a cancelled job): say why, not how.
                raise verdict from error
            raise
        txn.finish(None)
        verdict = self._verdict(txn, key)
        if verdict is not None:
            raise verdict  # the body swallowed it, or never looked; the caller must not believe in a commit
        if not txn.discardable:
            self._losers.discard(key)

    def _verdict(self, txn: Transaction, key: tuple[str, str]) -> CommitAborted | None:
        verdict = txn.verdict()
        if verdict is not None and verdict.reason == "conflict":
            self._losers.add(key)
        return verdict
