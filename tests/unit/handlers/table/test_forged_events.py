"""Events that name another writer's transaction, or a grant that the log doesn't have. They change nothing and are reported."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lakewarden.handlers.table.transactions import Phase
from lakewarden.handlers.table.verdicts import (
    AbortTransaction,
    Cause,
    GrantCommit,
    RecordBatch,
    SkipBatch,
    Warn,
)
from tests.unit.handlers.table.world import World, facts, m, world

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
    assert w.of(RecordBatch) == []

    assert w.intent("real-8", writer="arrivals:q1", batch_id=8).of(SkipBatch) == []
    assert w.admitted == ["real-8"]


def test_the_ledger_records_the_batch_of_the_intent_whatever_the_completion_names() -> None:
    """A jump of the batch id would make the writer's next batches look committed."""
    w = world().intent("A", batch_id=4).lock().request("A").complete("A", batch_id=10**12, version="v")

    assert w.of(RecordBatch) == [RecordBatch("A", "w-A", 4, "v")]


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
    assert w.of(RecordBatch) == [RecordBatch("A", "w-A", 4, "v")]


def test_a_landed_transaction_that_is_no_evidence_any_more_keeps_its_grant() -> None:
    """Its lapse was long ago for the table, and its writer reports only now."""
    w = world().intent("A", batch_id=4).lock().request("A").tick(21)
    for number in range(20):
        w.intent(f"T{number}").abandon(f"T{number}")

    assert w.phase("A") is Phase.UNKNOWN
    assert w.complete("A", grant="1:1").of(RecordBatch) == []
    assert w.complete("A").of(RecordBatch) == [RecordBatch("A", "w-A", 4, None)]
    assert w.phase("A") is Phase.COMMITTED


def test_a_replay_applies_no_decision_to_a_strangers_transaction_of_the_same_id() -> None:
    """The intent is older than the checkpoint, its grant isn't. A stranger has sent an intent with that id meanwhile."""
    live = world().intent("A").intent("B").lock().request("A", m("p/f"))
    grant = live.one(GrantCommit)
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
    before = AbortTransaction("A", "stranger", Cause("refused", 0), "not-allowed", retriable=False)
    after = AbortTransaction("A", "stranger", Cause("refused", 1), "not-allowed", retriable=False)

    assert "A" in world().rebuilt([*forged, before]).state.transactions
    assert "A" not in world().rebuilt([*forged, after]).state.transactions
