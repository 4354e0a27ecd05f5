"""The index of footprints, compared with all pairs of markers."""

from __future__ import annotations

import gc
import random
from dataclasses import replace
from typing import Any, get_args
from unittest.mock import patch

import pytest
from hypothesis import given, strategies as st

from lakewarden.events import Marker, Operation
from lakewarden.handlers.table import detection, machine
from lakewarden.handlers.table.conflicts import may_conflict, touches_conflict
from lakewarden.handlers.table.effects import AcquireLock
from lakewarden.handlers.table.footprints import MAX_FOUND, MAX_KEPT, Footprints
from lakewarden.handlers.table.transactions import MAX_SEARCHED, Touch, Transaction
from tests.unit.handlers.table.test_conflicts import a_transaction
from tests.unit.handlers.table.world import World, facts, m, place_of, places_meet, world

OPERATIONS = get_args(Operation)
TRANSACTIONS = 4
MARKERS = st.builds(
    Marker,
    partition=st.sampled_from(["p", "q", "p", "q", "*"]),
    file_group=st.sampled_from(["f", "g", "*"]),
    operation=st.sampled_from(OPERATIONS[:2]),
)
TOUCHED = st.lists(st.tuples(st.integers(0, TRANSACTIONS - 1), MARKERS), max_size=12)


def named_pairs(footprints: Footprints) -> set[tuple[str, str, str, str]]:
    """The pairs of touches, by transaction and operation."""
    return {
        (one.transaction.id, one.operation, other.transaction.id, other.operation)
        for one, others in footprints.pairs.items()
        for other in others
        if other in footprints.first
    }


def expected_pairs(touched: list[tuple[Transaction, Marker]]) -> set[tuple[str, str, str, str]]:
    """The same pairs, found by comparing all markers."""
    return {
        (one.id, x.operation, other.id, y.operation)
        for one, x in touched
        for other, y in touched
        if one is not other and places_meet(place_of(x), place_of(y))
    }


def touching(touched: list[tuple[int, Marker]], gone: set[int]) -> tuple[list[Transaction], Footprints]:
    transactions = [a_transaction(f"t{number}") for number in range(TRANSACTIONS)]
    footprints = Footprints()
    for number, marker in touched:
        footprints.add(transactions[number], [marker])
    for number in gone:
        footprints.remove(transactions[number])
    return transactions, footprints


@given(touched=TOUCHED, gone=st.sets(st.integers(0, TRANSACTIONS - 1)), collected=st.integers(0, 3))
def test_pairs_are_exactly_the_touches_that_share_a_place(
    touched: list[tuple[int, Marker]], gone: set[int], collected: int
) -> None:
    """In any order of markers, with `*` and without, and after any transactions have ended, collected or not."""
    transactions, footprints = touching(touched, gone)
    footprints.collect(collected)
    late = a_transaction("late")
    footprints.add(late, [Marker(partition="p", file_group="*", operation="create")])
    footprints.add(late, [Marker(partition="q", file_group="f", operation="create")])

    left = [(transactions[number], marker) for number, marker in touched if number not in gone]
    left += [(late, Marker(partition="p", file_group="*", operation="create"))]
    left += [(late, Marker(partition="q", file_group="f", operation="create"))]
    assert named_pairs(footprints) == expected_pairs(left)
    assert {touch: kind for kind, alike in footprints.kinds.items() for touch in alike} == {
        touch: touch.kind for touch in footprints.first
    }
    places = {(each.id, *place_of(x), x.operation) for each, x in left}
    for transaction in (*transactions, late):
        for each in footprints.overlaps(transaction, lambda *_: True):
            assert each.mine.transaction is transaction
            for touch, file_group in ((each.mine, each.file_group), (each.other, each.other_file_group)):
                whole = (touch.transaction.id, "*", file_group, touch.operation)
                named = (touch.transaction.id, each.partition, file_group, touch.operation)
                assert {whole, named} & places


