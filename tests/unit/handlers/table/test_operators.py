"""What follows from the requests of operators: an abort, and a correction of the ledger (docs/decisions/0020)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest

from lakewarden.events import (
    Abort,
    Admitted,
    AlreadyCommitted,
    BatchCommitted,
    GrantRenewed,
    LedgerEventUnion,
)
from lakewarden.handlers.table.effects import Warn
from lakewarden.handlers.table.ledger import CommittedBatch, Correction, InForce, Ledger, batch_of
from lakewarden.handlers.table.machine import record_again, restore
from lakewarden.handlers.table.transactions import Phase
from tests.unit.events.building import made
from tests.unit.handlers.table.world import TABLE, World, batch_entry, facts, m, world

NOT_GRANTED: dict[str, Callable[[], World]] = {
    "queued": lambda: (
        world()
        .intent("B", m("p/f"))
        .touch("B", m("p/f"))
        .intent("A", m("p/f"), admission="queued", priority=-1)
    ),
    "active": lambda: world().intent("A").touch("A", m("p/f")),
    "waiting": lambda: world().intent("A").request("A", m("p/f")),
}


# -- abort-requested -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", NOT_GRANTED)
def test_an_operator_ends_a_transaction_that_is_not_granted(phase: str) -> None:
    """Its work hangs, and blocks others that touch the same."""
    w = NOT_GRANTED[phase]()
    assert w.phase("A") is Phase(phase)

    w.request_abort("A", operator="ann@ops", reason="hangs since noon")

    abort = w.one(Abort)
    assert (abort.transaction, abort.reason, abort.retriable) == ("A", "operator", True)
    assert abort.detail == "requested by operator 'ann@ops': hangs since noon"
    assert abort.cause == f"e-{w.offset}-A"
    assert w.phase("A") is Phase.ABORTED
    assert facts(w.rebuilt().state) == facts(w.state)


def test_a_granted_transaction_gets_lease_lost_and_nothing_else_is_granted_before_its_lease_is_over() -> None:
    """Its writer may be publishing (promise G1)."""
    w = world().intent("A").intent("B").lock().request("A").request("B")

    w.request_abort("A")
    assert w.aborted == {"A": "lease-lost"}
    assert w.phase("A") is Phase.GRANTED

    w.tick(8)
    assert w.lock().beat("A").of(GrantRenewed) == []
    w.beat("B").tick(11)
    assert w.granted == []
    w.lock().tick(1.1)
    assert w.aborted == {"A": "outcome-unknown"}
    assert w.granted == ["B"]


def test_the_completion_of_a_transaction_that_an_operator_wanted_to_end_counts() -> None:
    """Its publish had begun before the abort arrived."""
    w = world().intent("A", batch_id=4).lock().request("A").request_abort("A").complete("A")

    assert w.phase("A") is Phase.COMMITTED
    assert w.of(BatchCommitted) == [batch_entry("A", "w-A", 4, None)]


@pytest.mark.parametrize("phase", [*NOT_GRANTED, "granted"])
def test_a_request_that_was_read_and_not_answered_is_answered_after_the_replay(phase: str) -> None:
    """The agent died between reading the request and publishing the abort."""
    before = NOT_GRANTED[phase]() if phase != "granted" else world().intent("A").lock().request("A")
    log = list(before.log)
    before.request_abort("A")

    w = before.rebuilt([*log, before.log[len(log)]]).replayed()

    assert w.aborted == {"A": "lease-lost" if phase == "granted" else "operator"}
    assert w.rebuilt().replayed().aborted == {}, "and only once"


def test_a_second_request_changes_nothing() -> None:
    """The operator is impatient, or Kafka delivers the request again."""
    w = world().intent("A").lock().request("A").request_abort("A")
    assert w.aborted == {"A": "lease-lost"}

    assert w.request_abort("A").effects == []
    assert w.complete("A").request_abort("A").effects == []


def test_a_request_for_an_unknown_transaction_is_reported() -> None:
    """A typing error. No abort is published for an id that no writer has used."""
    assert [each.event for each in world().request_abort("X").of(Warn)] == ["abort-request.unknown"]


def test_a_request_does_not_count_as_a_heartbeat() -> None:
    """It says nothing about the writer."""
    w = world().intent("A").lock().request("A").intent("B")
    w.tick(14).request_abort("A")

    assert w.tick(1.1).aborted["B"] == "writer-lost"


# -- ledger-corrected ----------------------------------------------------------------------------------------------------


def committed(batch: int) -> World:
    """A world in which writer w has committed this batch."""
    return world().intent("A", writer="w", batch_id=batch).lock().request("A").complete("A")


def test_after_a_correction_the_writers_next_batch_is_not_skipped() -> None:
    """A mistaken batch id made the agent skip every batch of a query."""
    w = committed(10**12)
    assert w.intent("B", writer="w", batch_id=8).of(AlreadyCommitted) != []

    w.correct("w", 7)
    assert w.one(BatchCommitted) == batch_entry(
        "correction-4", "w", 7, None, Correction(4, "e-4-correction-4")
    )

    skipped = w.intent("C", writer="w", batch_id=7).one(AlreadyCommitted)
    assert (skipped.committed_transaction, skipped.batch_id, skipped.committed_batch_id) == (
        "correction-4",
        7,
        7,
    )
    assert w.intent("D", writer="w", batch_id=8).admitted == ["D"]
    assert facts(w.rebuilt().state) == facts(w.state)


def test_a_correction_gives_the_writer_an_edition_which_it_keeps() -> None:
    """Its table may have batch 4 under the writer's former name."""
    w = committed(4).correct("w", 3, edition="second")
    assert w.one(BatchCommitted).edition == "second"
    assert w.intent("B", writer="w", batch_id=4).one(Admitted).edition == "second"
    w.lock().request("B").complete("B")
    assert (w.one(BatchCommitted).batch_id, w.one(BatchCommitted).edition) == (4, "second")
    w.correct("w", 9)
    assert w.intent("C", writer="w", batch_id=10).one(Admitted).edition == "second"
    assert w.intent("D", writer="another", batch_id=0).one(Admitted).edition is None
    assert facts(w.rebuilt().state) == facts(w.state)


