"""The executors' functions for tables with a primary key, on real tables on disk, without Spark."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pypaimon.common.options.core_options import CoreOptions

from lakewarden.handlers.paimon.primary_key import first_sequence_number
from lakewarden.spark_jobs import PaimonSink
from lakewarden.spark_jobs.gate.errors import BaseChanged
from lakewarden.spark_jobs.sinks.paimon import sink as paimon_sink
from lakewarden.spark_jobs.sinks.paimon.base import latest_snapshot_id
from lakewarden.spark_jobs.sinks.paimon.primary_key import (
    GROUP,
    grouping_function,
    require_free_numbers,
    require_greater_numbers,
)
from lakewarden.spark_jobs.sinks.paimon.stage import Staging, staging_function
from lakewarden.spark_jobs.sinks.paimon.table import (
    OPTIONS,
    TableAddress,
    address,
    require_supported,
    upsert_rule,
)
from lakewarden.spark_jobs.sinks.paimon.values import arrow_schema, require_python_values
from tests.spark.conftest import commit_alone, create_table, rows_of

KEYS: dict[str, Any] = {"primary_keys": ["day", "flight"], "partition_keys": ["day"]}

FLIGHTS = pa.schema(
    [
        pa.field("day", pa.int32(), nullable=False),
        pa.field("flight", pa.int64(), nullable=False),
        pa.field("gate", pa.string()),
        pa.field("delay", pa.int64()),
        pa.field("kind", pa.string()),
    ]
)

Make = Callable[..., TableAddress]


def require_greater(where: TableAddress, staging: Staging, checked: int) -> int:
    assert staging.first_sequence is not None
    return require_greater_numbers(where.open(), "w", staging.groups, staging.first_sequence, checked)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def make(schema: pa.Schema = FLIGHTS, keys: dict[str, Any] = KEYS, **options: str) -> TableAddress:
        named = {name.replace("__", ".").replace("_", "-"): value for name, value in options.items()}
        return address(create_table(str(tmp_path), "t", schema, options={"bucket": "2"} | named, **keys))

    return make


def flight(
    number: int, gate: str | None = None, delay: int | None = None, kind: str = "+I"
) -> dict[str, Any]:
    return {"day": 1, "flight": number, "gate": gate, "delay": delay, "kind": kind}


def grouped(where: TableAddress, rows: list[dict[str, Any]]) -> pa.Table:
    batch = pa.Table.from_pylist(rows, schema=arrow_schema(where.open())).to_batches()
    return pa.Table.from_batches(list(grouping_function(where)(batch)))


def stage(where: TableAddress, rows: list[dict[str, Any]], first: int | None = None) -> list[Any]:
    """Stage the rows on the newest snapshot, as one task. None: with the numbers that the sink gives."""
    sorted_rows = grouped(where, rows).sort_by(GROUP)
    groups = frozenset(sorted_rows[GROUP].to_pylist())
    number = first_sequence_number(latest_snapshot_id(where.open())) if first is None else first
    staging = Staging(where, "w", 1, "data-x-", None, None, groups=groups, first_sequence=number)
    found = [batch.column(0) for batch in staging_function(staging)(sorted_rows.to_batches())]
    return [pickle.loads(each.as_py()) for column in found for each in column]  # noqa: S301 - our own


def commit(where: TableAddress, messages: list[Any], user: str = "w", identifier: int = 1) -> None:
    builder = where.open().new_stream_write_builder()
    builder.commit_user = user
    builder.new_commit().commit(messages, identifier)


def read(where: TableAddress) -> list[dict[str, Any]]:
    return sorted(rows_of(where.uri), key=lambda row: row["flight"])


def test_a_group_is_partition_and_bucket_as_in_the_file_names(make: Make) -> None:
    where = make()
    rows = [flight(number) for number in range(20)]
    names = {row["flight"]: row[GROUP] for row in grouped(where, rows).to_pylist()}
    assert set(names.values()) == {"day=1/bucket-0", "day=1/bucket-1"}

    commit(where, stage(where, rows))

    root = Path(where.uri.removeprefix("file://"))
    folders = {str(file.parent.relative_to(root)) for file in root.rglob("data-x-*.parquet")}
    assert folders == set(names.values())
    assert [row["flight"] for row in read(where)] == list(range(20))


def test_blank_partitions_are_written_beside_one_another_and_upserted(make: Make) -> None:
    """They share a folder, and so the name of their group."""
    schema = pa.schema([pa.field("p", pa.string(), nullable=False), *list(FLIGHTS)[1:]])
    where = make(schema, {"primary_keys": ["p", "flight"], "partition_keys": ["p"]}, bucket="2")
    texts = ["", " ", "\t ", "a", "__DEFAULT_PARTITION__"]

    for turn, gate in enumerate("ab"):
        rows = [
            {"p": text, "flight": number, "gate": gate, "delay": at, "kind": "+I"}
            for at, text in enumerate(texts)
            for number in range(4)
        ]
        commit(where, stage(where, rows), identifier=turn)

    found = [(row["p"], row["flight"], row["gate"]) for row in rows_of(where.uri)]
    assert sorted(found) == sorted((text, number, "b") for text in texts for number in range(4))


def test_the_later_of_two_transactions_wins_all_keys_although_the_first_wrote_more_rows(make: Make) -> None:
    where = make()
    commit(where, stage(where, [flight(1, f"{n}") for n in range(50)] + [flight(2, "a"), flight(3, "a")]))
    commit(where, stage(where, [flight(1, "b"), flight(2, "b")]), identifier=2)
    assert [row["gate"] for row in read(where)] == ["b", "b", "a"]


def test_of_two_transactions_on_one_snapshot_the_one_with_the_later_turn_wins_all_keys(make: Make) -> None:
    """Both are staged before either is committed. The first has more rows and touches more keys."""
    where = make(rowkind__field="kind", bucket="1")
    assert upsert_rule(where.open()) == "ordered"
    own = [first_sequence_number(0, turn) for turn in (0, 1)]
    first = stage(
        where, [flight(1, f"{n}") for n in range(50)] + [flight(2, "a"), flight(3, "a")], first=own[0]
    )
    second = stage(where, [flight(1, "b"), flight(2, kind="-D")], first=own[1])
    staging = Staging(
        where, "w", 2, None, None, None, groups=frozenset({"day=1/bucket-0"}), first_sequence=own[1]
    )

    commit(where, first)
    assert require_greater(where, staging, -1) == 1
    commit(where, second, identifier=2)
    assert [(row["flight"], row["gate"]) for row in read(where)] == [(1, "b"), (3, "a")]

    with pytest.raises(BaseChanged, match="sequence numbers that aren't smaller"):
        require_greater(where, replace(staging, first_sequence=own[0]), -1)


def test_two_sums_on_one_snapshot_add_up_whatever_their_numbers(make: Make) -> None:
    """Equal numbers in both: no order matters, so neither waits for the other."""
    where = make(
        merge_engine="aggregation",
        bucket="1",
        fields__default_aggregate_function="max",
        fields__delay__aggregate_function="sum",
    )
    assert upsert_rule(where.open()) == "deleted-file"
    first = stage(where, [flight(1, "a", 1), flight(2, "a", 10)])
    second = stage(where, [flight(1, "b", 2), flight(1, "a", 3)])

    commit(where, second)
    commit(where, first, identifier=2)
    assert [(row["gate"], row["delay"]) for row in read(where)] == [("b", 6), ("a", 10)]


def test_a_foreign_writer_is_newer_than_the_transaction_before_it_and_older_than_the_next(make: Make) -> None:
    where = make()
    commit(where, stage(where, [flight(1, "ours"), flight(2, "ours"), flight(3, "ours")]))
    commit_alone(where.uri, [flight(1, "foreign"), flight(2, "foreign")])
    assert [row["gate"] for row in read(where)] == ["foreign", "foreign", "ours"]
    commit(where, stage(where, [flight(1, "next")]), identifier=2)
    assert [row["gate"] for row in read(where)] == ["next", "foreign", "ours"]


def test_a_row_that_a_batch_inserts_and_deletes_is_not_there(make: Make) -> None:
    """pypaimon alone writes 0 as the number of deletes, and readers show the deleted row."""
    where = make(rowkind__field="kind", bucket="1")
    messages = stage(where, [flight(1, "a"), flight(2, "a"), flight(1, "a", kind="-D"), flight(9, kind="-D")])
    assert [file.delete_row_count for message in messages for file in message.new_files] == [2]
    commit(where, messages)
    assert [row["flight"] for row in read(where)] == [2]
    commit(where, stage(where, [flight(2, kind="-D"), flight(1, "again")]), identifier=2)
    assert [(row["flight"], row["gate"]) for row in read(where)] == [(1, "again")]


def test_partial_update_keeps_the_values_that_a_batch_does_not_bring(make: Make) -> None:
    where = make(merge_engine="partial-update")
    commit(where, stage(where, [flight(1, "a"), flight(1, None, 5), flight(1, "b"), flight(2, "a")]))
    commit(where, stage(where, [flight(1, delay=7), flight(2, "c")]), identifier=2)
    assert [(row["gate"], row["delay"]) for row in read(where)] == [("b", 7), ("c", None)]


def test_aggregation_adds_the_rows_of_one_batch_and_of_two(make: Make) -> None:
    where = make(
        merge_engine="aggregation",
        fields__delay__aggregate_function="sum",
        fields__gate__aggregate_function="last_value",
    )
    commit(where, stage(where, [flight(1, "a", 1), flight(1, "b", 2), flight(2, "a", 10)]))
    commit(where, stage(where, [flight(1, "c", 4)]), identifier=2)
    assert [(row["gate"], row["delay"]) for row in read(where)] == [("c", 7), ("a", 10)]


def test_a_sequence_field_decides_before_the_order_of_transactions(make: Make) -> None:
    where = make(sequence__field="delay")
    commit(where, stage(where, [flight(1, "newer", 9), flight(2, "older", 1)]))
    commit(where, stage(where, [flight(1, "older", 8), flight(2, "newer", 1)]), identifier=2)
    assert [row["gate"] for row in read(where)] == ["newer", "newer"]


def test_a_null_in_the_primary_key_is_an_error_that_names_the_column(make: Make) -> None:
    where = make()
    rows = pa.table({"day": [1], "flight": pa.array([None], pa.int64())})
    with pytest.raises(ValueError, match=r"without a value in primary key columns \['flight'\]"):
        list(grouping_function(where)(rows.to_batches()))


@pytest.mark.parametrize(
    "nested", ["itself", "row", "list", "map's keys", "map's values", "list of rows", "row of lists"]
)
@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (pa.array([5_000_000], pa.date32()), "before the year 1 or after 9999"),
        (pa.array([-(10**17)], pa.timestamp("us")), "before the year 1 or after 9999"),
        (
            pa.StringArray.from_buffers(1, pa.array([0, 1], pa.int32()).buffers()[1], pa.py_buffer(b"\xff")),
            "not UTF-8",
        ),
    ],
    ids=["a date", "a timestamp", "a text"],
)
def test_a_value_that_python_lacks_is_an_error_at_any_depth_of_a_table_with_a_key(
    make: Make, nested: str, wrong: pa.Array, error: str
) -> None:
    def in_row(inner: pa.Array) -> pa.Array:
        return pa.StructArray.from_arrays([inner], ["a"])

    def in_list(inner: pa.Array) -> pa.Array:
        return pa.ListArray.from_arrays([0, 1], inner)

    one = pa.array(["k"])
    column = {
        "itself": wrong,
        "row": in_row(wrong),
        "list": in_list(wrong),
        "map's keys": pa.MapArray.from_arrays([0, 1], wrong, one),
        "map's values": pa.MapArray.from_arrays([0, 1], one, wrong),
        "list of rows": in_list(in_row(wrong)),
        "row of lists": in_row(in_list(wrong)),
    }[nested]
    rows = pa.table({"flight": pa.array([1]), "gate": column})
    schema = pa.schema([pa.field("flight", pa.int64(), nullable=False), pa.field("gate", column.type)])

    written = nested == "itself" and column.type == pa.string()
    raises = pytest.raises(ValueError, match=rf"column 'gate'.*{error}|{error}.*column 'gate'")
    with nullcontext() if written else raises:
        require_python_values(rows, make(schema, {"primary_keys": ["flight"]}).open())


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize("key", [float("nan"), -0.0])
def test_a_key_that_pypaimon_orders_otherwise_than_java_is_an_error(
    make: Make, kind: pa.DataType, key: float
) -> None:
    schema = pa.schema([pa.field("flight", kind, nullable=False), pa.field("gate", kind)])
    table = make(schema, {"primary_keys": ["flight"]}).open()

    def of(*keys: float) -> pa.Table:
        return pa.table([pa.array(keys, kind), pa.array([key] * len(keys), kind)], schema=schema)

    require_python_values(of(0.0, -1.5, float("inf"), float("-inf")), table)
    with pytest.raises(ValueError, match=r"column 'flight' has the value NaN or -0\.0"):
        require_python_values(of(1.0, key), table)


def test_rows_for_a_bucket_that_was_not_listed_are_an_error(make: Make) -> None:
    where = make()
    rows = grouped(where, [flight(1)])
    staging = Staging(where, "w", 1, None, None, None, groups=frozenset({"day=2/bucket-0"}), first_sequence=0)
    with pytest.raises(RuntimeError, match="the query is not deterministic"):
        list(staging_function(staging)(rows.to_batches()))
    assert not list(Path(where.uri.removeprefix("file://")).rglob("*.parquet"))


def test_a_table_with_greater_sequence_numbers_than_its_snapshots_give_is_refused(make: Make) -> None:
    where = make()
    require_free_numbers(where.open())
    commit(where, stage(where, [flight(1)]))
    require_free_numbers(where.open())
    commit(where, stage(where, [flight(1)], first=5 << 32), identifier=2)
    with pytest.raises(ValueError, match=r"sequence number 21474836480, more than its 2 snapshots allow"):
        require_free_numbers(where.open())


def test_a_late_put_with_the_same_numbers_is_found_before_the_next_put(make: Make) -> None:
    """Two writers have read one snapshot. One was suspended beyond its grant, and its put came first all the same."""
    where = make(bucket="1")
    commit(where, stage(where, [flight(1, "base")]))
    late, own = (
        stage(where, [flight(1, "late")]),
        Staging(
            where, "w", 2, None, None, None, groups=frozenset({"day=1/bucket-0"}), first_sequence=1 << 32
        ),
    )
    assert require_greater(where, own, -1) == 1
    other_day = [flight(1, "x") | {"day": 2}]
    commit(where, stage(where, other_day), user="other")
    assert require_greater(where, own, -1) == 2

    commit(where, late, user="late")

    with pytest.raises(
        BaseChanged, match=r"commit user 'late' has written day=1/bucket-0 with sequence numbers"
    ):
        require_greater(where, own, 2)
    (Path(where.uri.removeprefix("file://")) / "snapshot" / "snapshot-2").unlink()
    with pytest.raises(BaseChanged, match="a snapshot expired"):
        require_greater(where, own, -1)


def test_tables_modes_and_keys_that_are_refused(make: Make) -> None:
    table = make().open()
    require_supported(table, upsert=True, keys=())
    require_supported(table, upsert=True, keys=["flight"])
    with pytest.raises(ValueError, match="write it with mode='upsert'"):
        require_supported(table, upsert=False, keys=())
    with pytest.raises(ValueError, match=r"aren't the table's primary key \['day', 'flight'\]"):
        require_supported(table, upsert=True, keys=["gate"])


def test_names_of_keys_are_compared_as_the_session_compares_names(make: Make) -> None:
    sink = PaimonSink(make().uri, mode="upsert", keys=["FLIGHT", "Day"])
    ignoring, minding = (
        SimpleNamespace(conf=SimpleNamespace(get=lambda *_, text=text: text)) for text in ("false", "true")
    )
    opened: Any = sink._open
    assert opened(ignoring).primary_keys == ["day", "flight"]
    with pytest.raises(ValueError, match="aren't the table's primary key"):
        opened(minding)


@pytest.mark.parametrize(
    "options",
    [
        {"merge-engine": "aggregation", "fields.delay.aggregate-function": "rbm64"},
        {"merge-engine": "partial-update", "ignore-delete": "true"},
    ],
    ids=["rbm64", "ignore-delete"],
)
def test_tables_that_pypaimon_can_not_write(make: Make, options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="pypaimon can't write this table"):
        require_supported(make(**options).open(), upsert=True, keys=())


def test_what_a_cancelled_tasks_worker_writes_is_removed_by_the_batches_of_the_next_minute(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker may write after the first of them has looked: on a busy machine the retry begins before it."""
    where = make()
    sink, table = PaimonSink(where.uri, mode="upsert"), where.open()
    sink._leftovers.append((("day=1",), "data-x-", time.monotonic()))
    files = Path(where.uri.removeprefix("file://"))

    for _ in range(2):
        stage(where, [flight(1)])
        assert list(files.rglob("data-x-*"))
        sink._sweep_leftovers(table)
        assert not list(files.rglob("data-x-*"))

    later = time.monotonic() + paimon_sink.WORKER_SECONDS
    monkeypatch.setattr("lakewarden.spark_jobs.sinks.paimon.sink.time.monotonic", lambda: later)
    sink._sweep_leftovers(table)
    assert sink._leftovers == []


