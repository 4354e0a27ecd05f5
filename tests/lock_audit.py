"""Checks the records of the topic `audit`: did two owners ever hold one lock at once? An oracle of tests that run agents.

The interval of an owner
- It begins when the lease was confirmed: at `at` of `lock-acquired`, by the agent's wall clock. Each `lock-renewed` extends it.
- It ends with the first of these:

    event or limit      end of the interval
    lock-lost           its `at`
    lock-released       the request for the release, `at` - `duration_ms`, but not before the last confirmation
    end of the lease    the last `valid_until` - drift, where a holder stops by itself

- During a release its owner relies on nothing, and the next owner may read the released object before the first one gets the
  store's answer. So the interval ends with the request.
- A crash leaves no last event: the interval ends with the lease. What a suspended agent publishes after its lease extends
  nothing.

Overlaps of two owners' intervals

    longer than the drift    a violation
    at most the drift        within the assumed difference of two clocks: counted separately, no violation

The drift is the configured one. Locks at Hudi's place have their own.

Adoption
- An owner whose `lock-acquired` names another owner in `adopted` took over its live lease on purpose. It gives no grant of its
  own until that lease has ended (`lease/machine.py`, Adoption), so its interval begins there.
- With `handed_over`, the former owner relied on nothing any more when the new one began to acquire the lock. So the former
  interval ends there.
- With `fenced`, the grants of the former owner didn't count any more at that time. It may not know that, so what it publishes
  later extends nothing.

Order and duplicates
- Within a partition, the events of one owner are in the order of the log; between partitions, in the order of `at`. (There is a
  second partition only if partitions were added.) The order in which events of different agents arrived is not used.
- An event that is delivered again changes nothing. A renewal is a duplicate if its `valid_until` is not later than the owner's
  last one in that partition, because each write of an owner ends later than the one before. Other events are recognised by their
  `event_id`: there are too many renewals to remember theirs.

Limits
- Kafka removes old events. If an acquisition is gone, the interval begins with the first renewal that is left, and the owner is
  listed in `truncated_owners`. So is an owner of which the log has nothing but its loss.
- Some owners don't publish to the audit log: writers with Hudi's own provider, and `lakewarden lock hold`. An agent that finds
  such an owner in its lock object publishes `lock-lost` with that owner's name.

Times are epoch milliseconds.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, assert_never

from lakewarden import events as wire
from lakewarden.handlers.lease.placement import HUDI_LOCK

EndedBy = Literal["released", "lost", "lease"]


@dataclass(frozen=True, slots=True)
class AuditPosition:
    """The place of an event in the audit topic."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Drifts:
    """The assumed largest difference of two clocks, in milliseconds: for the agents' own locks, and for those at Hudi's place."""

    own: float = 500.0
    hudi: float = 1_000.0

    def of(self, lock: str) -> float:
        return self.hudi if lock.endswith(HUDI_LOCK) else self.own


@dataclass(frozen=True, slots=True)
class Interval:
    """The time in which an owner may have relied on the lock."""

    owner: str
    agent: str
    since: float
    until: float
    ended_by: EndedBy
    first: AuditPosition
    """The event with which it begins."""
    last: AuditPosition
    """The event that defines its end: a release, a loss, or the last confirmation."""


@dataclass(frozen=True, slots=True)
class LeaseOverlap:
    """Two owners at once. `earlier` began first."""

    earlier: Interval
    later: Interval
    since: float
    until: float

    @property
    def length(self) -> float:
        return self.until - self.since


@dataclass(frozen=True, slots=True)
class LockReport:
    """The result for one lock."""

    lock: str
    acquisitions: int
    longest: Interval | None
    overlaps: tuple[LeaseOverlap, ...]
    """Two owners at once, for longer than the drift: the violations."""
    within_drift: tuple[LeaseOverlap, ...]
    truncated_owners: tuple[str, ...]
    """Owners whose acquisition is not in the log any more."""


