"""What becomes of requests: one draw a request, and spells of bad weather.

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

A spell is bad weather for a while: for everybody (outage, throttling, conflicts, a slow store) or for one node (it is
cut off, and what it sent may arrive when that is over). From `calm_from` on there are no faults; what is on its way stays so.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal, TypeAlias, get_args

from lakewarden.agent.stores.classify import Answer

Trouble: TypeAlias = Literal["cut", "silence", "conflict", "error", "throttle"]
TROUBLES: tuple[Trouble, ...] = get_args(Trouble)
Side: TypeAlias = Literal["never acts", "acts", "acts later"]


Weathers: TypeAlias = Literal["outage", "throttling", "conflicts", "slow", "cut off"]


@dataclass(frozen=True, slots=True)
class Spell:
    """Bad weather for a while."""

    what: Weathers
    since: float
    until: float
    node: str | None = None
    """Only for this one."""


@dataclass(frozen=True, slots=True)
class Climate:
    """What a run's weather is drawn from. Times in seconds."""

    latency: float
    """Median of one way."""
    spread: float
    """Of the latency's logarithm."""
    longest_latency: float
    trouble: dict[Trouble, float]
    """Chance of each, a request."""
    late_seconds: float
    spells: tuple[Spell, ...]
    calm_from: float


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of one request, in seconds from now; None: that never happens."""

    acts: float | None
    answers: float | None
    """From when it would have acted."""
    answer: Answer | None = None
    """In place of the store's own."""
    breaks: float | None = None
    """The caller notices that the connection is gone."""
    trouble: str = ""


class Weather:
    """Draws the fate of each request."""

    def __init__(self, climate: Climate, random: Random) -> None:
        self.climate = climate
        self._random = random

    def latency(self, now: float) -> float:
        """One way over the network."""
        climate = self.climate
        slow = 8.0 if self._spell(now, "slow") else 1.0
        drawn = slow * climate.latency * self._random.lognormvariate(0.0, climate.spread)
        return min(
            drawn, climate.longest_latency if now >= climate.calm_from else 40 * climate.longest_latency
        )

    def fate(self, node: str, *, writes: bool, now: float) -> Fate:
        """What becomes of a request that this node sends now."""
        there, back = self.latency(now), self.latency(now)
        if now >= self.climate.calm_from:
            return Fate(there, back)
        if (spell := self._spell(now, "cut off", node)) is not None:
            arrives = self._random.random() < 0.3
            return Fate(spell.until - now + there if arrives else None, None, trouble="cut off")
        trouble = self._trouble(now)
        if trouble is None:
            return Fate(there, back)
        if trouble == "throttle":
            return Fate(None, there + back, self._random.choice(THROTTLES), trouble=trouble)
        side: Side = self._random.choice(SIDES) if writes else "never acts"
        acts: float | None = there
        if side == "acts later":
            acts = there + self._lateness()
        elif side == "never acts":
            acts = None
        trouble_told = f"{trouble}, {side}"
        if trouble == "cut":
            return Fate(acts, None, breaks=there + back, trouble=trouble_told)
        if trouble == "silence":
            return Fate(acts, None, trouble=trouble_told)
        return Fate(acts, there + back, ANSWERS[trouble], trouble=trouble_told)

    def _lateness(self) -> float:
        """As often within what the caller does next, a few round trips, as of any order of magnitude up to leases."""
        if self._random.random() < 0.5:
            return self._random.uniform(0, 12) * self.climate.latency
        return self.climate.late_seconds * float(10.0 ** self._random.uniform(-3.0, 0.0))

    def _trouble(self, now: float) -> Trouble | None:
        for what, troubles in SPELLS.items():
            if self._spell(now, what) and self._random.random() < 0.9:
                return self._random.choice(troubles)
        drawn = self._random.random()
        for trouble, chance in self.climate.trouble.items():
            drawn -= chance
            if drawn < 0:
                return trouble
        return None

    def _spell(self, now: float, what: str, node: str | None = None) -> Spell | None:
        for spell in self.climate.spells:
            if spell.what == what and spell.since <= now < spell.until and spell.node == node:
                return spell
        return None


SIDES: tuple[Side, ...] = get_args(Side)
SPELLS: dict[str, tuple[Trouble, ...]] = {
    "outage": ("silence", "cut", "error"),
    "throttling": ("throttle",),
    "conflicts": ("conflict",),
}
THROTTLES = (Answer(429, "TooManyRequests"), Answer(503, "SlowDown"))
ANSWERS: dict[str, Answer] = {
    "conflict": Answer(409, "ConditionalRequestConflict"),
    "error": Answer(500, "InternalError"),
}
