"""The table's lock as a lease in one object: a pure automaton. Every transition is in this file.

    Idle ──want──▶ Reading ──absent · released · lapsed──▶ Writing ──won──▶ Held ──renew_at──▶ Writing …
                     │ held by another                        │ lost · unknown
                     ▼                                        ▼
                  Waiting ◀──────── back off ──────────── Reading (read back)

Rules
- A write is *won, lost, throttled, unknown* or *refused*. Unknown and lost are both read back: a lost write may
  be our own whose first answer went missing. What the read-back finds decides: ours and live → a second write
  under the version just read, before anything is trusted; somebody else's → lost; unreadable → still unknown,
  again after a jittered back-off, and told now and then while it goes on. A write whose answer was lost may land
  late: until the version under which it was sent is gone, further writes bear its owner, so that whichever of them
  lands is known as ours.
- The holder counts from *before* it sent the write, on its own monotonic clock, and stops `drift` early; a
  challenger waits until `validUntil` is past by `drift` on its wall clock. Every write differs from the one
  before it: another owner, another `expired`, or a `validUntil` that strictly rises; so no version comes twice.
  The `validUntil` of another owner is exceeded only while it binds: a wrong clock's far future is not inherited.
- Renewal starts `renew_interval` after the last write was sent, and later by chance where that write took long: many that
  fell due together, and had to wait for each other, part again. A lease that is not confirmed `margin` before its
  end is given up then: whoever relies on it has that long to hear of it.
- Held by another: the object is read again at the holder's end, or after `poll_seconds`, whichever comes first,
  with jitter.
- Strict: somebody else's lapsed lock is taken over only when its version has stayed the same for a whole lease and
  the drift on our own monotonic clock: a live holder renews sooner than that, whatever its clock says. Assumes that
  nobody's lease is longer than ours. A released lock needs no such proof.
- What other agents tell of the lock are hints that save waiting, never proof: they move the time of the next read,
  nothing else. Heard to be released: whoever waits first reads at once; each one behind gives those before it
  `turn_seconds` each. Heard to be taken: as after a read that found it held. Wanted while others wait: ours is the
  last turn. A read that is under way while it is heard to be released may find what was there before: if it does, the
  object is read again, in our turn.
- An object that is no lock record, and a store that forbids, refuse the lock: reported, never overwritten, tried
  again after `refused_seconds` because a person may have mended it.
- Release writes `expired` and keeps `validUntil`. It is tried again while the store doubts, at most
  `release_tries` times; then the lease is left to lapse. The lease is not relied upon from the moment release was
  asked for. Dropped while a write is in doubt: what it did is read back first, and released.
- Adoption: an owner that the log names as holder of a running grant is replaced by a fresh one under its version.
  The former owner may be alive and believe in its lease: until that has ended (`quiet_until`) the lock covers the
  running grant and no new one, and the object is not released.

What goes in and comes out, and the states themselves, are in `lease_types.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeGuard, assert_never

from lakewarden.handlers.conditional import (
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
from lakewarden.handlers.lease_types import (
    Confirmed,
    Drop,
    Effect,
    Get,
    HeardReleased,
    HeardTaken,
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
    Released,
    Spent,
    State,
    Step,
    Timer,
    Waiting,
    Want,
    Watched,
    Work,
    WriteDone,
    Writing,
)
from lakewarden.handlers.lock_object import LockRecord, Malformed, parse, render

__all__ = [
    "Confirmed",
    "Drop",
    "Effect",
    "Get",
    "HeardReleased",
    "HeardTaken",
    "Held",
    "Idle",
    "IllegalInputError",
    "Input",
    "Lease",
    "LeaseEnded",
    "LeaseSettings",
    "LockDenied",
    "Moment",
    "Put",
    "ReadDone",
    "Reading",
    "Released",
    "Spent",
    "State",
    "Timer",
    "Waiting",
    "Want",
    "Watched",
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
    match state:
        case Idle():
            return None
        case Held(lease=lease):
            return min(lease.renew_at, lease.expires_at - settings.margin)
        case Waiting(work=work, until=until):
            return until if work.lease is None else min(until, work.lease.expires_at - settings.margin)
        case Reading(work=work) | Writing(work=work):
            return None if work.lease is None else work.lease.expires_at - settings.margin
        case _:
            assert_never(state)


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
    state, ended = _give_up_in_time(state, given.at, settings)
    after, effects = _step(state, given, settings)
    return after, (*ended, *effects)


def _step(state: State, given: Input, settings: LeaseSettings) -> Step:
    at = given.at
    match given:
        case Want(adopt=adopt, ahead=ahead):
            return _want(state, at, settings, adopt, ahead)
        case Drop():
            return _drop(state, at)
        case ReadDone(outcome=outcome):
            if not isinstance(state, Reading):
                raise IllegalInputError(state, given)
            return _read(state.work, at, outcome, settings)
        case WriteDone(outcome=outcome):
            if not isinstance(state, Writing):
                raise IllegalInputError(state, given)
            return _wrote(state, at, outcome, settings)
        case Timer():
            return _timer(state, at, settings)
        case HeardReleased(ahead=ahead):
            return _heard_released(state, at, settings, ahead)
        case HeardTaken(valid_until=valid_until):
            return _heard_taken(state, at, settings, valid_until)
        case _:
            assert_never(given)


def _give_up_in_time(state: State, at: Moment, settings: LeaseSettings) -> Step:
    lease = lease_of(state)
    if lease is None or at.now < lease.expires_at - settings.margin:
        return state, ()
    spent = Spent(0, at.now) if isinstance(state, Held) else _work(state).spent
    ended = LeaseEnded(
        lease.record.owner, lease.record.valid_until, spent, why="the renewal could not be confirmed in time"
    )
    match state:
        case Held():
            after: State = Waiting(replace(_work_on(state, at), lease=None), until=at.now)
        case Reading(work=work):
            after = Reading(replace(work, lease=None))
        case Writing(work=work):
            after = replace(state, work=replace(work, lease=None))
        case Waiting(work=work):
            after = replace(state, work=replace(work, lease=None))
        case _:
            raise AssertionError(state)
    return after, (ended,)


def _work_on(held: Held, at: Moment) -> Work:
    """What begins on a settled lease, which is still relied upon."""
    lease = held.lease
    return Work(
        wanted=True,
        mine=held.mine,
        lease=lease,
        spent=Spent(0, at.now),
        quiet_until=lease.quiet_until,
        adopted=lease.adopted,
    )


def _work(state: State) -> Work:
    assert isinstance(state, Reading | Writing | Waiting)
    return state.work


def _want(state: State, at: Moment, settings: LeaseSettings, adopt: str | None, ahead: int) -> Step:
    match state:
        case Idle(mine=mine, quiet_until=quiet_until, adopted=adopted, doubt=doubt):
            return _in_turn(
                Work(
                    wanted=True,
                    mine=mine,
                    lease=None,
                    spent=Spent(0, at.now),
                    adopt=adopt,
                    quiet_until=quiet_until,
                    adopted=adopted,
                    ahead=ahead,
                    doubt=doubt,
                ),
                at,
                settings,
            )
        case Held():
            return state, ()
        case Reading(work=work):
            return Reading(replace(work, wanted=True, adopt=adopt or work.adopt, ahead=ahead)), ()
        case Writing(work=work):
            return replace(state, work=replace(work, wanted=True, adopt=adopt or work.adopt, ahead=ahead)), ()
        case Waiting(work=work):
            again = replace(work, wanted=True, adopt=adopt or work.adopt)
            if work.release is not None and at.now < work.quiet_until:
                # The release was being put off; the object is still ours.
                return _get(replace(again, release=None, spent=Spent(0, at.now)))
            return replace(state, work=again), ()
        case _:
            assert_never(state)


def _in_turn(work: Work, at: Moment, settings: LeaseSettings) -> Step:
    """Begin to take the lock; those who wait for it already come first."""
    if not work.ahead or work.adopt is not None:
        return _get(replace(work, ahead=0))
    denied = LockDenied("others wait for it", fatal=False, spent=work.spent)
    return Waiting(replace(work, ahead=0), at.now + work.ahead * settings.turn_seconds), (denied,)


def _heard_released(state: State, at: Moment, settings: LeaseSettings, ahead: int) -> Step:
    if isinstance(state, Reading):
        return Reading(replace(state.work, heard_free=ahead)), ()
    if not _waits_for_another(state):
        return state, ()
    if ahead:
        return replace(state, until=min(state.until, at.now + ahead * settings.turn_seconds)), ()
    return _get(replace(state.work, spent=Spent(0, at.now)))


def _heard_taken(state: State, at: Moment, settings: LeaseSettings, valid_until: int) -> Step:
    if isinstance(state, Reading):
        return Reading(replace(state.work, heard_free=None)), ()
    if not _waits_for_another(state):
        return state, ()
    lapses_in = (valid_until + settings.drift_ms - at.wall_ms) / 1000
    return replace(state, until=at.now + _patience(at, settings, lapses_in)), ()


def _waits_for_another(state: State) -> TypeGuard[Waiting]:
    """Not for its own next try: a lease in doubt and a release have their own times."""
    if not isinstance(state, Waiting):
        return False
    work = state.work
    return work.wanted and work.lease is None and work.release is None and work.doubt is None


def _drop(state: State, at: Moment) -> Step:
    match state:
        case Idle():
            return state, ()
        case Held(lease=lease):
            work = replace(_work_on(state, at), wanted=False, lease=None, release=lease.record)
            return _put_release(work, at, lease.version)
        case Waiting(work=work):
            if work.lease is not None:
                released = replace(
                    work, wanted=False, lease=None, release=work.lease.record, spent=Spent(0, at.now)
                )
                return _put_release(released, at, work.lease.version)
            if work.release is None and work.doubt is None:
                return _idle(work), ()
            # A write that we don't know the fate of may have taken the lock: it is read back, and released.
            return replace(state, work=replace(work, wanted=False, tries=0, spent=Spent(0, at.now))), ()
        case Reading(work=work):
            release = work.release or (work.lease.record if work.lease else None)
            spent = Spent(1, at.now)
            return Reading(replace(work, wanted=False, lease=None, release=release, tries=0, spent=spent)), ()
        case Writing(work=work):
            # What this write does to the object is known when it answers; then it is released.
            spent = Spent(1, at.now)
            return replace(state, work=replace(work, wanted=False, lease=None, tries=0, spent=spent)), ()
        case _:
            assert_never(state)


def _timer(state: State, at: Moment, settings: LeaseSettings) -> Step:
    match state:
        case Held(lease=lease) if at.now >= lease.renew_at:
            return _put_hold(_work_on(state, at), at, settings, IfMatch(lease.version), lease.record)
        case Waiting(work=work, until=until) if at.now >= until:
            return _get(work)
        case _:
            return state, ()


def _read(work: Work, at: Moment, outcome: ReadOutcome, settings: LeaseSettings) -> Step:
    match outcome:
        case Throttled(why=why) | Unknown(why=why):
            return _back_off(work, at, settings, why)
        case Refused(why=why):
            return _refused(work, at, settings, why)
        case Absent():
            return _found_absent(work, at, settings)
        case Found(body=body, version=version):
            record = parse(body)
            if isinstance(record, Malformed):
                return _malformed(work, at, settings, record)
            if work.release is not None or not work.wanted:
                return _found_while_releasing(work, at, settings, record, version)
            return _found_while_wanted(work, at, settings, record, version)
        case _:
            assert_never(outcome)


def _found_absent(work: Work, at: Moment, settings: LeaseSettings) -> Step:
    if work.release is not None or not work.wanted:
        return _released(work, at, settings, why="the lock object is gone")
    if work.lease is not None:
        return _lost(work, at, why="the lock object was deleted", holder=None)
    return _put_hold(work, at, settings, IfAbsent(), None)


def _found_while_wanted(
    work: Work, at: Moment, settings: LeaseSettings, record: LockRecord, version: str
) -> Step:
    ours = record.owner == work.mine
    if work.lease is not None:
        if ours and not record.expired:
            return _put_hold(work, at, settings, IfMatch(version), record)
        if ours:
            return _lost(work, at, why="somebody gave it back in our name", holder=None)
        return _lost(work, at, why="another owner is in the lock object", holder=record.owner)
    if ours or record.expired:
        return _put_hold(work, at, settings, IfMatch(version), record)
    if work.watched is None or work.watched.version != version:
        work = replace(work, watched=Watched(version, at.now))
    binds_for = _binds_for(work, at, settings, record)
    if binds_for < 0:
        return _put_hold(work, at, settings, IfMatch(version), record)
    if record.owner == work.adopt:
        adopting = replace(work, quiet_until=at.now + binds_for, adopted=record.owner)
        return _put_hold(adopting, at, settings, IfMatch(version), record)
    why = (
        "held by another"
        if record.held_at(at.wall_ms, settings.drift_ms)
        else "lapsed, but not yet seen unchanged for a whole lease"
    )
    denied = LockDenied(
        why, fatal=False, spent=work.spent, holder=record.owner, held_until=record.valid_until
    )
    if work.heard_free is None:
        until = at.now + _patience(at, settings, binds_for)
    else:
        until = at.now + work.heard_free * settings.turn_seconds
    return Waiting(replace(work, tries=0, spent=Spent(0, work.spent.since)), until), (denied,)


def _binds_for(work: Work, at: Moment, settings: LeaseSettings, record: LockRecord) -> float:
    """For how many seconds somebody else's record must still be respected; below 0: it has lapsed."""
    lapses_in = (record.valid_until + settings.drift_ms - at.wall_ms) / 1000
    if not settings.strict or work.watched is None:
        return lapses_in
    return max(lapses_in, work.watched.since + settings.validity + settings.drift - at.now)


