"""The workload of `make bench PEERS=…`: the order of the commits must not matter, and every lost batch must show."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from itertools import permutations
from typing import Any

import pytest

from lakewarden.spark_jobs import GateEvent
from tests.bench.peers.compare import wall_rows
from tests.bench.peers.driver import Record
from tests.bench.peers.workload import Workload


def workload(*, writers: int = 2, overlap: bool = True) -> Workload:
    return Workload(writers, overlap, batches=2, rows_per_day=12, rows_per_batch=8, days_per_batch=2)


def committed(sizes: Workload, order: list[tuple[int, int]]) -> dict[int, dict[str, Any]]:
    """The rows of the table by id, after these batches."""
    rows = {row["id"]: row for row in sizes.first_rows().to_pylist()}
    for writer, number in order:
        for row in sizes.batch(writer, number).to_pylist():
            assert rows.get(row["id"], row)["day"] == row["day"], "an update leaves a row in its partition"
            rows[row["id"]] = row
    return rows


def counted(rows: dict[int, dict[str, Any]]) -> Counter[tuple[int, int]]:
    return Counter((row["writer"], row["batch"]) for row in rows.values())


ALL = [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize("overlap", [True, False])
def test_any_order_of_the_writers_gives_the_expected_rows(overlap: bool) -> None:
    sizes = workload(overlap=overlap)
    orders = [order for order in permutations(ALL) if order.index((0, 0)) < order.index((0, 1))]
    orders = [order for order in orders if order.index((1, 0)) < order.index((1, 1))]

    assert len(orders) == 6
    for order in orders:
        assert counted(committed(sizes, list(order))) == sizes.expected()


@pytest.mark.parametrize("lost", ALL)
def test_a_lost_batch_shows(lost: tuple[int, int]) -> None:
    sizes = workload()

    assert counted(committed(sizes, [batch for batch in ALL if batch != lost])) != sizes.expected()


@pytest.mark.parametrize("overlap", [True, False])
def test_writers_share_partitions_only_with_overlap(overlap: bool) -> None:
    sizes = workload(overlap=overlap)
    first, second = (set(sizes.batch(writer, 0).column("day").to_pylist()) for writer in (0, 1))

    assert len(first) == len(second) == sizes.days_per_batch
    assert bool(first & second) == overlap


def test_a_commit_is_recorded_for_its_writer_although_its_name_has_the_query() -> None:
    record = Record()

    for what in ("admitted", "completed"):
        record.observe(GateEvent(0.0, what, "file:///t", "1:query", "transaction", 0, 1))

    assert list(record.commits) == [1]
    assert (len(record.seconds(committed=True)), record.seconds(committed=False)) == (1, [])
    assert record.running() == []


def test_an_attempt_that_was_stopped_is_recorded_once_as_computed_in_vain() -> None:
    record = Record()

    for what in ("admitted", "jobs-stopped", "abandoned"):
        record.observe(GateEvent(0.0, what, "file:///t", "1:query", "transaction", 0, 1))

    assert [(each.name, each.committed) for each in record.attempts] == [("transaction", False)]
    assert not record.commits


def test_the_seconds_from_a_grant_to_its_commit_are_recorded() -> None:
    record = Record()

    for what in ("admitted", "granted", "granted", "completed", "completed"):
        record.observe(GateEvent(0.0, what, "file:///t", "1:query", "transaction", 0, 1))

    assert len(record.grants_held) == 1


def test_wall_and_cpu_times_are_compared_by_the_medians_of_the_runs() -> None:
    sizes = asdict(workload())

    def run(way: str, wall: float, cpu: float, table_format: str = "delta") -> dict[str, Any]:
        run_of = {"format": table_format, "workload": sizes, "way": way}
        return {**run_of, "wall_seconds": wall, "cpu_seconds": cpu}

    runs = [
        run("native", 10.0, 20.0),
        run("auto", 30.0, 9.0),
        run("native", 12.0, 1.0),
        run("auto", 8.0, 10.0),
        run("native", 50.0, 30.0),
    ]

    _, *found = wall_rows([*runs, run("auto", 9.0, 90.0), run("auto", 1.0, 1.0, "hudi")])

    name = "delta, 2 writers, the same partitions, 8 rows a batch"
    assert found == [
        (name, "native", "3", "12.0 s", "1.00", "20.0 s", "1.00"),
        (name, "auto", "3", "9.0 s", "0.75", "10.0 s", "0.50"),
    ]
