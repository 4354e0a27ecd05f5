"""Which transactions the agent admits, which wait in the admission queue, and which batches it skips."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from lakewarden.events import Abort, Admitted, AlreadyCommitted, ConflictRule, ConflictsLost, Operation
from lakewarden.handlers.explain.waits import waits
from lakewarden.handlers.table.effects import AcquireLock
from lakewarden.handlers.table.state import MAX_LOST_ON, MAX_LOST_ON_CHARACTERS
from lakewarden.handlers.table.transactions import Phase
from tests.unit.handlers.table.world import World, m, world


def test_an_optimistic_intent_is_admitted_at_once_with_its_own_event_as_cause() -> None:
    """The writer waits for this answer before it computes, so a missing agent is noticed then and not at the end."""
    w = world().intent("A")

    admit = w.one(Admitted)
    assert (admit.transaction, admit.writer) == ("A", "w-A")
    assert admit.cause == "e-0-A"
    assert admit.cause_offset == 0


def test_a_queued_intent_waits_for_a_transaction_that_computes_on_its_scope() -> None:
    """A retry declares what its last attempt touched, and starts when the winner has ended."""
    w = world().intent("A").touch("A", m("p/f")).intent("B", m("p/f"), m("p/g"), admission="queued")
    assert w.effects == []
    assert w.phase("B") is Phase.QUEUED

    w.lock().commits("A")

    assert w.admitted == ["B"]
    assert w.phase("B") is Phase.ACTIVE


@pytest.mark.parametrize("end", ["commit", "abort", "abandon", "silence"])
def test_the_next_in_the_queue_is_admitted_in_the_step_that_ends_the_transaction_ahead(end: str) -> None:
    """No writer polls: the waiting writer is admitted within milliseconds."""
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


def test_a_queued_intent_without_overlap_is_admitted_at_once() -> None:
    """Disjoint scopes run side by side."""
    w = world().intent("A", m("p/*"), admission="queued").intent("B", m("q/*"), admission="queued")

    assert w.admitted == ["B"]
    assert w.phase("A") is w.phase("B") is Phase.ACTIVE


def test_a_queued_intent_without_a_scope_is_admitted_at_once() -> None:
    """It declared nothing for which it could wait."""
    w = world().intent("A").touch("A", m("p/*")).intent("B", admission="queued")

    assert w.admitted == ["B"]


def test_the_queue_is_served_in_the_order_of_the_log() -> None:
    """Three retries on one partition start one after the other, in the order of their intents."""
    w = world().intent("A").touch("A", m("p/f"))
    for name in "BCD":
        w.intent(name, m("p/f"), admission="queued")

    order = []
    for _ in range(3):
        ahead = next(each.id for each in w.state.open() if each.phase is not Phase.QUEUED)
        order += w.abandon(ahead).admitted

    assert order == ["B", "C", "D"]


def test_a_larger_priority_comes_first_in_the_queue() -> None:
    """A compaction waits behind ingestion, although its intent came first."""
    w = world().intent("A").touch("A", m("p/f"))
    w.intent("compaction", m("p/f"), admission="queued", priority=-1)
    w.intent("ingestion", m("p/f"), admission="queued")

    assert w.abandon("A").admitted == ["ingestion"]


def test_a_protected_writer_comes_first_in_the_queue() -> None:
    """Otherwise a stream of larger priorities would starve it before it is even admitted."""
    w = world(max_losses=1).intent("A").touch("A", m("p/f"))
    w.intent("S0", writer="slow", priority=-1).touch("S0", m("p/f"), writer="slow")
    w.intent("S1", m("p/f"), admission="queued", writer="slow", priority=-1)
    w.intent("B", m("p/f"), admission="queued", priority=5)

    assert w.abandon("A").admitted == ["S1"]


def test_a_protected_writer_without_scope_gets_the_partitions_in_which_it_lost_reserved() -> None:
    """Without markers it could not be protected from commits that land before its first marker."""
    w = world(max_losses=1).intent("A").touch("A", m("p/f"))
    w.intent("S0", writer="slow").touch("S0", m("q/x", "delete"), m("p/f", "delete"), writer="slow")
    assert w.aborted == {"S0": "conflict"}

    w.intent("S1", writer="slow")

    assert w.one(Admitted).reserved == (m("q/*", "delete"), m("p/*", "delete"))
    assert w.aborted == {"A": "conflict"}
    assert w.intent("B").touch("B", m("q/new")).aborted == {"B": "conflict"}
    assert w.intent("C").touch("C", m("elsewhere/f")).aborted == {}


def test_nothing_is_reserved_before_max_losses_or_for_a_declared_scope() -> None:
    """A declared scope is sufficient, and protection begins at `max_losses`."""
    w = world(max_losses=2).intent("A").touch("A", m("p/f"))
    w.intent("S0", writer="slow").touch("S0", m("p/f"), writer="slow")
    assert w.intent("S1", writer="slow").one(Admitted).reserved == ()
    w.touch("S1", m("p/f"), writer="slow")

    assert w.intent("S2", m("r/f"), writer="slow").one(Admitted).reserved == ()


def test_the_reservation_covers_all_losses_since_the_last_commit() -> None:
    """The partitions of the latest loss come first. A commit ends the series."""
    w = world(max_losses=2).lock().intent("A").touch("A", m("p/f"), m("q/f"))
    w.intent("S0", writer="slow").touch("S0", m("p/f"), writer="slow")
    w.intent("S1", writer="slow").touch("S1", m("q/f"), writer="slow").abandon("A")
    assert w.intent("S2", writer="slow").one(Admitted).reserved == (m("q/*"), m("p/*"))

    w.lock().commits("S2", writer="slow")

    assert w.intent("S3", writer="slow").one(Admitted).reserved == ()


def test_a_protected_writer_waits_only_for_a_grant_in_its_reserved_partitions() -> None:
    """That commit is going to land: a transaction that began before it would lose again."""
    w = world(max_losses=1).intent("A").touch("A", m("p/f")).intent("G").touch("G", m("p/g"))
    w.intent("S0", writer="slow").touch("S0", m("p/f"), writer="slow").lock().request("G")
    w.intent("T0", writer="other").touch("T0", m("p/f"), writer="other")
    assert w.phase("G") is Phase.GRANTED

    assert w.intent("S1", writer="slow").admitted == []
    w.complete("G", writer="w-G")

    assert w.one(Admitted).transaction == "S1"
    assert w.aborted == {"A": "conflict"}


def test_of_two_protected_writers_without_scope_the_later_waits_for_the_earlier() -> None:
    """Whatever their priorities: otherwise the larger priority would win every time."""
    w = world(max_losses=1).intent("A").touch("A", m("p/f"))
    for writer in ("one", "two"):
        w.intent(f"{writer}-0", writer=writer).touch(f"{writer}-0", m("p/f"), writer=writer)
    assert w.intent("one-1", writer="one").admitted == ["one-1"]

    assert w.intent("two-1", writer="two", priority=9).admitted == []
    assert w.abandon("one-1", writer="one").admitted == ["two-1"]


@pytest.mark.parametrize("length, kept", [(10, MAX_LOST_ON), (1_024, MAX_LOST_ON_CHARACTERS // 1_024)])
def test_the_partitions_kept_of_losses_fit_into_a_record(length: int, kept: int) -> None:
    """Bounded in number and in total length."""
    places = [m(f"{n:0{length}}/f") for n in range(MAX_LOST_ON + 50)]
    w = world(max_losses=1).intent("A").touch("A", *places)

    w.intent("S0", writer="slow").touch("S0", *places, writer="slow")

    assert (
        len(w.one(ConflictsLost).lost_on) == len(w.intent("S1", writer="slow").one(Admitted).reserved) == kept
    )


def test_a_queued_transaction_blocks_only_those_that_overlap_it() -> None:
    """B waits for A. C overlaps only B in the queue, and D overlaps nothing."""
    w = world().intent("A").touch("A", m("p/1"))
    w.intent("B", m("p/1"), m("p/2"), admission="queued")
    w.intent("C", m("p/2"), admission="queued")
    assert w.admitted == []

    assert w.intent("D", m("p/3"), admission="queued").admitted == ["D"]
    assert w.abandon("A").admitted == ["B"]
    assert w.abandon("B").admitted == ["C"]


@pytest.mark.parametrize("ahead, behind", [("p/*", "p/f"), ("p/f", "p/*"), ("p/*", "p/*")])
def test_a_star_blocks_the_queue_for_its_partition(ahead: str, behind: str) -> None:
    """A partition overwrite waits for the updates in the partition, and they wait for it."""
    w = world().intent("A").touch("A", m(ahead)).intent("B", m(behind), admission="queued")
    assert w.admitted == []

    assert w.abandon("A").admitted == ["B"]


def test_under_deleted_file_two_queued_appends_do_not_wait_for_each_other() -> None:
    """The queue applies the same rule as the conflict check."""
    w = world().intent("A", m("p/f", "append"), admission="queued", conflict_rule="deleted-file")

    w.intent("B", m("p/f", "append"), admission="queued", conflict_rule="deleted-file")

    assert w.admitted == ["B"]


def test_a_dead_writer_blocks_the_queue_only_until_its_heartbeats_are_missed() -> None:
    """The process of a retry was killed."""
    w = world().intent("A").touch("A", m("p/f"))
    w.intent("dead", m("p/f"), admission="queued").intent("B", m("p/f"), admission="queued")
    w.abandon("A")
    assert w.admitted == ["dead"]

    w.tick(10).beat("B").tick(5.1)

    assert w.aborted == {"dead": "writer-lost"}
    assert w.admitted == ["B"]


def test_a_newcomer_that_overlaps_an_older_queued_transaction_loses() -> None:
    """Otherwise optimistic writers would overtake a waiting retry forever."""
    w = world().intent("A").touch("A", m("p/f")).intent("B", m("p/f"), m("p/g"), admission="queued")

    w.intent("C").touch("C", m("p/g"))

    assert w.aborted == {"C": "conflict"}


def test_a_queued_transaction_does_not_abort_an_earlier_one() -> None:
    """A larger priority gives it a better place in the queue, but doesn't stop transactions that compute."""
    w = world().intent("A", priority=-1).touch("A", m("p/f"))

    w.intent("B", m("p/f"), admission="queued", priority=9)

    assert w.effects == []
    assert w.phase("A") is Phase.ACTIVE


