"""What one transaction says to the agent, and how often.

- Heartbeats and the request share one counter. It is drawn (and its time noted, see `lease.py`) and the event handed to
  the producer under one lock, so the numbers rise in the log too.
- A heartbeat that fails is logged, and the next one is sent all the same: without heartbeats the agent takes the writer
  for lost, the lease isn't extended and no grant comes. That is the right end for a writer that nobody hears.
- Failing to say "completed" or "abandoned" is a warning and no error: a durable commit stays one, and what the agent
  isn't told it finds out when the lease or the heartbeats run out.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypedDict

import anyio
import structlog
from aiokafka.errors import KafkaError

from lakewarden.events import (
    Admission,
    CommitCompleted,
    CommitIntent,
    CommitRequested,
    ConflictRule,
    Marker,
    MarkerCreated,
    TransactionAbandoned,
    WriterEventUnion,
    WriterHeartbeat,
)
from lakewarden.spark_jobs.gate.channel import Channel
from lakewarden.spark_jobs.gate.errors import GateError

MAX_REASON = 500
"""Characters of an exception that travel in `transaction-abandoned`."""

COMPLETED_ATTEMPTS = 2
"""A producer that failed is replaced once; after that the agent has to find the commit by itself."""

log = structlog.get_logger("lakewarden.gate")


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a writer waits, and how often it says that it lives."""

    heartbeat_seconds: float = 5.0
    admission_timeout_seconds: float = 30.0
    queue_timeout_seconds: float = 600.0
    grant_timeout_seconds: float = 600.0
    margin_seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class Intent:
    """What a transaction is opened with."""

    table: str
    writer: str
    batch_id: int | None = None
    admission: Admission = "optimistic"
    scope: tuple[Marker, ...] = ()
    priority: int = 0
    conflict_rule: ConflictRule = "file-group"
    lock: str | None = None
    attempt: int = 1


class _Header(TypedDict):
    event_id: str
    table: str
    transaction: str
    writer: str
    at: datetime


class EventPublisher:
    """The writer's side of one transaction's talk with the agent."""

    def __init__(
        self, channel: Channel, intent: Intent, transaction: str, timing: Timing, next_seq: Callable[[], int]
    ) -> None:
        self._channel = channel
        self._intent = intent
        self._transaction = transaction
        self._timing = timing
        self._next_seq = next_seq
        self._seq_order = anyio.Lock()
        self.heartbeat_error: str | None = None
        """How the last heartbeat failed; None where Kafka took it."""

    def publish_intent(self) -> int:
        """Open the transaction; the offset of the intent is its place among all transactions of the table."""
        intent = self._intent
        return self._channel.send(
            CommitIntent(
                **self._header(),
                batch_id=intent.batch_id,
                admission=intent.admission,
                priority=intent.priority,
                conflict_rule=intent.conflict_rule,
                scope=intent.scope,
                lock=intent.lock,
                heartbeat_seconds=self._timing.heartbeat_seconds,
            )
        )

    def publish_markers(self, markers: tuple[Marker, ...]) -> None:
        """Say what is about to be written; one event's worth of it."""
        self._channel.send(MarkerCreated(**self._header(), markers=markers))

    def publish_request(self) -> None:
        """Ask for the grant."""

        async def publish() -> None:
            await self._publish_with_seq(lambda seq: CommitRequested(**self._header(), seq=seq))

        self._channel.run(
            publish,
            doing="publishing commit-requested",
            facts=f"table={self._intent.table} writer={self._intent.writer} transaction={self._transaction}",
        )

    def start_heartbeats(self, *, until: Callable[[], bool]) -> None:
        """Say again and again, in the background, that this writer lives."""

        async def publish_heartbeats() -> None:
            while True:
                await anyio.sleep(self._timing.heartbeat_seconds)
                if until():
                    return
                await self._publish_heartbeat()

        self._channel.spawn(publish_heartbeats)

    async def _publish_heartbeat(self) -> None:
        try:
            with anyio.fail_after(self._channel.timeout):
                await self._publish_with_seq(lambda seq: WriterHeartbeat(**self._header(), seq=seq))
        except (KafkaError, OSError, TimeoutError, GateError) as error:
            self.heartbeat_error = " ".join(str(error).split()) or type(error).__name__
            log.warning("gate.heartbeat-failed", **self._names(), error=repr(error))
        else:
            self.heartbeat_error = None

    async def _publish_with_seq(self, event: Callable[[int], WriterEventUnion]) -> None:
        async with self._seq_order:
            acknowledged: Awaitable[int] = await self._channel.publish(event(self._next_seq()))
        await acknowledged

    def publish_completed(self, grant: str, version: str | None) -> None:
        """Say that the commit is durable."""
        event = CommitCompleted(
            **self._header(), grant=grant, version=version, batch_id=self._intent.batch_id
        )
        for left in reversed(range(COMPLETED_ATTEMPTS)):
            try:
                self._channel.send(event)
            except GateError as error:
                if not left:
                    advice = "the commit is durable; the agent asks the table when the lease has run out"
                    log.warning(
                        "gate.completed-not-published",
                        **self._names(),
                        version=version,
                        advice=advice,
                        error=str(error),
                    )
            else:
                return

    def publish_abandoned(self, reason: str) -> None:
        """Say that this writer gives up, and that nothing was committed."""
        try:
            self._channel.send(TransactionAbandoned(**self._header(), reason=reason[:MAX_REASON]))
        except GateError as error:
            log.warning("gate.abandoned-not-published", **self._names(), error=str(error))

    def _names(self) -> dict[str, str]:
        return {"table": self._intent.table, "writer": self._intent.writer, "transaction": self._transaction}

    def _header(self) -> _Header:
        return {
            "event_id": uuid.uuid4().hex,
            "table": self._intent.table,
            "transaction": self._transaction,
            "writer": self._intent.writer,
            "at": datetime.now(UTC),
        }
