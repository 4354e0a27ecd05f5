"""Bugs that prove the oracles: each is planted into the production code at one seam, and must be found.

- *read-back trusted*: an own record that is read back is written again before it is relied upon. Without that it may be
  an *earlier* write of ours, whose lease ends sooner than that of the write in doubt.
- *challenger's drift flipped*: it waits the drift longer than `validUntil`, because its clock may be ahead of the holder's.
- *holder's drift flipped*: it stops the drift before its lease ends, because a challenger's clock may be ahead of its own.
- *counted from the answer*: a lease counts from before its write was sent. A slow answer would make it longer than the object
  says.
- *409 taken for lost*: a conflict leaves it open whether the write lands. Taken for lost, the next write bears another owner;
  when the first one lands after all, its own agent waits for it.
- *renewed without the version*: a renewal is conditional on the version that was last confirmed. One that was on its way for
  long would overwrite the next holder.
- *asked once a second*: a waiting agent leaves a holder alone for `poll_seconds`.
- *margin forgotten*: a lease that isn't confirmed is given up `margin` before its end, so that whoever relies on it hears of it
  in time.
- *quiet time forgotten*: an adopted lock covers no new grant while its former owner may believe in it.
- *malformed overwritten*: an object that is no lock record is left alone, because somebody may rely on it.

That a read-back is trusted is harmless as long as the record found is the very one in doubt, counted from its own sending: the
object says as much as an answer would have said. What makes it dangerous is that an owner id does not tell which of its
writes is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from lakewarden.agent.stores import classify
from lakewarden.agent.stores.classify import Answer
from lakewarden.agent.stores.memory import Objects
from lakewarden.handlers import lease
from lakewarden.handlers.conditional import Condition, Found, IfMatch, Lost, Won
from lakewarden.handlers.lease_types import LeaseSettings, Moment, Step, Work, Writing
from lakewarden.handlers.lock_object import LockRecord, Malformed, parse

ANY_VERSION = "*"
"""As in HTTP: if-match of it holds for whatever is there."""


@contextmanager
def _read_back_trusted() -> Iterator[None]:
    put_hold, found = lease._put_hold, lease._found_while_wanted
    sent: dict[str, float] = {}

    def put_noting(work: Work, at: Moment, *rest: Any) -> Step:
        state, effects = put_hold(work, at, *rest)
        assert isinstance(state, Writing)
        sent[state.record.owner] = at.now
        return state, effects

    def found_trusting(
        work: Work, at: Moment, settings: LeaseSettings, record: LockRecord, version: str
    ) -> Step:
        if record.owner == work.mine and not record.expired and record.owner in sent:
            landed = Writing(work, record, IfMatch(version), sent[record.owner])
            return lease._confirmed(landed, at, version, settings)
        return found(work, at, settings, record, version)

    with (
        patch.object(lease, "_put_hold", put_noting),
        patch.object(lease, "_found_while_wanted", found_trusting),
    ):
        yield


@contextmanager
def _challengers_drift_flipped() -> Iterator[None]:
    held_at = LockRecord.held_at

    def flipped(self: LockRecord, wall_ms: int, drift_ms: int) -> bool:
        return held_at(self, wall_ms, -drift_ms)

    def binds_for(work: Work, at: Moment, settings: LeaseSettings, record: LockRecord) -> float:
        return (record.valid_until - settings.drift_ms - at.wall_ms) / 1000

    with patch.object(LockRecord, "held_at", flipped), patch.object(lease, "_binds_for", binds_for):
        yield


@contextmanager
def _holders_drift_flipped() -> Iterator[None]:
    confirmed = lease._confirmed

    def flipped(state: Writing, at: Moment, version: str, settings: LeaseSettings) -> Step:
        return confirmed(state, at, version, replace(settings, drift=-settings.drift))

    with patch.object(lease, "_confirmed", flipped):
        yield


@contextmanager
def _counted_from_the_answer() -> Iterator[None]:
    confirmed = lease._confirmed

    def late(state: Writing, at: Moment, version: str, settings: LeaseSettings) -> Step:
        return confirmed(replace(state, sent_at=at.now), at, version, settings)

    with patch.object(lease, "_confirmed", late):
        yield


@contextmanager
def _conflict_taken_for_lost() -> Iterator[None]:
    row_of = classify.row_of

    def lost(answer: Answer, asked: Condition | None) -> classify.Row:
        return row_of(replace(answer, status=412) if answer.status == 409 else answer, asked)

    with patch.object(classify, "row_of", lost):
        yield


@contextmanager
def _renewed_without_the_version() -> Iterator[None]:
    put_hold, put = lease._put_hold, Objects.put

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

    with patch.object(lease, "_put_hold", unconditional), patch.object(Objects, "put", put_over):
        yield


@contextmanager
def _asked_once_a_second() -> Iterator[None]:
    def impatient(at: Moment, settings: LeaseSettings, binds_for: float) -> float:
        del at, binds_for
        return settings.poll_seconds / 10

    with patch.object(lease, "_patience", impatient):
        yield


@contextmanager
def _margin_forgotten() -> Iterator[None]:
    give_up, deadline = lease._give_up_in_time, lease.deadline

    def late(state: lease.State, at: Moment, settings: LeaseSettings) -> Step:
        return give_up(state, at, replace(settings, margin=0.0))

    def last_moment(state: lease.State, settings: LeaseSettings) -> float | None:
        return deadline(state, replace(settings, margin=-0.001))

    with patch.object(lease, "_give_up_in_time", late), patch.object(lease, "deadline", last_moment):
        yield


@contextmanager
def _quiet_time_forgotten() -> Iterator[None]:
    confirmed = lease._confirmed

    def loud(state: Writing, at: Moment, version: str, settings: LeaseSettings) -> Step:
        return confirmed(replace(state, work=replace(state.work, quiet_until=0.0)), at, version, settings)

    with patch.object(lease, "_confirmed", loud):
        yield


@contextmanager
def _malformed_overwritten() -> Iterator[None]:
    read = lease._read

    def overwriting(work: Work, at: Moment, outcome: Any, settings: LeaseSettings) -> Step:
        if isinstance(outcome, Found) and isinstance(parse(outcome.body), Malformed) and work.wanted:
            return lease._put_hold(replace(work, lease=None), at, settings, IfMatch(outcome.version), None)
        return read(work, at, outcome, settings)

    with patch.object(lease, "_read", overwriting):
        yield


BUGS: dict[str, Callable[[], Any]] = {
    "read-back trusted": _read_back_trusted,
    "challenger's drift flipped": _challengers_drift_flipped,
    "holder's drift flipped": _holders_drift_flipped,
    "counted from the answer": _counted_from_the_answer,
    "409 taken for lost": _conflict_taken_for_lost,
    "renewed without the version": _renewed_without_the_version,
    "asked once a second": _asked_once_a_second,
    "margin forgotten": _margin_forgotten,
    "quiet time forgotten": _quiet_time_forgotten,
    "malformed overwritten": _malformed_overwritten,
}


def planted(bug: str) -> ExitStack:
    """Within this, the bug is there."""
    stack = ExitStack()
    stack.enter_context(BUGS[bug]())
    return stack
