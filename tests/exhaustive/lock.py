"""Every order of what agents, Hudi's lock provider and a store can do with one lock object.

The agents run `lease.step`. A request acts in the store at any time after it was sent, once, and its answer arrives at any time
after that, so both may be late by more than a lease. A timer runs at any time after it is due, so an agent may be paused for as
long as the others go on. True time passes in ticks of one second; the settings are scaled so that thresholds fall between ticks.

Faults, each at the cost of one of `faults`:

| fault | what happens |
| --- | --- |
| an answer is lost | the outcome is unknown. A write that has not acted yet may act later, or never |
| `412` after the write acted | a proxy has sent it twice, and the second one lost |
| `503`, `403` | the request is throttled, or refused, and acts never |
| a kill | the agent begins again, and knows nothing. Its writers rely on its lease until its end |
| an odd object | another program overwrites the lock with what is no lock record |
| a hint | another agent seems to have acquired or released the lock, whether it has or not; or a queue seems to wait for it |

What may never happen:

| promise | broken if |
| --- | --- |
| one holder | two contenders rely on the lock at one moment of true time, by their own clocks |
| no stealing | a write replaces the record of a contender that relies on it, except by adoption, or of one that is fenced |
| confirmed is real | a lease is confirmed under a version that the store never had |
| odd objects stay | an agent overwrites what is no lock record |
| no self-block | a lone agent finds another owner in the lock |
| no idle holder | an agent keeps a lock that it has released |
| no crash | the automaton raises |
| bounded wait | from some state, one doesn't get the lock in time while the others do nothing (`overdue`) |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

from lakewarden.handlers.lease import machine as lease
from lakewarden.handlers.lease.conditional import (
    Absent,
    Condition,
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
from lakewarden.handlers.lease.lock_object import LockRecord, Malformed, parse, render
from lakewarden.handlers.lease.types import (
    Acquire,
    AcquisitionHint,
    Confirmed,
    Cost,
    FormerOwner,
    Get,
    Held,
    Idle,
    Input,
    Lease,
    LeaseEnded,
    LeaseSettings,
    LockDenied,
    Moment,
    Put,
    ReadDone,
    Reading,
    Refusal,
    Release,
    ReleaseHint,
    SeenVersion,
    State,
    Timer,
    Waiting,
    WriteDone,
    Writing,
)
from tests.exhaustive.engine import BrokenError, Form, Steps, field_names

EPOCH_MS = 1_800_000_000_000
FAR = 20
"""Ticks: later than any time that a contender waits for."""
PASSES = "a second passes"
MANY = 10
"""Other contenders of a hint's queue."""
ODD = b"{}"
"""An object that is no lock record."""
SCALED = LeaseSettings(
    validity=4.0,
    renew_interval=1.0,
    drift=1.2,
    margin=0.3,
    poll_seconds=2.0,
    refusal_seconds=2.0,
    min_refusals=2,
    unusable_seconds=2.0,
    release_tries=2,
    queue_slot_seconds=1.0,
)


@dataclass(frozen=True, slots=True)
class Contender:
    """How one agent, or Hudi's provider, differs from another."""

    wall: float = 0.0
    """Seconds by which its wall clock is ahead of true time."""
    rate: float = 1.0
    """Seconds of its monotonic clock for each second of true time."""
    hudi: bool = False
    adopts: bool = False
    """The log names the present holder as that of a running grant."""
    term: str = ""
    """Begins its owner ids."""
    fences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """A request that is not answered. `outcome`: it has acted."""

    effect: Get | Put
    outcome: ReadOutcome | WriteOutcome | None = None


@dataclass(frozen=True, slots=True)
class Local:
    """A lock as Hudi's provider keeps it in memory."""

    record: LockRecord
    version: str


@dataclass(frozen=True, slots=True)
class Hudi:
    """Hudi's provider, by the rules of `tests/simulation/hudi.py`."""

    doing: Literal["idle", "reading", "acquiring", "holding", "renewing", "releasing"] = "idle"
    local: Local | None = None
    """The lock that it believes to hold."""


