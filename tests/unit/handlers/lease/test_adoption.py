"""Taking over the live lease of an owner under which a grant runs, and the quiet time that follows."""

from __future__ import annotations

import pytest

from lakewarden.handlers.lease.conditional import IfMatch, Lost, Unknown, Won
from lakewarden.handlers.lease.lock_object import LockRecord
from lakewarden.handlers.lease.machine import (
    Confirmed,
    Idle,
    LeaseEnded,
    Reading,
    Released,
    Waiting,
    lease_of,
)
from tests.unit.handlers.lease.lease_keeper import WALL, Keeper, foreign


def adopting(left: float = 20.0) -> Keeper:
    """The log says that a grant runs under `old`, whose lease is still live."""
    keeper = Keeper().want(adopt="old")
    return keeper.reads(
        LockRecord(expired=False, valid_until=keeper.wall + round(left * 1000), owner="old"), "a1", after=0
    )


def test_the_lock_of_a_running_grant_is_adopted_under_its_version_by_a_fresh_owner() -> None:
    """The agent was killed while a grant was out; waiting for its lease would abort the writer."""
    keeper = adopting()

    assert keeper.put.condition == IfMatch("a1")
    assert keeper.written.owner not in ("old", None)
    lease = keeper.writes(Won("a2")).one(Confirmed).lease
    assert lease.quiet_until == pytest.approx(100.0 + 20.0 + 0.5)


def test_an_owner_that_the_log_does_not_name_is_not_adopted() -> None:
    """It may be a Java writer in the middle of its commit."""
    keeper = Keeper().want(adopt="old").reads(foreign(), "f1")

    assert isinstance(keeper.state, Waiting)


def test_a_doubt_during_the_adoption_does_not_shorten_the_quiet_time() -> None:
    """The adoption took effect, its answer was lost: the former owner believes in its lease all the same."""
    keeper = adopting().writes(Unknown("timeout"), after=2.0)
    keeper.reads(keeper.written, "a2").writes(Won("a3"))

    assert keeper.one(Confirmed).lease.quiet_until == pytest.approx(120.5)


def test_a_former_owner_that_renews_during_the_adoption_makes_the_quiet_time_longer() -> None:
    """It was not dead, only slow."""
    keeper = adopting().writes(Lost("412"))
    renewed = LockRecord(expired=False, valid_until=keeper.wall + 29_000, owner="old")

    keeper.reads(renewed, "a2", after=0).writes(Won("a3"))

    assert keeper.one(Confirmed).lease.quiet_until == pytest.approx(100.01 + 29.0 + 0.5, abs=0.02)


def test_a_renewal_keeps_the_quiet_time() -> None:
    """It is about the former owner, not about our lease."""
    keeper = adopting().writes(Won("a2")).timer().writes(Won("a3"))

    assert keeper.one(Confirmed).lease.quiet_until == pytest.approx(120.5)


def test_an_adopted_lock_ends_no_sooner_than_the_former_owner_believes() -> None:
    """Its validity was configured longer than ours: a challenger must wait for the longer of the two."""
    keeper = adopting(left=200.0)

    assert keeper.written.valid_until > WALL + 300_000


def test_an_adopted_lock_is_not_released_before_the_former_owners_lease_has_ended() -> None:
    """The running grant has ended; a challenger that took the lock now could meet a grant of the former owner."""
    keeper = adopting().writes(Won("a2")).drop()
    assert len(keeper.puts) == 1
    assert lease_of(keeper.state) is None

    keeper.timer()
    assert keeper.now >= 120.5

    keeper.reads(keeper.written, "a2")
    assert keeper.written.expired
    assert isinstance(keeper.writes(Won("a3")).state, Idle)


def test_an_adopted_lock_that_is_wanted_again_is_kept_and_still_quiet() -> None:
    """The next transaction came before the former owner's lease had ended."""
    keeper = adopting().writes(Won("a2")).drop().want()

    keeper.reads(keeper.written, "a2").writes(Won("a3"))

    assert keeper.one(Confirmed).lease.quiet_until == pytest.approx(120.5)
    assert keeper.of(Released) == []


@pytest.mark.parametrize("way", ["given up", "dropped in doubt"])
def test_the_quiet_time_outlives_the_lease_itself(way: str) -> None:
    """Our own renewals failed after an adoption; the former owner's lease is as long as it was."""
    keeper = adopting(left=200.0)
    if way == "given up":
        keeper.writes(Won("a2")).timer()
        while not keeper.of(LeaseEnded):
            keeper.timer()
        keeper.writes(Unknown("500")).reads(keeper.written, "a3").writes(Won("a4"))
    else:
        keeper.writes(Unknown("500")).drop()
        for _ in range(20):
            if isinstance(keeper.state, Idle):
                break
            if isinstance(keeper.state, Reading):
                keeper.reads(Unknown("500"))
            else:
                keeper.timer()
        keeper.want().reads(keeper.written, "a2").writes(Won("a3"))

    assert keeper.one(Confirmed).lease.quiet_until == pytest.approx(300.5)
