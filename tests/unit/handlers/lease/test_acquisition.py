"""Acquiring the lock, and waiting for another holder: when the automaton writes, reads again, or leaves the object unchanged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lakewarden.handlers.lease.conditional import Absent, Found, IfAbsent, IfMatch, Lost, Won
from lakewarden.handlers.lease.lock_object import LockRecord, Malformed, parse
from lakewarden.handlers.lease.machine import Confirmed, Get, LockDenied, Waiting, Writing, deadline, lease_of
from tests.unit.handlers.lease.lease_keeper import SETTINGS, STATES, Keeper, foreign


def test_a_lock_without_an_object_is_created_only_if_absent() -> None:
    """The first commit to a table."""
    keeper = Keeper().acquire().reads(Absent())

    assert keeper.put.condition == IfAbsent()
    assert keeper.written == LockRecord(
        expired=False, valid_until=keeper.wall + 30_000, owner=keeper.written.owner
    )
    confirmed = keeper.writes(Won("v1")).one(Confirmed)
    assert confirmed.what == "acquired"
    assert confirmed.cost.requests == 2


def test_a_released_lock_is_acquired_under_the_version_that_was_read() -> None:
    """Two agents read the same free lock: one write wins."""
    keeper = Keeper().acquire().reads(foreign(expired=True), "v7")

    assert keeper.put.condition == IfMatch("v7")
    assert keeper.written.owner != "java"


@pytest.mark.parametrize("past, acquired", [(-0.001, False), (0.0, False), (0.5, False), (0.501, True)])
def test_a_lapsed_lock_is_acquired_only_when_its_end_is_past_by_the_drift(
    past: float, acquired: bool
) -> None:
    """The holder's clock may be behind ours."""
    keeper = Keeper().acquire()
    keeper.reads(
        LockRecord(expired=False, valid_until=keeper.wall - round(past * 1000), owner="java"), "v7", after=0
    )

    assert isinstance(keeper.state, Writing) is acquired


def test_the_lease_counts_from_before_the_write_was_sent() -> None:
    """The answer took four seconds. They count, because contenders count from when the record was written."""
    keeper = Keeper().acquire().reads(Absent()).writes(Won("v1"), after=4.0)

    assert keeper.lease_seconds() == pytest.approx(30 - 0.5 - 4.0)


def test_an_answer_that_took_as_long_as_the_lease_confirms_nothing() -> None:
    """A stalled agent resumes: the write took effect, and must be repeated before the caller relies on the lease."""
    keeper = Keeper().acquire().reads(Absent()).writes(Won("v1"), after=28.0)

    assert keeper.of(Confirmed) == []
    assert keeper.put.condition == IfMatch("v1")
    assert keeper.writes(Won("v2")).one(Confirmed).what == "acquired"


def test_a_lock_of_another_holder_is_read_at_most_once_per_poll_interval() -> None:
    """Ten agents that wait for a lease of five minutes must not send a request per second each."""
    keeper = Keeper().acquire().reads(record := foreign(left=300.0), "f1")
    began, reads = keeper.now, 0

    while keeper.now < began + 100:
        keeper.timer()
        reads += len(keeper.of(Get))
        keeper.reads(record, "f1", after=0)

    assert reads <= 100 / SETTINGS.poll_seconds + 1


def test_the_object_is_read_again_when_the_lease_of_the_holder_ends() -> None:
    """The holder died without a release: the lock is acquired a few milliseconds after its lease and the drift are over."""
    keeper = Keeper().acquire().reads(record := foreign(left=4.0), "f1")

    end = keeper.now
    keeper.timer()

    assert keeper.now - end == pytest.approx(4.0 + 0.5, abs=0.02)
    assert isinstance(keeper.reads(record, "f1", after=0).state, Writing)


def test_contenders_do_not_all_read_at_the_same_time() -> None:
    """Jitter spreads them."""
    due = set()
    for jitter in (0.0, 0.3, 0.9):
        keeper = Keeper(jitter=jitter).acquire().reads(foreign(left=300.0), "f1")
        due.add(deadline(keeper.state, SETTINGS))

    assert len(due) == 3