@dataclass(frozen=True, slots=True)
class Process:
    """One contender."""

    state: State | Hudi = field(default_factory=Idle)
    request: Request | None = None
    wanted: bool = False
    owners: int = 0
    """Owner ids that it has used. No part of the form."""
    relies_until: float = -1.0
    """Until when the writers of its former lives rely on its lease, in true time."""
    fenced: bool = False
    """Another owner of its partition has replaced its record, so its grants don't count any more."""


@dataclass(frozen=True, slots=True)
class World:
    """The lock object, and its contenders."""

    processes: tuple[Process, ...]
    body: bytes | None = None
    version: int = 0
    now: int = 0
    strays: tuple[tuple[int, Put], ...] = ()
    """Writes of these contenders whose answer was lost before they acted."""
    faults: int = 0


@dataclass(frozen=True)
class Lock:
    """The model. `faults`: so many of these kinds."""

    contenders: tuple[Contender, ...]
    settings: LeaseSettings = SCALED
    faults: int = 0
    kinds: frozenset[str] = frozenset({"lost", "false 412", "503", "kill"})
    held: bool = False
    """The lock has a holder that is dead."""
    hudi_buffer: float = 0.6
    """Hudi's tolerance beyond the end of another owner's lease: half the drift."""

    def begin(self) -> World:
        processes = tuple(Process(Hudi() if each.hudi else Idle()) for each in self.contenders)
        if not self.held:
            return World(processes, faults=self.faults)
        dead = LockRecord(expired=False, valid_until=EPOCH_MS + self._validity_ms, owner="dead")
        return World(processes, render(dead), 1, faults=self.faults)

    # -- steps

    def steps(self, world: World) -> Steps[World]:
        for number, process in enumerate(world.processes):
            yield from self._of_request(world, number, process)
            if isinstance(process.state, Hudi):
                yield from self._of_hudi(world, number, process, process.state)
            else:
                yield from self._of_agent(world, number, process, process.state)
        for place, (number, put) in enumerate(world.strays):
            rest = world.strays[:place] + world.strays[place + 1 :]
            yield (
                f"{place}: a lost write of {number} acts",
                _later(self._act, replace(world, strays=rest), number, put),
            )
        if world.faults and "odd" in self.kinds and world.body != ODD:
            odd = replace(world, body=ODD, version=world.version + 1, faults=world.faults - 1)
            yield "another program overwrites the object", lambda: odd
        yield PASSES, lambda: replace(world, now=world.now + 1)

    def _of_request(self, world: World, number: int, process: Process) -> Steps[World]:
        request = process.request
        if request is None:
            return
        kind = type(request.effect).__name__.lower()
        if request.outcome is not None:
            yield (
                f"{number} gets its answer to the {kind}",
                _later(self._answer, world, number, request.outcome),
            )
        elif isinstance(request.effect, Put):
            yield f"the put of {number} acts", _later(self._act_and_keep, world, number, request.effect)
        if not world.faults:
            return
        faulty = replace(world, faults=world.faults - 1)
        if "lost" in self.kinds:
            if request.outcome is None and isinstance(request.effect, Put):
                lost = replace(faulty, strays=(*faulty.strays, (number, request.effect)))
            else:
                lost = faulty
            yield (
                f"the answer to the {kind} of {number} is lost",
                _later(self._answer, lost, number, Unknown("lost")),
            )
        if "false 412" in self.kinds and isinstance(request.outcome, Won):
            yield f"{number} gets 412 for its own write", _later(self._answer, faulty, number, Lost("412"))
        if request.outcome is None or isinstance(request.effect, Get):
            if "503" in self.kinds:
                yield (
                    f"the {kind} of {number} gets 503",
                    _later(self._answer, faulty, number, Throttled("503")),
                )
            if "403" in self.kinds:
                yield f"the {kind} of {number} gets 403", _later(self._answer, faulty, number, Refused("403"))

    def _of_agent(self, world: World, number: int, process: Process, state: State) -> Steps[World]:
        at = self._moment(world, number)
        if process.wanted:
            yield f"{number} doesn't need the lock any more", _later(self._want, world, number, wanted=False)
        else:
            yield f"{number} needs the lock", _later(self._want, world, number, wanted=True)
            if world.faults and "hint" in self.kinds:
                queued = replace(world, faults=world.faults - 1)
                yield (
                    f"{number} needs the lock, as {MANY} others seem to",
                    _later(self._want, queued, number, wanted=True, ahead=MANY),
                )
        if world.faults and "hint" in self.kinds and isinstance(state, Reading | Waiting):
            hinted = replace(world, faults=world.faults - 1)
            lasting = at.wall_ms + 1000 * FAR
            for what, hint in (
                ("is released", ReleaseHint(at, 0)),
                ("is released, and others are first", ReleaseHint(at, MANY)),
                ("is acquired for long", AcquisitionHint(at, lasting)),
            ):
                yield f"{number} gets the hint that the lock {what}", _later(self._step, hinted, number, hint)
        due = lease.deadline(state, self._settings(number))
        if due is not None and due <= at.now:
            yield f"the timer of {number} runs", _later(self._step, world, number, Timer(at))
        if world.faults and "kill" in self.kinds and not isinstance(state, Idle):
            yield f"{number} is killed", _later(self._kill, world, number)

    def _settings(self, number: int) -> LeaseSettings:
        contender = self.contenders[number]
        return replace(self.settings, owner_prefix=contender.term, fenced=contender.fences)

    def _moment(self, world: World, number: int) -> Moment:
        contender, process = self.contenders[number], world.processes[number]
        wall = EPOCH_MS + round((world.now + contender.wall) * 1000)
        # As a random one, it begins with no term.
        owner = f"{'?' * len(contender.term)}{number}-{process.owners}"
        return Moment(world.now * contender.rate, wall, owner, jitter=0.0)

    def _want(self, world: World, number: int, *, wanted: bool, ahead: int = 0) -> World:
        at, contender = self._moment(world, number), self.contenders[number]
        world = _with(world, number, wanted=wanted)
        if not wanted:
            return self._step(world, number, Release(at))
        holder = None if world.body is None else parse(world.body)
        adopt = holder.owner if contender.adopts and isinstance(holder, LockRecord) else None
        return self._step(world, number, Acquire(at, adopt, ahead))

    def _kill(self, world: World, number: int) -> World:
        process = world.processes[number]
        strays = world.strays
        if (
            process.request is not None
            and process.request.outcome is None
            and isinstance(process.request.effect, Put)
        ):
            strays = (*strays, (number, process.request.effect))
        ends = max(process.relies_until, self._relied_on(world, number))
        killed = Process(owners=process.owners, relies_until=ends)
        return _with(replace(world, strays=strays, faults=world.faults - 1), number, process=killed)

    def _step(self, world: World, number: int, given: Input) -> World:
        process = world.processes[number]
        assert not isinstance(process.state, Hudi)
        state, effects = lease.step(process.state, given, self._settings(number))
        world = _with(world, number, state=state, owners=process.owners + 1)
        for effect in effects:
            match effect:
                case Get():
                    # It acts at once. One that acts later finds what one that is sent later finds.
                    world = _with(world, number, request=Request(effect, _read(world)))
                case Put():
                    world = _with(world, number, request=Request(effect))
                case Confirmed(lease=confirmed):
                    if not confirmed.version.isdigit() or int(confirmed.version) > world.version:
                        raise BrokenError(f"confirmed is real: {number} relies on a version that never was")
                case LeaseEnded(holder=str(holder)) | LockDenied(holder=str(holder)) if (
                    len(world.processes) == 1 and not self.held
                ):
                    raise BrokenError(f"no self-block: its own {holder} is another owner to {number}")
                case _:
                    pass
        return world

    # -- Hudi's provider

    def _of_hudi(self, world: World, number: int, process: Process, hudi: Hudi) -> Steps[World]:
        wall = self._moment(world, number).wall_ms
        if hudi.doing == "idle":
            yield (
                f"{number} tries to lock",
                lambda: _with(
                    world,
                    number,
                    state=Hudi("reading"),
                    request=Request(Get(), _read(world)),
                    owners=process.owners + 1,
                ),
            )
        if hudi.doing == "holding":
            assert hudi.local is not None
            record = LockRecord(
                expired=False, valid_until=wall + self._validity_ms, owner=hudi.local.record.owner
            )
            if hudi.local.record.valid_until - wall <= 0.75 * self._validity_ms:
                yield (
                    f"{number} renews",
                    _later(self._hudi_put, world, number, "renewing", record, hudi.local),
                )
            released = replace(hudi.local.record, expired=True)
            yield (
                f"{number} releases",
                _later(self._hudi_put, world, number, "releasing", released, hudi.local),
            )

    @property
    def _validity_ms(self) -> int:
        return round(self.settings.validity * 1000)

    def _hudi_put(self, world: World, number: int, doing: Any, record: LockRecord, local: Local) -> World:
        put = Put(render(record), IfMatch(local.version))
        return _with(world, number, state=Hudi(doing, local), request=Request(put))

    def _hudi_answer(self, world: World, number: int, hudi: Hudi, outcome: Any) -> World:
        process = world.processes[number]
        assert process.request is not None
        wall = self._moment(world, number).wall_ms
        put = process.request.effect
        match hudi.doing, outcome:
            case "reading", Absent() | Found():
                known = parse(outcome.body) if isinstance(outcome, Found) else None
                buffer = round(self.hudi_buffer * 1000)
                if isinstance(known, Malformed) or (known is not None and known.held_at(wall, buffer)):
                    return _with(world, number, state=Hudi(), request=None)
                owner = f"{number}-{process.owners}"
                record = LockRecord(expired=False, valid_until=wall + self._validity_ms, owner=owner)
                condition: Condition = IfMatch(outcome.version) if isinstance(outcome, Found) else IfAbsent()
                sent = Request(Put(render(record), condition))
                return _with(world, number, state=Hudi("acquiring"), request=sent)
            case (("acquiring" | "renewing"), Won(version=version)):
                assert isinstance(put, Put)
                written = parse(put.body)
                assert isinstance(written, LockRecord)
                return _with(world, number, state=Hudi("holding", Local(written, version)), request=None)
            case "renewing", Unknown() | Throttled():
                return _with(world, number, state=Hudi("holding", hudi.local), request=None)
            case _:
                # It lost, released, or doesn't know whether it released. Then the object lapses.
                return _with(world, number, state=Hudi(), request=None)

    # -- the store

    def _act_and_keep(self, world: World, number: int, put: Put) -> World:
        after = self._act(world, number, put)
        won = after.version > world.version
        outcome: WriteOutcome = Won(str(after.version)) if won else Lost("412")
        return _with(after, number, request=Request(put, outcome))

    def _act(self, world: World, number: int, put: Put) -> World:
        """The store carries out a write, if its condition holds."""
        condition = put.condition
        version = condition.version if isinstance(condition, IfMatch) else None
        current = None if world.body is None else str(world.version)
        if version != current:
            return world
        if world.body == ODD:
            raise BrokenError(f"odd objects stay: {number} overwrites an object that is no lock")
        before = None if world.body is None else parse(world.body)
        after = replace(world, body=put.body, version=world.version + 1)
        if not isinstance(before, LockRecord):
            return after
        after = self._fence(after, number, before.owner)
        for other, process in enumerate(after.processes):
            if self._owner_of(process) != before.owner:
                continue
            if other == number or process.fenced or self._relied_on(world, other) <= world.now:
                continue
            if not self.contenders[number].adopts:
                raise BrokenError(f"no stealing: {number} replaces the record of {other}, which relies on it")
        return after

    def _fence(self, world: World, number: int, owner: str) -> World:
        """The former owners of the partition whose record is replaced: their grants don't count any more."""
        fences = self.contenders[number].fences
        for other, former in enumerate(self.contenders):
            if former.term in fences and owner.startswith(former.term):
                world = _with(world, other, fenced=True)
        return world

    @staticmethod
    def _owner_of(process: Process) -> str | None:
        if isinstance(process.state, Hudi):
            return None if process.state.local is None else process.state.local.record.owner
        found = lease.lease_of(process.state)
        return None if found is None else found.record.owner

    def _answer(self, world: World, number: int, outcome: Any) -> World:
        process, at = world.processes[number], self._moment(world, number)
        assert process.request is not None
        if isinstance(process.state, Hudi):
            return self._hudi_answer(world, number, process.state, outcome)
        read = isinstance(process.request.effect, Get)
        world = _with(world, number, request=None)
        return self._step(world, number, ReadDone(at, outcome) if read else WriteDone(at, outcome))

    # -- what may never happen

    def _relied_on(self, world: World, number: int) -> float:
        """Until when, in true time, a contender relies on the lock for new grants. In the past: it doesn't."""
        process, contender = world.processes[number], self.contenders[number]
        if isinstance(process.state, Hudi):
            local = process.state.local
            if local is None or process.state.doing == "releasing":
                return -1.0
            return (local.record.valid_until - EPOCH_MS) / 1000 - contender.wall
        found = lease.lease_of(process.state)
        return -1.0 if found is None else found.expires_at / contender.rate

    def relying(self, world: World) -> list[str]:
        """The contenders that rely on the lock now, for new grants or for those of their former lives."""
        found = []
        for number, process in enumerate(world.processes):
            until = max(process.relies_until, self._relied_on(world, number))
            if process.fenced or until <= world.now:
                continue
            held = None if isinstance(process.state, Hudi) else lease.lease_of(process.state)
            quiet = held is not None and world.now * self.contenders[number].rate < held.quiet_until
            if not quiet or process.relies_until > world.now:
                found.append(str(number))
        return found

    def judge(self, world: World) -> None:
        relying = self.relying(world)
        if len(relying) > 1:
            raise BrokenError(f"one holder: {' and '.join(relying)} rely on the lock")
        for number, process in enumerate(world.processes):
            if isinstance(process.state, Held) and not process.wanted:
                raise BrokenError(f"no idle holder: {number} keeps a lock that it doesn't need")

    def wants(self, world: World) -> dict[str, bool]:
        wanting = (number for number, each in enumerate(world.processes) if each.wanted)
        return {str(number): self._relied_on(world, number) > world.now for number in wanting}

    # -- the form

    def form(self, world: World) -> Form:
        """Times relative to now, owners and versions by order of occurrence; without what no process can find any more."""
        return _Former(self, world).form()


