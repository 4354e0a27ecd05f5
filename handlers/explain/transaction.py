"""The story of one transaction, told from the log alone.

- The table is replayed by the same code by which an agent rebuilds it (`facts.take_event`, `table.replay_verdict`,
  `replay.PublishedDecisions`), and asked at each point: whom it waited for is the truth of that moment, not a guess.
- Order is that of offsets: a decision stands after the event at its `cause_offset`, as in every replay. Lock steps come from
  another topic, and agents take partitions over between two decisions: these are placed by Kafka's record times.
- A wait is told only if something else happened before it ended: whoever is answered in the step that read it did not wait.
- Why the victim was the victim follows from the state before its abort, in the order of `conflicts.loser_of`. The one thing
  that the log does not say is `max_losses`; where nothing else explains an abort, it was the protection.
- A decision that does not count (`replay.py`) is told as such, and changes nothing.
- Memory: the table's state, its decisions, and of other transactions a name and an end, at most `MAX_KNOWN`.

Times are epoch milliseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import assert_never

from lakewarden.events import (
    Abort,
    Admitted,
    AlreadyCommitted,
    AuditEventUnion,
    CommitCompleted,
    CommitGranted,
    CommitIntent,
    CommitRequested,
    ConflictDetected,
    ConflictEntry,
    DecisionEventUnion,
    DecisionRecord,
    GrantRenewed,
    Marker,
    MarkerCreated,
    PartitionTaken,
    TransactionAbandoned,
    WriterEventUnion,
    WriterHeartbeat,
)
from lakewarden.handlers.explain import timeline
from lakewarden.handlers.explain.evidence import Touches, victim_rule, with_locks, with_reports
from lakewarden.handlers.explain.timeline import Behind, Event, Fate, Shared, Story, Where, Who
from lakewarden.handlers.table.admission import ahead, in_reserved
from lakewarden.handlers.table.conflicts import kind_of, operations_conflict, rule_for
from lakewarden.handlers.table.facts import take_event
from lakewarden.handlers.table.footprints import Overlap
from lakewarden.handlers.table.machine import replay_verdict
from lakewarden.handlers.table.replay import Position, PublishedDecisions
from lakewarden.handlers.table.state import TableSettings, TableState
from lakewarden.handlers.table.transactions import LANDED, OPEN, Phase, Transaction
from lakewarden.handlers.table.verdicts import verdict_of

MOST_SHOWN = 20
"""Places, names and partitions that one step lists; all are counted."""
MAX_KNOWN = 20_000
"""Transactions whose names and ends are remembered, beyond those that the story names."""
MAX_ATTEMPTS = 100
"""Of one batch."""

GONE = Fate(None)


@dataclass(slots=True)
class _Known:
    who: Who
    fate: Fate
    places: int = 0
    named: bool = False


class Storyteller:
    """Give it what was decided, then every event of the table in order (`read`), then ask for the `story`."""

    def __init__(
        self,
        who: Who,
        table: str,
        decisions: Iterable[tuple[Where, DecisionRecord]],
        *,
        max_losses: int = 3,
    ) -> None:
        self._id, self._table = who.transaction, table
        self._who = who
        self._max_losses = max_losses
        self._state = TableState(table, TableSettings(max_losses=max_losses))
        self._steps: list[timeline.Step] = []
        self._known: dict[str, _Known] = {}
        self._touches = Touches()
        self._causes: set[str] = set()
        self._cause_events: dict[str, Event] = {}
        self._seen: set[str] = set()
        self._reading: Event | None = None
        self._opened: Where | None = None
        self._asked: Where | None = None
        self._heard: Where | None = None
        self._waited_for: set[str] = set()
        self._repeated = self._markers = self._beats = self._gap = 0
        self._first_beat: Where | None = None
        self._last_beat: Where | None = None
        self._gap_after: Where | None = None
        self._load(decisions)

    def _load(self, decisions: Iterable[tuple[Where, DecisionRecord]]) -> None:
        records = [
            (where, record)
            for where, record in decisions
            if isinstance(record, PartitionTaken) or record.table == self._table
        ]
        self._published = PublishedDecisions(
            Position(0, None), ((where.offset, record) for where, record in records)
        )
        counting = {each.event_id for each in self._published.all()}
        self._placed = {record.event_id: where for where, record in records}
        self._taken: deque[tuple[Where, PartitionTaken]] = deque()
        void: list[tuple[int, timeline.Void]] = []
        taken: tuple[Where, PartitionTaken] | None = None
        for where, record in records:
            if isinstance(record, PartitionTaken):
                taken = (where, record)
                self._taken.append(taken)
            elif record.event_id not in counting:
                if record.transaction == self._id:
                    void.append((record.cause_offset, _void(where, record, taken)))
            elif self._concerns(record):
                self._causes.add(record.cause or "")
                if isinstance(record, Abort):
                    self._touches.want(record.transaction, record.conflicts)
        self._void = deque(sorted(void, key=lambda each: each[0]))

    def _concerns(self, decision: DecisionEventUnion) -> bool:
        return decision.transaction == self._id or (
            isinstance(decision, Abort)
            and any(each.other_transaction == self._id for each in decision.conflicts)
        )

    # -- the log -----------------------------------------------------------------------------------------------------

    def read(self, where: Where, event: WriterEventUnion) -> None:
        """Take the table's next event, and what was decided up to it."""
        self._tell_taken(lambda taken: taken.recorded_ms <= where.recorded_ms)
        self._reading = reading = Event(event.type, event.transaction, event.writer, where)
        if event.event_id in self._causes:
            self._cause_events.setdefault(event.event_id, reading)
        self._touches.note(reading, _markers(event))
        mine = event.transaction == self._id
        stood = self._stands(event.transaction)
        markers_before = self._marker_count()
        overlaps = take_event(self._state, event, where.offset, where.recorded_ms / 1000)
        self._note_fate(where, event)
        if mine:
            self._tell_event(where, event, stood, self._marker_count() - markers_before)
        met = list(self._meetings(where, overlaps, mine=mine))
        at = len(self._steps)
        self._follow(where.offset, event.event_id)
        # What an abort has just said need not be said twice.
        said = {name for step in self._steps[at:] for name in _named(step)}
        self._steps[at:at] = [each for each in met if each.who.transaction not in said]

    def story(
        self, locks: Iterable[tuple[Where, AuditEventUnion]] = (), reports: Iterable[ConflictDetected] = ()
    ) -> Story:
        """All of it, once everything has been read: with what was told of the table's lock, and of its conflicts."""
        self._follow(None, None)
        fate = self._known[self._id].fate if self._id in self._known else GONE
        steps = with_reports(self._steps, [each for each in reports if each.victim == self._id])
        others = [each for name, each in self._known.items() if each.named and name != self._id]
        mine = self._state.transactions.get(self._id)
        return Story(
            who=self._who,
            table=self._table,
            fate=fate,
            waits_for=() if mine is None else tuple(self._behind(mine)),
            markers=self._markers,
            beats=timeline.Beats(self._beats, self._first_beat, self._last_beat, self._gap, self._gap_after),
            repeated=self._repeated,
            steps=tuple(with_locks(steps, locks, self._opened, fate.where)),
            others=tuple(timeline.Other(each.who, each.fate, each.places) for each in others),
            attempts=tuple(self._attempts()),
        )

    def _follow(self, up_to: int | None, event_id: str | None) -> None:
        for decision in self._published.due(up_to):
            where = self._placed[decision.event_id]
            self._tell_taken(lambda taken: taken.offset < where.offset)  # noqa: B023 - called before the next round
            if decision.cause != event_id:
                self._tell_wait()
            self._tell_decision(where, decision)
            if isinstance(decision, Admitted):
                admission = Event(decision.type, decision.transaction, decision.writer, where)
                self._touches.note(admission, decision.reserved)
            stood = self._stands(decision.transaction)
            replay_verdict(self._state, verdict_of(decision), where.recorded_ms / 1000)
            self._note_verdict(where, decision, stood)
        self._tell_wait()
        while self._void and (up_to is None or self._void[0][0] <= up_to):
            self._steps.append(self._void.popleft()[1])

    # -- others ------------------------------------------------------------------------------------------------------

    def _note_fate(self, where: Where, event: WriterEventUnion) -> None:
        if isinstance(event, CommitIntent) and event.transaction not in self._known:
            who = Who(event.transaction, event.writer, event.batch_id, where.offset)
            self._known[event.transaction] = _Known(who, Fate(Phase.QUEUED))
            if event.transaction == self._id:
                self._who = who
            self._forget()
        known = self._known.get(event.transaction)
        if known is None and event.transaction == self._id and isinstance(event, CommitCompleted):
            known = self._known[self._id] = _Known(self._who, GONE)
        if known is None or known.fate.phase is Phase.COMMITTED:
            return
        if isinstance(event, CommitCompleted):
            known.fate = Fate(Phase.COMMITTED, version=event.version, where=where)
        elif isinstance(event, TransactionAbandoned) and known.fate.where is None:
            known.fate = Fate(Phase.ABORTED, "abandoned", where=where)
        elif (open_ := self._state.transactions.get(event.transaction)) is not None and open_.phase in OPEN:
            known.fate = Fate(open_.phase)

    def _note_verdict(self, where: Where, decision: DecisionEventUnion, stood: Phase | None) -> None:
        known = self._known.get(decision.transaction)
        if known is None or stood not in OPEN:
            if known is None and decision.transaction == self._id and isinstance(decision, Abort):
                self._known[self._id] = _Known(self._who, Fate(Phase.ABORTED, decision.reason, where=where))
            return
        now = self._stands(decision.transaction) or Phase.ABORTED
        match decision:
            case Abort(reason=reason):
                # A revoked grant stands until its writer is heard of, or its lease has run out.
                known.fate = Fate(now, reason, where=None if now is Phase.GRANTED else where)
            case AlreadyCommitted(version=version):
                known.fate = Fate(Phase.COMMITTED, "already-committed", version, where)
            case _:
                known.fate = Fate(now)

    def _forget(self) -> None:
        if len(self._known) <= MAX_KNOWN:
            return
        for name, each in self._known.items():
            if not each.named and name != self._id and name not in self._state.transactions:
                del self._known[name]
                return

    def _name(self, transaction: str, writer: str) -> Who:
        known = self._known.setdefault(transaction, _Known(Who(transaction, writer), GONE))
        known.named = True
        return known.who

    def _attempts(self) -> Iterator[timeline.Other]:
        mine = self._who
        if mine.sequence is None:
            return
        same = [each for each in self._known.values() if each.who.writer == mine.writer]
        if mine.batch_id is None:
            later = [each for each in same if (each.who.sequence or 0) > mine.sequence]
            same = [each for each in same if each.who == mine] + later[:1]
        else:
            same = [each for each in same if each.who.batch_id == mine.batch_id]
        for each in same[:MAX_ATTEMPTS]:
            yield timeline.Other(each.who, each.fate, each.places)

    def _stands(self, transaction: str) -> Phase | None:
        kept = self._state.transactions.get(transaction)
        if kept is not None:
            return kept.phase
        closed = self._state.closed.get(transaction)
        return None if closed is None else closed.phase

    def _marker_count(self) -> int:
        mine = self._state.transactions.get(self._id)
        return 0 if mine is None else mine.markers

    # -- its own events ----------------------------------------------------------------------------------------------

    def _tell_event(self, where: Where, event: WriterEventUnion, stood: Phase | None, new: int) -> None:
        if event.event_id in self._seen:
            self._repeated += 1
            return
        self._seen.add(event.event_id)
        if stood in OPEN and self._heard is not None:
            gap = where.recorded_ms - self._heard.recorded_ms
            if gap > self._gap:
                self._gap, self._gap_after = gap, self._heard
        self._heard = where
        if isinstance(event, CommitIntent) and stood is None:
            self._tell_intent(where, event)
        elif isinstance(event, CommitCompleted):
            self._steps.append(
                timeline.Completed(
                    where, event.grant, event.version, event.batch_id or self._who.batch_id, stood
                )
            )
        elif isinstance(event, TransactionAbandoned) and (stood in OPEN or stood is Phase.UNKNOWN):
            self._steps.append(timeline.Abandoned(where, event.reason))
        elif stood not in OPEN:
            self._ignore(where, event, stood)
        else:
            self._tell_progress(where, event, max(0, new))

    def _tell_intent(self, where: Where, event: CommitIntent) -> None:
        self._opened = where
        self._markers += self._marker_count()
        before = [each for each in self._state.open() if each.id != self._id]
        self._steps.append(
            timeline.Opened(
                where,
                event.batch_id,
                event.admission,
                event.priority,
                event.conflict_rule,
                event.heartbeat_seconds,
                event.lock,
                event.scope[:MOST_SHOWN],
                len(event.scope),
                tuple(_who(each) for each in before[:MOST_SHOWN]),
                len(before),
            )
        )

    def _tell_progress(self, where: Where, event: WriterEventUnion, new: int) -> None:
        self._markers += new
        match event:
            case WriterHeartbeat():
                self._beats += 1
                self._first_beat, self._last_beat = self._first_beat or where, where
            case MarkerCreated(markers=markers):
                self._tell_markers(where, markers, new)
            case CommitRequested(seq=seq, markers=markers):
                if self._asked is None:
                    self._asked = where
                    self._waited_for = set()
                self._steps.append(timeline.Asked(where, seq, len(markers)))
            case CommitIntent() | CommitCompleted() | TransactionAbandoned():
                raise AssertionError(f"{event.type} is no progress")
            case _:
                assert_never(event)

    def _tell_markers(self, where: Where, markers: tuple[Marker, ...], new: int) -> None:
        step = timeline.Touched(where, where, 1, len(markers), new, _partitions((), markers))
        last = self._steps[-1] if self._steps else None
        if isinstance(last, timeline.Touched):
            self._steps[-1] = timeline.Touched(
                last.first,
                where,
                last.events + 1,
                last.markers + step.markers,
                last.new + new,
                _partitions(last.partitions, markers),
            )
        else:
            self._steps.append(step)

    def _ignore(self, where: Where, event: WriterEventUnion, stood: Phase | None) -> None:
        last = self._steps[-1] if self._steps else None
        if isinstance(last, timeline.Ignored) and (last.type, last.stood) == (event.type, stood):
            self._steps[-1] = replace(last, where=where, events=last.events + 1)
        else:
            self._steps.append(timeline.Ignored(where, where, event.type, 1, stood))

    # -- whom it met, and waited for ---------------------------------------------------------------------------------

    def _meetings(self, where: Where, overlaps: list[Overlap], *, mine: bool) -> Iterator[timeline.Met]:
        groups: dict[str, list[Overlap]] = {}
        for each in overlaps:
            seen = each if mine else each.turned()
            if self._id == seen.mine.transaction.id:
                groups.setdefault(seen.other.transaction.id, []).append(seen)
        for group in groups.values():
            me, other = group[0].mine.transaction, group[0].other.transaction
            kind = kind_of(me, other)
            if other.phase in LANDED and kind is None:
                continue  # It had landed before this one began: it is in the base.
            rule = rule_for(me, other)
            who = self._name(other.id, other.writer)
            self._known[other.id].places += len(group)
            if Phase.QUEUED in (me.phase, other.phase):
                continue
            yield timeline.Met(
                where=where,
                who=who,
                phase=other.phase,
                came_second="mine" if mine else "other",
                conflict=any(
                    operations_conflict(rule, each.mine.operation, each.other.operation) for each in group
                ),
                rule=rule,
                shared=_shared(group),
                places=len(group),
            )

    def _behind(self, mine: Transaction) -> Iterator[Behind]:
        """Whom it waits for at this moment."""
        running = self._state.running()
        if mine.phase is Phase.QUEUED:
            if running is not None and running.writer == mine.writer:
                yield Behind(self._name(running.id, running.writer), "publishing")
            groups: dict[str, list[Overlap]] = {}
            for each in ahead(self._state, mine):
                groups.setdefault(each.other.transaction.id, []).append(each)
            for group in groups.values():
                other = group[0].other.transaction
                yield Behind(self._name(other.id, other.writer), _why(other), _shared(group))
            for other in in_reserved(self._state, mine):
                yield Behind(self._name(other.id, other.writer), _why(other))
        elif mine.phase is Phase.WAITING:
            if running is not None:
                yield Behind(self._name(running.id, running.writer), "granted")
            for other in self._state.transactions.values():
                if other.phase is Phase.WAITING and other.requested < mine.requested:
                    yield Behind(self._name(other.id, other.writer), "earlier in the line")

    def _tell_wait(self) -> None:
        mine = self._state.transactions.get(self._id)
        reading = self._reading
        if mine is None or mine.phase not in (Phase.QUEUED, Phase.WAITING) or reading is None:
            return
        if reading.type == "writer-heartbeat":
            return
        behind = tuple(self._behind(mine))
        names = {each.who.transaction for each in behind}
        if names - self._waited_for:
            self._waited_for |= names
            self._steps.append(
                timeline.Waiting(
                    reading.where, "admission" if mine.phase is Phase.QUEUED else "grant", behind
                )
            )

    def _freed_by(self) -> timeline.Ended | None:
        """The last one to end of those that it was told to wait for."""
        ended = [self._known[name] for name in self._waited_for if self._known[name].fate.where is not None]
        last = max(
            ended, key=lambda each: each.fate.where.recorded_ms if each.fate.where else 0, default=None
        )
        return None if last is None else timeline.Ended(last.who, last.fate)

    def _tell_taken(self, before: Callable[[Where], bool]) -> None:
        while self._taken and before(self._taken[0][0]):
            where, taken = self._taken.popleft()
            if self._stands(self._id) in OPEN:
                self._steps.append(timeline.Taken(where, taken.agent))

    # -- decisions ---------------------------------------------------------------------------------------------------

    def _cause(self, decision: DecisionEventUnion) -> timeline.Cause:
        return timeline.Cause(self._cause_events.get(decision.cause or ""), decision.cause_offset)

    def _tell_decision(self, where: Where, decision: DecisionEventUnion) -> None:
        if decision.transaction != self._id:
            if isinstance(decision, Abort) and decision.transaction in self._state.transactions:
                self._tell_won(where, decision)
            return
        agent, cause = decision.agent, self._cause(decision)
        match decision:
            case Admitted(reserved=reserved):
                waited = _between(self._opened, where)
                freed_by = self._freed_by()
                self._waited_for = set()
                kept = _partitions((), reserved)
                self._steps.append(timeline.Admitted(where, agent, cause, waited, freed_by, kept))
            case CommitGranted():
                self._tell_grant(where, decision, cause)
            case GrantRenewed(lease_seconds=lease, seq=seq, lock_owner=owner):
                self._tell_renewal(timeline.Renewed(where, where, agent, 1, lease, seq, owner))
            case AlreadyCommitted(committed_transaction=committed, version=version):
                self._steps.append(timeline.Skipped(where, agent, committed, version))
            case Abort():
                self._steps.append(
                    timeline.Aborted(
                        where=where,
                        agent=agent,
                        reason=decision.reason,
                        retriable=decision.retriable,
                        detail=decision.detail,
                        losses=decision.losses,
                        stood=self._stands(self._id),
                        cause=cause,
                        against=tuple(self._against(self._id, decision.conflicts)),
                    )
                )

    def _tell_grant(self, where: Where, decision: CommitGranted, cause: timeline.Cause) -> None:
        freed_by = self._freed_by()
        waited = _between(self._asked, where)
        alone = waited if freed_by is None else min(waited, _between(freed_by.fate.where, where))
        self._steps.append(
            timeline.Granted(
                where,
                decision.agent,
                decision.grant,
                decision.lease_seconds,
                decision.seq,
                decision.lock_owner,
                cause,
                waited,
                freed_by,
                alone,
            )
        )

    def _tell_renewal(self, step: timeline.Renewed) -> None:
        last = self._steps[-1] if self._steps else None
        if isinstance(last, timeline.Renewed) and (last.agent, last.lock_owner) == (
            step.agent,
            step.lock_owner,
        ):
            step = replace(step, first=last.first, times=last.times + 1)
            self._steps.pop()
        self._steps.append(step)

    def _tell_won(self, where: Where, decision: Abort) -> None:
        mine = [each for each in decision.conflicts if each.other_transaction == self._id]
        for against in self._against(decision.transaction, mine):
            victim = self._name(decision.transaction, decision.writer)
            self._steps.append(timeline.Won(where, victim, decision.reason, self._cause(decision), against))

    def _against(self, loser: str, conflicts: Iterable[ConflictEntry]) -> Iterator[timeline.Against]:
        """Each winner of an abort that is about to become a fact."""
        groups: dict[str, list[ConflictEntry]] = {}
        for entry in conflicts:
            groups.setdefault(entry.other_transaction, []).append(entry)
        victim = self._state.transactions.get(loser)
        for name, entries in groups.items():
            first = entries[0]
            seen = timeline.Against(
                winner=self._name(name, first.other_writer),
                phase=self._stands(name),
                by=None,
                offsets_older=None,
                rule=None,
                kind=first.kind,
                entries=tuple(entries[:MOST_SHOWN]),
                places=len(entries),
                mine=self._touches.of_victim(loser, first),
                theirs=self._touches.of_winner(first),
            )
            winner = self._state.transactions.get(name)
            if victim is not None and winner is not None:
                seen = replace(
                    seen,
                    by=victim_rule(victim, winner, self._state.losses, self._max_losses),
                    offsets_older=victim.sequence - winner.sequence,
                    rule=rule_for(victim, winner),
                )
            yield seen


