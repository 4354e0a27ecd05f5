"""Whether two owners ever held one lock at once, by what the agents told of it: a pure checker of the audit log.

Rules
- An owner's interval begins when its lease was confirmed: the `at` of `lock-acquired`, by its agent's wall clock. Each
  `lock-renewed` extends it. It ends with the first of: its `lock-lost`; its `lock-released`, counted from when the release was
  asked for (`at` less `duration_ms`, but not before the last confirmation: nothing is relied upon while the release is under
  way, and the next owner may see the released object before its writer hears that it is); or the last `valid_until` less the
  drift, where a holder stops by itself. So a crash, which leaves no last word, ends with the lease, and whatever a
  paused agent says after that adds nothing.
- Two owners whose intervals overlap by more than the drift: a **violation**. By at most the drift: **within the clock
  difference** that is assumed between two agents; reported apart, and no violation. The drift is the one that the locks are
  configured with; locks at Hudi's place have their own.
- Adoption: an owner that names another in `adopted` took its live lease over on purpose, and gives no grant of its own until
  that has ended (`lease.py`, Adoption). Its own interval begins there.
- The events of one owner are in the order of the log within a partition, and by `at` between partitions (there is a second one
  only if partitions were added). The order in which different agents' events arrived proves nothing and is not used. An
  event that comes again changes nothing: it has an `event_id` that was there, and of renewals, too many to be remembered, a
  `valid_until` that is not later than the owner's last one in that partition (each write of an owner ends later than the one
  before).
- Kafka removes old events, so a renewal may be all that is left of a hold: then its interval begins with that renewal, and
  the owner is listed in `cut`. Of the time before, nothing is claimed. A lease of whose owner the log has nothing but its loss is
  listed too.
- Who does not tell the audit log (a writer with Hudi's own provider, `lakewarden lock hold`) is not judged here. An agent that
  found such an owner in its place reports `lock-lost` with its name, and that is shown.

Times are epoch milliseconds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, assert_never

from lakewarden.events import (
    AuditEventUnion,
    LockAcquired,
    LockEvent,
    LockLost,
    LockRefused,
    LockReleased,
    LockRenewed,
)
from lakewarden.handlers.lease.placement import HUDI_LOCK

MOST_SHOWN = 100
"""Overlaps, losses and reasons that are listed for one lock; all are counted."""

EndedBy = Literal["released", "lost", "lease"]


@dataclass(frozen=True, slots=True)
class Position:
    """Where in the audit topic an event is."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Drifts:
    """The largest clock difference, in milliseconds: for locks of our own, and for those at Hudi's place."""

    ours: float = 500.0
    hudi: float = 1_000.0

    def of(self, lock: str) -> float:
        """The one that this lock is kept with."""
        return self.hudi if lock.endswith(HUDI_LOCK) else self.ours


@dataclass(frozen=True, slots=True)
class Interval:
    """From when until when an owner may have relied on the lock."""

    owner: str
    agent: str
    since: float
    until: float
    ended_by: EndedBy
    first: Position
    """Of the event that it begins with."""
    last: Position
    """Of the event that says when it ends: its end, or the last confirmation."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two owners at once; `earlier` began first."""

    earlier: Interval
    later: Interval
    since: float
    until: float

    @property
    def length(self) -> float:
        """In milliseconds."""
        return self.until - self.since


@dataclass(frozen=True, slots=True)
class Loss:
    """A lease that ended before it was given back."""

    owner: str
    agent: str
    at: float
    why: str | None
    holder: str | None
    position: Position


@dataclass(frozen=True, slots=True)
class Hindrance:
    """What only a person can mend: an object that is no lock record, a store that forbids. The last time it was met."""

    why: str
    times: int
    agent: str
    at: float
    position: Position


