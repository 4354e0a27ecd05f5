from __future__ import annotations

import pytest

from lakewarden.handlers.table.state import MAX_LOST_ON, MAX_LOST_ON_CHARACTERS
from lakewarden.handlers.table.transactions import Phase
from lakewarden.handlers.table.verdicts import AbortTransaction, AcquireLock, Admit, RecordLosses, SkipBatch
from tests.unit.handlers.table.world import World, m, world


def test_an_optimistic_intent_is_admitted_at_once_with_its_own_event_as_cause() -> None:
    """The writer waits for this answer before it computes: a missing agent is noticed then, not at the end."""
    w = world().intent("A")

    admit = w.one(Admit)
    assert (admit.transaction, admit.writer) == ("A", "w-A")
    assert admit.cause.event_id == "e-0-A"
    assert admit.cause.offset == 0


def test_a_queued_intent_waits_for_who_computes_on_its_scope() -> None:
    """A retry names what its last attempt touched, and starts when whoever it lost to has ended."""
    w = world().intent("A").touch("A", m("p/f")).intent("B", m("p/f"), m("p/g"), admission="queued")
    assert w.effects == []
    assert w.phase("B") is Phase.QUEUED

    w.lock().commits("A")

    assert w.admitted == ["B"]
    assert w.phase("B") is Phase.ACTIVE


@pytest.mark.parametrize("end", ["commit", "abort", "abandon", "silence"])
def test_however_the_one_ahead_ends_the_next_starts_in_the_same_step(end: str) -> None:
    """Nobody polls: the waiting writer hears within milliseconds."""
    w = world().intent("A", priority=-1).touch("A", m("p/f")).intent("B", m("p/f"), admission="queued").lock()
    assert w.phase("B") is Phase.QUEUED

    match end:
        case "commit":
            w.commits("A")
        case "abort":
            w.intent("C", priority=9).touch("C", m("p/other")).touch("A", m("p/other"))
        case "abandon":
            w.abandon("A")
        case _:
            w.tick(10).beat("B").tick(10)

    assert w.admitted == ["B"]


def test_a_queued_intent_without_overlap_starts_at_once() -> None:
    """Disjoint scopes run side by side."""
    w = world().intent("A", m("p/*"), admission="queued").intent("B", m("q/*"), admission="queued")

    assert w.admitted == ["B"]
    assert w.phase("A") is w.phase("B") is Phase.ACTIVE


def test_a_queued_intent_without_a_scope_waits_for_nobody() -> None:
    """It named nothing that it could wait for."""
    w = world().intent("A").touch("A", m("p/*")).intent("B", admission="queued")

    assert w.admitted == ["B"]


def test_the_line_is_served_in_the_order_of_the_log() -> None:
    """Three retries on one partition: one after the other, in the order in which they came."""
    w = world().intent("A").touch("A", m("p/f"))
    for name in "BCD":
        w.intent(name, m("p/f"), admission="queued")

    order = []
    for _ in range(3):
        ahead = next(each.id for each in w.state.open() if each.phase is not Phase.QUEUED)
        order += w.abandon(ahead).admitted

    assert order == ["B", "C", "D"]


def test_larger_priority_goes_first_in_the_line() -> None:
    """A compaction waits behind ingestion, though it came first."""
    w = world().intent("A").touch("A", m("p/f"))
    w.intent("compaction", m("p/f"), admission="queued", priority=-1)
    w.intent("ingestion", m("p/f"), admission="queued")

    assert w.abandon("A").admitted == ["ingestion"]


def test_a_writer_protected_by_its_losses_goes_first_in_the_line() -> None:
    """It wins next, also where winning means to be let in: else a stream of larger priorities would starve it."""
    w = world(max_losses=1).intent("A").touch("A", m("p/f"))
    w.intent("S0", writer="slow", priority=-1).touch("S0", m("p/f"), writer="slow")
    w.intent("S1", m("p/f"), admission="queued", writer="slow", priority=-1)
    w.intent("B", m("p/f"), admission="queued", priority=5)

    assert w.abandon("A").admitted == ["S1"]


