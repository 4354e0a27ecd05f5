"""Giving the lock back: at once, in doubt, while it is being taken, and wanted again meanwhile."""

from __future__ import annotations

import pytest

from lakewarden.handlers.lease.conditional import Absent, IfMatch, Lost, Throttled, Unknown, Won
from lakewarden.handlers.lease.lock_object import LockRecord
from lakewarden.handlers.lease.machine import (
    Confirmed,
    Get,
    Idle,
    Reading,
    Released,
    Waiting,
    Writing,
    lease_of,
)
from tests.unit.handlers.lease.lease_keeper import SETTINGS, STATES, Keeper, foreign, held, renewing


def test_release_writes_expired_and_keeps_the_end() -> None:
    """As Hudi releases: whoever comes next sees it at once."""
    keeper = held()
    before = keeper.written

    keeper.drop()

    assert keeper.written == LockRecord(expired=True, valid_until=before.valid_until, owner=before.owner)
    assert keeper.put.condition == IfMatch("v1")
    assert lease_of(keeper.state) is None
    released = keeper.writes(Won("v2")).one(Released)
    assert (released.owner, released.why) == (before.owner, None)
    assert isinstance(keeper.state, Idle)


@pytest.mark.parametrize("took_effect", [True, False])
def test_an_unknown_release_is_read_back(took_effect: bool) -> None:
    """Otherwise the others would wait for the lease of a holder that is gone."""
    keeper = held()
    live = keeper.written
    keeper.drop()
    lost_at = keeper.requests - 1
    released = keeper.written
    keeper.writes(Unknown("timeout"))

    if took_effect:
        keeper.reads(released, "v2")
    else:
        keeper.reads(live, "v1").writes(Won("v2"))

    assert keeper.one(Released).why is None
    assert isinstance(keeper.state, Idle)
    assert keeper.requests - lost_at <= 3


def test_a_release_that_the_store_keeps_doubting_is_left_to_lapse() -> None:
    """A durable commit is never turned into a failure by a release."""
    keeper = held().drop()

    for _ in range(100):
        if keeper.of(Released):
            break
        if isinstance(keeper.state, Writing):
            keeper.writes(Unknown("500"))
        elif isinstance(keeper.state, Reading):
            keeper.reads(Unknown("500"))
        else:
            keeper.timer()

    assert "left to lapse" in (keeper.one(Released).why or "")
    assert keeper.requests < 3 * SETTINGS.release_tries
    assert isinstance(keeper.state, Idle)


def test_a_release_that_finds_another_owner_is_done() -> None:
    """Our lease had lapsed, and somebody took the lock: it is theirs."""
    keeper = held().drop().writes(Lost("412")).reads(foreign(), "f1")

    assert "another owner" in (keeper.one(Released).why or "")
    assert isinstance(keeper.state, Idle)


def test_a_lock_that_is_dropped_while_it_is_being_taken_is_released() -> None:
    """The last transaction ended while the PUT was on its way."""
    keeper = Keeper().want().reads(Absent()).drop().writes(Won("v1"))

    assert keeper.written.expired
    assert keeper.of(Confirmed) == []
    assert keeper.writes(Won("v2")).of(Released)


@pytest.mark.parametrize("state", ["renewing", "reading back", "renewal backing off"])
def test_a_lease_that_can_not_be_given_back_is_told_to_lapse_whatever_was_under_way(state: str) -> None:
    """The store went away in the middle of a renewal, and the last transaction ended: others wait, and should know for what."""
    keeper = renewing().writes(Throttled("503")) if state == "renewal backing off" else STATES[state]()
    owner = keeper.written.owner
    keeper.drop()
    began = keeper.requests

    told = []
    while not isinstance(keeper.state, Idle):
        match keeper.state:
            case Writing():
                keeper.writes(Unknown("500"))
            case Reading():
                keeper.reads(Unknown("500"))
            case _:
                keeper.timer()
        told += keeper.of(Released)

    assert [each.owner for each in told] == [owner]
    assert "left to lapse" in (told[0].why or "")
    assert keeper.requests - began >= SETTINGS.release_tries - 1, "all tries are the release's own"


@pytest.mark.parametrize("answered", [True, False])
def test_a_renewal_that_is_wanted_again_before_it_was_answered_stays_a_hold(answered: bool) -> None:
    """The next transaction came in the same instant in which the last one ended."""
    keeper = renewing().drop().want()
    if not answered:
        keeper.writes(Unknown("500")).reads(keeper.written, "v2")
    keeper.writes(Won("v3"))

    assert keeper.one(Confirmed).what == "acquired"
    assert not keeper.written.expired


def test_a_lock_that_is_dropped_while_its_taking_is_in_doubt_is_released_if_it_was_taken() -> None:
    """Going idle at once would leave it held for a whole validity, five minutes on a Hudi table."""
    keeper = Keeper().want().reads(Absent()).writes(Unknown("500"))
    ours = keeper.written
    keeper.reads(Unknown("500"))
    assert isinstance(keeper.state, Waiting)

    keeper.drop().timer().reads(ours, "v1")

    assert keeper.written.expired
    assert isinstance(keeper.writes(Won("v2")).state, Idle)


def test_a_lock_that_was_not_taken_needs_no_release() -> None:
    """The doubt is settled by the read: nothing of ours is there."""
    keeper = Keeper().want().reads(Absent()).writes(Unknown("500")).reads(Unknown("500")).drop()

    assert isinstance(keeper.timer().reads(Absent()).state, Idle)


def test_settling_a_doubt_after_the_drop_is_bounded() -> None:
    """The store is gone, and so is the interest in the lock: the automaton must come to rest."""
    keeper = Keeper().want().reads(Absent()).writes(Unknown("500")).reads(Unknown("500")).drop()
    began = keeper.requests

    for _ in range(100):
        if isinstance(keeper.state, Idle):
            break
        keeper.timer().reads(Unknown("500"))

    assert isinstance(keeper.state, Idle)
    assert keeper.requests - began <= SETTINGS.release_tries


def test_a_lock_that_is_wanted_again_while_it_is_released_is_taken_again() -> None:
    """Per-commit: the next commit was asked for before the release had been answered."""
    keeper = held().drop().want().writes(Won("v2"))
    assert keeper.of(Released)
    assert keeper.of(Get) == [Get()]
    released = keeper.written

    keeper.reads(released, "v2").writes(Won("v3"))

    assert keeper.one(Confirmed).what == "acquired"
    assert keeper.written.valid_until > released.valid_until


@pytest.mark.parametrize("state", ["renewing", "reading back"])
def test_the_time_of_a_release_counts_from_when_it_was_asked_for(state: str) -> None:
    """The audit's checker ends an owner's interval there."""
    keeper = STATES[state]()
    keeper.now += 0.5
    dropped = keeper.drop().now
    if state == "renewing":
        keeper.writes(Won("v2"))
    else:
        keeper.reads(keeper.written, "v2")

    assert keeper.writes(Won("v3")).one(Released).cost.since == dropped