def _patience(at: Moment, settings: LeaseSettings, binds_for: float) -> float:
    """How long a lock that binds for so long is left alone."""
    return min(max(binds_for, 0.0) + 0.001, settings.poll_seconds) + at.jitter * min(
        1.0, settings.poll_seconds / 10
    )


def _found_while_releasing(
    work: Work, at: Moment, settings: LeaseSettings, record: LockRecord, version: str
) -> Step:
    if record.owner == work.mine and not record.expired:
        return _put_release(replace(work, release=record), at, version)
    return _released(
        work, at, settings, why=None if record.owner == work.mine else "another owner is in the lock object"
    )


def _wrote(state: Writing, at: Moment, outcome: WriteOutcome, settings: LeaseSettings) -> Step:
    work, record = state.work, state.record
    match outcome:
        case Won() if record.expired:
            return _released(work, at, settings, why=None)
        case Won(version=version) if not work.wanted:
            return _put_release(replace(work, release=record, tries=0), at, version)
        case Won(version=version):
            return _confirmed(state, at, version, settings)
        case Lost(why=why):
            # Read back at once; where others keep winning the race, give them room.
            return (
                _get(replace(work, tries=work.tries + 1))
                if work.tries < 3
                else _back_off(work, at, settings, why)
            )
        case Unknown(why=why):
            if not record.expired:
                work = replace(work, doubt=state.condition)
            # The first doubt is read back at once; the store may be in trouble if doubts go on.
            return _get(replace(work, tries=1)) if work.tries == 0 else _back_off(work, at, settings, why)
        case Throttled(why=why):
            return _back_off(work, at, settings, why)
        case Refused(why=why):
            return _refused(work, at, settings, why)
        case _:
            assert_never(outcome)


