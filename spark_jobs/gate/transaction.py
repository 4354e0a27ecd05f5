"""One transaction of one writer: what it says to the agent, hears from it, and lets its body do.

The rules of the states are in `progress.py`, those of the lease in `lease.py`, what is said in `conversation.py`; this
module adds threads and waiting:

- Decisions arrive in the channel's thread, the body runs in the caller's. One condition guards `Progress`; whoever
  hears something notifies, whoever waits has a deadline.
- An abort starts a thread of its own at once, which runs the callbacks: the body may be deep inside a Spark job, and
  the channel's thread has other transactions to serve.
- A publish that ended in an exception has an unknown outcome. The table is asked where it can be (`recognise`); else
  nothing is claimed, unless the sink knows and says `grant.published(…)` or `grant.not_published()`.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from lakewarden.events import Abort, DecisionEventUnion, Marker, Operation
from lakewarden.spark_jobs.gate import refusals
from lakewarden.spark_jobs.gate.callbacks import AbortCallbacks
from lakewarden.spark_jobs.gate.channel import Channel
from lakewarden.spark_jobs.gate.commit_lookup import CommitLookup
from lakewarden.spark_jobs.gate.errors import AlreadyCommitted, BaseChanged, CommitAborted, GateError
from lakewarden.spark_jobs.gate.event_publisher import EventPublisher, Intent, Timing
from lakewarden.spark_jobs.gate.executor import ExecutorChannel
from lakewarden.spark_jobs.gate.footprint import as_marker, published_markers
from lakewarden.spark_jobs.gate.grant import Grant, Outcome
from lakewarden.spark_jobs.gate.markers import event_chunks, whole_partitions
from lakewarden.spark_jobs.gate.observer import (
    MAX_LISTED,
    GateEvent,
    Observer,
    Step,
    abort_detail,
    epoch_seconds,
    notify,
    reason_of,
)
from lakewarden.spark_jobs.gate.progress import Change, ExpiredLease, GrantLease, Phase, Progress

MAX_TOUCHED = 50_000
"""Markers remembered one by one, to be a retry's scope; beyond, only their partitions are."""

log = structlog.get_logger("lakewarden.gate")


