from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import pytest

from lakewarden.agent.demo.flights import (
    FEEDS,
    TABLE_SCHEMA,
    expected_table,
    load_flights,
    write_feeds,
)


@pytest.fixture(scope="module")
def year() -> pa.Table:
    return load_flights()


@pytest.fixture(scope="module")
def feeds(year: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("feeds")
    write_feeds(year, folder, batch_days=5)
    return folder


def read(folder: Path, name: str) -> pa.Table:
    files = sorted((folder / name).iterdir())
    return pa.concat_tables([pyarrow.parquet.read_table(file, schema=FEEDS[name]) for file in files])


def test_the_source_has_all_flights_of_the_year(year: pa.Table) -> None:
    assert year.num_rows == 336_776
    assert pc.count_distinct(year["flight_id"]).as_py() == 336_776


def test_the_natural_key_is_unique_so_the_row_number_hides_no_duplicate(year: pa.Table) -> None:
    key = ["month", "day", "carrier", "flight", "origin"]
    assert year.group_by(key).aggregate([]).num_rows == year.num_rows


def test_every_flight_is_in_exactly_one_file_of_departures(year: pa.Table, feeds: Path) -> None:
    found = read(feeds, "departures").sort_by("flight_id")

    assert found.equals(year.select(FEEDS["departures"].names).cast(FEEDS["departures"]))


def test_every_flight_that_arrived_is_in_exactly_one_file_of_arrivals(year: pa.Table, feeds: Path) -> None:
    found = read(feeds, "arrivals").sort_by("flight_id")

    arrived = year.filter(pc.is_valid(year["arr_time"]))
    assert found.num_rows == 336_776 - 8_713
    assert found.equals(arrived.select(FEEDS["arrivals"].names).cast(FEEDS["arrivals"]))


def test_a_flight_that_never_arrived_has_no_values_in_the_columns_of_arrivals(year: pa.Table) -> None:
    """The expected table has these columns from the source, but the feed doesn't contain these flights."""
    never = year.filter(pc.is_null(year["arr_time"]))

    assert never["arr_delay"].null_count == never["air_time"].null_count == never.num_rows


def test_both_feeds_have_the_files_of_the_days_in_the_same_order(feeds: Path) -> None:
    orders = []
    for name in FEEDS:
        files = sorted((feeds / name).iterdir(), key=lambda file: file.stat().st_mtime)
        assert len({file.stat().st_mtime for file in files}) == len(files) == 730
        orders.append([file.name for file in files])
    assert orders[0] == orders[1]


def test_one_file_in_every_batch_is_late_by_one_two_or_three_batches(feeds: Path) -> None:
    """So a query that is ahead returns to a partition that the other query may be writing."""
    files = sorted((feeds / "departures").iterdir(), key=lambda file: file.stat().st_mtime)
    position = {file.name: number for number, file in enumerate(files)}

    behind = {name: position[name] - position[name.replace("-1.", "-0.")] for name in sorted(position)}

    late = [number for number in behind.values() if number > 2]
    assert len(late) == 73
    assert [round(number / 10) for number in late[:6]] == [1, 2, 3, 1, 2, 3]


def test_a_day_is_one_partition_in_several_files(feeds: Path) -> None:
    files = [feeds / "departures" / f"2013-02-03-{part}.parquet" for part in (0, 1)]
    for file in files:
        rows = pyarrow.parquet.read_table(file)
        assert set(rows["month"].to_pylist()) == {2}
        assert set(rows["day"].to_pylist()) == {3}


def test_days_limits_the_flights_to_the_first_days() -> None:
    flights = load_flights(days=32)

    dates = set(zip(flights["month"].to_pylist(), flights["day"].to_pylist(), strict=True))
    assert len(dates) == 32
    assert max(dates) == (2, 1)


def test_the_first_days_keep_their_flight_ids(year: pa.Table) -> None:
    assert load_flights(days=2).equals(year.slice(0, load_flights(days=2).num_rows))


def test_the_expected_table_has_the_first_flight_of_the_year_as_published(year: pa.Table) -> None:
    """UA 1545 from Newark to Houston: the first row that every nycflights13 tutorial prints."""
    expected = expected_table(year)

    assert expected.schema.equals(TABLE_SCHEMA)
    assert expected.slice(0, 1).to_pylist() == [
        {
            "month": 1,
            "day": 1,
            "flight_id": 0,
            "year": 2013,
            "dep_time": 517,
            "sched_dep_time": 515,
            "dep_delay": 2,
            "sched_arr_time": 819,
            "carrier": "UA",
            "flight": 1545,
            "tailnum": "N14228",
            "origin": "EWR",
            "dest": "IAH",
            "distance": 1400,
            "hour": 5,
            "minute": 15,
            "time_hour": "2013-01-01T10:00:00Z",
            "arr_time": 830,
            "arr_delay": 11,
            "air_time": 227,
        }
    ]
