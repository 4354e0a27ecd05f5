from __future__ import annotations

import pytest

from lakewarden.events import MarkerCreated, Operation
from lakewarden.handlers.table.transactions import Phase
from lakewarden.handlers.table.verdicts import AbortTransaction, ReportConflict
from tests.unit.handlers.table.world import m, world


def test_the_later_of_two_that_touch_one_file_group_is_aborted_on_arrival() -> None:
    """Two streaming queries update the same file group; the loser hears of it while it computes."""
    w = world().intent("A").intent("B").touch("A", m("p/f")).touch("B", m("p/f", "append"))

    abort = w.one(AbortTransaction)
    assert (abort.transaction, abort.reason, abort.retriable) == ("B", "conflict", True)
    (entry,) = abort.conflicts
    assert (entry.partition, entry.file_group) == ("p", "f")
    assert (entry.operation, entry.other_operation) == ("append", "merge")
    assert (entry.other_transaction, entry.other_writer, entry.kind) == ("A", "w-A", "marker")
    assert w.phase("A") is Phase.ACTIVE
    assert w.phase("B") is Phase.ABORTED


def test_the_later_is_aborted_too_when_the_earlier_touches_second() -> None:
    """The order of the intents decides, not that of the markers."""
    w = world().intent("A").intent("B").touch("B", m("p/f")).touch("A", m("p/f"))

    assert w.aborted == {"B": "conflict"}
    (entry,) = w.one(AbortTransaction).conflicts
    assert (entry.other_transaction, entry.operation) == ("A", "merge")


def test_operators_are_told_who_lost_to_whom_on_what_and_how_long_it_took() -> None:
    """The dashboard's row: how early the conflict was found, and how much compute was spent until then."""
    w = world().intent("A").touch("A", m("p/f")).intent("B")
    w.now += 7.0

    w.read(w.event(MarkerCreated, "B", markers=(m("p/f"),)), lag=0.25)

    report = w.one(ReportConflict)
    assert (report.victim, report.winner, report.rule, report.kind) == ("B", "A", "file-group", "marker")
    assert report.detected_after_ms == pytest.approx(250)
    assert report.victim_age_seconds == pytest.approx(7.0, abs=0.01)
    assert report.conflicts == w.one(AbortTransaction).conflicts


def test_disjoint_file_groups_conflict_with_nobody() -> None:
    """The usual case: two writers in different partitions."""
    w = world().intent("A").intent("B").touch("A", m("p/f"), m("q/g"))

    assert w.touch("B", m("p/g"), m("q/f")).effects == []


def test_a_commit_since_the_intent_counts_though_its_writer_is_gone() -> None:
    """RFC-56, Figure 4: A commits before B writes its first marker; B's base is older than A's commit."""
    w = world().intent("A").intent("B").lock().touch("A", m("p/f")).commits("A")
    assert w.aborted == {}

    w.touch("B", m("p/f"))

    assert w.aborted == {"B": "conflict"}
    (entry,) = w.one(AbortTransaction).conflicts
    assert (entry.other_transaction, entry.kind) == ("A", "commit")
    assert w.one(ReportConflict).kind == "commit"


def test_a_commit_before_the_intent_does_not_count() -> None:
    """B began after A had landed: A's commit is in the base that B reads."""
    w = world().intent("A").intent("keeps-A-as-evidence").lock().touch("A", m("p/f")).commits("A")

    assert w.intent("B").touch("B", m("p/f")).aborted == {}
    assert w.commits("B").aborted == {}


def test_a_commit_aborts_whoever_computes_on_the_same_whatever_its_priority() -> None:
    """A granted transaction touched late what another one computes on: the lower priority has landed all the same."""
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
def test_two_deleted_file_writers_conflict_only_over_a_file_that_goes_away(
    operation: Operation, other: Operation, conflict: bool
) -> None:
    """Two Paimon writers append to one bucket; then one compacts it."""
    w = world().intent("A", conflict_rule="deleted-file").intent("B", conflict_rule="deleted-file")

    w.touch("A", m("p/bucket-0", operation)).touch("B", m("p/bucket-0", other))

    assert bool(w.aborted) is conflict


