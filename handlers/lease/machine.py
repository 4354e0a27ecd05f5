"""The table's lock as a lease in one object: a pure automaton. Every transition is in this file.

The object and the dance around it are those of Hudi's storage-based lock (RFC-91), refined where that leaves doubts: an answer
that got lost, clocks apart, many who wait, a holder that dies with a grant running. What goes in and comes out, and the
states, are in `lease_types.py`.

    Idle ──want──▶ Reading ──absent · released · lapsed──▶ Writing ──won──▶ Held ──renew_at──▶ Writing …
                     │ held by another                        │ lost · unknown
                     ▼                                        ▼
                  Waiting ◀──────── back off ──────────── Reading (read back)

Which state follows, `any` of the five or some of them; the answer to a request that is not outstanding is a bug of the shell:

    input           Idle              Reading       Writing  Held              Waiting
    want            Reading, Waiting  Reading       Writing  Held              Waiting, Reading
    drop            Idle              Reading       Writing  Writing, Waiting  Idle, Writing, Waiting
    timer           Idle              Reading       Writing  Held, Writing     Waiting, Reading
    heard released  Idle              Reading       Writing  Held              Waiting, Reading
    heard taken     Idle              Reading       Writing  Held              Waiting
    read done       illegal           any but Held  illegal  illegal           illegal
    write done      illegal           illegal       any      illegal           illegal

Before any of it, a lease that has come within `margin` of its end is given up (see Time): Held becomes Waiting, the others stay.

Writes
- A write is *won, lost, throttled, unknown* or *refused*. Unknown and lost are both read back: a lost write may
  be our own whose first answer went missing. What the read-back finds decides: ours and live → a second write
  under the version just read, before anything is trusted; somebody else's → lost; unreadable → still unknown,
  again after a jittered back-off, and told now and then while it goes on.
- A write whose answer was lost may land late: until the version under which it was sent is gone, further writes bear its
  owner, so that whichever of them lands is known as ours.
- Every write differs from the one before it: another owner, another `expired`, or a `validUntil` that strictly rises; so no
  version comes twice. The `validUntil` of another owner is exceeded only while it binds: a wrong clock's far future is not
  inherited.

Time
- The holder counts from *before* it sent the write, on its own monotonic clock, and stops `drift` early; a challenger waits
  until `validUntil` is past by `drift` on its wall clock.
- Renewal starts `renew_interval` after the last write was sent, and later by chance where that write took long: many that
  fell due together, and had to wait for each other, part again.
- A lease that is not confirmed `margin` before its end is given up then: whoever relies on it has that long to hear of it.
- Strict: somebody else's lapsed lock is taken over only when its version has stayed the same for a whole lease and
  the drift on our own monotonic clock: a live holder renews sooner than that, whatever its clock says. Assumes that
  nobody's lease is longer than ours. A released lock needs no such proof.

Waiting
- Held by another: the object is read again at the holder's end, or after `poll_seconds`, whichever comes first, with jitter.
- An object that is no lock record, and a store that forbids, refuse the lock: reported, never overwritten, tried
  again after `refused_seconds` because a person may have mended it.

Turns
- What other agents tell of the lock are hints that save waiting, never proof: they move the time of the next read,
  nothing else.
- Heard to be released: whoever waits first reads at once; each one behind gives those before it `queue_slot_seconds` each. Heard to
  be taken: as after a read that found it held. Wanted while others wait: ours is the last turn.
- A read that is under way while the lock is heard to be released may find what was there before: if it does, the
  object is read again, in our turn.

Release
- It writes `expired` and keeps `validUntil`. It is tried again while the store doubts, at most `release_tries` times; then the
  lease is left to lapse, and that is told. The lease is not relied upon from the moment release was asked for.
- Dropped while a write is under way or in doubt: what it did is found out first, and released. Wanted again while a write
  that takes or renews it is under way: as if it had not been dropped.

Adoption
- An owner that the log names as holder of a running grant is replaced by a fresh one under its version. The former
  owner may be alive and believe in its lease: until that has ended (`quiet_until`) the lock covers the
  running grant and no new one, and the object is not released.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

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
    AcquisitionObserved,
    Confirmed,
    Cost,
    Effect,
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
    ObservedVersion,
    Put,
    ReadDone,
    Reading,
    Release,
    Released,
    ReleaseObserved,
    State,
    Step,
    Timer,
    Waiting,
    Work,
    WriteDone,
    Writing,
)

__all__ = [
    "Acquire",
    "AcquisitionObserved",
    "Confirmed",
    "Cost",
    "Effect",
    "FormerOwner",
    "Get",
    "Held",
    "Idle",
    "IllegalInputError",
    "Input",
    "Lease",
    "LeaseEnded",
    "LeaseSettings",
    "LockDenied",
    "Moment",
    "ObservedVersion",
    "Put",
    "ReadDone",
    "Reading",
    "Release",
    "ReleaseObserved",
    "Released",
    "State",
    "Timer",
    "Waiting",
    "Work",
    "WriteDone",
    "Writing",
    "deadline",
    "lease_of",
    "step",
]


class IllegalInputError(Exception):
    """The shell gave an input that this state can't have: a bug, with its story."""

    def __init__(self, state: State, given: Input) -> None:
        super().__init__(f"lock automaton got {given!r} in {state!r}")