def _who(transaction: Transaction) -> Who:
    return Who(transaction.id, transaction.writer, transaction.batch_id, transaction.sequence)


def _why(other: Transaction) -> timeline.WaitReason:
    match other.phase:
        case Phase.QUEUED:
            return "earlier in the line"
        case Phase.GRANTED:
            return "granted"
        case _:
            return "computing"


def _markers(event: WriterEventUnion) -> tuple[Marker, ...]:
    match event:
        case CommitIntent(scope=markers) | MarkerCreated(markers=markers) | CommitRequested(markers=markers):
            return markers
        case _:
            return ()


def _partitions(known: tuple[str, ...], markers: tuple[Marker, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*known, *(each.partition for each in markers)]))[:MOST_SHOWN]


def _shared(overlaps: Iterable[Overlap]) -> tuple[Shared, ...]:
    found = dict.fromkeys(
        Shared(
            each.partition,
            each.file_group,
            each.mine.operation,
            each.other_file_group,
            each.other.operation,
        )
        for each in overlaps
    )
    return tuple(found)[:MOST_SHOWN]


def _between(first: Where | None, last: Where) -> int:
    return 0 if first is None else max(0, last.recorded_ms - first.recorded_ms)


def _named(step: timeline.Step) -> Iterator[str]:
    match step:
        case timeline.Aborted(against=against):
            yield from (each.winner.transaction for each in against)
        case timeline.Won(victim=victim):
            yield victim.transaction
        case _:
            pass


def _void(
    where: Where, record: DecisionEventUnion, taken: tuple[Where, PartitionTaken] | None
) -> timeline.Void:
    return timeline.Void(
        where,
        record.agent,
        record.type,
        record.reason if isinstance(record, Abort) else None,
        None if taken is None else taken[1].agent,
        None if taken is None else taken[0],
    )
