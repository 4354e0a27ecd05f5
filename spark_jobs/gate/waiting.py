"""What a transaction knows of the agent's decisions, and its waits for them.

- *One condition guards `GateProgress`.* Decisions arrive in the channel's thread, and the body runs in the caller's. Applying a
  decision notifies the condition. Every wait has a timeout.
- *A late admission is explained once*, after `UNANSWERED_SECONDS`. An intent has no answer because the transaction is queued,
  or because no agent runs. Two facts prove the queue, and then an info line says so: a decision names an offset from the
  intent's on (`cause_offset`: up to there the agent had read), or a transaction that overlaps the scope began before and is
  still open. Without both it is the warning: the head of a queue has neither if no agent runs. A writer whose connection
  fails logs the warning, too. A thread of its own reads the facts, so an admission never waits for them.
- *A late turn is explained, too.* An `ordered` transaction that has no grant `UNANSWERED_SECONDS` after its request reports the
  writers before it (`handlers/writers_log.py`), if there are any.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from lakewarden import events as wire
from lakewarden.handlers import writers_log
from lakewarden.spark_jobs.gate import refusals
from lakewarden.spark_jobs.gate.channel import Channel
from lakewarden.spark_jobs.gate.errors import CommitAborted, GateError
from lakewarden.spark_jobs.gate.event_publisher import EventPublisher, Intent, Timing
from lakewarden.spark_jobs.gate.logs import EventLogger
from lakewarden.spark_jobs.gate.observer import Steps
from lakewarden.spark_jobs.gate.progress import Change, ExpiredLease, GatePhase, GateProgress, GrantLease

UNANSWERED_SECONDS = 10.0
"""After this wait for the admission its reason is logged, or after `admission_timeout_seconds` if that is shorter. A running
agent answers within milliseconds, unless transactions ahead overlap the scope."""

MAX_INTENTS_BEFORE = 20_000
"""Records before the intent in which the intents of the transactions ahead are looked for, in about two seconds. Of an open
transaction whose intent is older, the scope is unknown, and it counts as ahead."""

STOP_CHECK_SECONDS = 1.0
"""Between two questions of a wait whether its program has stopped."""

log = EventLogger("lakewarden.gate")

Ahead: TypeAlias = Callable[[Sequence[wire.WriterEventUnion], str], tuple[str, ...]]
"""A rule of `writers_log.py`: for which writers a transaction waits, by the events in `writers`."""


class Waits:
    """The state of one transaction, and its waits for the admission and for the grant. Thread-safe."""

    def __init__(
        self,
        channel: Channel,
        intent: Intent,
        timing: Timing,
        clock: Callable[[], float],
        steps: Steps,
        *,
        may_queue: bool,
        beside: Mapping[str, Waits],
    ) -> None:
        """`may_queue`, `beside`: as of `Transaction`."""
        self.intent = intent
        self.progress = GateProgress(intent.table, intent.writer, timing.margin_seconds)
        self.changed = threading.Condition()
        """Guards `progress`."""
        self.publisher = EventPublisher(channel, intent, timing, self._next_seq)
        self.intent_offset: int | None = None
        self.interrupted = False
        self._stopped: Callable[[], object] | None = None
        self._channel = channel
        self._timing = timing
        self._clock = clock
        self._steps = steps
        self._may_queue = may_queue
        self._beside = beside

    @property
    def ended(self) -> bool:
        """Whether decisions change nothing any more."""
        return self.progress.phase is GatePhase.ENDED

    @property
    def writer(self) -> str:
        """As `Transaction.writer`."""
        admitted = self.progress.admitted
        edition = None if admitted is None else admitted.edition
        return self.intent.writer if edition is None else f"{self.intent.writer}~{edition}"

    @property
    def turn(self) -> int | None:
        """As `Transaction.turn`."""
        return None if self.progress.admitted is None else self.progress.admitted.turn

    @property
    def namesakes(self) -> tuple[str, ...] | None:
        """Other writers in the agent's ledger with the same job name or query id; None if it knows this writer."""
        return None if self.progress.admitted is None else self.progress.admitted.namesakes

    @property
    def delayed(self) -> bool:
        """Whether the admission waited for other transactions."""
        caused_by = None if self.progress.admitted is None else self.progress.admitted.cause_offset
        return caused_by is not None and self.intent_offset is not None and caused_by > self.intent_offset

    def apply(self, decision: wire.DecisionEventUnion, offset: int) -> Change:
        """Apply a decision, in the channel's thread."""
        with self.changed:
            change = self.progress.apply(decision, offset)
            self.changed.notify_all()
        return change

    def interrupt(self) -> None:
        """End a wait for the admission or the grant, or the next such wait. The call that waits raises, and nothing is published.

        Call it from another thread. A send that is under way ends first, by its own timeout.
        """
        with self.changed:
            self.interrupted = True
            self.changed.notify_all()

    def interrupt_if(self, stopped: Callable[[], object]) -> None:
        """Interrupt each wait when `stopped()` is true. A wait calls it every second, in the thread that waits."""
        self._stopped = stopped

    def until(self, over: Callable[[], bool], timeout: float) -> bool:
        """Wait for decisions until `over()`. Return whether it is. A stopped program interrupts the wait."""
        end = time.monotonic() + timeout
        longest = timeout if self._stopped is None else STOP_CHECK_SECONDS
        while True:
            left = max(0.0, end - time.monotonic())
            with self.changed:
                if self.changed.wait_for(over, min(left, longest)):
                    return True
            if self._stopped is not None and self._stopped():
                self.interrupt()
            elif time.monotonic() >= end:
                return False

    # the admission

    def await_admission(self) -> None:
        """Return when the transaction is admitted. Raise what the agent answered instead, or that it didn't answer."""
        timing = self._timing
        timeout = timing.queue_timeout_seconds if self._may_queue else timing.admission_timeout_seconds
        unanswered = min(UNANSWERED_SECONDS, timing.admission_timeout_seconds)
        answered = self.until(self._is_answered, min(unanswered, timeout))
        if not answered and timeout > unanswered:
            self._explain(self._report_unanswered, unanswered, timeout)
        self.until(self._is_answered, timeout - min(unanswered, timeout))
        with self.changed:
            abort, committed, phase = self.progress.abort, self.progress.committed, self.progress.phase
            interrupted = self.interrupted
        if abort is not None:
            raise CommitAborted(abort)
        if committed is not None:
            self._steps.notify("already-committed", version=committed.version)
            raise self.intent.already_committed(
                committed.committed_transaction, committed.version, committed.committed_batch_id
            )
        if phase is not GatePhase.OPENING:
            turn = {} if self.turn is None else {"turn": self.turn}
            self._steps.notify("admitted", **turn)
            return
        if interrupted:
            raise refusals.interrupted("admission", self.intent.facts)
        if self._may_queue:
            wait = self._overdue(writers_log.writers_ahead)
            raise refusals.not_admitted(timeout, wait, self._connection_errors(), self.intent.facts)
        raise refusals.no_agent(timeout, self._channel, self._connection_errors(), self.intent.facts)

    def _is_answered(self) -> bool:
        return (
            self.progress.phase is not GatePhase.OPENING
            or self.progress.abort is not None
            or self.interrupted
        )

    def _report_unanswered(self, seconds: float, timeout: float) -> None:
        """Log that the transaction is queued, or that no agent answers. The module has the rule."""
        ahead = self._writers(writers_log.writers_ahead) if self.intent.scope else ()
        errors = self._connection_errors()
        if self._is_answered():
            return
        waits = {"waited_seconds": seconds, "timeout_seconds": timeout}
        if not errors.hint and (ahead or self._agent_read_intent()):
            detail = "an agent has read the intent and has not admitted it yet"
            if ahead:
                detail = "transactions that overlap its scope are ahead of it and open"
            self._steps.notify("queued", ahead=ahead, detail=detail, **waits)
            return
        either = ""
        if self._may_queue and not self.intent.scope:
            either = "transactions ahead of it overlap its scope, or "
        log.warning(
            "gate.not-admitted-yet",
            **self.intent.names,
            batch_id=self.intent.batch_id,
            **waits,
            topic_prefix=self._channel.topics.prefix,
            brokers=self._channel.bootstrap_servers,
            detail=f"{either}no agent that allows this table runs with these brokers and this topic prefix"
            f"{errors.hint}; check `lakewarden status`",
        )

    def _agent_read_intent(self) -> bool:
        """Whether an agent has read the intent, as its later decisions show."""
        read = self._channel.agent_read_up_to(self.intent.table)
        return read is not None and self.intent_offset is not None and read >= self.intent_offset

    # the grant

    def await_grant(self) -> GrantLease:
        """Begin the publish, when the grant is there. Raise what forbids it, or that no grant came."""
        timeout = self._timing.grant_timeout_seconds
        unanswered = min(UNANSWERED_SECONDS, timeout)
        decided = self.until(self._is_decided, unanswered)
        # Turn 0: no other `ordered` transaction of the table was open at its admission.
        if not decided and timeout > unanswered and self.turn:
            self._explain(self._report_turn, unanswered, timeout)
        self.until(self._is_decided, timeout - unanswered)
        with self.changed:
            late = self.progress.lease is None and self.progress.abort is None
            if late:
                # A grant that arrives after this doesn't count (rule 4 of `progress.py`).
                self.progress.end()
            result = None if late else self.progress.begin_publish(self._clock())
        if result is not None:
            return self._lease_or_raise(result)
        if self.interrupted:
            raise refusals.interrupted("grant", self.intent.facts)
        wait = self._overdue(writers_log.writers_granted_before)
        raise refusals.not_granted(timeout, wait, self._connection_errors(), self.intent.facts)

    def require_lease(self) -> float:
        """Return how long the lease of the grant still counts. Raise if it doesn't."""
        with self.changed:
            now = self._clock()
            result = self.progress.check_lease(now)
        lease = self._lease_or_raise(result)
        assert lease.deadline is not None, "a lease without a deadline gives no permission"
        return lease.deadline - now

    def _is_decided(self) -> bool:
        progress = self.progress
        return self.ended or self.interrupted or progress.lease is not None or progress.abort is not None

    def _report_turn(self, seconds: float, timeout: float) -> None:
        """Report for whose turns an `ordered` transaction waits, if the log shows it."""
        ahead = self._writers(writers_log.writers_before)
        if ahead and not self._is_decided():
            detail = "ordered transactions that began before it touch the same file groups, and are open"
            self._steps.notify(
                "waits-for-turn", ahead=ahead, detail=detail, waited_seconds=seconds, timeout_seconds=timeout
            )

    def _lease_or_raise(self, result: GrantLease | ExpiredLease | wire.Abort) -> GrantLease:
        match result:
            case GrantLease():
                return result
            case ExpiredLease():
                raise refusals.lease_expired(result, self.intent.facts)
            case wire.Abort():
                raise CommitAborted(result)

    def _next_seq(self) -> int:
        with self.changed:
            return self.progress.send_times.next_seq(self._clock())

    # reports of both

    def _explain(self, report: Callable[[float, float], None], seconds: float, timeout: float) -> None:
        """Run a report about a wait in a thread of its own: it reads from Kafka, and the wait may end before."""
        name = f"lakewarden-wait-{self.intent.transaction[:8]}"
        threading.Thread(target=report, args=(seconds, timeout), name=name, daemon=True).start()

    def _writers(self, rule: Ahead) -> tuple[str, ...]:
        """Return the writers for which this transaction waits; none if Kafka doesn't answer."""
        if self.intent_offset is None:
            return ()
        start = max(0, self.intent_offset - MAX_INTENTS_BEFORE)
        try:
            events = self._channel.read_back(self.intent.table, start, self._channel.timeout)
        except GateError as error:
            log.warning("gate.queue-unreadable", **self.intent.names, error=str(error))
            return ()
        return rule(events, self.intent.transaction)

    def _overdue(self, rule: Ahead) -> refusals.OverdueWait:
        """For which writers this one waits, if any of this driver's other transactions may keep them waiting."""
        waiting = (GatePhase.OPENING, GatePhase.ENDED)
        others = [other for other in self._beside.values() if other is not self]
        holding = tuple(other.intent.facts for other in others if other.progress.phase not in waiting)
        ahead = self._writers(rule) if holding else ()
        return refusals.OverdueWait(self.intent.table, self.intent.writer, ahead, holding)

    def _connection_errors(self) -> refusals.ConnectionErrors:
        stood_still = self._channel.stood_still(self._timing.admission_timeout_seconds)
        return refusals.ConnectionErrors(
            self.publisher.heartbeat_error, self._channel.reading_error, stood_still
        )
