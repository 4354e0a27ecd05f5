"""Adopting the live lease of an owner under which a grant runs, and the quiet period after it."""

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
    """According to the log, a grant runs under `old`, whose lease is still live."""
    keeper = Keeper().acquire(adopt="old")
    return keeper.reads(
        LockRecord(expired=False, valid_until=keeper.wall + round(left * 1000), owner="old"), "a1", after=0
    )


def test_the_lock_of_a_running_grant_is_adopted_under_its_version_with_a_new_owner_id() -> None:
    """An agent was killed while a grant ran. Waiting for the end of its lease would abort the writer."""
    keeper = adopting()

    assert keeper.put.condition == IfMatch("a1")
    assert keeper.written.owner not in ("old", None)
    lease = keeper.writes(Won("a2")).one(Confirmed).lease
    assert lease.quiet_until == pytest.approx(100.0 + 20.0 + 0.5)


def test_an_owner_that_the_log_does_not_name_is_not_adopted() -> None:
    """It may be a Java writer in the middle of its commit."""
    keeper = Keeper().acquire(adopt="old").reads(foreign(), "f1")

    assert isinstance(keeper.state, Waiting)


def test_an_unknown_write_during_the_adoption_does_not_shorten_the_quiet_period() -> None:
    """The adoption took effect and its answer was lost. The former owner may still rely on its lease."""
    keeper = adopting().writes(Unknown("timeout"), after=2.0)
    keeper.reads(keeper.written, "a2").writes(Won("a3"))

    assert keeper.one(Confirmed).lease.quiet_until == pytest.approx(120.5)


def test_a_renewal_of_the_former_owner_during_the_adoption_extends_the_quiet_period() -> None:
    """The former owner was slow, not dead."""
    keeper = adopting().writes(Lost("412"))
    renewed = LockRecord(expired=False, valid_until=keeper.wall + 29_000, owner="old")

    keeper.reads(renewed, "a2", after=0).writes(Won("a3"))

    assert keeper.one(Confirmed).lease.quiet_until == pytest.approx(100.01 + 29.0 + 0.5, abs=0.02)


def test_a_renewal_keeps_the_quiet_period() -> None:
    """It depends on the former owner's lease, not on ours."""
    keeper = adopting().writes(Won("a2")).timer().writes(Won("a3"))

    assert keeper.one(Confirmed).lease.quiet_until == pytest.approx(120.5)


def test_an_adopted_lock_ends_no_earlier_than_the_former_owners_lease() -> None:
    """The former owner's leases are longer than ours. A contender must wait for the longer of the two."""
    keeper = adopting(left=200.0)

    assert keeper.written.valid_until > WALL + 300_000


def test_an_adopted_lock_is_not_released_before_the_former_owners_lease_has_ended() -> None:
    """The running grant has ended. A contender that acquired the lock now could overlap with a grant of the former owner."""
    keeper = adopting().writes(Won("a2")).release()
    assert len(keeper.puts) == 1
    assert lease_of(keeper.state) is None

    keeper.timer()
    assert keeper.now >= 120.5

    keeper.reads(keeper.written, "a2")
    assert keeper.written.expired
    assert isinstance(keeper.writes(Won("a3")).state, Idle)


def test_an_adopted_lock_that_is_needed_again_is_kept_with_its_quiet_period() -> None:
    """The next transaction came before the former owner's lease had ended."""
    keeper = adopting().writes(Won("a2")).release().acquire()

    keeper.reads(keeper.written, "a2").writes(Won("a3"))

    assert keeper.one(Confirmed).lease.quiet_until == pytest.approx(120.5)
    assert keeper.of(Released) == []


@pytest.mark.parametrize("way", ["unconfirmed", "released while unknown"])
def test_the_quiet_period_outlives_our_own_lease(way: str) -> None:
    """After an adoption our renewals failed. The former owner's lease is as long as before."""
    keeper = adopting(left=200.0)
    if way == "unconfirmed":
        keeper.writes(Won("a2")).timer()
        while not keeper.of(LeaseEnded):
            keeper.timer()
        keeper.writes(Unknown("500")).reads(keeper.written, "a3").writes(Won("a4"))
    else:
        keeper.writes(Unknown("500")).release()
        for _ in range(20):
            if isinstance(keeper.state, Idle):
                break
            if isinstance(keeper.state, Reading):
                keeper.reads(Unknown("500"))
            else:
                keeper.timer()
        keeper.acquire().reads(keeper.written, "a2").writes(Won("a3"))

    assert keeper.one(Confirmed).lease.quiet_until == pytest.approx(300.5)


def handed_over() -> Keeper:
    """The former owner has published that it relies on its lease no more, and its lease is still live."""
    keeper = Keeper().acquire(adopt="old", handed_over=True)
    return keeper.reads(
        LockRecord(expired=False, valid_until=keeper.wall + 20_000, owner="old"), "a1", after=0
    )


def test_a_lock_that_was_handed_over_is_adopted_without_a_quiet_period() -> None:
    """An agent stopped in order while a grant ran. The next one may grant at once."""
    keeper = handed_over()
    assert keeper.put.condition == IfMatch("a1")

    lease = keeper.writes(Won("a2")).one(Confirmed).lease
    assert lease.quiet_until <= keeper.now
    assert lease.former is not None
    assert (lease.former.owner, lease.former.handed_over) == ("old", True)


def test_a_lock_that_was_handed_over_can_be_released_at_once() -> None:
    """Its grant has been completed meanwhile."""
    keeper = handed_over().writes(Won("a2")).release()

    assert keeper.written.expired
    assert isinstance(keeper.writes(Won("a3")).state, Idle)


def test_only_the_owner_that_handed_the_lock_over_is_adopted() -> None:
    """Another agent acquired the lock after it had lapsed."""
    keeper = Keeper().acquire(adopt="old", handed_over=True).reads(foreign(), "f1")

    assert isinstance(keeper.state, Waiting)


def test_a_hand_over_is_reported_with_the_acquisition_alone() -> None:
    """Renewals, and a later acquisition of the same keeper, have nothing to do with it."""
    keeper = handed_over().writes(Won("a2")).timer().writes(Won("a3"))
    assert keeper.one(Confirmed).lease.former is None

    keeper.release().writes(Won("a4")).acquire().reads(keeper.written, "a4").writes(Won("a5"))
    assert keeper.one(Confirmed).lease.former is None


def test_an_unknown_write_during_a_hand_over_leads_to_no_quiet_period() -> None:
    keeper = handed_over().writes(Unknown("timeout"), after=2.0)
    keeper.reads(keeper.written, "a2").writes(Won("a3"))

    lease = keeper.one(Confirmed).lease
    assert lease.quiet_until <= keeper.now
