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

An overlap of two owners' intervals is a violation if it is longer than the drift, the assumed difference of two clocks. Locks at
Hudi's place have a drift of their own.

Adoption
- An owner whose `lock-acquired` names another owner in `adopted` took over its live lease on purpose. It gives no grant of its
  own until that lease has ended (`lease/machine.py`, Adoption), so its interval begins there.
- With `handed_over`, the former owner relied on nothing any more when the new one began to acquire the lock. So the former
  interval ends there.
- With `fenced`, the grants of the former owner didn't count any more at that time. It may not know that, so what it publishes
  later extends nothing.

The events of one owner are read in their order; the order of different owners' events is not used. An event that is delivered
again changes nothing. A writer with Hudi's own provider publishes nothing here.

Times are epoch milliseconds.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import assert_never

from lakewarden import events as wire
from lakewarden.handlers.lease.placement import HUDI_LOCK


@dataclass(frozen=True, slots=True)
class Drifts:
    """The assumed largest difference of two clocks: for the agents' own locks, and for those at Hudi's place."""

    own: float = 500.0
    hudi: float = 1_000.0

    def of(self, lock: str) -> float:
        return self.hudi if lock.endswith(HUDI_LOCK) else self.own


@dataclass(frozen=True, slots=True)
class Interval:
    """The time in which an owner may have relied on the lock."""

    owner: str
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two owners at once. `earlier` began first."""

    earlier: Interval
    later: Interval
    since: float
    until: float


@dataclass(slots=True)
class _Hold:
    """Consecutive confirmations of one owner."""

    since: float
    confirmed: float
    valid_until: float
    adopted: str | None = None
    relied_until: float = math.inf
    """By a release or a loss."""


@dataclass(slots=True)
class _Owner:
    holds: list[_Hold] = field(default_factory=list)
    fenced_at: float = math.inf
    """When an owner of a later term began to take its lock over."""

    def end(self, at: float) -> None:
        """End its hold, if it has one. A confirmation that came later than `at` counts."""
        if self.holds and self.holds[-1].relied_until == math.inf:
            self.holds[-1].relied_until = max(self.holds[-1].confirmed, at)

    def intervals(self, name: str, drift: float) -> Iterator[tuple[_Hold, Interval]]:
        for hold in self.holds:
            until = min(hold.relied_until, hold.valid_until - drift, self.fenced_at)
            yield hold, Interval(name, hold.since, max(hold.since, until))


class LockAudit:
    """Reads a log event by event."""

    def __init__(self, drifts: Drifts) -> None:
        self.acquisitions: defaultdict[str, int] = defaultdict(int)
        """By lock."""
        self._drifts = drifts
        self._owners: defaultdict[str, defaultdict[str, _Owner]] = defaultdict(lambda: defaultdict(_Owner))
        """By lock and owner id."""
        self._seen: set[str] = set()

    def add(self, event: wire.AuditEventUnion) -> None:
        if event.event_id in self._seen or isinstance(event, wire.LockRefused):
            return
        self._seen.add(event.event_id)
        owners = self._owners[event.lock]
        owner = owners[event.owner]
        at = event.at.timestamp() * 1000
        match event:
            case wire.LockAcquired():
                self.acquisitions[event.lock] += 1
                if event.adopted is not None and event.fenced:
                    former = owners[event.adopted]
                    former.fenced_at = min(former.fenced_at, at - event.duration_ms)
                elif event.adopted is not None and event.handed_over:
                    owners[event.adopted].end(at - event.duration_ms)
                owner.holds.append(_Hold(at, at, event.valid_until, event.adopted))
            case wire.LockRenewed():
                last = owner.holds[-1] if owner.holds else None
                lapsed = last is not None and at + self._drifts.of(event.lock) > last.valid_until
                if last is None or lapsed or last.relied_until < math.inf:
                    owner.holds.append(_Hold(at, at, event.valid_until))
                else:
                    last.confirmed, last.valid_until = at, max(last.valid_until, event.valid_until)
            case wire.LockReleased():
                owner.end(at - event.duration_ms)
            case wire.LockLost():
                owner.end(at)
            case _:
                assert_never(event)

    def intervals(self, lock: str) -> list[Interval]:
        """Of all owners, in their order. Those of adopters begin where the intervals of their former owners end."""
        drift = self._drifts.of(lock)
        found: list[Interval] = []
        ends: dict[str, float] = {}
        adopters: list[tuple[str, Interval]] = []
        for name, owner in self._owners[lock].items():
            for hold, interval in owner.intervals(name, drift):
                ends[name] = max(ends.get(name, interval.until), interval.until)
                if hold.adopted is None:
                    found.append(interval)
                else:
                    adopters.append((hold.adopted, interval))
        for former, interval in adopters:
            since = max(interval.since, ends.get(former, interval.since))
            found.append(Interval(interval.owner, since, max(since, interval.until)))
        return sorted(found, key=lambda interval: interval.since)

    def overlaps(self, lock: str) -> list[Overlap]:
        """The violations: two owners at once, for longer than the drift."""
        found: list[Overlap] = []
        running: list[Interval] = []
        for interval in self.intervals(lock):
            running = [earlier for earlier in running if earlier.until > interval.since]
            for earlier in running:
                until = min(earlier.until, interval.until)
                if earlier.owner != interval.owner and until - interval.since > self._drifts.of(lock):
                    found.append(Overlap(earlier, interval, interval.since, until))
            running.append(interval)
        return found
