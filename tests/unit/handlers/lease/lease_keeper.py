"""An automaton whose inputs the test gives, and its states by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from lakewarden.handlers.lease.conditional import (
    Absent,
    Found,
    ReadOutcome,
    Throttled,
    Unknown,
    Won,
    WriteOutcome,
)
from lakewarden.handlers.lease.lock_object import LockRecord, parse, render
from lakewarden.handlers.lease.machine import (
    Acquire,
    AcquisitionHint,
    Effect,
    Get,
    Held,
    Idle,
    Input,
    LeaseSettings,
    Moment,
    Put,
    ReadDone,
    Release,
    ReleaseHint,
    State,
    Timer,
    WriteDone,
    deadline,
    lease_of,
    step,
)

E = TypeVar("E")
WALL = 1_700_000_000_000
"""Wall clock at monotonic 0."""
SETTINGS = LeaseSettings()


@dataclass
class Keeper:
    """One automaton with a clock. The test answers its requests."""

    settings: LeaseSettings = SETTINGS
    state: State = field(default_factory=Idle)
    now: float = 100.0
    effects: tuple[Effect, ...] = ()
    minted: int = 0
    jitter: float = 0.0
    requests: int = 0
    puts: list[Put] = field(default_factory=list)

    def at(self) -> Moment:
        self.minted += 1
        return Moment(self.now, self.wall, f"o{self.minted}", self.jitter)

    @property
    def wall(self) -> int:
        return WALL + round(self.now * 1000)

    def step(self, input_: Input) -> Keeper:
        self.state, self.effects = step(self.state, input_, self.settings)
        self.requests += len(self.of(Get)) + len(self.of(Put))
        self.puts += self.of(Put)
        return self

    def acquire(self, adopt: str | None = None) -> Keeper:
        return self.step(Acquire(self.at(), adopt))

    def release(self) -> Keeper:
        return self.step(Release(self.at()))

    def observe_release(self, ahead: int = 0) -> Keeper:
        return self.step(ReleaseHint(self.at(), ahead))

    def observe_acquisition(self, left: float) -> Keeper:
        return self.step(AcquisitionHint(self.at(), self.wall + round(left * 1000)))

    def timer(self) -> Keeper:
        """Advance the clock to the state's deadline."""
        due = deadline(self.state, self.settings)
        assert due is not None, self.state
        self.now = max(self.now, due)
        return self.step(Timer(self.at()))

    def reads(self, outcome: ReadOutcome | LockRecord, version: str = "v?", after: float = 0.01) -> Keeper:
        self.now += after
        if isinstance(outcome, LockRecord):
            outcome = Found(render(outcome), version)
        return self.step(ReadDone(self.at(), outcome))

    def writes(self, outcome: WriteOutcome, after: float = 0.01) -> Keeper:
        self.now += after
        return self.step(WriteDone(self.at(), outcome))

    def of(self, kind: type[E]) -> list[E]:
        return [each for each in self.effects if isinstance(each, kind)]

    def one(self, kind: type[E]) -> E:
        (found,) = self.of(kind)
        return found

    @property
    def put(self) -> Put:
        """The last write."""
        return self.puts[-1]

    @property
    def written(self) -> LockRecord:
        """The record of the last write."""
        record = parse(self.put.body)
        assert isinstance(record, LockRecord)
        return record

    def lease_seconds(self) -> float:
        lease = lease_of(self.state)
        assert lease is not None
        return lease.expires_at - self.now

    def lease_ends_next(self) -> bool:
        """Whether the next input ends the lease first."""
        return lease_of(self.state) is not None and self.lease_seconds() <= self.settings.margin


def held() -> Keeper:
    """It holds the lock under version v1."""
    keeper = Keeper().acquire().reads(Absent()).writes(Won("v1"))
    assert isinstance(keeper.state, Held)
    return keeper


def renewing() -> Keeper:
    """It has just sent a renewal."""
    return held().timer()


def foreign(left: float = 20.0, *, expired: bool = False, at: Keeper | None = None) -> LockRecord:
    """A record of another owner."""
    now = (at or Keeper()).wall
    return LockRecord(expired, now + round(left * 1000), "java")


STATES: dict[str, Callable[[], Keeper]] = {
    "idle": Keeper,
    "reading": lambda: Keeper().acquire(),
    "writing": lambda: Keeper().acquire().reads(Absent()),
    "held": held,
    "renewing": renewing,
    "reading back": lambda: renewing().writes(Unknown("timeout")),
    "waiting for a holder": lambda: Keeper().acquire().reads(foreign(), "f1"),
    "backing off": lambda: Keeper().acquire().reads(Throttled("503")),
    "releasing": lambda: held().release(),
}
