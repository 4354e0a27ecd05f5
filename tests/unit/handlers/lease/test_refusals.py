"""A store that refuses requests: a doubt at first, reported when it lasts, final only where no retry can help."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lakewarden.agent.stores.classify import Answer, classify_read, classify_write
from lakewarden.handlers.lease.conditional import Absent, Found, IfMatch, Refused, Won
from lakewarden.handlers.lease.machine import (
    Confirmed,
    Get,
    LeaseEnded,
    LockDenied,
    Reading,
    Released,
    Writing,
    lease_of,
)
from tests.unit.handlers.lease.lease_keeper import SETTINGS, Keeper, foreign, held, renewing

ANSWERS = [
    (400, "ExpiredToken"),
    (403, "RequestTimeTooSkewed"),
    (403, "InvalidAccessKeyId"),
    (403, "AccessDenied"),
    (307, "TemporaryRedirect"),
    (401, "Unauthorized"),
    (403, ""),
]
REFUSED = Refused("the store refused the request: status=400 code=ExpiredToken")


def refuse_until(keeper: Keeper, until: float, *, reads: Found | None = None) -> list[LockDenied]:
    """Refuse each write until a time, and each read unless `reads` is given. Return what the automaton reported."""
    denials: list[LockDenied] = []
    while True:
        if isinstance(keeper.state, Reading):
            keeper.reads(REFUSED if reads is None else reads)
        elif isinstance(keeper.state, Writing):
            keeper.writes(REFUSED)
        else:
            keeper.timer()
        denials += keeper.of(LockDenied)
        if keeper.now >= until or keeper.of(LeaseEnded):
            return denials


@pytest.mark.parametrize("status, code", ANSWERS)
def test_one_refused_renewal_costs_one_more_request(status: int, code: str) -> None:
    """A session token expires for a second while 27 s of the lease are left. The next renewal is confirmed."""
    answer = Answer(status, code)
    keeper = renewing()
    before = keeper.written

    keeper.writes(classify_write(answer, IfMatch("v1")))
    assert lease_of(keeper.state) is not None
    assert keeper.one(LockDenied).kind == "refused"

    keeper.timer().reads(classify_read(answer)).timer().reads(replace(before), "v1").writes(Won("v2"))
    assert keeper.one(Confirmed).what == "renewed"


def test_a_lease_whose_renewals_are_refused_ends_margin_before_its_end() -> None:
    """The caller has relied on the lease for as long as it could be confirmed later. The reason names the answer."""
    keeper = renewing()
    lease = lease_of(keeper.state)
    assert lease is not None

    denials = refuse_until(keeper, keeper.now + 1_000)

    assert lease.expires_at - SETTINGS.margin == pytest.approx(keeper.now, abs=0.02)
    assert "ExpiredToken" in keeper.one(LeaseEnded).why
    assert {each.kind for each in denials} == {"refused"}


def test_a_refusal_without_a_lease_is_reported_and_retried_within_a_renewal_interval() -> None:
    keeper = Keeper(jitter=0.99).acquire().reads(REFUSED)
    assert keeper.one(LockDenied).kind == "refused"
    refuse_until(keeper, keeper.now + 60)

    refused_at = keeper.now
    while not keeper.of(Get):
        keeper.timer()

    assert keeper.now - refused_at <= SETTINGS.renew_interval
    assert keeper.reads(Absent()).writes(Won("v1")).of(Confirmed)


def test_a_refusal_lasts_when_every_request_was_refused_for_refusal_seconds() -> None:
    """A minute is not long enough: the caller waits. After two minutes it gets the error, once."""
    keeper = Keeper().acquire()
    began = keeper.now

    denials = refuse_until(keeper, began + SETTINGS.refusal_seconds - 5)
    assert {each.kind for each in denials} == {"refused"}

    denials = refuse_until(keeper, began + SETTINGS.refusal_seconds + 5)
    [lasting] = [each for each in denials if each.kind == "lasting"]
    assert "ExpiredToken" in lasting.why
    assert "requests in 12" in lasting.why


def test_after_a_lasting_refusal_a_new_series_begins() -> None:
    """Transactions that opened since wait as long as those before them."""
    keeper = Keeper().acquire()
    began = keeper.now

    denials = refuse_until(keeper, began + 4 * SETTINGS.refusal_seconds)

    assert len([each for each in denials if each.kind == "lasting"]) == 3


def test_two_refusals_far_apart_are_no_lasting_refusal() -> None:
    """The agent was suspended between them."""
    keeper = Keeper().acquire().reads(REFUSED)
    keeper.now += 10 * SETTINGS.refusal_seconds
    keeper.timer()

    assert [each.kind for each in keeper.reads(REFUSED).of(LockDenied)] != ["lasting"]


def test_a_store_that_permits_reads_and_refuses_writes_refuses_the_lock() -> None:
    """The permission to write is missing. The reads don't interrupt the series."""
    keeper = Keeper().acquire()
    free = Found(b'{"expired":true,"validUntil":1700000000000,"owner":"java"}', "f1")

    denials = refuse_until(keeper, keeper.now + SETTINGS.refusal_seconds + 5, reads=free)

    assert [each.kind for each in denials].count("lasting") == 1


