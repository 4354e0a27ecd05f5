"""Events of other agents are hints: they shorten waits, and change nothing else."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from lakewarden.handlers.lease.conditional import Absent, Unknown, Won
from lakewarden.handlers.lease.machine import Acquire, Get, LockDenied, Put, Released, Waiting, deadline
from tests.unit.handlers.lease.lease_keeper import SETTINGS, Keeper, foreign, held


def test_the_first_contender_reads_immediately_after_a_release() -> None:
    """Another agent published `lock-released`."""
    keeper = Keeper().acquire().reads(foreign(left=300.0), "f1").observe_release()

    assert keeper.of(Get) == [Get()]
    assert keeper.of(Put) == []


def test_a_contender_waits_a_slot_for_each_contender_ahead() -> None:
    """Eight agents that read at once would all write at once."""
    keeper = Keeper().acquire().reads(foreign(left=300.0), "f1").observe_release(ahead=3)
    observed = keeper.now
    assert keeper.of(Get) == []

    keeper.timer()

    assert keeper.of(Get) == [Get()]
    assert keeper.now - observed == pytest.approx(3 * SETTINGS.queue_slot_seconds)


def test_after_another_agents_acquisition_the_contender_waits_for_the_next_poll() -> None:
    """The first contender acquired the lock, so the others need not read."""
    keeper = (
        Keeper()
        .acquire()
        .reads(foreign(left=300.0), "f1")
        .observe_release(ahead=1)
        .observe_acquisition(left=30.0)
    )
    observed = keeper.now

    keeper.timer()

    assert keeper.now - observed == pytest.approx(SETTINGS.poll_seconds)


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_read_that_overlaps_a_release_is_repeated_in_our_turn(ahead: int) -> None:
    """The answer of the read took longer than the release and its audit event."""
    keeper = Keeper().acquire().observe_release(ahead=ahead).reads(foreign(left=300.0), "f1")
    denied = keeper.now
    assert keeper.of(LockDenied)

    keeper.timer()

    assert keeper.of(Get) == [Get()]
    assert keeper.now - denied == pytest.approx(ahead * SETTINGS.queue_slot_seconds)


def test_a_read_is_not_repeated_for_an_earlier_release() -> None:
    """Nor after another agent acquired the lock: then the end of the new holder's lease counts."""
    acquired = (
        Keeper().acquire().observe_release().observe_acquisition(left=300.0).reads(foreign(left=300.0), "f1")
    )
    repeated = Keeper().acquire().observe_release().reads(foreign(left=300.0), "f1").timer()
    repeated.reads(foreign(left=300.0), "f2")

    for keeper in (acquired, repeated):
        observed = keeper.now
        keeper.timer()
        assert keeper.now - observed == pytest.approx(SETTINGS.poll_seconds)


def test_a_forged_hint_costs_reads_and_nothing_else() -> None:
    """Hints come from the network. A lock that is held according to its object stays held."""
    keeper = Keeper().acquire().reads(foreign(left=300.0), "f1")
    for _ in range(5):
        keeper.observe_release().reads(foreign(left=300.0), "f1")

    assert keeper.puts == []


def test_a_hint_does_not_change_the_back_off_of_an_unknown_write() -> None:
    """The automaton reads it back after its back-off."""
    keeper = Keeper().acquire().reads(Absent()).writes(Unknown("500")).reads(Unknown("500"))
    due = deadline(keeper.state, SETTINGS)

    assert deadline(keeper.observe_release().state, SETTINGS) == due
    assert deadline(keeper.observe_acquisition(left=30.0).state, SETTINGS) == due


def test_a_new_contender_joins_the_end_of_the_queue() -> None:
    """It may have held the lock a moment ago."""
    keeper = Keeper().step(Acquire(Keeper().at(), None, ahead=2))
    began = keeper.now
    assert keeper.of(Get) == []
    assert (keeper.one(LockDenied).kind, keeper.one(LockDenied).cost.requests) == ("waiting", 0)

    keeper.timer()

    assert keeper.of(Get) == [Get()]
    assert keeper.now - began == pytest.approx(2 * SETTINGS.queue_slot_seconds)


def test_a_holder_that_releases_and_needs_the_lock_again_joins_the_end_of_the_queue() -> None:
    """`per-commit`: the next commit was requested before the store answered the release."""
    keeper = held().release()
    keeper.step(Acquire(keeper.at(), None, ahead=1)).writes(Won("v2"))

    assert len(keeper.of(Released)) == 1
    assert keeper.of(Get) == []
    assert keeper.timer().of(Get) == [Get()]


def test_it_also_joins_the_end_after_an_unknown_release() -> None:
    """As above, but the answer was lost, and the object is read back first."""
    keeper = held().release().writes(Unknown("500")).reads(Unknown("500"))
    assert isinstance(keeper.state, Waiting)
    keeper.step(Acquire(keeper.at(), None, ahead=1)).timer().reads(
        replace(keeper.written, expired=True), "v2"
    )

    assert len(keeper.of(Released)) == 1
    assert keeper.of(Get) == []
    assert keeper.timer().of(Get) == [Get()]


def test_an_adoption_skips_the_queue() -> None:
    """A grant runs under this lock."""
    keeper = Keeper().step(Acquire(Keeper().at(), "former", ahead=5))

    assert keeper.of(Get) == [Get()]


def test_repeated_acquisitions_delay_the_next_read_by_one_poll_interval_at_most() -> None:
    """The review's script: an acquisition was published every four seconds, and the lock was not read for an hour."""
    keeper = Keeper().acquire().reads(record := foreign(left=4.0), "f1")
    due = deadline(keeper.state, SETTINGS)
    assert due is not None
    reads: list[float] = []

    while keeper.now < due + 3_600:
        keeper.now += 4.0
        keeper.observe_acquisition(left=1e7)
        until = deadline(keeper.state, SETTINGS)
        if until is not None and until <= keeper.now + 4.0:
            keeper.timer()
            reads.append(keeper.now)
            keeper.reads(replace(record, valid_until=keeper.wall + 4_000), "f2")

    assert reads[0] <= due + SETTINGS.poll_seconds
    longest = 4.5 + SETTINGS.poll_seconds + 4.0
    assert max(later - earlier for earlier, later in pairwise(reads)) <= longest


def test_invented_contenders_delay_the_first_read_by_one_poll_interval_at_most() -> None:
    """The review's script: a thousand contenders that don't exist delayed a free lock by 250 s."""
    keeper = Keeper().step(Acquire(Keeper().at(), None, ahead=1_000))
    began = keeper.now

    keeper.timer()

    assert keeper.of(Get) == [Get()]
    assert keeper.now - began == pytest.approx(SETTINGS.poll_seconds)


def test_invented_contenders_don_t_delay_a_read_that_overlapped_a_release() -> None:
    """It is due when the lease ends, or after one poll interval, as without the release."""
    keeper = Keeper().acquire().observe_release(ahead=1_000).reads(foreign(left=300.0), "f1")
    denied = keeper.now

    keeper.timer()

    assert keeper.now - denied == pytest.approx(SETTINGS.poll_seconds)