@dataclass(frozen=True, slots=True)
class LockReport:
    """What the log says of one lock."""

    lock: str
    tables: tuple[str, ...]
    drift: float
    acquisitions: int
    renewals: int
    releases: int
    lost: int
    refused: int
    """Times that it was found held, or could not be had for another reason."""
    requests: int
    """Sent to the store, by all agents, for all of the above."""
    longest: Interval | None
    violations: int
    overlaps: tuple[Overlap, ...]
    """The violations; the first `MOST_SHOWN`."""
    within_drift: int
    closest: Overlap | None
    """The longest of the overlaps that are within the clock difference."""
    losses: tuple[Loss, ...]
    hindrances: tuple[Hindrance, ...]
    cut: tuple[str, ...]
    """Owners whose acquisition the log does not have (any more)."""


@dataclass(frozen=True, slots=True)
class Report:
    """What the log says of all locks."""

    events: int
    duplicates: int
    locks: tuple[LockReport, ...]

    @property
    def violations(self) -> int:
        """Two owners at once, by more than clocks may differ."""
        return sum(each.violations for each in self.locks)


@dataclass(slots=True)
class _Hold:
    """One stretch of confirmations of one owner in one partition."""

    agent: str
    since: float
    first: Position
    confirmed: float
    last: Position
    valid_until: float
    acquired: bool
    adopted: str | None = None


@dataclass(frozen=True, slots=True)
class _End:
    by: EndedBy
    at: float
    relied_until: float
    position: Position


@dataclass(slots=True)
class _Owner:
    holds: list[_Hold] = field(default_factory=list)
    ends: list[_End] = field(default_factory=list)
    last_ends: dict[int, tuple[int, float]] = field(default_factory=dict)
    """By partition: offset of the last end, and the latest time that one has."""
    confirmed_until: dict[int, int] = field(default_factory=dict)
    """By partition: the last `valid_until`."""

    def end(self, end: _End) -> None:
        self.ends.append(end)
        partition = end.position.partition
        _, latest = self.last_ends.get(partition, (0, end.at))
        self.last_ends[partition] = (end.position.offset, max(latest, end.at))

    def ended_after(self, hold: _Hold) -> bool:
        """Whether it has told of an end since this hold was confirmed last."""
        return any(
            offset > hold.last.offset if partition == hold.last.partition else latest >= hold.confirmed
            for partition, (offset, latest) in self.last_ends.items()
        )

    @property
    def cut(self) -> bool:
        """Whether its beginning is missing. A release alone is none: a lock may be released before anybody relied on it."""
        if self.holds:
            return not min(self.holds, key=lambda each: each.since).acquired
        return any(each.by == "lost" for each in self.ends)


class _Ends:
    """Ends of one owner in the order of a key, and of those from any key on the one that reaches least far."""

    def __init__(self, ends: Iterable[_End], key: Callable[[_End], float]) -> None:
        ordered = sorted(ends, key=key)
        self._keys = [key(each) for each in ordered]
        self._least: list[_End] = []
        for end in reversed(ordered):
            least = self._least[-1] if self._least else end
            self._least.append(end if end.relied_until <= least.relied_until else least)
        self._least.reverse()

    def after(self, key: float) -> Iterator[_End]:
        yield from self._least[bisect_right(self._keys, key) :][:1]

    def not_before(self, key: float) -> Iterator[_End]:
        yield from self._least[bisect_left(self._keys, key) :][:1]


@dataclass(slots=True)
class _Lock:
    tables: set[str] = field(default_factory=set)
    owners: dict[str, _Owner] = field(default_factory=dict)
    acquisitions: int = 0
    renewals: int = 0
    releases: int = 0
    lost: int = 0
    refused: int = 0
    requests: int = 0
    losses: list[Loss] = field(default_factory=list)
    hindrances: dict[str, Hindrance] = field(default_factory=dict)


def check(events: Iterable[tuple[Position, AuditEventUnion]], drifts: Drifts) -> Report:
    """Judge a whole log; within a partition the events come in their order."""
    audit = LockAudit(drifts)
    for position, event in events:
        audit.add(position, event)
    return audit.report()