class _Former:
    """Writes one world as its form."""

    def __init__(self, model: Lock, world: World) -> None:
        self._model, self._world = model, world
        self._owners: dict[str, str] = {}
        self._versions: dict[str, int] = {str(world.version): 0}
        self._rate = 1.0
        self._settings = model.settings

    def form(self) -> Form:
        world = self._world
        parts: list[Form] = [world.faults, self._value(world.body)]
        for number, process in enumerate(world.processes):
            self._rate = self._model.contenders[number].rate
            self._settings = self._model._settings(number)
            relies = self._ticks(process.relies_until * self._rate)
            request = self._value(process.request)
            parts.append((self._value(process.state), request, process.wanted, relies, process.fenced))
        parts.extend((number, self._value(put)) for number, put in world.strays)
        return tuple(parts)

    def _ticks(self, at: float, least: int = 0) -> int:
        """Ticks until this time of a monotonic clock is reached: it is compared at ticks only."""
        left = at / self._rate - self._world.now
        return FAR if left > FAR else max(least, math.ceil(left - 1e-6))

    def _value(self, value: Any) -> Form:
        """A part of a world. What its kind says nothing special of is its fields."""
        match value:
            case None | bool() | str():
                return value
            case int():
                return min(value, 3)
            case float():
                # Each hint delays a read that is overdue, by at most the `poll_seconds` of 1 after it was due.
                hints = self._world.faults if "hint" in self._model.kinds else 0
                return self._ticks(value, -(hints + 1) if hints else 0)
            case bytes():
                return "odd" if value == ODD else self._value(_parsed(value))
            case tuple():
                return tuple(self._value(each) for each in value)
            case Cost() | Moment():
                return None
            case Unknown() | Lost() | Throttled() | Refused():
                return type(value).__name__
            case LockRecord() | IfMatch() | Won() | Found() | Local():
                return self._of_object(value)
            case Lease() | SeenVersion() | Refusal() | FormerOwner() | Writing():
                return self._of_state(value)
            case _:
                shown = [(name, getattr(value, name)) for name in field_names(value.__class__)]
                kept = [
                    self._owner(it) if name in ("own_id", "adopt") else self._value(it) for name, it in shown
                ]
                return (type(value).__name__, *kept)

    def _of_object(self, value: LockRecord | IfMatch | Won | Found | Local) -> Form:
        match value:
            case LockRecord(expired=True, owner=owner):
                return ("released", self._owner(owner))
            case LockRecord(valid_until=valid_until, owner=owner):
                return (self._wall(valid_until), self._owner(owner))
            case IfMatch(version=version) | Won(version=version):
                return (type(value).__name__, self._version(version))
            case Found(body=body, version=version):
                return ("found", self._value(body), self._version(version))
            case Local(record=record, version=version):
                return (self._value(record), self._version(version))

    def _of_state(self, value: Lease | SeenVersion | Refusal | FormerOwner | Writing) -> Form:
        settings = self._settings
        match value:
            case Writing(work=work, condition=condition, sent_at=sent_at):
                useless = settings.validity - settings.drift - settings.margin
                sent = self._ticks(sent_at, -math.ceil(useless / self._rate))
                return ("writing", self._value(work), self._value(value.record), self._value(condition), sent)
            case Lease(record=record, version=version):
                ends = self._ticks(value.expires_at), self._ticks(value.expires_at - settings.margin)
                renew, former = self._ticks(value.renew_at), self._value(value.former)
                return (self._value(record), self._version(version), ends, renew, former)
            case SeenVersion(version=version, since=since):
                # Only a strict agent looks at it.
                oldest = -math.ceil((settings.validity + settings.drift) / self._rate) - 1
                return (self._version(version), self._ticks(since, oldest)) if settings.strict else None
            case Refusal(since=since, requests=requests):
                oldest = -math.ceil(settings.refusal_seconds / self._rate)
                return (self._ticks(since, oldest), min(requests, settings.min_refusals))
            case FormerOwner(owner=owner, until=until, fenced=fenced):
                return (self._owner(owner), self._ticks(until), fenced)

    def _wall(self, valid_until: int) -> int:
        """To 50 ms, so that the millisecond by which repeated writes differ doesn't count. What has lapsed for all has lapsed."""
        left = valid_until - EPOCH_MS - self._world.now * 1000
        slowest = min(each.wall for each in self._model.contenders)
        lapsed = round(slowest * 1000) - self._model.settings.drift_ms
        return max(left // 50, lapsed // 50 - 1)

    def _owner(self, owner: str | None) -> str | None:
        if owner is None:
            return None
        term = next(
            (each.term for each in self._model.contenders if each.term and owner.startswith(each.term)), ""
        )
        return self._owners.setdefault(owner, f"{term}{len(self._owners)}")

    def _version(self, version: str) -> int:
        return self._versions.setdefault(version, len(self._versions))


_parsed = lru_cache(10_000)(parse)


def _read(world: World) -> ReadOutcome:
    return Absent() if world.body is None else Found(world.body, str(world.version))


def _with(world: World, number: int, process: Process | None = None, **changes: Any) -> World:
    """The world with a change of one contender."""
    processes = list(world.processes)
    processes[number] = replace(process or processes[number], **changes)
    return replace(world, processes=tuple(processes))


def _later(step: Callable[..., World], *arguments: Any, **named: Any) -> Callable[[], World]:
    return lambda: step(*arguments, **named)