def test_a_lock_that_is_found_held_ends_the_series() -> None:
    """The store answers again, and another owner holds the lock. A later refusal counts from its own beginning."""
    keeper = Keeper().acquire()
    refuse_until(keeper, keeper.now + SETTINGS.refusal_seconds - 5)
    while not keeper.of(Get):
        keeper.timer()

    keeper.reads(foreign(left=1_000.0, at=keeper), "f1")
    denials = refuse_until(keeper, keeper.now + SETTINGS.refusal_seconds / 2)

    assert "lasting" not in {each.kind for each in denials}


def test_a_lease_that_ends_long_after_the_first_refusal_is_reported_as_lasting_at_once() -> None:
    """A lease of five minutes, shared with Hudi: the refusal had lasted for minutes when the lease ended."""
    keeper = Keeper(replace(SETTINGS, validity=300.0, renew_interval=30.0)).acquire()
    keeper.reads(Absent()).writes(Won("v1")).timer()
    denials = refuse_until(keeper, keeper.now + 1_000)
    assert keeper.of(LeaseEnded)
    assert "lasting" not in {each.kind for each in denials}

    denials = refuse_until(keeper, keeper.now + 15)

    assert [each.kind for each in denials].count("lasting") == 1


def test_a_refused_release_is_retried() -> None:
    """Otherwise the next contender would wait for the whole lease."""
    keeper = held().release().writes(REFUSED)
    assert keeper.of(Released) == []

    keeper.timer().reads(replace(keeper.written, expired=False), "v1").writes(Won("v2"))

    assert keeper.one(Released).why is None


def test_a_release_that_is_refused_again_and_again_is_left_to_lapse() -> None:
    keeper = held().release()
    while not keeper.of(Released):
        keeper.writes(REFUSED) if isinstance(keeper.state, Writing) else keeper.timer()
        if isinstance(keeper.state, Reading):
            keeper.reads(REFUSED)

    assert "left to lapse" in str(keeper.one(Released).why)


@pytest.mark.parametrize(
    "reads", [Refused("the store ignores conditions", unusable=True), Found(b"text", "x1")]
)
def test_what_no_retry_can_change_is_reported_at_once(reads: Refused | Found) -> None:
    keeper = Keeper().acquire().reads(reads)
    assert keeper.one(LockDenied).kind == "unusable"

    before = keeper.now
    keeper.timer()

    assert keeper.now - before == pytest.approx(SETTINGS.unusable_seconds)
    assert keeper.reads(Absent()).writes(Won("v1")).of(Confirmed)


def test_an_unusable_object_ends_a_lease_at_once() -> None:
    """Another program replaced the object by a file of 2 MiB: this owner is not in it any more."""
    keeper = renewing().writes(Refused("timeout")).timer()
    keeper.reads(Refused("longer than 1048576 bytes", unusable=True))

    assert "longer than" in keeper.one(LeaseEnded).why
    assert lease_of(keeper.state) is None
