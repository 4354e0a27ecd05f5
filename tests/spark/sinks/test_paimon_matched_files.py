"""An upsert of an append table rewrites the files that have its keys, and no other one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakewarden.spark_jobs import CommitReplaced
from lakewarden.spark_jobs.sinks.paimon import matched_files
from lakewarden.spark_jobs.sinks.paimon.base import read_base
from lakewarden.spark_jobs.sinks.paimon.table import address
from tests.spark.conftest import MakeTable, commit_alone, data_files_of, rows_of, snapshots_of
from tests.spark.fake_agent import At, grant_everything
from tests.spark.harness import Harness
from tests.spark.sinks.test_paimon_sink import (
    Frame,
    departures as departures,  # noqa: PLC0414 - a fixture
    replaced_later,
    table as table,  # noqa: PLC0414
    writing,
)

pytestmark = [pytest.mark.real, pytest.mark.wide]


@pytest.fixture(autouse=True)
def _every_file_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matched_files, "SMALL_BYTES", 0)


def many_files(table: str, *files: list[int]) -> None:
    for flights in files:
        rows = [{"month": 1, "day": 1, "flight": flight, "departure": "old"} for flight in flights]
        commit_alone(table, rows)


@pytest.mark.parametrize("admission", ["optimistic", "queued"])
def test_an_upsert_rewrites_only_the_files_that_have_its_keys(
    *, harness: Harness, table: str, departures: Frame, admission: Any
) -> None:
    """Of four files, one has a key of the batch. One is in its range and has none; two are not in its range."""
    harness.agent(grant_everything)
    many_files(table, [1, 2], [20, 30], [25, 40], [70, 80])
    before = data_files_of(table)
    write = writing(harness, table, admission=admission)

    write(departures((1, 1, 25, "new"), (1, 1, 26, "new"), (1, 2, 25, "new")), 0)

    rows = [(row["day"], row["flight"], row["departure"]) for row in rows_of(table)]
    assert sorted(rows) == sorted(
        [(1, flight, "old") for flight in (1, 2, 20, 30, 40, 70, 80)]
        + [(1, 25, "new"), (1, 26, "new"), (2, 25, "new")]
    )
    kept = read_base(address(table).open(), [(1, 1), (1, 2)]).files
    assert len(before & {Path(file).name for file in kept}) == 3
    assert snapshots_of(table)[-1].commit_kind == "OVERWRITE"


def test_partitions_that_share_a_folder_have_files_of_their_own(
    harness: Harness, make_table: MakeTable, spark: SparkSession
) -> None:
    """NULL, the empty text and a blank one. Each has a key out of the range of the others'."""
    harness.agent(grant_everything)
    schema = pa.schema([("day", pa.string()), ("flight", pa.int64()), ("n", pa.int64())])
    table = make_table("blanks", partition_keys=("day",), schema=schema)
    write = writing(harness, table)
    for number in range(2):
        rows = [(None, 1, number), ("", 50, number), (" ", 99, number)]
        write(spark.createDataFrame(rows, "day string, flight long, n long"), number)

    found = [(row["day"], row["flight"], row["n"]) for row in rows_of(table)]
    assert sorted(found, key=lambda row: row[1]) == [(None, 1, 1), ("", 50, 1), (" ", 99, 1)]


def test_an_upsert_of_new_keys_removes_no_large_file(harness: Harness, table: str, departures: Frame) -> None:
    harness.agent(grant_everything)
    many_files(table, [1, 9], [2, 8])
    write = writing(harness, table)

    write(departures((1, 1, 5, "new")), 0)
    write(departures((1, 1, 5, "newer"), (1, 1, 9, "newer")), 1)

    assert [(row["flight"], row["departure"]) for row in rows_of(table)] == [
        (1, "old"),
        (2, "old"),
        (5, "newer"),
        (8, "old"),
        (9, "newer"),
    ]
    assert [snapshot.commit_kind for snapshot in snapshots_of(table)][2:] == ["APPEND", "OVERWRITE"]


def test_a_key_that_a_foreign_writer_inserts_meanwhile_is_found_although_no_file_has_it(
    harness: Harness, table: str, departures: Frame
) -> None:
    """The batch inserts the same key. Without the comparison of whole partitions there would be two rows."""
    many_files(table, [1, 2])
    agent = harness.agent(At("commit-requested", lambda _: many_files(table, [50])))
    writing(harness, table)(departures((1, 1, 50, "mine")), 0)

    assert [(row["flight"], row["departure"]) for row in rows_of(table)] == [
        (1, "old"),
        (2, "old"),
        (50, "mine"),
    ]
    assert agent.wait_for("transaction-abandoned")[0].cause == "base-changed"


def test_a_lost_insert_is_not_committed_again_if_another_writer_has_written_the_partition(
    harness: Harness, table: str, departures: Frame
) -> None:
    """It replaced no file, so its files could be committed. But the other writer may have inserted the same keys."""
    harness.agent(grant_everything)
    commit_alone(table, [{"month": 1, "day": 1, "flight": 1, "departure": "foreign"}])
    replace = replaced_later(table, 1)
    write = writing(harness, table, admission="optimistic", max_attempts=1)
    write(departures((1, 1, 1, "mine")), 0)
    replace()

    with pytest.raises(CommitReplaced, match="files that it was merged with changed"):
        write(departures((1, 2, 2, "b")), 1)

    assert [(row["flight"], row["departure"]) for row in rows_of(table)] == [(1, "foreign")]