def deadline(state: State, settings: LeaseSettings) -> float | None:
    """When the state wants a `Timer`, in monotonic seconds; None: only an answer or a wish moves it."""
    lease = lease_of(state)
    given_up = None if lease is None else lease.expires_at - settings.margin
    match state:
        case Held(lease=lease):
            due: float | None = lease.renew_at
        case Waiting(until=until):
            due = until
        case Idle() | Reading() | Writing():
            due = None
        case _:
            assert_never(state)
    return min((each for each in (due, given_up) if each is not None), default=None)


def lease_of(state: State) -> Lease | None:
    """The lease that may be relied upon in this state."""
    match state:
        case Held(lease=lease):
            return lease
        case Reading(work=work) | Writing(work=work) | Waiting(work=work):
            return work.lease
        case Idle():
            return None
        case _:
            assert_never(state)


def step(state: State, given: Input, settings: LeaseSettings) -> Step:
    """The next state and what is to be done. Raises `IllegalInputError` for a pair that can't be."""
    state, ended = _end_unconfirmed_lease(state, given.at, settings)
    after, effects = _transition(state, given, settings)
    return after, (*ended, *effects)


def _end_unconfirmed_lease(state: State, at: Moment, settings: LeaseSettings) -> Step:
    lease = lease_of(state)
    if lease is None or at.now < lease.expires_at - settings.margin:
        return state, ()
    if isinstance(state, Held):
        state = Waiting(_work_for(lease, at), until=at.now)
    assert not isinstance(state, Idle)
    ended = _lease_ended(lease, state.work.cost, "the renewal could not be confirmed in time")
    return replace(state, work=replace(state.work, lease=None)), (ended,)


def _transition(state: State, given: Input, settings: LeaseSettings) -> Step:
    at = given.at
    match given:
        case Acquire(adopt=adopt, ahead=ahead):
            return _on_acquire(state, at, settings, adopt, ahead)
        case Release():
            return _on_release(state, at)
        case Timer():
            return _on_timer(state, at, settings)
        case ReleaseObserved(ahead=ahead):
            return _on_release_observed(state, at, settings, ahead)
        case AcquisitionObserved(valid_until=valid_until):
            return _on_acquisition_observed(state, at, settings, valid_until)
        case ReadDone(outcome=outcome):
            if not isinstance(state, Reading):
                raise IllegalInputError(state, given)
            return _on_read_done(state.work, at, outcome, settings)
        case WriteDone(outcome=outcome):
            if not isinstance(state, Writing):
                raise IllegalInputError(state, given)
            return _on_write_done(state, at, outcome, settings)
        case _:
            assert_never(given)


