"""One transaction of one writer: the calls that its body makes, and the waiting for the agent's decisions.

Other modules have the rules of the states (`progress.py`), of the grant lease (`grant.py`) and of what is published
(`event_publisher.py`). This module adds threads and waiting:

- *One condition guards `GateProgress`.* Decisions arrive in the channel's thread, and the body runs in the caller's. Applying a
  decision notifies the condition. Every wait has a timeout.
- *An abort runs its callbacks in a thread of its own, at once.* The body may be waiting for a Spark job, and the channel's
  thread serves other transactions.
- *A publish that raised has an unknown outcome.* The transaction looks the batch up in the table, if the sink can
  (`recognise`). A sink that knows the outcome reports it with `grant.published(…)` or `grant.not_published()`. Otherwise
  the writer reports nothing. `BaseChanged` means that nothing was published.
- *A publish without a report is unknown too.* A format that publishes in a callback calls `request_grant` and reports the
  outcome itself, from whatever thread the callback runs in. If the body ends without a report, the batch is looked up.
- *A late admission is explained once*, after `UNANSWERED_SECONDS`. An intent has no answer because the transaction is queued,
  or because no agent runs. Two facts prove the queue, and then an info line says so: a decision names an offset from the
  intent's on (`cause_offset`: up to there the agent had read), or a transaction that overlaps the scope began before and is
  still open. Without both it is the warning: the head of a queue has neither if no agent runs. A writer whose connection
  fails logs the warning, too. A thread of its own reads the facts, so an admission never waits for them.
- *A late turn is explained, too.* An `ordered` transaction that has no grant `UNANSWERED_SECONDS` after its request reports the
  writers before it (`handlers/writers_log.py`), if there are any.
- *Staged files are discarded last*: after the body and its jobs have ended and the outcome is reported, and only if nothing
  of them is, or can still come, in the table (`on_discard`).
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from lakewarden import events as wire
from lakewarden.handlers import writers_log
from lakewarden.spark_jobs.gate import refusals
from lakewarden.spark_jobs.gate.callbacks import AbortCallbacks
from lakewarden.spark_jobs.gate.channel import Channel
from lakewarden.spark_jobs.gate.commit_lookup import CommitLookup
from lakewarden.spark_jobs.gate.errors import AlreadyCommitted, BaseChanged, CommitAborted, GateError
from lakewarden.spark_jobs.gate.event_publisher import EventPublisher, Intent, Timing
from lakewarden.spark_jobs.gate.executor import ExecutorChannel
from lakewarden.spark_jobs.gate.grant import Grant, PublishOutcome
from lakewarden.spark_jobs.gate.logs import EventLogger
from lakewarden.spark_jobs.gate.observer import (
    MAX_ERROR,
    MAX_LISTED,
    GateEvent,
    Observer,
    Step,
    abort_detail,
    epoch_seconds,
    notify,
    reason_of,
)
from lakewarden.spark_jobs.gate.progress import Change, ExpiredLease, GatePhase, GateProgress, GrantLease
from lakewarden.spark_jobs.gate.scope import BatchScope, as_markers, marker_of, whole_partitions

MAX_TOUCHED = 50_000
"""Markers kept one by one for a retry's scope. If there are more, only their partitions are kept."""

UNANSWERED_SECONDS = 10.0
"""After this wait for the admission its reason is logged, or after `admission_timeout_seconds` if that is shorter. A running
agent answers within milliseconds, unless transactions ahead overlap the scope."""

MAX_INTENTS_BEFORE = 20_000
"""Records before the intent in which the intents of the transactions ahead are looked for, in about two seconds. Of an open
transaction whose intent is older, the scope is unknown, and it counts as ahead."""

STOP_CHECK_SECONDS = 1.0
"""Between two questions of a wait whether its program has stopped."""

TELLING_SECONDS = 1.0
"""How long the end of an aborted transaction waits until its observer knows of the abort: an observer may hang."""

