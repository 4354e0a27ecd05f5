"""The SQL of an upsert: its partitions as typed literals, Iceberg's transforms among them, and its clauses."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from lakewarden.spark_jobs import DeltaSink, IcebergSink, PaimonSink
from lakewarden.spark_jobs.sinks.iceberg.transforms import PartitionField
from lakewarden.spark_jobs.sinks.partitions import MAX_COMBINATIONS, PartitionColumn, literal, restriction
from lakewarden.spark_jobs.sinks.upsert import Upsert, require_columns


def field(
    name: str, transform: str = "identity", column_type: str = "int", width: int | None = None
) -> PartitionField:
    return PartitionField(f"{name}_{transform}", name, transform, width, column_type, "lake")


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (3, "smallint", "CAST(3 AS smallint)"),
        (True, "boolean", "TRUE"),
        (date(2026, 11, 22), "date", "CAST('2026-11-22' AS date)"),
        (Decimal("1.50"), "decimal(4,2)", "CAST('1.50' AS decimal(4,2))"),
        ("a'b\\", "string", "CAST(X'6127625c' AS string)"),
        ("", "string", "CAST(X'' AS string)"),
        ("+12000-06-01", "date", "CAST('+12000-06-01' AS date)"),
        (-1, "timestamp", "timestamp_micros(-1)"),
        (-1, "timestamp_ntz", "CAST('1969-12-31 23:59:59.999999' AS timestamp_ntz)"),
        ("-Infinity", "float", "CAST('-Infinity' AS float)"),
        ("00FF", "binary", "X'00FF'"),
    ],
)
def test_a_literal_has_the_type_of_its_field(value: Any, kind: str, text: str) -> None:
    assert literal(value, kind) == text


def test_a_value_without_a_literal_is_refused() -> None:
    with pytest.raises(ValueError, match=r"1\.5 is not a value of a partition field of type float"):
        literal(1.5, "float")


def test_an_unpartitioned_table_has_no_restriction() -> None:
    assert restriction([], [()]) is None


def test_a_null_partition_is_named_by_its_column() -> None:
    """Iceberg's transforms are NULL only for NULL, and `days(ts) IS NULL` isn't pushed down."""
    days = field("ts", "day", "timestamp")

    assert restriction([days], [(date(2026, 1, 1),), (None,)]) == (
        "(`lake`.system.days(t.`ts`) IN (CAST('2026-01-01' AS date)) OR t.`ts` IS NULL)"
    )
    assert restriction([days], [(None,)]) == "t.`ts` IS NULL"


def test_nan_and_zeros_are_named_by_themselves_and_a_text_like_them_is_not() -> None:
    """Iceberg pushes down no list with NaN, and Spark 3.5 takes one of two zeros out of a list."""
    number, text = field("n", column_type="double"), field("n", column_type="string")

    assert restriction([number], [("NaN",), ("0.0",), ("-0.0",)]) == (
        "(isnan(t.`n`) OR t.`n` BETWEEN CAST('-0.0' AS double) AND CAST('0.0' AS double))"
    )
    assert restriction([text], [("NaN",), ("0.0",)]) == (
        "t.`n` IN (CAST(X'4e614e' AS string), CAST(X'302e30' AS string))"
    )


def test_combinations_of_values_are_kept_apart() -> None:
    """Otherwise the partition (1, 1) would be part of the MERGE, and its commits would be conflicts."""
    found = restriction([field("a"), field("b", "bucket", "int", 4)], [(1, 2), (2, 1), (2, 3)])

    assert found == (
        "((t.`a` IN (CAST(1 AS int)) AND `lake`.system.bucket(4, t.`b`) IN (CAST(2 AS int)))"
        " OR (t.`a` IN (CAST(2 AS int)) AND `lake`.system.bucket(4, t.`b`) IN (CAST(1 AS int), CAST(3 AS int))))"
    )


def test_too_many_combinations_restrict_each_field_by_itself() -> None:
    partitions = [(number, number) for number in range(MAX_COMBINATIONS + 1)]

    found = restriction([field("a"), field("b")], partitions)

    assert found is not None
    assert found.count("IN (") == 2
    assert " OR " not in found
    assert found.count("CAST(") == 2 * len(partitions)


@pytest.mark.parametrize(
    ("transform", "value", "spelled"),
    [
        ("year", 56, "2026"),
        ("year", -1, "1969"),
        ("month", 682, "2026-11"),
        ("month", -1, "1969-12"),
        ("hour", 498749, "2026-11-24-05"),
        ("hour", -1, "1969-12-31-23"),
        ("day", date(2026, 11, 22), date(2026, 11, 22)),
        ("bucket", 3, 3),
        ("hour", None, None),
        ("hour", 70389533, "10000-01-01-05"),
        ("hour", -17276011, "-001-03-01-05"),
        ("year", 8030, "10000"),
    ],
)
def test_values_are_spelled_as_in_the_paths_of_iceberg(transform: str, value: Any, spelled: Any) -> None:
    assert field("ts", transform, "timestamp").spelled(value) == spelled


def test_a_merge_has_keys_partitions_and_conditions() -> None:
    merge = Upsert(("id",), delete_condition="s.gone", update_condition="s.at > t.at")
    days = field("ts", "day", "timestamp")

    statement = merge.statement(
        "x.y",
        "changes",
        fields=[days],
        partitions=[(date(2026, 1, 1),)],
        required=[],
        assigned=["id", "ts", "at"],
        others={"note": "NULL"},
    )

    assert statement == (
        "MERGE INTO x.y t USING changes s ON "
        "`lake`.system.days(t.`ts`) = `lake`.system.days(s.`ts`) AND t.`id` <=> s.`id` AND "
        "`lake`.system.days(t.`ts`) IN (CAST('2026-01-01' AS date)) "
        "WHEN MATCHED AND (s.gone) THEN DELETE "
        "WHEN MATCHED AND (s.at > t.at) THEN UPDATE SET t.`ts` = s.`ts`, t.`at` = s.`at` "
        "WHEN NOT MATCHED AND NOT coalesce((s.gone), FALSE) THEN INSERT (`id`, `ts`, `at`, `note`) "
        "VALUES (s.`id`, s.`ts`, s.`at`, NULL)"
    )


def test_a_partition_column_is_neither_updated_nor_compared_by_a_function() -> None:
    statement = Upsert(("id",)).statement(
        "delta.`/flights`",
        "changes",
        fields=[PartitionColumn("day", "date")],
        partitions=[(None,)],
        required=[],
        assigned=["id", "day", "note"],
    )

    assert statement == (
        "MERGE INTO delta.`/flights` t USING changes s ON t.`day` <=> s.`day` AND t.`id` <=> s.`id` AND t.`day` IS NULL "
        "WHEN MATCHED THEN UPDATE SET t.`note` = s.`note` "
        "WHEN NOT MATCHED THEN INSERT (`id`, `day`, `note`) VALUES (s.`id`, s.`day`, s.`note`)"
    )


def test_partitions_are_compared_as_they_are_stored_and_keys_as_they_are_given() -> None:
    """The batch's `day` has another type than the table's, and Delta stores an empty text as NULL."""
    statement = Upsert(("id", "day")).statement(
        "x",
        "y",
        fields=[PartitionColumn("day", "date"), PartitionColumn("region", "string", empty_is_null=True)],
        partitions=[("2026-11-22", None)],
        required=[],
        assigned=["id", "day", "region"],
        stored={"day": "stored_day"},
        inexact=["id"],
    )

    assert statement == (
        "MERGE INTO x t USING y s ON t.`day` = s.`stored_day` AND t.`region` <=> nullif(s.`region`, '') "
        "AND t.`id` <=> s.`id` AND t.`day` <=> s.`day` "
        "AND t.`day` IN (CAST('2026-11-22' AS date)) AND t.`region` IS NULL "
        "WHEN MATCHED THEN UPDATE SET t.`id` = s.`id` "
        "WHEN NOT MATCHED THEN INSERT (`id`, `day`, `region`) VALUES (s.`id`, s.`day`, s.`region`)"
    )


def test_keys_that_are_not_null_are_compared_by_the_plain_equality() -> None:
    statement = Upsert(("id", "part")).statement(
        "x", "y", fields=[], partitions=[()], required=["id", "note"], assigned=["id", "part"]
    )

    assert "ON t.`id` = s.`id` AND t.`part` <=> s.`part` WHEN" in statement


def test_a_batch_of_keys_alone_updates_nothing() -> None:
    statement = Upsert(("a`b",)).statement(
        "x", "y", fields=[], partitions=[()], required=[], assigned=["a`b"]
    )

    assert "UPDATE" not in statement
    assert "ON t.`a``b` <=> s.`a``b` WHEN NOT MATCHED" in statement


@pytest.mark.parametrize(
    ("mode", "upsert", "message"),
    [
        ("upsert", Upsert(()), "give `keys` for upsert"),
        ("append", Upsert(("id",)), "only for upsert"),
        ("replace", Upsert(()), "mode 'replace' is none of append, upsert"),
        ("append", Upsert((), delete_condition="s.gone"), "are for upsert, not 'append'"),
    ],
)
def test_options_that_contradict_the_mode_are_refused(mode: str, upsert: Upsert, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        upsert.require_mode(mode)


@pytest.mark.parametrize("sink", [DeltaSink, IcebergSink, PaimonSink])
def test_keys_are_no_text(sink: Any) -> None:
    with pytest.raises(TypeError, match=r"give a list of columns, \['id'\]; table=.*/lake/trips"):
        sink("/lake/trips", mode="upsert", keys="id")


def test_a_batch_may_have_columns_for_the_conditions_and_the_order_only() -> None:
    upsert = Upsert(("id",), order_by="seen", delete_condition="s.gone")

    assert [name for name in ("seen", "GONE", "other") if upsert.may_bring(name)] == ["seen", "GONE"]
    with pytest.raises(ValueError, match=r"the batch lacks columns \['day', 'id'\]"):
        require_columns(["note"], ["id", "day"], "lake")