@given(touched=TOUCHED, gone=st.sets(st.integers(0, TRANSACTIONS - 1)))
def test_after_all_garbage_is_collected_the_index_has_what_is_left(
    touched: list[tuple[int, Marker]], gone: set[int]
) -> None:
    """However few entries each step drops."""
    transactions, footprints = touching(touched, gone)
    while footprints.garbage:
        footprints.collect(1)

    found = {
        (touch.transaction.id, partition, file_group, touch.operation)
        for partition, groups in footprints.index.items()
        for file_group, touches in groups.items()
        for touch in touches
    }
    assert found == {
        (f"t{number}", *place_of(each), each.operation) for number, each in touched if number not in gone
    }
    assert all(footprints.index.values())
    assert footprints.bytes == sum(each.bytes for each in transactions)


def test_the_overlaps_of_an_event_are_the_first_ones() -> None:
    """Two writers may share a million file groups; an abort names a hundred."""
    a, b, c = a_transaction("a"), a_transaction("b"), a_transaction("c")
    footprints = Footprints()
    places = [m(f"p/{number}") for number in range(10_000)]
    footprints.add(a, places)

    found = list(footprints.add(b, places))
    assert [each.file_group for each in found] == [each.file_group for each in places[:MAX_FOUND]]
    assert [each.file_group for each in footprints.overlaps(b, lambda *_: True)] == [
        str(number) for number in range(MAX_KEPT)
    ]

    stars = list(footprints.add(c, [m("p/*")]))
    assert {(each.file_group, each.other.transaction.id) for each in stars} == {("*", "a"), ("*", "b")}
    assert len(stars) <= MAX_FOUND


def test_a_removed_transaction_is_met_no_more_while_its_entries_are_collected() -> None:
    """Its footprint may be so large that dropping it takes many steps."""
    a, b = a_transaction("a"), a_transaction("b")
    footprints = Footprints()
    footprints.add(a, [m(f"p/{number}") for number in range(100)])
    footprints.remove(a)
    footprints.collect(10)

    assert list(footprints.add(b, [m("p/0"), m("p/*"), m("p/99")])) == []
    assert footprints.garbage
    while footprints.garbage:
        footprints.collect(10)
    assert {place: len(touches) for place, touches in footprints.index["p"].items()} == {
        "0": 1,
        "*": 1,
        "99": 1,
    }


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


def world_of_appends() -> World:
    w = world()
    for number in range(20):
        w.intent(f"t{number}", conflict_rule="deleted-file").touch(f"t{number}", m("p/f", "append"))
    return w.touch("t7", m("p/g")).touch("t8", m("p/g"))


def test_after_a_replay_only_pairs_are_visited_whose_operations_conflict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thousand appends to one bucket have a million pairs. One of them deletes another file, which two others build on."""
    w = world_of_appends()
    w = w.rebuilt()
    visited: list[tuple[str, str]] = []

    def visiting(mine: Touch, other: Touch) -> bool:
        visited.append((mine.transaction.id, other.transaction.id))
        return touches_conflict(mine, other)

    monkeypatch.setattr(detection, "touches_conflict", visiting)

    assert w.replayed().effects == [AcquireLock()]
    assert visited == []

    w.touch("t3", m("p/g", "delete"))
    assert w.aborted == {"t7": "conflict", "t8": "conflict"}


def test_a_replay_finds_the_conflicts_among_many_pairs_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The markers of the conflict are the last events of a killed agent, so no decision about them is in the log."""
    w = world_of_appends()
    with monkeypatch.context() as killed:
        killed.setattr(machine, "judge_markers", lambda *_: None)
        w.touch("t3", m("p/g", "delete"))
    w = w.rebuilt()

    w.replayed()

    assert w.aborted == {"t7": "conflict", "t8": "conflict"}


