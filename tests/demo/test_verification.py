from __future__ import annotations

import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakewarden.agent.demo.choices import DemoError
from lakewarden.agent.demo.flights import FEEDS, KEYS, expected_table, load_flights
from lakewarden.agent.demo.table import TablePlace, create_table, local_place, read_table, s3_place
from lakewarden.agent.demo.verification import TableCheck, compare
from tests.servers.s3 import S3Server


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
    assert check.present == check.expected == expected.num_rows


def test_a_missing_row_is_found(expected: pa.Table) -> None:
    check = compare(without(expected, 7, 8), expected)

    assert (check.missing, check.duplicated, check.wrong) == (2, 0, 0)
    assert check.present == expected.num_rows - 2
    assert not check.clean


def test_a_duplicated_row_is_found(expected: pa.Table) -> None:
    check = compare(pa.concat_tables([expected, only(expected, 7), only(expected, 7)]), expected)

    assert (check.missing, check.duplicated, check.wrong) == (0, 2, 0)
    assert check.present == expected.num_rows


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


def test_a_row_without_the_values_of_one_feed_is_counted_for_that_feed(expected: pa.Table) -> None:
    """Queries without an agent produce such rows: one overwrites what the other has just merged."""
    lost = {name: None for name in FEEDS["arrivals"].names if name not in KEYS}
    wrong = changed(only(expected, 7), **lost)

    check = compare(pa.concat_tables([without(expected, 7), wrong]), expected)

    assert check.wrong_by_feed == {"departures": 0, "arrivals": 1}


def test_a_correct_and_a_wrong_copy_are_one_duplicate_and_one_wrong_flight(expected: pa.Table) -> None:
    check = compare(pa.concat_tables([expected, changed(only(expected, 7), dep_time=1)]), expected)

    assert (check.missing, check.duplicated, check.wrong) == (0, 1, 1)


def test_a_flight_that_is_in_no_feed_is_wrong(expected: pa.Table) -> None:
    check = compare(pa.concat_tables([expected, changed(only(expected, 7), flight_id=999_999)]), expected)

    assert (check.missing, check.duplicated, check.wrong) == (0, 0, 1)


def test_in_an_empty_table_every_row_is_missing(expected: pa.Table) -> None:
    check = compare(expected.schema.empty_table(), expected)

    assert check == TableCheck(
        expected.num_rows, 0, expected.num_rows, 0, 0, {"departures": 0, "arrivals": 0}
    )


def write(place: TablePlace, rows: pa.Table) -> None:
    from pypaimon import CatalogFactory

    builder = (
        CatalogFactory.create({"warehouse": place.warehouse, **place.options})
        .get_table("demo.flights")
        .new_batch_write_builder()
    )
    writer = builder.new_write()
    writer.write_arrow(rows)
    builder.new_commit().commit(writer.prepare_commit())
    writer.close()


def test_rows_written_to_the_paimon_table_are_read_back_equal(tmp_path: Path, expected: pa.Table) -> None:
    place = local_place(tmp_path)

    create_table(place)
    assert place.uri == f"file://{tmp_path}/demo.db/flights"
    assert read_table(place).num_rows == 0
    write(place, expected)

    assert compare(read_table(place), expected).clean
    assert (tmp_path / "demo.db/flights/month=1/day=2").is_dir()


@pytest.mark.real
def test_the_table_is_created_and_read_on_a_real_s3_server(
    s3_credentials: S3Server, expected: pa.Table
) -> None:
    bucket = f"lakewarden-demo-{uuid.uuid4().hex[:12]}"
    place = s3_place(s3_credentials.endpoint, bucket, "run-1")

    create_table(place)
    assert place.uri == f"s3://{bucket}/run-1/demo.db/flights"
    write(place, expected)

    assert compare(read_table(place), expected).clean
    again = s3_place(s3_credentials.endpoint, bucket, "run-2")
    assert again.uri == f"s3://{bucket}/run-2/demo.db/flights", "an existing bucket is used"


def test_the_error_for_missing_s3_credentials_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)

    with pytest.raises(DemoError, match="AWS_ACCESS_KEY_ID is not set") as caught:
        s3_place("http://127.0.0.1:1", "lakewarden-demo", "x")
    assert "\n" not in str(caught.value)


def test_the_error_for_an_unreachable_s3_server_is_one_line_with_its_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

    with pytest.raises(DemoError, match=r"the bucket 'b' at http://127\.0\.0\.1:1 can't be used: ") as caught:
        s3_place("http://127.0.0.1:1", "b", "x")
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value).replace("--s3-endpoint and credentials", "")
