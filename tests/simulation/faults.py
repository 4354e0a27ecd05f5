"""Injected faults: the fate of each request is drawn, and faults are frequent during some periods.

What the caller observes doesn't determine what the store did:

| fault | the store | the caller |
| --- | --- | --- |
| cut | never acts, acts, or acts much later | notices at once that the connection broke |
| silence | the same | gets no response until its own timeout |
| conflict | the same | gets 409 ConditionalRequestConflict |
| error | the same | gets 500 |
| throttle | never acts | gets 429, or 503 SlowDown |
| refusal | never acts | gets 400, 401 or 403: an expired session, a clock that is too far off |

"Much later" is up to `late_seconds`, which is several leases. The write then takes effect if its condition still holds,
whatever the caller has done since.

During a `FaultPeriod` all nodes are affected (outage, throttling, conflicts, a slow store, refusals), or one node: it is cut
off and its requests may arrive at the end of the period, or its requests are refused. Refusals occur in periods only. From
`fault_free_from` on there are no faults, but delayed requests still arrive.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal, TypeAlias, get_args

from lakewarden.handlers.lease.store_answers import Answer

Fault: TypeAlias = Literal["cut", "silence", "conflict", "error", "throttle"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
Side: TypeAlias = Literal["never acts", "acts", "acts later"]


PeriodKind: TypeAlias = Literal["outage", "throttling", "conflicts", "slow", "cut off", "refusals"]


@dataclass(frozen=True, slots=True)
class FaultPeriod:
    """A period with frequent faults of one kind."""

    what: PeriodKind
    since: float
    until: float
    node: str | None = None
    """The affected node; None: all nodes."""


@dataclass(frozen=True, slots=True)
class FaultProfile:
    """The distribution of a run's faults. Times in seconds."""

    latency: float
    """Median of one direction."""
    spread: float
    """Standard deviation of the latency's logarithm."""
    longest_latency: float
    fault: dict[Fault, float]
    """Probability of each fault per request."""
    late_seconds: float
    periods: tuple[FaultPeriod, ...]
    fault_free_from: float


@dataclass(frozen=True, slots=True)
class RequestFate:
    """What happens to one request, and when, in seconds from now. None: never."""

    acts: float | None
    answers: float | None
    """Counted from when the request took effect, or from now if `answer` is set."""
    answer: Answer | None = None
    """Replaces the store's answer."""
    breaks: float | None = None
    """When the caller notices that the connection broke."""
    fault: str = ""


class FaultInjector:
    """Draws the fate of each request."""

    def __init__(self, profile: FaultProfile, random: Random) -> None:
        self.profile = profile
        self._random = random

    def latency(self, now: float) -> float:
        """Draw the latency of one direction."""
        profile = self.profile
        slow = 8.0 if self._period(now, "slow") else 1.0
        drawn = slow * profile.latency * self._random.lognormvariate(0.0, profile.spread)
        return min(
            drawn, profile.longest_latency if now >= profile.fault_free_from else 40 * profile.longest_latency
        )

    def fate(self, node: str, *, writes: bool, now: float) -> RequestFate:
        """Draw the fate of a request that this node sends now."""
        there, back = self.latency(now), self.latency(now)
        if now >= self.profile.fault_free_from:
            return RequestFate(there, back)
        if (period := self._period(now, "cut off", node)) is not None:
            arrives = self._random.random() < 0.3
            return RequestFate(period.until - now + there if arrives else None, None, fault="cut off")
        if self._is_refused(node, now):
            return RequestFate(None, there + back, self._random.choice(REFUSALS), fault="refused")
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
        """Draw a delay: in half of the cases some round trips, in the other half any order of magnitude up to leases."""
        if self._random.random() < 0.5:
            return self._random.uniform(0, 12) * self.profile.latency
        return self.profile.late_seconds * float(10.0 ** self._random.uniform(-3.0, 0.0))

    def _is_refused(self, node: str, now: float) -> bool:
        period = self._period(now, "refusals") or self._period(now, "refusals", node)
        return period is not None and self._random.random() < 0.9

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
REFUSALS = (
    Answer(400, "ExpiredToken"),
    Answer(403, "RequestTimeTooSkewed"),
    Answer(403, "AccessDenied"),
    Answer(401, "Unauthorized"),
    Answer(307, "TemporaryRedirect"),
)
THROTTLES = (Answer(429, "TooManyRequests"), Answer(503, "SlowDown"))
ANSWERS: dict[str, Answer] = {
    "conflict": Answer(409, "ConditionalRequestConflict"),
    "error": Answer(500, "InternalError"),
}
