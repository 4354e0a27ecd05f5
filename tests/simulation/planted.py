"""Bugs that prove the oracles. Each is planted into the production code at one seam, and its oracle must find it.

A trusted read-back is harmless if the record found is the one in doubt and the lease is counted from its sending: the object
proves as much as the lost response would. It is dangerous because an owner id doesn't say which of its writes was found, and
an earlier one ends sooner. The bug is planted that way.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from lakewarden.handlers.lease import machine as lease, store_answers
from lakewarden.handlers.lease.conditional import Condition, Found, IfMatch, Refused, Unknown, Won
from lakewarden.handlers.lease.lock_object import LockRecord, Malformed, parse, render
from lakewarden.handlers.lease.store_answers import Answer
from lakewarden.handlers.lease.types import LeaseSettings, Moment, State, Step, Waiting, Work, Writing
from tests.servers.memory_store import Objects, version_of
from tests.simulation.batch import Bugs, Patch, around

BUGS = Bugs()

ANY_VERSION = "*"
"""As in HTTP: if-match with it holds for any object."""
Original: TypeAlias = Callable[..., Step]
"""A function of the lease. What a bug passes on to it unseen is its `rest`."""


def with_settings(what: str, **changes: Any) -> Patch:
    """A function of the lease that runs with other settings. A change may depend on the given ones."""

    def changed(original: Callable[..., Any], *arguments: Any) -> Any:
        return original(*(_changed(each, changes) for each in arguments))

    return around(lease, what, changed)


def _changed(given: Any, changes: dict[str, Any]) -> Any:
    if not isinstance(given, LeaseSettings):
        return given
    return replace(given, **{name: to(given) if callable(to) else to for name, to in changes.items()})


def _margin_of(share: Callable[[LeaseSettings], float]) -> tuple[Patch, ...]:
    """The rules of an unconfirmed lease with another margin."""
    rules = "_end_unconfirmed_lease", "deadline"
    return tuple(with_settings(what, margin=share) for what in rules)


_sent: dict[str, float] = {}


def _hold_noted(put_hold: Original, work: Work, at: Moment, *rest: Any) -> Step:
    state, effects = put_hold(work, at, *rest)
    assert isinstance(state, Writing)
    _sent[state.record.owner] = at.now
    return state, effects


def _found_trusted(found: Original, work: Work, at: Moment, *rest: Any) -> Step:
    settings, record, version = rest
    if record.owner == work.own_id and not record.expired:
        landed = Writing(work, record, IfMatch(version), _sent[record.owner])
        return lease._confirm_lease(landed, at, version, settings)
    return found(work, at, *rest)


# An own record that is read back is written again before it is relied on.
BUGS.add(
    "read-back trusted",
    "no belief beyond expiry",
    around(lease, "_write_hold", _hold_noted),
    around(lease, "_found_while_needed", _found_trusted),
)
# An unconfirmed lease is ended early enough before its expiry to report it.
BUGS.add("margin ignored", "expiry reported in time", *_margin_of(lambda _: -0.001))
# A lease is renewed before it is in doubt.
BUGS.add("lease ended too early", "no loss without faults", *_margin_of(lambda given: 0.94 * given.validity))
# A waiting agent sends no request for `poll_seconds`.
OFTEN = (lease, "_poll_delay", lambda _, given, __: given.poll_seconds / 10)
BUGS.add("polls too often", "bounded polling", OFTEN)
# And then it reads again.
NEVER = (lease, "_poll_delay", lambda _, given, __: 1000 * given.validity)
BUGS.add("never polls again", "every contender acquires", NEVER)


@BUGS.plant("lease counted from the response", "no belief beyond expiry", lease, "_confirm_lease")
def _lease_counted_from_response(confirmed: Original, state: Writing, at: Moment, *rest: Any) -> Step:
    """A lease counts from before its write was sent."""
    return confirmed(replace(state, sent_at=at.now), at, *rest)


@BUGS.plant("quiet time ignored", "one holder", lease, "_confirm_lease")
def _quiet_time_ignored(confirmed: Original, state: Writing, *rest: Any) -> Step:
    """An adopted lock covers no new grant while its former owner may believe in it."""
    return confirmed(replace(state, work=replace(state.work, former=None)), *rest)


@BUGS.plant("409 treated as lost", "no self-block", store_answers, "row_of")
def _conflict_treated_as_lost(
    row_of: Callable[..., store_answers.Row], answer: Answer, *rest: Any
) -> store_answers.Row:
    """After 409 the outcome is unknown; until it is settled, all writes have one owner."""
    lost = replace(answer, status=412, code="PreconditionFailed")
    return row_of(lost if answer.status == 409 else answer, *rest)


@BUGS.plant("own renewal treated as a loss", "no false loss", lease, "_found_while_needed")
def _own_renewal_treated_as_loss(found: Original, work: Work, at: Moment, *rest: Any) -> Step:
    """A renewal that lost to an own write is no loss (Hudi interrupts its writer)."""
    _, record, version = rest
    if work.lease is not None and version != work.lease.version:
        return lease._lose_lease(work, at, why="another version is there", holder=record.owner)
    return found(work, at, *rest)


def _any_version(put_hold: Original, work: Work, at: Moment, *rest: Any) -> Step:
    settings, condition, before = rest
    return put_hold(work, at, settings, IfMatch(ANY_VERSION) if work.lease else condition, before)


def _put_over(put: Callable[..., Any], self: Objects, key: str, body: bytes, condition: Condition) -> Any:
    found = self.get(key)
    if condition == IfMatch(ANY_VERSION) and isinstance(found, Found):
        condition = IfMatch(found.version)
    return put(self, key, body, condition)


# A renewal that was delayed must not overwrite the next holder.
BUGS.add(
    "renewal without if-match",
    "no lock stealing",
    around(lease, "_write_hold", _any_version),
    around(Objects, "put", _put_over),
)


@BUGS.plant("unknown treated as won", "confirmed version exists", lease, "_on_write_done")
def _unknown_treated_as_won(wrote: Original, state: Writing, at: Moment, outcome: object, *rest: Any) -> Step:
    """An unknown outcome is read back."""
    won = Won(version_of(render(state.record)))
    return wrote(state, at, won if isinstance(outcome, Unknown) else outcome, *rest)


@BUGS.plant("three read-backs", "unknown outcomes settled", lease, "_on_read_done")
def _three_read_backs(read: Original, work: Work, at: Moment, outcome: object, *rest: Any) -> Step:
    """One read and one write settle an unknown outcome."""
    if isinstance(outcome, Found) and 0 < work.tries < 3:
        return lease._read_object(replace(work, tries=work.tries + 1))
    return read(work, at, outcome, *rest)


@BUGS.plant("validUntil repeated", "unique versions", lease, "_write_hold")
def _valid_until_repeated(put_hold: Original, work: Work, at: Moment, *rest: Any) -> Step:
    """Each write differs from all before it."""
    settings, condition, _ = rest
    lease_ms = round(settings.validity * 1000)
    owner = work.own_id or at.new_owner_id
    same = replace(at, wall_ms=at.wall_ms // lease_ms * lease_ms, new_owner_id=owner)
    return put_hold(work, same, settings, condition, None)


@BUGS.plant("malformed object overwritten", "foreign objects untouched", lease, "_on_read_done")
def _malformed_object_overwritten(
    read: Original, work: Work, at: Moment, outcome: object, *rest: Any
) -> Step:
    """An object that is not a lock record is never overwritten."""
    if isinstance(outcome, Found) and isinstance(parse(outcome.body), Malformed) and work.needed:
        return lease._write_hold(replace(work, lease=None), at, rest[0], IfMatch(outcome.version), None)
    return read(work, at, outcome, *rest)


@BUGS.plant("malformed object crashes", "no crash", lease, "parse")
def _malformed_object_crashes(_: object, body: bytes) -> LockRecord:
    """Such an object ends no agent."""
    fields = json.loads(body)
    return LockRecord(fields["expired"], fields["validUntil"], fields["owner"])


@BUGS.plant("refusal is final", "refusals waited out", lease, "_on_refused")
def _refusal_is_final(_: object, work: Work, at: Moment, settings: LeaseSettings, refused: Refused) -> Step:
    """A refusal is a doubt: an expired session or a wrong clock is corrected elsewhere."""
    return lease._found_unusable(work, at, settings, refused.why)


@BUGS.plant("hints delay without bound", "bounded silence", lease, "_on_acquisition_hint")
def _hints_delay_without_bound(observed: Original, state: State, *rest: Any) -> Step:
    """A hint delays the next read by `poll_seconds` at most."""
    after, effects = observed(state, *rest)
    if isinstance(after, Waiting) and isinstance(state, Waiting) and after.work.read_by is not None:
        after = replace(after, work=replace(after.work, read_by=math.inf))
    return after, effects


@BUGS.plant("queue delays without bound", "bounded silence", lease, "_start_acquiring")
def _queue_delays_without_bound(start: Original, work: Work, at: Moment, settings: LeaseSettings) -> Step:
    """So does the queue, however many contenders it has."""
    after, effects = start(work, at, settings)
    if isinstance(after, Waiting):
        after = replace(after, until=at.now + work.ahead * settings.queue_slot_seconds)
    return after, effects