def test_a_commit_during_the_wait_does_not_conflict() -> None:
    """The transaction reads its base when it is admitted, which is the purpose of the wait."""
    w = world().intent("A").touch("A", m("p/f")).intent("B", m("p/f"), admission="queued").lock().commits("A")

    assert w.touch("B", m("p/f")).aborted == {}
    assert w.commits("B").aborted == {}


def test_a_batch_in_the_ledger_is_skipped() -> None:
    """A streaming query restarts from its checkpoint and replays its last micro-batch."""
    w = world().lock().intent("A", batch_id=7, writer="w").lock().request("A", writer="w")
    w.complete("A", writer="w", version="snapshot-12")

    w.intent("A2", batch_id=7, writer="w")

    skip = w.one(AlreadyCommitted)
    assert (skip.transaction, skip.committed_transaction, skip.version) == ("A2", "A", "snapshot-12")
    assert w.admitted == []
    assert w.phase("A2") is Phase.COMMITTED
    assert "A2" not in w.state.transactions


@pytest.mark.parametrize("batch, skipped", [(6, True), (7, True), (8, False), (None, False)])
def test_smaller_batch_ids_of_the_writer_are_skipped_too(batch: int | None, skipped: bool) -> None:
    """The batch ids of a streaming query rise. A query without batch ids is never skipped."""
    w = world().intent("A", batch_id=7, writer="w").lock().request("A", writer="w").complete("A", writer="w")

    w.intent("B", batch_id=batch, writer="w")

    assert bool(w.of(AlreadyCommitted)) is skipped


