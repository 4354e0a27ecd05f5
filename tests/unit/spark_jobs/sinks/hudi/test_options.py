"""Which of a user's options `HudiSink` refuses, and what it adds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lakewarden.spark_jobs.sinks.hudi.options import (
    FILE_LOCK,
    PROVIDER,
    SQL_EXTRA_METADATA,
    STORAGE_LOCK,
    sql_settings,
    table_options,
    transaction_options,
)

FILE = "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"
ZOOKEEPER = "org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider"


def options(given: dict[str, str] | None = None, **arguments: Any) -> dict[str, str]:
    defaults: dict[str, Any] = {"keys": ["id"], "partition_by": [], "order_by": None, "operation": "upsert"}
    return table_options(name="trips", options=given or {}, **({"local": True} | defaults | arguments))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"hoodie.write.concurrency.mode": "single_writer"}, "optimistic_concurrency_control"),
        ({"hoodie.clean.failed.writes.policy": "EAGER"}, "LAZY"),
        ({"hoodie.cleaner.policy.failed.writes": "EAGER"}, "LAZY"),
        ({"hoodie.write.concurrency.early.conflict.detection.enable": "true"}, "set false"),
        ({"hoodie.write.num.retries.on.conflict.failures": "3"}, "the gate retries"),
        ({"hoodie.compact.inline": "true"}, "a job of its own"),
        ({"hoodie.clustering.inline": "true"}, "a job of its own"),
        ({"hoodie.datasource.clustering.inline.enable": "true"}, "a job of its own"),
        ({"hoodie.datasource.compaction.async.enable": "false"}, "compacts in the writer"),
        ({"hoodie.datasource.write.commitmeta.key.prefix": "meta_"}, "set _"),
        ({"hoodie.datasource.write.operation": "bulk_insert"}, "give operation only"),
        ({"hoodie.datasource.write.recordkey.field": "other"}, "give keys only"),
        ({"hoodie.write.table.version": "6"}, "with Hudi 0.15 only"),
        (
            {"hoodie.write.lock.provider": FILE.replace("FileSystemBased", "InProcess")},
            "only the writers of one process",
        ),
    ],
)
def test_an_option_that_the_gate_cannot_work_with_is_refused(given: dict[str, str], named: str) -> None:
    with pytest.raises(ValueError, match=named) as refused:
        options(given)

    assert "table=trips" in str(refused.value)


def test_bulk_insert_is_refused() -> None:
    with pytest.raises(ValueError, match="use one of upsert, insert, delete, insert_overwrite"):
        options(operation="bulk_insert")


@pytest.mark.parametrize("argument", ["keys", "partition_by"])
def test_columns_are_no_text(argument: str) -> None:
    """Joined with commas, it would be a list of letters."""
    given: dict[str, Any] = {argument: "day"}
    with pytest.raises(TypeError, match=r"give a list of columns, \['day'\]; table=trips"):
        options(**given)


def test_options_that_agree_with_the_gate_are_accepted_in_any_case() -> None:
    assert options({"hoodie.clean.failed.writes.policy": "lazy", "hoodie.compact.inline": "False"})[
        "hoodie.clean.failed.writes.policy"
    ] == ("LAZY")


def test_the_lock_is_in_the_storage_or_in_a_file_or_where_the_user_has_it() -> None:
    assert options(local=False)[PROVIDER] == STORAGE_LOCK
    assert options()[PROVIDER] == FILE_LOCK == FILE
    assert options({PROVIDER: ZOOKEEPER})[PROVIDER] == ZOOKEEPER


def test_the_users_provider_and_callbacks_stay_beside_the_gates() -> None:
    given = {
        "hoodie.write.lock.provider": ZOOKEEPER,
        "hoodie.client.init.callback.classes": "org.example.Callback",
    }

    made = transaction_options(options(given), "t1", json.dumps({"writer": "w"}))

    assert made["hoodie.lakewarden.lock.provider"] == ZOOKEEPER
    assert made["hoodie.write.lock.provider"].endswith("LakewardenLockProvider")
    assert made["hoodie.client.init.callback.classes"].split(",")[0] == "org.example.Callback"
    assert json.loads(made["_lakewarden"]) == {"writer": "w"}


def test_a_table_that_exists_needs_no_keys() -> None:
    made = options(keys=[])

    assert not {
        "hoodie.datasource.write.recordkey.field",
        "hoodie.datasource.write.partitionpath.field",
    } & set(made)


def test_a_sql_statement_gets_the_gates_options_and_keeps_what_its_table_says() -> None:
    write = transaction_options(options({"hoodie.metadata.enable": "false"}), "t", '{"writer": "w"}')

    settings = sql_settings(write)

    assert all(key.startswith("hoodie.") for key in settings)
    assert settings["hoodie.write.lock.provider"].endswith("LakewardenLockProvider")
    assert settings["hoodie.metadata.enable"] == "false"
    assert settings[SQL_EXTRA_METADATA] == '{"writer": "w"}'
    assert SQL_EXTRA_METADATA.startswith(settings["hoodie.datasource.write.commitmeta.key.prefix"])
    assert not {"hoodie.table.name", "hoodie.datasource.write.recordkey.field"} & settings.keys()
    assert "hoodie.datasource.write.operation" not in settings