# -- wishes ------------------------------------------------------------------------------------------------------------


def _on_acquire(state: State, at: Moment, settings: LeaseSettings, adopt: str | None, ahead: int) -> Step:
    match state:
        case Idle(own_id=own_id, former=former, in_doubt=in_doubt):
            work = Work(Cost(0, at.now), own_id=own_id, former=former, in_doubt=in_doubt)
            return _start_acquiring(_mark_needed(work, adopt, ahead), at, settings)
        case Held():
            return state, ()
        case Reading(work=work):
            return Reading(_mark_needed(work, adopt, ahead)), ()
        case Writing(work=work, record=record):
            work = _mark_needed(work, adopt, ahead)
            return replace(state, work=work if record.expired else replace(work, release=None)), ()
        case Waiting(work=work):
            work = _mark_needed(work, adopt, ahead)
            if work.release is not None and _in_quiet_period(work, at):
                # The release was being put off; the object is still ours.
                return _read_object(_reset_cost(replace(work, release=None), at))
            return replace(state, work=work), ()
        case _:
            assert_never(state)


def _mark_needed(work: Work, adopt: str | None, ahead: int) -> Work:
    return replace(work, needed=True, adopt=adopt or work.adopt, ahead=ahead)


def _start_acquiring(work: Work, at: Moment, settings: LeaseSettings) -> Step:
    """Begin to take the lock; those who wait for it already come first."""
    if not work.ahead or work.adopt is not None:
        return _read_object(replace(work, ahead=0))
    denied = LockDenied("others wait for it", fatal=False, cost=work.cost)
    return Waiting(replace(work, ahead=0), at.now + work.ahead * settings.queue_slot_seconds), (denied,)


def _on_release(state: State, at: Moment) -> Step:
    match state:
        case Idle():
            return state, ()
        case Held(lease=lease):
            return _write_release(_mark_released(_work_for(lease, at), at), at, lease.version)
        case Waiting(work=Work(lease=Lease(version=version)) as work):
            return _write_release(_mark_released(work, at), at, version)
        case Waiting(work=work):
            if work.release is None and work.in_doubt is None:
                return _idle(work), ()
            # A write that we don't know the fate of may have taken the lock: it is read back, and released.
            return replace(state, work=_mark_released(work, at)), ()
        case Reading(work=work) | Writing(work=work):
            # What is in the object is known when it answers; then it is released.
            work = replace(_mark_released(work, at), cost=Cost(1, at.now))
            return replace(state, work=work), ()
        case _:
            assert_never(state)


def _mark_released(work: Work, at: Moment) -> Work:
    release = work.release if work.lease is None else work.lease.record
    return replace(_reset_cost(work, at), needed=False, lease=None, release=release)


# -- time, and hints ---------------------------------------------------------------------------------------------------


def _on_timer(state: State, at: Moment, settings: LeaseSettings) -> Step:
    match state:
        case Held(lease=lease) if at.now >= lease.renew_at:
            return _write_hold(_work_for(lease, at), at, settings, IfMatch(lease.version), lease.record)
        case Waiting(work=work, until=until) if at.now >= until:
            return _read_object(work)
        case _:
            return state, ()


def _on_release_observed(state: State, at: Moment, settings: LeaseSettings, ahead: int) -> Step:
    match state:
        case Reading(work=work):
            return Reading(replace(work, ahead_at_release=ahead)), ()
        case Waiting(work=work) if _waits_for_holder(work):
            if ahead:
                return replace(
                    state, until=min(state.until, at.now + ahead * settings.queue_slot_seconds)
                ), ()
            return _read_object(replace(work, cost=Cost(0, at.now)))
        case _:
            return state, ()


