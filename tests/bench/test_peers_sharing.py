"""The moment from which a conflict exists, from what the files of two writes have shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakewarden.spark_jobs.sinks.hudi.files import HudiFiles
from tests.bench.peers.sharing import Attempt, Looks, Write, seconds_to_stop
from tests.waiting import wait_until

FIRST, SECOND, THIRD = "20260101000000001", "20260101000000002", "20260101000000003"


def write(
    attempt: str | None, began: float, ended: float | None = None, *, committed: bool = False, **shown: float
) -> Write:
    """`shown`: file groups of the partition `p`, and when they were shown."""
    return Write(attempt, began, {("p", group): at for group, at in shown.items()}, ended, committed)


def committed(name: str, began: float, ended: float) -> Attempt:
    return Attempt(name, began, ended, committed=True)


def lost(name: str, began: float, ended: float) -> Attempt:
    return Attempt(name, began, ended, committed=False)


def test_a_conflict_exists_once_the_second_write_shows_the_file_group() -> None:
    attempts = [committed("a", 0, 9), lost("b", 0, 10)]
    writes = [write("a", 1, 9, committed=True, f=2, g=3), write("b", 1, g=5, h=4)]

    assert seconds_to_stop(attempts, writes) == [5]


def test_the_earliest_of_several_shared_file_groups_counts() -> None:
    attempts = [committed("a", 0, 9), lost("b", 0, 10)]
    writes = [write("a", 1, 9, committed=True, f=6, g=3), write("b", 1, f=2, g=5)]

    assert seconds_to_stop(attempts, writes) == [5]


def test_a_write_that_committed_before_the_loser_shows_a_file_group_counts_if_the_loser_had_begun() -> None:
    attempts = [committed("a", 0, 4), lost("b", 0, 10)]

    assert seconds_to_stop(attempts, [write("a", 1, 4, committed=True, g=3), write("b", 2, g=8)]) == [2]
    assert seconds_to_stop(attempts, [write("a", 1, 4, committed=True, g=3), write("b", 4, g=8)]) == [None]


def test_the_same_name_in_another_partition_is_another_file_group() -> None:
    attempts = [committed("a", 0, 9), lost("b", 0, 10)]
    other = Write("a", 1, {("q", "g"): 2.0}, 9, committed=True)

    assert seconds_to_stop(attempts, [other, write("b", 1, g=5)]) == [None]


def test_a_write_that_failed_before_counts_only_if_there_is_no_other() -> None:
    attempts = [lost("dead", 0, 4), committed("a", 0, 12), lost("b", 0, 10)]
    dead, winner = write("dead", 1, g=2), write("a", 1, 12, committed=True, h=7)

    assert seconds_to_stop(attempts, [dead, winner, write("b", 1, g=3, h=6)]) == [1, 3]
    assert seconds_to_stop(attempts, [dead, winner, write("b", 1, g=3)]) == [1, 7]


def test_a_write_of_no_known_attempt_counts_as_one_that_runs() -> None:
    assert seconds_to_stop([lost("b", 0, 10)], [write(None, 1, g=2), write("b", 1, g=6)]) == [4]


def test_an_attempt_whose_instant_or_conflict_was_not_seen_has_no_figure() -> None:
    attempts = [lost("b", 0, 10), lost("c", 0, 10), committed("a", 0, 9)]

    assert seconds_to_stop(attempts, [write("a", 1, 9, committed=True, g=2), write("c", 1, g=11)]) == [
        None,
        None,
    ]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / ".hoodie/timeline").mkdir(parents=True)
    (tmp_path / ".hoodie/hoodie.properties").write_text("hoodie.table.name=t\nhoodie.table.version=9\n")
    return tmp_path


def mark(table: Path, instant: str, file_group: str) -> None:
    folder = table / ".hoodie/.temp" / instant / "day=1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{file_group}_0-1-2_{instant}.parquet.marker.MERGE").touch()


def test_the_looks_see_requests_markers_and_commits(table: Path) -> None:
    timeline = table / ".hoodie/timeline"
    (timeline / f"{FIRST}.commit.requested").touch()

    with Looks(HudiFiles(table.as_uri()), {FIRST: "a", SECOND: "b"}.get) as looks:
        (timeline / f"{SECOND}.commit.requested").touch()
        mark(table, FIRST, "f")
        wait_until(lambda: looks.writes() and looks.writes()[0].shown)
        mark(table, SECOND, "f")
        wait_until(lambda: len(looks.writes()) == 2 and looks.writes()[1].shown)
        (timeline / f"{FIRST}_{THIRD}.commit").touch()
        wait_until(lambda: looks.writes()[0].committed)
        (timeline / f"{SECOND}.commit.requested").unlink()
        wait_until(lambda: looks.writes()[1].ended)

    first, second = looks.writes()
    assert (first.attempt, second.attempt) == ("a", "b")
    assert list(first.shown) == list(second.shown) == [("day=1", "f")]
    assert first.shown["day=1", "f"] < second.shown["day=1", "f"]
    assert (first.committed, second.committed) == (True, False)
    assert first.ended is not None
    assert second.ended is not None