class LockAudit:
    """The same, for a log that is too long to be kept: what is remembered grows with all events but the renewals."""

    def __init__(self, drifts: Drifts) -> None:
        self._drifts = drifts
        self._locks: dict[str, _Lock] = {}
        self._seen: set[str] = set()
        self._events = 0
        self._duplicates = 0

    def add(self, position: Position, event: AuditEventUnion) -> None:
        """Take the next event of its partition."""
        lock = self._locks.setdefault(event.lock, _Lock())
        if self._came_before(lock, position, event):
            self._duplicates += 1
            return
        self._events += 1
        lock.tables.add(event.table)
        lock.requests += event.requests
        match event:
            case LockAcquired(adopted=adopted):
                lock.acquisitions += 1
                _begin(_owner(lock, event), position, event, adopted=adopted)
            case LockRenewed():
                lock.renewals += 1
                _renewed(_owner(lock, event), position, event, self._drifts.of(event.lock))
            case LockReleased():
                lock.releases += 1
                asked = _at(event) - event.duration_ms
                _owner(lock, event).end(_End("released", _at(event), asked, position))
            case LockLost():
                lock.lost += 1
                _lost(lock, position, event)
            case LockRefused():
                lock.refused += 1
                _refused(lock, position, event)
            case _:
                assert_never(event)

    def report(self) -> Report:
        """The judgement on what was added so far."""
        locks = tuple(_report(uri, lock, self._drifts.of(uri)) for uri, lock in sorted(self._locks.items()))
        return Report(self._events, self._duplicates, locks)

    def _came_before(self, lock: _Lock, position: Position, event: AuditEventUnion) -> bool:
        if isinstance(event, LockRenewed):
            known = lock.owners.get(event.owner)
            return known is not None and event.valid_until <= known.confirmed_until.get(position.partition, 0)
        if event.event_id in self._seen:
            return True
        self._seen.add(event.event_id)
        return False


def _at(event: LockEvent) -> float:
    return event.at.timestamp() * 1000


def _owner(lock: _Lock, event: LockEvent) -> _Owner:
    return lock.owners.setdefault(event.owner, _Owner())


def _begin(
    owner: _Owner, position: Position, event: LockAcquired | LockRenewed, *, adopted: str | None = None
) -> None:
    at, acquired = _at(event), isinstance(event, LockAcquired)
    owner.holds.append(_Hold(event.agent, at, position, at, position, event.valid_until, acquired, adopted))
    _confirm(owner, position, event)


def _renewed(owner: _Owner, position: Position, event: LockRenewed, drift: float) -> None:
    hold = owner.holds[-1] if owner.holds else None
    if hold is None or not _goes_on(owner, hold, position, _at(event) + drift):
        _begin(owner, position, event)
        return
    hold.confirmed, hold.last = _at(event), position
    hold.valid_until = max(hold.valid_until, event.valid_until)
    _confirm(owner, position, event)


def _confirm(owner: _Owner, position: Position, event: LockAcquired | LockRenewed) -> None:
    until = owner.confirmed_until
    until[position.partition] = max(until.get(position.partition, 0), event.valid_until)


def _goes_on(owner: _Owner, hold: _Hold, position: Position, at_latest: float) -> bool:
    if hold.last.partition != position.partition or at_latest > hold.valid_until:
        return False
    return not owner.ended_after(hold)


def _lost(lock: _Lock, position: Position, event: LockLost) -> None:
    owner, at = _owner(lock, event), _at(event)
    owner.end(_End("lost", at, at, position))
    if len(lock.losses) < MOST_SHOWN:
        lock.losses.append(Loss(event.owner, event.agent, at, event.detail, event.holder, position))


