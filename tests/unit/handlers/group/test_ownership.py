"""When an owner may keep its partition through a rebalance."""

from __future__ import annotations

import pytest

from lakewarden.handlers.group.ownership import TakeOvers, may_resume


def test_an_owner_resumes_if_nobody_else_took_its_partition() -> None:
    """Another agent joined the group, and this partition stayed."""
    assert may_resume(TakeOvers(own=10, again=30, others=7), read_until=31) == "yes"


def test_an_owner_is_replaced_if_another_agent_took_its_partition_meanwhile() -> None:
    """This agent missed a generation: it was silent for too long, and has joined again."""
    assert may_resume(TakeOvers(own=10, again=30, others=20), read_until=31) == "no"


def test_a_take_over_after_the_owners_record_replaces_it_too() -> None:
    """The partition has moved in the next round already."""
    assert may_resume(TakeOvers(own=10, again=30, others=31), read_until=32) == "no"


@pytest.mark.parametrize(
    "known",
    [
        TakeOvers(own=10, again=-1, others=-1),
        TakeOvers(own=10, again=30, others=-1),
    ],
)
def test_nothing_is_known_before_the_owners_own_record_was_read(known: TakeOvers) -> None:
    """Another agent's take-over may lie directly before it."""
    assert may_resume(known, read_until=30) == "unknown yet"


def test_a_take_over_that_was_read_replaces_the_owner_at_once() -> None:
    assert may_resume(TakeOvers(own=10, again=-1, others=11), read_until=12) == "no"
