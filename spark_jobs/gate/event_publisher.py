"""The events that one transaction publishes to the agent, and its heartbeats.

- *One counter.* Heartbeats and the request share `seq`. One lock covers drawing the number (which records its send time,
  see `grant.py`) and passing the event to the producer, so the numbers rise in the log as well.
- *A heartbeat that fails is logged, and the next one is sent.* If no heartbeat arrives, the agent takes the writer for lost:
  it extends no lease and publishes no grant. That is the safe outcome for a writer that can't reach Kafka.
- *A report that fails is a warning.* If `commit-completed` or `transaction-abandoned` can't be published, a durable commit
  stays durable. The agent reacts when the lease or the heartbeats end.
"""

import os
import socket
import sys
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypedDict

import anyio

from lakewarden import events
from lakewarden.spark_jobs.gate.channel import Channel
from lakewarden.spark_jobs.gate.errors import AlreadyCommitted, GateError
from lakewarden.spark_jobs.gate.logs import EventLogger

MAX_REASON = 500
"""Characters of an exception in `transaction-abandoned`, and of the reason of an admission."""

MAX_HOST, MAX_UI = 255, 1024
"""Characters of a host's name, an application's id or another writer's commit, and of an address."""
COMPLETED_ATTEMPTS = 2
"""Sends of `commit-completed`: the first failure replaces the producer. After the second, the agent finds out by the lapse."""

log = EventLogger("lakewarden.gate")


class Origin(TypedDict, total=False):
    """Where the writer runs, as text."""

    host: str
    pid: int
    application_id: str
    application_ui: str


_of_context: tuple[object, Origin] = (None, {})
"""The last Spark context, and what it says of itself: the gate asks it once."""


def origin() -> Origin:
    """Where this process runs: machine and process, and the Spark application if this process is its driver.

    The gate needs no Spark, so it only looks whether the program has imported it.
    """
    global _of_context  # noqa: PLW0603 - one context per process, as in Spark
    found = Origin(host=socket.gethostname()[:MAX_HOST], pid=os.getpid())
    context = getattr(
        getattr(sys.modules.get("pyspark"), "SparkContext", None), "_active_spark_context", None
    )
    if context is None:
        return found
    if _of_context[0] is not context:
        own: Origin = {}
        with suppress(Exception):  # a context that is being stopped
            own["application_id"] = str(context.applicationId)[:MAX_HOST]
            if (address := context.uiWebUrl) is not None:
                own["application_ui"] = str(address)[:MAX_UI]
        _of_context = context, own
    return found | _of_context[1]


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a writer waits, and how often it sends a heartbeat."""

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
    admission: events.Admission = "optimistic"
    scope: tuple[events.Marker, ...] = ()
    priority: int = 0
    conflict_rule: events.ConflictRule = "file-group"
    lock: str | None = None
    attempt: int = 1
    ends_itself: bool | None = None
    """Whether the job ends when it has written what there is. None: not known."""
    reason: str = ""
    """Why this admission was chosen, as text."""
    transaction: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Id of the transaction that it opens."""

    @property
    def names(self) -> dict[str, str]:
        """What each log line of the transaction names."""
        return {"table": self.table, "writer": self.writer, "transaction": self.transaction}

    @property
    def facts(self) -> str:
        """The same, at the end of an error's text."""
        return " ".join(f"{name}={value}" for name, value in self.names.items())

    def already_committed(
        self, transaction: str | None, version: str | None, last: int | None = None
    ) -> AlreadyCommitted:
        """Return the error for a batch that is in the table, by that transaction or version."""
        return AlreadyCommitted(
            table=self.table,
            writer=self.writer,
            batch_id=self.batch_id,
            transaction=transaction,
            version=version,
            last_batch=last,
        )


class _Header(TypedDict):
    event_id: str
    table: str
    transaction: str
    writer: str
    at: datetime


