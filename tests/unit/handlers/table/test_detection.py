"""When the agent finds a conflict, which transaction it aborts, and what the abort contains. Names, stars: `test_rfc56.py`."""

from __future__ import annotations

import pytest

from lakewarden.events import Abort, ConflictDetected, MarkerCreated, Operation
from lakewarden.handlers.table.transactions import Phase
from tests.unit.handlers.table.world import m, world


def test_the_later_of_two_transactions_on_one_file_group_is_aborted_when_its_marker_is_read() -> None:
    """Two streaming queries update the same file group. The loser is aborted while it computes."""
    w = world().intent("A").intent("B").touch("A", m("p/f")).touch("B", m("p/f", "append"))

    abort = w.one(Abort)
    assert (abort.transaction, abort.reason, abort.retriable) == ("B", "conflict", True)
    (entry,) = abort.conflicts
    assert (entry.partition, entry.file_group) == ("p", "f")
    assert (entry.operation, entry.other_operation) == ("append", "merge")
    assert (entry.other_transaction, entry.other_writer, entry.kind) == ("A", "w-A", "marker")
    assert w.phase("A") is Phase.ACTIVE
    assert w.phase("B") is Phase.ABORTED


def test_the_later_transaction_loses_even_if_its_marker_came_first() -> None:
    """The order of the intents decides, not that of the markers."""
    w = world().intent("A").intent("B").touch("B", m("p/f")).touch("A", m("p/f"))

    assert w.aborted == {"B": "conflict"}
    (entry,) = w.one(Abort).conflicts
    assert (entry.other_transaction, entry.operation) == ("A", "merge")


def test_a_conflict_report_names_victim_winner_file_groups_and_times() -> None:
    """A row of a dashboard: how early the conflict was found, and how much compute was spent until then."""
    w = world().intent("A").touch("A", m("p/f")).intent("B")
    w.now += 7.0

    w.read(w.event(MarkerCreated, "B", markers=(m("p/f"),)), lag=0.25)

    report = w.one(ConflictDetected)
    assert (report.victim, report.winner, report.rule, report.kind) == ("B", "A", "file-group", "marker")
    assert report.detected_after_ms == pytest.approx(250)
    assert report.victim_age_seconds == pytest.approx(7.0, abs=0.01)
    assert report.conflicts == w.one(Abort).conflicts


def test_transactions_on_disjoint_file_groups_do_not_conflict() -> None:
    """The usual case: two writers in different partitions."""
    w = world().intent("A").intent("B").touch("A", m("p/f"), m("q/g"))

    assert w.touch("B", m("p/g"), m("q/f")).effects == []


def test_a_commit_since_the_intent_conflicts_although_its_transaction_has_ended() -> None:
    """RFC-56, figure 4: A commits before B publishes its first marker. B's base is older than A's commit."""
    w = world().intent("A").intent("B").lock().touch("A", m("p/f")).commits("A")
    assert w.aborted == {}

    w.touch("B", m("p/f"))

    assert w.aborted == {"B": "conflict"}
    (entry,) = w.one(Abort).conflicts
    assert (entry.other_transaction, entry.kind) == ("A", "commit")
    assert w.one(ConflictDetected).kind == "commit"


def test_a_commit_before_the_intent_does_not_conflict() -> None:
    """B began after A had landed, so A's commit is in the base that B reads."""
    w = world().intent("A").intent("keeps-A-as-evidence").lock().touch("A", m("p/f")).commits("A")

    assert w.intent("B").touch("B", m("p/f")).aborted == {}
    assert w.commits("B").aborted == {}


def test_a_commit_aborts_others_on_the_same_file_group_whatever_their_priority() -> None:
    """The granted transaction has the lower priority, but its commit has landed."""
    w = world().intent("A", priority=-1).intent("B", priority=5).lock().request("A")
    w.touch("B", m("p/f"))
    w.complete("A")
    assert w.phase("B") is Phase.ACTIVE

    w = world(early_detection=False).intent("A", priority=-1).intent("B", priority=5).lock()
    w.touch("B", m("p/f")).touch("A", m("p/f")).commits("A")
    assert w.aborted == {}
    assert w.request("B").aborted == {"B": "conflict"}


@pytest.mark.parametrize(
    "operation, other, conflict",
    [
        ("append", "append", False),
        ("delete", "merge", True),
        ("merge", "merge", False),
        ("delete", "create", False),
    ],
)
def test_two_deleted_file_writers_conflict_only_if_a_needed_file_is_deleted(
    operation: Operation, other: Operation, conflict: bool
) -> None:
    """Two Paimon writers append to one bucket, then one of them compacts it."""
    w = world().intent("A", conflict_rule="deleted-file").intent("B", conflict_rule="deleted-file")

    w.touch("A", m("p/bucket-0", operation)).touch("B", m("p/bucket-0", other))

    assert bool(w.aborted) is conflict