def test_a_second_operation_of_one_transaction_on_one_file_group_is_judged_too() -> None:
    """A Paimon writer first appends to a bucket, then deletes a file that another builds on."""
    w = world().intent("A", conflict_rule="deleted-file").intent("B", conflict_rule="deleted-file")
    w.touch("A", m("p/f")).touch("B", m("p/f", "append"))
    assert w.aborted == {}

    assert w.touch("B", m("p/f", "delete")).aborted == {"B": "conflict"}


def test_a_star_meets_everything_in_its_partition_and_nothing_outside() -> None:
    """A partition overwrite against row updates."""
    w = world().intent("A").touch("A", m("p/f"), m("q/f")).intent("B").touch("B", m("r/*"))
    assert w.aborted == {}

    w.touch("B", m("p/*", "delete"))

    assert w.aborted == {"B": "conflict"}
    (entry,) = w.one(AbortTransaction).conflicts
    assert (entry.partition, entry.file_group, entry.operation) == ("p", "*", "delete")


def test_whatever_touches_a_starred_partition_meets_the_star() -> None:
    """The update comes after the overwrite began, on a file group that nobody has named before."""
    w = world().intent("A").touch("A", m("p/*")).intent("B").touch("B", m("p/brand-new", "create"))

    assert w.aborted == {"B": "conflict"}
    (entry,) = w.one(AbortTransaction).conflicts
    assert entry.file_group == "brand-new"


def test_the_victim_of_a_star_reads_its_own_file_group_in_the_evidence() -> None:
    """An entry names partition, file group and operation as the aborted transaction's own marker did."""
    w = (
        world()
        .intent("A")
        .intent("B")
        .touch("B", m("p/f", "append"), m("p/g"))
        .touch("A", m("p/*", "delete"))
    )

    assert w.aborted == {"B": "conflict"}
    assert {(e.file_group, e.operation, e.other_operation) for e in w.one(AbortTransaction).conflicts} == {
        ("f", "append", "delete"),
        ("g", "merge", "delete"),
    }


@pytest.mark.parametrize(
    "mine, other",
    [
        ("p/1", "p/10"),
        ("p/10", "p/1"),
        ("a_b/c", "a/b_c"),
        ("a/b/c", "a/b_c"),
        ("p/f", "P/f"),
        ("/f", "f/f"),
        ("dt=1/f", "dt=10/f"),
        ("a%2Fb/f", "a/b/f"),
        ("p/*x", "p/y"),
    ],
)
def test_pairs_are_compared_as_pairs_never_as_prefixes_or_joined_strings(mine: str, other: str) -> None:
    """Hudi's marker names are joined by underscores; a prefix match there once aborted the wrong job."""
    w = world().intent("A").touch("A", m(mine)).intent("B").touch("B", m(other))

    assert w.aborted == {}


def test_an_unpartitioned_table_has_conflicts_too() -> None:
    """Its partition is the empty string."""
    assert world().intent("A").touch("A", m("/f")).intent("B").touch("B", m("/f")).aborted == {
        "B": "conflict"
    }


def test_a_batch_that_loses_to_an_older_and_meets_a_younger_aborts_only_its_own() -> None:
    """B overlaps A and C; were C aborted as well, its conflict with B would have been for nothing."""
    w = world().intent("A").intent("B").intent("C").touch("A", m("p/a")).touch("C", m("p/c"))

    w.touch("B", m("p/c"), m("p/a"))

    assert w.aborted == {"B": "conflict"}
    assert w.phase("C") is Phase.ACTIVE
    assert {entry.other_transaction for entry in w.one(AbortTransaction).conflicts} == {"A"}


def test_one_abort_carries_every_reason() -> None:
    """B lost to A on two file groups, and to a commit on a third: the retry names all three as its scope."""
    w = world().intent("K").intent("A").intent("B").lock().touch("K", m("p/k")).touch("A", m("p/1"), m("p/2"))
    w.commits("K")

    w.touch("B", m("p/1"), m("p/2"), m("p/k"))

    entries = w.one(AbortTransaction).conflicts
    assert {(e.file_group, e.other_transaction, e.kind) for e in entries} == {
        ("1", "A", "marker"),
        ("2", "A", "marker"),
        ("k", "K", "commit"),
    }
    assert sorted(w.reports) == [("B", "A"), ("B", "K")]