def test_what_a_protected_writer_lost_on_is_reserved_for_it_where_it_names_nothing() -> None:
    """As it can't be protected from commits that land before it says where it writes."""
    w = world(max_losses=1).intent("A").touch("A", m("p/f"))
    w.intent("S0", writer="slow").touch("S0", m("q/x", "delete"), m("p/f", "delete"), writer="slow")
    assert w.aborted == {"S0": "conflict"}

    w.intent("S1", writer="slow")

    assert w.one(Admit).reserved == (m("q/*", "delete"), m("p/*", "delete"))
    assert w.aborted == {"A": "conflict"}
    assert w.intent("B").touch("B", m("q/new")).aborted == {"B": "conflict"}
    assert w.intent("C").touch("C", m("elsewhere/f")).aborted == {}


def test_nothing_is_reserved_for_one_that_has_not_lost_enough_or_names_its_scope() -> None:
    """A scope is taken at its word; and protection begins at `max_losses`."""
    w = world(max_losses=2).intent("A").touch("A", m("p/f"))
    w.intent("S0", writer="slow").touch("S0", m("p/f"), writer="slow")
    assert w.intent("S1", writer="slow").one(Admit).reserved == ()
    w.touch("S1", m("p/f"), writer="slow")

    assert w.intent("S2", m("r/f"), writer="slow").one(Admit).reserved == ()


def test_losses_are_reserved_together_and_given_up_by_a_commit() -> None:
    """The last one's first; a commit ends the row."""
    w = world(max_losses=2).lock().intent("A").touch("A", m("p/f"), m("q/f"))
    w.intent("S0", writer="slow").touch("S0", m("p/f"), writer="slow")
    w.intent("S1", writer="slow").touch("S1", m("q/f"), writer="slow").abandon("A")
    assert w.intent("S2", writer="slow").one(Admit).reserved == (m("q/*"), m("p/*"))

    w.lock().commits("S2", writer="slow")

    assert w.intent("S3", writer="slow").one(Admit).reserved == ()


def test_a_protected_writer_waits_for_a_grant_that_runs_where_it_lost_and_for_no_other() -> None:
    """That commit is going to land: one that began before it would lose again."""
    w = world(max_losses=1).intent("A").touch("A", m("p/f")).intent("G").touch("G", m("p/g"))
    w.intent("S0", writer="slow").touch("S0", m("p/f"), writer="slow").lock().request("G")
    w.intent("T0", writer="other").touch("T0", m("p/f"), writer="other")
    assert w.phase("G") is Phase.GRANTED

    assert w.intent("S1", writer="slow").admitted == []
    w.complete("G", writer="w-G")

    assert w.one(Admit).transaction == "S1"
    assert w.aborted == {"A": "conflict"}


def test_of_two_protected_writers_that_name_nothing_the_later_waits_for_the_earlier() -> None:
    """Whatever their priorities: else the larger one would win each time."""
    w = world(max_losses=1).intent("A").touch("A", m("p/f"))
    for writer in ("one", "two"):
        w.intent(f"{writer}-0", writer=writer).touch(f"{writer}-0", m("p/f"), writer=writer)
    assert w.intent("one-1", writer="one").admitted == ["one-1"]

    assert w.intent("two-1", writer="two", priority=9).admitted == []
    assert w.abandon("one-1", writer="one").admitted == ["two-1"]