def test_a_second_operation_on_the_same_file_group_is_checked_too() -> None:
    """A Paimon writer appends to a bucket, then deletes a file on which another writer builds."""
    w = world().intent("A", conflict_rule="deleted-file").intent("B", conflict_rule="deleted-file")
    w.touch("A", m("p/f")).touch("B", m("p/f", "append"))
    assert w.aborted == {}

    assert w.touch("B", m("p/f", "delete")).aborted == {"B": "conflict"}


def test_a_conflict_entry_names_the_victims_own_file_group_not_the_star() -> None:
    """The victim's writer must recognise the entry: partition, file group and operation are those of its own marker."""
    w = (
        world()
        .intent("A")
        .intent("B")
        .touch("B", m("p/f", "append"), m("p/g"))
        .touch("A", m("p/*", "delete"))
    )

    assert w.aborted == {"B": "conflict"}
    assert {(e.file_group, e.operation, e.other_operation) for e in w.one(Abort).conflicts} == {
        ("f", "append", "delete"),
        ("g", "merge", "delete"),
    }


def test_a_batch_of_markers_that_loses_aborts_only_its_own_transaction() -> None:
    """B overlaps A and C. If C were aborted as well, its conflict with B would have been for nothing."""
    w = world().intent("A").intent("B").intent("C").touch("A", m("p/a")).touch("C", m("p/c"))

    w.touch("B", m("p/c"), m("p/a"))

    assert w.aborted == {"B": "conflict"}
    assert w.phase("C") is Phase.ACTIVE
    assert {entry.other_transaction for entry in w.one(Abort).conflicts} == {"A"}


def test_one_abort_lists_all_conflicts() -> None:
    """B lost to A on two file groups and to a commit on a third. The retry declares all three as its scope."""
    w = world().intent("K").intent("A").intent("B").lock().touch("K", m("p/k")).touch("A", m("p/1"), m("p/2"))
    w.commits("K")

    w.touch("B", m("p/1"), m("p/2"), m("p/k"))

    entries = w.one(Abort).conflicts
    assert {(e.file_group, e.other_transaction, e.kind) for e in entries} == {
        ("1", "A", "marker"),
        ("2", "A", "marker"),
        ("k", "K", "commit"),
    }
    assert sorted(w.reports) == [("B", "A"), ("B", "K")]


def test_an_earlier_transaction_aborts_all_later_ones_that_it_overlaps_oldest_first() -> None:
    """A compaction of high priority starts in a partition where several small writers work."""
    w = world().intent("A").intent("B").intent("C").touch("B", m("p/1")).touch("C", m("p/2"))

    w.touch("A", m("p/2"), m("p/1"))

    assert [each.transaction for each in w.of(Abort)] == ["B", "C"]
    assert w.reports == [("B", "A"), ("C", "A")]


def test_in_a_chain_the_last_survives_because_the_middle_was_aborted() -> None:
    """A < B < C, and B overlaps both. B loses to A, so C has no transaction left to lose to."""
    w = world().intent("A").intent("B").intent("C").touch("A", m("p/ab")).touch("B", m("p/ab"))
    assert w.aborted == {"B": "conflict"}

    w.touch("C", m("p/bc"))

    assert w.effects == []
    assert w.lock().commits("A").aborted == {}
    assert w.commits("C").aborted == {}


def test_in_a_chain_read_from_its_end_each_transaction_loses_to_its_predecessor() -> None:
    """C loses to B, and later B to A: two conflicts, two victims. No pair aborts each other."""
    w = world().intent("A").intent("B").intent("C").touch("C", m("p/bc")).touch("B", m("p/bc"))
    assert w.aborted == {"C": "conflict"}

    w.touch("B", m("p/ab")).touch("A", m("p/ab"))

    assert w.aborted == {"B": "conflict"}


def test_a_transaction_never_conflicts_with_itself() -> None:
    """Task retries, speculation and redelivery repeat markers, or touch the same file group with another operation."""
    w = world().intent("A").touch("A", m("p/f"), m("p/f"), m("p/f", "delete")).touch("A", m("p/*"), m("p/f"))

    assert w.aborted == {}
    assert w.state.transactions["A"].markers == 2


def test_a_granted_transaction_is_never_aborted_for_a_conflict() -> None:
    """Its publish may be under way. Others that overlap it lose, whatever their priority."""
    w = world().intent("A", priority=-5).touch("A", m("p/f")).lock().request("A").intent("B", priority=5)

    assert w.touch("B", m("p/f")).aborted == {"B": "conflict"}
    w.intent("C", priority=9).touch("C", m("p/g"))
    assert w.touch("A", m("p/g")).aborted == {"C": "conflict"}
    assert w.phase("A") is Phase.GRANTED


