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

BUGS = Bugs()

ANY_VERSION = "*"
"""As in HTTP: if-match with it holds for any object."""


@BUGS.plant("read-back trusted", "no belief beyond expiry")
def _read_back_trusted() -> list[Patch]:
    """An own record that is read back is written again before it is relied on."""
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


@BUGS.plant("challenger's drift flipped", "no lock stealing")
def _challengers_drift_flipped() -> list[Patch]:
    """A challenger waits the drift longer: its clock may be ahead."""
    held_at, binds_for = LockRecord.held_at, lease._seconds_to_respect

    def held(self: LockRecord, wall_ms: int, drift_ms: int) -> bool:
        return held_at(self, wall_ms, -drift_ms)

    def binds(work: Work, at: Moment, settings: LeaseSettings, record: LockRecord) -> float:
        return binds_for(work, at, replace(settings, drift=-settings.drift), record)

    return [(LockRecord, "held_at", held), (lease, "_seconds_to_respect", binds)]


@BUGS.plant("holder's drift flipped", "no belief beyond expiry")
def _holders_drift_flipped() -> list[Patch]:
    """A holder stops the drift earlier: the challenger's clock may be ahead."""
    confirmed = lease._confirm_lease

    def flipped(state: Writing, at: Moment, version: str, settings: LeaseSettings) -> Step:
        return confirmed(state, at, version, replace(settings, drift=-settings.drift))

    return [(lease, "_confirm_lease", flipped)]


@BUGS.plant("lease counted from the response", "no belief beyond expiry")
def _lease_counted_from_response() -> list[Patch]:
    """A lease counts from before its write was sent."""
    confirmed = lease._confirm_lease

    def late(state: Writing, at: Moment, version: str, settings: LeaseSettings) -> Step:
        return confirmed(replace(state, sent_at=at.now), at, version, settings)

    return [(lease, "_confirm_lease", late)]


@BUGS.plant("409 treated as lost", "no self-block")
def _conflict_treated_as_lost() -> list[Patch]:
    """After 409 the outcome is unknown; until it is settled, all writes have one owner."""
    row_of = classify.row_of

    def lost(answer: Answer, condition: Condition | None) -> classify.Row:
        return row_of(replace(answer, status=412) if answer.status == 409 else answer, condition)

    return [(classify, "row_of", lost)]


@BUGS.plant("own record not recognised", "no self-block")
def _own_record_not_recognised() -> list[Patch]:
    """An own lock whose response was lost is acquired again (Hudi waits for its end)."""
    found = lease._found_while_needed

    def strange(work: Work, *rest: Any) -> Step:
        return found(work if work.lease else replace(work, own_id=None), *rest)

    return [(lease, "_found_while_needed", strange)]


@BUGS.plant("own renewal treated as a loss", "no false loss")
def _own_renewal_treated_as_loss() -> list[Patch]:
    """A renewal that lost to an own write is no loss (Hudi interrupts its writer)."""
    found = lease._found_while_needed

    def killed(work: Work, at: Moment, settings: LeaseSettings, record: LockRecord, version: str) -> Step:
        if work.lease is not None and version != work.lease.version:
            return lease._lose_lease(work, at, why="another version is there", holder=record.owner)
        return found(work, at, settings, record, version)

    return [(lease, "_found_while_needed", killed)]


@BUGS.plant("renewal without if-match", "no lock stealing")
def _renewal_without_if_match() -> list[Patch]:
    """A renewal that was delayed must not overwrite the next holder."""
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


@BUGS.plant("unknown treated as won", "confirmed version exists")
def _unknown_treated_as_won() -> list[Patch]:
    """An unknown outcome is read back."""
    wrote = lease._on_write_done

    def trusting(state: Writing, at: Moment, outcome: WriteOutcome, settings: LeaseSettings) -> Step:
        won = Won(version_of(render(state.record)))
        return wrote(state, at, won if isinstance(outcome, Unknown) else outcome, settings)

    return [(lease, "_on_write_done", trusting)]


@BUGS.plant("three read-backs", "unknown outcomes settled")
def _three_read_backs() -> list[Patch]:
    """One read and one write settle an unknown outcome."""
    read = lease._on_read_done

    def reading(work: Work, at: Moment, outcome: ReadOutcome, settings: LeaseSettings) -> Step:
        if isinstance(outcome, Found) and 0 < work.tries < 3:
            return lease._read_object(replace(work, tries=work.tries + 1))
        return read(work, at, outcome, settings)

    return [(lease, "_on_read_done", reading)]


@BUGS.plant("validUntil repeated", "unique versions")
def _valid_until_repeated() -> list[Patch]:
    """Each write differs from all before it."""
    put_hold = lease._write_hold

    def coarse(work: Work, at: Moment, settings: LeaseSettings, condition: Condition, _: Any) -> Step:
        lease_ms = round(settings.validity * 1000)
        same = replace(
            at, wall_ms=at.wall_ms // lease_ms * lease_ms, new_owner_id=work.own_id or at.new_owner_id
        )
        return put_hold(work, same, settings, condition, None)

    return [(lease, "_write_hold", coarse)]


