"""Paimon's two kinds of conflict. A snapshot conflict aborts nothing; a files conflict does.

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
    """Return a world in which these writers have open transactions and the agent holds the lock."""
    w = world()
    for name in names:
        w.intent(name, conflict_rule=RULE)
    return w.lock()


@pytest.mark.parametrize("operation", ["create", "append"])
@pytest.mark.parametrize("order", list(permutations("ABC")), ids="".join)
def test_append_only_writers_never_conflict_in_any_order_of_commits(
    order: tuple[str, ...], operation: Operation
) -> None:
    """Each commit takes the snapshot id that the others expected. They take the next id, each under its own grant."""
    w = writers(*"ABC")
    for name in "ABC":
        w.touch(name, m("p/bucket-0", operation), m("/bucket-1", operation))
        assert w.aborted == {}

    for number, name in enumerate(order):
        w.request(name)
        assert (w.granted, w.aborted) == ([name], {})
        w.complete(name, version=str(number))
        assert w.aborted == {}


def test_an_append_does_not_conflict_with_appends_committed_since_it_began() -> None:
    """Ten snapshots were committed while a slow append computed. Its snapshot id is outdated, its files are not."""
    w = writers("slow")
    for number in range(10):
        w.intent(f"fast-{number}", conflict_rule=RULE).touch(f"fast-{number}", m("p/bucket-0", "append"))
        w.commits(f"fast-{number}")
        assert w.aborted == {}

    w.touch("slow", m("p/bucket-0", "append"))

    assert w.aborted == {}
    assert w.request("slow").granted == ["slow"]


def test_two_compactions_that_delete_one_file_conflict_before_either_commits() -> None:
    """Two compactions of one bucket. The abort names the file, the partition and the other writer."""
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
def test_a_file_deleted_by_a_commit_aborts_a_transaction_that_needs_it(
    mine: Operation, other: Operation
) -> None:
    """The other transaction has committed. Paimon would find the conflict at the commit and restart the job."""
    w = writers("A", "B").touch("A", m("p/f", other)).commits("A")

    w.touch("B", m("p/f", mine))

    assert w.aborted == {"B": "conflict"}
    assert w.one(AbortTransaction).conflicts[0].kind == "commit"


def test_a_compaction_and_appends_to_its_bucket_do_not_conflict() -> None:
    """The appends create new files. The compaction deletes old files on which no other writer builds."""
    w = writers("compaction", "append").touch("compaction", m("p/old-1", "delete"), m("p/new", "create"))

    w.touch("append", m("p/fresh", "create"))

    assert w.aborted == {}
    assert w.commits("append").aborted == {}
    assert w.request("compaction").granted == ["compaction"]


def test_a_partition_overwrite_conflicts_with_deletes_and_not_with_appends() -> None:
    """`*` covers every file of the partition, also under this rule."""
    w = writers("overwrite", "compaction", "append").touch("overwrite", m("p/*", "delete"))

    assert w.touch("append", m("p/new", "append")).aborted == {}
    assert w.touch("compaction", m("p/old", "delete")).aborted == {"compaction": "conflict"}


def test_the_stricter_rule_applies_against_a_writer_with_the_default_rule() -> None:
    """A job with the default rule on the same table: two appends may conflict for it, so they do."""
    w = world().intent("A", conflict_rule=RULE).intent("B").touch("A", m("p/f", "append"))

    assert w.touch("B", m("p/f", "append")).aborted == {"B": "conflict"}