class Transaction:
    """A transaction between its intent and its end. Made by `CommitGate`; its methods are for the body."""

    def __init__(
        self,
        channel: Channel,
        intent: Intent,
        timing: Timing,
        clock: Callable[[], float],
        observer: Observer | None,
        *,
        may_queue: bool,
    ) -> None:
        """`may_queue`: the admission may have to wait for others, so that no answer for a while doesn't mean: no agent."""
        self._may_queue = may_queue
        self.id = uuid.uuid4().hex
        self.intent = intent
        self._channel = channel
        self._timing = timing
        self._clock = clock
        self._observer = observer
        self._changed = threading.Condition()
        self._progress = Progress(timing.margin_seconds)
        self._publisher = EventPublisher(channel, intent, self.id, timing, self._next_seq)
        self._callbacks = AbortCallbacks(self.id)
        self._touched: dict[Marker, None] = {}
        self._intent_offset: int | None = None
        self._grant: Grant | None = None
        self._committed: CommitLookup | None = None
        self._found = False
        self.aborted_at: float | None = None

    # what the body sees

    @property
    def table(self) -> str:
        """Canonical URI of the table."""
        return self.intent.table

    @property
    def writer(self) -> str:
        """Name of the writing job on the wire, the same after a restart."""
        return self.intent.writer

    @property
    def batch_id(self) -> int | None:
        """The writer's own number of this batch."""
        return self.intent.batch_id

    @property
    def aborted(self) -> bool:
        """Whether an abort arrived before the publish began."""
        return self._progress.abort is not None

    @property
    def touched(self) -> tuple[Marker, ...]:
        """What the driver touched; executors' markers are not among them (see `footprint`)."""
        return tuple(self._touched)

    @property
    def discardable(self) -> bool:
        """Whether nothing of this transaction is, or can come, in the table: what it staged may be removed."""
        return self._found or self._grant is None or self._grant.outcome is Outcome.NOT_PUBLISHED

    def recognise(self, committed: CommitLookup) -> None:
        """Let the table tell what it has of this writer: now, under the grant, and after a publish that failed.

        Raises `AlreadyCommitted`, now or from `commit`, where this batch is there: skip it. A transaction without
        `batch_id` can't be recognised. See `sinks.py`.
        """
        if committed == self._committed or self.batch_id is None:
            return
        self._committed = committed
        if self._committed_version() is None:
            return
        with self.commit() as grant:  # finds it again, and says so
            grant.not_published()
            raise BaseChanged(
                f"the table had this batch and lost it again; nothing was published; {self._facts()}"
            )

    def check(self) -> None:
        """Raise `CommitAborted` if this transaction was aborted: a cheap look between two steps of the body."""
        abort = self._progress.abort
        if abort is not None:
            raise CommitAborted(abort)

    def touch(self, partition: str, file_group: str, operation: Operation) -> None:
        """Say that this transaction is about to write the file group; returns when Kafka has it."""
        self.touch_all([Marker(partition=partition, file_group=file_group, operation=operation)])

    def touch_all(self, markers: Iterable[Marker]) -> None:
        """Say that this transaction is about to write all of these; returns when Kafka has them."""
        for chunk in event_chunks(markers):
            self.check()
            partitions = sorted({marker.partition for marker in chunk})[:MAX_LISTED]
            event = self._event("markers", count=len(chunk), partitions=partitions)
            self._publisher.publish_markers(chunk)
            self._touched.update(dict.fromkeys(chunk))
            if len(self._touched) > MAX_TOUCHED:
                self._touched = dict.fromkeys(whole_partitions(self._touched))
            notify(self._observer, event)
        self.check()

    def on_abort(self, callback: Callable[[CommitAborted], None]) -> None:
        """Run `callback` on another thread the moment an abort arrives, or at once if it has arrived."""
        self._callbacks.add(callback)

    def executor_channel(self) -> ExecutorChannel:
        """What a Spark closure takes along, to publish markers from the executors."""
        return ExecutorChannel(
            bootstrap_servers=self._channel.bootstrap_servers,
            topic_prefix=self._channel.topics.prefix,
            table=self.table,
            transaction=self.id,
            writer=self.writer,
            kafka=self._channel.kafka,
        )

    @contextmanager
    def commit(self) -> Iterator[Grant]:
        """Wait for the grant; the block publishes. Leaving it normally means that the commit is durable.

        A block that raised and whose commit the table has nevertheless (`recognise`) was left normally, too.
        """
        self.check()
        with self._changed:
            self._progress.request()
        self._publisher.publish_request()
        self.notify("requested")
        lease = self._await_grant()
        grant = Grant(lease.grant, lease.token, self._require_lease)
        self.notify("granted", token=lease.token, lease_seconds=lease.lease_seconds)
        self._require_new(grant)
        self._grant = grant
        try:
            yield grant
        except Exception as error:
            if self._found_in_table(grant, error):
                return
            if grant.outcome is Outcome.UNKNOWN and not isinstance(error, GateError):
                asked = self._committed is not None
                raise refusals.outcome_unknown(error, self._facts(), asked=asked) from error
            raise
        except BaseException:
            if grant.outcome is Outcome.PUBLISHED:
                self._completed(grant)
            raise
        if grant.outcome is not Outcome.NOT_PUBLISHED:
            grant.published(grant.version)
            self._completed(grant)

    def footprint(self, timeout: float) -> tuple[Marker, ...]:
        """All that this transaction touched, executors' markers too: read back from the log, where all of them are.

        The log has what the driver can't know: markers of tasks whose job was cancelled. Where Kafka doesn't answer,
        it is what the driver touched and what the abort named.
        """
        abort = self._progress.abort or self._progress.late_abort
        named = abort.conflicts if abort else ()
        known = dict.fromkeys((*self._touched, *map(as_marker, named)))
        if self._intent_offset is not None:
            published = published_markers(self._channel, self.table, self.id, self._intent_offset, timeout)
            known.update(dict.fromkeys(published))
        return tuple(known)

    # what the gate does with it

    def open(self) -> None:
        """Publish the intent and wait until an agent has it in hands. What fails here is to be told to `finish`, too."""
        intent = self.intent
        self._channel.subscribe(self.table, self.id, self._on_decision, facts=self._facts())
        self._intent_offset = self._publisher.publish_intent()
        self.notify(
            "intent", admission=intent.admission, scope=len(intent.scope), sequence=self._intent_offset
        )
        self._publisher.start_heartbeats(until=lambda: self._progress.phase is Phase.ENDED)
        self._await_admission()

    def finish(self, error: BaseException | None) -> None:
        """End it: say "abandoned" where nothing was committed and nobody knows yet."""
        with self._changed:
            known = self._progress.abort is not None or self._progress.committed is not None
            self._progress.end()
        outcome = self._grant.outcome if self._grant is not None else Outcome.NOT_PUBLISHED
        if outcome is Outcome.UNKNOWN:
            self.notify("failed", outcome="unknown", error=reason_of(error))
        elif outcome is Outcome.NOT_PUBLISHED and not known and self._intent_offset is not None:
            self._publisher.publish_abandoned(reason_of(error))
            self.notify("abandoned", reason=reason_of(error))
        self._channel.unsubscribe(self.id)

    def seconds_since_abort(self) -> float | None:
        """How long ago the abort was heard."""
        return None if self.aborted_at is None else self._clock() - self.aborted_at

    def verdict(self) -> CommitAborted | None:
        """The abort that ended this transaction, unless its publish had begun."""
        abort = self._progress.abort
        return None if abort is None else CommitAborted(abort)

    # waiting

    def _await_admission(self) -> None:
        timing = self._timing
        timeout = timing.queue_timeout_seconds if self._may_queue else timing.admission_timeout_seconds
        with self._changed:
            self._changed.wait_for(self._answered, timeout)
            abort, committed, phase = self._progress.abort, self._progress.committed, self._progress.phase
        if abort is not None:
            raise CommitAborted(abort)
        if committed is not None:
            self.notify("already-committed", version=committed.version)
            raise AlreadyCommitted(
                table=self.table,
                writer=self.writer,
                batch_id=self.batch_id,
                transaction=committed.committed_transaction,
                version=committed.version,
            )
        if phase is not Phase.OPENING:
            self.notify("admitted")
            return
        if self._may_queue:
            raise refusals.not_admitted(timeout, self._publisher.heartbeat_error, self._facts())
        raise refusals.no_agent(timeout, self._channel, self._facts())

    def _answered(self) -> bool:
        return self._progress.phase is not Phase.OPENING or self._progress.abort is not None

    def _next_seq(self) -> int:
        with self._changed:
            return self._progress.send_times.next_seq(self._clock())

    def _await_grant(self) -> GrantLease:
        timeout = self._timing.grant_timeout_seconds
        with self._changed:
            self._changed.wait_for(
                lambda: self._progress.lease is not None or self._progress.abort is not None, timeout
            )
            if self._progress.lease is None and self._progress.abort is None:
                # From here on a grant counts no more (rule 4 of `progress`): "abandoned" stays true.
                self._progress.end()
                raise refusals.not_granted(timeout, self._publisher.heartbeat_error, self._facts())
            verdict = self._progress.begin_publish(self._clock())
        match verdict:
            case GrantLease():
                return verdict
            case ExpiredLease():
                raise refusals.lease_expired(verdict, self._facts())
            case Abort():
                raise CommitAborted(verdict)

    def _require_lease(self) -> None:
        with self._changed:
            verdict = self._progress.check_lease(self._clock())
        match verdict:
            case GrantLease():
                return
            case ExpiredLease():
                raise refusals.lease_expired(verdict, self._facts())
            case Abort():
                raise CommitAborted(verdict)

    # asking the table

    def _committed_version(self) -> str | None:
        if self._committed is None or self.batch_id is None:
            return None
        return self._committed(self.writer, self.batch_id)

    def _require_new(self, grant: Grant) -> None:
        """Under the grant: report the batch that is there; else see that asking didn't outlast the lease."""
        if self._committed is None:
            return
        version = self._committed_version()
        if version is None:
            self._require_lease()
            return
        self._found, self._grant = True, grant
        grant.published(version)
        self._completed(grant)
        raise AlreadyCommitted(
            table=self.table, writer=self.writer, batch_id=self.batch_id, transaction=None, version=version
        )

    def _found_in_table(self, grant: Grant, error: Exception) -> bool:
        """After a failed publish: whether the table has it. What the sink said of it counts first."""
        if grant.outcome is Outcome.PUBLISHED:
            self._completed(grant)
        if grant.outcome is not Outcome.UNKNOWN:
            return False
        try:
            version = self._committed_version()
        except Exception as failure:  # noqa: BLE001 - whatever it is, the outcome stays unknown
            log.warning("gate.table-unreadable", facts=self._facts(), error=repr(failure))
            return False
        if version is None:
            return False
        grant.published(version)
        log.warning("gate.published-after-all", facts=self._facts(), version=version, error=str(error)[:300])
        self._completed(grant)
        return True

    # hearing

    def _on_decision(self, decision: DecisionEventUnion, offset: int) -> None:
        with self._changed:
            change = self._progress.apply(decision, offset)
            self._changed.notify_all()
        if change in {Change.ABORT, Change.LATE_ABORT}:
            assert isinstance(decision, Abort)
            late = change is Change.LATE_ABORT
            self.aborted_at = self.aborted_at or self._clock()
            event = self._event("abort", **abort_detail(decision), late=late)
            self._callbacks.run(
                CommitAborted(decision), callbacks=not late, first=lambda: notify(self._observer, event)
            )

    # telling

    def _completed(self, grant: Grant) -> None:
        self._publisher.publish_completed(grant.grant, grant.version)
        self.notify("completed", version=grant.version)

    def _facts(self) -> str:
        return f"table={self.table} writer={self.writer} transaction={self.id}"

    def _event(self, what: Step, **detail: Any) -> GateEvent:
        intent = self.intent
        return GateEvent(
            epoch_seconds(),
            what,
            intent.table,
            intent.writer,
            self.id,
            intent.batch_id,
            intent.attempt,
            detail,
        )

    def notify(self, what: Step, **detail: Any) -> None:
        """Tell the observer a step of this transaction."""
        notify(self._observer, self._event(what, **detail))
