"""Events that arrive twice, late, or for an unknown transaction."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lakewarden.handlers.table.transactions import Phase
from lakewarden.handlers.table.verdicts import AbortTransaction, Warn
from tests.unit.handlers.table.world import World, facts, m, world

HISTORIES: dict[str, Callable[[World], object]] = {
    "intent": lambda w: w.intent("A", m("p/s")),
    "queued intent": lambda w: w.intent("B").touch("B", m("p/s")).intent("A", m("p/s"), admission="queued"),
    "markers": lambda w: w.intent("A").touch("A", m("p/f"), m("q/*", "delete")),
    "heartbeat": lambda w: w.intent("A").beat("A"),
    "request": lambda w: w.intent("A").request("A", m("p/f")),
    "granted request": lambda w: w.intent("A").lock().request("A"),
    "granted heartbeat": lambda w: w.intent("A").lock().request("A").beat("A"),
    "completion": lambda w: w.intent("A", batch_id=3).lock().request("A").complete("A", version="v"),
    "completion kept as evidence": lambda w: (
        w.intent("K").intent("A", batch_id=3).lock().request("A").complete("A")
    ),
    "abandonment": lambda w: w.intent("A").touch("A", m("p/f")).abandon("A"),
    "losing markers": lambda w: w.intent("O").touch("O", m("p/f")).intent("A").touch("A", m("p/f")),
    "markers of an unknown transaction": lambda w: w.touch("A", m("p/f")),
    "heartbeat of an unknown transaction": lambda w: w.beat("A"),
    "late completion": lambda w: w.intent("A", batch_id=3).lock().request("A").tick(21).complete("A"),
}


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
def test_a_repeated_event_changes_nothing(history: Callable[[World], object]) -> None:
    """A producer retries, or a consumer restarts before its last commit: delivery is at least once."""
    w = world()
    history(w)
    events = [each for each in w.log if isinstance(each, tuple)]
    before = facts(w.state)

    for event, _ in events:
        w.read(event)
        assert w.effects == []

    assert facts(w.state) == before


@pytest.mark.parametrize("event", ["touch", "beat", "request"])
def test_an_unknown_transaction_is_aborted_once(event: str) -> None:
    """Its intent is older than the log, or was never acknowledged. The writer must open a new transaction."""
    w = world()

    {"touch": lambda: w.touch("X", m("p/f")), "beat": lambda: w.beat("X"), "request": lambda: w.request("X")}[
        event
    ]()

    abort = w.one(AbortTransaction)
    assert (abort.transaction, abort.writer, abort.reason) == ("X", "w-X", "unknown-transaction")
    assert abort.retriable
    assert w.beat("X").effects == []
    assert w.request("X").aborted == {"X": "unknown-transaction"}


def test_an_unknown_transaction_is_aborted_once_across_a_restart() -> None:
    """The abort is in the log."""
    w = world().beat("X").rebuilt().replayed()

    assert w.beat("X").effects == []


def test_a_completion_of_an_unknown_transaction_is_logged() -> None:
    """Its writer violates the protocol, or its intent is older than the log."""
    w = world().complete("X", batch_id=7)

    assert w.effects == [
        Warn("commit-without-grant", "X", "w-X", "the agent knows no intent of this transaction")
    ]
    assert w.state.ledger == {}


def test_an_abandonment_of_an_unknown_transaction_needs_no_answer() -> None:
    """The writer committed nothing and waits for nothing."""
    assert world().abandon("X").effects == []


def test_late_markers_of_an_aborted_transaction_are_ignored() -> None:
    """Its executors were still running when it was aborted."""
    w = world().intent("A").touch("A", m("p/f")).intent("B").touch("B", m("p/f"))
    assert w.aborted == {"B": "conflict"}

    w.touch("B", m("p/g"))

    assert w.effects == []
    assert w.intent("C").touch("C", m("p/g")).aborted == {}


def test_a_commit_request_after_the_abort_gets_the_same_answer() -> None:
    """The abort was lost on the way, or crossed the request."""
    w = world().intent("A").touch("A", m("p/f")).intent("B").touch("B", m("p/f"))
    first = w.one(AbortTransaction)

    again = w.request("B").one(AbortTransaction)

    assert (again.reason, again.retriable, again.conflicts) == (
        first.reason,
        first.retriable,
        first.conflicts,
    )


def test_an_intent_with_a_used_transaction_id_is_ignored() -> None:
    """The id is unique per attempt. A client that uses it again waits for nothing, and finds why among the refused records."""
    w = world().intent("A").abandon("A").intent("A")

    assert [each.event for each in w.of(Warn)] == ["transaction.repeated"]
    assert w.phase("A") is Phase.ABORTED


def test_the_number_of_ended_transactions_kept_is_bounded() -> None:
    """A table with thousands of commits per hour."""
    w = world()
    for n in range(1_100):
        w.intent(f"T{n}").abandon(f"T{n}")

    assert len(w.state.closed) == 1_000
    assert w.state.transactions == {}
    assert w.state.footprints.index == {}


def test_a_landed_transaction_is_dropped_when_no_open_one_began_before_it() -> None:
    """The index keeps only what can still conflict."""
    w = world().intent("old").intent("A").touch("A", m("p/f")).lock().commits("A").intent("new")
    assert w.phase("A") is Phase.COMMITTED
    assert "A" in w.state.transactions

    w.abandon("old")

    assert "A" not in w.state.transactions
    assert w.state.footprints.index == {}
    assert w.phase("A") is Phase.COMMITTED
