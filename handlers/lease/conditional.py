"""The answers of a store to a conditional write, and to the read that resolves an unknown one.

The lock depends on nothing but a store that honours conditions. So the store's answers are values, never exceptions:

    answer       the write                                          the automaton
    Won          took effect                                        continues with the new version
    Lost         did not take effect: the condition did not hold    reads the object back
    Throttled    did not take effect: the store had too much load   retries after a back-off
    Unknown      took effect or not                                 reads the object back
    Refused      did not take effect: the store rejected it         retries it; reports it if it lasts, or if it is unusable

The stores (`lakewarden.agent.stores`) define which HTTP status is which answer. `machine.py` has the automaton.
"""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class IfAbsent:
    """Write only if the object does not exist."""


@dataclass(frozen=True, slots=True)
class IfMatch:
    """Write only if the object still has this version."""

    version: str


Condition: TypeAlias = IfAbsent | IfMatch


@dataclass(frozen=True, slots=True)
class Won:
    """The write took effect. `version` is the object's version now."""

    version: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The condition did not hold (412, or 404 for if-match). This request wrote nothing."""

    why: str


@dataclass(frozen=True, slots=True)
class Throttled:
    """The store rejected the request before it acted (429, 503 SlowDown)."""

    why: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The write took effect or not (timeout, connection reset, 5xx, 409). The caller must read the object back."""

    why: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The store rejected the request before it acted (400, 401, 403, 307, no such bucket).

    It may accept a later one: an expired session or a wrong clock is corrected elsewhere.
    """

    why: str
    unusable: bool = False
    """No later request will succeed: the object can't be a lock, or the store ignores conditions."""


WriteOutcome: TypeAlias = Won | Lost | Throttled | Unknown | Refused


@dataclass(frozen=True, slots=True)
class Absent:
    """The object does not exist."""


@dataclass(frozen=True, slots=True)
class Found:
    """The object's body and version, from one read."""

    body: bytes
    version: str


ReadOutcome: TypeAlias = Absent | Found | Throttled | Unknown | Refused
