"""`lakewarden status`, and the events of `lakewarden conflicts`: read from Kafka alone, so they work while no agent runs.

`status` reads the log once. The page begins in the same way, and goes on while the log grows (docs/decisions/0039-the-page.md).
It is read for its replay (`log_replay.py`), for what is past, and for the locks. It shows what the log has:
decisions that an agent has made and not published yet are missing. `handlers/explain/condition.py` has the rules of conditions.

A partition whose log is incomplete (`handlers/table/log_gaps.py`) has an entry of its own, under the name that `partition-taken`
uses as its table: what the next take-over will find, and what former ones found in the last seven days. The same for a partition
that an agent refuses, because this version doesn't know a decision (`serving/partition/replay.py`).
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain, islice
from typing import Any, cast

from aiokafka.errors import GroupAuthorizationFailedError
from aiokafka.structs import ConsumerRecord

from lakewarden import events
from lakewarden.agent.clock import moment, utc_now
from lakewarden.agent.log import Log, Readers
from lakewarden.agent.operators.cluster_facts import members_of
from lakewarden.agent.operators.log_replay import LogReplay, replay_log
from lakewarden.agent.operators.past import Timelines, readers_of
from lakewarden.agent.serving.log_records import decoded, decoded_all
from lakewarden.agent.serving.takeover import Start, find_ledger_gaps
from lakewarden.agent.settings import KafkaSettings
from lakewarden.agent.time_text import epoch, timestamp, utc_time
from lakewarden.events.access import partition_of
from lakewarden.handlers.explain.condition import Condition, Denied, Facts, Open, condition
from lakewarden.handlers.explain.life import Ends, Life
from lakewarden.handlers.explain.waits import Wait, waits
from lakewarden.handlers.setup import Member
from lakewarden.handlers.table.facts import drop_index
from lakewarden.handlers.table.log_gaps import Gap
from lakewarden.handlers.table.memory import largest_excess, used_bytes
from lakewarden.handlers.table.state import TableSettings, TableState
from lakewarden.handlers.table.transactions import Phase, Transaction

MAX_IDLE = 1_000
"""Tables without an open transaction of which something is kept, the last ones: events may be delivered again within seconds."""
MAX_ENDED = 100
"""Ended transactions that are kept of such a table."""
_LATE_NAMES = 1_000
"""Times of ended transactions that may be kept until the next clean-up."""
AUDIT_WINDOW = timedelta(minutes=15)
"""How far back to look for the last step of a lock. A held lock is renewed far more often; an older one is free."""
_LEDGER_LOST = "an agent that has run since it lost these entries records them again, otherwise restore them from a backup"
MAX_BLOCKERS = 20
"""Transactions that the view of a waiting one names."""


@dataclass(frozen=True, slots=True)
class BlockerView:
    """A transaction for which another one waits. The field names are JSON."""

    transaction: str
    writer: str
    why: str
    """A `WaitReason`, as in the JSON of `explain`."""
    partition: str | None = None
    """The first of the partitions that both touch, if that is why."""


@dataclass(frozen=True, slots=True)
class TransactionView:
    """One open transaction. The field names are the JSON of `lakewarden status`."""

    transaction: str
    writer: str
    batch_id: int | None
    phase: str
    since: str
    """When the transaction was opened, by its writer's clock."""
    waiting_on: str | None
    partitions: int
    file_groups: int
    granted: str | None = None
    """When the agent granted it, by the agent's clock."""
    revoked: str | None = None
    """Why its grant was withdrawn, if it was. No other transaction is granted before the end of its lease."""
    waiting_since: str | None = None
    """Since when it waits for its admission or its grant, by its writer's clock. None: it doesn't wait."""
    blockers: tuple[BlockerView, ...] = ()
    """The transactions for which it waits, at most `MAX_BLOCKERS`. Empty: it waits for the table's lock, or for an agent."""
    runs_at: str | None = None
    """Host, process and Spark application of its writer, as far as its intent says them."""


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The lock, by its last step in the audit topic. The field names are JSON, too."""

    held: bool
    lock: str
    agent: str
    owner: str
    valid_until: str
    last_step: str
    detail: str | None
    waiting: bool = False
    """Whether the agent waits because another owner, `owner`, holds the lock."""

    @property
    def ends_with_lease(self) -> bool:
        """Whether its end is that of the lease: it was not released, or the release was not confirmed (`detail` says why)."""
        return self.last_step in ("lock-acquired", "lock-renewed") or self._unconfirmed

    @property
    def _unconfirmed(self) -> bool:
        return self.last_step == "lock-released" and self.detail is not None

    @property
    def note(self) -> str:
        """What else there is to say about it, in parentheses, or nothing."""
        if self.detail is None:
            return ""
        return (
            f" (its release was not confirmed, {self.detail})" if self._unconfirmed else f" ({self.detail})"
        )


@dataclass(frozen=True, slots=True)
class TableView:
    """One table. The field names are JSON, too."""

    table: str
    lock: LockHolder | None
    transactions: tuple[TransactionView, ...]
    incomplete: tuple[str, ...] = ()
    """What the log of a partition lacks, and since when that is known. Empty for a table."""
    refused: str | None = None
    """Why an agent refuses the partition, or why it last refused a transaction of the table for good (`not-allowed`).

    None if it has admitted, granted or skipped another one since, or another agent has taken the partition over.
    """
    condition: Condition | None = None
    """None for a partition."""
    last_commit: str | None = None
    """The last one that the log has of the last hours."""
    pace_seconds: float | None = None
    """The usual interval between two commits."""
    waits_known: bool = True
    """False: it is not known who waits for whom, because what the transactions touch exceeds the page's memory."""


