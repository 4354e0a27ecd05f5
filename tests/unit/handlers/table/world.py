"""One table's core with a log and a clock: says in one line what a writer does, and keeps all that was published."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from lakewarden.events import (
    CommitCompleted,
    CommitIntent,
    CommitRequested,
    Marker,
    MarkerCreated,
    Operation,
    TransactionAbandoned,
    WriterEventUnion,
    WriterHeartbeat,
)
from lakewarden.handlers.table.liveness import CaughtUp
from lakewarden.handlers.table.machine import (
    EventRead,
    Input,
    LockConfirmed,
    LockForbidden,
    LockGone,
    Replayed,
    Tick,
    replay_event,
    replay_verdict,
    step,
)
from lakewarden.handlers.table.state import LockView, TableSettings, TableState
from lakewarden.handlers.table.transactions import Phase
from lakewarden.handlers.table.verdicts import (
    AbortTransaction,
    Admit,
    Effect,
    GrantCommit,
    RenewGrant,
    ReportConflict,
    SkipBatch,
    Verdict,
)

TABLE = "s3://lake/orders"
AT = datetime(2026, 3, 1, tzinfo=UTC)
VERDICTS = (Admit, AbortTransaction, GrantCommit, RenewGrant, SkipBatch)

E = TypeVar("E")


def m(place: str, operation: Operation = "merge") -> Marker:
    """A marker from `partition/file_group`; the partition may be empty."""
    partition, file_group = place.rsplit("/", 1)
    return Marker(partition=partition, file_group=file_group, operation=operation)


@dataclass
class World:
    """See the module."""

    settings: TableSettings = field(default_factory=TableSettings)
    heartbeat: float = 5.0
    now: float = 1000.0
    offset: int = -1
    log: list[tuple[WriterEventUnion, int] | Verdict] = field(default_factory=list)
    """Events and published verdicts in the order in which they became facts."""
    effects: list[Effect] = field(default_factory=list)
    """Of the last input."""
    seqs: dict[str, int] = field(default_factory=dict)
    caught_up_since: float | None = 0.0

    def __post_init__(self) -> None:
        self.state = TableState(TABLE, self.settings)

    # -- inputs

    def give(self, given: Input) -> World:
        if isinstance(given, EventRead):
            self.log.append((given.event, given.offset))
        self.effects = step(self.state, given)
        self.log.extend(each for each in self.effects if isinstance(each, VERDICTS))
        return self

    def read(self, event: WriterEventUnion, *, lag: float = 0.0) -> World:
        self.offset += 1
        self.now += 0.001
        return self.give(EventRead(event, self.offset, self.now, self.now - lag))

    def event(
        self, kind: Callable[..., WriterEventUnion], transaction: str, **fields: Any
    ) -> WriterEventUnion:
        common: dict[str, Any] = {
            "event_id": f"e-{self.offset + 1}-{transaction}",
            "table": TABLE,
            "transaction": transaction,
            "writer": f"w-{transaction}",
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
        return self.read(self.event(CommitCompleted, transaction, **{"grant": "g", **fields}))

    def abandon(self, transaction: str, **fields: Any) -> World:
        return self.read(self.event(TransactionAbandoned, transaction, reason="gave up", **fields))

    def tick(self, after: float = 1.0, *, asked: float = 0.0) -> World:
        """The check, so many seconds after it asked for the log's end; all before that has been read, unless we lag."""
        self.now += after
        since = self.caught_up_since
        caught_up = None if since is None else CaughtUp(since, self.now - asked)
        return self.give(Tick(self.now, self.offset, caught_up))

    def lock(self, left: float = 29.5, *, owner: str = "agent-1", quiet: float = 0.0) -> World:
        view = LockView(owner, self.now + left, self.now + quiet)
        return self.give(LockConfirmed(self.now, self.offset, view))

    def lose_lock(self, why: str = "renewal not confirmed") -> World:
        return self.give(LockGone(self.now, self.offset, why))

    def forbid_lock(self, why: str = "403") -> World:
        return self.give(LockForbidden(self.now, self.offset, why))

    def replayed(self) -> World:
        return self.give(Replayed(self.now, self.offset))

    # -- what followed

    def of(self, kind: type[E]) -> list[E]:
        """The last input's effects of this kind."""
        return [each for each in self.effects if isinstance(each, kind)]

    def one(self, kind: type[E]) -> E:
        """The last input's only effect of this kind."""
        (found,) = self.of(kind)
        return found

    @property
    def aborted(self) -> dict[str, str]:
        """Whom the last input aborted, and why."""
        return {each.transaction: each.reason for each in self.of(AbortTransaction)}

    @property
    def granted(self) -> list[str]:
        return [each.transaction for each in self.of(GrantCommit)]

    @property
    def admitted(self) -> list[str]:
        return [each.transaction for each in self.of(Admit)]

    @property
    def reports(self) -> list[tuple[str, str]]:
        return [(each.victim, each.winner) for each in self.of(ReportConflict)]

    def phase(self, transaction: str) -> Phase | None:
        """Where it stands; how it ended, if that is remembered."""
        found = self.state.transactions.get(transaction)
        if found is not None:
            return found.phase
        closed = self.state.closed.get(transaction)
        return closed.phase if closed is not None else None

    def commits(self, transaction: str, *markers: Marker, **fields: Any) -> World:
        """A whole commit of an open transaction, granted at once; the lock is held."""
        self.request(transaction, *markers)
        assert self.granted == [transaction], self.effects
        return self.complete(transaction, **fields)

    # -- restart

    def rebuilt(self, log: Iterable[tuple[WriterEventUnion, int] | Verdict] | None = None) -> World:
        """A new agent that has folded the log."""
        other = World(
            self.settings, self.heartbeat, now=self.now + 5.0, offset=self.offset, seqs=dict(self.seqs)
        )
        for each in self.log if log is None else log:
            other.fold(each)
        return other

    def fold(self, fact: tuple[WriterEventUnion, int] | Verdict) -> None:
        """Replay one fact of the log."""
        self.log.append(fact)
        if isinstance(fact, tuple):
            replay_event(self.state, fact[0], fact[1], self.now)
        else:
            replay_verdict(self.state, fact, self.now)

    def _next_seq(self, transaction: str) -> int:
        self.seqs[transaction] = self.seqs.get(transaction, 0) + 1
        return self.seqs[transaction]


def world(**settings: Any) -> World:
    """A table with these settings and an empty log."""
    return World(TableSettings(**settings))


def facts(state: TableState) -> dict[str, object]:
    """What must be the same after a restart: all but times, and moments only by their order."""
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


MOMENTS = ("began", "ended", "requested")
