"""The index of footprints, compared with all pairs of markers."""

from __future__ import annotations

from itertools import permutations
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewarden.events import Marker, Operation
from lakewarden.handlers.table.footprints import Footprints
from lakewarden.handlers.table.transactions import Touch, Transaction
from lakewarden.handlers.table.verdicts import AcquireLock
from tests.unit.handlers.table.test_conflicts import a_transaction
from tests.unit.handlers.table.world import m, world

OPERATIONS = get_args(Operation)
TRANSACTIONS = 4
MARKERS = st.builds(
    Marker,
    partition=st.sampled_from(["p", "q"]),
    file_group=st.sampled_from(["f", "g", "*"]),
    operation=st.sampled_from(OPERATIONS[:2]),
)
TOUCHED = st.lists(st.tuples(st.integers(0, TRANSACTIONS - 1), MARKERS), max_size=12)


def named_pairs(combinations: set[tuple[Touch, ...]]) -> set[tuple[str, str, str, str]]:
    """The pairs of touches in these combinations, by transaction and operation."""
    return {
        (one.transaction.id, one.operation, other.transaction.id, other.operation)
        for touches in combinations
        for one, other in permutations(touches, 2)
        if one.transaction is not other.transaction
    }


def expected_pairs(touched: list[tuple[Transaction, Marker]]) -> set[tuple[str, str, str, str]]:
    """The same pairs, found by comparing all markers."""
    return {
        (one.id, x.operation, other.id, y.operation)
        for one, x in touched
        for other, y in touched
        if one is not other
        and x.partition == y.partition
        and (x.file_group == y.file_group or "*" in (x.file_group, y.file_group))
    }


@given(touched=TOUCHED, gone=st.sets(st.integers(0, TRANSACTIONS - 1)))
def test_touch_combinations_are_exactly_the_touches_that_share_a_place(
    touched: list[tuple[int, Marker]], gone: set[int]
) -> None:
    """In any order of markers, with `*` and without, and after any transactions have ended."""
    transactions = [a_transaction(f"t{number}") for number in range(TRANSACTIONS)]
    footprints = Footprints()
    for number, marker in touched:
        footprints.add(transactions[number], [marker])
    for number in gone:
        footprints.remove(transactions[number])

    left = [(transactions[number], marker) for number, marker in touched if number not in gone]
    assert named_pairs(footprints.touch_combinations()) == expected_pairs(left)


def test_two_transactions_that_share_many_places_are_one_combination() -> None:
    """The cost of a sweep: two writers may share a hundred thousand file groups."""
    a, b = a_transaction("a"), a_transaction("b")
    footprints = Footprints()
    for transaction in (a, b):
        footprints.add(transaction, [m(f"p/{number}") for number in range(100)])

    assert footprints.touch_combinations() == {(*a.touch("merge"), *b.touch("merge"))}


def test_after_a_replay_a_footprint_without_a_conflict_is_not_visited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Paimon writers merge into the same buckets without a conflict. Two operations of one transaction are no conflict either."""
    lenient: dict[str, Any] = {"conflict_rule": "deleted-file"}
    w = world().intent("A", **lenient).intent("B", **lenient)
    w.touch("A", m("p/f"), m("p/g")).touch("B", m("p/f"))
    w.intent("C").touch("C", m("q/f"), m("q/f", "delete"))
    w = w.rebuilt()

    def visited(_: Footprints, transaction: Transaction) -> None:
        pytest.fail(f"the footprint of {transaction.id} is visited")

    monkeypatch.setattr(Footprints, "overlaps", visited)

    assert w.replayed().effects == [AcquireLock()]
