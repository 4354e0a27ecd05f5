"""The lock of a table, kept as a lease in one object: a pure automaton. All transitions are in this file.

The object and its protocol are those of Hudi's storage-based lock (RFC-91). This automaton adds rules for lost answers, clocks
that differ, many contenders, and a holder that dies while a grant runs. `types.py` has the inputs, effects and states.

    Idle ──acquire──▶ Reading ──absent · released · lapsed──▶ Writing ──won──▶ Held ──renew_at──▶ Writing …
                        │ held by another owner                 │ lost · unknown
                        ▼                                       ▼
                     Waiting ◀──────── back off ─────────── Reading (read back)

Possible next states (`any`: all five). A response without an outstanding request is a programming error (`illegal`):

    input                 Idle              Reading       Writing  Held              Waiting
    acquire               Reading, Waiting  Reading       Writing  Held              Waiting, Reading
    release               Idle              Reading       Writing  Writing, Waiting  Idle, Writing, Waiting
    timer                 Idle              Reading       Writing  Held, Writing     Waiting, Reading
    release hint          Idle              Reading       Writing  Held              Waiting, Reading
    acquisition hint      Idle              Reading       Writing  Held              Waiting
    read done             illegal           any but Held  illegal  illegal           illegal
    write done            illegal           illegal       any      illegal           illegal

Before any of these, the automaton ends a lease that is within `margin` of its end (see Time): Held becomes Waiting; the other
states stay.

Writes
- The outcome of a write is *won, lost, throttled, unknown* or *refused* (`conditional.py`). After lost and unknown the automaton
  reads the object back: a lost write may be a retry of our own first one. The read decides:

    it finds                  the write
    our owner id, live        counts as ours, but the automaton writes again under the version just read before it relies on it
    another owner, live       is lost
    no answer                 is still unknown: read again after a back-off with jitter; reported after every few failures

- A write whose answer was lost can take effect later. Until the version under which it was sent is gone, further writes use the
  same owner id. So whichever of them takes effect is recognised as ours.
- Each write differs from the one before: in the owner, in `expired`, or by a larger `validUntil`. So no version occurs twice.
- A write exceeds the `validUntil` of another owner only while that lease is in force, so it doesn't inherit the far future of a
  wrong clock.

Time
- A lease counts from *before* its write was sent, by the holder's monotonic clock, and the holder stops `drift` early. A
  contender waits until `validUntil` is past by `drift`, by its wall clock. So two agents are `2 * drift` apart, and one `drift`
  covers their wall clocks. The holder's half is needed beside Hudi's provider, which waits only half the drift. Between agents it
  is the reserve for clocks of different rates: `tests/exhaustive/` shows both.
- A renewal starts `renew_interval` after the last write was sent. If that write took long, a random delay is added: renewals of
  many locks that were due at once, and had to wait for each other, spread out.
- A lease that is not confirmed `margin` before its end is ended then. So the caller has that long to stop.
- `strict`: another owner's lapsed lock is acquired only if its version stayed the same for a whole lease plus the drift, by our
  own monotonic clock. A live holder renews sooner than that, even if its wall clock is wrong. This assumes that no lease is
  longer than ours. A released lock needs no such observation.

Waiting
- Held by another owner: the object is read again when the lease ends or after `poll_seconds`, whichever comes first, with jitter.

Refusals
- A *refusal* is an answer of the store that rejects the request: 400, 401, 403, 307. A session token has expired, a clock is
  wrong, a permission is missing. Most of them are corrected elsewhere, within seconds. So a refusal is a doubt:

    the refused request                  the automaton
    renews a lease                       retries it with back-off; the lease ends `margin` before its end, as with no answer
    acquires                             retries it with back-off, and reports `refused`
    releases                             retries it, at most `release_tries` times

- The refusal *lasts* if at least `min_refusals` requests were refused over `refusal_seconds`, no lease is left, and no request
  in between confirmed the lease or found another holder. It is reported as `refused-too-long`, and a new series begins.
- *Unusable* is what no retry can change: an object that is not a lock record, a store that ignores conditions. It ends a lease at
  once. The object is never overwritten. The automaton reads it again after `unusable_seconds`, as an operator may have fixed it.

Queue
- The audit events of other agents are hints that shorten waits, never proof: they change the time of the next read and nothing
  else.

    hint                                          next read
    the lock was released, first in the queue     immediately
    the lock was released, n contenders ahead     after n × `queue_slot_seconds`
    the lock was acquired by another agent        as after a read that found it held

- An `Acquire` while other contenders wait joins the end of the queue.
- Hints come from the network, so what they delay is bounded. No hint delays the next read beyond the time that was due without
  hints plus `poll_seconds`. The wait behind the queue is at most `poll_seconds`, however many contenders it has.
- If a release is hinted at while a read is outstanding, that read may have found the object as it was before. If it finds the
  lock held, the object is read again when our turn in the queue comes.

Release
- A release writes `expired` and keeps `validUntil`. It is retried while its outcome is not known, at most `release_tries` times.
  Then the lease is left to lapse, and the release is reported with the reason.
- From the moment of the `Release`, the lease is not relied upon.
- A `Release` while a write is outstanding or unknown: the automaton finds out what the write did, and releases that.
- An `Acquire` while a write that acquires or renews is outstanding cancels the `Release` before it.

Adoption
- The log may name an owner as the holder of a running grant. The automaton adopts that owner's live lease: it replaces the record
  under its version, with a new owner id.
- That owner may be alive and rely on its lease. Until that lease has ended (`quiet_until`), our lease covers the running
  grant but no new one, and the object is not released.
- A *fenced* owner is a former owner of our own Kafka partition, by its owner id. The automaton adopts its live lease whether a
  grant runs or not, and without a quiet period: the log has every grant of it that counts
  (docs/decisions/0058-a-former-owners-lock.md).
- Our owner ids begin with `owner_prefix`, so that the next owner can fence them. Those of a quiet period don't: the next owner
  must wait, too, for an adopted owner that is not fenced.
"""

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
    AcquisitionHint,
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
    Put,
    ReadDone,
    Reading,
    Refusal,
    Release,
    Released,
    ReleaseHint,
    SeenVersion,
    State,
    Step,
    Timer,
    Waiting,
    Work,
    WriteDone,
    Writing,
)

