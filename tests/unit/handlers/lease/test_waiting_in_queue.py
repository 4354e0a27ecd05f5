"""What is heard of the lock from others: hints that save waiting, and never more than that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lakewarden.handlers.lease.conditional import Absent, Unknown, Won
from lakewarden.handlers.lease.machine import Acquire, Get, LockDenied, Put, Released, Waiting, deadline
from tests.unit.handlers.lease.lease_keeper import SETTINGS, Keeper, foreign, held


def test_who_waits_first_reads_at_once_when_the_lock_is_heard_to_be_released() -> None:
    """An agent told the audit log."""
    keeper = Keeper().want().reads(foreign(left=300.0), "f1").hear_released()

    assert keeper.of(Get) == [Get()]
    assert keeper.of(Put) == []


def test_who_waits_behind_others_gives_each_of_them_its_turn() -> None:
    """Eight agents that all read at once would fight for it."""
    keeper = Keeper().want().reads(foreign(left=300.0), "f1").hear_released(ahead=3)
    heard = keeper.now
    assert keeper.of(Get) == []

    keeper.timer()

    assert keeper.of(Get) == [Get()]
    assert keeper.now - heard == pytest.approx(3 * SETTINGS.queue_slot_seconds)


def test_when_another_took_its_turn_the_lock_is_left_alone_again() -> None:
    """The first in line took it: those behind need not look."""
    keeper = Keeper().want().reads(foreign(left=300.0), "f1").hear_released(ahead=1).hear_taken(left=30.0)
    heard = keeper.now

    keeper.timer()

    assert keeper.now - heard == pytest.approx(SETTINGS.poll_seconds)


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_read_that_was_overtaken_by_the_release_is_repeated_in_our_turn(ahead: int) -> None:
    """Its answer took longer than the holder's release, and the word of it, to come here."""
    keeper = Keeper().want().hear_released(ahead=ahead).reads(foreign(left=300.0), "f1")
    denied = keeper.now
    assert keeper.of(LockDenied)

    keeper.timer()

    assert keeper.of(Get) == [Get()]
    assert keeper.now - denied == pytest.approx(ahead * SETTINGS.queue_slot_seconds)


def test_a_read_is_not_repeated_for_a_release_that_it_comes_after() -> None:
    """Or whose lock was heard to be taken again: the next end to wait for is the new holder's."""
    taken = Keeper().want().hear_released().hear_taken(left=300.0).reads(foreign(left=300.0), "f1")
    repeated = Keeper().want().hear_released().reads(foreign(left=300.0), "f1").timer()
    repeated.reads(foreign(left=300.0), "f2")

    for keeper in (taken, repeated):
        heard = keeper.now
        keeper.timer()
        assert keeper.now - heard == pytest.approx(SETTINGS.poll_seconds)


def test_a_forged_hint_costs_reads_and_nothing_else() -> None:
    """Hints come from the network: a lock that the object says is held stays held, whatever was heard."""
    keeper = Keeper().want().reads(foreign(left=300.0), "f1")
    for _ in range(5):
        keeper.hear_released().reads(foreign(left=300.0), "f1")

    assert keeper.puts == []


def test_a_hint_does_not_hurry_a_write_in_doubt() -> None:
    """It has its own time, and reads back what it did."""
    keeper = Keeper().want().reads(Absent()).writes(Unknown("500")).reads(Unknown("500"))
    due = deadline(keeper.state, SETTINGS)

    assert deadline(keeper.hear_released().state, SETTINGS) == due
    assert deadline(keeper.hear_taken(left=30.0).state, SETTINGS) == due


def test_who_wants_the_lock_while_others_wait_comes_after_them() -> None:
    """It may have held the lock until a moment ago."""
    keeper = Keeper().give(Acquire(Keeper().at(), None, ahead=2))
    asked = keeper.now
    assert keeper.of(Get) == []
    assert (keeper.one(LockDenied).fatal, keeper.one(LockDenied).cost.requests) == (False, 0)

    keeper.timer()

    assert keeper.of(Get) == [Get()]
    assert keeper.now - asked == pytest.approx(2 * SETTINGS.queue_slot_seconds)


def test_who_wants_it_again_while_giving_it_back_comes_after_those_who_wait() -> None:
    """`per-commit`: the next commit was requested before the release was answered."""
    keeper = held().drop()
    keeper.give(Acquire(keeper.at(), None, ahead=1)).writes(Won("v2"))

    assert len(keeper.of(Released)) == 1
    assert keeper.of(Get) == []
    assert keeper.timer().of(Get) == [Get()]


def test_those_who_wait_come_first_too_where_the_release_was_in_doubt() -> None:
    """As above, but its answer was lost, and the object is to be read back."""
    keeper = held().drop().writes(Unknown("500")).reads(Unknown("500"))
    assert isinstance(keeper.state, Waiting)
    keeper.give(Acquire(keeper.at(), None, ahead=1)).timer().reads(
        replace(keeper.written, expired=True), "v2"
    )

    assert len(keeper.of(Released)) == 1
    assert keeper.of(Get) == []
    assert keeper.timer().of(Get) == [Get()]


def test_an_adoption_waits_for_nobody() -> None:
    """A grant runs under that lock."""
    keeper = Keeper().give(Acquire(Keeper().at(), "former", ahead=5))

    assert keeper.of(Get) == [Get()]
