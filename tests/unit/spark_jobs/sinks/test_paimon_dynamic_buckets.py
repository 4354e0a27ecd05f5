"""What the executors stage for a table with dynamic buckets, on real tables on disk, without Spark."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakewarden.handlers.maker import Winner
from lakewarden.handlers.paimon.primary_key import first_sequence_number
from lakewarden.spark_jobs.gate.errors import BaseChanged
from lakewarden.spark_jobs.sinks.paimon.base import changed_by, latest_snapshot_id, read_base
from lakewarden.spark_jobs.sinks.paimon.commit import remove_staged, sweep
from lakewarden.spark_jobs.sinks.paimon.primary_key import require_greater_numbers
from lakewarden.spark_jobs.sinks.paimon.stage import Staging, staging_function
from lakewarden.spark_jobs.sinks.paimon.table import TableAddress, upsert_rule
from lakewarden.spark_jobs.sinks.paimon.values import arrow_schema
from tests.unit.spark_jobs.sinks.test_paimon_primary_key import FLIGHTS, Make, commit, flight, make, read

__all__ = ["make"]

TWO_KEYS_A_BUCKET = {"bucket": "-1", "dynamic_bucket__target_row_num": "2"}

DAY = [(1,)]


def staging_on(where: TableAddress, snapshot: int, allowed: str = "day=1") -> Staging:
    first, paths = first_sequence_number(snapshot), frozenset({allowed})
    return Staging(where, "w", 1, "data-x-", None, paths, index_snapshot=snapshot, first_sequence=first)


def stage(
    where: TableAddress, rows: list[dict[str, Any]], snapshot: int | None = None, allowed: str = "day=1"
) -> list[Any]:
    """Stage the rows on a snapshot, by default on the newest one, as one task."""
    on = latest_snapshot_id(where.open()) if snapshot is None else snapshot
    staging = staging_on(where, on, allowed)
    batches = pa.Table.from_pylist(rows, schema=arrow_schema(where.open())).to_batches()
    found = [batch.column(0) for batch in staging_function(staging)(batches)]
    return [pickle.loads(each.as_py()) for column in found for each in column]  # noqa: S301 - our own


def on_disk(where: TableAddress) -> set[str]:
    root = Path(where.uri.removeprefix("file://"))
    return {file.name for file in root.rglob("data-*")}


def test_keys_keep_their_buckets_and_the_later_transaction_wins(make: Make) -> None:
    where = make(**TWO_KEYS_A_BUCKET)
    assert upsert_rule(where.open()) == "file-group"
    commit(where, stage(where, [flight(number, "a") for number in range(9)]))
    commit(where, stage(where, [flight(number, "b") for number in range(12, 3, -1)]), identifier=2)

    expected = {number: "a" if number < 4 else "b" for number in range(13)}
    assert {row["flight"]: row["gate"] for row in read(where)} == expected
    assert len(read(where)) == 13


def test_two_transactions_that_read_one_index_double_keys_and_the_base_shows_it(make: Make) -> None:
    """pypaimon commits both. The sink compares the index files before each put."""
    where = make(**TWO_KEYS_A_BUCKET)
    numbers = list(range(1, 7))
    base = read_base(where.open(), DAY)
    first = stage(where, [flight(number, "a") for number in numbers], snapshot=0)
    second = stage(where, [flight(number, "b") for number in reversed(numbers)], snapshot=0)

    commit(where, first, user="first")
    now = read_base(where.open(), DAY)
    assert now.files != base.files
    assert list(changed_by(where.open(), DAY, base, now)) == [Winner("commit user 'first'", None)]
    with pytest.raises(BaseChanged, match="sequence numbers that aren't smaller"):
        require_greater_numbers(where.open(), "w", {"day=1"}, first_sequence_number(0), -1)

    commit(where, second, identifier=2)
    assert len(read(where)) > len(numbers), "otherwise there was nothing to guard against"


def test_the_base_of_a_partition_is_its_own_index(make: Make) -> None:
    where = make(**TWO_KEYS_A_BUCKET)
    commit(where, stage(where, [flight(1)]))
    base = read_base(where.open(), DAY)
    (name,) = base.files
    assert name.startswith("day=1/bucket-0/data-x-index-")

    commit(where, stage(where, [flight(1, "no new key")]), identifier=2)
    assert read_base(where.open(), DAY).files == base.files
    assert read_base(where.open(), [(2,)]).files == frozenset()


def test_index_files_that_were_staged_in_vain_are_removed(make: Make) -> None:
    where = make(**TWO_KEYS_A_BUCKET)
    commit(where, stage(where, [flight(1)]), user="committed")
    committed = on_disk(where)

    messages = stage(where, [flight(2), flight(3)])
    assert any("index" in name for name in on_disk(where) - committed)
    remove_staged(where.open(), messages)
    assert on_disk(where) == committed

    stage(where, [flight(2), flight(3)])  # of a task whose messages were lost
    lost = on_disk(where) - committed
    assert len(lost) == 4
    for name in committed:  # they have the prefix of another transaction
        (file,) = Path(where.uri.removeprefix("file://")).rglob(name)
        file.rename(file.with_name(f"other-{name}"))
    assert sweep(where.open(), ["day=1"], "data-x-") == 4
    assert on_disk(where) == set()


def staged(where: TableAddress, rows: pa.Table) -> list[Any]:
    return list(staging_function(staging_on(where, 0))(rows.to_batches()))


def test_rows_of_a_partition_that_was_not_listed_are_an_error(make: Make) -> None:
    rows = pa.Table.from_pylist([flight(1) | {"day": 2}], schema=FLIGHTS)
    with pytest.raises(RuntimeError, match=r"rows for partitions \['day=2'\], which it didn't have"):
        staged(make(bucket="-1"), rows)


def test_a_null_in_the_primary_key_is_an_error_that_names_the_column(make: Make) -> None:
    nullable = pa.schema([field.with_nullable(True) for field in FLIGHTS])  # noqa: FBT003 - pyarrow's
    rows = pa.Table.from_pylist([flight(1), flight(2) | {"flight": None}], schema=nullable)
    with pytest.raises(ValueError, match=r"without a value in columns \['flight'\], which are NOT NULL"):
        staged(make(bucket="-1"), rows)


def test_a_table_without_partitions_has_one_index(make: Make) -> None:
    where = make(keys={"primary_keys": ["flight"], "partition_keys": []}, **TWO_KEYS_A_BUCKET)
    commit(where, stage(where, [flight(number) for number in range(5)], allowed=""))
    folders = {name.partition("/")[0] for name in read_base(where.open(), [()]).files}
    assert folders == {"bucket-0", "bucket-1", "bucket-2"}