async def status(settings: KafkaSettings, table: str | None = None) -> list[TableView]:
    """The tables of which the log has an open transaction, a recent lock step (`AUDIT_WINDOW`) or an end, or the given table.

    The worst come first. Before them, the partitions whose log is incomplete, with a given table the one of that table.
    """
    timelines, locks = Timelines(), Locks()
    async with Log(settings) as log:
        past = await readers_of(timelines, log)
        await log.partitions(log.topics.ledger)  # an error names the topic if it is missing or hidden
        replay = await replay_log(log, past, await readers_of_locks(locks, log))
        ledgers = await find_ledger_gaps(log, replay.starts)
        members = await group_members(log, settings.group)
    gaps = {number: each.gap for number, each in ledgers.items() if each.gap is not None}
    views = LiveStatus(replay, locks).views(gaps)
    if table is not None:
        names = table, events.partition_name(partition_of(table, len(replay.starts)))
        views = [each for each in views if each.table in names]
        timelines.ends = defaultdict(Ends, {table: timelines.ends[table]})
    return sorted(with_conditions(views, timelines.ends, members), key=rank)


def rank(view: TableView) -> tuple[int, float]:
    """The order of tables: partitions in trouble, then the worst tables."""
    return (-1, 0.0) if view.condition is None else view.condition.rank


async def group_members(log: Log, group: str) -> tuple[Member, ...] | None:
    """The agents in the group. None: this user may not see them."""
    try:
        return await members_of(await log.admin(), group)
    except GroupAuthorizationFailedError:
        return None


def with_conditions(
    found: Iterable[TableView], ends: Mapping[str, Ends], members: tuple[Member, ...] | None
) -> list[TableView]:
    """The tables with their conditions, those of which something has only ended included."""
    now, by_name = moment().wall_ms / 1000, {each.table: each for each in found}
    by_name |= {uri: TableView(uri, None, ()) for uri in sorted(ends.keys() - by_name.keys())}
    return [with_condition(each, now, members, ends.get(uri, Ends())) for uri, each in by_name.items()]


def with_condition(
    view: TableView,
    now: float,
    members: tuple[Member, ...] | None,
    ends: Ends,
) -> TableView:
    """The table with its condition, its last commit and its pace.

    `now`: seconds since the epoch. `members`: the agents in the group; None: not known.
    """
    if view.table.startswith(events.partition_name(0)[:-1]):
        return view
    lock = view.lock
    denied = None
    if lock is not None and lock.last_step == "lock-refused":
        denied = Denied(lock.lock, lock.waiting, lock.owner or None, lock.detail)
    opened = tuple(_open(each, now) for each in view.transactions)
    agents, pace = None if members is None else bool(members), ends.pace
    return replace(
        view,
        condition=condition(
            Facts(view.table, now, agents, view.refused, denied, opened, view.waits_known, ends)
        ),
        last_commit=_time(ends.last_commit),
        pace_seconds=pace and round(pace, 1),
    )


def _open(view: TransactionView, now: float) -> Open:
    # None: before the log's beginning, or a time that a client has made up.
    since = epoch(view.granted or view.waiting_since or view.since)
    return Open(
        view.transaction,
        view.writer,
        cast("Any", view.phase),
        since and max(0.0, now - since),
        tuple(each.transaction for each in view.blockers),
        withdrawn=view.revoked is not None,
        runs_at=view.runs_at,
    )