def test_a_correction_to_none_forgets_the_writers_batches() -> None:
    """Its table was dropped and is filled again."""
    w = committed(41).correct("w", None)

    assert w.intent("B", writer="w", batch_id=0).admitted == ["B"]
    w.lock().request("B").complete("B")
    assert w.one(BatchCommitted) == batch_entry("B", "w", 0, None, Correction(3, "e-3-correction-3"))


def test_a_transaction_that_computes_a_batch_which_a_correction_calls_committed_is_aborted() -> None:
    """As after a late completion: its retry is skipped."""
    w = world().intent("A", writer="w", batch_id=8).intent("B", writer="v", batch_id=8)

    w.correct("w", 8)

    abort = w.one(Abort)
    assert (abort.transaction, abort.reason, abort.retriable) == ("A", "superseded", True)


def test_a_repeated_delivery_of_a_correction_changes_nothing() -> None:
    """Also after a later commit: the batch would be written twice."""
    w = committed(41).correct("w", 5, event_id="c")
    w.intent("B", writer="w", batch_id=6).lock().request("B").complete("B")

    assert w.correct("w", 5, event_id="c").effects == []
    assert w.state.ledger["w"].batch_id == 6


@pytest.mark.parametrize("lapsed", [False, True])
def test_a_repeated_delivery_of_a_completion_does_not_undo_a_correction(lapsed: bool) -> None:
    """The batch would be skipped again: its rows were rolled back."""
    w = world().intent("A", writer="w", batch_id=4).lock().request("A")
    if lapsed:
        w.tick(after=1_000.0)
        assert w.of(Abort) != []
    w.complete("A").correct("w", 3)
    assert w.complete("A").of(BatchCommitted) == []
    assert w.state.ledger["w"].batch_id == 3
    assert w.intent("B", writer="w", batch_id=4).of(AlreadyCommitted) == []
    assert facts(w.rebuilt().state) == facts(w.state)


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
    ledger = Ledger()
    for record in records:
        ledger.add(record)
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

    record_again(w.state, entry(901))

    assert w.tick(0.0).one(BatchCommitted).batch_id == 5


def test_a_batch_of_the_ledger_is_read_back_as_it_was() -> None:
    """Both fields of a correction, or none."""
    kept = CommittedBatch(5, "T", "v", Correction(60, "e60"), 2, "second")
    assert batch_of(kept.to_entry(TABLE, "w")) == kept
    assert batch_of(entry(5, 60)) == CommittedBatch(5, "T", None, Correction(60, "e60"))
    assert batch_of(entry(5)) == CommittedBatch(5, "T", None)


def test_a_corrected_writer_is_recorded_in_a_new_topic_and_can_be_corrected_there() -> None:
    """Its correction is at offset 60 of a topic that exists no more. Commits below that offset weren't recorded, for good."""
    ledger = Ledger()
    for record in (entry(900), entry(5, 60)):
        ledger.add(record)
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
    ledger = Ledger()
    ledger.add(entry(5, known.offset).model_copy(update={"correction": known.event_id}))
    ledger.drop_offsets()
    w = world()
    restore(w.state, ledger.tables[TABLE])

    for each in live.log:
        w.replay(each)

    assert w.state.ledger["w"] == replace(live.state.ledger["w"], generation=1)


# -- a jump of the batch id ----------------------------------------------------------------------------------------------


def test_a_jump_of_the_batch_id_is_accepted_only_with_a_grant_of_the_log() -> None:
    """A completion can name any batch; the intent's counts, and only with the transaction's own grant."""
    w = committed(4).intent("B", writer="w", batch_id=10**9)

    assert [each.event for each in w.complete("B", grant="0:1").of(Warn)] == ["commit-without-grant"]
    assert w.state.ledger["w"].batch_id == 4

    w.lock().request("B").complete("B")
    assert w.state.ledger["w"].batch_id == 10**9