__all__ = [
    "HELD",
    "Acquire",
    "AcquisitionHint",
    "Confirmed",
    "Effect",
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
    "Put",
    "ReadDone",
    "Reading",
    "Release",
    "ReleaseHint",
    "Released",
    "State",
    "Timer",
    "Work",
    "WriteDone",
    "Writing",
    "deadline",
    "lease_of",
    "step",
]

HELD = "held by another owner"
"""Why a contender waits, while the lease of another owner runs."""


class IllegalInputError(Exception):
    """An input that this state can't have: a programming error of the caller."""

    def __init__(self, state: State, input_: Input) -> None:
        super().__init__(f"the lock automaton got {input_!r} in {state!r}")


def deadline(state: State, settings: LeaseSettings) -> float | None:
    """When the state needs a `Timer`, in monotonic seconds. None: it waits for other inputs only."""
    lease = lease_of(state)
    ends_at = None if lease is None else lease.expires_at - settings.margin
    match state:
        case Held(lease=lease):
            due: float | None = lease.renew_at
        case Waiting(until=until):
            due = until
        case Idle() | Reading() | Writing():
            due = None
        case _:
            assert_never(state)
    return min((each for each in (due, ends_at) if each is not None), default=None)


def lease_of(state: State) -> Lease | None:
    """The lease that the caller may rely on in this state."""
    match state:
        case Held(lease=lease):
            return lease
        case Reading(work=work) | Writing(work=work) | Waiting(work=work):
            return work.lease
        case Idle():
            return None
        case _:
            assert_never(state)


def step(state: State, input_: Input, settings: LeaseSettings) -> Step:
    """The next state and the effects. Raises `IllegalInputError` for a response without an outstanding request."""
    state, ended = _end_unconfirmed_lease(state, input_.at, settings)
    after, effects = _transition(state, input_, settings)
    return after, (*ended, *effects)


