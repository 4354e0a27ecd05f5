"""Answers that got lost, that came twice, or that say "later": what a write did is read back, never guessed."""

from __future__ import annotations

import pytest

from lakewarden.handlers.lease.conditional import Absent, IfAbsent, IfMatch, Lost, Throttled, Unknown, Won
from lakewarden.handlers.lease.machine import Confirmed, Get, Idle, LockDenied, Waiting, lease_of
from tests.unit.handlers.lease.lease_keeper import SETTINGS, STATES, Keeper, foreign


def test_an_unknown_acquisition_that_took_effect_is_ours_after_three_requests() -> None:
    """RFC-91's self-block: the answer was lost, and the writer waited 300 s for itself."""
    keeper = Keeper().want().reads(Absent()).writes(Unknown("timeout"))
    ours, lost_at = keeper.written, keeper.requests - 1

    keeper.reads(ours, "v1").writes(Won("v2"))

    assert keeper.one(Confirmed).what == "acquired"
    assert keeper.written.owner == ours.owner
    assert keeper.put.condition == IfMatch("v1")
    assert keeper.written.valid_until > ours.valid_until
    assert keeper.requests - lost_at <= 3


def test_what_is_read_back_as_ours_is_not_relied_upon_before_it_was_written_again() -> None:
    """How long ago the lost write took effect, nobody knows."""
    keeper = Keeper().want().reads(Absent()).writes(Unknown("timeout"))
    keeper.reads(keeper.written, "v1")

    assert lease_of(keeper.state) is None
    assert keeper.of(Confirmed) == []


def test_an_unknown_acquisition_that_did_not_take_effect_is_sent_again() -> None:
    """The connection was refused after all."""
    keeper = Keeper().want().reads(Absent()).writes(Unknown("reset")).reads(Absent())

    assert keeper.put.condition == IfAbsent()
    assert keeper.writes(Won("v1")).of(Confirmed)


def test_a_409_or_reset_on_a_create_leads_to_a_read_not_to_a_loss() -> None:
    """409: another conditional request was under way; who won is in the object."""
    keeper = Keeper().want().reads(Absent()).writes(Unknown("409"))

    assert keeper.of(Get) == [Get()]
    assert keeper.of(LockDenied) == []


def test_a_lost_write_that_was_our_own_first_one_is_not_lost() -> None:
    """The client library tried twice: the first attempt took effect, the second got the 412."""
    keeper = Keeper().want().reads(Absent()).writes(Lost("412"))

    keeper.reads(keeper.written, "v1").writes(Won("v2"))

    assert keeper.of(Confirmed)


def test_a_write_that_lands_after_it_was_read_back_is_still_known_as_ours() -> None:
    """It sat in a proxy, landed between our read and our second write: without the same owner we'd wait for ourselves."""
    keeper = Keeper().want().reads(foreign(expired=True), "v0").writes(Unknown("timeout"))
    first = keeper.written

    keeper.reads(foreign(expired=True), "v0").writes(Lost("412")).reads(first, "v1")

    assert keeper.put.condition == IfMatch("v1")
    assert keeper.of(LockDenied) == []
    assert keeper.writes(Won("v2")).of(Confirmed)


@pytest.mark.parametrize("again", ["after the release", "before the release"])
def test_a_write_that_lands_after_it_was_given_up_in_doubt_is_still_known_as_ours(again: str) -> None:
    """Found by the simulation: sent, in doubt, dropped, wanted again, and then it lands: no self-block."""
    keeper = Keeper().want().reads(foreign(expired=True), "v0")
    late = keeper.written
    keeper.writes(Unknown("timeout")).drop()
    if again == "after the release":
        keeper.reads(foreign(expired=True), "v0")
        assert isinstance(keeper.state, Idle)
        keeper.want()
    else:
        keeper.want()
    keeper.reads(foreign(expired=True), "v0")
    assert keeper.written.owner == late.owner

    keeper.writes(Lost("412")).reads(late, "v1").writes(Won("v2"))

    assert keeper.one(Confirmed).lease.record.owner == late.owner


@pytest.mark.parametrize("state", ["writing", "renewing", "releasing"])
def test_throttling_backs_off_and_asks_again(state: str) -> None:
    """503 SlowDown: nothing was written, and nothing is assumed."""
    keeper = STATES[state]().writes(Throttled("503"))

    assert isinstance(keeper.state, Waiting)
    assert keeper.timer().of(Get) == [Get()]


def test_doubts_that_go_on_back_off() -> None:
    """The store is in trouble: it gets room, up to one renewal interval, with jitter."""
    keeper = Keeper().want()
    waits = []
    for _ in range(12):
        keeper.reads(Unknown("500"))
        before = keeper.now
        keeper.timer()
        waits.append(keeper.now - before)

    assert waits == sorted(waits)
    assert waits[0] < 0.1
    assert waits[-1] <= SETTINGS.renew_interval


def test_doubts_that_go_on_are_told() -> None:
    """A store that is out of reach for an hour: somebody should know why nothing commits."""
    keeper = Keeper().want()
    told = []
    for _ in range(2 * SETTINGS.failures_per_report):
        told += keeper.reads(Unknown("no answer in time")).of(LockDenied)
        keeper.timer()

    assert [(each.fatal, each.holder) for each in told] == [(False, None), (False, None)]
    assert "no answer in time" in told[0].why
