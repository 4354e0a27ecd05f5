"""One table's core with a log and a clock. Each method performs one action of a writer or of the agent, in one line.

`World` keeps the events and the published verdicts, so that a test can replay them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from lakewarden.events import (
    UNSTAMPED,
    Abort,
    AbortRequested,
    Admitted,
    AlreadyCommitted,
    BatchCommitted,
    CommitCompleted,
    CommitGranted,
    CommitIntent,
    CommitRequested,
    ConflictDetected,
    DecisionEvent,
    DecisionEventUnion,
    GrantRenewed,
    LedgerCorrected,
    LedgerRecord,
    Marker,
    MarkerCreated,
    Operation,
    TransactionAbandoned,
    WriterEventUnion,
    WriterHeartbeat,
)
from lakewarden.handlers.table.effects import Effect
from lakewarden.handlers.table.ledger import CommittedBatch, Correction, Ledger
from lakewarden.handlers.table.liveness import CaughtUp
from lakewarden.handlers.table.machine import (
    EventRead,
    Input,
    LockConfirmed,
    LockFailed,
    LockLocated,
    OverBudget,
    Replayed,
    Tick,
    replay_decision,
    replay_event,
    step,
)
from lakewarden.handlers.table.state import LockView, TableSettings, TableState
from lakewarden.handlers.table.transactions import Phase

TABLE = "s3://lake/orders"
AT = datetime(2026, 3, 1, tzinfo=UTC)
VERDICTS = (Admitted, Abort, CommitGranted, GrantRenewed, AlreadyCommitted)

D = TypeVar("D", bound=DecisionEvent)
E = TypeVar("E")


def m(place: str, operation: Operation = "merge") -> Marker:
    """Return the marker of `partition/file_group`. The partition may be empty."""
    partition, file_group = place.rsplit("/", 1)
    return Marker(partition=partition, file_group=file_group, operation=operation)


def place_of(marker: Marker) -> tuple[str, str]:
    """Return partition and file group as the index has them: the partition `*` is the whole table, whatever the file group."""
    return marker.partition, "*" if marker.partition == "*" else marker.file_group


def places_meet(one: tuple[str, str], another: tuple[str, str]) -> bool:
    """Whether two places have a file group in common."""
    if "*" in (one[0], another[0]):
        return True
    return one[0] == another[0] and (one[1] == another[1] or "*" in (one[1], another[1]))


@dataclass
class World:
    """A table, its log and the time. The methods for inputs return the world, so that calls can be chained."""

    settings: TableSettings = field(default_factory=TableSettings)
    heartbeat: float = 5.0
    now: float = 1000.0
    offset: int = -1
    log: list[tuple[WriterEventUnion, int] | DecisionEventUnion] = field(default_factory=list)
    """Events with their offsets, and published verdicts, in the order in which they were applied."""
    effects: list[Effect] = field(default_factory=list)
    """The effects of the last input."""
    seqs: dict[str, int] = field(default_factory=dict)
    caught_up_since: float | None = 0.0
    noted: dict[str, object] = field(default_factory=dict)
    """The facts with which a story compares later ones."""
    term: str = "t"

    def __post_init__(self) -> None:
        self.state = TableState(TABLE, self.settings, self.term)

    # -- inputs

    def apply(self, input_: Input) -> World:
        if isinstance(input_, EventRead):
            self.log.append((input_.event, input_.offset))
        self.effects = step(self.state, input_)
        self.log.extend(each for each in self.effects if isinstance(each, VERDICTS))
        return self

    def read(self, event: WriterEventUnion, *, lag: float = 0.0) -> World:
        self.offset += 1
        self.now += 0.001
        return self.apply(EventRead(event, self.offset, self.now, self.now - lag))

    def event(
        self, kind: Callable[..., WriterEventUnion], transaction: str, **fields: Any
    ) -> WriterEventUnion:
        known = self.state.transactions.get(transaction) or self.state.closed.get(transaction)
        common: dict[str, Any] = {
            "event_id": f"e-{self.offset + 1}-{transaction}",
            "table": TABLE,
            "transaction": transaction,
            "writer": f"w-{transaction}" if known is None else known.writer,
            "at": AT,
        }
        return kind(**{**common, **fields})

    def intent(self, transaction: str, *scope: Marker, **fields: Any) -> World:
        fields.setdefault("heartbeat_seconds", self.heartbeat)
        return self.read(self.event(CommitIntent, transaction, scope=scope, **fields))

    def touch(self, transaction: str, *markers: Marker, **fields: Any) -> World:
        return self.read(self.event(MarkerCreated, transaction, markers=markers, **fields))

    def beat(self, transaction: str, **fields: Any) -> World:
        fields.setdefault("seq", self._next_seq(transaction))
        return self.read(self.event(WriterHeartbeat, transaction, **fields))

    def request(self, transaction: str, *markers: Marker, **fields: Any) -> World:
        fields.setdefault("seq", self._next_seq(transaction))
        return self.read(self.event(CommitRequested, transaction, markers=markers, **fields))

    def complete(self, transaction: str, **fields: Any) -> World:
        """Report the commit under the transaction's own grant."""
        known = self.state.transactions.get(transaction) or self.state.closed.get(transaction)
        grant = None if known is None else known.granted
        return self.read(self.event(CommitCompleted, transaction, **{"grant": grant or "g", **fields}))

    def abandon(self, transaction: str, **fields: Any) -> World:
        return self.read(self.event(TransactionAbandoned, transaction, reason="the writer failed", **fields))

    def request_abort(self, transaction: str, **fields: Any) -> World:
        """An operator requests the abort of a transaction."""
        return self.read(
            self.event(AbortRequested, transaction, **{"operator": "ops", "reason": "it hangs", **fields})
        )

    def correct(self, writer: str, batch_id: int | None, **fields: Any) -> World:
        """An operator corrects the ledger."""
        fields = {"operator": "ops", "reason": "a mistake", "writer": writer, "batch_id": batch_id, **fields}
        return self.read(self.event(LedgerCorrected, f"correction-{self.offset + 1}", **fields))

    def tick(self, after: float = 1.0, *, request_age: float = 0.0) -> World:
        """Run the periodic check. The agent requested the end of the log `request_age` seconds before, and has read up to it."""
        self.now += after
        since = self.caught_up_since
        caught_up = None if since is None else CaughtUp(since, self.now - request_age)
        return self.apply(Tick(self.now, self.offset, caught_up))

    def locate_lock(self, uri: str) -> World:
        return self.apply(LockLocated(self.now, self.offset, uri, self.state.settings))

    def lock(self, left: float = 29.5, *, owner: str = "agent-1", quiet: float = 0.0) -> World:
        view = LockView(owner, self.now + left, self.now + quiet)
        return self.apply(LockConfirmed(self.now, self.offset, view))

    def lose_lock(self, detail: str = "renewal not confirmed") -> World:
        return self.apply(LockFailed(self.now, self.offset, "lost", detail))

    def forbid_lock(self, detail: str = "403") -> World:
        return self.apply(LockFailed(self.now, self.offset, "unusable", detail))

    def withhold_lock(self, detail: str = "403 for two minutes") -> World:
        return self.apply(LockFailed(self.now, self.offset, "refused-too-long", detail))

    def over_budget(self, transaction: str | None, limit: int) -> World:
        """The agent's memory budget is reached. The transaction is aborted (None: the table loses its index)."""
        return self.apply(OverBudget(self.now, self.offset, transaction, limit))

    def replayed(self, *, missing: str | None = None) -> World:
        return self.apply(Replayed(self.now, self.offset, missing))

    # -- effects

    def of(self, kind: type[E]) -> list[E]:
        """Return the last input's effects of this kind."""
        return [each for each in self.effects if isinstance(each, kind)]

    def one(self, kind: type[E]) -> E:
        """Return the last input's only effect of this kind."""
        (found,) = self.of(kind)
        return found

    @property
    def aborted(self) -> dict[str, str]:
        """The transactions that the last input aborted, with the reasons."""
        return {each.transaction: each.reason for each in self.of(Abort)}

    @property
    def granted(self) -> list[str]:
        return [each.transaction for each in self.of(CommitGranted)]

    @property
    def admitted(self) -> list[str]:
        return [each.transaction for each in self.of(Admitted)]

    @property
    def reports(self) -> list[tuple[str, str]]:
        return [(each.victim, each.winner) for each in self.of(ConflictDetected)]

    def phase(self, transaction: str) -> Phase | None:
        """Return the phase of a transaction, also after its end while the state keeps it."""
        found = self.state.transactions.get(transaction)
        if found is not None:
            return found.phase
        closed = self.state.closed.get(transaction)
        return closed.phase if closed is not None else None

    def commits(self, transaction: str, *markers: Marker, **fields: Any) -> World:
        """Commit an open transaction. The agent holds the lock and grants at once."""
        self.request(transaction, *markers)
        assert self.granted == [transaction], self.effects
        return self.complete(transaction, **fields)

    # -- restart

    def rebuilt(
        self, log: Iterable[tuple[WriterEventUnion, int] | DecisionEventUnion] | None = None
    ) -> World:
        """Return the world of a new agent that has replayed the log."""
        other = World(
            self.settings, self.heartbeat, now=self.now + 5.0, offset=self.offset, seqs=dict(self.seqs)
        )
        for each in self.log if log is None else log:
            other.replay(each)
        return other

    def read_the_events(self) -> World:
        """Return the world of a new agent that has replayed the events alone: none of them was answered."""
        return self.rebuilt([each for each in self.log if isinstance(each, tuple)])

    def replay(self, fact: tuple[WriterEventUnion, int] | DecisionEventUnion) -> None:
        """Replay one event or verdict of the log."""
        self.log.append(fact)
        if isinstance(fact, tuple):
            replay_event(self.state, fact[0], fact[1], self.now)
        else:
            replay_decision(self.state, fact, self.now)

    def _next_seq(self, transaction: str) -> int:
        self.seqs[transaction] = self.seqs.get(transaction, 0) + 1
        return self.seqs[transaction]