def _end_unconfirmed_lease(state: State, at: Moment, settings: LeaseSettings) -> Step:
    lease = lease_of(state)
    if lease is None or at.now < lease.expires_at - settings.margin:
        return state, ()
    if isinstance(state, Held):
        state = Waiting(_work_for(lease, at), until=at.now)
    assert not isinstance(state, Idle)
    refusal = state.work.refusal
    why = "the renewal was not confirmed in time" + ("" if refusal is None else f": {refusal.why}")
    ended = _lease_ended(lease, state.work.cost, why)
    return replace(state, work=replace(state.work, lease=None)), (ended,)


def _transition(state: State, input_: Input, settings: LeaseSettings) -> Step:
    at = input_.at
    match input_:
        case Acquire():
            return _on_acquire(state, input_, settings)
        case Release():
            return _on_release(state, at)
        case Timer():
            return _on_timer(state, at, settings)
        case ReleaseHint(ahead=ahead):
            return _on_release_hint(state, at, settings, ahead)
        case AcquisitionHint(valid_until=valid_until):
            return _on_acquisition_hint(state, at, settings, valid_until)
        case ReadDone(outcome=outcome):
            if not isinstance(state, Reading):
                raise IllegalInputError(state, input_)
            return _on_read_done(state.work, at, outcome, settings)
        case WriteDone(outcome=outcome):
            if not isinstance(state, Writing):
                raise IllegalInputError(state, input_)
            return _on_write_done(state, at, outcome, settings)
        case _:
            assert_never(input_)


# -- acquire and release -----------------------------------------------------------------------------------------------


def _on_acquire(state: State, wanted: Acquire, settings: LeaseSettings) -> Step:
    at = wanted.at
    match state:
        case Idle(own_id=own_id, former=former, in_doubt=in_doubt):
            work = Work(Cost(0, at.now), own_id=own_id, former=former, in_doubt=in_doubt)
            return _start_acquiring(_mark_needed(work, wanted), at, settings)
        case Held():
            return state, ()
        case Reading(work=work):
            return Reading(_mark_needed(work, wanted)), ()
        case Writing(work=work, record=record):
            work = _mark_needed(work, wanted)
            return replace(state, work=work if record.expired else replace(work, release=None)), ()
        case Waiting(work=work):
            work = _mark_needed(work, wanted)
            if work.release is not None and _in_quiet_period(work, at):
                # The release waits for the end of the quiet period, so the object is still ours.
                return _read_object(_reset_cost(replace(work, release=None), at))
            return replace(state, work=work), ()
        case _:
            assert_never(state)


def _mark_needed(work: Work, wanted: Acquire) -> Work:
    if wanted.adopt is not None:
        work = replace(work, adopt=wanted.adopt)
    return replace(work, needed=True, ahead=wanted.ahead)


def _start_acquiring(work: Work, at: Moment, settings: LeaseSettings) -> Step:
    """Start to acquire the lock, after the contenders that are in the queue."""
    if not work.ahead or work.adopt is not None:
        return _read_object(replace(work, ahead=0))
    denied = LockDenied("other agents are ahead in the queue", "waiting", work.cost)
    wait = min(work.ahead * settings.queue_slot_seconds, settings.poll_seconds)
    return Waiting(replace(work, ahead=0), at.now + wait), (denied,)


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
            # A write with an unknown outcome may have acquired the lock: it is read back, and released.
            return replace(state, work=_mark_released(work, at)), ()
        case Reading(work=work) | Writing(work=work):
            # The answer shows what the object contains; then it is released.
            work = replace(_mark_released(work, at), cost=Cost(1, at.now))
            return replace(state, work=work), ()
        case _:
            assert_never(state)


def _mark_released(work: Work, at: Moment) -> Work:
    release = work.release if work.lease is None else work.lease.record
    return replace(_reset_cost(work, at), needed=False, lease=None, release=release, refusal=None)


# -- timer and hints ---------------------------------------------------------------------------------------------------


def _on_timer(state: State, at: Moment, settings: LeaseSettings) -> Step:
    match state:
        case Held(lease=lease) if at.now >= lease.renew_at:
            return _write_hold(_work_for(lease, at), at, settings, IfMatch(lease.version), lease.record)
        case Waiting(work=work, until=until) if at.now >= until:
            return _read_object(work)
        case _:
            return state, ()


