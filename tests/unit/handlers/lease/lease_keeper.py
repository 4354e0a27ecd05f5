"""An automaton whose inputs the test gives, its states by name, and its stories (`tests/unit/stories.py`).

    acquire; reads absent; writes won v1 → Confirmed what=acquired, is Held

| step | what happens |
| --- | --- |
| `acquire adopt=old ahead=2`, `release`, `timer` | these inputs; the timer is due |
| `state renewing`, `strict`, `owner_of_partition` | begins so: a state of `STATES`; the owner of a term `b` after `a` |
| `reads WHAT v7 left=20 after=0.01` | `absent`, `text`, an error, `another` (holds it), `released` (by another) |
| | `lapsed` (an hour ago), `old` (any owner), `ours` (our last write, `back=1`: the one before), `ours-released` |
| `writes WHAT v8 after=4` | `won`, `lost`, or an error: `unknown`, `throttled`, `refused`, `unusable` |
| `until LeaseEnded WHAT`, `for 60 WHAT` | answers each request so, until this effect, state or denial, or for so many seconds |
| | (`read-only`: a free lock, refused writes) |

| behind the arrow | the step |
| --- | --- |
| `is Held` | left this state |
| `lease`, `no lease` | left a lease on which the caller relies, or none |
| `put if-absent`, `put if v7`, `no put` | the last write had this condition; there was none |
| `wrote expired=True` | the record of the last write has this field |
| `denied refused-too-long 3`, `denied only refused` | `until` or `for` met so many denials of this kind, none of another |
| `waited≈10` | the last timer was due so long after the input before it |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from lakewarden.handlers.lease import types
from lakewarden.handlers.lease.conditional import (
    Absent,
    Found,
    IfAbsent,
    IfMatch,
    Lost,
    ReadOutcome,
    Refused,
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
    LeaseEnded,
    LeaseSettings,
    LockDenied,
    Moment,
    Put,
    ReadDone,
    Reading,
    Release,
    ReleaseHint,
    State,
    Timer,
    WriteDone,
    Writing,
    deadline,
    lease_of,
    step,
)
from tests.unit.stories import Language, fits, value

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
    waited: float = 0.0
    """How long the last timer was waited for."""
    denied: list[str] = field(default_factory=list)
    """The kinds of denials that a story's last loop has met."""

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

    def acquire(self, adopt: str | None = None, ahead: int = 0) -> Keeper:
        return self.step(Acquire(self.at(), adopt, ahead))

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
        self.waited = max(self.now, due) - self.now
        self.now += self.waited
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

    @property
    def lease_seconds(self) -> float:
        lease = lease_of(self.state)
        assert lease is not None
        return lease.expires_at - self.now

    def lease_ends_next(self) -> bool:
        """Whether the next input ends the lease first."""
        return lease_of(self.state) is not None and self.lease_seconds <= self.settings.margin


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


# -- stories

ERRORS: dict[str, Any] = {
    "unknown": Unknown("timeout"),
    "throttled": Throttled("503"),
    "refused": Refused("the store refused the request: status=400 code=ExpiredToken"),
    "unusable": Refused("longer than 1048576 bytes", unusable=True),
}


def _reads(
    k: Keeper, what: str, version: str = "v?", *, left: float = 20.0, after: float = 0.01, back: int = 0
) -> Keeper:
    if what in ERRORS:
        return k.reads(ERRORS[what], after=after)
    match what:
        case "absent":
            return k.reads(Absent(), after=after)
        case "text":
            return k.reads(Found(b"text", version), after=after)
        case "another":
            record = foreign(left)
        case "lapsed":
            record = foreign(-3600.0, at=k)
        case "released":
            record = foreign(left, expired=True)
        case "ours" | "ours-released":
            found = parse(k.puts[-1 - back].body)
            assert isinstance(found, LockRecord)
            record = replace(found, expired=found.expired or what == "ours-released")
        case owner:
            record = LockRecord(expired=False, valid_until=k.wall + round(left * 1000), owner=owner)
            after = 0.0
    return k.reads(record, version, after)


def _writes(k: Keeper, what: str, version: str = "v9", *, after: float = 0.01) -> Keeper:
    outcomes = {**ERRORS, "won": Won(version), "lost": Lost("412")}
    return k.writes(outcomes[what], after)


def _answer(k: Keeper, what: str, after: float) -> Keeper:
    """Answer the request that is outstanding, or fire the timer."""
    match k.state:
        case Reading():
            _reads(k, {"lost": "unknown", "read-only": "released"}.get(what, what), after=after)
        case Writing():
            _writes(k, "refused" if what == "read-only" else what, after=after)
        case _:
            k.timer()
    k.denied += [each.kind for each in k.of(LockDenied)]
    return k


def _until(k: Keeper, end: str, what: str, after: float = 0.01) -> Keeper:
    k.denied = []
    for _ in range(1_000):
        if any(type(each).__name__ == end for each in (k.state, *k.effects)) or end in k.denied:
            return k
        _answer(k, what, after)
    raise AssertionError(f"no {end}")


def _for(k: Keeper, seconds: float, what: str) -> Keeper:
    k.denied = []
    end = k.now + seconds
    while _answer(k, what, 0.01).now < end and not k.of(LeaseEnded):
        pass
    return k


def _pass(k: Keeper, seconds: float) -> Keeper:
    k.now += seconds
    return k


def _holds(k: Keeper, expected: str) -> bool:
    what, _, rest = expected.partition(" ")
    match what, rest:
        case "is", _:
            return type(k.state).__name__ == rest
        case "lease", _:
            return lease_of(k.state) is not None
        case "no", "lease":
            return lease_of(k.state) is None
        case "no", "put":
            return not k.puts
        case "put", "if-absent":
            return k.put.condition == IfAbsent()
        case "put", _:
            return k.put.condition == IfMatch(rest.removeprefix("if "))
        case "wrote", _:
            return all(fits(k.written, each) for each in rest.split())
        case _:
            kind, _, count = rest.removeprefix("only ").partition(" ")
            return k.denied.count(kind) == int(count) if count else {*k.denied} == {kind}


stories = Language(
    begin=Keeper,
    effects=(types,),
    argument=value,
    holds=_holds,
    verbs={
        "state": lambda _, *name: STATES[" ".join(name)](),
        "strict": lambda _: Keeper(replace(SETTINGS, strict=True)),
        "owner_of_partition": lambda _, strict=False: Keeper(
            replace(SETTINGS, owner_prefix="b-", fenced=("z-", "a-"), strict=strict)
        ),
        "settings": lambda _, **changed: Keeper(replace(SETTINGS, **changed)),
        "jitter": lambda _, jitter: Keeper(jitter=jitter),
        "reads": _reads,
        "writes": _writes,
        "until": _until,
        "for": _for,
        "pass": _pass,
    },
).stories