def world(**settings: Any) -> World:
    """Return a table with these settings and an empty log. Priorities up to 9 are allowed."""
    return World(TableSettings(**{"max_priority": 9, **settings}))


def decided(kind: type[D], transaction: str, *, cause_offset: int = 0, **fields: Any) -> D:
    """Return a decision as the core makes it."""
    common = {"table": TABLE, "transaction": transaction, "agent": "", "cause_offset": cause_offset}
    construct: Any = kind.model_construct
    made: D = construct(**UNSTAMPED, **{**common, "writer": f"w-{transaction}", **fields})
    return made


def batch_entry(
    transaction: str,
    writer: str,
    batch_id: int,
    version: str | None = None,
    correction: Correction | None = None,
) -> BatchCommitted:
    """Return the ledger entry of a batch as the core makes it."""
    return CommittedBatch(batch_id, transaction, version, correction).to_entry(TABLE, writer)


def ledger_of(*records: LedgerRecord) -> Ledger:
    """Return the ledger of a partition with these records."""
    ledger = Ledger()
    for record in records:
        ledger.add(record)
    return ledger


def facts(state: TableState) -> dict[str, object]:
    """Return what a restart must preserve: everything except times. Moments are compared by their order only."""
    moments = sorted({getattr(each, name) for each in state.transactions.values() for name in MOMENTS})
    rank = {moment: index for index, moment in enumerate(moments)}
    return {
        "transactions": {
            each.id: {
                "phase": each.phase,
                "order": [rank[getattr(each, name)] for name in MOMENTS],
                "sequence": each.sequence,
                "seq": each.seq,
                "grant": each.grant and (each.grant.id, each.grant.lock_owner, each.grant.revoked),
                "footprint": each.footprint,
                "markers": each.markers,
                "batch": each.batch_id,
                "abort_request": each.abort_request,
                "turn": each.turn,
                "overtaken": each.overtaken,
            }
            for each in state.transactions.values()
        },
        "index": {
            (partition, file_group): sorted((touch.transaction.id, touch.operation) for touch in touches)
            for partition, groups in state.footprints.index.items()
            for file_group, touches in groups.items()
        },
        "closed": state.closed,
        "ledger": state.ledger,
        "losses": state.losses,
        "lost_on": state.lost_on,
    }


MOMENTS = ("began", "ended", "requested", "aged")