def _on_acquisition_observed(state: State, at: Moment, settings: LeaseSettings, valid_until: int) -> Step:
    match state:
        case Reading(work=work):
            return Reading(replace(work, ahead_at_release=None)), ()
        case Waiting(work=work) if _waits_for_holder(work):
            lapses_in = (valid_until + settings.drift_ms - at.wall_ms) / 1000
            return replace(state, until=at.now + _poll_delay(at, settings, lapses_in)), ()
        case _:
            return state, ()


def _waits_for_holder(work: Work) -> bool:
    """Whether another's lock is waited for: a lease in doubt, a write in doubt and a release have their own times."""
    return work.acquiring and work.in_doubt is None


# -- what a read found -------------------------------------------------------------------------------------------------


def _on_read_done(work: Work, at: Moment, outcome: ReadOutcome, settings: LeaseSettings) -> Step:
    match outcome:
        case Throttled(why=why) | Unknown(why=why):
            return _back_off(work, at, settings, why)
        case Refused(why=why):
            return _on_refused(work, at, settings, why)
        case Absent():
            return _found_absent(work, at, settings)
        case Found(body=body, version=version):
            record = parse(body)
            if isinstance(record, Malformed):
                return _found_malformed(work, at, settings, record)
            if work.releasing:
                return _found_while_releasing(work, at, settings, record, version)
            return _found_while_needed(work, at, settings, record, version)
        case _:
            assert_never(outcome)


def _found_absent(work: Work, at: Moment, settings: LeaseSettings) -> Step:
    if work.releasing:
        return _finish_release(work, at, settings, why="the lock object is gone")
    if work.lease is not None:
        return _lose_lease(work, at, why="the lock object was deleted", holder=None)
    return _write_hold(work, at, settings, IfAbsent(), None)


def _found_malformed(work: Work, at: Moment, settings: LeaseSettings, malformed: Malformed) -> Step:
    why = f"the object is no lock record and is left alone: {malformed.why}"
    return (
        _on_refused(work, at, settings, why)
        if work.lease is None
        else _lose_lease(work, at, why=why, holder=None)
    )


def _found_while_releasing(
    work: Work, at: Moment, settings: LeaseSettings, record: LockRecord, version: str
) -> Step:
    ours = record.owner == work.own_id
    if ours and not record.expired:
        return _write_release(replace(work, release=record), at, version)
    return _finish_release(work, at, settings, why=None if ours else "another owner is in the lock object")


def _found_while_needed(
    work: Work, at: Moment, settings: LeaseSettings, record: LockRecord, version: str
) -> Step:
    ours = record.owner == work.own_id
    if work.lease is not None:
        if ours and not record.expired:
            return _write_hold(work, at, settings, IfMatch(version), record)
        if ours:
            return _lose_lease(work, at, why="somebody gave it back in our name", holder=None)
        return _lose_lease(work, at, why="another owner is in the lock object", holder=record.owner)
    if ours or record.expired:
        return _write_hold(work, at, settings, IfMatch(version), record)
    if work.observed is None or work.observed.version != version:
        work = replace(work, observed=ObservedVersion(version, at.now))
    binds_for = _seconds_to_respect(work, at, settings, record)
    if binds_for < 0:
        return _write_hold(work, at, settings, IfMatch(version), record)
    if record.owner == work.adopt:
        adopting = replace(work, former=FormerOwner(record.owner, at.now + binds_for))
        return _write_hold(adopting, at, settings, IfMatch(version), record)
    return _wait_for_holder(work, at, settings, record, binds_for)