def test_an_ended_transaction_is_freed_without_a_garbage_collection() -> None:
    """A frozen cycle of references would stay in memory (`agent/serving/lasting.py`)."""
    w = world().intent("freed").touch("freed", m("p/f"), m("p/*"), m("q/f", "delete"))
    w.intent("other").touch("other", m("r/f"))
    gc.collect()
    gc.disable()
    try:
        w.abandon("freed")
        w.tick()
        left = [each for each in gc.get_objects() if isinstance(each, Transaction) and each.id == "freed"]
    finally:
        gc.enable()

    assert set(w.state.transactions) == {"other"}
    assert left == []


def test_the_pairs_of_removed_transactions_are_dropped_in_parts() -> None:
    """One transaction ends a thousand others: freeing their million pairs took half of the step's time."""
    transactions = [a_transaction(f"t{number}") for number in range(30)]
    footprints = Footprints()
    for each in transactions:
        footprints.add(each, [m("p/0")])
    for each in transactions[:20]:
        footprints.remove(each)
    kept = [sum(map(len, removed.pairs)) for removed in footprints.garbage]
    footprints.collect(60)
    left = [sum(map(len, removed.pairs)) for removed in footprints.garbage]

    assert kept == [29] * 20
    assert left == [29] * 18
    counting = footprints.first.keys()
    assert all(len(list(footprints.partners(each, counting))) == 9 for each in counting)
    while footprints.garbage:
        footprints.collect(60)
    assert list(footprints.pairs) == [each.touches["merge"][0] for each in transactions[20:]]


@given(touched=st.lists(st.lists(MARKERS, max_size=6), max_size=8))
def test_each_place_has_the_offset_of_the_first_event_that_touched_it(touched: list[list[Marker]]) -> None:
    """Whatever else the event, or a later one, touches."""
    this, footprints = a_transaction("t"), Footprints()
    first: dict[tuple[str, str], int] = {}
    for offset, markers in enumerate(touched):
        footprints.add(this, markers, offset)
        for each in markers:
            place = ("*", "*") if each.partition == "*" else (each.partition, each.file_group)
            first.setdefault(place, offset)

    assert {place: this.touched_at(*place) for place in first} == first


def test_a_long_footprint_is_searched_at_its_end_only() -> None:
    """An abort of a transaction with a million file groups takes no longer than others."""
    this, footprints = a_transaction("t"), Footprints()
    for offset in (1, 2):
        footprints.add(this, [m(f"p/{offset}-{number}") for number in range(MAX_SEARCHED)], offset)

    assert (this.touched_at("p", "1-0"), this.touched_at("p", "2-0")) == (None, 2)


@pytest.mark.parametrize("seed", range(100))
def test_the_check_after_a_replay_visits_few_pairs_and_decides_as_if_it_visited_all(seed: int) -> None:
    """The log is of an agent that looked for no conflicts."""

    def all_that_may_conflict(alike: list[Touch], others: list[Touch]) -> list[Touch]:
        return others if may_conflict(alike[0], others[0]) else []

    rng = random.Random(seed)
    live = world(early_detection=False)
    for number in range(8):
        rule = rng.choice(["ordered", "ordered", "ordered", "file-group", "deleted-file"])
        live.intent(f"t{number}", conflict_rule=rule, priority=rng.choice([0, 0, seed % 2]))
    live.lock()
    for _ in range(20):
        name = f"t{rng.randrange(8)}"
        running = live.state.running()
        if rng.random() < 0.7:
            live.touch(name, m(f"p/{rng.randrange(6)}", rng.choice(["append", "append", "append", "delete"])))
        elif running is not None and rng.random() < 0.5:
            live.complete(running.id)
        elif name in live.state.transactions:
            live.request(name)
    live.settings = replace(live.settings, early_detection=True)
    quick, plain = live.rebuilt().replayed(), live.rebuilt()
    with patch.object(detection, "_rivals", all_that_may_conflict):
        plain.replayed()

    assert quick.effects == plain.effects
    assert facts(quick.state) == facts(plain.state)