log = EventLogger("lakewarden.gate")


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
        beside: Mapping[str, Transaction] | None = None,
    ) -> None:
        """With `may_queue`, a missing answer doesn't mean that no agent runs: the transaction may wait in the queue.

        `beside`: the open transactions of the gate.
        """
        self._beside = {} if beside is None else beside
        self.nest = [self]
        """The transactions of nested bodies of which this is one."""
        self._may_queue = may_queue
        self.id = uuid.uuid4().hex
        self.intent = intent
        self._channel = channel
        self._timing = timing
        self._clock = clock
        self._observer = observer
        self._changed = threading.Condition()
        self._progress = GateProgress(intent.table, intent.writer, timing.margin_seconds)
        self._publisher = EventPublisher(channel, intent, self.id, timing, self._next_seq)
        self._callbacks = AbortCallbacks(self.id)
        self._discards: list[Callable[[], object]] = []
        self._checks: list[Callable[[], object]] = []
        self._declared = frozenset(intent.scope)
        self._touched: dict[wire.Marker, None] = {}
        self._on_executors = False
        self._intent_offset: int | None = None
        self._grant: Grant | None = None
        self._committed: CommitLookup | None = None
        self._found = False
        self._looked_up = False
        self._interrupted = False
        self._stopped: Callable[[], object] | None = None
        self.aborted_at: float | None = None
        self.batch_scope: BatchScope | None = None
        """What the sink's `scope` returned for this batch. `foreach_batch` sets it; None if the scope wasn't asked for."""

    # for the body

    @property
    def table(self) -> str:
        """Canonical URI of the table."""
        return self.intent.table

    @property
    def writer(self) -> str:
        """Name of the writing job in the table, the same after a restart.

        It is the name on the wire, with `~` and the writer's edition if a correction of the ledger has given it one.
        """
        admitted = self._progress.admitted
        edition = None if admitted is None else admitted.edition
        return self.intent.writer if edition is None else f"{self.intent.writer}~{edition}"

    @property
    def batch_id(self) -> int | None:
        """The writer's own number of this batch."""
        return self.intent.batch_id

    @property
    def aborted(self) -> bool:
        """Whether an abort arrived before the publish began."""
        return self._progress.abort is not None

    @property
    def touched(self) -> tuple[wire.Marker, ...]:
        """The markers that the driver published. `footprint` has the executors' as well."""
        return tuple(self._touched)

    @property
    def discardable(self) -> bool:
        """Whether nothing that this transaction staged is, or can still come, in the table: it may be removed."""
        return self._found or self.outcome is PublishOutcome.NOT_PUBLISHED

    @property
    def outcome(self) -> PublishOutcome:
        """What is known of the publish of this batch, by this transaction or one before."""
        return PublishOutcome.NOT_PUBLISHED if self._grant is None else self._grant.outcome

    def recognise(self, committed: CommitLookup) -> None:
        """Look up whether the table has this batch: now, under the grant, and after a publish that failed.

        If it has, this method or `commit` raises `AlreadyCommitted`: skip the batch. A transaction without `batch_id`
        can't be recognised. `sinks/contract.py` says what `committed` must do.
        """
        self._require_uncommitted()
        if committed == self._committed or self.batch_id is None:
            return
        self._committed = committed
        if self._committed_version() is None:
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
        self._wait_until(lambda: self.aborted or self._interrupted, seconds)
        self.check()
        if self._interrupted:
            raise refusals.interrupted(awaited, self.facts)

    def touch(self, partition: str, file_group: str, operation: wire.Operation) -> None:
        """Publish a marker: this transaction is about to write the file group. Returns when Kafka has acknowledged it."""
        self.touch_all([marker_of(partition, file_group, operation)])

    def touch_all(self, markers: Iterable[wire.Marker]) -> None:
        """Publish markers. Returns when Kafka has acknowledged all of them."""
        for chunk in wire.event_chunks(as_markers(markers)):
            self.check()
            partitions = sorted({marker.partition for marker in chunk})[:MAX_LISTED]
            event = self._event("markers", count=len(chunk), partitions=partitions)
            # What the intent declared counts as touched since the admission.
            new = tuple(marker for marker in chunk if marker not in self._declared)
            if new:
                self._publisher.publish_markers(new)
            self._touched.update(dict.fromkeys(chunk))
            if len(self._touched) > MAX_TOUCHED:
                self._touched = dict.fromkeys(whole_partitions(self._touched))
            notify(self._observer, event)
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
        self._discards.append(function)

    def executor_channel(self) -> ExecutorChannel:
        """Return a channel that pickles into a Spark closure, for executors to publish their markers."""
        self._on_executors = True
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
        for each in self.nest:
            if each.table > self.table and each.has_grant:
                raise refusals.nested(each.facts, self.facts)
        for check in self._checks:
            check()
        with self._changed:
            self._require_uncommitted()
            self._progress.request()
        self._publisher.publish_request()
        self.notify("requested")
        lease = self._await_grant()
        grant = Grant(
            lease.grant,
            lease.token,
            check=self._require_lease,
            completed=self._report_completed,
            failed=self._found_in_table,
        )
        self.notify("granted", token=lease.token, lease_seconds=lease.lease_seconds)
        self._require_new(grant)
        with self._changed:
            if self._progress.phase is GatePhase.ENDED:
                raise refusals.ended(self.facts)
            self._grant = grant
        return grant

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
            if self._found_in_table(grant, error):
                return
            raise
        if grant.outcome is PublishOutcome.UNKNOWN:
            grant.published(grant.version)

    def footprint(self, timeout: float) -> tuple[wire.Marker, ...]:
        """Return everything that this transaction touched, read back from Kafka: the executors' markers are included.

        If Kafka doesn't answer in time, it is what the driver touched and what the abort names.
        """
        abort = self._progress.abort or self._progress.late_abort
        named = abort.conflicts if abort else ()
        known = dict.fromkeys(self._touched)
        known |= dict.fromkeys(
            wire.Marker(partition=each.partition, file_group=each.file_group, operation=each.operation)
            for each in named
        )
        known |= dict.fromkeys(self._published_markers(timeout))
        return tuple(known)

    def _published_markers(self, timeout: float) -> Iterator[wire.Marker]:
        """Read those of executors, and of tasks whose job was cancelled. If Kafka doesn't answer, log it, and yield none."""
        if self._intent_offset is None:
            return
        mine = (self.table, self.intent.writer, self.id)
        try:
            events = self._channel.read_back(self.table, self._intent_offset, timeout)
        except GateError as error:
            log.warning("gate.footprint-incomplete", table=self.table, transaction=self.id, error=str(error))
            return
        for event in events:
            if isinstance(event, wire.MarkerCreated | wire.CommitRequested) and mine == (
                event.table,
                event.writer,
                event.transaction,
            ):
                yield from event.markers

    @property
    def sequence(self) -> int | None:
        """Offset of the intent in `writers`: the transaction's place among all of the table. None before it is published."""
        return self._intent_offset

    @property
    def turn(self) -> int | None:
        """For an `ordered` transaction that is admitted: its place among those of the table that are open. Otherwise None.

        Rows that are numbered by the version that the writer reads after its admission, and then by its turn, are newer than
        those of overlapping transactions that are granted before.
        """
        return None if self._progress.admitted is None else self._progress.admitted.turn

    @property
    def namesakes(self) -> tuple[str, ...] | None:
        """Other writers in the agent's ledger with the same job name or query id; None if it knows this writer."""
        return None if self._progress.admitted is None else self._progress.admitted.namesakes

    @property
    def waited(self) -> bool:
        """Whether the admission waited for other transactions."""
        caused_by = None if self._progress.admitted is None else self._progress.admitted.cause_offset
        return caused_by is not None and self._intent_offset is not None and caused_by > self._intent_offset

    def disturbed_needlessly(self, winners: Iterable[str], since: int, timeout: float) -> bool | None:
        """Return whether those that it waited for, and the `winners`, touched nothing that it touched.

        It reads their markers back from Kafka, from the offset `since` in `writers` on. None if it can't know. A batch that
        touches no less than its scope meets whatever overlaps it.
        """
        scope = set(self.batch_scope.markers) if self.batch_scope else set()
        if self._touched and scope.issuperset(self._touched):
            return False
        try:
            events = self._channel.read_back(self.table, since, timeout)
        except GateError as error:
            log.warning("gate.wait-not-measured", **self._names(), error=str(error))
            return None
        others = {*winners, *writers_log.waited_for(events, self.id)}
        outcome = writers_log.met(events, self.id, self._touched, others)
        return None if outcome is None or not others else not outcome

    # for the gate

    @property
    def facts(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self._names().items())

    @property
    def ended(self) -> bool:
        """Whether decisions change nothing any more."""
        return self._progress.phase is GatePhase.ENDED

    @property
    def admitted(self) -> bool:
        """Whether it is open, and waits for its admission no more."""
        return self._progress.phase not in (GatePhase.OPENING, GatePhase.ENDED)

    @property
    def has_grant(self) -> bool:
        """Whether it has requested its grant, and not reported the outcome."""
        requested = self._progress.phase in (GatePhase.REQUESTED, GatePhase.PUBLISHING)
        return requested and (self._grant is None or self.outcome is PublishOutcome.UNKNOWN)

    def nest_in(self, outer: Sequence[Transaction]) -> None:
        """Enter that this transaction is opened in the bodies of these. Raise `GateError` if one could wait for the other.

        Jobs that nest in the order of the tables never wait for each other in a circle. Under a grant, all other writers of
        the outer table would wait for this transaction.
        """
        for each in outer:
            same = each.table == self.table and self.intent.admission == "queued"
            if not each.ended and (each.has_grant or same or each.table > self.table):
                raise refusals.nested(each.facts, self.facts)
        if outer:
            self.nest = outer[0].nest
            self.nest[:] = [*(each for each in self.nest if not each.ended), self]

    def open(self) -> None:
        """Publish the intent and wait for the admission. If this raises, call `finish` with the error nevertheless."""
        intent = self.intent
        self._channel.subscribe(self.table, self.id, self._on_decision, facts=self.facts)
        self._intent_offset = self._publisher.publish_intent()
        self.notify(
            "intent",
            admission=intent.admission,
            scope=len(intent.scope),
            sequence=self._intent_offset,
            reason=intent.reason,
        )
        self._publisher.start_heartbeats(until=lambda: self._progress.phase is GatePhase.ENDED)
        self._await_admission()

    def interrupt(self) -> None:
        """End a wait for the admission or the grant, or the next such wait. The call that waits raises, and nothing is published.

        Call it from another thread. A send that is under way ends first, by its own timeout.
        """
        with self._changed:
            self._interrupted = True
            self._changed.notify_all()

    def interrupt_if(self, stopped: Callable[[], object]) -> None:
        """Interrupt each wait when `stopped()` is true. A wait calls it every second, in the thread that waits."""
        self._stopped = stopped

    def finish(self, error: BaseException | None) -> BaseException | None:
        """End the transaction after its body. Return the error to raise, or None if there is none, or none any more.

        It is reported as abandoned if nothing was committed and the agent doesn't know it yet. Then staged files are
        discarded.
        """
        error = self._settled(error)
        with self._changed:
            agent_knows = self._progress.abort is not None or self._progress.committed is not None
            self._progress.end()
        # A callback may have received its grant just now. From here on none does.
        error = self._settled(error)
        outcome = self.outcome
        if outcome is PublishOutcome.UNKNOWN:
            self.notify("failed", outcome="unknown", error=reason_of(error, touched=True))
        elif outcome is PublishOutcome.NOT_PUBLISHED and not agent_knows and self._intent_offset is not None:
            touched = bool(self._touched or self._declared or self._on_executors)
            reason = reason_of(error, touched=touched)
            self._publisher.publish_abandoned(
                reason, error.lost_to if isinstance(error, BaseChanged) else None
            )
            self.notify("abandoned", reason=reason)
        self._channel.unsubscribe(self.id)
        if self.discardable:
            self._discard()
        if self._progress.abort is not None:
            self._callbacks.await_first(TELLING_SECONDS)  # so what ends the query is logged last
        return error

    def _settled(self, error: BaseException | None) -> BaseException | None:
        """Return the body's error, after the outcome of a publish that it didn't report was looked up."""
        grant = self._grant
        if grant is None or grant.outcome is not PublishOutcome.UNKNOWN:
            return error
        if error is not None and (self._looked_up or not isinstance(error, Exception)):
            return error
        unreported = error or RuntimeError("the body ended without a report of its publish")
        try:
            return None if self._found_in_table(grant, unreported) else error
        except GateError as unknown:
            unknown.__cause__ = error
            return unknown

    def _discard(self) -> None:
        for function in self._discards:
            try:
                function()
            except Exception as failure:  # files that the table doesn't refer to only cost space
                log.exception("gate.discard-failed", **self._names(), error=repr(failure))

    def seconds_since_abort(self) -> float | None:
        return None if self.aborted_at is None else self._clock() - self.aborted_at

    def verdict(self) -> CommitAborted | None:
        """Return the abort that ended this transaction, or None. An abort after the publish began is not returned."""
        abort = self._progress.abort
        return None if abort is None else CommitAborted(abort)

    # waiting for decisions

    def _await_admission(self) -> None:
        timing = self._timing
        timeout = timing.queue_timeout_seconds if self._may_queue else timing.admission_timeout_seconds
        unanswered = min(UNANSWERED_SECONDS, timing.admission_timeout_seconds)
        answered = self._wait_until(self._is_answered, min(unanswered, timeout))
        if not answered and timeout > unanswered:
            self._explain(self._log_unanswered, unanswered, timeout)
        self._wait_until(self._is_answered, timeout - min(unanswered, timeout))
        with self._changed:
            abort, committed, phase = self._progress.abort, self._progress.committed, self._progress.phase
            interrupted = self._interrupted
        if abort is not None:
            raise CommitAborted(abort)
        if committed is not None:
            self.notify("already-committed", version=committed.version)
            raise self._already_committed(committed.committed_transaction, committed.version)
        if phase is not GatePhase.OPENING:
            self.notify("admitted", **({} if self.turn is None else {"turn": self.turn}))
            return
        if interrupted:
            raise refusals.interrupted("admission", self.facts)
        if self._may_queue:
            wait = self._wait_for(writers_log.writers_ahead)
            raise refusals.not_admitted(timeout, wait, self._connection_errors(), self.facts)
        raise refusals.no_agent(timeout, self._channel, self._connection_errors(), self.facts)

    def _wait_until(self, over: Callable[[], bool], timeout: float) -> bool:
        """Wait for decisions until `over()`. Return whether it is. A stopped program interrupts the wait."""
        end = time.monotonic() + timeout
        longest = timeout if self._stopped is None else STOP_CHECK_SECONDS
        while True:
            left = max(0.0, end - time.monotonic())
            with self._changed:
                if self._changed.wait_for(over, min(left, longest)):
                    return True
            if self._stopped is not None and self._stopped():
                self.interrupt()
            elif time.monotonic() >= end:
                return False

    def _explain(self, report: Callable[[float, float], None], seconds: float, timeout: float) -> None:
        """Run a report about a wait in a thread of its own: it reads from Kafka, and the wait may end before."""
        threading.Thread(
            target=report, args=(seconds, timeout), name=f"lakewarden-wait-{self.id[:8]}", daemon=True
        ).start()

    def _log_unanswered(self, seconds: float, timeout: float) -> None:
        """Log that the transaction is queued, or that no agent answers. The module has the rule."""
        ahead = self._writers_of(writers_log.writers_ahead) if self._declared else ()
        errors = self._connection_errors()
        if self._is_answered():
            return
        waits = {"waited_seconds": seconds, "timeout_seconds": timeout}
        if not errors.hint and (ahead or self._agent_read_intent()):
            behind = "transactions that overlap its scope are ahead of it and open"
            detail = behind if ahead else "an agent has read the intent and has not admitted it yet"
            self.notify("queued", ahead=ahead, detail=detail, **waits)
            return
        either = (
            "transactions ahead of it overlap its scope, or "
            if self._may_queue and not self._declared
            else ""
        )
        log.warning(
            "gate.not-admitted-yet",
            **self._names(),
            batch_id=self.batch_id,
            **waits,
            topic_prefix=self._channel.topics.prefix,
            brokers=self._channel.bootstrap_servers,
            detail=f"{either}no agent that allows this table runs with these brokers and this topic prefix"
            f"{errors.hint}; check `lakewarden status`",
        )

    def _agent_read_intent(self) -> bool:
        """Whether an agent has read the intent, as its later decisions show."""
        read = self._channel.agent_read_up_to(self.table)
        return read is not None and self._intent_offset is not None and read >= self._intent_offset

    def _writers_of(
        self, rule: Callable[[Sequence[wire.WriterEventUnion], str], tuple[str, ...]]
    ) -> tuple[str, ...]:
        """Return the writers for which this transaction waits, by a rule of `writers_log.py`; none if Kafka doesn't answer."""
        if self._intent_offset is None:
            return ()
        try:
            events = self._channel.read_back(
                self.table, max(0, self._intent_offset - MAX_INTENTS_BEFORE), self._channel.timeout
            )
        except GateError as error:
            log.warning("gate.queue-unreadable", **self._names(), error=str(error))
            return ()
        return rule(events, self.id)

    def _wait_for(
        self, rule: Callable[[Sequence[wire.WriterEventUnion], str], tuple[str, ...]]
    ) -> refusals.OverdueWait:
        """For which writers this one waits, if any of this driver's other transactions may keep them waiting."""
        others = [each for each in self._beside.values() if each is not self]
        holding = tuple(each.facts for each in others if each.admitted)
        return refusals.OverdueWait(
            self.table, self.intent.writer, self._writers_of(rule) if holding else (), holding
        )

    def _connection_errors(self) -> refusals.ConnectionErrors:
        stood_still = self._channel.stood_still(self._timing.admission_timeout_seconds)
        return refusals.ConnectionErrors(
            self._publisher.heartbeat_error, self._channel.reading_error, stood_still
        )

    def _is_answered(self) -> bool:
        return (
            self._progress.phase is not GatePhase.OPENING
            or self._progress.abort is not None
            or self._interrupted
        )

    def _next_seq(self) -> int:
        with self._changed:
            return self._progress.send_times.next_seq(self._clock())

    def _await_grant(self) -> GrantLease:
        timeout = self._timing.grant_timeout_seconds
        unanswered = min(UNANSWERED_SECONDS, timeout)
        decided = self._wait_until(self._is_decided, unanswered)
        # Turn 0: no other `ordered` transaction of the table was open at its admission.
        if not decided and timeout > unanswered and self.turn:
            self._explain(self._report_turn, unanswered, timeout)
        self._wait_until(self._is_decided, timeout - unanswered)
        with self._changed:
            late = self._progress.lease is None and self._progress.abort is None
            if late:
                # A grant that arrives after this doesn't count (rule 4 of `progress.py`).
                self._progress.end()
            result = None if late else self._progress.begin_publish(self._clock())
        if result is not None:
            return self._lease_or_raise(result)
        if self._interrupted:
            raise refusals.interrupted("grant", self.facts)
        wait = self._wait_for(writers_log.writers_granted_before)
        raise refusals.not_granted(timeout, wait, self._connection_errors(), self.facts)

    def _is_decided(self) -> bool:
        progress = self._progress
        ended = progress.phase is GatePhase.ENDED or self._interrupted
        return ended or progress.lease is not None or progress.abort is not None

    def _report_turn(self, seconds: float, timeout: float) -> None:
        """Report for whose turns an `ordered` transaction waits, if the log shows it."""
        ahead = self._writers_of(writers_log.writers_before)
        if ahead and not self._is_decided():
            detail = "ordered transactions that began before it touch the same file groups, and are open"
            self.notify(
                "waits-for-turn", ahead=ahead, detail=detail, waited_seconds=seconds, timeout_seconds=timeout
            )

    def _require_lease(self) -> float:
        with self._changed:
            now = self._clock()
            result = self._progress.check_lease(now)
        lease = self._lease_or_raise(result)
        assert lease.deadline is not None, "a lease without a deadline gives no permission"
        return lease.deadline - now

    def _lease_or_raise(self, result: GrantLease | ExpiredLease | wire.Abort) -> GrantLease:
        match result:
            case GrantLease():
                return result
            case ExpiredLease():
                raise refusals.lease_expired(result, self.facts)
            case wire.Abort():
                raise CommitAborted(result)

    # looking up the table

    def _committed_version(self) -> str | None:
        if self._committed is None or self.batch_id is None:
            return None
        return self._committed(self.writer, self.batch_id)

    def _require_new(self, grant: Grant) -> None:
        """Under the grant: if the table has the batch, report it and raise. Otherwise check that the lease still counts."""
        if self._committed is None:
            return
        version = self._committed_version()
        if version is None:
            self._require_lease()
            return
        self._found, self._grant = True, grant
        grant.published(version)
        raise self._already_committed(None, version)

    def _already_committed(self, transaction: str | None, version: str | None) -> AlreadyCommitted:
        return AlreadyCommitted(
            table=self.table,
            writer=self.intent.writer,
            batch_id=self.batch_id,
            transaction=transaction,
            version=version,
        )

    def _found_in_table(self, grant: Grant, error: Exception) -> bool:
        """After a publish that raised: return whether the table has the commit. What the sink reported takes precedence.

        If that stays unknown, raise `OutcomeUnknown`, unless `error` is one of the gate's own.
        """
        if isinstance(error, BaseChanged) and grant.outcome is PublishOutcome.UNKNOWN:
            grant.not_published()
        if grant.outcome is not PublishOutcome.UNKNOWN:
            return False
        self._looked_up = True
        version = self._version_if_readable()
        if version is not None:
            log.warning(
                "gate.published-after-all", **self._names(), version=version, error=str(error)[:MAX_ERROR]
            )
            grant.published(version)
            return True
        if isinstance(error, GateError):
            return False
        raise refusals.outcome_unknown(error, self.facts, recognisable=self._committed is not None) from error

    def _version_if_readable(self) -> str | None:
        try:
            return self._committed_version()
        except Exception as failure:  # noqa: BLE001 - whatever it is, the outcome stays unknown
            log.warning("gate.table-unreadable", **self._names(), error=repr(failure))
            return None

    # decisions, in the channel's thread

    def _on_decision(self, decision: wire.DecisionEventUnion, offset: int) -> None:
        with self._changed:
            change = self._progress.apply(decision, offset)
            self._changed.notify_all()
        if change in {Change.ABORT, Change.LATE_ABORT}:
            assert isinstance(decision, wire.Abort)
            late = change is Change.LATE_ABORT
            self.aborted_at = self.aborted_at or self._clock()
            event = self._event("abort", **abort_detail(decision), late=late)
            self._callbacks.run(
                CommitAborted(decision), callbacks=not late, first=lambda: notify(self._observer, event)
            )

    # reports

    def _report_completed(self, grant: Grant) -> None:
        self._publisher.publish_completed(grant.grant, grant.version)
        self.notify("completed", version=grant.version)

    def _names(self) -> dict[str, str]:
        return {"table": self.table, "writer": self.intent.writer, "transaction": self.id}

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
        """Log a step of this transaction and pass it to the observer."""
        notify(self._observer, self._event(what, **detail))