def _wait_for_holder(
    work: Work, at: Moment, settings: LeaseSettings, record: LockRecord, binds_for: float
) -> Step:
    """Wait, for its end or for our turn, and tell for whom."""
    held = record.held_at(at.wall_ms, settings.drift_ms)
    why = "held by another" if held else "lapsed, but not yet seen unchanged for a whole lease"
    denied = LockDenied(why, fatal=False, cost=work.cost, holder=record.owner, held_until=record.valid_until)
    wait = _poll_delay(at, settings, binds_for)
    if work.ahead_at_release is not None:
        wait = work.ahead_at_release * settings.queue_slot_seconds
    return Waiting(replace(work, tries=0, cost=Cost(0, work.cost.since)), at.now + wait), (denied,)


def _seconds_to_respect(work: Work, at: Moment, settings: LeaseSettings, record: LockRecord) -> float:
    """For how many seconds somebody else's record must still be respected; below 0: it has lapsed."""
    lapses_in = (record.valid_until + settings.drift_ms - at.wall_ms) / 1000
    if not settings.strict or work.observed is None:
        return lapses_in
    return max(lapses_in, work.observed.since + settings.validity + settings.drift - at.now)


def _poll_delay(at: Moment, settings: LeaseSettings, binds_for: float) -> float:
    """How long a lock that binds for so long is left alone."""
    wait = min(max(binds_for, 0.0) + 0.001, settings.poll_seconds)
    return wait + at.jitter * min(1.0, settings.poll_seconds / 10)


# -- what became of a write --------------------------------------------------------------------------------------------


def _on_write_done(state: Writing, at: Moment, outcome: WriteOutcome, settings: LeaseSettings) -> Step:
    work, record = state.work, state.record
    match outcome:
        case Won() if record.expired:
            return _finish_release(work, at, settings, why=None)
        case Won(version=version) if not work.needed:
            return _write_release(replace(work, release=record, tries=0), at, version)
        case Won(version=version):
            return _confirm_lease(state, at, version, settings)
        case Lost(why=why):
            # Read back at once; where others keep winning the race, give them room.
            if work.tries < 3:
                return _read_object(replace(work, tries=work.tries + 1))
            return _back_off(work, at, settings, why)
        case Unknown(why=why):
            if not record.expired:
                work = replace(work, in_doubt=state.condition)
            # The first doubt is read back at once; the store may be in trouble if doubts go on.
            return (
                _read_object(replace(work, tries=1))
                if work.tries == 0
                else _back_off(work, at, settings, why)
            )
        case Throttled(why=why):
            return _back_off(work, at, settings, why)
        case Refused(why=why):
            return _on_refused(work, at, settings, why)
        case _:
            assert_never(outcome)


def _confirm_lease(state: Writing, at: Moment, version: str, settings: LeaseSettings) -> Step:
    work = state.work
    apart = at.jitter * min(at.now - state.sent_at, settings.renew_interval / 2)
    lease = Lease(
        state.record,
        version,
        expires_at=state.sent_at + settings.validity - settings.drift,
        renew_at=state.sent_at + settings.renew_interval + apart,
        former=work.former if _in_quiet_period(work, at) else None,
    )
    if at.now >= lease.expires_at - settings.margin:
        # The answer took longer than the lease is worth: it is ours in the object, so write it again before
        # relying on it.
        return _write_hold(replace(work, lease=None), at, settings, IfMatch(version), state.record)
    return Held(lease), (Confirmed("acquired" if work.lease is None else "renewed", lease, work.cost),)


def _finish_release(work: Work, at: Moment, settings: LeaseSettings, *, why: str | None) -> Step:
    """Done with giving it back; `why` it is not free by us."""
    done: tuple[Effect, ...] = ()
    if work.release is not None:
        done = (Released(work.release.owner, work.release.valid_until, work.cost, why),)
    if not work.needed:
        return _idle(work), done
    after, effects = _start_acquiring(_reset_cost(replace(work, lease=None, release=None), at), at, settings)
    return after, (*done, *effects)


def _lose_lease(work: Work, at: Moment, *, why: str, holder: str | None) -> Step:
    assert work.lease is not None
    # A lost lease is no longer `mine`: what we find from here on is judged as a challenger judges it.
    after = Waiting(Work(Cost(0, at.now), former=work.former), at.now)
    return after, (_lease_ended(work.lease, work.cost, why, holder),)


