"""The inputs, effects and states of the lock's automaton. Its rules are in `machine.py`.

Two rules that `placement.py` has, too, are here: how long to wait after a failure, and when a refusal lasts.

Each step of a lock has one word, from here to what users see:

| word | effect | audit event | log line | input of the table | abort |
| --- | --- | --- | --- | --- | --- |
| acquired, renewed | `Confirmed` | `lock-acquired`, `lock-renewed` | `lock.acquired`, `lock.renewed` | `LockConfirmed` | – |
| released | `Released` | `lock-released` | `lock.released`; not confirmed: `lock.not-released` | – | – |
| lost | `LeaseEnded` | `lock-lost` | `lock.lost` | `LockFailed` | `lease-lost` of a granted one |
| waiting | `LockDenied` | `lock-refused`, `waiting` | `lock.waiting` | – | – |
| refused | `LockDenied` | `lock-refused` | `lock.refused` | – | – |
| refused-too-long | `LockDenied` | `lock-refused` | `lock.refused-too-long` | `LockFailed` | `lock-refused` |
| unusable | `LockDenied` | `lock-refused` | `lock.unusable` | `LockFailed` | `lease-lost`, `not-allowed` |

Time and randomness are part of the inputs (`Moment`). A request is outstanding in exactly the states `Reading` and `Writing`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from lakewarden.handlers.lease.conditional import Condition, ReadOutcome, WriteOutcome
from lakewarden.handlers.lease.lock_object import LockRecord


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Durations in seconds, and whose locks they are. `agent/settings.py` validates the ratios."""

    validity: float = 30.0
    """Length of a lease."""
    renew_interval: float = 3.0
    drift: float = 0.5
    """The largest assumed difference between the clocks of two contenders."""
    margin: float = 2.0
    """How long before its end an unconfirmed lease counts as lost."""
    poll_seconds: float = 10.0
    """The longest wait between two reads while another owner holds the lock."""
    refusal_seconds: float = 120.0
    """How long the store may refuse the lock before the machine reports that the refusal lasts."""
    min_refusals: int = 3
    """Refused requests that a refusal has at least to be reported as `refused-too-long`."""
    unusable_seconds: float = 30.0
    """The wait before an unusable lock is read again. Only an operator can make it usable."""
    release_tries: int = 5
    failures_per_report: int = 5
    """After each so many failed requests in a row, the automaton reports why it doesn't hold the lock yet."""
    queue_slot_seconds: float = 0.25
    """How long a contender waits for each contender ahead of it, after the lock was released."""
    strict: bool = False
    """Whether a lapsed lock must also have been observed unchanged for a whole lease before it is acquired."""
    owner_prefix: str = ""
    """How our owner ids begin (`lock_object.py`)."""
    fenced: tuple[str, ...] = ()
    """How the owner ids of former owners begin whose grants don't count any more (see Adoption)."""

    @property
    def drift_ms(self) -> int:
        return round(self.drift * 1000)

    def next_wait(self, tries: int, jitter: float) -> float:
        """Seconds before the next request, after so many in a row that failed. `jitter`: uniform in [0, 1)."""
        return min(self.renew_interval, 0.05 * 2.0 ** min(tries, 8)) * (0.5 + jitter / 2)


@dataclass(frozen=True, slots=True)
class Moment:
    """The current time, and the randomness that this step may use."""

    now: float
    """Monotonic seconds."""
    wall_ms: int
    """Epoch milliseconds, as written into the lock object."""
    new_owner_id: str
    """An owner id that no lease has used before."""
    jitter: float
    """Uniform in [0, 1)."""


# -- inputs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Acquire:
    """The caller needs the lock. `adopt` names an owner whose live lease may be adopted (see Adoption)."""

    at: Moment
    adopt: str | None = None
    ahead: int = 0
    """The number of other contenders in the queue (`lock_queue.py`)."""


@dataclass(frozen=True, slots=True)
class Release:
    """The caller no longer needs the lock."""

    at: Moment


@dataclass(frozen=True, slots=True)
class ReadDone:
    """The store's answer to `Get`."""

    at: Moment
    outcome: ReadOutcome


@dataclass(frozen=True, slots=True)
class WriteDone:
    """The store's answer to `Put`."""

    at: Moment
    outcome: WriteOutcome


@dataclass(frozen=True, slots=True)
class Timer:
    """The time `deadline(state)` has come."""

    at: Moment


@dataclass(frozen=True, slots=True)
class ReleaseHint:
    """Another agent published that it released the lock. A hint: only the lock object decides."""

    at: Moment
    ahead: int
    """The number of contenders ahead of this one."""


@dataclass(frozen=True, slots=True)
class AcquisitionHint:
    """Another agent published that it holds the lock until `valid_until` (epoch milliseconds). A hint, too."""

    at: Moment
    valid_until: int


Input: TypeAlias = Acquire | Release | ReadDone | WriteDone | Timer | ReleaseHint | AcquisitionHint


# -- effects -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Get:
    """Read the object. The answer is `ReadDone`."""


@dataclass(frozen=True, slots=True)
class Put:
    """Write the object if the condition holds. The answer is `WriteDone`."""

    body: bytes
    condition: Condition