def test_batch_ids_of_different_writers_are_independent() -> None:
    """Every query counts from zero."""
    w = world().intent("A", batch_id=7, writer="w").lock().request("A", writer="w").complete("A", writer="w")

    assert w.intent("B", batch_id=7, writer="v").admitted == ["B"]


def test_a_restarted_writer_supersedes_its_older_transaction() -> None:
    """The driver was killed and restarted before its heartbeats were missed."""
    w = world().intent("A", writer="w").touch("A", m("p/f"), writer="w")

    w.intent("A2", writer="w").touch("A2", m("p/f"), writer="w")

    assert w.phase("A") is Phase.ABORTED
    closed = w.state.closed["A"]
    assert (closed.reason, closed.retriable) == ("superseded", False)
    assert w.phase("A2") is Phase.ACTIVE


def test_a_restarted_writer_waits_while_its_older_transaction_is_granted() -> None:
    """The old process may still be publishing. Both together could write the batch twice."""
    w = publishing().intent("A2", writer="w", batch_id=1)
    assert w.aborted == {"A": "superseded"}
    assert w.admitted == []
    assert w.phase("A") is Phase.GRANTED

    w.complete("A", writer="w", version="v9")

    assert w.one(AlreadyCommitted).committed_transaction == "A"


def test_a_restarted_writer_is_admitted_after_the_lapse_of_its_older_grant() -> None:
    """The old process is dead, and its commit may or may not be in the table."""
    w = publishing().intent("A2", m("p/f"), writer="w", batch_id=1)

    w.tick(14).beat("A2", writer="w").tick(7)

    assert w.aborted == {"A": "outcome-unknown"}
    assert w.admitted == ["A2"]
    assert w.phase("A2") is Phase.ACTIVE