@pytest.mark.parametrize("option", ["deletion_vectors", "row_tracking", "data_evolution"])
def test_an_upsert_that_would_lose_what_a_table_keeps_of_its_rows_is_refused(make: Make, option: str) -> None:
    options = {f"{option}__enabled": "true"} | ({"row_tracking__enabled": "true"} if "data" in option else {})
    table = make(FLIGHTS, {}, bucket="-1", **options).open()
    require_supported(table, upsert=False, keys=())
    with pytest.raises(ValueError, match=r"an upsert rewrites whole files.*table="):
        require_supported(table, upsert=True, keys=["flight"])


REFUSED_OPTIONS: dict[str, tuple[str, ...]] = {
    "manifest.format": ("orc", "parquet"),
    "manifest.compression": ("lz4", "none"),
    "file.format": ("row", "blob", "csv"),
    "file.compression": ("brotli",),
    "bucket-function.type": ("mod",),
    "branch": ("b",),
    "chain-table.enabled": ("true",),
    "pk-clustering-override": ("TRUE",),
    "ignore-update-before": ("true",),
    "map.storage-layout": ("shared-shredding",),
    "metadata.iceberg.storage": ("table-location", "hive-catalog"),
}
"""Options that change what readers expect, and that pypaimon ignores, or obeys in a way that Java Paimon doesn't read."""