def test_an_older_one_aborts_every_younger_that_it_meets_oldest_first() -> None:
    """A compaction of high priority begins on a partition where several small writers are at work."""
    w = world().intent("A").intent("B").intent("C").touch("B", m("p/1")).touch("C", m("p/2"))

    w.touch("A", m("p/2"), m("p/1"))

    assert [each.transaction for each in w.of(AbortTransaction)] == ["B", "C"]
    assert w.reports == [("B", "A"), ("C", "A")]


def test_in_a_chain_the_end_survives_because_the_middle_is_gone() -> None:
    """A < B < C: B overlaps both; it loses to A, and then C has nobody to lose to."""
    w = world().intent("A").intent("B").intent("C").touch("A", m("p/ab")).touch("B", m("p/ab"))
    assert w.aborted == {"B": "conflict"}

    w.touch("C", m("p/bc"))

    assert w.effects == []
    assert w.lock().commits("A").aborted == {}
    assert w.commits("C").aborted == {}


def test_in_a_chain_that_arrives_from_its_end_each_loses_to_its_own_predecessor_once() -> None:
    """C loses to B; later B loses to A: two conflicts, two victims, no pair in which both were aborted."""
    w = world().intent("A").intent("B").intent("C").touch("C", m("p/bc")).touch("B", m("p/bc"))
    assert w.aborted == {"C": "conflict"}

    w.touch("B", m("p/ab")).touch("A", m("p/ab"))

    assert w.aborted == {"B": "conflict"}


def test_a_transaction_never_conflicts_with_itself() -> None:
    """Task retries, speculation and redelivery write the same markers again, or the same file group otherwise."""
    w = world().intent("A").touch("A", m("p/f"), m("p/f"), m("p/f", "delete")).touch("A", m("p/*"), m("p/f"))

    assert w.aborted == {}
    assert w.state.transactions["A"].markers == 2


def test_a_granted_transaction_is_never_aborted_for_a_conflict() -> None:
    """Its publish may be under way; whoever meets it loses, of whatever priority."""
    w = world().intent("A", priority=-5).touch("A", m("p/f")).lock().request("A").intent("B", priority=5)

    assert w.touch("B", m("p/f")).aborted == {"B": "conflict"}
    w.intent("C", priority=9).touch("C", m("p/g"))
    assert w.touch("A", m("p/g")).aborted == {"C": "conflict"}
    assert w.phase("A") is Phase.GRANTED


def test_a_writer_that_lost_often_enough_wins_next() -> None:
    """A slow job against a stream of fast ones: the fourth time it is the others who yield."""
    w = world(max_losses=3).intent("A").touch("A", m("p/f"))
    for attempt in range(3):
        w.intent(f"S{attempt}", writer="slow").touch(f"S{attempt}", m("p/f"), writer="slow")
        assert w.aborted == {f"S{attempt}": "conflict"}

    assert w.intent("S3", m("p/f"), writer="slow").aborted == {"A": "conflict"}
    assert w.touch("S3", m("p/f"), writer="slow").aborted == {}


def test_a_commit_ends_the_protection() -> None:
    """Otherwise a writer that was unlucky once would beat the others for ever."""
    w = world(max_losses=1).lock().intent("A").touch("A", m("p/f"))
    w.intent("S0", writer="slow").touch("S0", m("p/f"), writer="slow")
    assert w.intent("S1", writer="slow").aborted == {"A": "conflict"}
    w.request("S1", writer="slow").complete("S1", writer="slow")

    w.intent("B").touch("B", m("p/f")).intent("S2", writer="slow").touch("S2", m("p/f"), writer="slow")

    assert w.aborted == {"S2": "conflict"}


def test_only_conflicts_count_as_losses() -> None:
    """A job that is restarted again and again has not lost to anybody."""
    w = world(max_losses=1).intent("A").touch("A", m("p/f"))
    w.intent("S0", writer="s").intent("S1", writer="s").touch("S1", m("p/f"), writer="s")

    assert w.aborted == {"S1": "conflict"}