def test_a_restarted_writer_does_not_conflict_with_its_own_earlier_commit() -> None:
    """It waited until that commit was reported and reads its base afterwards."""
    w = publishing().intent("A2", writer="w", batch_id=2).complete("A", writer="w")
    assert w.admitted == ["A2"]

    assert w.lock().touch("A2", m("p/f"), writer="w").aborted == {}
    assert w.request("A2", writer="w").granted == ["A2"]


def test_a_batch_whose_completion_arrives_late_is_not_granted_again() -> None:
    """The grant lapsed and the writer repeated the batch. Then the old process's completion arrives: G6."""
    w = publishing().tick(21)
    assert w.aborted == {"A": "outcome-unknown"}
    w.intent("A2", writer="w", batch_id=1)
    assert w.admitted == ["A2"]

    w.complete("A", writer="w")

    abort = w.one(Abort)
    assert (abort.transaction, abort.reason, abort.retriable) == ("A2", "superseded", True)
    w.lock().request("A2", writer="w")
    assert w.granted == []
    assert w.intent("A3", writer="w", batch_id=1).one(AlreadyCommitted).committed_transaction == "A"


def test_a_transaction_beyond_max_open_is_refused_and_may_be_retried() -> None:
    """A misconfigured job opens transactions endlessly. The agent's memory stays bounded."""
    w = world(max_open=2).intent("A").intent("B").intent("C")

    abort = w.one(Abort)
    assert (abort.transaction, abort.reason, abort.retriable) == ("C", "not-allowed", True)
    assert "2 transactions" in (abort.detail or "")
    assert w.abandon("A").intent("D").admitted == ["D"]


def test_a_transaction_beyond_max_markers_is_aborted_without_retry() -> None:
    """A retry would publish as many markers."""
    w = world(max_markers=3).intent("A").touch("A", *(m(f"p/{n}") for n in range(3)))
    assert w.aborted == {}

    w.touch("A", m("p/3"))

    abort = w.one(Abort)
    assert (abort.reason, abort.retriable) == ("not-allowed", False)
    assert w.state.footprints.index == {}