def test_each_option_that_changes_what_readers_expect_is_honoured_or_refused(make: Make) -> None:
    where = make(FLIGHTS, {}, bucket="2", bucket__key="flight")
    table = where.open()
    assert REFUSED_OPTIONS.keys() == {*OPTIONS, "file.compression"}
    plain = dict(table.table_schema.options)
    named = {"fields.gate.map.storage-layout": ("shared-shredding",)}
    for name, values in (REFUSED_OPTIONS | named).items():
        for value in values:
            table.table_schema.options = plain | {name: value}
            with pytest.raises(ValueError, match=rf"{name}={value}\b.*set one of .*; table="):
                require_supported(_reopened(table), upsert=False, keys=())
    for name, (accepted, _) in OPTIONS.items():
        for value in set(accepted) - {"avro"}:
            table.table_schema.options = plain | {name: value.upper()}
            require_supported(_reopened(table), upsert=False, keys=())


def test_options_that_an_append_or_an_upsert_does_not_honour_are_refused(make: Make) -> None:
    table = make(FLIGHTS, {}, bucket="-1").open()
    table.table_schema.options |= {"upsert-key": "flight"}
    require_supported(table, upsert=True, keys=["flight"])
    with pytest.raises(ValueError, match=r"upsert-key=flight.*table="):
        require_supported(table, upsert=False, keys=())
    table.table_schema.options = {"scan.fallback-branch": "b"}
    require_supported(table, upsert=False, keys=())
    with pytest.raises(ValueError, match=r"scan.fallback-branch.*table="):
        require_supported(table, upsert=True, keys=["flight"])