def test_scope_named_in_an_intent_counts_like_markers() -> None:
    """An optimistic writer that knows its partitions says so at once, and hears at once."""
    w = world().intent("A").touch("A", m("p/f")).intent("B", m("p/f"))

    assert w.admitted == ["B"]
    assert w.aborted == {"B": "conflict"}


def test_a_scope_that_loses_to_one_and_beats_another_aborts_only_its_own() -> None:
    """An intent's scope is a batch of markers like any other: C must not be aborted for B, which is aborted itself."""
    w = world().intent("A", priority=9).touch("A", m("p/a")).intent("C").touch("C", m("p/c"))

    w.intent("B", m("p/a"), m("p/c"), priority=5)

    assert w.aborted == {"B": "conflict"}


def test_a_batch_that_is_committed_already_beats_nobody_with_its_scope() -> None:
    """A replayed micro-batch of high priority has nothing to do: it must not abort those who have."""
    w = world().lock().intent("A", writer="w", batch_id=1, priority=5)
    w.request("A", writer="w").complete("A", writer="w")
    w.intent("B").touch("B", m("p/f"))

    w.intent("A2", m("p/f"), writer="w", batch_id=1, priority=5)

    assert w.aborted == {}
    assert w.phase("B") is Phase.ACTIVE


def test_with_early_detection_off_a_conflict_is_found_when_the_commit_is_requested() -> None:
    """Plain optimistic control, as the table format would do it."""
    w = world(early_detection=False).intent("A").intent("B").lock()
    w.touch("A", m("p/f")).touch("B", m("p/f"))
    assert w.effects == []
    w.commits("B")
    assert w.aborted == {}

    assert w.request("A").aborted == {"A": "conflict"}
    assert w.granted == []


def test_first_committer_lets_markers_abort_nobody() -> None:
    """Policy `first-committer`: whoever is ready first wins."""
    w = world(policy="first-committer").intent("A").intent("B").touch("A", m("p/f")).touch("B", m("p/f"))

    assert w.effects == []


def test_first_committer_aborts_the_others_at_the_grant() -> None:
    """B is ready first: A hears at that moment, not when it asks itself."""
    w = world(policy="first-committer").intent("A").intent("B").lock()
    w.touch("A", m("p/f")).touch("B", m("p/f")).request("B")

    assert w.granted == ["B"]
    assert w.aborted == {"A": "conflict"}


def test_first_committer_yields_to_a_protected_one() -> None:
    """Otherwise a slow writer among fast ones would never be first."""
    w = world(policy="first-committer", max_losses=1).intent("S0", writer="slow").intent("A").lock()
    w.touch("S0", m("p/f"), writer="slow").touch("A", m("p/f")).request("A")
    assert w.aborted == {"S0": "conflict"}
    w.complete("A").intent("S1", writer="slow").intent("B").lock()
    w.touch("S1", m("p/f"), writer="slow").touch("B", m("p/f")).request("B")

    assert w.aborted == {"B": "conflict"}
    assert w.request("S1", writer="slow").granted == ["S1"]


def test_first_committer_still_aborts_who_meets_a_commit() -> None:
    """The base has changed: computing on would be in vain."""
    w = world(policy="first-committer").intent("A").intent("B").lock().touch("A", m("p/f")).commits("A")

    assert w.touch("B", m("p/f")).aborted == {"B": "conflict"}


def test_the_last_markers_may_come_with_the_request() -> None:
    """A driver that learns its files only at the end."""
    w = world().intent("A").touch("A", m("p/f")).intent("B").lock().request("B", m("p/f"))

    assert w.aborted == {"B": "conflict"}
    assert w.granted == []


def test_evidence_is_bounded() -> None:
    """Two full rewrites of a partitioned table: the abort must fit into a record."""
    many = [m(f"p/{n}") for n in range(500)]

    w = world().intent("A").touch("A", *many).intent("B").touch("B", *many)

    assert len(w.one(AbortTransaction).conflicts) == 100