def _on_release_hint(state: State, at: Moment, settings: LeaseSettings, ahead: int) -> Step:
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


def _on_acquisition_hint(state: State, at: Moment, settings: LeaseSettings, valid_until: int) -> Step:
    match state:
        case Reading(work=work):
            return Reading(replace(work, ahead_at_release=None)), ()
        case Waiting(work=work) if _waits_for_holder(work):
            lapses_in = (valid_until + settings.drift_ms - at.wall_ms) / 1000
            read_by = state.until + settings.poll_seconds if work.read_by is None else work.read_by
            until = min(at.now + _poll_delay(at, settings, lapses_in), read_by)
            return Waiting(replace(work, read_by=read_by), until), ()
        case _:
            return state, ()


def _waits_for_holder(work: Work) -> bool:
    """Whether it waits for another owner's lock. Unconfirmed leases, unknown writes and releases have their own times."""
    return work.acquiring and work.in_doubt is None


# -- the answer to a read ----------------------------------------------------------------------------------------------


def _on_read_done(work: Work, at: Moment, outcome: ReadOutcome, settings: LeaseSettings) -> Step:
    match outcome:
        case Throttled(why=why) | Unknown(why=why):
            return _back_off(work, at, settings, why)
        case Refused() as refused:
            return _on_refused(work, at, settings, refused)
        case Absent():
            return _found_absent(work, at, settings)
        case Found(body=body, version=version):
            record = parse(body)
            if isinstance(record, Malformed):
                why = f"the object is not a lock record and is left unchanged: {record.why}"
                return _found_unusable(work, at, settings, why)
            if work.releasing:
                return _found_while_releasing(work, at, settings, record, version)
            return _found_while_needed(work, at, settings, record, version)
        case _:
            assert_never(outcome)


def _found_absent(work: Work, at: Moment, settings: LeaseSettings) -> Step:
    if work.releasing:
        return _finish_release(work, at, settings, why="the lock object was deleted")
    if work.lease is not None:
        return _lose_lease(work, at, why="the lock object was deleted", holder=None)
    return _write_hold(work, at, settings, IfAbsent(), None)


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
            return _lose_lease(work, at, why="another process released it in this owner's name", holder=None)
        return _lose_lease(work, at, why="another owner is in the lock object", holder=record.owner)
    if ours or record.expired:
        return _write_hold(work, at, settings, IfMatch(version), record)
    if work.observed is None or work.observed.version != version:
        work = replace(work, observed=SeenVersion(version, at.now))
    respect_for = _seconds_to_respect(work, at, settings, record)
    if respect_for < 0:
        return _write_hold(work, at, settings, IfMatch(version), record)
    former: FormerOwner | None = None
    if record.owner.startswith(settings.fenced):
        former = work.former if _in_quiet_period(work, at) else FormerOwner(record.owner, at.now, fenced=True)
    elif record.owner == work.adopt:
        former = FormerOwner(record.owner, at.now + respect_for)
    if former is not None:
        return _write_hold(replace(work, former=former), at, settings, IfMatch(version), record)
    return _wait_for_holder(work, at, settings, record, respect_for)


def _wait_for_holder(
    work: Work, at: Moment, settings: LeaseSettings, record: LockRecord, respect_for: float
) -> Step:
    """Wait for the end of the lease or for our turn in the queue, and report the holder."""
    held = record.held_at(at.wall_ms, settings.drift_ms)
    why = HELD if held else "lapsed, but not yet observed unchanged for a whole lease"
    denied = LockDenied(why, "waiting", work.cost, holder=record.owner, held_until=record.valid_until)
    wait = _poll_delay(at, settings, respect_for)
    if work.ahead_at_release is not None:
        wait = min(wait, work.ahead_at_release * settings.queue_slot_seconds)
    work = replace(work, tries=0, cost=Cost(0, work.cost.since), refusal=None)
    return Waiting(work, at.now + wait), (denied,)


def _seconds_to_respect(work: Work, at: Moment, settings: LeaseSettings, record: LockRecord) -> float:
    """For how many seconds another owner's record must still be respected. Negative: it has lapsed."""
    lapses_in = (record.valid_until + settings.drift_ms - at.wall_ms) / 1000
    if not settings.strict or work.observed is None:
        return lapses_in
    return max(lapses_in, work.observed.since + settings.validity + settings.drift - at.now)