@dataclass(frozen=True, slots=True)
class Cost:
    """The number of requests that a step needed, and when it began (monotonic seconds). Published with the step."""

    requests: int
    since: float


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The lease is confirmed. The caller may rely on it until its end."""

    what: Literal["acquired", "renewed"]
    lease: Lease
    cost: Cost


@dataclass(frozen=True, slots=True)
class Released:
    """The lock is released. `why`: the release was not confirmed, and the lease is left to lapse."""

    owner: str
    valid_until: int
    cost: Cost
    why: str | None = None


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """The lease is lost, or was not confirmed in time. The caller must stop relying on it now."""

    owner: str
    valid_until: int
    cost: Cost
    why: str
    holder: str | None = None


@dataclass(frozen=True, slots=True)
class LockDenied:
    """The lock can't be acquired or renewed now. Kinds other than waiting: see Refusals in `machine.py`."""

    why: str
    kind: Literal["waiting", "refused", "refused-too-long", "unusable"]
    cost: Cost
    holder: str | None = None
    held_until: int | None = None


Effect: TypeAlias = Get | Put | Confirmed | Released | LeaseEnded | LockDenied


# -- states ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FormerOwner:
    """An owner whose lease was adopted. It may be alive and rely on its lease until `until` (see Adoption)."""

    owner: str
    until: float
    """Monotonic seconds, including the drift. Without a quiet time: the time of the adoption."""
    fenced: bool = False
    """Whether none of its later grants counts, so that there is no quiet time."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that the caller may rely on. Times are monotonic seconds."""

    record: LockRecord
    version: str
    expires_at: float
    """The end of the lease minus the drift."""
    renew_at: float
    former: FormerOwner | None = None
    """The adopted owner, if its lease had not ended when this one was confirmed, or if it has just been fenced."""

    @property
    def quiet_until(self) -> float:
        """Before this time, the lease covers only grants that ran under the former owner."""
        return 0.0 if self.former is None else self.former.until


@dataclass(frozen=True, slots=True)
class SeenVersion:
    """A version of another owner's lock, and since when (monotonic seconds) every read found it."""

    version: str
    since: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """A series of refused requests. It ends when the lease is confirmed, or another owner is found to hold the lock."""

    since: float
    """Monotonic seconds of the first one."""
    requests: int
    why: str
    """The last answer."""

    @classmethod
    def after(cls, before: Refusal | None, now: float, why: str) -> Refusal:
        """The series with one more refused request; a new one if there is none."""
        return cls(now, 1, why) if before is None else cls(before.since, before.requests + 1, why)

    def lasts(self, now: float, settings: LeaseSettings) -> bool:
        """Whether it is long enough to be reported as `refused-too-long`, and not as something that is corrected elsewhere."""
        return self.requests >= settings.min_refusals and now - self.since >= settings.refusal_seconds


@dataclass(frozen=True, slots=True)
class Work:
    """The work in progress between `Idle` and `Held`, and the facts that later steps need.

    | needed | lease | release | what it does |
    | --- | --- | --- | --- |
    | yes | – | – | acquires the lock (`acquiring`) |
    | yes | live | – | renews the lease, and relies on it |
    | no, or again | – | record | releases the lock (`releasing`) |
    | no | – | – | releases the lock if a write with an unknown outcome turns out to have acquired it |
    """

    cost: Cost
    needed: bool = True
    lease: Lease | None = None
    """The lease that the caller still relies on."""
    release: LockRecord | None = None
    """The live record to release."""
    tries: int = 0
    """Number of requests in a row that were lost, unknown or throttled."""
    adopt: str | None = None
    """The owner whose lease may be adopted."""
    ahead: int = 0
    """The number of contenders ahead, if the lock must be released first and then acquired again."""
    ahead_at_release: int | None = None
    """Set if a `ReleaseHint` arrived while a read was outstanding: the number of contenders ahead at that time."""
    observed: SeenVersion | None = None
    own_id: str | None = None
    """The owner id of our last write. A record with it is ours."""
    former: FormerOwner | None = None
    """Kept after unknown writes, and after the lease is lost."""
    read_by: float | None = None
    """Hints don't delay the next read beyond this time, in monotonic seconds. Set by the first hint that delays it."""
    in_doubt: Condition | None = None
    """The condition of our write whose outcome is unknown (see Writes)."""
    refusal: Refusal | None = None
    """Set while the store refuses the requests that acquire or renew."""

    @property
    def acquiring(self) -> bool:
        """Whether it tries to acquire the lock: the caller needs it, and there is no lease, and nothing to release."""
        return self.needed and self.lease is None and self.release is None

    @property
    def releasing(self) -> bool:
        """Whether it releases what it finds of ours."""
        return self.release is not None or not self.needed


@dataclass(frozen=True, slots=True)
class Idle:
    """Neither held nor needed. The fields are those of `Work` that later steps need."""

    own_id: str | None = None
    former: FormerOwner | None = None
    in_doubt: Condition | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """The lease is confirmed, and no request is outstanding. The renewal comes next."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Reading:
    """A read is outstanding."""

    work: Work


@dataclass(frozen=True, slots=True)
class Writing:
    """A write of this record is outstanding, sent at `sent_at` (monotonic seconds)."""

    work: Work
    record: LockRecord
    condition: Condition
    sent_at: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """No request is outstanding. The object is read again at `until` (monotonic seconds)."""

    work: Work
    until: float


State: TypeAlias = Idle | Held | Reading | Writing | Waiting
Step: TypeAlias = tuple[State, tuple[Effect, ...]]
