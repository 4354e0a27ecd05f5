"""Counts what the owner of one partition decides, from the inputs and effects of its tables, and from its locks' audit events.

No step decides the aborts of a stopped table and those that answer refused events: the owner reports them (`on_stop`,
`on_refusal`).

The tables' state machines say what was decided, and not how long a transaction has waited. So the observer notes when it saw a
transaction's intent and its request for the grant. An entry is dropped with its transaction's end, and all with the partition.

Of a transaction that was open when the partition was taken over, these times are not known. Its waits aren't observed, its end is
counted.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import assert_never

from lakewarden import events
from lakewarden.agent.metrics.agent_metrics import AgentMetrics
from lakewarden.handlers.explain.condition import Denied
from lakewarden.handlers.explain.life import Ends, Life
from lakewarden.handlers.table.effects import Effect, Warn
from lakewarden.handlers.table.machine import EventRead, Input, Replayed
from lakewarden.handlers.table.state import TableState
from lakewarden.handlers.table.transactions import Phase

MAX_UNREPORTED = 10_000
"""Transactions with an unknown outcome that are remembered, to count a late report once."""
MAX_RECENT = 1_000
"""Tables of which the last ends are kept, about 1 KB each."""
LATE_RENEWALS = 2.0
"""A renewal is late after so many times the usual interval: one renewal or more has failed."""


class PartitionMetrics:
    """The observer of one partition. All those of an agent share `metrics`."""

    def __init__(self, metrics: AgentMetrics) -> None:
        self._metrics = metrics
        self._open: dict[tuple[str, str], Life] = {}
        self._unreported: OrderedDict[tuple[str, str], None] = OrderedDict()
        self.ends: OrderedDict[str, Ends] = OrderedDict()
        """What has ended lately, by table. Times are monotonic seconds."""
        self.denied: dict[str, Denied] = {}
        """By table: its lock's last step, if the agent didn't get the lock."""
        self._renewed: dict[str, int] = {}
        """By lock that is held: the end of its lease in epoch milliseconds."""

    # -- tables ------------------------------------------------------------------------------------------------------

    def on_step(self, state: TableState, step_input: Input, effects: Sequence[Effect]) -> None:
        """Count what one step of a table has decided. `state`: the table's state after the step."""
        if isinstance(step_input, Replayed):
            self._note_open(state)
        ignored = any(isinstance(each, Warn) for each in effects)
        if isinstance(step_input, EventRead) and not ignored:
            self._on_event(state, step_input)
        if effects:
            self._on_effects(state.uri, effects, step_input.now)
        if isinstance(step_input, EventRead) and isinstance(step_input.event, events.CommitIntent):
            self._drop_unknown(state, step_input.event.transaction)

    def on_stop(self, uri: str, aborted: Iterable[events.Abort]) -> None:
        """Count the aborts of a stopped table. A granted transaction ends later: the next owner counts that."""
        table = self._metrics.tables.of(uri)
        for each in aborted:
            self._metrics.aborts.labels(table, each.reason).inc()
            if each.reason != "lease-lost":
                self._end(uri, "aborted")

    def on_refusal(self, abort: events.Abort, *, served: bool) -> None:
        """Count the abort that answers a refused event. `served`: the owner has the table's state.

        It ends a transaction only if that was open.
        """
        labels, uri = self._metrics.tables, abort.table
        table = labels.of(uri) if served else labels.known(uri)
        self._metrics.aborts.labels(table, abort.reason).inc()
        if self._open.pop((uri, abort.transaction), None) is not None:
            self._end(uri, "aborted")

    def forget_table(self, uri: str) -> None:
        for key in [each for each in self._open if each[0] == uri]:
            del self._open[key]

    def _note_open(self, state: TableState) -> None:
        for each in state.open():
            life = self._open[state.uri, each.id] = Life(each.id, each.writer)
            if each.phase in (Phase.WAITING, Phase.GRANTED):
                life.take("requested", None)
            if each.phase is Phase.GRANTED:
                life.take("granted", None)

    def _on_event(self, state: TableState, read: EventRead) -> None:
        event, key = read.event, (state.uri, read.event.transaction)
        match event:
            case events.CommitIntent():
                if key not in self._open:
                    self._open[key] = Life(event.transaction, event.writer)
                    self._open[key].note(event, read.read_at)
            case events.CommitRequested() if key in self._open:
                self._open[key].note(event, read.read_at)
            case events.TransactionAbandoned() if self._open.pop(key, None) is not None:
                self._end(state.uri, "abandoned")
                self._ends_of(state.uri).note(event, read.read_at)
            case events.CommitCompleted() if key in self._open or self._was_unreported(key):
                life = self._open.pop(key, None)
                self._end(state.uri, "committed")
                ends_itself = None if life is None else life.ends_itself
                self._ends_of(state.uri).note(event, read.read_at, ends_itself=ends_itself)
            case _:
                pass

    def requested_at(self, uri: str, transaction: str) -> float | None:
        """When the transaction has requested its grant, if this was seen."""
        life = self._open.get((uri, transaction))
        return None if life is None else life.times.get("requested")

    def _ends_of(self, uri: str) -> Ends:
        found = self.ends.setdefault(uri, Ends())
        self.ends.move_to_end(uri)
        if len(self.ends) > MAX_RECENT:
            self.ends.popitem(last=False)
        return found

    def _drop_unknown(self, state: TableState, transaction: str) -> None:
        """Drop the entry of an intent that opened nothing: a repeated delivery, or one that is answered already."""
        known = state.transactions.get(transaction)
        if known is None or known.phase in (Phase.COMMITTED, Phase.UNKNOWN):
            self._open.pop((state.uri, transaction), None)

    def _was_unreported(self, key: tuple[str, str]) -> bool:
        if key not in self._unreported:
            return False
        del self._unreported[key]
        return True

    def _on_effects(self, uri: str, effects: Sequence[Effect], now: float) -> None:
        metrics = self._metrics
        aborted: dict[str, str] = {}
        """By transaction that lost a conflict in this step: the outcome, until its time is counted."""
        counted: set[str] = set()
        for effect in effects:
            match effect:
                case events.Admitted(transaction=transaction):
                    life = self._open.get((uri, transaction))
                    began = None if life is None else life.times.get("intent")
                    if began is not None:
                        table = metrics.tables.of(uri)
                        metrics.admission_wait.labels(table).observe(max(0.0, now - began))
                        for outcome in ("stopped", "wasted"):  # from 0 on, or `rate` misses the first loss
                            metrics.lost_seconds.labels(table, outcome)
                case events.CommitGranted(transaction=transaction):
                    self._on_grant(uri, transaction, now)
                case events.AlreadyCommitted(transaction=transaction):
                    self._open.pop((uri, transaction), None)
                    self._end(uri, "skipped")
                case events.Abort(transaction=transaction):
                    life = self._on_abort(uri, effect)
                    self._ends_of(uri).note(effect, now)
                    requested = life is not None and "requested" in life.times
                    aborted[transaction] = "wasted" if requested else "stopped"
                case events.ConflictDetected(victim=victim, kind=kind, victim_age_seconds=seconds):
                    outcome = aborted.get(victim, "reported")
                    table = metrics.tables.of(uri)
                    metrics.conflicts.labels(table, kind, outcome).inc()
                    if victim in aborted and victim not in counted:
                        counted.add(victim)
                        metrics.lost_seconds.labels(table, outcome).inc(seconds)
                case _:
                    pass

    def _on_grant(self, uri: str, transaction: str, now: float) -> None:
        metrics = self._metrics
        table = metrics.tables.of(uri)
        metrics.grants.labels(table).inc()
        life = self._open.get((uri, transaction))
        if life is None:
            return
        life.take("granted", now)
        requested = life.times.get("requested")
        if requested is not None:
            metrics.grant_wait.labels(table).observe(max(0.0, now - requested))

    def _on_abort(self, uri: str, abort: events.Abort) -> Life | None:
        metrics = self._metrics
        table, key = metrics.tables.of(uri), (uri, abort.transaction)
        metrics.aborts.labels(table, abort.reason).inc()
        life = self._open.get(key)
        granted = life is not None and "granted" in life.times
        if granted and abort.reason != "outcome-unknown":
            return life  # the grant is withdrawn; the transaction ends with a report, or when its lease does
        self._open.pop(key, None)
        if abort.reason == "outcome-unknown" and life is not None:
            self._unreported[key] = None
            if len(self._unreported) > MAX_UNREPORTED:
                self._unreported.popitem(last=False)
            if granted:
                metrics.lapses.labels(table).inc()
        self._end(uri, "unknown" if abort.reason == "outcome-unknown" else "aborted")
        return life

    def _end(self, uri: str, outcome: str) -> None:
        self._metrics.ended.labels(self._metrics.tables.of(uri), outcome).inc()

    # -- locks -------------------------------------------------------------------------------------------------------

    def on_lock_event(self, event: events.AuditEventUnion, renew_seconds: float) -> None:
        """Count a step of a lock. `renew_seconds`: the usual interval of this lock's renewals."""
        metrics, lock, step = self._metrics, event.lock, event.type.removeprefix("lock-")
        self.denied.pop(event.table, None)
        match event:
            case events.LockAcquired():
                self._renewed[lock] = event.valid_until
                metrics.lock_wait.observe(event.duration_ms / 1000)
            case events.LockRenewed():
                # Each lease has the same length, so the ends are as far apart as the writes that made them.
                since = event.valid_until - self._renewed.get(lock, event.valid_until)
                self._renewed[lock] = event.valid_until
                if since > LATE_RENEWALS * renew_seconds * 1000:
                    metrics.late_renewals.inc()
            case events.LockReleased() | events.LockLost():
                self._renewed.pop(lock, None)
            case events.LockRefused(waiting=waiting):
                self.denied[event.table] = Denied(lock, waiting, event.holder, event.detail)
                step = "waiting" if waiting else "refused"
            case _:
                assert_never(event)
        metrics.lock_steps.labels(step).inc()
