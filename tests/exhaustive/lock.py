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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache, partial
from typing import Any, Literal, TypeAlias

from lakewarden.handlers.lease import conditional as store, machine, types as lease
from lakewarden.handlers.lease.lock_object import LockRecord, Malformed, parse, render
from tests.exhaustive.engine import Act, BrokenError, Form, Steps, affordable

EPOCH_MS = 1_800_000_000_000
FAR = 20
"""Ticks: later than any time that a contender waits for."""
PASSES = "a second passes"
MANY = 10
"""Other contenders of a hint's queue."""
MOST_COUNTED = 3
"""Tries and other numbers: beyond it, each is as the next."""
ODD = b"{}"
"""An object that is no lock record."""
SCALED = lease.LeaseSettings(
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

    effect: lease.Get | lease.Put
    outcome: store.ReadOutcome | store.WriteOutcome | None = None


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

    state: lease.State | Hudi = field(default_factory=lease.Idle)
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
    strays: tuple[tuple[int, lease.Put], ...] = ()
    """Writes of these contenders whose answer was lost before they acted."""
    faults: int = 0


Acts: TypeAlias = Iterator[Act]


@dataclass(frozen=True)
class Lock:
    """The model. `faults`: so many of these kinds."""

    contenders: tuple[Contender, ...]
    settings: lease.LeaseSettings = SCALED
    faults: int = 0
    kinds: frozenset[str] = frozenset({"lost", "false 412", "503", "kill"})
    held: bool = False
    """The lock has a holder that is dead."""
    hudi_buffer: float = 0.6
    """Hudi's tolerance beyond the end of another owner's lease: half the drift."""

    def begin(self) -> World:
        processes = tuple(Process(Hudi() if each.hudi else lease.Idle()) for each in self.contenders)
        if not self.held:
            return World(processes, faults=self.faults)
        dead = LockRecord(expired=False, valid_until=EPOCH_MS + self._validity_ms, owner="dead")
        return World(processes, render(dead), 1, faults=self.faults)

    # -- steps

    def steps(self, world: World) -> Steps[World]:
        for name, act, paid in affordable(self._acts(world), world, self.kinds):
            yield name, partial(act, paid)

    def _acts(self, world: World) -> Acts:
        for number, process in enumerate(world.processes):
            if process.request is not None:
                yield from self._of_request(number, process.request)
            if isinstance(process.state, Hudi):
                yield from self._of_hudi(world, number, process.state)
            else:
                yield from self._of_agent(world, number, process, process.state)
        for place, (number, _) in enumerate(world.strays):
            yield "", f"{place}: a lost write of {self._name(number)} acts", partial(self._act_lost, place)
        if world.body != ODD:
            yield "odd", "another program overwrites the object", self._overwrite
        yield "", PASSES, lambda world: replace(world, now=world.now + 1)

    def _of_request(self, number: int, request: Request) -> Acts:
        answer = partial(self._answer, number)
        what = f"the {type(request.effect).__name__.lower()} of {self._name(number)}"
        if request.outcome is not None:
            yield "", f"{what} is answered", partial(answer, request.outcome)
        elif isinstance(request.effect, lease.Put):
            yield "", f"{what} acts", partial(self._act_and_keep, number, request.effect)
        yield "lost", f"the answer to {what} is lost", partial(self._lose_answer, number, request)
        if isinstance(request.outcome, store.Won):
            yield "false 412", f"{what} has acted and gets 412", partial(answer, store.Lost("412"))
        if request.outcome is None or isinstance(request.effect, lease.Get):
            yield "503", f"{what} gets 503", partial(answer, store.Throttled("503"))
            yield "403", f"{what} gets 403", partial(answer, store.Refused("403"))

    def _of_agent(self, world: World, number: int, process: Process, state: lease.State) -> Acts:
        at, step = self._moment(world, number), partial(self._step, number)
        name = self._name(number)
        if process.wanted:
            yield "", f"{name} doesn't need the lock any more", partial(self._release, number)
        else:
            yield "", f"{name} needs the lock", partial(self._acquire, number, 0)
            yield "hint", f"{name} needs the lock, as many seem to", partial(self._acquire, number, MANY)
        if isinstance(state, lease.Reading | lease.Waiting):
            hint = f"{name} gets the hint that the lock is"
            yield "hint", f"{hint} released", partial(step, lease.ReleaseHint(at, 0))
            yield "hint", f"{hint} released, and others are first", partial(step, lease.ReleaseHint(at, MANY))
            lasting = lease.AcquisitionHint(at, at.wall_ms + 1000 * FAR)
            yield "hint", f"{hint} acquired for long", partial(step, lasting)
        due = machine.deadline(state, self._settings[number])
        if due is not None and due <= at.now:
            yield "", f"the timer of {name} runs", partial(step, lease.Timer(at))
        if not isinstance(state, lease.Idle):
            yield "kill", f"{name} is killed", partial(self._kill, number)

    def _overwrite(self, world: World) -> World:
        return replace(world, body=ODD, version=world.version + 1)

    def _act_lost(self, place: int, world: World) -> World:
        number, put = world.strays[place]
        rest = world.strays[:place] + world.strays[place + 1 :]
        return self._act(number, put, replace(world, strays=rest))

    def _lose_answer(self, number: int, request: Request, world: World) -> World:
        return self._answer(number, store.Unknown("lost"), _with_stray(world, number, request))

    def _name(self, number: int) -> str:
        return "Hudi's provider" if self.contenders[number].hudi else f"agent {number}"

    @cached_property
    def _lapsed(self) -> int:
        """Wall clocks relative to true time, in units of 50 ms: what ended by then has lapsed for all."""
        slowest = min(each.wall for each in self.contenders)
        return (round(slowest * 1000) - self.settings.drift_ms) // 50

    @cached_property
    def _settings(self) -> list[lease.LeaseSettings]:
        """Those of each contender."""
        return [
            replace(self.settings, owner_prefix=each.term, fenced=each.fences) for each in self.contenders
        ]

    def _moment(self, world: World, number: int) -> lease.Moment:
        contender, process = self.contenders[number], world.processes[number]
        wall = EPOCH_MS + round((world.now + contender.wall) * 1000)
        # As a random one, it begins with no term.
        owner = f"{'?' * len(contender.term)}{number}-{process.owners}"
        return lease.Moment(world.now * contender.rate, wall, owner, jitter=0.0)

    def _release(self, number: int, world: World) -> World:
        at = self._moment(world, number)
        return self._step(number, lease.Release(at), _with(world, number, wanted=False))

    def _acquire(self, number: int, ahead: int, world: World) -> World:
        holder = None if world.body is None else parse(world.body)
        adopted = None
        if self.contenders[number].adopts and isinstance(holder, LockRecord):
            adopted = holder.owner
        wanted = lease.Acquire(self._moment(world, number), adopted, ahead)
        return self._step(number, wanted, _with(world, number, wanted=True))

    def _kill(self, number: int, world: World) -> World:
        process = world.processes[number]
        ends = max(process.relies_until, self._relied_on(world, number))
        killed = Process(owners=process.owners, relies_until=ends)
        return _with(_with_stray(world, number, process.request), number, process=killed)

    def _step(self, number: int, given: lease.Input, world: World) -> World:
        process = world.processes[number]
        assert not isinstance(process.state, Hudi)
        state, effects = machine.step(process.state, given, self._settings[number])
        world = _with(world, number, state=state, owners=process.owners + 1)
        for effect in effects:
            match effect:
                case lease.Get():
                    # It acts at once. One that acts later finds what one that is sent later finds.
                    world = _with(world, number, request=Request(effect, _read(world)))
                case lease.Put():
                    world = _with(world, number, request=Request(effect))
                case lease.Confirmed(lease=confirmed):
                    if not confirmed.version.isdigit() or int(confirmed.version) > world.version:
                        raise BrokenError(
                            f"confirmed is real: {self._name(number)} relies on a version that never was"
                        )
                case lease.LeaseEnded(holder=str(holder)) | lease.LockDenied(holder=str(holder)) if (
                    len(world.processes) == 1 and not self.held
                ):
                    raise BrokenError(
                        f"no self-block: its own {holder} is another owner to {self._name(number)}"
                    )
                case _:
                    pass
        return world

    # -- Hudi's provider

    def _of_hudi(self, world: World, number: int, hudi: Hudi) -> Acts:
        name = self._name(number)
        if hudi.doing == "idle":
            yield "", f"{name} tries to lock", partial(self._hudi_read, number)
        if hudi.doing != "holding" or hudi.local is None:
            return
        record, wall = hudi.local.record, self._moment(world, number).wall_ms
        if record.valid_until - wall <= 0.75 * self._validity_ms:
            renewed = replace(record, valid_until=wall + self._validity_ms)
            yield "", f"{name} renews", partial(self._hudi_put, number, "renewing", renewed, hudi.local)
        released = replace(record, expired=True)
        yield "", f"{name} releases", partial(self._hudi_put, number, "releasing", released, hudi.local)

    def _hudi_read(self, number: int, world: World) -> World:
        owners = world.processes[number].owners + 1
        sent = Request(lease.Get(), _read(world))
        return _with(world, number, state=Hudi("reading"), request=sent, owners=owners)

    @property
    def _validity_ms(self) -> int:
        return round(self.settings.validity * 1000)

    def _hudi_put(self, number: int, doing: Any, record: LockRecord, local: Local, world: World) -> World:
        put = lease.Put(render(record), store.IfMatch(local.version))
        return _with(world, number, state=Hudi(doing, local), request=Request(put))

    def _hudi_answer(self, world: World, number: int, hudi: Hudi, outcome: Any) -> World:
        process = world.processes[number]
        assert process.request is not None
        wall = self._moment(world, number).wall_ms
        put = process.request.effect
        match hudi.doing, outcome:
            case "reading", store.Absent() | store.Found():
                known = parse(outcome.body) if isinstance(outcome, store.Found) else None
                buffer = round(self.hudi_buffer * 1000)
                if isinstance(known, Malformed) or (known is not None and known.held_at(wall, buffer)):
                    return _with(world, number, state=Hudi(), request=None)
                owner = f"{number}-{process.owners}"
                record = LockRecord(expired=False, valid_until=wall + self._validity_ms, owner=owner)
                condition: store.Condition = (
                    store.IfMatch(outcome.version) if isinstance(outcome, store.Found) else store.IfAbsent()
                )
                sent = Request(lease.Put(render(record), condition))
                return _with(world, number, state=Hudi("acquiring"), request=sent)
            case (("acquiring" | "renewing"), store.Won(version=version)):
                assert isinstance(put, lease.Put)
                written = parse(put.body)
                assert isinstance(written, LockRecord)
                return _with(world, number, state=Hudi("holding", Local(written, version)), request=None)
            case "renewing", store.Unknown() | store.Throttled():
                return _with(world, number, state=Hudi("holding", hudi.local), request=None)
            case _:
                # It lost, released, or doesn't know whether it released. Then the object lapses.
                return _with(world, number, state=Hudi(), request=None)

    # -- the store

    def _act_and_keep(self, number: int, put: lease.Put, world: World) -> World:
        after = self._act(number, put, world)
        won = after.version > world.version
        outcome: store.WriteOutcome = store.Won(str(after.version)) if won else store.Lost("412")
        return _with(after, number, request=Request(put, outcome))

    def _act(self, number: int, put: lease.Put, world: World) -> World:
        """The store carries out a write, if its condition holds."""
        condition = put.condition
        version = condition.version if isinstance(condition, store.IfMatch) else None
        current = None if world.body is None else str(world.version)
        if version != current:
            return world
        if world.body == ODD:
            raise BrokenError(f"odd objects stay: {self._name(number)} overwrites an object that is no lock")
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
                raise BrokenError(
                    f"no stealing: {self._name(number)} replaces the record of {self._name(other)}, which relies on it"
                )
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
        found = machine.lease_of(process.state)
        return None if found is None else found.record.owner

    def _answer(self, number: int, outcome: Any, world: World) -> World:
        process, at = world.processes[number], self._moment(world, number)
        assert process.request is not None
        if isinstance(process.state, Hudi):
            return self._hudi_answer(world, number, process.state, outcome)
        read = isinstance(process.request.effect, lease.Get)
        done = lease.ReadDone(at, outcome) if read else lease.WriteDone(at, outcome)
        return self._step(number, done, _with(world, number, request=None))

    # -- what may never happen

    def _relied_on(self, world: World, number: int) -> float:
        """Until when, in true time, a contender relies on the lock for new grants. In the past: it doesn't."""
        process, contender = world.processes[number], self.contenders[number]
        if isinstance(process.state, Hudi):
            local = process.state.local
            if local is None or process.state.doing == "releasing":
                return -1.0
            return (local.record.valid_until - EPOCH_MS) / 1000 - contender.wall
        found = machine.lease_of(process.state)
        return -1.0 if found is None else found.expires_at / contender.rate

    def relying(self, world: World) -> list[str]:
        """The contenders that rely on the lock now, for new grants or for those of their former lives."""
        found = []
        for number, process in enumerate(world.processes):
            until = max(process.relies_until, self._relied_on(world, number))
            if process.fenced or until <= world.now:
                continue
            held = None if isinstance(process.state, Hudi) else machine.lease_of(process.state)
            quiet = held is not None and world.now * self.contenders[number].rate < held.quiet_until
            if not quiet or process.relies_until > world.now:
                found.append(self._name(number))
        return found

    def judge(self, world: World) -> None:
        relying = self.relying(world)
        if len(relying) > 1:
            raise BrokenError(f"one holder: {' and '.join(relying)} rely on the lock")
        for number, process in enumerate(world.processes):
            if isinstance(process.state, lease.Held) and not process.wanted:
                raise BrokenError(f"no idle holder: {self._name(number)} keeps a lock that it doesn't need")

    def wants(self, world: World) -> dict[str, bool]:
        wanting = (number for number, each in enumerate(world.processes) if each.wanted)
        return {self._name(number): self._relied_on(world, number) > world.now for number in wanting}

    # -- the form

    def form(self, world: World) -> Form:
        """Times relative to now, owners and versions by order of occurrence; without what no process can find any more."""
        return _Form(self, world).form()


class _Form:
    """Fills the outlines of one world's values."""

    def __init__(self, model: Lock, world: World) -> None:
        self._model, self._world, self._settings = model, world, model.settings
        self._owners: dict[str, str] = {}
        self._versions = {str(world.version): 0}
        self._rate = 1.0

    def form(self) -> Form:
        world = self._world
        parts: list[Form] = [world.faults, *self._filled(world.body)]
        for contender, process in zip(self._model.contenders, world.processes, strict=True):
            self._rate = contender.rate
            parts += self._filled(process.state)
            parts += self._filled(process.request)
            relies = self.ticks(process.relies_until * self._rate)
            parts += [process.wanted, relies, process.fenced]
        for number, put in world.strays:
            parts += [number, *self._filled(put)]
        return parts

    def _filled(self, value: Any) -> Form:
        return [each if fill is None else fill(self, each) for fill, each in _outline_of(value)]

    def ticks(self, at: float, least: float = 0) -> int:
        """Ticks until this time of a monotonic clock is reached: it is compared at ticks only."""
        left = at / self._rate - self._world.now
        return FAR if left > FAR else max(math.floor(least), math.ceil(left - 1e-6))

    def overdue(self, at: float) -> int:
        """Each hint delays a read that is overdue, by at most the `poll_seconds` of 1 after it was due."""
        hints = self._world.faults if "hint" in self._model.kinds else 0
        return self.ticks(at, -(hints + 1) if hints else 0)

    def in_doubt(self, expires_at: float) -> int:
        return self.ticks(expires_at - self._settings.margin)

    def sent(self, at: float) -> int:
        useless = self._settings.validity - self._settings.drift - self._settings.margin
        return self.ticks(at, -useless / self._rate)

    def observed(self, seen: lease.SeenVersion | None) -> Form:
        """Only `strict` agents ask since when a version is there."""
        if seen is None or not self._settings.strict:
            return None
        respected = self._settings.validity + self._settings.drift
        return self.version(seen.version), self.ticks(seen.since, -respected / self._rate - 1)

    def refused(self, since: float) -> int:
        return self.ticks(since, -self._settings.refusal_seconds / self._rate)

    def wall(self, valid_until: int) -> int:
        """To 50 ms, so that the millisecond by which repeated writes differ doesn't count."""
        left = valid_until - EPOCH_MS - self._world.now * 1000
        return max(left // 50, self._model._lapsed - 1)

    def owner(self, owner: str | None) -> str | None:
        if owner is None or owner in self._owners:
            return self._owners.get(owner or "")
        terms = (each.term for each in self._model.contenders if each.term)
        term = next((each for each in terms if owner.startswith(each)), "")
        return self._owners.setdefault(owner, f"{term}{len(self._owners)}")

    def version(self, version: str) -> int:
        return self._versions.setdefault(version, len(self._versions))


Outline: TypeAlias = list[tuple[Callable[[_Form, Any], Form] | None, Any]]
"""Parts of a value. What the world decides has the method that fills it in."""
ROLES: dict[str, Callable[[_Form, Any], Form]] = {
    "own_id": _Form.owner,
    "adopt": _Form.owner,
    "owner": _Form.owner,
    "version": _Form.version,
    "observed": _Form.observed,
    "valid_until": _Form.wall,
    "renew_at": _Form.ticks,
    "quiet_until": _Form.ticks,
    "sent_at": _Form.sent,
}
"""How a field counts, by its name. Another time counts from when it is overdue."""
LEFT_OUT = frozenset({"cost", "at", "expired", "why"})


@lru_cache(100_000)
def _outline_of(value: Any) -> Outline:
    """What the form of a value is in every world. A value is the same in many worlds, and never changes."""
    return _outline(value)


def _outline(value: Any) -> Outline:
    # Not from the cache: 0, 0.0 and False are equal.
    match value:
        case bool() | None | str():
            return [(None, value)]
        case int():
            return [(None, min(value, MOST_COUNTED))]
        case float():
            return [(_Form.overdue, value)]
        case bytes() if value == ODD:
            return [(None, "odd")]
        case bytes():
            return _outline(parse(value))
        case LockRecord(expired=True, owner=owner):
            return [(None, "released"), (_Form.owner, owner)]
        case lease.Refusal(since=since, requests=requests):
            return [(_Form.refused, since), (None, min(requests, SCALED.min_refusals))]
        case _:
            return _outline_of_fields(value)


def _outline_of_fields(value: Any) -> Outline:
    outline: Outline = [(None, type(value).__name__)]
    for each in fields(value):
        part = getattr(value, each.name)
        if each.name == "expires_at":
            outline += [(_Form.ticks, part), (_Form.in_doubt, part)]
        elif each.name in ROLES:
            outline.append((ROLES[each.name], part))
        elif each.name not in LEFT_OUT:
            outline += _outline(part)
    return outline


def _read(world: World) -> store.ReadOutcome:
    return store.Absent() if world.body is None else store.Found(world.body, str(world.version))


def _with(world: World, number: int, process: Process | None = None, **changes: Any) -> World:
    """The world with a change of one contender."""
    processes = list(world.processes)
    processes[number] = replace(process or processes[number], **changes)
    return replace(world, processes=tuple(processes))


def _with_stray(world: World, number: int, request: Request | None) -> World:
    """The world in which a write that has not acted may act later, although its contender gets no answer."""
    if request is None or request.outcome is not None or not isinstance(request.effect, lease.Put):
        return world
    return replace(world, strays=(*world.strays, (number, request.effect)))
