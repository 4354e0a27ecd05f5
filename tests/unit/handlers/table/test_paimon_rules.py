"""Paimon's two conflicts as two things: a snapshot id that was taken is none of ours, a file that goes away is.

See https://paimon.apache.org/docs/master/concepts/concurrency-control/ and `conflicts.py`.
"""

from __future__ import annotations

from itertools import permutations

import pytest

from lakewarden.events import Operation
from lakewarden.handlers.table.verdicts import AbortTransaction
from tests.unit.handlers.table.world import World, m, world

RULE = "deleted-file"


def writers(*names: str) -> World:
    """These are open, and the lock is held."""
    w = world()
    for name in names:
        w.intent(name, conflict_rule=RULE)
    return w.lock()


@pytest.mark.parametrize("operation", ["create", "append"])
@pytest.mark.parametrize("order", list(permutations("ABC")), ids="".join)
def test_append_only_writers_never_conflict_in_whatever_order_they_commit(
    order: tuple[str, ...], operation: Operation
) -> None:
    """Each commit takes the snapshot id that the others had in mind; they take the next one, under their own grants."""
    w = writers(*"ABC")
    for name in "ABC":
        w.touch(name, m("p/bucket-0", operation), m("/bucket-1", operation))
        assert w.aborted == {}

    for number, name in enumerate(order):
        w.request(name)
        assert (w.granted, w.aborted) == ([name], {})
        w.complete(name, version=str(number))
        assert w.aborted == {}


def test_a_commit_since_it_began_is_no_conflict_for_who_only_adds() -> None:
    """The snapshot moved on ten times while a slow append computed: its id is preempted, its files are not."""
    w = writers("slow")
    for number in range(10):
        w.intent(f"fast-{number}", conflict_rule=RULE).touch(f"fast-{number}", m("p/bucket-0", "append"))
        w.commits(f"fast-{number}")
        assert w.aborted == {}

    w.touch("slow", m("p/bucket-0", "append"))

    assert w.aborted == {}
    assert w.request("slow").granted == ["slow"]


def test_a_compaction_that_deletes_a_file_stops_who_deletes_it_too_early_and_by_name() -> None:
    """Two compactions of one bucket, long before either commits; the abort names file, partition, and the other user."""
    w = writers("compaction-1", "compaction-2").touch(
        "compaction-1", m("dt=1/bucket-0/data-7.parquet", "delete")
    )

    w.touch("compaction-2", m("dt=1/bucket-0/data-7.parquet", "delete"))

    (entry,) = w.one(AbortTransaction).conflicts
    assert (entry.partition, entry.file_group) == ("dt=1/bucket-0", "data-7.parquet")
    assert (entry.operation, entry.other_operation) == ("delete", "delete")
    assert (entry.other_transaction, entry.other_writer, entry.kind) == (
        "compaction-1",
        "w-compaction-1",
        "marker",
    )


@pytest.mark.parametrize(("mine", "other"), [("delete", "merge"), ("merge", "delete"), ("delete", "delete")])
def test_a_file_that_was_deleted_since_it_began_stops_who_needs_it(mine: Operation, other: Operation) -> None:
    """The other one has committed: Paimon would find it at the commit, and restart the job."""
    w = writers("A", "B").touch("A", m("p/f", other)).commits("A")

    w.touch("B", m("p/f", mine))

    assert w.aborted == {"B": "conflict"}
    assert w.one(AbortTransaction).conflicts[0].kind == "commit"


def test_a_compaction_and_appends_to_its_bucket_run_side_by_side() -> None:
    """The appends write new files; the compaction deletes old ones, which nobody else builds on."""
    w = writers("compaction", "append").touch("compaction", m("p/old-1", "delete"), m("p/new", "create"))

    w.touch("append", m("p/fresh", "create"))

    assert w.aborted == {}
    assert w.commits("append").aborted == {}
    assert w.request("compaction").granted == ["compaction"]


def test_an_overwrite_of_a_partition_stops_who_deletes_in_it_and_nobody_who_adds() -> None:
    """`*` is every file of the partition, for this rule too."""
    w = writers("overwrite", "compaction", "append").touch("overwrite", m("p/*", "delete"))

    assert w.touch("append", m("p/new", "append")).aborted == {}
    assert w.touch("compaction", m("p/old", "delete")).aborted == {"compaction": "conflict"}


def test_with_a_writer_that_does_not_know_the_rule_the_stricter_one_judges() -> None:
    """A job with the default rule on the same table: two adds may be a conflict for it, so they are one."""
    w = world().intent("A", conflict_rule=RULE).intent("B").touch("A", m("p/f", "append"))

    assert w.touch("B", m("p/f", "append")).aborted == {"B": "conflict"}
