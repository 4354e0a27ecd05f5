"""Bugs that prove the oracles. Each is planted into the production code at one seam, and its oracle must find it.

| bug | found by | the rule that it breaks |
| --- | --- | --- |
| read-back trusted | no belief beyond expiry | an own record that is read back is written again before it is relied on |
| challenger's drift flipped | no lock stealing | a challenger waits the drift longer: its clock may be ahead |
| holder's drift flipped | no belief beyond expiry | a holder stops the drift earlier: the challenger's clock may be ahead |
| lease counted from the response | no belief beyond expiry | a lease counts from before its write was sent |
| 409 treated as lost | no self-block | after 409 the outcome is unknown; until it is settled, all writes have one owner |
| own record not recognised | no self-block | an own lock whose response was lost is acquired again (Hudi waits for its end) |
| own renewal treated as a loss | no false loss | a renewal that lost to an own write is no loss (Hudi interrupts its writer) |
| renewal without if-match | no lock stealing | a renewal that was delayed must not overwrite the next holder |
| unknown treated as won | confirmed version exists | an unknown outcome is read back |
| three read-backs | unknown outcomes settled | one read and one write settle an unknown outcome |
| validUntil repeated | unique versions | each write differs from all before it |
| strict rule ignored | no lock stealing | with clocks apart, a version must have stayed the same for a whole lease |
| quiet time ignored | one holder | an adopted lock covers no new grant while its former owner may believe in it |
| hand-over without proof | one holder | only an owner that left in order is adopted without a quiet time |
| margin ignored | expiry reported in time | an unconfirmed lease is ended early enough before its expiry to report it |
| lease ended too early | no loss without faults | a lease is renewed before it is in doubt |
| polls too often | bounded polling | a waiting agent sends no request for `poll_seconds` |
| never polls again | every contender acquires | and then it reads again |
| malformed object overwritten | foreign objects untouched | an object that is no lock record is never overwritten |
| malformed object crashes | no crash | such an object ends no agent |
| hints delay without bound | bounded silence | a hint delays the next read by `poll_seconds` at most |
| queue delays without bound | bounded silence | so does the queue, however many contenders it has |
| refusal is final | refusals waited out | a refusal is a doubt: an expired session or a wrong clock is corrected elsewhere |

A trusted read-back is harmless if the record found is the one in doubt and the lease is counted from its sending: the object
proves as much as the lost response would. It is dangerous because an owner id doesn't say which of its writes was found, and
an earlier one ends sooner. The bug is planted that way.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lakewarden.agent.stores import classify
from lakewarden.agent.stores.classify import Answer
from lakewarden.agent.stores.memory import Objects, version_of
from lakewarden.handlers.lease import machine as lease
from lakewarden.handlers.lease.conditional import (
    Condition,
    Found,
    IfMatch,
    Lost,
    ReadOutcome,
    Refused,
    Unknown,
    Won,
    WriteOutcome,
)
from lakewarden.handlers.lease.lock_object import LockRecord, Malformed, parse, render
from lakewarden.handlers.lease.types import LeaseSettings, Moment, State, Step, Waiting, Work, Writing
from tests.simulation.batch import Bugs, Patch

ANY_VERSION = "*"
"""As in HTTP: if-match with it holds for any object."""


def _read_back_trusted() -> list[Patch]:
    put_hold, found = lease._write_hold, lease._found_while_needed
    sent: dict[str, float] = {}

    def put_noting(work: Work, at: Moment, *rest: Any) -> Step:
        state, effects = put_hold(work, at, *rest)
        assert isinstance(state, Writing)
        sent[state.record.owner] = at.now
        return state, effects

    def found_trusting(
        work: Work, at: Moment, settings: LeaseSettings, record: LockRecord, version: str
    ) -> Step:
        if record.owner == work.own_id and not record.expired:
            landed = Writing(work, record, IfMatch(version), sent[record.owner])
            return lease._confirm_lease(landed, at, version, settings)
        return found(work, at, settings, record, version)

    return [(lease, "_write_hold", put_noting), (lease, "_found_while_needed", found_trusting)]


def _challengers_drift_flipped() -> list[Patch]:
    held_at, binds_for = LockRecord.held_at, lease._seconds_to_respect

    def held(self: LockRecord, wall_ms: int, drift_ms: int) -> bool:
        return held_at(self, wall_ms, -drift_ms)

    def binds(work: Work, at: Moment, settings: LeaseSettings, record: LockRecord) -> float:
        return binds_for(work, at, replace(settings, drift=-settings.drift), record)

    return [(LockRecord, "held_at", held), (lease, "_seconds_to_respect", binds)]


def _holders_drift_flipped() -> list[Patch]:
    confirmed = lease._confirm_lease

    def flipped(state: Writing, at: Moment, version: str, settings: LeaseSettings) -> Step:
        return confirmed(state, at, version, replace(settings, drift=-settings.drift))

    return [(lease, "_confirm_lease", flipped)]


def _lease_counted_from_response() -> list[Patch]:
    confirmed = lease._confirm_lease

    def late(state: Writing, at: Moment, version: str, settings: LeaseSettings) -> Step:
        return confirmed(replace(state, sent_at=at.now), at, version, settings)

    return [(lease, "_confirm_lease", late)]


def _conflict_treated_as_lost() -> list[Patch]:
    row_of = classify.row_of

    def lost(answer: Answer, condition: Condition | None) -> classify.Row:
        return row_of(replace(answer, status=412) if answer.status == 409 else answer, condition)

    return [(classify, "row_of", lost)]


def _own_record_not_recognised() -> list[Patch]:
    found = lease._found_while_needed

    def strange(work: Work, *rest: Any) -> Step:
        return found(work if work.lease else replace(work, own_id=None), *rest)

    return [(lease, "_found_while_needed", strange)]


def _own_renewal_treated_as_loss() -> list[Patch]:
    found = lease._found_while_needed

    def killed(work: Work, at: Moment, settings: LeaseSettings, record: LockRecord, version: str) -> Step:
        if work.lease is not None and version != work.lease.version:
            return lease._lose_lease(work, at, why="another version is there", holder=record.owner)
        return found(work, at, settings, record, version)

    return [(lease, "_found_while_needed", killed)]


def _renewal_without_if_match() -> list[Patch]:
    put_hold, put = lease._write_hold, Objects.put

    def unconditional(
        work: Work, at: Moment, settings: LeaseSettings, condition: Condition, *rest: Any
    ) -> Step:
        renews = work.lease is not None
        return put_hold(work, at, settings, IfMatch(ANY_VERSION) if renews else condition, *rest)

    def put_over(self: Objects, key: str, body: bytes, condition: Condition) -> Won | Lost:
        found = self.get(key)
        if condition == IfMatch(ANY_VERSION) and isinstance(found, Found):
            condition = IfMatch(found.version)
        return put(self, key, body, condition)

    return [(lease, "_write_hold", unconditional), (Objects, "put", put_over)]


def _unknown_treated_as_won() -> list[Patch]:
    wrote = lease._on_write_done

    def trusting(state: Writing, at: Moment, outcome: WriteOutcome, settings: LeaseSettings) -> Step:
        won = Won(version_of(render(state.record)))
        return wrote(state, at, won if isinstance(outcome, Unknown) else outcome, settings)

    return [(lease, "_on_write_done", trusting)]


def _three_read_backs() -> list[Patch]:
    read = lease._on_read_done

    def reading(work: Work, at: Moment, outcome: ReadOutcome, settings: LeaseSettings) -> Step:
        if isinstance(outcome, Found) and 0 < work.tries < 3:
            return lease._read_object(replace(work, tries=work.tries + 1))
        return read(work, at, outcome, settings)

    return [(lease, "_on_read_done", reading)]


def _valid_until_repeated() -> list[Patch]:
    put_hold = lease._write_hold

    def coarse(work: Work, at: Moment, settings: LeaseSettings, condition: Condition, _: Any) -> Step:
        lease_ms = round(settings.validity * 1000)
        same = replace(
            at, wall_ms=at.wall_ms // lease_ms * lease_ms, new_owner_id=work.own_id or at.new_owner_id
        )
        return put_hold(work, same, settings, condition, None)

    return [(lease, "_write_hold", coarse)]


def _strict_rule_ignored() -> list[Patch]:
    binds_for = lease._seconds_to_respect

    def binds(work: Work, at: Moment, settings: LeaseSettings, record: LockRecord) -> float:
        return binds_for(work, at, replace(settings, strict=False), record)

    return [(lease, "_seconds_to_respect", binds)]


def _quiet_time_ignored() -> list[Patch]:
    confirmed = lease._confirm_lease

    def loud(state: Writing, *rest: Any) -> Step:
        return confirmed(replace(state, work=replace(state.work, former=None)), *rest)

    return [(lease, "_confirm_lease", loud)]


def _handed_over_without_proof() -> list[Patch]:
    needed = lease._mark_needed

    def trusting(work: Work, wanted: lease.Acquire) -> Work:
        return needed(work, replace(wanted, handed_over=True))

    return [(lease, "_mark_needed", trusting)]


def _margin_of(share: Callable[[LeaseSettings], float]) -> list[Patch]:
    give_up, deadline = lease._end_unconfirmed_lease, lease.deadline

    def given_up(state: State, at: Moment, settings: LeaseSettings) -> Step:
        return give_up(state, at, replace(settings, margin=share(settings)))

    def due(state: State, settings: LeaseSettings) -> float | None:
        return deadline(state, replace(settings, margin=share(settings)))

    return [(lease, "_end_unconfirmed_lease", given_up), (lease, "deadline", due)]


def _poll_delay_of(seconds: Callable[[LeaseSettings], float]) -> list[Patch]:
    def patience(_: Moment, settings: LeaseSettings, __: float) -> float:
        return seconds(settings)

    return [(lease, "_poll_delay", patience)]


def _malformed_object_overwritten() -> list[Patch]:
    read = lease._on_read_done

    def overwriting(work: Work, at: Moment, outcome: ReadOutcome, settings: LeaseSettings) -> Step:
        if isinstance(outcome, Found) and isinstance(parse(outcome.body), Malformed) and work.needed:
            return lease._write_hold(replace(work, lease=None), at, settings, IfMatch(outcome.version), None)
        return read(work, at, outcome, settings)

    return [(lease, "_on_read_done", overwriting)]


def _malformed_object_crashes() -> list[Patch]:
    def trusting(body: bytes) -> LockRecord:
        fields = json.loads(body)
        return LockRecord(fields["expired"], fields["validUntil"], fields["owner"])

    return [(lease, "parse", trusting)]


def _refusal_is_final() -> list[Patch]:
    def final(work: Work, at: Moment, settings: LeaseSettings, refused: Refused) -> Step:
        return lease._found_unusable(work, at, settings, refused.why)

    return [(lease, "_on_refused", final)]


def _hints_delay_without_bound() -> list[Patch]:
    observed = lease._on_acquisition_observed

    def delayed(state: State, at: Moment, settings: LeaseSettings, valid_until: int) -> Step:
        after, effects = observed(state, at, settings, valid_until)
        if isinstance(after, Waiting) and isinstance(state, Waiting) and after.work.read_by is not None:
            after = replace(after, work=replace(after.work, read_by=math.inf))
        return after, effects

    return [(lease, "_on_acquisition_observed", delayed)]


def _queue_delays_without_bound() -> list[Patch]:
    start = lease._start_acquiring

    def started(work: Work, at: Moment, settings: LeaseSettings) -> Step:
        after, effects = start(work, at, settings)
        if isinstance(after, Waiting):
            after = replace(after, until=at.now + work.ahead * settings.queue_slot_seconds)
        return after, effects

    return [(lease, "_start_acquiring", started)]


BUGS: Bugs = {
    "read-back trusted": ("no belief beyond expiry", _read_back_trusted),
    "challenger's drift flipped": ("no lock stealing", _challengers_drift_flipped),
    "holder's drift flipped": ("no belief beyond expiry", _holders_drift_flipped),
    "lease counted from the response": ("no belief beyond expiry", _lease_counted_from_response),
    "409 treated as lost": ("no self-block", _conflict_treated_as_lost),
    "own record not recognised": ("no self-block", _own_record_not_recognised),
    "own renewal treated as a loss": ("no false loss", _own_renewal_treated_as_loss),
    "renewal without if-match": ("no lock stealing", _renewal_without_if_match),
    "unknown treated as won": ("confirmed version exists", _unknown_treated_as_won),
    "three read-backs": ("unknown outcomes settled", _three_read_backs),
    "validUntil repeated": ("unique versions", _valid_until_repeated),
    "strict rule ignored": ("no lock stealing", _strict_rule_ignored),
    "quiet time ignored": ("one holder", _quiet_time_ignored),
    "hand-over without proof": ("one holder", _handed_over_without_proof),
    "margin ignored": ("expiry reported in time", lambda: _margin_of(lambda _: -0.001)),
    "lease ended too early": (
        "no loss without faults",
        lambda: _margin_of(lambda settings: 0.94 * settings.validity),
    ),
    "polls too often": (
        "bounded polling",
        lambda: _poll_delay_of(lambda settings: settings.poll_seconds / 10),
    ),
    "never polls again": (
        "every contender acquires",
        lambda: _poll_delay_of(lambda settings: 1_000 * settings.validity),
    ),
    "malformed object overwritten": ("foreign objects untouched", _malformed_object_overwritten),
    "malformed object crashes": ("no crash", _malformed_object_crashes),
    "hints delay without bound": ("bounded silence", _hints_delay_without_bound),
    "queue delays without bound": ("bounded silence", _queue_delays_without_bound),
    "refusal is final": ("refusals waited out", _refusal_is_final),
}