def _poll_delay(at: Moment, settings: LeaseSettings, respect_for: float) -> float:
    """How long to wait before the next read of a lock that must be respected for so long."""
    wait = min(max(respect_for, 0.0) + 0.001, settings.poll_seconds)
    return wait + at.jitter * min(1.0, settings.poll_seconds / 10)


# -- the answer to a write ---------------------------------------------------------------------------------------------


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
            # Read back immediately. If other contenders keep winning, back off.
            if work.tries < 3:
                return _read_object(replace(work, tries=work.tries + 1))
            return _back_off(work, at, settings, why)
        case Unknown(why=why):
            if not record.expired:
                work = replace(work, in_doubt=state.condition)
            # The first unknown outcome is read back immediately. If they continue, the store may have trouble: back off.
            return (
                _read_object(replace(work, tries=1))
                if work.tries == 0
                else _back_off(work, at, settings, why)
            )
        case Throttled(why=why):
            return _back_off(work, at, settings, why)
        case Refused() as refused:
            return _on_refused(work, at, settings, refused)
        case _:
            assert_never(outcome)


def _confirm_lease(state: Writing, at: Moment, version: str, settings: LeaseSettings) -> Step:
    work = state.work
    spread = at.jitter * min(at.now - state.sent_at, settings.renew_interval / 2)
    lease = Lease(
        state.record,
        version,
        expires_at=state.sent_at + settings.validity - settings.drift,
        renew_at=state.sent_at + settings.renew_interval + spread,
        former=work.former
        if _in_quiet_period(work, at) or (work.lease is None and _is_fenced(work))
        else None,
    )
    if at.now >= lease.expires_at - settings.margin:
        # The answer took almost as long as the lease. The object is ours, so write again before relying on it.
        return _write_hold(replace(work, lease=None), at, settings, IfMatch(version), state.record)
    return Held(lease), (Confirmed("acquired" if work.lease is None else "renewed", lease, work.cost),)


def _finish_release(work: Work, at: Moment, settings: LeaseSettings, *, why: str | None) -> Step:
    """The release is over. `why`: it was not confirmed."""
    done: tuple[Effect, ...] = ()
    if work.release is not None:
        done = (Released(work.release.owner, work.release.valid_until, work.cost, why),)
    if not work.needed:
        return _idle(work), done
    after, effects = _start_acquiring(_reset_cost(replace(work, lease=None, release=None), at), at, settings)
    return after, (*done, *effects)


def _lose_lease(work: Work, at: Moment, *, why: str, holder: str | None) -> Step:
    assert work.lease is not None
    # The owner id of a lost lease is no longer ours: from now on we judge the object as any contender does.
    after = Waiting(Work(Cost(0, at.now), former=_kept_former(work)), at.now)
    return after, (_lease_ended(work.lease, work.cost, why, holder),)


# -- answers that decide nothing ---------------------------------------------------------------------------------------


def _back_off(work: Work, at: Moment, settings: LeaseSettings, why: str) -> Step:
    tries = work.tries + 1
    if work.releasing and tries >= settings.release_tries:
        return _finish_release(work, at, settings, why=f"left to lapse: {why}")
    reports: tuple[Effect, ...] = ()
    if work.acquiring and tries % settings.failures_per_report == 0:
        reports = (LockDenied(f"not acquired yet: {why}", "waiting", work.cost),)
    return _retry(work, at, settings), reports


def _retry(work: Work, at: Moment, settings: LeaseSettings) -> Waiting:
    """Retry after a back-off that grows with the tries."""
    tries = work.tries + 1
    return Waiting(replace(work, tries=tries), at.now + settings.next_wait(tries, at.jitter))


