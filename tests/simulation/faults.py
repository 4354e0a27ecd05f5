"""What becomes of requests: one draw a request, and periods of bad weather.

Each fault has two sides, because what the caller hears says nothing about what the store did:

| fault | the store | the caller hears |
| --- | --- | --- |
| cut | never acts, acts, or acts much later | that the connection broke, at once |
| silence | likewise | nothing, until its own timeout |
| conflict | likewise | 409 ConditionalRequestConflict |
| error | likewise | 500 |
| throttle | never acts | 429, or 503 SlowDown |

"Much later" is up to `late_seconds`, several leases: whatever the caller has done about it by then, its write still lands if
its condition holds.

A period is bad weather for a while: for everybody (outage, throttling, conflicts, a slow store) or for one node (it is
cut off, and what it sent may arrive when that is over). From `fault_free_from` on there are no faults; what is on its way stays so.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal, TypeAlias, get_args

from lakewarden.agent.stores.classify import Answer

Fault: TypeAlias = Literal["cut", "silence", "conflict", "error", "throttle"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
Side: TypeAlias = Literal["never acts", "acts", "acts later"]


PeriodKind: TypeAlias = Literal["outage", "throttling", "conflicts", "slow", "cut off"]


@dataclass(frozen=True, slots=True)
class FaultPeriod:
    """Bad weather for a while."""

    what: PeriodKind
    since: float
    until: float
    node: str | None = None
    """Only for this one."""


@dataclass(frozen=True, slots=True)
class FaultProfile:
    """What a run's weather is drawn from. Times in seconds."""

    latency: float
    """Median of one way."""
    spread: float
    """Of the latency's logarithm."""
    longest_latency: float
    fault: dict[Fault, float]
    """Chance of each, a request."""
    late_seconds: float
    periods: tuple[FaultPeriod, ...]
    fault_free_from: float


@dataclass(frozen=True, slots=True)
class RequestFate:
    """What becomes of one request, in seconds from now; None: that never happens."""

    acts: float | None
    answers: float | None
    """From when it would have acted."""
    answer: Answer | None = None
    """In place of the store's own."""
    breaks: float | None = None
    """The caller notices that the connection is gone."""
    fault: str = ""


class FaultInjector:
    """Draws the fate of each request."""

    def __init__(self, profile: FaultProfile, random: Random) -> None:
        self.profile = profile
        self._random = random

    def latency(self, now: float) -> float:
        """One way over the network."""
        profile = self.profile
        slow = 8.0 if self._period(now, "slow") else 1.0
        drawn = slow * profile.latency * self._random.lognormvariate(0.0, profile.spread)
        return min(
            drawn, profile.longest_latency if now >= profile.fault_free_from else 40 * profile.longest_latency
        )

    def fate(self, node: str, *, writes: bool, now: float) -> RequestFate:
        """What becomes of a request that this node sends now."""
        there, back = self.latency(now), self.latency(now)
        if now >= self.profile.fault_free_from:
            return RequestFate(there, back)
        if (period := self._period(now, "cut off", node)) is not None:
            arrives = self._random.random() < 0.3
            return RequestFate(period.until - now + there if arrives else None, None, fault="cut off")
        fault = self._draw_fault(now)
        if fault is None:
            return RequestFate(there, back)
        if fault == "throttle":
            return RequestFate(None, there + back, self._random.choice(THROTTLES), fault=fault)
        side: Side = self._random.choice(SIDES) if writes else "never acts"
        acts: float | None = there
        if side == "acts later":
            acts = there + self._lateness()
        elif side == "never acts":
            acts = None
        description = f"{fault}, {side}"
        if fault == "cut":
            return RequestFate(acts, None, breaks=there + back, fault=description)
        if fault == "silence":
            return RequestFate(acts, None, fault=description)
        return RequestFate(acts, there + back, ANSWERS[fault], fault=description)

    def _lateness(self) -> float:
        """As often within what the caller does next, a few round trips, as of any order of magnitude up to leases."""
        if self._random.random() < 0.5:
            return self._random.uniform(0, 12) * self.profile.latency
        return self.profile.late_seconds * float(10.0 ** self._random.uniform(-3.0, 0.0))

    def _draw_fault(self, now: float) -> Fault | None:
        for what, faults in PERIOD_FAULTS.items():
            if self._period(now, what) and self._random.random() < 0.9:
                return self._random.choice(faults)
        drawn = self._random.random()
        for fault, chance in self.profile.fault.items():
            drawn -= chance
            if drawn < 0:
                return fault
        return None

    def _period(self, now: float, what: str, node: str | None = None) -> FaultPeriod | None:
        for period in self.profile.periods:
            if period.what == what and period.since <= now < period.until and period.node == node:
                return period
        return None


SIDES: tuple[Side, ...] = get_args(Side)
PERIOD_FAULTS: dict[str, tuple[Fault, ...]] = {
    "outage": ("silence", "cut", "error"),
    "throttling": ("throttle",),
    "conflicts": ("conflict",),
}
THROTTLES = (Answer(429, "TooManyRequests"), Answer(503, "SlowDown"))
ANSWERS: dict[str, Answer] = {
    "conflict": Answer(409, "ConditionalRequestConflict"),
    "error": Answer(500, "InternalError"),
}