# -- no answer that decides --------------------------------------------------------------------------------------------


def _back_off(work: Work, at: Moment, settings: LeaseSettings, why: str) -> Step:
    tries = work.tries + 1
    if work.releasing and tries >= settings.release_tries:
        return _finish_release(work, at, settings, why=f"left to lapse: {why}")
    wait = min(settings.renew_interval, 0.05 * 2 ** min(tries, 8)) * (0.5 + at.jitter / 2)
    told: tuple[Effect, ...] = ()
    if work.acquiring and tries % settings.failures_per_report == 0:
        told = (LockDenied(f"it could not be taken yet: {why}", fatal=False, cost=work.cost),)
    return Waiting(replace(work, tries=tries), at.now + wait), told


def _on_refused(work: Work, at: Moment, settings: LeaseSettings, why: str) -> Step:
    if work.releasing:
        return _finish_release(work, at, settings, why=f"left to lapse: {why}")
    denied = LockDenied(why, fatal=True, cost=work.cost)
    wait = settings.refused_seconds if work.lease is None else settings.renew_interval
    return Waiting(_reset_cost(work, at), at.now + wait), (denied,)


# -- requests ----------------------------------------------------------------------------------------------------------


def _read_object(work: Work) -> Step:
    return Reading(replace(_count_request(work), ahead_at_release=None)), (Get(),)


def _write_hold(
    work: Work, at: Moment, settings: LeaseSettings, condition: Condition, before: LockRecord | None
) -> Step:
    ours = before is not None and before.owner == work.own_id
    same_condition = work.in_doubt == condition
    owner = work.own_id if work.own_id is not None and (ours or same_condition) else at.new_owner_id
    valid_until = at.wall_ms + round(settings.validity * 1000)
    if before is not None and (ours or before.held_at(at.wall_ms, settings.drift_ms)):
        # An end that is past binds nobody: one that was written with a wrong clock is not carried on.
        valid_until = max(valid_until, before.valid_until + 1)
    record = LockRecord(expired=False, valid_until=valid_until, owner=owner)
    work = replace(_count_request(work), own_id=owner, in_doubt=condition if same_condition else None)
    return Writing(work, record, condition, at.now), (Put(render(record), condition),)


def _write_release(work: Work, at: Moment, version: str) -> Step:
    assert work.release is not None
    if work.former is not None and _in_quiet_period(work, at):
        # The former owner may still rely on its lease: the object stays held until that has ended.
        return Waiting(replace(work, tries=0), until=work.former.until), ()
    record = replace(work.release, expired=True)
    condition = IfMatch(version)
    return Writing(_count_request(work), record, condition, at.now), (Put(render(record), condition),)


# -- pieces ------------------------------------------------------------------------------------------------------------


def _work_for(lease: Lease, at: Moment) -> Work:
    """What begins on a settled lease, which is still relied upon."""
    return Work(Cost(0, at.now), lease=lease, own_id=lease.record.owner, former=lease.former)


def _reset_cost(work: Work, at: Moment) -> Work:
    """Another undertaking: its tries and what it takes count from here."""
    return replace(work, tries=0, cost=Cost(0, at.now))


def _count_request(work: Work) -> Work:
    return replace(work, cost=Cost(work.cost.requests + 1, work.cost.since))


def _in_quiet_period(work: Work, at: Moment) -> bool:
    """Whether an adopted owner may still believe in its lease."""
    return work.former is not None and at.now < work.former.until


def _idle(work: Work) -> Idle:
    return Idle(work.own_id, work.former, work.in_doubt)


def _lease_ended(lease: Lease, cost: Cost, why: str, holder: str | None = None) -> LeaseEnded:
    return LeaseEnded(lease.record.owner, lease.record.valid_until, cost, why, holder)