@dataclass(slots=True)
class _Hold:
    """Consecutive confirmations of one owner in one partition."""

    agent: str
    since: float
    first: AuditPosition
    confirmed: float
    last: AuditPosition
    valid_until: float
    acquired: bool
    adopted: str | None = None


@dataclass(frozen=True, slots=True)
class _End:
    by: EndedBy
    at: float
    relied_until: float
    position: AuditPosition


@dataclass(slots=True)
class _Owner:
    holds: list[_Hold] = field(default_factory=list)
    ends: list[_End] = field(default_factory=list)
    last_ends: dict[int, tuple[int, float]] = field(default_factory=dict)
    """By partition: the offset of the last end, and the latest time of an end."""
    confirmed_until: dict[int, int] = field(default_factory=dict)
    """By partition: the latest `valid_until`."""
    fenced_at: float = math.inf
    """When an owner of a later term began to take its lock over."""

    def add_end(self, end: _End) -> None:
        self.ends.append(end)
        partition = end.position.partition
        _, latest = self.last_ends.get(partition, (0, end.at))
        self.last_ends[partition] = (end.position.offset, max(latest, end.at))

    def ended_after(self, hold: _Hold) -> bool:
        """Whether an end came after the last confirmation of this hold."""
        return any(
            offset > hold.last.offset if partition == hold.last.partition else latest >= hold.confirmed
            for partition, (offset, latest) in self.last_ends.items()
        )

    @property
    def truncated(self) -> bool:
        """Whether its acquisition is missing. A release alone needs none: an agent may release a lock before it relied on it."""
        if self.holds:
            return not min(self.holds, key=lambda each: each.since).acquired
        return any(each.by == "lost" for each in self.ends)


class _Ends:
    """Ends of one owner, sorted by a key. Of the ends from a given key on, it finds the one with the earliest `relied_until`."""

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
    owners: dict[str, _Owner] = field(default_factory=dict)
    acquisitions: int = 0


class LockAudit:
    """Checks a log event by event, those of one partition in their order. Its memory grows with all events except renewals."""

    def __init__(self, drifts: Drifts) -> None:
        self._drifts = drifts
        self._locks: dict[str, _Lock] = {}
        self._seen: set[str] = set()

    def add(self, position: AuditPosition, event: wire.AuditEventUnion) -> None:
        lock = self._locks.setdefault(event.lock, _Lock())
        if self._is_duplicate(lock, position, event):
            return
        match event:
            case wire.LockAcquired(adopted=adopted, handed_over=handed_over, fenced=fenced):
                lock.acquisitions += 1
                if adopted is not None and (handed_over or fenced):
                    began = _at(event) - event.duration_ms
                    former = lock.owners.setdefault(adopted, _Owner())
                    if fenced:
                        former.fenced_at = min(former.fenced_at, began)
                    else:
                        former.add_end(_End("released", _at(event), began, position))
                _begin_hold(_owner(lock, event), position, event, adopted=adopted)
            case wire.LockRenewed():
                _add_renewal(_owner(lock, event), position, event, self._drifts.of(event.lock))
            case wire.LockReleased():
                requested = _at(event) - event.duration_ms
                _owner(lock, event).add_end(_End("released", _at(event), requested, position))
            case wire.LockLost():
                _owner(lock, event).add_end(_End("lost", _at(event), _at(event), position))
            case wire.LockRefused():
                pass
            case _:
                assert_never(event)

    def report(self) -> tuple[LockReport, ...]:
        return tuple(_report(uri, lock, self._drifts.of(uri)) for uri, lock in sorted(self._locks.items()))

    def _is_duplicate(self, lock: _Lock, position: AuditPosition, event: wire.AuditEventUnion) -> bool:
        if isinstance(event, wire.LockRenewed):
            known = lock.owners.get(event.owner)
            return known is not None and event.valid_until <= known.confirmed_until.get(position.partition, 0)
        if event.event_id in self._seen:
            return True
        self._seen.add(event.event_id)
        return False


def _at(event: wire.LockEvent) -> float:
    return event.at.timestamp() * 1000