def test_a_denied_lock_is_reported_with_its_holder() -> None:
    """`lakewarden status` shows the holder."""
    keeper = Keeper().acquire()
    record = foreign(left=20.0, at=keeper)

    denied = keeper.reads(record, "f1").one(LockDenied)

    assert (denied.kind, denied.holder, denied.held_until) == ("waiting", "java", record.valid_until)


def test_a_lost_write_that_finds_another_holder_waits() -> None:
    """Two agents read the free lock, and the write of the other one came first."""
    keeper = Keeper().acquire().reads(Absent()).writes(Lost("412"))
    assert keeper.of(Get) == [Get()]

    keeper.reads(foreign(left=29.0), "f1")

    assert isinstance(keeper.state, Waiting)
    assert keeper.one(LockDenied).holder == "java"


def test_contenders_that_keep_losing_back_off() -> None:
    """Fifty agents race for one lock."""
    keeper = Keeper().acquire()
    for _ in range(3):
        keeper.reads(Absent()).writes(Lost("412"))
    keeper.reads(Absent()).writes(Lost("412"))

    assert isinstance(keeper.state, Waiting)


@pytest.mark.parametrize(
    "body",
    [b"", b"hello", b"{}", b'{"expired":false,"validUntil":1700000000,"owner":"o"}', b"[1]"],
)
@pytest.mark.parametrize("state", ["reading", "reading back"])
def test_an_object_that_is_no_lock_is_never_overwritten(state: str, body: bytes) -> None:
    """A data file under the lock's name, or a lock of another format: another program may rely on it."""
    keeper = STATES[state]()
    sent = len(keeper.puts)

    keeper.reads(Found(body, "x1"))
    for _ in range(20):
        keeper.timer()
        if keeper.of(Get):
            keeper.reads(Found(body, "x1"))

    assert len(keeper.puts) == sent
    assert lease_of(keeper.state) is None
    assert isinstance(parse(body), Malformed)


def test_the_far_future_end_of_a_released_lease_is_not_inherited() -> None:
    """A writer with a wrong clock released the lock. With its end inherited, a crash of ours would block the table for days."""
    keeper = Keeper().acquire().reads(foreign(left=86_400.0, expired=True), "f1")

    assert keeper.written.valid_until == keeper.wall + 30_000


STRICT = replace(SETTINGS, strict=True)


def test_strict_acquires_a_lapsed_lock_only_after_a_whole_lease_without_a_change() -> None:
    """The holder's clock may be hours behind, so a record that has lapsed by our clock proves nothing."""
    keeper = Keeper(STRICT).acquire()
    began = keeper.now
    lapsed = foreign(left=-3600.0, at=keeper)
    keeper.reads(lapsed, "f1")
    while not keeper.puts:
        assert keeper.now - began < 60, "never acquired"
        keeper.timer().reads(lapsed, "f1")

    assert keeper.now - began > STRICT.validity + STRICT.drift
    assert keeper.put.condition == IfMatch("f1")


def test_strict_never_acquires_a_lock_that_is_renewed() -> None:
    """Each renewal is a new version, from which the whole lease counts again."""
    keeper = Keeper(STRICT).acquire()
    keeper.reads(foreign(left=-3600.0, at=keeper), "f0")
    for renewal in range(1, 30):
        keeper.timer().reads(foreign(left=-3600.0, at=keeper), f"f{renewal}")

    assert keeper.puts == []
    assert "unchanged" in keeper.one(LockDenied).why


def test_strict_acquires_a_released_lock_immediately() -> None:
    """The holder released it, so no clock is involved."""
    keeper = Keeper(STRICT).acquire().reads(foreign(expired=True), "f1")

    assert keeper.put.condition == IfMatch("f1")


def test_strict_still_respects_a_lease_that_has_not_lapsed() -> None:
    """A holder whose lease is longer than ours: unchanged for a whole lease of ours, and still in force."""
    keeper = Keeper(STRICT).acquire()
    record = foreign(left=300.0, at=keeper)
    keeper.reads(record, "f1")
    while keeper.now < 100.0 + 299.0:
        keeper.timer().reads(record, "f1")

    assert keeper.puts == []