def _reopened(table: Any) -> Any:
    """Return the table with the options of its schema, some of which pypaimon doesn't let a table be created with."""
    table.options = CoreOptions.from_dict(dict(table.table_schema.options))
    return table


LONG_AGO = pa.array([datetime(1500, 1, 1)], pa.timestamp("us"))  # noqa: DTZ001 - without a zone
MISREAD = "before 1677 or after 2262, which pypaimon reads as another one in column 'gate'"
LOST = "which Java Paimon can't keep in ORC in column 'gate'"
NOT_IN_AVRO = "a column that pypaimon doesn't write"
OUT_OF_YEARS = "before the year 1 or after 9999 in column 'gate'"


def _micros(value: int) -> pa.Array:
    return pa.array([value], pa.timestamp("us"))


@pytest.mark.parametrize(
    ("file_format", "column", "refused"),
    [
        pytest.param(
            "parquet", pa.ListArray.from_arrays([0, 1], LONG_AGO), None, id="Parquet has all moments"
        ),
        pytest.param("avro", LONG_AGO, None, id="Avro, too"),
        pytest.param("orc", LONG_AGO, MISREAD, id="ORC has those of 64-bit nanoseconds"),
        pytest.param("orc", pa.ListArray.from_arrays([0, 1], LONG_AGO), MISREAD, id="likewise in arrays"),
        pytest.param("orc", _micros(-1_234_001), LOST, id="not a fraction of a millisecond before 1970"),
        pytest.param("orc", _micros(-500_000), LOST, id="nor one of the last second"),
        pytest.param("orc", _micros(-1_234_000), None, id="ORC has milliseconds before 1970"),
        pytest.param("orc", _micros(1), None, id="and microseconds after"),
        pytest.param("avro", _micros(10**18), OUT_OF_YEARS, id="Avro has Python's years"),
        pytest.param("avro", pa.array([["a", None]]), "no NULL in an array in Avro", id="a NULL in an array"),
        pytest.param(
            "avro", pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())), NOT_IN_AVRO, id="a map"
        ),
        pytest.param("avro", pa.array([0], pa.timestamp("ns")), NOT_IN_AVRO, id="nanoseconds"),
    ],
)
def test_what_pypaimon_misreads_or_cannot_write_is_an_error_that_names_the_table(
    make: Make, file_format: str, column: pa.Array, refused: str | None
) -> None:
    rows = pa.record_batch({"flight": pa.array([1]), "gate": column})
    table = make(rows.schema, {}, file__format=file_format, bucket="-1")
    with nullcontext() if refused is None else pytest.raises(ValueError, match=f"{refused}.*table="):
        require_supported(table.open(), upsert=False, keys=())
        list(staging_function(Staging(table, "user", 1, None, None, None))([rows]))