def partition_views(
    starts: Mapping[int, Start], refused: Mapping[int, str], ledger_gaps: Mapping[int, Gap]
) -> list[TableView]:
    """The partitions whose log is incomplete, and those that an agent refuses."""
    gaps = {number: _gaps(start, ledger_gaps.get(number)) for number, start in sorted(starts.items())}
    return [
        TableView(events.partition_name(number), None, (), incomplete=found, refused=refused.get(number))
        for number, found in gaps.items()
        if found or number in refused
    ]


def table_view(
    uri: str, replay: LogReplay, lock: events.AuditEventUnion | None, refused: str | None
) -> TableView:
    """What `status` shows of one table."""
    state = replay.tables.get(uri) or TableState(uri, TableSettings())
    opened = tuple(_view(state, each, replay) for each in state.open())
    holder = None if lock is None else lock_holder(lock)
    return TableView(uri, holder, opened, refused=refused)


def _gaps(start: Start, ledger: Gap | None) -> tuple[str, ...]:
    known = () if start.checkpoint is None else start.checkpoint.gaps
    return (
        *(
            f"{each.description}; an agent aborts what is open when it takes the partition over"
            for each in start.gaps
        ),
        *(() if ledger is None else (f"{ledger.description}; {_LEDGER_LOST}",)),
        *(f"{each.gap.description}; found {each.at.isoformat(timespec='seconds')}" for each in known),
    )


class Locks(dict[str, events.AuditEventUnion]):
    """The last step of each table's lock."""


class LiveStatus:
    """The tables of one installation. `replay` is one without the decisions that are ahead of its events."""

    def __init__(self, replay: LogReplay, locks: Locks) -> None:
        self._replay = replay
        self._locks = locks
        self._views: dict[str, tuple[events.AuditEventUnion | None, TableView]] = {}
        """Each with the step of the lock that it shows."""
        self._idle: dict[str, None] = {}
        """The tables without an open transaction, in the order of their last events."""
        self._clean_up_at = _LATE_NAMES
        self._without_waits: set[str] = set()
        """Tables whose footprints were dropped at the memory budget: it is unknown who waits for whom."""
        for each in replay.partitions.values():
            each.taken_over = False
        self._drop_ended(list(replay.tables))

    @property
    def taken_over(self) -> bool:
        """Whether an agent has taken a partition over since the replay."""
        return any(each.taken_over for each in self._replay.partitions.values())

    def add(
        self, number: int, written: Sequence[ConsumerRecord], decisions: Sequence[ConsumerRecord]
    ) -> None:
        """Apply the next records of a partition, with all decisions that were published before its end was asked for."""
        touched = self._replay.add(number, written, decisions)
        self._drop_ended(touched)
        for uri in touched:
            self._views.pop(uri, None)

    # -- what is shown -----------------------------------------------------------------------------------------------

    def views(self, ledger_gaps: Mapping[int, Gap] | None = None) -> list[TableView]:
        now_ms = moment().wall_ms
        oldest = utc_now() - AUDIT_WINDOW
        for uri in [each for each, step in self._locks.items() if step.at < oldest]:
            del self._locks[uri]
            self._views.pop(uri, None)
        refused = self._replay.refused
        open_tables = {uri for uri, state in self._replay.tables.items() if state.open()}
        return [
            *partition_views(self._replay.starts, self._replay.newer, ledger_gaps or {}),
            *(
                self._view(uri, refused.get(uri), now_ms)
                for uri in sorted(open_tables | set(self._locks) | set(refused))
            ),
        ]

    def view(self, table: str) -> TableView:
        return self._view(table, self._replay.refused.get(table), moment().wall_ms)

    def _view(self, uri: str, refused: str | None, now_ms: int) -> TableView:
        lock = self._locks.get(uri)
        shown, known = self._views.get(uri, (None, None))
        lapsed = known is not None and known.lock is not None and known.lock.held
        if known is None or shown is not lock or (lapsed and lock is not None and lock.valid_until <= now_ms):
            known = table_view(uri, self._replay, lock, refused)
            known = replace(known, waits_known=uri not in self._without_waits)
            if lock is not None or uri in self._replay.tables or refused is not None:
                self._views[uri] = lock, known
        return known

    # -- bounds ------------------------------------------------------------------------------------------------------

    def _drop_ended(self, tables: Iterable[str]) -> None:
        """Keep of tables without an open transaction what repeated events and the order of a queue need; drop old ones."""
        replay = self._replay
        for uri in tables:
            state = replay.tables.get(uri)
            self._idle.pop(uri, None)
            if state is None or state.open():
                continue
            self._without_waits.discard(uri)
            fresh = replay.tables[uri] = TableState(uri, state.settings)
            fresh.losses, fresh.lost_on = state.losses, state.lost_on
            fresh.closed = dict(list(state.closed.items())[-MAX_ENDED:])
            self._idle[uri] = None
        while len(self._idle) > MAX_IDLE:
            oldest = next(iter(self._idle))
            del self._idle[oldest], replay.tables[oldest]
        if len(replay.lives) > self._clean_up_at:
            kept = {each.id for state in replay.tables.values() for each in state.open()}
            replay.lives = {name: each for name, each in replay.lives.items() if name in kept}
            replay.partition = {uri: each for uri, each in replay.partition.items() if uri in replay.tables}
            self._clean_up_at = 2 * len(kept) + _LATE_NAMES

    def limit_memory(self, limit_bytes: int) -> None:
        """Drop the largest footprints until all of them together fit."""
        states = self._replay.tables
        used = sum(used_bytes(each) for each in states.values())
        while used > limit_bytes and (found := largest_excess(states.values(), live=False)) is not None:
            uri, _ = found
            used -= used_bytes(states[uri])
            drop_index(states[uri])
            used += used_bytes(states[uri])
            self._without_waits.add(uri)
            self._views.pop(uri, None)


