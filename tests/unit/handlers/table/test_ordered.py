"""The rule `ordered`: upserts of one bucket wait for their turn instead of aborting each other (docs/decisions/0045)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest

from lakewarden.events import ConflictRule, Operation
from lakewarden.handlers.explain.waits import waits
from lakewarden.handlers.table.transactions import Phase
from lakewarden.handlers.table.verdicts import AbortTransaction, Admit
from tests.unit.handlers.table.world import World, m, world

BUCKET = m("p/bucket-0")


def upserts(*names: str, heartbeat: float = 5.0, **settings: object) -> World:
    """Return a world in which these writers have open `ordered` transactions on one bucket and the agent holds the lock."""
    w = world(**settings)
    for name in names:
        w.intent(name, conflict_rule="ordered", heartbeat_seconds=heartbeat)
    w.lock()
    for name in names:
        w.touch(name, BUCKET)
        assert w.aborted == {}
    return w


@pytest.mark.parametrize("policy", ["first-intent", "first-committer"])
@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("order", list(permutations("ABC")), ids="".join)
def test_whatever_the_order_of_the_requests_the_grants_come_in_the_order_of_the_admissions(
    order: tuple[str, ...], policy: str, early: bool
) -> None:
    w = upserts(*"ABC", policy=policy, early_detection=early)
    granted = []
    for name in order:
        granted += w.request(name).granted
    for _ in order:
        granted += w.complete(granted[-1]).granted

    assert granted == ["A", "B", "C"]
    assert not [each for each in w.log if isinstance(each, AbortTransaction)]


def test_each_admission_has_a_turn_after_those_that_are_open() -> None:
    """Writers that read one base number their rows by it. When none is open, the turns begin again."""
    w = world().intent("A", conflict_rule="ordered").intent("B", conflict_rule="ordered").intent("C")
    w.abandon("A").intent("D", conflict_rule="ordered").abandon("B").abandon("D")
    w.intent("E", conflict_rule="ordered")

    turns = {each.transaction: each.turn for each in w.log if isinstance(each, Admit)}
    assert turns == {"A": 0, "B": 1, "C": None, "D": 2, "E": 0}


def test_disjoint_buckets_are_granted_in_the_order_of_the_requests() -> None:
    w = world().intent("A", conflict_rule="ordered").intent("B", conflict_rule="ordered").lock()
    w.touch("A", BUCKET).touch("B", m("p/bucket-1"))

    assert w.request("B").granted == ["B"]


@pytest.mark.parametrize(
    "end",
    [
        lambda w: w.abandon("A"),
        lambda w: w.lock(60).tick(10).beat("B").tick(10),
        lambda w: w.request_abort("A"),
        lambda w: w.intent("A2", writer="w-A", conflict_rule="ordered"),
    ],
    ids=["abandoned", "silent", "aborted by an operator", "superseded"],
)
def test_the_next_one_is_granted_when_the_first_has_ended_without_a_commit(
    end: Callable[[World], World],
) -> None:
    w = upserts("A", "B").request("B")
    assert (w.granted, w.aborted) == ([], {})

    w = end(w)

    assert w.granted == ["B"]


def test_the_next_one_is_granted_when_the_first_is_open_for_too_long() -> None:
    """Its heartbeats continue while its work hangs."""
    w = upserts("A", heartbeat=100.0, max_transaction=60.0)
    w.tick(50).beat("A").intent("B", BUCKET, conflict_rule="ordered").request("B")
    assert w.granted == []

    w.lock().beat("A").tick(11)

    assert (w.aborted, w.granted) == ({"A": "timed-out"}, ["B"])


def test_the_next_one_is_granted_after_a_commit_and_after_an_unknown_outcome() -> None:
    """The commit of an earlier one is no conflict: its rows count as older ones, whenever it lands."""
    w = upserts("A", "B", "C", heartbeat=100.0).request("A").request("B").request("C")

    assert w.complete("A").granted == ["B"]
    assert (w.lock(60).tick(21).aborted, w.granted) == ({"B": "outcome-unknown"}, ["C"])


@pytest.mark.parametrize("moment", ["granted", "committed", "unknown"])
@pytest.mark.parametrize("policy", ["first-intent", "first-committer"])
def test_a_transaction_that_touches_a_bucket_after_a_later_one_was_granted_is_late(
    moment: str, policy: str
) -> None:
    """Its rows would count as older ones, so it must be staged again."""
    w = world(policy=policy).intent("A", conflict_rule="ordered", heartbeat_seconds=100)
    w.intent("B", conflict_rule="ordered", heartbeat_seconds=100).lock()
    assert w.touch("B", BUCKET).request("B").granted == ["B"]
    if moment == "committed":
        w.complete("B")
    if moment == "unknown":
        w.lock(60).tick(21)

    w.touch("A", BUCKET)

    assert w.aborted == {"A": "outcome-unknown" if moment == "unknown" else "conflict"}


def test_without_early_detection_a_late_transaction_is_aborted_before_its_grant() -> None:
    w = world(early_detection=False).intent("A", conflict_rule="ordered").intent("B", conflict_rule="ordered")
    w.lock().touch("B", BUCKET).commits("B").touch("A", BUCKET)
    assert w.aborted == {}

    assert w.request("A").aborted == {"A": "conflict"}


def test_a_granted_transaction_that_touches_more_aborts_only_earlier_ones() -> None:
    w = world()
    for name in "ABC":
        w.intent(name, conflict_rule="ordered")
    w.lock().touch("A", BUCKET).touch("C", BUCKET).request("B")
    assert w.granted == ["B"]

    assert w.touch("B", BUCKET).aborted == {"A": "conflict"}
    assert w.complete("B").request("C").granted == ["C"]


def test_a_larger_priority_passes_and_the_earlier_transaction_loses() -> None:
    """Otherwise the one with the larger priority would wait for the other."""
    w = world().intent("A", conflict_rule="ordered").touch("A", BUCKET)

    w.intent("B", conflict_rule="ordered", priority=1).touch("B", BUCKET)

    assert w.aborted == {"A": "conflict"}


def test_a_smaller_priority_waits_for_its_turn() -> None:
    w = world().intent("A", conflict_rule="ordered").lock().touch("A", BUCKET)

    w.intent("B", conflict_rule="ordered", priority=-100).touch("B", BUCKET).request("B")

    assert (w.aborted, w.granted) == ({}, [])
    assert w.request("A").granted == ["A"]


def test_a_larger_priority_does_not_pass_a_granted_transaction() -> None:
    w = upserts("A").request("A").intent("B", conflict_rule="ordered", priority=1)

    assert w.touch("B", BUCKET).aborted == {}
    assert w.request("B").granted == []
    assert w.complete("A").granted == ["B"]


def test_a_protected_transaction_that_a_larger_priority_can_not_pass_holds_it_in_the_queue() -> None:
    """The later one is aborted once, and its retry waits for its admission."""
    w = world(max_losses=1).intent("A", conflict_rule="ordered").touch("A", BUCKET)
    w.intent("B", conflict_rule="ordered", priority=1).touch("B", BUCKET).abandon("B")
    w.intent("A2", conflict_rule="ordered", writer="w-A").touch("A2", BUCKET)

    w.intent("B2", conflict_rule="ordered", priority=1).touch("B2", BUCKET)
    assert w.aborted == {"B2": "conflict"}
    w.intent("B3", BUCKET, conflict_rule="ordered", priority=1, admission="queued")
    assert (w.admitted, w.phase("B3")) == ([], Phase.QUEUED)
    assert w.abandon("A2").admitted == ["B3"]


def test_queued_transactions_are_admitted_at_once_and_wait_for_their_grants() -> None:
    """They compute beside each other: only their commits need an order."""
    w = world().intent("A", BUCKET, conflict_rule="ordered", admission="queued").lock()
    assert w.intent("B", BUCKET, conflict_rule="ordered", admission="queued").admitted == ["B"]

    assert w.request("B").granted == []
    assert w.request("A").granted == ["A"]


@pytest.mark.parametrize("rule", ["file-group", "deleted-file"])
def test_with_another_rule_the_stricter_one_applies(rule: ConflictRule) -> None:
    w = world().intent("A", conflict_rule=rule).intent("B", conflict_rule="ordered").touch("A", BUCKET)

    assert w.touch("B", BUCKET).aborted == {"B": "conflict"}


@pytest.mark.parametrize("operation", ["merge", "delete"])
def test_a_deleted_file_conflicts_as_under_deleted_file(operation: Operation) -> None:
    """Rows that were computed from a file are no upsert: no order makes them right."""
    w = world().intent("A", conflict_rule="ordered").intent("B", conflict_rule="ordered")
    w.touch("A", m("p/f", "delete"))

    assert w.touch("B", m("p/f", operation)).aborted == {"B": "conflict"}


def test_the_lock_is_not_held_for_a_transaction_that_waits_for_its_turn() -> None:
    """With `per-commit`, foreign writers acquire the lock between two grants, also while a first transaction computes."""
    w = upserts("A", "B", hold="per-commit").request("B")
    assert not w.state.lock_requested

    w.request("A")
    assert w.state.lock_requested


def test_a_replay_waits_for_the_same_turns() -> None:
    """The owner dies while B waits for A. The next one grants in the same order."""
    w = upserts("A", "B").request("B").rebuilt().replayed().lock()
    assert w.granted == []

    assert w.request("A").granted == ["A"]
    assert w.rebuilt().replayed().complete("A").lock().granted == ["B"]


def test_a_waiting_transaction_names_those_with_earlier_turns() -> None:
    w = upserts("A", "B", "C").request("C").request("B")

    found = [
        (each.other.id, each.reason, [(one.partition, one.file_group) for one in each.overlaps])
        for each in waits(w.state, w.state.transactions["C"])
    ]
    assert found == [(name, "earlier turn", [("p", "bucket-0")]) for name in "BA"]