def _refused(lock: _Lock, position: Position, event: LockRefused) -> None:
    if event.holder is not None:
        return
    why = event.detail or "no reason given"
    before = lock.hindrances.get(why)
    if before is not None or len(lock.hindrances) < MOST_SHOWN:
        times = 1 if before is None else before.times + 1
        lock.hindrances[why] = Hindrance(why, times, event.agent, _at(event), position)


def _report(uri: str, lock: _Lock, drift: float) -> LockReport:
    intervals = sorted(_intervals(lock, drift), key=lambda each: each.since)
    overlaps: list[Overlap] = []
    violations = within = 0
    closest: Overlap | None = None
    for overlap in _overlaps(intervals):
        if overlap.length > drift:
            violations += 1
            if violations <= MOST_SHOWN:
                overlaps.append(overlap)
        else:
            within += 1
            closest = max(closest or overlap, overlap, key=lambda each: each.length)
    return LockReport(
        lock=uri,
        tables=tuple(sorted(lock.tables)),
        drift=drift,
        acquisitions=lock.acquisitions,
        renewals=lock.renewals,
        releases=lock.releases,
        lost=lock.lost,
        refused=lock.refused,
        requests=lock.requests,
        longest=max(intervals, key=lambda each: each.until - each.since, default=None),
        violations=violations,
        overlaps=tuple(overlaps),
        within_drift=within,
        closest=closest,
        losses=tuple(lock.losses),
        hindrances=tuple(lock.hindrances.values()),
        cut=tuple(name for name, owner in lock.owners.items() if owner.cut),
    )


def _intervals(lock: _Lock, drift: float) -> Iterator[Interval]:
    """Of all owners; those of adopters begin where their former owners' end."""
    ends: dict[str, float] = {}
    adopters: list[tuple[_Hold, Interval]] = []
    for name, owner in lock.owners.items():
        ends_after = _ends_after(owner)
        for hold in owner.holds:
            interval = _interval(name, hold, ends_after(hold), drift)
            ends[name] = max(ends.get(name, interval.until), interval.until)
            if hold.adopted is None:
                yield interval
            else:
                adopters.append((hold, interval))
    for hold, interval in adopters:
        former = ends.get(hold.adopted or "", interval.since)
        since = max(interval.since, former)
        yield Interval(
            interval.owner,
            interval.agent,
            since,
            max(since, interval.until),
            interval.ended_by,
            interval.first,
            interval.last,
        )


def _ends_after(owner: _Owner) -> Callable[[_Hold], Iterator[_End]]:
    """What may have ended a hold: of all ends that came after it, the one that reaches least far, by partitions' order."""
    partitions = {each.last.partition for each in owner.holds}
    here = {
        number: _Ends(
            (each for each in owner.ends if each.position.partition == number),
            lambda end: end.position.offset,
        )
        for number in partitions
    }
    elsewhere = {
        number: _Ends((each for each in owner.ends if each.position.partition != number), lambda end: end.at)
        for number in partitions
    }

    def after(hold: _Hold) -> Iterator[_End]:
        yield from here[hold.last.partition].after(hold.last.offset)
        yield from elsewhere[hold.last.partition].not_before(hold.confirmed)

    return after


def _interval(name: str, hold: _Hold, ends: Iterator[_End], drift: float) -> Interval:
    until, last = hold.valid_until - drift, hold.last
    by: EndedBy = "lease"
    for end in ends:
        relied_until = max(hold.confirmed, end.relied_until)
        if relied_until < until:
            until, by, last = relied_until, end.by, end.position
    return Interval(name, hold.agent, hold.since, max(hold.since, until), by, hold.first, last)


def _overlaps(intervals: list[Interval]) -> Iterator[Overlap]:
    """Of intervals sorted by their beginnings."""
    running: list[Interval] = []
    for interval in intervals:
        running = [each for each in running if each.until > interval.since]
        for each in running:
            until = min(each.until, interval.until)
            if each.owner != interval.owner and until > interval.since:
                yield Overlap(each, interval, interval.since, until)
        running.append(interval)
