"""What follows from the requests of operators: an abort, and a correction of the ledger (docs/decisions/0020)."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from lakewarden.events import BatchCommitted, LedgerEventUnion
from lakewarden.handlers.table.ledger import CommittedBatch, Correction, InForce, batch_of
from lakewarden.handlers.table.machine import restore, take_entry
from tests.unit.events.building import made
from tests.unit.handlers.table.stories import Story, stories
from tests.unit.handlers.table.world import TABLE, World, ledger_of, world

# -- abort-requested -----------------------------------------------------------------------------------------------------

STORIES = """

an operator ends a transaction that is not granted
    # Its work hangs, and blocks others that touch the same. A is queued, active, or waits for its grant.
    where LIFE is intent B p/f; touch B p/f; intent A p/f queued priority=-1 | intent A; touch A p/f | intent A; request A p/f
    LIFE; request_abort A operator=ann@ops reason='hangs since noon'
    → Abort transaction=A reason=operator retriable=True detail~"operator 'ann@ops': hangs since noon"
    → A is aborted, a replay agrees

an abort names the request as its cause
    intent A; request_abort A → Abort cause=e-1-A

an operator's request that was read and not answered is answered once after the replay
    # The agent died between reading the request and publishing the abort.
    where LIFE is intent B p/f; touch B p/f; intent A p/f queued priority=-1 | intent A; touch A p/f | intent A; request A p/f
    LIFE; request_abort A; crash → aborted A operator
    restart → no abort

a granted transaction gets lease-lost and nothing else is granted before its lease is over
    # Its writer may be publishing (promise G1).
    intent A; intent B; lock; request A; request B; request_abort A → aborted A lease-lost, A is granted
    tick 8; lock; beat A → no renewal
    beat B; tick 11 → no grant
    lock; tick 1.1 → aborted A outcome-unknown, granted B

a granted transaction gets lease-lost once after the replay
    intent A; lock; request A; request_abort A; crash → aborted A lease-lost
    restart → no abort

the completion of a transaction that an operator wanted to end counts
    # Its publish had begun before the abort arrived.
    intent A batch_id=4; lock; request A; request_abort A; complete A → A is committed, recorded A w-A 4

a second request changes nothing
    # The operator is impatient, or Kafka delivers the request again.
    intent A; lock; request A; request_abort A → aborted A lease-lost
    request_abort A → nothing
    complete A; request_abort A → nothing

a request for an unknown transaction is reported
    # A typing error. No abort is published for an id that no writer has used.
    request_abort X → warned abort-request.unknown of X

a request does not count as a heartbeat
    # It says nothing about the writer.
    intent A; lock; request A; intent B; tick 14; request_abort A; tick 1.1 → some Abort transaction=B reason=writer-lost

after a correction the writer's next batch is not skipped
    # A mistaken batch id made the agent skip every batch of a query.
    intent A writer=w batch_id=1000000000000; lock; request A; complete A; intent B writer=w batch_id=8 → AlreadyCommitted
    correct w 7 → BatchCommitted transaction=correction-4 batch_id=7 version=None corrected_at=4 correction=e-4-correction-4
    intent C writer=w batch_id=7 → AlreadyCommitted committed_transaction=correction-4 batch_id=7 committed_batch_id=7
    intent D writer=w batch_id=8 → admitted D, a replay agrees

a correction gives the writer an edition which it keeps
    # Its table may have batch 4 under the writer's former name.
    intent A writer=w batch_id=4; lock; request A; complete A; correct w 3 edition=second → BatchCommitted edition=second
    intent B writer=w batch_id=4 → Admitted edition=second
    lock; request B; complete B → BatchCommitted batch_id=4 edition=second
    correct w 9; intent C writer=w batch_id=10 → Admitted edition=second
    intent D writer=another batch_id=0 → Admitted edition=None, a replay agrees

a query that begins behind batch 0 learns of its job's other ids, and of its id's other jobs
    # Its checkpoint may have lost its id. A writer that the ledger knows learns nothing, and no one of other names.
    where A is w:00000000-0000-0000-0000-00000000000a
    where B is w:00000000-0000-0000-0000-00000000000b
    where C is v:00000000-0000-0000-0000-00000000000a
    intent S writer=A batch_id=57 → Admitted namesakes=()
    lock; request S; complete S; intent T writer=B batch_id=0 → Admitted namesakes=None
    abandon T; intent U writer=B batch_id=1 → Admitted namesakes~A
    abandon U; intent V writer=C batch_id=58 → Admitted namesakes~A
    abandon V; intent W writer=x batch_id=9 → Admitted namesakes=()
    abandon W; intent X writer=A batch_id=58 → Admitted namesakes=None, a replay agrees

a correction to none forgets the writer's batches
    # Its table was dropped and is filled again.
    intent A writer=w batch_id=41; lock; request A; complete A; correct w None; intent B writer=w batch_id=0 → admitted B
    lock; request B; complete B
    → BatchCommitted transaction=B writer=w batch_id=0 version=None corrected_at=3 correction=e-3-correction-3

a transaction that computes a batch which a correction calls committed is aborted
    # As after a late completion: its retry is skipped.
    intent A writer=w batch_id=8; intent B writer=v batch_id=8; correct w 8 → Abort transaction=A reason=superseded retriable=True

a repeated delivery of a correction changes nothing
    # Also after a later commit: the batch would be written twice.
    intent A writer=w batch_id=41; lock; request A; complete A; correct w 5 event_id=c
    intent B writer=w batch_id=6; lock; request B; complete B; correct w 5 event_id=c → nothing, ledger w is 6

