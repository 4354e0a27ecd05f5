"""Which partitions move when agents join, leave, or missed a round, and when an owner may keep one through a rebalance."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given, strategies as st

from lakewarden.handlers.group.ownership import Claim, TakeOvers, assign, may_resume

TWELVE = range(12)


def after(assigned: dict[str, list[int]], number: int = 1) -> dict[str, Claim]:
    """The claims of the members in the round after this assignment."""
    return {name: Claim(number, tuple(mine)) for name, mine in assigned.items()}


def moved(before: dict[str, list[int]], now: dict[str, list[int]]) -> set[int]:
    owner = {partition: name for name, mine in before.items() for partition in mine}
    return {
        partition for name, mine in now.items() for partition in mine if owner.get(partition, name) != name
    }


THREE = assign(TWELVE, {"a": Claim(), "b": Claim(), "c": Claim()})


def test_an_agent_that_leaves_moves_only_its_own_partitions() -> None:
    """One of three agents is stopped for an upgrade."""
    claims = after(THREE)
    del claims["b"]

    now = assign(TWELVE, claims)

    assert moved(THREE, now) == set(THREE["b"])
    assert {name: len(mine) for name, mine in now.items()} == {"a": 6, "c": 6}


def test_the_members_that_keep_most_get_the_larger_shares() -> None:
    """Thirteen partitions: otherwise two would move although one is enough."""
    claims = {"a": Claim(1, (0, 1, 2, 3)), "b": Claim(1, (4, 5, 6, 7)), "c": Claim(1, (8, 9, 10, 11, 12))}

    assert assign(range(13), claims) == {name: list(claim.partitions) for name, claim in claims.items()}


def test_the_claim_of_the_latest_round_wins() -> None:
    """An agent that was suspended missed a round, and claims what another agent owns now."""
    claims = {"a": Claim(4, (0, 1)), "b": Claim(5, (0, 1)), "c": Claim(5, (2, 3))}

    now = assign(range(4), claims)

    assert now["b"][0] == 0
    assert now["c"][0] == 2


CLAIMS = st.dictionaries(
    st.sampled_from("abcdefg"),
    st.builds(Claim, st.integers(0, 3), st.lists(st.integers(0, 20), max_size=20, unique=True).map(tuple)),
    min_size=1,
)


@given(st.integers(0, 20), CLAIMS)
def test_every_partition_has_one_member_and_shares_differ_by_at_most_one(
    count: int, claims: dict[str, Claim]
) -> None:
    """Whatever the members claim."""
    now = assign(range(count), claims)

    assert sorted(chain.from_iterable(now.values())) == list(range(count))
    assert set(now) == set(claims)
    sizes = [len(mine) for mine in now.values()]
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(0, 20), CLAIMS)
def test_an_assignment_that_is_repeated_moves_nothing(count: int, claims: dict[str, Claim]) -> None:
    now = assign(range(count), claims)

    assert assign(range(count), after(now)) == now


@given(st.integers(1, 20), CLAIMS)
def test_no_more_partitions_move_than_equal_shares_require(count: int, claims: dict[str, Claim]) -> None:
    """A member that joins an assigned group, such as an upgraded agent: what it gets moves, and nothing else."""
    before = assign(range(count), claims)

    now = assign(range(count), after(before) | {"new": Claim()})

    assert moved(before, now) == set(now["new"])


@pytest.mark.parametrize(
    ("again", "others", "read_until", "answer"),
    [
        pytest.param(30, 7, 31, "yes", id="another agent joined the group, and this partition stayed"),
        pytest.param(30, 20, 31, "no", id="this agent missed a generation"),
        pytest.param(30, 31, 32, "no", id="the partition has moved in the next round already"),
        pytest.param(-1, 11, 12, "no", id="another take-over was read"),
        pytest.param(-1, -1, 30, "unknown yet", id="its own record was not sent"),
        pytest.param(30, -1, 30, "unknown yet", id="another take-over may lie directly before its own"),
    ],
)
def test_an_owner_resumes_if_nobody_else_took_its_partition(
    again: int, others: int, read_until: int, answer: str
) -> None:
    assert may_resume(TakeOvers(own=10, again=again, others=others), read_until) == answer