@pytest.mark.parametrize("length, kept", [(10, MAX_LOST_ON), (1_024, MAX_LOST_ON_CHARACTERS // 1_024)])
def test_what_is_remembered_of_losses_fits_into_a_record(length: int, kept: int) -> None:
    """Both in number and in length."""
    places = [m(f"{n:0{length}}/f") for n in range(MAX_LOST_ON + 50)]
    w = world(max_losses=1).intent("A").touch("A", *places)

    w.intent("S0", writer="slow").touch("S0", *places, writer="slow")

    assert len(w.one(RecordLosses).lost_on) == len(w.intent("S1", writer="slow").one(Admit).reserved) == kept


def test_one_overlap_in_the_line_holds_back_only_those_who_share_it() -> None:
    """B waits for A, C overlaps only B's place in the line, D nothing."""
    w = world().intent("A").touch("A", m("p/1"))
    w.intent("B", m("p/1"), m("p/2"), admission="queued")
    w.intent("C", m("p/2"), admission="queued")
    assert w.admitted == []

    assert w.intent("D", m("p/3"), admission="queued").admitted == ["D"]
    assert w.abandon("A").admitted == ["B"]
    assert w.abandon("B").admitted == ["C"]


@pytest.mark.parametrize("ahead, behind", [("p/*", "p/f"), ("p/f", "p/*"), ("p/*", "p/*")])
def test_the_line_knows_the_star(ahead: str, behind: str) -> None:
    """A partition overwrite waits for the updates in it, and they for it."""
    w = world().intent("A").touch("A", m(ahead)).intent("B", m(behind), admission="queued")
    assert w.admitted == []

    assert w.abandon("A").admitted == ["B"]


def test_under_deleted_file_two_appends_need_not_wait_for_each_other() -> None:
    """The line asks the same question as the conflict check."""
    w = world().intent("A", m("p/f", "append"), admission="queued", conflict_rule="deleted-file")

    w.intent("B", m("p/f", "append"), admission="queued", conflict_rule="deleted-file")

    assert w.admitted == ["B"]


def test_a_dead_head_of_the_line_blocks_nobody_for_longer_than_its_heartbeats() -> None:
    """The retry's process was killed while it waited."""
    w = world().intent("A").touch("A", m("p/f"))
    w.intent("dead", m("p/f"), admission="queued").intent("B", m("p/f"), admission="queued")
    w.abandon("A")
    assert w.admitted == ["dead"]

    w.tick(10).beat("B").tick(5.1)

    assert w.aborted == {"dead": "writer-lost"}
    assert w.admitted == ["B"]


def test_a_newcomer_that_overlaps_an_older_place_in_the_line_loses() -> None:
    """Otherwise optimistic writers would overtake a waiting retry for ever."""
    w = world().intent("A").touch("A", m("p/f")).intent("B", m("p/f"), m("p/g"), admission="queued")

    w.intent("C").touch("C", m("p/g"))

    assert w.aborted == {"C": "conflict"}


def test_one_in_the_line_makes_nobody_lose_who_was_there_before() -> None:
    """It waits; larger priority gives it the place before others in the line, not their compute."""
    w = world().intent("A", priority=-1).touch("A", m("p/f"))

    w.intent("B", m("p/f"), admission="queued", priority=9)

    assert w.effects == []
    assert w.phase("A") is Phase.ACTIVE


def test_what_was_committed_while_one_waited_does_not_count_against_it() -> None:
    """It reads its base when it is admitted: that is what the waiting was for."""
    w = world().intent("A").touch("A", m("p/f")).intent("B", m("p/f"), admission="queued").lock().commits("A")

    assert w.touch("B", m("p/f")).aborted == {}
    assert w.commits("B").aborted == {}


def test_a_batch_that_the_ledger_knows_is_skipped() -> None:
    """A streaming query restarts from its checkpoint and replays its last micro-batch."""
    w = world().lock().intent("A", batch_id=7, writer="w").lock().request("A", writer="w")
    w.complete("A", writer="w", version="snapshot-12")

    w.intent("A2", batch_id=7, writer="w")

    skip = w.one(SkipBatch)
    assert (skip.transaction, skip.committed_transaction, skip.version) == ("A2", "A", "snapshot-12")
    assert w.admitted == []
    assert w.phase("A2") is Phase.COMMITTED
    assert "A2" not in w.state.transactions


@pytest.mark.parametrize("batch, skipped", [(6, True), (7, True), (8, False), (None, False)])
def test_smaller_batches_of_the_writer_are_committed_too(batch: int | None, skipped: bool) -> None:
    """Batch ids of a streaming query rise; a query without batch ids is never skipped."""
    w = world().intent("A", batch_id=7, writer="w").lock().request("A", writer="w").complete("A", writer="w")

    w.intent("B", batch_id=batch, writer="w")

    assert bool(w.of(SkipBatch)) is skipped


def test_another_writers_batches_say_nothing_about_mine() -> None:
    """Every query counts from zero."""
    w = world().intent("A", batch_id=7, writer="w").lock().request("A", writer="w").complete("A", writer="w")

    assert w.intent("B", batch_id=7, writer="v").admitted == ["B"]


def test_a_restarted_writer_supersedes_its_older_attempt() -> None:
    """The driver was killed and restarted before its heartbeats were missed."""
    w = world().intent("A", writer="w").touch("A", m("p/f"), writer="w")

    w.intent("A2", writer="w").touch("A2", m("p/f"), writer="w")

    assert w.phase("A") is Phase.ABORTED
    assert w.state.closed["A"].reason == "superseded"
    assert w.phase("A2") is Phase.ACTIVE


def test_a_restarted_writer_waits_until_its_older_publish_is_settled() -> None:
    """The old process may be alive in the middle of its publish: both together could write the batch twice."""
    w = publishing().intent("A2", writer="w", batch_id=1)
    assert w.aborted == {"A": "superseded"}
    assert w.admitted == []
    assert w.phase("A") is Phase.GRANTED

    w.complete("A", writer="w", version="v9")

    assert w.one(SkipBatch).committed_transaction == "A"


def test_a_restarted_writer_goes_on_when_its_older_publish_has_lapsed() -> None:
    """The old process is dead; what it left may or may not be committed."""
    w = publishing().intent("A2", m("p/f"), writer="w", batch_id=1)

    w.tick(14).beat("A2", writer="w").tick(7)

    assert w.aborted == {"A": "outcome-unknown"}
    assert w.admitted == ["A2"]
    assert w.phase("A2") is Phase.ACTIVE


def test_a_restarted_writer_does_not_conflict_with_its_own_settled_publish() -> None:
    """It was held back until then, and reads its base after it: the retry of another batch must not lose to itself."""
    w = publishing().intent("A2", writer="w", batch_id=2).complete("A", writer="w")
    assert w.admitted == ["A2"]

    assert w.lock().touch("A2", m("p/f"), writer="w").aborted == {}
    assert w.request("A2", writer="w").granted == ["A2"]


def test_a_batch_heard_of_late_is_never_granted_again() -> None:
    """The lease ran out, the writer restarted the batch; then the old process's completion arrives: once, never twice."""
    w = publishing().tick(21)
    assert w.aborted == {"A": "outcome-unknown"}
    w.intent("A2", writer="w", batch_id=1)
    assert w.admitted == ["A2"]

    w.complete("A", writer="w")

    abort = w.one(AbortTransaction)
    assert (abort.transaction, abort.reason, abort.retriable) == ("A2", "superseded", True)
    w.lock().request("A2", writer="w")
    assert w.granted == []
    assert w.intent("A3", writer="w", batch_id=1).one(SkipBatch).committed_transaction == "A"


def test_one_transaction_too_many_is_refused_and_may_try_again() -> None:
    """A misconfigured job opens transactions without end: the table's owner stays bounded."""
    w = world(max_open=2).intent("A").intent("B").intent("C")

    abort = w.one(AbortTransaction)
    assert (abort.transaction, abort.reason, abort.retriable) == ("C", "not-allowed", True)
    assert "2 transactions" in (abort.detail or "")
    assert w.abandon("A").intent("D").admitted == ["D"]


def test_a_transaction_with_too_many_markers_is_refused_for_good() -> None:
    """The retry would touch as many."""
    w = world(max_markers=3).intent("A").touch("A", *(m(f"p/{n}") for n in range(3)))
    assert w.aborted == {}

    w.touch("A", m("p/3"))

    abort = w.one(AbortTransaction)
    assert (abort.reason, abort.retriable) == ("not-allowed", False)
    assert w.state.footprints.index == {}


def test_repeated_markers_do_not_count_towards_the_bound() -> None:
    """Speculative tasks send them again."""
    w = world(max_markers=3).intent("A")
    for _ in range(5):
        w.touch("A", m("p/1"), m("p/2"), m("p/3", "append"))

    assert w.aborted == {}


def test_who_asks_for_its_commit_while_it_waits_is_served_when_it_is_let_in() -> None:
    """A queued writer without work of its own, such as a metadata change."""
    w = world().intent("A").touch("A", m("p/f")).intent("B", m("p/f"), admission="queued").lock()
    w.request("B")
    assert w.effects == []

    w.abandon("A")

    assert w.admitted == ["B"]
    assert w.granted == ["B"]


def test_the_first_intent_of_a_table_asks_for_its_lock() -> None:
    """While-active: the lock is taken early, so that no grant waits for the store."""
    w = world().intent("A")

    assert w.one(AcquireLock) == AcquireLock(None)


def publishing() -> World:
    """Writer w holds a grant for its batch 1."""
    w = world().intent("A", writer="w", batch_id=1).lock().touch("A", m("p/f"), writer="w")
    return w.request("A", writer="w")