a repeated delivery of a completion does not undo a correction
    # The batch would be skipped again: its rows were rolled back.
    where MOMENT is complete A | tick 1000; complete A
    intent A writer=w batch_id=4; lock; request A; MOMENT; correct w 3; complete A → no record, ledger w is 3
    intent B writer=w batch_id=4 → no AlreadyCommitted, a replay agrees

a jump of the batch id is accepted only with a grant of the log
    # A completion can name any batch; the intent's counts, and only with the transaction's own grant.
    intent A writer=w batch_id=4; lock; request A; complete A; intent B writer=w batch_id=1000000000
    complete B grant=0:1 → warned commit-without-grant of B, ledger w is 4
    lock; request B; complete B → ledger w is 1000000000
"""


@pytest.mark.parametrize("story", stories(STORIES), ids=str)
def test_requests_of_operators(story: Story) -> None:
    story.play()


# -- ledger-corrected ----------------------------------------------------------------------------------------------------


def committed(batch: int) -> World:
    """A world in which writer w has committed this batch."""
    return world().intent("A", writer="w", batch_id=batch).lock().request("A").complete("A")


def test_a_replay_from_before_a_correction_keeps_what_came_after_it() -> None:
    """The ledger has the last entry already when the replay reads the completion that was corrected, and the correction."""
    live = committed(900).correct("w", 5)
    live.intent("B", writer="w", batch_id=6).lock().request("B").complete("B")
    w = World()
    w.state.ledger["w"] = live.state.ledger["w"]

    for each in live.log:
        w.replay(each)

    assert w.state.ledger == live.state.ledger
    assert w.state.ledger["w"].batch_id == 6


def entry(batch_id: int | None, corrected_at: int | None = None, transaction: str = "T") -> BatchCommitted:
    """A ledger entry of writer w."""
    return made(
        BatchCommitted,
        table=TABLE,
        transaction=transaction,
        batch_id=batch_id,
        corrected_at=corrected_at,
        correction=None if corrected_at is None else f"e{corrected_at}",
    )


def in_force(records: list[BatchCommitted]) -> tuple[LedgerEventUnion, bool]:
    """The entry in force, and whether it is the last one."""
    ledger = ledger_of(*records)
    selected = InForce()
    found = [each for each in map(selected.replaces, records) if each is not None][-1]
    assert ledger.tables[TABLE].batches == {"w": batch_of(cast("BatchCommitted", found))}
    return found, not ledger.to_repeat


def test_in_the_ledger_the_later_correction_wins_and_then_the_larger_batch() -> None:
    """An entry of a replaced agent that doesn't know the correction may come last, with a larger batch."""
    large, corrected, none, next_batch = entry(900), entry(5, 60), entry(None, 70), entry(0, 70)

    assert in_force([large, corrected]) == (corrected, True)
    assert in_force([corrected, large]) == (corrected, False)
    assert in_force([large, corrected, none]) == (none, True)
    assert in_force([none, next_batch, corrected, large]) == (next_batch, False)


def test_an_owner_repeats_its_entry_after_one_that_does_not_know_the_correction() -> None:
    """Compaction would keep the replaced agent's entry."""
    w = committed(900).correct("w", 5)

    take_entry(w.state, entry(901))

    assert w.tick(0.0).one(BatchCommitted).batch_id == 5


def test_a_batch_of_the_ledger_is_read_back_as_it_was() -> None:
    """Both fields of a correction, or none."""
    kept = CommittedBatch(5, "T", "v", Correction(60, "e60"), 2, "second")
    assert batch_of(kept.to_entry(TABLE, "w")) == kept
    assert batch_of(entry(5, 60)) == CommittedBatch(5, "T", None, Correction(60, "e60"))
    assert batch_of(entry(5)) == CommittedBatch(5, "T", None)


def test_a_corrected_writer_is_recorded_in_a_new_topic_and_can_be_corrected_there() -> None:
    """Its correction is at offset 60 of a topic that exists no more. Commits below that offset weren't recorded, for good."""
    ledger = ledger_of(entry(900), entry(5, 60))
    assert ledger.last_correction() == Correction(60, "e60")
    ledger.drop_offsets()
    assert list(ledger.to_repeat) == [("batch-committed", TABLE, "w")]

    w = world()
    restore(w.state, ledger.tables[TABLE])
    w.intent("B", writer="w", batch_id=6).lock().request("B").complete("B")
    recorded = w.one(BatchCommitted)
    assert (recorded.batch_id, recorded.corrected_at, recorded.generation) == (6, None, 1)
    assert w.correct("w", 2).of(BatchCommitted)[-1].corrected_at == w.offset
    assert w.intent("C", writer="w", batch_id=3).admitted[-1] == "C"

    published = entry(6).model_copy(update={"generation": 1})
    assert in_force([entry(5, 60), published]) == (published, True)
    assert in_force([published, entry(5, 60)]) == (published, False)


def test_a_correction_that_the_log_still_has_is_applied_again_by_the_replay() -> None:
    """The log has lost its end, and the correction is before it."""
    live = committed(7).correct("w", 5)
    known = live.state.ledger["w"].correction
    assert known is not None
    ledger = ledger_of(entry(5, known.offset).model_copy(update={"correction": known.event_id}))
    ledger.drop_offsets()
    w = world()
    restore(w.state, ledger.tables[TABLE])

    for each in live.log:
        w.replay(each)

    assert w.state.ledger["w"] == replace(live.state.ledger["w"], generation=1)