def test_repeated_markers_do_not_count_towards_max_markers() -> None:
    """Speculative tasks publish them again."""
    w = world(max_markers=3).intent("A")
    for _ in range(5):
        w.touch("A", m("p/1"), m("p/2"), m("p/3", "append"))

    assert w.aborted == {}


def test_a_commit_request_of_a_queued_transaction_is_granted_after_its_admission() -> None:
    """A writer that has nothing to compute, such as a metadata change."""
    w = world().intent("A").touch("A", m("p/f")).intent("B", m("p/f"), admission="queued").lock()
    w.request("B")
    assert w.effects == []

    w.abandon("A")

    assert w.admitted == ["B"]
    assert w.granted == ["B"]


def test_the_first_intent_of_a_table_requests_its_lock() -> None:
    """With `while-active` the agent acquires the lock early, so that no grant waits for the store."""
    w = world().intent("A")

    assert w.one(AcquireLock) == AcquireLock(None)


def publishing() -> World:
    """Return a world in which writer w has a grant for its batch 1."""
    w = world().intent("A", writer="w", batch_id=1).lock().touch("A", m("p/f"), writer="w")
    return w.request("A", writer="w")


@pytest.mark.parametrize("outcome", ["commits", "abandons"])
@pytest.mark.parametrize("admission", ["queued", "optimistic"])
def test_a_smaller_priority_waits_for_at_most_max_losses_later_transactions(
    admission: str, outcome: str
) -> None:
    """Two writers whose micro-batches overlap in time kept a backfill waiting for ever."""
    w = world(max_losses=2).intent("T0", m("p/f"), admission=admission).lock(10_000.0)
    w.intent("backfill", m("p/f"), admission="queued", priority=-10)
    overtaken = 0
    for number in range(1, 20):
        w.intent(f"T{number}", m("p/f"), admission="queued")
        if outcome == "abandons":
            w.abandon(f"T{number - 1}")
        else:
            w.commits(f"T{number - 1}")
        if w.phase("backfill") is not Phase.QUEUED:
            break
        overtaken += w.phase(f"T{number}") is not Phase.QUEUED

    assert overtaken == 2
    assert w.rebuilt().state.transactions["backfill"].overtaken == 2


def test_an_earlier_transaction_overtakes_nothing() -> None:
    w = world(max_losses=1).lock().intent("A", m("p/f")).intent("B", m("q/f"))
    w.intent("waits", m("p/f"), m("q/f"), admission="queued", priority=-1)
    w.abandon("A")

    assert w.state.transactions["waits"].overtaken == 0


@pytest.mark.parametrize("fields", [{"admission": "queued"}, {"conflict_rule": "ordered"}], ids=str)
def test_an_event_that_changes_nothing_for_others_costs_the_same_however_many_are_open(
    fields: dict[str, Any],
) -> None:
    """Each event visited each open transaction, and for each of them its pairs."""

    def calls(others: int) -> int:
        w = world().lock().intent("D", m("p/f"), **fields)
        for number in range(others):
            w.intent(f"Q{number}", m("p/f"), **fields)
        counted = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal counted
            counted += event == "call"

        sys.setprofile(count)
        try:
            w.beat("Q1")
            w.touch("D", m("q/f"))
            w.intent("last", m("p/f"), **fields)
        finally:
            sys.setprofile(None)
        return counted

    assert calls(200) <= calls(10) + 5


# The rule `ordered`: upserts of one bucket wait for their turn instead of aborting each other (docs/decisions/0045).

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
    assert not [each for each in w.log if isinstance(each, Abort)]


def test_each_admission_has_a_turn_after_those_that_are_open() -> None:
    """Writers that read one base number their rows by it. When none is open, the turns begin again."""
    w = world().intent("A", conflict_rule="ordered").intent("B", conflict_rule="ordered").intent("C")
    w.abandon("A").intent("D", conflict_rule="ordered").abandon("B").abandon("D")
    w.intent("E", conflict_rule="ordered")

    turns = {each.transaction: each.turn for each in w.log if isinstance(each, Admitted)}
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
