"""The form of a table's world: what it says of the future, without what differs only in name.

- Names, offsets, moments and grants count by their order of occurrence, times relative to now in whole ticks, as they are
  compared at ticks only. What is long past is past, and what is further away than `FAR` is far: the ten minutes for which a
  lapsed transaction's intent is kept don't end in an exploration.
- What follows from the rest is left out (`DERIVED`); `compare_merged` shows if it didn't.
- Of a field that is new in the state, the value counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from lakewarden import events
from lakewarden.events import DecisionEvent
from lakewarden.handlers.table.footprints import Footprints
from lakewarden.handlers.table.ledger import CommittedBatches
from lakewarden.handlers.table.transactions import LANDED, Phase, Touch, Transaction
from lakewarden.spark_jobs.gate.progress import GateProgress
from tests.exhaustive.engine import Form
from tests.exhaustive.table_world import EVER, Owner, World, Writer

if TYPE_CHECKING:
    from tests.exhaustive.table import Table

PAST, FAR = -4, 6
"""Ticks."""
MOMENTS = ("began", "ended", "requested", "aged")
DERIVED = (
    {
        "uri",
        "settings",
        "term",
        "in_phase",
        "of_writer",
        "footprints",
        "moment",
        "changed",
        "touches",
        "bytes",
    }
    | {"closed", "instants", "detail", "intent_id", "requested_id", "opened_at", "since", "seq", "freed"}
    | {"next_entry_to_check", "grant_ended", "heartbeat_seconds", "offsets"}
)


def form_of(model: Table, world: World, order: tuple[int, ...]) -> Form:
    """The form, with the jobs in this order."""
    return _Former(model, world, order).form()


class _Former:
    """Writes one world as its form. How a value is written depends on its field (`FIELDS`), or else on its type (`TYPES`)."""

    def __init__(self, model: Table, world: World, order: tuple[int, ...]) -> None:
        self._model, self._world, self._order = model, world, order
        self._place = {f"w{number}": place for place, number in enumerate(order)}
        self._grants: dict[str, int] = {}
        self._moments: dict[int, int] = {}
        self._offsets: dict[int, int] = {}
        self._kept: dict[str, Transaction] = {}
        open_writers = [each for each in world.writers if each.progress is not None]
        self._admitted = sorted(each.order for each in open_writers)

    def form(self) -> Form:
        world = self._world
        owners = [self._owner(each) for each in world.owners]
        writers = [self._writer(number, world.writers[number]) for number in self._order]
        commits = [self._since(world.writers[number]) for number in self._order]
        in_table = [world.in_table(number) for number in self._order]
        lock = None
        if world.lock is not None:
            lock = (world.lock[0], self._time(world.lock[1], 0))
        logs = (self._events(), self._decisions()) if self._model.late else ()
        return [world.faults, owners, writers, commits, in_table, lock, logs]

    def _since(self, writer: Writer) -> Form:
        """Whose commits aren't in the writer's base, and their places among the admissions."""
        if writer.progress is None:
            return None
        commits = self._world.commits[writer.base :]
        return sorted({(self._place[f"w{each.writer}"], self._rank(each.order)) for each in commits})

    # -- the logs: what an agent or a writer has not read, and what a take-over will replay

    def _events(self) -> Form:
        return [
            (type(each).__name__, self.name(each.transaction), getattr(each, "seq", None))
            for each in self._world.events
        ]

    def _decisions(self) -> Form:
        return [self._decision(each) for each in self._world.decisions]

    def _decision(self, record: Any) -> Form:
        if not isinstance(record, DecisionEvent):
            return record.term
        return (
            type(record).__name__,
            self.name(record.transaction),
            record.term,
            record.cause_offset,
            getattr(record, "grant", ""),
        )

    # -- an agent

    def _owner(self, owner: Owner) -> Form:
        self._kept = self._counting(owner)
        transactions = self._kept.values()
        moments = {getattr(each, name) for each in transactions for name in MOMENTS}
        moments |= {each.grant.moment for each in transactions if each.grant is not None}
        self._moments = {moment: rank for rank, moment in enumerate(sorted(moments))}
        known = {each.sequence for each in transactions} | {
            each.sequence for each in owner.state.lapsed.values()
        }
        self._offsets = {offset: rank for rank, offset in enumerate(sorted(known))}
        state = self.value(owner.state), self._pairs(owner)
        closed = [self._closed(owner, self._world.writers[number].transaction) for number in self._order]
        waiting = [self._decision(each) for each in owner.unpublished]
        since = self._time(owner.since) if self._model.seconds else 0
        return (
            owner.term,
            owner.live,
            owner.behind,
            owner.read - len(self._world.events),
            waiting,
            since,
            state,
            closed,
        )

    def _pairs(self, owner: Owner) -> Form:
        """Whom each transaction meets, and who is at each place, in the order in which the index looks.

        It decides with whom a queued one is registered.
        """
        footprints: Footprints = owner.state.footprints
        met = [
            ((mine.transaction.id, mine.operation), self._live(others))
            for mine, others in footprints.pairs.items()
        ]
        places = [
            ((partition, file_group), self._live(touches))
            for partition, groups in footprints.index.items()
            for file_group, touches in groups.items()
        ]
        return self.value({about: others for about, others in met if about[0] in self._kept}), self.value(
            places
        )

    def _live(self, touches: Iterable[Touch]) -> list[str]:
        return [each.transaction.id for each in touches if each.transaction.id in self._kept]

    def _counting(self, owner: Owner) -> dict[str, Transaction]:
        """The transactions. Where batches come for ever: of each writer's landed ones, which touch the same, the last one."""
        found = owner.state.transactions
        if not self._model.ever:
            return found
        last = {each.writer: each.id for each in owner.state.landed()}
        return {
            name: each
            for name, each in found.items()
            if each.phase not in LANDED or last[each.writer] == name
        }

    def _closed(self, owner: Owner, transaction: str) -> Form:
        closed = owner.state.closed.get(transaction)
        if closed is None:
            return None
        grant = None if closed.granted is None else self._grant(closed.granted)
        return (closed.phase.name, closed.reason, closed.retriable, grant, closed.reported)

    # -- a writer

    def _writer(self, number: int, writer: Writer) -> Form:
        model = self._model
        attempt = min(writer.attempt, 1) if model.ever else writer.attempt
        shown: list[Form] = [attempt, writer.touched, writer.landed, writer.observed, writer.dead]
        shown.append(0 if model.jobs[number].batches == EVER else writer.batch)
        shown.append(None if writer.last is None else type(writer.last).__name__)
        if model.late:
            shown += [writer.decisions_read, writer.term]
        if writer.progress is not None:
            shown += [self._rank(writer.order), self._progress(writer.progress)]
        return shown

    def _progress(self, progress: GateProgress) -> Form:
        sent = progress.send_times._sent_at.values()
        shown: list[Form] = [progress.phase.name, progress.abort is not None, progress.late_abort is not None]
        shown += [progress.committed is not None, self._time(max(sent)) if sent else None]
        if self._model.late and self._model.seconds:
            # The agent will read those that it has not read, and a grant counts from one of them.
            shown.append([self._time(at) for at in sent])
        if progress.lease is not None and progress.lease.deadline is not None:
            shown += [self._grant(progress.lease.grant), self._time(progress.lease.deadline, 0)]
        return shown

    def _rank(self, order: int) -> int:
        """The place of an admission among those that count."""
        return sum(each < order for each in self._admitted)

    # -- values

    def _grant(self, grant: str) -> int:
        return self._grants.setdefault(grant, len(self._grants))

    def _time(self, at: float, least: int = PAST) -> int:
        if not self._model.seconds:
            return 0
        return min(max(least, math.ceil(at - self._world.now - 1e-6)), FAR)

    def deadline(self, at: float) -> int:
        """A time that is compared with now alone: whether it is past is all that counts."""
        return self._time(at, 0)

    def name(self, name: str) -> str:
        """A transaction or a writer, by its place among those that are alike."""
        writer, _, rest = name.removeprefix("hudi:").partition(".")
        place = self._place.get(writer)
        if place is None:
            return name
        if not rest:
            return f"w{place}"
        batch, _, attempt = rest.partition(".")
        if self._model.ever:
            attempt = min(attempt, "1")
        return f"w{place}.{self._batch(int(writer[1:]), int(batch))}.{attempt}"

    def _batch(self, number: int, batch: int) -> int:
        """Relative to the writer's present one, where batches come for ever."""
        return batch - self._world.writers[number].batch if self._model.ever else batch

    def value(self, value: Any) -> Form:
        """A part of a world. What its type says nothing special of is its fields."""
        return TYPES.get(type(value), _Former.fields_of)(self, value)

    def fields_of(self, value: Any) -> Form:
        kind: Any = type(value)
        parts = [write(self, getattr(value, name)) for name, write in _kept_fields(kind)]
        return [kind.__name__, *parts]

    def same(self, value: Form) -> Form:
        return value

    def each(self, values: Iterable[Any]) -> Form:
        return [self.value(each) for each in values]

    def any_order(self, values: Iterable[Any]) -> Form:
        return sorted(self.each(values), key=repr)

    def mapping(self, values: Mapping[Any, Any]) -> Form:
        return self.any_order(values.items())

    def marker(self, marker: events.Marker) -> Form:
        return marker.partition, marker.file_group, marker.operation

    def transaction(self, transaction: Transaction) -> Form:
        return [self._sent(transaction), self.fields_of(transaction)]

    def _sent(self, transaction: Transaction) -> Form:
        """When the last `seq` was sent that the agent has read: the number itself rises for ever."""
        for writer in self._world.writers:
            if writer.transaction == transaction.id and writer.progress is not None:
                sent = writer.progress.send_times._sent_at
                return self._time(sent[transaction.seq]) if transaction.seq in sent else None
        return None

    def grant_or_name(self, name: str | None) -> Form:
        """The id of a grant begins with a number."""
        return self._grant(name) if name and name[0].isdigit() else self.value(name)

    def batch_id(self, batch: int | None) -> Form:
        return 0 if self._model.ever and batch is not None else batch

    def ledger(self, ledger: CommittedBatches) -> Form:
        batches = [(writer, each.batch_id) for writer, each in ledger.items()]
        known = ((writer, batch) for writer, batch in batches if batch is not None)
        return sorted((self.name(writer), self._batch(int(writer[1:]), batch)) for writer, batch in known)

    def transactions(self, _: Mapping[str, Transaction]) -> Form:
        return self.each(self._kept.values())

    def recheck(self, names: set[str] | None) -> Form:
        return None if names is None else self.any_order(names & self._kept.keys())

    def waiters(self, waiters: Mapping[str, set[str]]) -> Form:
        return self.mapping({each: waiting for each, waiting in waiters.items() if each in self._kept})

    def losses(self, losses: Mapping[str, int]) -> Form:
        return self.mapping({writer: self.overtaken(lost) for writer, lost in losses.items()})

    def overtaken(self, times: int) -> int:
        return min(times, self._model.settings.max_losses)

    def moment(self, moment: int) -> int:
        return self._moments.get(moment, -1)

    def sequence(self, offset: int) -> int:
        return self._offsets.get(offset, -1)