def _confirmed(state: Writing, at: Moment, version: str, settings: LeaseSettings) -> Step:
    work = state.work
    apart = at.jitter * min(at.now - state.sent_at, settings.renew_interval / 2)
    lease = Lease(
        state.record,
        version,
        expires_at=state.sent_at + settings.validity - settings.drift,
        renew_at=state.sent_at + settings.renew_interval + apart,
        quiet_until=work.quiet_until,
        adopted=work.adopted if at.now < work.quiet_until else None,
    )
    if at.now >= lease.expires_at - settings.margin:
        # The answer took longer than the lease is worth: it is ours in the object, so write it again before
        # relying on it.
        return _put_hold(replace(work, lease=None), at, settings, IfMatch(version), state.record)
    what: Literal["acquired", "renewed"] = "acquired" if work.lease is None else "renewed"
    return Held(lease, state.record.owner), (Confirmed(what, lease, work.spent, lease.adopted),)


def _get(work: Work) -> Step:
    return Reading(replace(_spending(work), heard_free=None)), (Get(),)


def _put_hold(
    work: Work, at: Moment, settings: LeaseSettings, condition: Condition, before: LockRecord | None
) -> Step:
    ours = before is not None and before.owner == work.mine
    in_doubt = work.doubt == condition
    owner = work.mine if work.mine is not None and (ours or in_doubt) else at.fresh
    valid_until = at.wall_ms + round(settings.validity * 1000)
    if before is not None and (ours or before.held_at(at.wall_ms, settings.drift_ms)):
        # An end that is past binds nobody: one that was written with a wrong clock is not carried on.
        valid_until = max(valid_until, before.valid_until + 1)
    record = LockRecord(expired=False, valid_until=valid_until, owner=owner)
    work = replace(_spending(work), mine=owner, doubt=condition if in_doubt else None)
    return Writing(work, record, condition, at.now), (Put(render(record), condition),)


