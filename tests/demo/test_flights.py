from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import pytest
from flights import FEEDS, TABLE_SCHEMA, expected_table, load_flights, write_feeds


@pytest.fixture(scope="module")
def year() -> pa.Table:
    return load_flights()


@pytest.fixture(scope="module")
def feeds(year: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("feeds")
    write_feeds(year, folder, batch_days=5)
    return folder


def test_the_source_has_all_flights_of_the_year_and_the_row_number_hides_no_duplicate(year: pa.Table) -> None:
    natural_key = ["month", "day", "carrier", "flight", "origin"]
    for key in (["flight_id"], natural_key):
        assert year.group_by(key).aggregate([]).num_rows == year.num_rows == 336_776


@pytest.mark.parametrize("name", FEEDS)
def test_every_flight_of_a_feed_is_in_exactly_one_of_its_files(
    name: str, year: pa.Table, feeds: Path
) -> None:
    """Those that never arrived have no values in the columns of arrivals, and the expected table has them from the source."""
    arrived = pc.is_valid(year["arr_time"])
    never = year.filter(pc.invert(arrived))
    rows = year if name == "departures" else year.filter(arrived)
    files = sorted((feeds / name).iterdir())
    found = pa.concat_tables([pyarrow.parquet.read_table(file, schema=FEEDS[name]) for file in files])

    assert found.sort_by("flight_id").equals(rows.select(FEEDS[name].names).cast(FEEDS[name]))
    assert never["arr_delay"].null_count == never["air_time"].null_count == never.num_rows == 8_713


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


def test_days_limits_the_flights_to_the_first_days_which_keep_their_ids(year: pa.Table) -> None:
    flights, first = load_flights(days=32), load_flights(days=2)

    dates = set(zip(flights["month"].to_pylist(), flights["day"].to_pylist(), strict=True))
    assert (len(dates), max(dates)) == (32, (2, 1))
    assert first.equals(year.slice(0, first.num_rows))


def test_the_expected_table_has_the_first_flight_of_the_year_as_published(year: pa.Table) -> None:
    """UA 1545 from Newark to Houston: the first row that every nycflights13 tutorial prints."""
    expected = expected_table(year)

    assert expected.schema.equals(TABLE_SCHEMA)
    assert tuple(expected.slice(0, 1).to_pylist()[0].values()) == (
        *(1, 1, 0, 2013, 517, 515, 2, 819, "UA", 1545, "N14228", "EWR", "IAH", 1400, 5, 15),
        *("2013-01-01T10:00:00Z", 830, 11, 227),
    )