Write: TypeAlias = Callable[[_Former, Any], Form]
TYPES: dict[type, Write] = {
    type(None): _Former.same,
    bool: _Former.same,
    int: _Former.same,
    str: _Former.name,
    float: _Former._time,
    Phase: lambda _, phase: phase.name,
    set: _Former.any_order,
    list: _Former.each,
    tuple: _Former.each,
    dict: _Former.mapping,
    events.Marker: _Former.marker,
    Transaction: _Former.transaction,
}
FIELDS: dict[str, Write] = {
    **dict.fromkeys(("moment", *MOMENTS), _Former.moment),
    **dict.fromkeys(("deadline", "expires_at", "quiet_until", "until"), _Former.deadline),
    **dict.fromkeys(("id", "granted"), _Former.grant_or_name),
    "sequence": _Former.sequence,
    "batch_id": _Former.batch_id,
    "ledger": _Former.ledger,
    "transactions": _Former.transactions,
    "recheck": _Former.recheck,
    "waiters": _Former.waiters,
    "losses": _Former.losses,
    "overtaken": _Former.overtaken,
}


@cache
def _kept_fields(kind: Any) -> list[tuple[str, Write]]:
    names = [each.name for each in fields(kind)]
    return [(name, FIELDS.get(name, _Former.value)) for name in names if name not in DERIVED]
