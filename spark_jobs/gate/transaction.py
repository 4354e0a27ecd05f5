"""One transaction of one writer: the calls that its body makes.

| file | has the rules of |
| --- | --- |
| `waiting.py` | the waits for the agent's decisions, with `progress.py` for the states and `grant.py` for the lease |
| `outcome.py` | a publish's outcome: reported, looked up in the table, or unknown |
| `footprint.py` | what the transaction has touched |
| `event_publisher.py` | what it publishes |
| `on_abort.py` | callbacks of an abort, in a thread of their own |
| `nesting.py` | transactions in the bodies of others |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from lakewarden import events as wire
from lakewarden.spark_jobs.gate import refusals
from lakewarden.spark_jobs.gate.channel import Channel
from lakewarden.spark_jobs.gate.errors import BaseChanged, CommitAborted
from lakewarden.spark_jobs.gate.event_publisher import Intent, Timing
from lakewarden.spark_jobs.gate.executor import ExecutorChannel
from lakewarden.spark_jobs.gate.footprint import Footprint
from lakewarden.spark_jobs.gate.grant import Grant, PublishOutcome
from lakewarden.spark_jobs.gate.observer import (
    MAX_LISTED,
    Observer,
    Steps,
    abort_detail,
    cause_of,
    reason_of,
)
from lakewarden.spark_jobs.gate.on_abort import AbortCallbacks
from lakewarden.spark_jobs.gate.outcome import BatchOutcome, CommitLookup
from lakewarden.spark_jobs.gate.progress import Change, GatePhase
from lakewarden.spark_jobs.gate.scope import as_markers, marker_of
from lakewarden.spark_jobs.gate.waiting import Waits

TELLING_SECONDS = 1.0
"""How long the end of an aborted transaction waits until its observer knows of the abort: an observer may hang."""


class Transaction:
    """A transaction between its intent and its end. `CommitGate` creates it; its body calls its methods."""

    def __init__(
        self,
        channel: Channel,
        intent: Intent,
        timing: Timing,
        clock: Callable[[], float],
        observer: Observer | None,
        *,
        may_queue: bool,
        beside: Mapping[str, Waits] | None = None,
    ) -> None:
        """With `may_queue`, a missing answer doesn't mean that no agent runs: the transaction may wait in the queue.

        `beside`: the open transactions of the gate, by id.
        """
        self.id = intent.transaction
        self.intent = intent
        self.facts = intent.facts
        self.nest = [self]
        """The transactions of nested bodies of which this is one."""
        self.steps = Steps(intent, observer)
        others = {} if beside is None else beside
        self.waits = Waits(channel, intent, timing, clock, self.steps, may_queue=may_queue, beside=others)
        self.touches = Footprint(channel, self.waits)
        self._batch = BatchOutcome(self.waits, self.steps)
        self._callbacks = AbortCallbacks(self.id, clock)
        self._channel = channel
        self._publisher = self.waits.publisher
        self._progress = self.waits.progress
        self._checks: list[Callable[[], object]] = []

    @property
    def table(self) -> str:
        """Canonical URI of the table."""
        return self.intent.table

    @property
    def writer(self) -> str:
        """Name of the writing job in the table, the same after a restart.

        It is the name on the wire, with `~` and the writer's edition if a correction of the ledger has given it one.
        """
        return self.waits.writer

    @property
    def batch_id(self) -> int | None:
        """The writer's own number of this batch."""
        return self.intent.batch_id

    @property
    def aborted(self) -> bool:
        """Whether an abort arrived before the publish began."""
        return self._progress.abort is not None

    @property
    def discardable(self) -> bool:
        """Whether nothing that this transaction staged is, or can still come, in the table: it may be removed."""
        return self._batch.discardable

    @property
    def outcome(self) -> PublishOutcome:
        """What is known of the publish of this batch, by this transaction or one before."""
        return self._batch.publish

    def recognise(self, committed: CommitLookup, *, now: bool = True) -> None:
        """Look up whether the table has this batch: now, under the grant, and after a publish that failed.

        If it has, this method or `commit` raises `AlreadyCommitted`: skip the batch. A transaction without `batch_id`
        can't be recognised. `sinks/contract.py` says what `committed` must do.

        `now`: whether to look now, too. That only spares the computation; under the grant it is looked up in any case.
        """
        self._require_uncommitted()
        if committed == self._batch.lookup or self.batch_id is None:
            return
        self._batch.lookup = committed
        if not now or self._batch.version_in_table() is None:
            return
        # `commit` looks again under the grant, reports the batch, and raises AlreadyCommitted.
        with self.commit() as grant:
            grant.not_published()
            raise BaseChanged(
                f"the table contained this batch and no longer does; nothing was published; {self.facts}"
            )

    def check(self) -> None:
        """Raise `CommitAborted` if an abort has arrived. It is cheap: call it between the steps of the body."""
        abort = self._progress.abort
        if abort is not None:
            raise CommitAborted(abort)

    def pause(self, seconds: float, awaited: str) -> None:
        """Wait between two steps of the body. Raise as `check` does, and `GrantTimeout` if the wait is interrupted."""
        self.waits.until(lambda: self.aborted or self.waits.interrupted, seconds)
        self.check()
        if self.waits.interrupted:
            raise refusals.interrupted(awaited, self.facts)

    def touch(self, partition: str, file_group: str, operation: wire.Operation) -> None:
        """Publish a marker: this transaction is about to write the file group. Returns when Kafka has acknowledged it."""
        self.touch_all([marker_of(partition, file_group, operation)])

    def touch_all(self, markers: Iterable[wire.Marker]) -> None:
        """Publish markers. Returns when Kafka has acknowledged all of them."""
        for chunk in wire.event_chunks(as_markers(markers)):
            self.check()
            partitions = sorted({marker.partition for marker in chunk})[:MAX_LISTED]
            step = self.steps.event("markers", count=len(chunk), partitions=partitions)
            new = self.touches.undeclared(chunk)
            if new:
                self._publisher.publish_markers(new)
            self.touches.add(chunk)
            self.steps.pass_on(step)
        self.check()

    def before_commit(self, check: Callable[[], object]) -> None:
        """Call `check` before each request for the grant. What it raises ends the request: nothing was published."""
        self._checks.append(check)

    def announce_instant(self, instant: str) -> None:
        """Publish the table format's own name of this transaction, such as Hudi's instant.

        Returns when Kafka has acknowledged it. Call it as soon as the instant is in the table. A watcher may see it there too,
        and the agent would abort this transaction for itself (docs/watch.md).
        """
        self._publisher.publish_instant(instant)

    def on_abort(self, callback: Callable[[CommitAborted], None]) -> None:
        """Run `callback` on another thread the moment an abort arrives, or at once if it has arrived."""
        self._callbacks.add(callback)

    def on_discard(self, function: Callable[[], object]) -> None:
        """Run `function` when the transaction has ended, if nothing that it staged is, or can still come, in the table.

        It removes what was staged, in the thread that ends the transaction, after the batch's Spark jobs have ended
        and outside their tag: an abort doesn't cancel the jobs that it starts. If it raises, that is logged.
        """
        self._batch.discards.append(function)

    def executor_channel(self) -> ExecutorChannel:
        """Return a channel that pickles into a Spark closure, for executors to publish their markers."""
        self.touches.on_executors = True
        return ExecutorChannel(
            bootstrap_servers=self._channel.bootstrap_servers,
            topic_prefix=self._channel.topics.prefix,
            table=self.table,
            transaction=self.id,
            writer=self.intent.writer,
            kafka=self._channel.kafka,
            share=self._channel.share,
            timeout=self._channel.timeout,
        )

    def request_grant(self) -> Grant:
        """Wait for the grant, then publish, and report the outcome by the grant's methods. Call it once, from any thread.

        It is for formats that publish in a callback; elsewhere use `commit`. If the batch is in the table already, it
        raises `AlreadyCommitted`.
        """
        for other in self.nest:
            if other.table > self.table and other.has_grant:
                raise refusals.nested(other.facts, self.facts)
        for check in self._checks:
            check()
        with self.waits.changed:
            self._require_uncommitted()
            self._progress.request()
        self._publisher.publish_request()
        self.steps.notify("requested")
        return self._batch.grant_of(self.waits.await_grant())

    def _require_uncommitted(self) -> None:
        """Raise `GateError` if the body has committed, or the transaction has ended; `CommitAborted` if it was aborted."""
        self.check()
        if self._progress.phase is not GatePhase.COMPUTING:
            raise refusals.committed_twice(self.facts, published=self.outcome is PublishOutcome.PUBLISHED)

    @contextmanager
    def commit(self) -> Iterator[Grant]:
        """Wait for the grant; the block publishes. If the block returns, the commit must be durable.

        If the block raises, and the table has the commit nevertheless (`recognise`), the exception becomes a warning in
        the log, and the commit is reported.
        """
        grant = self.request_grant()
        try:
            yield grant
        except Exception as error:
            if self._batch.found_in_table(grant, error):
                return
            raise
        if grant.outcome is PublishOutcome.UNKNOWN:
            grant.published(grant.version)

    def footprint(self, timeout: float) -> tuple[wire.Marker, ...]:
        """Return everything that this transaction touched, read back from Kafka: the executors' markers are included.

        If Kafka doesn't answer in time, it is what the driver touched and what the abort names.
        """
        return self.touches.read_back(timeout)

    @property
    def sequence(self) -> int | None:
        """Offset of the intent in `writers`: the transaction's place among all of the table. None before it is published."""
        return self.waits.intent_offset

    @property
    def turn(self) -> int | None:
        """For an `ordered` transaction that is admitted: its place among those of the table that are open. Otherwise None.

        Rows that are numbered by the version that the writer reads after its admission, and then by its turn, are newer than
        those of overlapping transactions that are granted before.
        """
        return self.waits.turn

    # for the gate

    @property
    def endable(self) -> bool:
        """Whether an exception that is raised in the body now, in any line, lets it end as abandoned."""
        return self._progress.phase not in (GatePhase.PUBLISHING, GatePhase.ENDED)

    @property
    def has_grant(self) -> bool:
        """Whether it has requested its grant, and not reported the outcome."""
        requested = self._progress.phase in (GatePhase.REQUESTED, GatePhase.PUBLISHING)
        return requested and (self._batch.grant is None or self.outcome is PublishOutcome.UNKNOWN)

    def open(self) -> None:
        """Publish the intent and wait for the admission. If this raises, call `finish` with the error nevertheless."""
        intent, waits = self.intent, self.waits
        self._channel.subscribe(self.table, self.id, self._on_decision, facts=self.facts)
        waits.intent_offset = self._publisher.publish_intent()
        self.steps.notify(
            "intent",
            admission=intent.admission,
            scope=len(intent.scope),
            sequence=waits.intent_offset,
            reason=intent.reason,
        )
        self._publisher.start_heartbeats(until=lambda: waits.ended)
        waits.await_admission()

    def finish(self, error: BaseException | None) -> BaseException | None:
        """End the transaction after its body. Return the error to raise, or None if there is none, or none any more.

        It is reported as abandoned if nothing was committed and the agent doesn't know it yet. Then staged files are
        discarded.
        """
        error = self._batch.settled(error)
        with self.waits.changed:
            agent_knows = self._progress.abort is not None or self._progress.committed is not None
            self._progress.end()
        # A callback may have received its grant just now. From here on none does.
        error = self._batch.settled(error)
        outcome = self.outcome
        if outcome is PublishOutcome.UNKNOWN:
            self.steps.notify("failed", outcome="unknown", error=reason_of(error, touched=True))
        elif outcome is PublishOutcome.NOT_PUBLISHED and not agent_knows and self.sequence is not None:
            touched = not self.touches.is_empty
            reason, cause = reason_of(error, touched=touched), cause_of(error, touched=touched)
            lost_to = error.lost_to if isinstance(error, BaseChanged) else None
            self._publisher.publish_abandoned(reason, cause, lost_to)
            self.steps.notify("abandoned", reason=reason, cause=cause)
        self._channel.unsubscribe(self.id)
        if self.discardable:
            self._batch.discard()
        if self.aborted:
            self._callbacks.await_first(TELLING_SECONDS)  # so what ends the query is logged last
        return error

    def jobs_stopped(self, *, gone: bool) -> None:
        """Report that the batch's jobs were cancelled after the abort."""
        self.steps.notify("jobs-stopped", gone=gone, seconds=self._callbacks.seconds_since_abort())

    def verdict(self) -> CommitAborted | None:
        """Return the abort that ended this transaction, or None. An abort after the publish began is not returned."""
        abort = self._progress.abort
        return None if abort is None else CommitAborted(abort)

    def _on_decision(self, decision: wire.DecisionEventUnion, offset: int) -> None:
        """In the channel's thread."""
        change = self.waits.apply(decision, offset)
        if change in {Change.ABORT, Change.LATE_ABORT}:
            assert isinstance(decision, wire.Abort)
            late = change is Change.LATE_ABORT
            step = self.steps.event("abort", **abort_detail(decision), late=late)
            self._callbacks.run(
                CommitAborted(decision), callbacks=not late, first=lambda: self.steps.pass_on(step)
            )