def test_a_writer_that_lost_max_losses_times_wins_the_next_conflict() -> None:
    """A slow job among fast ones: the fourth time, the others lose."""
    w = world(max_losses=3).intent("A").touch("A", m("p/f"))
    for attempt in range(3):
        w.intent(f"S{attempt}", writer="slow").touch(f"S{attempt}", m("p/f"), writer="slow")
        assert w.aborted == {f"S{attempt}": "conflict"}

    assert w.intent("S3", m("p/f"), writer="slow").aborted == {"A": "conflict"}
    assert w.touch("S3", m("p/f"), writer="slow").aborted == {}


def test_a_commit_ends_the_protection() -> None:
    """Otherwise a writer that once lost three times would win forever."""
    w = world(max_losses=1).lock().intent("A").touch("A", m("p/f"))
    w.intent("S0", writer="slow").touch("S0", m("p/f"), writer="slow")
    assert w.intent("S1", writer="slow").aborted == {"A": "conflict"}
    w.lock().request("S1", writer="slow").complete("S1", writer="slow")

    w.intent("B").touch("B", m("p/f")).intent("S2", writer="slow").touch("S2", m("p/f"), writer="slow")

    assert w.aborted == {"S2": "conflict"}


def test_only_conflicts_count_as_losses() -> None:
    """A job that restarts again and again has lost no conflict."""
    w = world(max_losses=1).intent("A").touch("A", m("p/f"))
    w.intent("S0", writer="s").intent("S1", writer="s").touch("S1", m("p/f"), writer="s")

    assert w.aborted == {"S1": "conflict"}


def test_the_scope_of_an_optimistic_intent_counts_like_markers() -> None:
    """A writer that knows its partitions declares them first, and learns of the conflict before it computes."""
    w = world().intent("A").touch("A", m("p/f")).intent("B", m("p/f"))

    assert w.admitted == ["B"]
    assert w.aborted == {"B": "conflict"}


def test_a_scope_that_loses_aborts_only_its_own_transaction() -> None:
    """A scope is a batch of markers like any other: C must not be aborted for B, which is aborted itself."""
    w = world().intent("A", priority=9).touch("A", m("p/a")).intent("C").touch("C", m("p/c"))

    w.intent("B", m("p/a"), m("p/c"), priority=5)

    assert w.aborted == {"B": "conflict"}


def test_the_scope_of_a_committed_batch_aborts_no_other_transaction() -> None:
    """A replayed micro-batch of high priority has no work to do. It must not abort transactions that have."""
    w = world().intent("A", writer="w", batch_id=1, priority=5).lock()
    w.request("A", writer="w").complete("A", writer="w")
    w.intent("B").touch("B", m("p/f"))

    w.intent("A2", m("p/f"), writer="w", batch_id=1, priority=5)

    assert w.aborted == {}
    assert w.phase("B") is Phase.ACTIVE


def test_under_first_committer_markers_abort_no_transaction() -> None:
    """The first transaction that is granted wins."""
    w = world(policy="first-committer").intent("A").intent("B").touch("A", m("p/f")).touch("B", m("p/f"))

    assert w.effects == []


def test_under_first_committer_a_grant_aborts_the_others() -> None:
    """B is granted first. A is aborted at that moment, not when it requests its own commit."""
    w = world(policy="first-committer").intent("A").intent("B").lock()
    w.touch("A", m("p/f")).touch("B", m("p/f")).request("B")

    assert w.granted == ["B"]
    assert w.aborted == {"A": "conflict"}


def test_under_first_committer_a_protected_writer_takes_precedence_over_a_grant() -> None:
    """Otherwise a slow writer among fast ones would never be granted."""
    w = world(policy="first-committer", max_losses=1).intent("S0", writer="slow").intent("A").lock()
    w.touch("S0", m("p/f"), writer="slow").touch("A", m("p/f")).request("A")
    assert w.aborted == {"S0": "conflict"}
    w.complete("A").intent("S1", writer="slow").intent("B").lock()
    w.touch("S1", m("p/f"), writer="slow").touch("B", m("p/f")).request("B")

    assert w.aborted == {"B": "conflict"}
    assert w.request("S1", writer="slow").granted == ["S1"]


def test_under_first_committer_a_marker_on_a_committed_file_group_aborts() -> None:
    """The base has changed, so further computing would be in vain."""
    w = world(policy="first-committer").intent("A").intent("B").lock().touch("A", m("p/f")).commits("A")

    assert w.touch("B", m("p/f")).aborted == {"B": "conflict"}


def test_the_markers_of_a_commit_request_are_checked() -> None:
    """A driver that learns its files only at the end."""
    w = world().intent("A").touch("A", m("p/f")).intent("B").lock().request("B", m("p/f"))

    assert w.aborted == {"B": "conflict"}
    assert w.granted == []


def test_the_entries_of_an_abort_are_bounded() -> None:
    """Two full rewrites of a partitioned table: the abort must fit into a record."""
    many = [m(f"p/{n}") for n in range(500)]

    w = world().intent("A").touch("A", *many).intent("B").touch("B", *many)

    assert len(w.one(Abort).conflicts) == 100
