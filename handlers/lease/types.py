"""What goes into the lock's automaton, what comes out of it, and where it can be in between; the rules are in `lease.py`.

Time and chance arrive inside the inputs (`Moment`). A request is outstanding in exactly `Reading` and `Writing`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from lakewarden.handlers.lease.conditional import Condition, ReadOutcome, WriteOutcome
from lakewarden.handlers.lease.lock_object import LockRecord


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Lengths in seconds; their ratios are validated where the configuration is read."""

    validity: float = 30.0
    renew_interval: float = 3.0
    drift: float = 0.5
    margin: float = 2.0
    """A lease in doubt is given up this long before its end."""
    poll_seconds: float = 10.0
    """How long a foreign holder is left alone before the object is read again."""
    refused_seconds: float = 30.0
    release_tries: int = 5
    failures_per_report: int = 5
    """Every so many failed tries in a row it is told why the lock could not be taken yet."""
    queue_slot_seconds: float = 0.25
    """How long each contender that waits before us is given once the lock is free."""
    strict: bool = False
    """Whether a lapsed lock must also have been seen unchanged for a whole lease before it is taken over."""

    @property
    def drift_ms(self) -> int:
        """The drift as the lock object counts time."""
        return round(self.drift * 1000)


@dataclass(frozen=True, slots=True)
class Moment:
    """Now, as the shell sees it, with the chance that this step may use."""

    now: float
    """Monotonic seconds."""
    wall_ms: int
    """Epoch milliseconds, as they are written into the object."""
    new_owner_id: str
    """An owner id that was never used before."""
    jitter: float
    """Uniform in [0, 1)."""


# -- inputs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Acquire:
    """The lock is needed. `adopt` names an owner whose live lease may be taken over (see Adoption)."""

    at: Moment
    adopt: str | None = None
    ahead: int = 0
    """How many others are known to wait for it already (`turns.py`)."""


@dataclass(frozen=True, slots=True)
class Release:
    """The lock is needed no more."""

    at: Moment


@dataclass(frozen=True, slots=True)
class ReadDone:
    """Answer to `Get`."""

    at: Moment
    outcome: ReadOutcome


@dataclass(frozen=True, slots=True)
class WriteDone:
    """Answer to `Put`."""

    at: Moment
    outcome: WriteOutcome


@dataclass(frozen=True, slots=True)
class Timer:
    """`deadline(state)` has come."""

    at: Moment


@dataclass(frozen=True, slots=True)
class ReleaseObserved:
    """Another agent says that it released the lock. A hint: what the object says decides."""

    at: Moment
    ahead: int
    """How many others wait before us."""


@dataclass(frozen=True, slots=True)
class AcquisitionObserved:
    """Another agent says that it holds the lock until `valid_until`. A hint, as above."""

    at: Moment
    valid_until: int


Input: TypeAlias = Acquire | Release | ReadDone | WriteDone | Timer | ReleaseObserved | AcquisitionObserved


# -- effects -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Get:
    """Read the object; answer with `ReadDone`."""


@dataclass(frozen=True, slots=True)
class Put:
    """Write the object under the condition; answer with `WriteDone`."""

    body: bytes
    condition: Condition


@dataclass(frozen=True, slots=True)
class Cost:
    """What a step took: for the audit."""

    requests: int
    since: float


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The lease may be relied upon, until its end."""

    what: Literal["acquired", "renewed"]
    lease: Lease
    cost: Cost


@dataclass(frozen=True, slots=True)
class Released:
    """The lock is free, or left to lapse (`why`)."""

    owner: str
    valid_until: int
    cost: Cost
    why: str | None = None


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """The lease is not ours any more, or could not be confirmed in time: stop relying on it now."""

    owner: str
    valid_until: int
    cost: Cost
    why: str
    holder: str | None = None


@dataclass(frozen=True, slots=True)
class LockDenied:
    """The lock can't be had now; `fatal` if only a person can change that."""

    why: str
    fatal: bool
    cost: Cost
    holder: str | None = None
    held_until: int | None = None


Effect: TypeAlias = Get | Put | Confirmed | Released | LeaseEnded | LockDenied


# -- states ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FormerOwner:
    """An owner that was adopted. It may be alive, and believe in its lease until that has ended (see Adoption)."""

    owner: str
    until: float
    """Monotonic; the drift is already added."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that we may rely on. Times are monotonic."""

    record: LockRecord
    version: str
    expires_at: float
    """The drift is already taken off."""
    renew_at: float
    former: FormerOwner | None = None
    """Whose lease had not ended yet when this one was confirmed."""

    @property
    def quiet_until(self) -> float:
        """Before this only a grant that ran under the former owner is covered."""
        return 0.0 if self.former is None else self.former.until


@dataclass(frozen=True, slots=True)
class ObservedVersion:
    """A version of somebody else's, and since when (monotonic) nothing else was seen."""

    version: str
    since: float


@dataclass(frozen=True, slots=True)
class Work:
    """What is going on between idle and held, and what must not be forgotten meanwhile.

    | wanted | lease | release | |
    | --- | --- | --- | --- |
    | yes | – | – | it is being taken (`acquiring`) |
    | yes | live | – | it is being renewed, and relied upon |
    | no, or again | – | record | it is being given back (`releasing`) |
    | no | – | – | likewise, if a write whose outcome isn't known turns out to have taken it |
    """

    cost: Cost
    needed: bool = True
    lease: Lease | None = None
    """Still relied upon."""
    release: LockRecord | None = None
    """The live record that is to be released."""
    tries: int = 0
    """Losses, doubts and throttlings in a row."""
    adopt: str | None = None
    """The owner that may be adopted."""
    ahead: int = 0
    """Others whose turn comes before ours, once the lock has been given back that we want again."""
    ahead_at_release: int | None = None
    """How many were before us when the lock was heard to be released while our read was under way."""
    observed: ObservedVersion | None = None
    own_id: str | None = None
    """The owner id that we wrote last: finding it is never somebody else."""
    former: FormerOwner | None = None
    """It outlives doubts about our own writes, and our lease."""
    in_doubt: Condition | None = None
    """Under which condition a write of ours was sent whose fate is not known (see Writes)."""

    @property
    def acquiring(self) -> bool:
        """Nothing of ours is relied upon or to be released."""
        return self.needed and self.lease is None and self.release is None

    @property
    def releasing(self) -> bool:
        """What is found of ours is released."""
        return self.release is not None or not self.needed


@dataclass(frozen=True, slots=True)
class Idle:
    """Not held, not wanted; what must not be forgotten is as in `Work`."""

    own_id: str | None = None
    former: FormerOwner | None = None
    in_doubt: Condition | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """Held and settled; the next thing is the renewal."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Reading:
    """A read is outstanding."""

    work: Work


@dataclass(frozen=True, slots=True)
class Writing:
    """A write is outstanding: this record, sent at this time."""

    work: Work
    record: LockRecord
    condition: Condition
    sent_at: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing is outstanding until `until`; then the object is read again."""

    work: Work
    until: float


State: TypeAlias = Idle | Held | Reading | Writing | Waiting
Step: TypeAlias = tuple[State, tuple[Effect, ...]]
