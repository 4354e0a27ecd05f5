"""What a store may answer to a conditional write, and to the read that settles a doubt about one.

A store that honours conditions is all the lock rests on, so its answers are values here and never
exceptions: **won, lost, throttled, unknown** for a write (never two of them), and *refused* for what
no retry can mend. Which HTTP status means which is the store's business (`lakewarden.agent.stores`);
what each means for the lock is the automaton's (`lease.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class IfAbsent:
    """Write only if no object is there."""


@dataclass(frozen=True, slots=True)
class IfMatch:
    """Write only over the very version that was read."""

    version: str


Condition: TypeAlias = IfAbsent | IfMatch


@dataclass(frozen=True, slots=True)
class Won:
    """The write took effect; `version` names what is there now."""

    version: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The condition did not hold (412, or 404 on if-match): nothing was written by this request."""

    why: str


@dataclass(frozen=True, slots=True)
class Throttled:
    """The store said "slow down" (429, 503 SlowDown) before it acted."""

    why: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The write may or may not have taken effect (timeout, reset, 5xx, 409): read it back, never guess."""

    why: str


@dataclass(frozen=True, slots=True)
class Refused:
    """No retry can mend it (400, 403, no such bucket): somebody has to change something."""

    why: str


WriteOutcome: TypeAlias = Won | Lost | Throttled | Unknown | Refused


@dataclass(frozen=True, slots=True)
class Absent:
    """No object is there."""


@dataclass(frozen=True, slots=True)
class Found:
    """Body and version as one read returned them."""

    body: bytes
    version: str


ReadOutcome: TypeAlias = Absent | Found | Throttled | Unknown | Refused
