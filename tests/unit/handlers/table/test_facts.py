"""Events that arrive twice, late, or for an unknown transaction."""

from __future__ import annotations

import pytest

from lakewarden.events import Abort, CommitGranted
from lakewarden.handlers.table.effects import Warn
from lakewarden.handlers.table.stopping import answer_to_refused
from lakewarden.handlers.table.transactions import Phase
from tests.unit.handlers.table.stories import Story, stories
from tests.unit.handlers.table.world import decided, m, world


def test_the_number_of_ended_transactions_kept_is_bounded() -> None:
    """A table with thousands of commits per hour."""
    w = world()
    for n in range(1_100):
        w.intent(f"T{n}").abandon(f"T{n}")

    assert len(w.state.closed) == 1_000
    assert w.state.transactions == {}
    assert w.state.footprints.index == {}


STORIES = """

a repeated event changes nothing
    # A producer retries, or a consumer restarts before its last commit: delivery is at least once.
    where HISTORY is intent A p/s | intent B; touch B p/s; intent A p/s queued | intent A; touch A p/f q/*:delete
    | intent A; beat A | intent A; request A p/f | intent A; lock; request A | intent A; lock; request A; beat A
    | intent A batch_id=3; lock; request A; complete A version=v | intent K; intent A batch_id=3; lock; request A; complete A
    | intent A; touch A p/f; abandon A | intent O; touch O p/f; intent A; touch A p/f
    | touch A p/f | beat A | intent A batch_id=3; lock; request A; tick 21; complete A
    HISTORY; note; deliver_all_again → unchanged

an event that names another writer's transaction or a guessed grant changes nothing and is reported
    # Every producer with the right to write to `writers` can name any transaction: an open, granted, lapsed or ended one.
    where PHASE is intent A batch_id=4; touch A p/f | intent A batch_id=4; intent B; lock; request A p/f; request B
    | intent A batch_id=4; intent B; lock; request A p/f; tick 21 | intent A batch_id=4; lock; request A; complete A
    where FORGED is touch A q/*:delete writer=other → warned event.another-writer of A
    | beat A seq=4611686018427387904 writer=other → warned event.another-writer of A
    | request A q/* seq=4611686018427387904 writer=other → warned event.another-writer of A
    | abandon A writer=other → warned event.another-writer of A
    | intent A writer=other batch_id=900 → warned event.another-writer of A
    | intent A batch_id=900 → warned transaction.repeated of A
    | complete A writer=other batch_id=900 → warned commit-without-grant of A
    | complete A grant=0:9 batch_id=900 → warned commit-without-grant of A
    PHASE; note; FORGED
    → no abort, no grant, no admission, no record, no lock, unchanged, a replay agrees

an unknown transaction is aborted once
    # Its intent is older than the log, or was never acknowledged. The writer must open a new transaction.
    where EVENT is touch X p/f | beat X | request X
    EVENT → Abort transaction=X writer=w-X reason=unknown-transaction retriable=True
    beat X → nothing
    request X → aborted X unknown-transaction

a completion of an unknown transaction is logged
    # Its writer violates the protocol, or its intent is older than the log.
    complete X batch_id=7 → Warn event=commit-without-grant transaction=X writer=w-X
    → Warn detail='the agent knows no intent of this transaction', no Abort, ledger is empty

a commit request after the abort gets the same answer
    # The abort was lost on the way, or crossed the request.
    intent A; touch A p/f; intent B; touch B p/f → Abort reason=conflict retriable=True, met A marker f
    request B → Abort reason=conflict retriable=True, met A marker f

a landed transaction is dropped when no open one began before it
    # The index keeps only what can still conflict.
    intent old; intent A; touch A p/f; lock; commits A; intent new → A is committed, A markers=1
    abandon old → A is gone, index is empty, A is committed

the ledger records the batch of the intent whatever the completion names
    # A jump of the batch id would make the writer's next batches look committed.
    intent A batch_id=4; lock; request A; complete A batch_id=1000000000000 version=v → recorded A w-A 4 v

a completion after the writer's own abandonment is recorded and reported
    # The writer contradicts itself. Its batch must not be written twice all the same.
    intent A batch_id=4; lock; request A; abandon A; complete A version=v
    → warned commit-after-abandonment of A, recorded A w-A 4 v

a landed transaction that is no evidence any more keeps its grant
    # Its lapse was long ago for the table, and its writer reports only now.
    intent A batch_id=4; lock; request A; tick 21; intent T1; abandon T1; intent T2; abandon T2 → A is unknown
    complete A grant=1:1 → no record
    complete A → recorded A w-A 4, A is committed
"""


@pytest.mark.parametrize("story", stories(STORIES), ids=str)
def test_late_and_unknown_events(story: Story) -> None:
    story.play()


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
