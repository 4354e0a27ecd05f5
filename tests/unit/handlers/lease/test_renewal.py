"""Renewing the lease, and the end of a lease that can't be renewed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lakewarden.handlers.lease.conditional import Absent, IfMatch, Lost, Throttled, Unknown, Won, WriteOutcome
from lakewarden.handlers.lease.machine import (
    Confirmed,
    Held,
    LeaseEnded,
    Moment,
    Put,
    Reading,
    Timer,
    WriteDone,
    Writing,
    deadline,
    lease_of,
)
from tests.unit.handlers.lease.lease_keeper import SETTINGS, STATES, Keeper, foreign, held, renewing


@pytest.mark.parametrize(
    ("took", "jitter", "spread"), [(0.4, 0.0, 0.0), (0.4, 0.5, 0.2), (0.002, 0.9, 0.0018), (9.0, 0.8, 1.2)]
)
def test_renewals_that_had_to_wait_for_each_other_spread_out(
    took: float, jitter: float, spread: float
) -> None:
    """A thousand locks were acquired at one moment. A fast answer adds no delay."""
    keeper = Keeper(jitter=jitter).acquire().reads(Absent())
    sent = keeper.now

    keeper.writes(Won("v1"), after=took)

    due = deadline(keeper.state, SETTINGS)
    assert due == pytest.approx(sent + SETTINGS.renew_interval + spread)
    keeper.timer()
    assert keeper.of(Put)


def test_every_write_of_one_owner_ends_later_than_the_one_before() -> None:
    """Two renewals in one millisecond, or a wall clock that was set back: no version occurs twice."""
    keeper = held()
    ends = [keeper.written.valid_until]
    for n in range(2, 6):
        keeper.timer()
        keeper.step(WriteDone(Moment(keeper.now, 0, "x", 0.0), Won(f"v{n}")))
        ends.append(keeper.written.valid_until)
        assert keeper.of(Confirmed)
    state = keeper.state
    assert isinstance(state, Held)
    back = Moment(state.lease.renew_at, keeper.wall - 3_600_000, "x", 0.0)
    keeper.step(Timer(back))
    ends.append(keeper.written.valid_until)

    assert ends == sorted(set(ends))


def test_an_unknown_renewal_that_took_effect_keeps_the_lease() -> None:
    """A timeout during a publish must not abort the publish."""
    keeper = renewing().writes(Unknown("timeout"))
    assert lease_of(keeper.state) is not None

    keeper.reads(keeper.written, "v2").writes(Won("v3"))

    assert keeper.one(Confirmed).what == "renewed"
    assert keeper.of(LeaseEnded) == []
    assert keeper.requests <= 2 + 3


def test_an_unknown_renewal_that_did_not_take_effect_keeps_the_lease_too() -> None:
    """The object is unchanged, so the renewal is sent again under its version."""
    keeper = held()
    old = keeper.written
    keeper.timer().writes(Unknown("timeout")).reads(old, "v1")

    assert keeper.put.condition == IfMatch("v1")
    assert keeper.writes(Won("v2")).one(Confirmed).what == "renewed"


def test_a_renewal_that_finds_another_owner_ends_the_lease_and_names_the_owner() -> None:
    """Another process overwrote the lock, or an agent adopted it."""
    keeper = renewing().writes(Lost("412")).reads(foreign(), "f1")

    ended = keeper.one(LeaseEnded)
    assert ended.holder == "java"
    assert lease_of(keeper.state) is None


def test_a_deleted_lock_object_ends_the_lease() -> None:
    """An operator cleaned the bucket. Another agent may create the object at any moment."""
    keeper = renewing().writes(Lost("404")).reads(Absent())

    assert keeper.of(LeaseEnded)


def test_a_release_by_another_process_ends_the_lease() -> None:
    """`lakewarden lock release --if-owner`: there is no other holder."""
    keeper = renewing()
    released = replace(keeper.written, expired=True)

    ended = keeper.writes(Lost("412")).reads(released, "v9").one(LeaseEnded)

    assert ended.holder is None
    assert "released it in this owner's name" in ended.why


@pytest.mark.parametrize("outcome", [Unknown("500"), Throttled("503"), Lost("412")])
def test_an_unconfirmed_lease_ends_margin_before_its_end(outcome: WriteOutcome) -> None:
    """The store is down. The caller has two seconds to stop."""
    keeper = renewing()
    lease = lease_of(keeper.state)
    assert lease is not None

    for _ in range(1_000):
        if keeper.of(LeaseEnded):
            break
        if isinstance(keeper.state, Writing):
            keeper.writes(outcome, after=0.2)
        elif isinstance(keeper.state, Reading):
            keeper.reads(Unknown("500"), after=0.2)
        else:
            keeper.timer()

    assert keeper.one(LeaseEnded).owner == lease.record.owner
    assert lease.expires_at - SETTINGS.margin <= keeper.now <= lease.expires_at - SETTINGS.margin + 0.21
    assert lease_of(keeper.state) is None


@pytest.mark.parametrize("state", ["renewing", "reading back"])
def test_a_request_that_hangs_does_not_delay_the_end_of_the_lease(state: str) -> None:
    """The timer fires while the request is outstanding."""
    keeper = STATES[state]().timer()

    assert keeper.of(LeaseEnded)
    assert lease_of(keeper.state) is None


def test_after_a_suspension_the_first_input_ends_an_expired_lease() -> None:
    """A suspended virtual machine resumes. Any input ends the lease before it does anything else."""
    keeper = held()
    keeper.now += 60

    keeper.observe_release()

    assert keeper.of(LeaseEnded)


def test_a_late_answer_to_a_renewal_does_not_confirm_an_expired_lease() -> None:
    """The write was won, but so long ago that its lease has ended."""
    keeper = renewing()
    keeper.writes(Won("v2"), after=29.0)

    assert [type(each) for each in keeper.effects if not isinstance(each, Put)] == [LeaseEnded]
    assert keeper.put.condition == IfMatch("v2")