@BUGS.plant("strict rule ignored", "no lock stealing")
def _strict_rule_ignored() -> list[Patch]:
    """With clocks apart, a version must have stayed the same for a whole lease."""
    binds_for = lease._seconds_to_respect

    def binds(work: Work, at: Moment, settings: LeaseSettings, record: LockRecord) -> float:
        return binds_for(work, at, replace(settings, strict=False), record)

    return [(lease, "_seconds_to_respect", binds)]


@BUGS.plant("quiet time ignored", "one holder")
def _quiet_time_ignored() -> list[Patch]:
    """An adopted lock covers no new grant while its former owner may believe in it."""
    confirmed = lease._confirm_lease

    def loud(state: Writing, *rest: Any) -> Step:
        return confirmed(replace(state, work=replace(state.work, former=None)), *rest)

    return [(lease, "_confirm_lease", loud)]


@BUGS.plant("any owner fenced", "no lock stealing")
def _any_owner_fenced() -> list[Patch]:
    """Only a former owner of the table's partition, by its owner id, is replaced at once."""
    found = lease._found_while_needed

    def greedy(work: Work, at: Moment, settings: LeaseSettings, *rest: Any) -> Step:
        return found(work, at, replace(settings, fenced=("",)), *rest)

    return [(lease, "_found_while_needed", greedy)]


@BUGS.plant("adopted lock shows a term", "one holder")
def _adopted_lock_shows_a_term() -> list[Patch]:
    """The next owner must wait, too, for an adopted owner that is not fenced."""
    put_hold = lease._write_hold

    def named(work: Work, at: Moment, settings: LeaseSettings, *rest: Any) -> Step:
        prefix = settings.owner_prefix
        shown = replace(at, new_owner_id=prefix + at.new_owner_id[len(prefix) :])
        return put_hold(work, shown, settings, *rest)

    return [(lease, "_write_hold", named)]


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


@BUGS.plant("malformed object overwritten", "foreign objects untouched")
def _malformed_object_overwritten() -> list[Patch]:
    """An object that is no lock record is never overwritten."""
    read = lease._on_read_done

    def overwriting(work: Work, at: Moment, outcome: ReadOutcome, settings: LeaseSettings) -> Step:
        if isinstance(outcome, Found) and isinstance(parse(outcome.body), Malformed) and work.needed:
            return lease._write_hold(replace(work, lease=None), at, settings, IfMatch(outcome.version), None)
        return read(work, at, outcome, settings)

    return [(lease, "_on_read_done", overwriting)]


@BUGS.plant("malformed object crashes", "no crash")
def _malformed_object_crashes() -> list[Patch]:
    """Such an object ends no agent."""

    def trusting(body: bytes) -> LockRecord:
        fields = json.loads(body)
        return LockRecord(fields["expired"], fields["validUntil"], fields["owner"])

    return [(lease, "parse", trusting)]


@BUGS.plant("refusal is final", "refusals waited out")
def _refusal_is_final() -> list[Patch]:
    """A refusal is a doubt: an expired session or a wrong clock is corrected elsewhere."""

    def final(work: Work, at: Moment, settings: LeaseSettings, refused: Refused) -> Step:
        return lease._found_unusable(work, at, settings, refused.why)

    return [(lease, "_on_refused", final)]


@BUGS.plant("hints delay without bound", "bounded silence")
def _hints_delay_without_bound() -> list[Patch]:
    """A hint delays the next read by `poll_seconds` at most."""
    observed = lease._on_acquisition_hint

    def delayed(state: State, at: Moment, settings: LeaseSettings, valid_until: int) -> Step:
        after, effects = observed(state, at, settings, valid_until)
        if isinstance(after, Waiting) and isinstance(state, Waiting) and after.work.read_by is not None:
            after = replace(after, work=replace(after.work, read_by=math.inf))
        return after, effects

    return [(lease, "_on_acquisition_hint", delayed)]


@BUGS.plant("queue delays without bound", "bounded silence")
def _queue_delays_without_bound() -> list[Patch]:
    """So does the queue, however many contenders it has."""
    start = lease._start_acquiring

    def started(work: Work, at: Moment, settings: LeaseSettings) -> Step:
        after, effects = start(work, at, settings)
        if isinstance(after, Waiting):
            after = replace(after, until=at.now + work.ahead * settings.queue_slot_seconds)
        return after, effects

    return [(lease, "_start_acquiring", started)]


@BUGS.plant("margin ignored", "expiry reported in time")
def _margin_ignored() -> list[Patch]:
    """An unconfirmed lease is ended early enough before its expiry to report it."""
    return _margin_of(lambda _: -0.001)


@BUGS.plant("lease ended too early", "no loss without faults")
def _lease_ended_too_early() -> list[Patch]:
    """A lease is renewed before it is in doubt."""
    return _margin_of(lambda settings: 0.94 * settings.validity)


@BUGS.plant("polls too often", "bounded polling")
def _polls_too_often() -> list[Patch]:
    """A waiting agent sends no request for `poll_seconds`."""
    return _poll_delay_of(lambda settings: settings.poll_seconds / 10)


@BUGS.plant("never polls again", "every contender acquires")
def _never_polls_again() -> list[Patch]:
    """And then it reads again."""
    return _poll_delay_of(lambda settings: 1000 * settings.validity)
