"""Releasing the lock: with and without answers, during an acquisition or a renewal, and when it is needed again."""

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
    """As Hudi releases. The next contender sees it immediately."""
    keeper = held()
    before = keeper.written

    keeper.release()

    assert keeper.written == LockRecord(expired=True, valid_until=before.valid_until, owner=before.owner)
    assert keeper.put.condition == IfMatch("v1")
    assert lease_of(keeper.state) is None
    released = keeper.writes(Won("v2")).one(Released)
    assert (released.owner, released.why) == (before.owner, None)
    assert isinstance(keeper.state, Idle)


@pytest.mark.parametrize("took_effect", [True, False])
def test_an_unknown_release_is_read_back(took_effect: bool) -> None:
    """Otherwise contenders would wait for the end of a lease that has no holder."""
    keeper = held()
    live = keeper.written
    keeper.release()
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


def test_a_release_without_an_answer_is_left_to_lapse() -> None:
    """A failed release must not turn a durable commit into a failure."""
    keeper = held().release()

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
    """Our lease had lapsed, and another owner acquired the lock."""
    keeper = held().release().writes(Lost("412")).reads(foreign(), "f1")

    assert "another owner" in (keeper.one(Released).why or "")
    assert isinstance(keeper.state, Idle)


def test_a_release_during_an_acquisition_releases_the_acquired_lock() -> None:
    """The last transaction ended while the PUT was outstanding."""
    keeper = Keeper().acquire().reads(Absent()).release().writes(Won("v1"))

    assert keeper.written.expired
    assert keeper.of(Confirmed) == []
    assert keeper.writes(Won("v2")).of(Released)


@pytest.mark.parametrize("state", ["renewing", "reading back", "renewal backing off"])
def test_a_failed_release_is_reported_in_every_state(state: str) -> None:
    """The store failed during a renewal, and the last transaction ended. The log must show why contenders wait."""
    keeper = renewing().writes(Throttled("503")) if state == "renewal backing off" else STATES[state]()
    owner = keeper.written.owner
    keeper.release()
    began = keeper.requests

    reports = []
    while not isinstance(keeper.state, Idle):
        match keeper.state:
            case Writing():
                keeper.writes(Unknown("500"))
            case Reading():
                keeper.reads(Unknown("500"))
            case _:
                keeper.timer()
        reports += keeper.of(Released)

    assert [each.owner for each in reports] == [owner]
    assert "left to lapse" in (reports[0].why or "")
    assert keeper.requests - began >= SETTINGS.release_tries - 1, "all tries belong to the release"


@pytest.mark.parametrize("answered", [True, False])
def test_a_lock_that_is_needed_again_during_its_renewal_is_kept(answered: bool) -> None:
    """The next transaction began in the instant in which the last one ended."""
    keeper = renewing().release().acquire()
    if not answered:
        keeper.writes(Unknown("500")).reads(keeper.written, "v2")
    keeper.writes(Won("v3"))

    assert keeper.one(Confirmed).what == "acquired"
    assert not keeper.written.expired


def test_a_release_after_an_unknown_acquisition_releases_what_was_acquired() -> None:
    """Without it, the lock would stay held for a whole lease, five minutes on a Hudi table."""
    keeper = Keeper().acquire().reads(Absent()).writes(Unknown("500"))
    ours = keeper.written
    keeper.reads(Unknown("500"))
    assert isinstance(keeper.state, Waiting)

    keeper.release().timer().reads(ours, "v1")

    assert keeper.written.expired
    assert isinstance(keeper.writes(Won("v2")).state, Idle)


def test_a_release_after_an_unknown_acquisition_without_effect_ends_with_a_read() -> None:
    """The read shows that the write had no effect."""
    keeper = Keeper().acquire().reads(Absent()).writes(Unknown("500")).reads(Unknown("500")).release()

    assert isinstance(keeper.timer().reads(Absent()).state, Idle)


def test_the_reads_after_a_release_are_bounded() -> None:
    """The store is unreachable, and the caller no longer needs the lock. The automaton must become idle."""
    keeper = Keeper().acquire().reads(Absent()).writes(Unknown("500")).reads(Unknown("500")).release()
    began = keeper.requests

    for _ in range(100):
        if isinstance(keeper.state, Idle):
            break
        keeper.timer().reads(Unknown("500"))

    assert isinstance(keeper.state, Idle)
    assert keeper.requests - began <= SETTINGS.release_tries


def test_a_lock_that_is_needed_again_during_its_release_is_acquired_again() -> None:
    """`per-commit`: the next commit was requested before the store answered the release."""
    keeper = held().release().acquire().writes(Won("v2"))
    assert keeper.of(Released)
    assert keeper.of(Get) == [Get()]
    released = keeper.written

    keeper.reads(released, "v2").writes(Won("v3"))

    assert keeper.one(Confirmed).what == "acquired"
    assert keeper.written.valid_until > released.valid_until


@pytest.mark.parametrize("state", ["renewing", "reading back"])
def test_the_duration_of_a_release_counts_from_its_request(state: str) -> None:
    """`lock audit` ends the owner's interval there."""
    keeper = STATES[state]()
    keeper.now += 0.5
    requested = keeper.release().now
    if state == "renewing":
        keeper.writes(Won("v2"))
    else:
        keeper.reads(keeper.written, "v2")

    assert keeper.writes(Won("v3")).one(Released).cost.since == requested
