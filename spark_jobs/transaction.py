"""One transaction of one writer: what it says to the agent, hears from it, and lets its body do.

The rules of the states are in `progress.py`, those of the lease in `lease.py`, what is said in `conversation.py`; this
module adds threads and waiting:

- Decisions arrive in the channel's thread, the body runs in the caller's. One condition guards `Progress`; whoever
  hears something notifies, whoever waits has a deadline.
- An abort starts a thread of its own at once, which runs the callbacks: the body may be deep inside a Spark job, and
  the channel's thread has other transactions to serve.
- A publish that ended in an exception has an unknown outcome: nothing is claimed, unless the sink has read the table
  and says `grant.published(…)` or `grant.not_published()`.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from lakewarden.events import (
    Abort,
    CommitRequested,
    DecisionEventUnion,
    Marker,
    MarkerCreated,
    Operation,
)
from lakewarden.spark_jobs.channel import Channel
from lakewarden.spark_jobs.conversation import Conversation, Intent, Timing
from lakewarden.spark_jobs.errors import (
    AgentUnreachable,
    AlreadyCommitted,
    CommitAborted,
    GateError,
    GrantTimeout,
    LeaseLost,
)
from lakewarden.spark_jobs.executor import ExecutorChannel
from lakewarden.spark_jobs.grant import Grant, Outcome
from lakewarden.spark_jobs.markers import in_events, whole_partitions
from lakewarden.spark_jobs.observer import GateEvent, Observer, What, now, tell
from lakewarden.spark_jobs.progress import Heard, Held, Lapsed, Phase, Progress

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
    ) -> None:
        self.id = uuid.uuid4().hex
        self.intent = intent
        self._channel = channel
        self._timing = timing
        self._clock = clock
        self._observer = observer
        self._changed = threading.Condition()
        self._progress = Progress(timing.margin_seconds)
        self._said = Conversation(channel, intent, self.id, timing, self._next_seq)
        self._callbacks: list[Callable[[CommitAborted], None]] = []
        self._touched: dict[Marker, None] = {}
        self._intent_offset: int | None = None
        self._grant: Grant | None = None
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
        for chunk in in_events(markers):
            self.check()
            self._said.markers(chunk)
            self._touched.update(dict.fromkeys(chunk))
            if len(self._touched) > MAX_TOUCHED:
                self._touched = dict.fromkeys(whole_partitions(self._touched))
            self.tell(
                "markers", count=len(chunk), partitions=sorted({marker.partition for marker in chunk})[:50]
            )
        self.check()

    def on_abort(self, callback: Callable[[CommitAborted], None]) -> None:
        """Run `callback` on another thread the moment an abort arrives, or at once if it has arrived."""
        with self._changed:
            abort = self._progress.abort
            if abort is None:
                self._callbacks.append(callback)
                return
        self._start_callbacks(abort, [callback], [])

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
        """Wait for the grant; the block publishes. Leaving it normally means that the commit is durable."""
        self.check()
        with self._changed:
            self._progress.request()
        self._said.request()
        self.tell("requested")
        held = self._await_grant()
        grant = self._grant = Grant(held.grant, held.token, self._still_granted)
        self.tell("granted", token=held.token, lease_seconds=held.lease_seconds)
        try:
            yield grant
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
        touched = dict.fromkeys(self._touched)
        abort = self._progress.abort or self._progress.late_abort
        for entry in abort.conflicts if abort else ():
            touched[
                Marker(partition=entry.partition, file_group=entry.file_group, operation=entry.operation)
            ] = None
        if self._intent_offset is None:
            return tuple(touched)
        try:
            said = self._channel.read_back(self.table, self._intent_offset, timeout)
        except GateError as error:
            log.warning("gate.footprint-incomplete", table=self.table, transaction=self.id, error=str(error))
            return tuple(touched)
        for event in said:
            if isinstance(event, MarkerCreated | CommitRequested) and event.transaction == self.id:
                touched.update(dict.fromkeys(event.markers))
        return tuple(touched)

    # what the gate does with it

    def open(self) -> None:
        """Publish the intent and wait until an agent has it in hands."""
        intent = self.intent
        self._channel.listen(self.table, self.id, self._hear)
        try:
            self._intent_offset = self._said.intent()
            self.tell(
                "intent", admission=intent.admission, scope=len(intent.scope), sequence=self._intent_offset
            )
            self._said.start_heartbeats(until=lambda: self._progress.phase is Phase.ENDED)
            self._await_admission()
        except BaseException as error:
            self.finish(error)
            raise

    def finish(self, error: BaseException | None) -> None:
        """End it: say "abandoned" where nothing was committed and nobody knows yet."""
        with self._changed:
            known = self._progress.abort is not None or self._progress.committed is not None
            self._progress.end()
        outcome = self._grant.outcome if self._grant is not None else Outcome.NOT_PUBLISHED
        if outcome is Outcome.UNKNOWN:
            self.tell("failed", outcome="unknown", error=_reason(error))
        elif outcome is Outcome.NOT_PUBLISHED and not known and self._intent_offset is not None:
            self._said.abandoned(_reason(error))
            self.tell("abandoned", reason=_reason(error))
        self._channel.forget(self.id)

    def seconds_since_abort(self) -> float | None:
        """How long ago the abort was heard."""
        return None if self.aborted_at is None else self._clock() - self.aborted_at

    def verdict(self) -> CommitAborted | None:
        """The abort that ended this transaction, unless its publish had begun."""
        abort = self._progress.abort
        return None if abort is None else CommitAborted(abort)

    # waiting

    def _await_admission(self) -> None:
        queued = self.intent.admission == "queued"
        timeout = self._timing.queue_timeout_seconds if queued else self._timing.admission_timeout_seconds
        with self._changed:
            self._changed.wait_for(self._answered, timeout)
            abort, committed, phase = self._progress.abort, self._progress.committed, self._progress.phase
        if abort is not None:
            raise CommitAborted(abort)
        if committed is not None:
            self.tell("already-committed", version=committed.version)
            raise AlreadyCommitted(
                table=self.table,
                writer=self.writer,
                batch_id=self.batch_id,
                transaction=committed.committed_transaction,
                version=committed.version,
            )
        if phase is not Phase.OPENING:
            self.tell("admitted")
            return
        if queued:
            raise GrantTimeout(
                f"not admitted within {timeout:g} s: the writers ahead have not ended, or no agent runs; see "
                f"`lakewarden status`, then restart the query; {self._facts()}"
            )
        raise AgentUnreachable(
            f"no agent answered the commit-intent within {timeout:g} s; nothing was computed; start one that allows "
            f"this table (`lakewarden agent --allow`), then restart the query; {self._facts()} "
            f"brokers={self._channel.bootstrap_servers} topic={self._channel.topics.writers}"
        )

    def _answered(self) -> bool:
        return self._progress.phase is not Phase.OPENING or self._progress.abort is not None

    def _next_seq(self) -> int:
        with self._changed:
            return self._progress.sends.sending(self._clock())

    def _await_grant(self) -> Held:
        timeout = self._timing.grant_timeout_seconds
        with self._changed:
            self._changed.wait_for(
                lambda: self._progress.held is not None or self._progress.abort is not None, timeout
            )
            if self._progress.held is None and self._progress.abort is None:
                # From here on a grant counts no more (rule 4 of `progress`): "abandoned" stays true.
                self._progress.end()
                raise GrantTimeout(
                    f"no grant within {timeout:g} s; nothing was committed; see `lakewarden status` for who is ahead, "
                    f"then restart the query; {self._facts()}"
                )
            verdict = self._progress.begin_publish(self._clock())
        match verdict:
            case Held():
                return verdict
            case Lapsed():
                raise self._lease_lost(verdict)
            case Abort():
                raise CommitAborted(verdict)

    def _still_granted(self) -> None:
        with self._changed:
            verdict = self._progress.still_held(self._clock())
        match verdict:
            case Held():
                return
            case Lapsed():
                raise self._lease_lost(verdict)
            case Abort():
                raise CommitAborted(verdict)

    def _lease_lost(self, lapsed: Lapsed) -> LeaseLost:
        held = lapsed.held
        how = (
            f"it names seq {held.seq}, which this writer never sent"
            if lapsed.late_seconds is None
            else f"its lease of {held.lease_seconds:g} s ran out {lapsed.late_seconds:.1f} s ago on this writer's clock"
        )
        return LeaseLost(
            f"grant refused: {how}; nothing was published under it; begin a new transaction; {self._facts()} "
            f"grant={held.grant} token={held.token}"
        )

    # hearing

    def _hear(self, decision: DecisionEventUnion, offset: int) -> None:
        with self._changed:
            heard = self._progress.hear(decision, offset)
            callbacks, event = [], None
            if heard in {Heard.ABORT, Heard.LATE_ABORT}:
                assert isinstance(decision, Abort)
                self.aborted_at = self.aborted_at or self._clock()
                event = self._event("abort", **_abort_detail(decision), late=heard is Heard.LATE_ABORT)
            if heard is Heard.ABORT:
                callbacks, self._callbacks = self._callbacks, []
            self._changed.notify_all()
        if event is not None:
            assert isinstance(decision, Abort)
            self._start_callbacks(decision, callbacks, [event])

    def _start_callbacks(
        self, abort: Abort, callbacks: list[Callable[[CommitAborted], None]], events: list[GateEvent]
    ) -> None:
        def running() -> None:
            for event in events:
                tell(self._observer, event)
            for callback in callbacks:
                try:
                    callback(CommitAborted(abort))
                except Exception as error:  # the other callbacks still have to stop their part
                    log.exception("gate.abort-callback-failed", transaction=self.id, error=repr(error))

        threading.Thread(target=running, name=f"lakewarden-abort-{self.id[:8]}", daemon=True).start()

    # telling

    def _completed(self, grant: Grant) -> None:
        self._said.completed(grant.grant, grant.version)
        self.tell("completed", version=grant.version)

    def _facts(self) -> str:
        return f"table={self.table} writer={self.writer} transaction={self.id}"

    def _event(self, what: What, **detail: Any) -> GateEvent:
        intent = self.intent
        return GateEvent(
            now(), what, intent.table, intent.writer, self.id, intent.batch_id, intent.attempt, detail
        )

    def tell(self, what: What, **detail: Any) -> None:
        """Tell the observer a step of this transaction."""
        tell(self._observer, self._event(what, **detail))


def _reason(error: BaseException | None) -> str:
    if error is None:
        return "left without commit()"
    return f"{type(error).__name__}: {error}"


def _abort_detail(abort: Abort) -> dict[str, Any]:
    return {
        "reason": abort.reason,
        "retriable": abort.retriable,
        "others": sorted({entry.other_writer for entry in abort.conflicts}),
        "conflicts": [[entry.partition, entry.file_group] for entry in abort.conflicts[:20]],
    }