def _on_refused(work: Work, at: Moment, settings: LeaseSettings, refused: Refused) -> Step:
    if refused.unusable:
        return _found_unusable(work, at, settings, refused.why)
    if work.releasing:
        return _back_off(work, at, settings, refused.why)
    refusal = Refusal.after(work.refusal, at.now, refused.why)
    if work.acquiring and refusal.lasts(at.now, settings):
        seconds = at.now - refusal.since
        why = f"the store has refused {refusal.requests} requests in {seconds:.0f} s: {refused.why}"
        return _retry(replace(work, refusal=None), at, settings), (
            LockDenied(why, "refused-too-long", work.cost),
        )
    reports: tuple[Effect, ...] = ()
    if (refusal.requests - 1) % settings.failures_per_report == 0:
        what = "not acquired yet" if work.lease is None else "not renewed yet"
        reports = (LockDenied(f"{what}: {refused.why}", "refused", work.cost),)
    return _retry(replace(work, refusal=refusal), at, settings), reports


def _found_unusable(work: Work, at: Moment, settings: LeaseSettings, why: str) -> Step:
    if work.releasing:
        return _finish_release(work, at, settings, why=f"left to lapse: {why}")
    if work.lease is not None:
        return _lose_lease(work, at, why=why, holder=None)
    denied = LockDenied(why, "unusable", work.cost)
    return Waiting(_reset_cost(work, at), at.now + settings.unusable_seconds), (denied,)


# -- requests ----------------------------------------------------------------------------------------------------------


def _read_object(work: Work) -> Step:
    return Reading(replace(_count_request(work), ahead_at_release=None, read_by=None)), (Get(),)


def _write_hold(
    work: Work, at: Moment, settings: LeaseSettings, condition: Condition, before: LockRecord | None
) -> Step:
    ours = before is not None and before.owner == work.own_id
    same_condition = work.in_doubt == condition
    prefix = "" if _in_quiet_period(work, at) else settings.owner_prefix
    fresh = prefix + at.new_owner_id[len(prefix) :]
    owner = work.own_id if work.own_id is not None and (ours or same_condition) else fresh
    valid_until = at.wall_ms + round(settings.validity * 1000)
    if before is not None and (ours or before.held_at(at.wall_ms, settings.drift_ms)):
        # Exceed only a `validUntil` that is in force. One that a wrong clock wrote is not inherited.
        valid_until = max(valid_until, before.valid_until + 1)
    record = LockRecord(expired=False, valid_until=valid_until, owner=owner)
    work = replace(_count_request(work), own_id=owner, in_doubt=condition if same_condition else None)
    return Writing(work, record, condition, at.now), (Put(render(record), condition),)


def _write_release(work: Work, at: Moment, version: str) -> Step:
    assert work.release is not None
    if work.former is not None and _in_quiet_period(work, at):
        # The former owner may still rely on its lease. The object stays held until that lease has ended.
        return Waiting(replace(work, tries=0), until=work.former.until), ()
    record = replace(work.release, expired=True)
    condition = IfMatch(version)
    return Writing(_count_request(work), record, condition, at.now), (Put(render(record), condition),)


# -- parts -------------------------------------------------------------------------------------------------------------


def _work_for(lease: Lease, at: Moment) -> Work:
    """New work on a confirmed lease that the caller relies on."""
    return Work(Cost(0, at.now), lease=lease, own_id=lease.record.owner, former=lease.former)


def _reset_cost(work: Work, at: Moment) -> Work:
    """A new step begins: count its tries, requests and time from here."""
    return replace(work, tries=0, cost=Cost(0, at.now))


def _count_request(work: Work) -> Work:
    return replace(work, cost=Cost(work.cost.requests + 1, work.cost.since))


def _is_fenced(work: Work) -> bool:
    return work.former is not None and work.former.fenced


def _kept_former(work: Work) -> FormerOwner | None:
    """The former owner that may still rely on its lease. A fenced one is harmless."""
    return None if _is_fenced(work) else work.former


def _in_quiet_period(work: Work, at: Moment) -> bool:
    """Whether an adopted owner may still rely on its lease."""
    return work.former is not None and at.now < work.former.until


def _idle(work: Work) -> Idle:
    return Idle(work.own_id, _kept_former(work), work.in_doubt)


def _lease_ended(lease: Lease, cost: Cost, why: str, holder: str | None = None) -> LeaseEnded:
    return LeaseEnded(lease.record.owner, lease.record.valid_until, cost, why, holder)
