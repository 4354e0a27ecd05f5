from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakewarden.agent.demo.contest import TableCheck, compare
from lakewarden.agent.demo.flights import expected_table, load_flights


@pytest.fixture(scope="module")
def expected() -> pa.Table:
    return expected_table(load_flights(days=2))


def without(rows: pa.Table, *flights: int) -> pa.Table:
    return rows.filter(pc.invert(pc.is_in(rows["flight_id"], value_set=pa.array(flights, pa.int32()))))


def only(rows: pa.Table, flight: int) -> pa.Table:
    return rows.filter(pc.equal(rows["flight_id"], flight))


def changed(rows: pa.Table, **columns: object) -> pa.Table:
    for name, value in columns.items():
        column = rows.schema.field(name)
        rows = rows.set_column(
            rows.schema.get_field_index(name), column, pa.array([value] * rows.num_rows, column.type)
        )
    return rows


def test_the_expected_table_itself_is_clean_in_any_order(expected: pa.Table) -> None:
    check = compare(expected.sort_by([("dest", "descending"), ("flight_id", "descending")]), expected)

    assert check.clean
    assert check.expected == expected.num_rows


def test_a_missing_row_is_found(expected: pa.Table) -> None:
    check = compare(without(expected, 7, 8), expected)

    assert (check.missing, check.duplicated, check.wrong) == (2, 0, 0)
    assert not check.clean


def test_a_duplicated_row_is_found(expected: pa.Table) -> None:
    check = compare(pa.concat_tables([expected, only(expected, 7), only(expected, 7)]), expected)

    assert (check.missing, check.duplicated, check.wrong) == (0, 2, 0)


@pytest.mark.parametrize("column", ["dep_time", "arr_time", "tailnum", "month", "time_hour"])
def test_a_wrong_cell_is_found_in_any_column(expected: pa.Table, column: str) -> None:
    wrong = changed(only(expected, 7), **{column: None})

    check = compare(pa.concat_tables([without(expected, 7), wrong]), expected)

    assert (check.missing, check.duplicated, check.wrong) == (0, 0, 1)


def test_a_value_where_nothing_is_expected_is_wrong(expected: pa.Table) -> None:
    cancelled = expected.filter(pc.is_null(expected["dep_time"]))["flight_id"][0].as_py()
    wrong = changed(only(expected, cancelled), arr_time=830)

    check = compare(pa.concat_tables([without(expected, cancelled), wrong]), expected)

    assert check.wrong == 1


def test_a_correct_and_a_wrong_copy_are_one_duplicate_and_one_wrong_flight(expected: pa.Table) -> None:
    check = compare(pa.concat_tables([expected, changed(only(expected, 7), dep_time=1)]), expected)

    assert (check.missing, check.duplicated, check.wrong) == (0, 1, 1)


def test_a_flight_that_is_in_no_feed_is_wrong(expected: pa.Table) -> None:
    check = compare(pa.concat_tables([expected, changed(only(expected, 7), flight_id=999_999)]), expected)

    assert (check.missing, check.duplicated, check.wrong) == (0, 0, 1)


def test_in_an_empty_table_every_row_is_missing(expected: pa.Table) -> None:
    check = compare(expected.schema.empty_table(), expected)

    assert check == TableCheck(expected.num_rows, expected.num_rows, 0, 0)