def _put_release(work: Work, at: Moment, version: str) -> Step:
    assert work.release is not None
    if at.now < work.quiet_until:
        # A former owner may still rely on its lease: the object stays held until that has ended.
        return Waiting(replace(work, tries=0), until=work.quiet_until), ()
    record = replace(work.release, expired=True)
    condition = IfMatch(version)
    return Writing(_spending(work), record, condition, at.now), (Put(render(record), condition),)


def _spending(work: Work) -> Work:
    return replace(work, spent=Spent(work.spent.requests + 1, work.spent.since))


def _back_off(work: Work, at: Moment, settings: LeaseSettings, why: str) -> Step:
    tries = work.tries + 1
    if (work.release is not None or not work.wanted) and tries >= settings.release_tries:
        return _released(work, at, settings, why=f"left to lapse: {why}")
    wait = min(settings.renew_interval, 0.05 * 2 ** min(tries, 8)) * (0.5 + at.jitter / 2)
    told: tuple[Effect, ...] = ()
    if work.wanted and work.lease is None and work.release is None and tries % settings.doubts_told == 0:
        told = (LockDenied(f"it could not be taken yet: {why}", fatal=False, spent=work.spent),)
    return Waiting(replace(work, tries=tries), at.now + wait), told


def _refused(work: Work, at: Moment, settings: LeaseSettings, why: str) -> Step:
    if work.release is not None or not work.wanted:
        return _released(work, at, settings, why=f"left to lapse: {why}")
    denied = LockDenied(why, fatal=True, spent=work.spent)
    wait = settings.refused_seconds if work.lease is None else settings.renew_interval
    return Waiting(replace(work, tries=0, spent=Spent(0, at.now)), at.now + wait), (denied,)