def _owner(lock: _Lock, event: wire.LockEvent) -> _Owner:
    return lock.owners.setdefault(event.owner, _Owner())


def _begin_hold(
    owner: _Owner,
    position: AuditPosition,
    event: wire.LockAcquired | wire.LockRenewed,
    *,
    adopted: str | None = None,
) -> None:
    at, acquired = _at(event), isinstance(event, wire.LockAcquired)
    owner.holds.append(_Hold(event.agent, at, position, at, position, event.valid_until, acquired, adopted))
    _confirm(owner, position, event)


def _add_renewal(owner: _Owner, position: AuditPosition, event: wire.LockRenewed, drift: float) -> None:
    hold = owner.holds[-1] if owner.holds else None
    if hold is None or not _continues(owner, hold, position, _at(event) + drift):
        _begin_hold(owner, position, event)
        return
    hold.confirmed, hold.last = _at(event), position
    hold.valid_until = max(hold.valid_until, event.valid_until)
    _confirm(owner, position, event)


def _confirm(owner: _Owner, position: AuditPosition, event: wire.LockAcquired | wire.LockRenewed) -> None:
    until = owner.confirmed_until
    until[position.partition] = max(until.get(position.partition, 0), event.valid_until)


def _continues(owner: _Owner, hold: _Hold, position: AuditPosition, at_latest: float) -> bool:
    if hold.last.partition != position.partition or at_latest > hold.valid_until:
        return False
    return not owner.ended_after(hold)


def _report(uri: str, lock: _Lock, drift: float) -> LockReport:
    intervals = sorted(_intervals(lock, drift), key=lambda each: each.since)
    overlaps = list(_overlaps(intervals))
    return LockReport(
        lock=uri,
        acquisitions=lock.acquisitions,
        longest=max(intervals, key=lambda each: each.until - each.since, default=None),
        overlaps=tuple(each for each in overlaps if each.length > drift),
        within_drift=tuple(each for each in overlaps if each.length <= drift),
        truncated_owners=tuple(name for name, owner in lock.owners.items() if owner.truncated),
    )


def _intervals(lock: _Lock, drift: float) -> Iterator[Interval]:
    """The intervals of all owners. Those of adopters begin where the intervals of their former owners end."""
    ends: dict[str, float] = {}
    adopters: list[tuple[_Hold, Interval]] = []
    for name, owner in lock.owners.items():
        ends_after = _ends_after(owner)
        for hold in owner.holds:
            interval = _interval(name, hold, ends_after(hold), drift, owner.fenced_at)
            ends[name] = max(ends.get(name, interval.until), interval.until)
            if hold.adopted is None:
                yield interval
            else:
                adopters.append((hold, interval))
    for hold, interval in adopters:
        former = ends.get(hold.adopted or "", interval.since)
        since = max(interval.since, former)
        yield replace(interval, since=since, until=max(since, interval.until))


def _ends_after(owner: _Owner) -> Callable[[_Hold], Iterator[_End]]:
    """For each hold, the ends that may have ended it: from its own partition and from the others, the earliest one after it."""
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


def _interval(name: str, hold: _Hold, ends: Iterator[_End], drift: float, fenced_at: float) -> Interval:
    until, last = hold.valid_until - drift, hold.last
    by: EndedBy = "lease"
    for end in ends:
        relied_until = max(hold.confirmed, end.relied_until)
        if relied_until < until:
            until, by, last = relied_until, end.by, end.position
    if fenced_at < until:
        until, by = fenced_at, "lost"
    return Interval(name, hold.agent, hold.since, max(hold.since, until), by, hold.first, last)


def _overlaps(intervals: list[Interval]) -> Iterator[LeaseOverlap]:
    running: list[Interval] = []
    for interval in intervals:
        running = [each for each in running if each.until > interval.since]
        for each in running:
            until = min(each.until, interval.until)
            if each.owner != interval.owner and until > interval.since:
                yield LeaseOverlap(each, interval, interval.since, until)
        running.append(interval)
