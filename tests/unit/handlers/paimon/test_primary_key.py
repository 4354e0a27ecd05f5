"""Which tables with a primary key are refused, and which sequence numbers their rows get."""

from __future__ import annotations

import pytest

from lakewarden.handlers.paimon.primary_key import (
    PrimaryKeyTable,
    commutes,
    conflict_rule,
    first_sequence_number,
    missing_columns,
    refusal,
)


def table(partition_keys: tuple[str, ...] = ("day",), **options: str) -> PrimaryKeyTable:
    """Options have `_` for `-`, and `__` for `.`."""
    named = {name.replace("__", ".").replace("_", "-"): value for name, value in options.items()}
    return PrimaryKeyTable(("day", "flight"), partition_keys, {"bucket": "2"} | named)


@pytest.mark.parametrize(
    "accepted",
    [
        table(),
        table(partition_keys=()),
        table(bucket="-1"),
        PrimaryKeyTable(("flight",), (), {}),
        table(merge_engine="deduplicate", rowkind__field="kind", sequence__field="version"),
        table(merge_engine="partial-update"),
        table(merge_engine="aggregation", fields__n__aggregate_function="sum"),
        table(changelog_producer="lookup", deletion_vectors__enabled="false"),
    ],
    ids=lambda each: f"{each.partition_keys} {dict(each.options)}",
)
def test_tables_that_are_written(accepted: PrimaryKeyTable) -> None:
    assert refusal(accepted) is None


@pytest.mark.parametrize(
    ("refused", "reason", "remedy"),
    [
        (table(bucket="-2"), "invisible until a compaction", "fixed bucket"),
        (table(partition_keys=("month",)), "lacks partition columns", "add the partition columns"),
        (table(bucket_function__type="mod"), "bucket function", "bucket-function.type=default"),
        (table(merge_engine="first-row"), "merge engine", "aggregation, deduplicate, partial-update"),
        (table(deletion_vectors__enabled="true"), "deletion vectors", "deletion-vectors.enabled=false"),
        (table(fields__version__sequence_group="gate"), "sequence groups", "sequence.field"),
        (
            table(merge_engine="partial-update", partial_update__remove_record_on_delete="true"),
            "can't merge deletes",
            "remove-record-on-",
        ),
        (table(merge_engine="aggregation", rowkind__field="kind"), "can't merge deletes", "deduplicate"),
        (table(changelog_producer="input"), "changelog", "lookup"),
        (table(data_file__thin_mode="true"), "layout", "data-file.thin-mode"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_tables_that_are_refused_with_a_reason_and_a_remedy(
    refused: PrimaryKeyTable, reason: str, remedy: str
) -> None:
    answer = refusal(refused)
    assert answer is not None
    found, _, to_do = answer.partition("; ")
    assert reason in found
    assert remedy in to_do


def test_a_later_snapshot_gives_greater_numbers_to_all_rows() -> None:
    assert first_sequence_number(0) == 0
    most_rows = 2**32 - 1
    assert first_sequence_number(7) + most_rows < first_sequence_number(8)
    assert first_sequence_number(2**31 - 1) + most_rows == 2**63 - 1, "Java's greatest long"


def test_only_an_engine_that_keeps_values_takes_rows_with_missing_columns() -> None:
    columns = ["day", "flight", "gate", "arrival"]
    assert missing_columns(table(), columns, ["day", "flight", "gate"]) == ["arrival"]
    assert missing_columns(table(merge_engine="partial-update"), columns, ["day", "flight"]) == []
    assert missing_columns(table(merge_engine="aggregation"), columns, ["flight", "gate"]) == ["day"]


def test_of_two_transactions_on_one_snapshot_the_later_turn_has_the_greater_numbers() -> None:
    """The turns of a thousand open transactions begin again: those that come too early are computed again (rule 4)."""
    numbers = [first_sequence_number(7, turn) for turn in range(256)]
    assert numbers == sorted(set(numbers))
    assert first_sequence_number(7) == numbers[0] == first_sequence_number(7, 256)
    assert numbers[-1] + 2**24 - 1 < first_sequence_number(8, 0)


VALUES = {"day": "INT NOT NULL", "flight": "BIGINT NOT NULL", "n": "BIGINT", "late": "BOOLEAN"}


def aggregating(types: dict[str, str] = VALUES, **options: str) -> PrimaryKeyTable:
    given = table(("day",), merge_engine="aggregation", **options)
    return PrimaryKeyTable(given.primary_key, given.partition_keys, given.options, types)


@pytest.mark.parametrize(
    ("expected", "aggregated"),
    [
        (True, aggregating(fields__n__aggregate_function="sum", fields__late__aggregate_function="bool_or")),
        (True, aggregating(fields__default_aggregate_function="max")),
        (True, aggregating(fields__default_aggregate_function="product")),
        (True, aggregating({**VALUES, "n": "DECIMAL(9, 2)"}, fields__default_aggregate_function="sum")),
        (False, aggregating(fields__n__aggregate_function="sum")),
        (False, aggregating(fields__default_aggregate_function="last_value")),
        (
            False,
            aggregating(fields__default_aggregate_function="sum", fields__n__aggregate_function="listagg"),
        ),
        (False, aggregating(fields__default_aggregate_function="sum", sequence__field="n")),
        (False, aggregating({**VALUES, "n": "DOUBLE"}, fields__default_aggregate_function="sum")),
        (False, aggregating({**VALUES, "n": "DOUBLE"}, fields__default_aggregate_function="min")),
        (False, aggregating({**VALUES, "n": "FLOAT NOT NULL"}, fields__default_aggregate_function="product")),
        (False, PrimaryKeyTable(("day",), (), {"fields.default-aggregate-function": "sum"}, VALUES)),
    ],
    ids=lambda value: f"{value}" if isinstance(value, bool) else f"{dict(value.options)} {value.types['n']}",
)
def test_only_functions_for_which_no_order_matters_commute(
    *, expected: bool, aggregated: PrimaryKeyTable
) -> None:
    """A column without a function takes the last value. Floats never do: sums are rounded, and pypaimon doesn't order NaN."""
    assert commutes(aggregated) is expected


@pytest.mark.parametrize(
    ("rule", "written"),
    [
        ("ordered", table()),
        ("deleted-file", aggregating(fields__default_aggregate_function="sum", bucket="2")),
        ("file-group", table(bucket="-1")),
        ("file-group", PrimaryKeyTable(("flight",), (), {})),
        ("file-group", aggregating(fields__default_aggregate_function="sum", bucket="-1")),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{dict(value.options)}",
)
def test_with_dynamic_buckets_two_upserts_of_a_partition_conflict_whatever_the_engine(
    rule: str, written: PrimaryKeyTable
) -> None:
    assert conflict_rule(written) == rule