def _malformed(work: Work, at: Moment, settings: LeaseSettings, malformed: Malformed) -> Step:
    why = f"the object is no lock record and is left alone: {malformed.why}"
    if work.lease is not None:
        after, lost = _lost(work, at, why=why, holder=None)
        return after, lost
    return _refused(work, at, settings, why)


def _lost(work: Work, at: Moment, *, why: str, holder: str | None) -> Step:
    assert work.lease is not None
    record = work.lease.record
    ended = LeaseEnded(record.owner, record.valid_until, work.spent, why, holder)
    # A lost lease is no longer `mine`: what we find from here on is judged as a challenger judges it.
    after = Work(
        wanted=True,
        mine=None,
        lease=None,
        spent=Spent(0, at.now),
        quiet_until=work.quiet_until,
        adopted=work.adopted,
    )
    return Waiting(after, at.now), (ended,)


def _idle(work: Work) -> Idle:
    return Idle(work.mine, work.quiet_until, work.adopted, work.doubt)


def _released(work: Work, at: Moment, settings: LeaseSettings, *, why: str | None) -> Step:
    record = work.release
    done: tuple[Effect, ...] = ()
    if record is not None:
        done = (Released(record.owner, record.valid_until, work.spent, why),)
    if not work.wanted:
        return _idle(work), done
    work = replace(work, lease=None, release=None, tries=0, spent=Spent(0, at.now))
    after, effects = _in_turn(work, at, settings)
    return after, (*done, *effects)
