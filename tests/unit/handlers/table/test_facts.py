"""Events that arrive twice, late, or for an unknown transaction."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lakewarden.events import Abort, AlreadyCommitted, BatchCommitted, CommitGranted
from lakewarden.handlers.table.effects import Warn
from lakewarden.handlers.table.stopping import answer_to_refused
from lakewarden.handlers.table.transactions import Phase
from tests.unit.handlers.table.world import World, batch_entry, decided, facts, m, world

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

    abort = w.one(Abort)
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
    first = w.one(Abort)

    again = w.request("B").one(Abort)

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


# Events that name another writer's transaction, or a grant that the log doesn't have. They change nothing and are reported.

FORGED: dict[str, Callable[[World], object]] = {
    "markers": lambda w: w.touch("A", m("q/*", "delete"), writer="other"),
    "heartbeat": lambda w: w.beat("A", seq=2**62, writer="other"),
    "request": lambda w: w.request("A", m("q/*"), seq=2**62, writer="other"),
    "abandonment": lambda w: w.abandon("A", writer="other"),
    "completion": lambda w: w.complete("A", writer="other", batch_id=900),
    "completion under a guessed grant": lambda w: w.complete("A", grant="0:9", batch_id=900),
    "intent": lambda w: w.intent("A", writer="other", batch_id=900),
    "second intent of the same writer": lambda w: w.intent("A", batch_id=900),
}
PHASES: dict[str, Callable[[], World]] = {
    "open": lambda: world().intent("A", batch_id=4).touch("A", m("p/f")),
    "granted": lambda: world().intent("A", batch_id=4).intent("B").lock().request("A", m("p/f")).request("B"),
    "lapsed": lambda: world().intent("A", batch_id=4).intent("B").lock().request("A", m("p/f")).tick(21),
    "ended": lambda: world().intent("A", batch_id=4).lock().request("A").complete("A"),
}


@pytest.mark.parametrize("phase", PHASES.values(), ids=PHASES)
@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_a_forged_event_changes_nothing_and_is_reported(
    forge: Callable[[World], object], phase: Callable[[], World]
) -> None:
    """Every producer with the right to write to `writers` can name any transaction."""
    w = phase()
    before = facts(w.state)

    forge(w)

    (warning,) = w.effects
    assert isinstance(warning, Warn)
    assert (warning.event, warning.transaction) in {
        ("event.another-writer", "A"),
        ("commit-without-grant", "A"),
        ("transaction.repeated", "A"),
    }
    assert facts(w.state) == before
    assert facts(w.rebuilt().state) == before, "a replay ignores it, too"


def test_one_forged_completion_does_not_make_a_query_skip_its_batches() -> None:
    """The ledger is compacted: what is in it counts for ever, and `foreach_batch` returns normally for a skipped batch."""
    w = world().intent("real-7", writer="arrivals:q1", batch_id=7)

    w.complete("forged", writer="arrivals:q1", grant="x", batch_id=10**12)
    assert [each.event for each in w.of(Warn)] == ["commit-without-grant"]
    assert w.of(BatchCommitted) == []

    assert w.intent("real-8", writer="arrivals:q1", batch_id=8).of(AlreadyCommitted) == []
    assert w.admitted == ["real-8"]


def test_the_ledger_records_the_batch_of_the_intent_whatever_the_completion_names() -> None:
    """A jump of the batch id would make the writer's next batches look committed."""
    w = world().intent("A", batch_id=4).lock().request("A").complete("A", batch_id=10**12, version="v")

    assert w.of(BatchCommitted) == [batch_entry("A", "w-A", 4, "v")]


def test_a_forged_abandonment_starts_no_second_grant() -> None:
    """The writer of the first grant may be publishing (promise G1)."""
    w = world().intent("A").intent("B").lock().request("A").request("B")
    assert w.phase("A") is Phase.GRANTED

    w.abandon("A", writer="stranger")

    assert w.granted == []
    assert w.phase("B") is Phase.WAITING


def test_a_completion_after_the_writers_own_abandonment_is_recorded_and_reported() -> None:
    """The writer contradicts itself. Its batch must not be written twice all the same."""
    w = world().intent("A", batch_id=4).lock().request("A").abandon("A").complete("A", version="v")

    assert [each.event for each in w.of(Warn)] == ["commit-after-abandonment"]
    assert w.of(BatchCommitted) == [batch_entry("A", "w-A", 4, "v")]


def test_a_landed_transaction_that_is_no_evidence_any_more_keeps_its_grant() -> None:
    """Its lapse was long ago for the table, and its writer reports only now."""
    w = world().intent("A", batch_id=4).lock().request("A").tick(21)
    for number in range(20):
        w.intent(f"T{number}").abandon(f"T{number}")

    assert w.phase("A") is Phase.UNKNOWN
    assert w.complete("A", grant="1:1").of(BatchCommitted) == []
    assert w.complete("A").of(BatchCommitted) == [batch_entry("A", "w-A", 4, None)]
    assert w.phase("A") is Phase.COMMITTED


def test_a_replay_applies_no_decision_to_a_strangers_transaction_of_the_same_id() -> None:
    """The intent is older than the checkpoint, its grant isn't. A stranger has sent an intent with that id meanwhile."""
    live = world().intent("A").intent("B").lock().request("A", m("p/f"))
    grant = live.one(CommitGranted)
    live.intent("A", writer="stranger", batch_id=9)
    assert [each.event for each in live.of(Warn)] == ["event.another-writer"]
    forged = live.log[-1]

    w = world().rebuilt([forged, grant])

    assert w.phase("A") is Phase.QUEUED
    assert w.state.running() is None
    assert w.state.transactions["A"].writer == "stranger"


def test_a_replay_applies_no_answer_to_a_transaction_whose_intent_came_later() -> None:
    """A stranger's event is refused, then its intent with that id is read. The answer is in the log after both."""
    live = world().intent("B").intent("A", writer="stranger", batch_id=9)
    forged = live.log[-2:]
    before = decided(Abort, "A", writer="stranger", cause="refused", reason="not-allowed", retriable=False)
    after = before.model_copy(update={"cause_offset": 1})

    assert "A" in world().rebuilt([*forged, before]).state.transactions
    assert "A" not in world().rebuilt([*forged, after]).state.transactions


# How a refused event is answered, by the state of its transaction.


@pytest.mark.parametrize(
    ("transaction", "writer", "stopped", "answer"),
    [
        ("granted", "w-granted", False, "nothing"),
        ("open", "w-open", False, "abort"),
        ("open", "another", False, "nothing"),
        ("open", None, False, "nothing"),
        ("open", "w-open", True, "abort once"),
        ("ended", "w-ended", False, "nothing"),
        ("ended", "w-ended", True, "nothing"),
        ("unknown", "w-unknown", False, "abort once"),
    ],
)
def test_a_refused_event_aborts_only_an_open_transaction_of_its_own_writer(
    transaction: str, writer: str | None, stopped: bool, answer: str
) -> None:
    w = world().intent("granted").intent("open").intent("ended").touch("open", m("p/f"))
    w.touch("ended", m("p/f")).lock().request("granted")

    assert answer_to_refused(w.state, transaction, writer, stopped=stopped) == answer


def test_an_event_of_a_table_without_a_state_gets_one_abort() -> None:
    assert answer_to_refused(None, "T", None, stopped=False) == "abort once"
