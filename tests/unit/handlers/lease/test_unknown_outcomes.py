"""Lost, repeated and throttled answers: the automaton reads back what a write did, and never guesses."""

from __future__ import annotations

import pytest

from lakewarden.handlers.lease.conditional import Absent, IfAbsent, IfMatch, Lost, Throttled, Unknown, Won
from lakewarden.handlers.lease.machine import Confirmed, Get, Idle, LockDenied, Waiting, lease_of
from tests.unit.handlers.lease.lease_keeper import SETTINGS, STATES, Keeper, foreign


def test_an_unknown_acquisition_that_took_effect_is_ours_after_three_requests() -> None:
    """The self-block of RFC-91: the answer was lost, and the writer waited 300 s for its own lease."""
    keeper = Keeper().acquire().reads(Absent()).writes(Unknown("timeout"))
    ours, lost_at = keeper.written, keeper.requests - 1

    keeper.reads(ours, "v1").writes(Won("v2"))

    assert keeper.one(Confirmed).what == "acquired"
    assert keeper.written.owner == ours.owner
    assert keeper.put.condition == IfMatch("v1")
    assert keeper.written.valid_until > ours.valid_until
    assert keeper.requests - lost_at <= 3


def test_a_write_that_is_read_back_is_not_relied_upon_before_a_second_write() -> None:
    """The read doesn't show when the lost write took effect."""
    keeper = Keeper().acquire().reads(Absent()).writes(Unknown("timeout"))
    keeper.reads(keeper.written, "v1")

    assert lease_of(keeper.state) is None
    assert keeper.of(Confirmed) == []


def test_an_unknown_acquisition_that_did_not_take_effect_is_sent_again() -> None:
    """The store never received the request."""
    keeper = Keeper().acquire().reads(Absent()).writes(Unknown("reset")).reads(Absent())

    assert keeper.put.condition == IfAbsent()
    assert keeper.writes(Won("v1")).of(Confirmed)


def test_a_409_on_a_create_is_read_back() -> None:
    """409: another conditional request was in progress. The object shows which one won."""
    keeper = Keeper().acquire().reads(Absent()).writes(Unknown("409"))

    assert keeper.of(Get) == [Get()]
    assert keeper.of(LockDenied) == []


def test_a_write_that_lost_to_our_own_first_attempt_is_ours() -> None:
    """The client library sent the request twice: the first attempt took effect, the second got the 412."""
    keeper = Keeper().acquire().reads(Absent()).writes(Lost("412"))

    keeper.reads(keeper.written, "v1").writes(Won("v2"))

    assert keeper.of(Confirmed)


def test_a_write_that_takes_effect_after_the_read_back_is_recognised_as_ours() -> None:
    """A proxy delayed it until after our read. With another owner id in the second write, we would wait for ourselves."""
    keeper = Keeper().acquire().reads(foreign(expired=True), "v0").writes(Unknown("timeout"))
    first = keeper.written

    keeper.reads(foreign(expired=True), "v0").writes(Lost("412")).reads(first, "v1")

    assert keeper.put.condition == IfMatch("v1")
    assert keeper.of(LockDenied) == []
    assert keeper.writes(Won("v2")).of(Confirmed)


@pytest.mark.parametrize("again", ["after the release", "before the release"])
def test_an_unknown_write_that_takes_effect_after_a_release_is_recognised_as_ours(again: str) -> None:
    """Found by the simulation: sent, unknown, released, needed again, and then it takes effect: no self-block."""
    keeper = Keeper().acquire().reads(foreign(expired=True), "v0")
    late = keeper.written
    keeper.writes(Unknown("timeout")).release()
    if again == "after the release":
        keeper.reads(foreign(expired=True), "v0")
        assert isinstance(keeper.state, Idle)
        keeper.acquire()
    else:
        keeper.acquire()
    keeper.reads(foreign(expired=True), "v0")
    assert keeper.written.owner == late.owner

    keeper.writes(Lost("412")).reads(late, "v1").writes(Won("v2"))

    assert keeper.one(Confirmed).lease.record.owner == late.owner


@pytest.mark.parametrize("state", ["writing", "renewing", "releasing"])
def test_throttling_backs_off_and_reads_again(state: str) -> None:
    """503 SlowDown: nothing was written."""
    keeper = STATES[state]().writes(Throttled("503"))

    assert isinstance(keeper.state, Waiting)
    assert keeper.timer().of(Get) == [Get()]


def test_continued_unknown_answers_back_off() -> None:
    """The store has trouble. The back-off grows up to one renewal interval, with jitter."""
    keeper = Keeper().acquire()
    waits = []
    for _ in range(12):
        keeper.reads(Unknown("500"))
        before = keeper.now
        keeper.timer()
        waits.append(keeper.now - before)

    assert waits == sorted(waits)
    assert waits[0] < 0.1
    assert waits[-1] <= SETTINGS.renew_interval


def test_continued_unknown_answers_are_reported() -> None:
    """A store is unreachable for an hour. The operator must see why nothing commits."""
    keeper = Keeper().acquire()
    reports = []
    for _ in range(2 * SETTINGS.failures_per_report):
        reports += keeper.reads(Unknown("no answer in time")).of(LockDenied)
        keeper.timer()

    assert [(each.kind, each.holder) for each in reports] == [("waiting", None), ("waiting", None)]
    assert "no answer in time" in reports[0].why