async def conflicts(settings: KafkaSettings, *, follow: bool) -> AsyncIterator[events.ConflictDetected]:
    """The published conflicts, oldest first. With `follow` it also yields new ones, and never ends."""
    async with Log(settings, follows=follow) as log:
        partitions = dict.fromkeys(await log.partitions(log.topics.conflicts))
        if not follow:
            found = sorted(chain(*(await log.read(partitions)).values()), key=lambda each: each.timestamp)
            for event in decoded_all(events.CONFLICT_EVENT, found):
                yield event
            return
        async with aclosing(log.follow(partitions)) as batches:
            async for batch in batches:
                for event in decoded_all(events.CONFLICT_EVENT, chain(*batch.values())):
                    yield event


def _view(state: TableState, transaction: Transaction, replay: LogReplay) -> TransactionView:
    life = replay.lives.get(transaction.id) or Life(transaction.id, transaction.writer)
    found = tuple(islice(waits(state, transaction), MAX_BLOCKERS))
    requested, granted = life.times.get("requested"), life.times.get("granted")
    opened = life.times.get("intent", requested)
    since = {Phase.QUEUED: opened, Phase.WAITING: requested}.get(transaction.phase)
    return TransactionView(
        transaction.id,
        transaction.writer,
        transaction.batch_id,
        transaction.phase.value,
        _time(opened) or "before the log's beginning",
        _waiting_on(state, transaction, found),
        len(transaction.footprint),
        transaction.markers,
        _time(granted),
        life.revoked,
        _time(since),
        tuple(_blocker(each) for each in found),
        life.runs_at,
    )


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else timestamp(seconds * 1000)


def _waiting_on(state: TableState, transaction: Transaction, found: Iterable[Wait]) -> str | None:
    if transaction.phase is Phase.QUEUED:
        return ", ".join(sorted({each.other.writer for each in found})) or "its admission"
    if transaction.phase is Phase.WAITING:
        if earlier := {each.other.writer for each in found if each.overlaps}:
            return f"the end of {', '.join(sorted(earlier))}"
        running = state.running()
        return f"the grant of {running.writer}" if running is not None else "the table's lock"
    return None


def _blocker(wait: Wait) -> BlockerView:
    first = (each.partition for each in wait.overlaps)
    return BlockerView(wait.other.id, wait.other.writer, wait.reason, next(first, None))


async def readers_of_locks(last: Locks, log: Log) -> Readers:
    """How the last step of each table's lock within `AUDIT_WINDOW` is read from the audit topic."""

    def note(record: ConsumerRecord) -> None:
        step = decoded(events.AUDIT_EVENT, record)
        if step is not None:
            last[step.table] = step

    since = round((utc_now() - AUDIT_WINDOW).timestamp() * 1000)
    starts = await log.starts_at(await log.partitions(log.topics.audit), since)
    return {each: (start, note) for each, start in starts.items()}


def lock_holder(step: events.AuditEventUnion) -> LockHolder:
    """Who holds the lock by its last step."""
    until = utc_time(step.valid_until)
    holder = LockHolder(
        held=False,
        lock=step.lock,
        agent=step.agent,
        owner=step.owner or step.holder or "",
        valid_until=until.isoformat(timespec="milliseconds"),
        last_step=step.type,
        detail=step.detail,
        waiting=isinstance(step, events.LockRefused) and step.waiting,
    )
    return replace(holder, held=holder.ends_with_lease and until > utc_now())