class EventPublisher:
    """Publishes the events of one transaction."""

    def __init__(self, channel: Channel, intent: Intent, timing: Timing, next_seq: Callable[[], int]) -> None:
        self._channel = channel
        self._intent = intent
        self._timing = timing
        self._next_seq = next_seq
        self._seq_order = anyio.Lock()
        self.heartbeat_error: str | None = None
        """The error of the last heartbeat; None if Kafka acknowledged it."""

    def publish_intent(self) -> int:
        """Open the transaction. Returns the offset of the intent: its place among all transactions of the table."""
        intent = self._intent
        return self._channel.send(
            events.CommitIntent(
                **self._header(),
                batch_id=intent.batch_id,
                admission=intent.admission,
                priority=intent.priority,
                conflict_rule=intent.conflict_rule,
                scope=intent.scope,
                lock=intent.lock,
                ends_itself=intent.ends_itself,
                heartbeat_seconds=self._timing.heartbeat_seconds,
                admission_reason=" ".join(intent.reason.split())[:MAX_REASON] or None,
                **origin(),
            )
        )

    def publish_markers(self, markers: tuple[events.Marker, ...]) -> None:
        self._channel.send(events.MarkerCreated(**self._header(), markers=markers))

    def publish_instant(self, instant: str) -> None:
        self._channel.send(events.MarkerCreated(**self._header(), markers=(), instant=instant))

    def publish_request(self) -> None:
        async def publish() -> None:
            await self._publish_with_seq(lambda seq: events.CommitRequested(**self._header(), seq=seq))

        self._channel.run(publish, doing="publishing commit-requested", facts=self._intent.facts)

    def start_heartbeats(self, *, until: Callable[[], bool]) -> None:
        async def publish_heartbeats() -> None:
            while True:
                await anyio.sleep(self._timing.heartbeat_seconds)
                if until():
                    return
                await self._publish_heartbeat()

        self._channel.spawn(publish_heartbeats, name=f"heartbeats of {self._intent.transaction}")

    async def _publish_heartbeat(self) -> None:
        try:
            with anyio.fail_after(self._channel.timeout):
                await self._publish_with_seq(lambda seq: events.WriterHeartbeat(**self._header(), seq=seq))
        except Exception as error:  # noqa: BLE001 - a token provider may raise anything; the next heartbeat is sent
            self.heartbeat_error = " ".join(str(error).split()) or type(error).__name__
            log.warning("gate.heartbeat-failed", **self._intent.names, error=repr(error))
        else:
            self.heartbeat_error = None

    async def _publish_with_seq(self, event: Callable[[int], events.WriterEventUnion]) -> None:
        async with self._seq_order:
            acknowledged: Awaitable[int] = await self._channel.publish(event(self._next_seq()))
        await acknowledged

    def publish_completed(self, grant: str, version: str | None) -> None:
        # A durable commit must not fail for its name.
        named = None if version is None else version[: events.MAX_VERSION]
        event = events.CommitCompleted(
            **self._header(), grant=grant, version=named, batch_id=self._intent.batch_id
        )
        for remaining in reversed(range(COMPLETED_ATTEMPTS)):
            try:
                self._channel.send(event)
            except GateError as error:
                if not remaining:
                    log.warning(
                        "gate.completed-not-published",
                        **self._intent.names,
                        version=version,
                        advice="the commit is durable; the agent treats its outcome as unknown when the grant lapses",
                        error=str(error),
                    )
            else:
                return

    def publish_abandoned(self, reason: str, cause: events.AbandonCause, lost_to: str | None) -> None:
        lost_to = lost_to and lost_to[:MAX_HOST]
        event = events.TransactionAbandoned(
            **self._header(), reason=reason[:MAX_REASON], lost_to=lost_to, cause=cause
        )
        try:
            self._channel.send(event)
        except GateError as error:
            log.warning("gate.abandoned-not-published", **self._intent.names, error=str(error))

    def _names(self) -> dict[str, str]:
        return {
            "table": self._intent.table,
            "writer": self._intent.writer,
            "transaction": self._intent.transaction,
        }

    def _header(self) -> _Header:
        return {
            "event_id": uuid.uuid4().hex,
            "table": self._intent.table,
            "transaction": self._intent.transaction,
            "writer": self._intent.writer,
            "at": datetime.now(UTC),
        }
