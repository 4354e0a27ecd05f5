"""Which log store a Delta table gets, and when the sink has to warn: without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from lakewarden.spark_jobs.sinks.delta.fence import (
    CLASSES,
    INNER,
    LOG_STORE,
    NEIGHBOUR,
    Fence,
    Selection,
    chosen_log_store,
    log_store_of,
    setting_of,
)

DYNAMODB = "io.delta.storage.S3DynamoDBLogStore"


class Java:
    """A Java object of a class."""

    def __init__(self, name: str, **methods: Any) -> None:
        self._name = name
        for method, answer in methods.items():
            setattr(self, method, lambda *_, answer=answer: answer)

    def getClass(self) -> Java:  # noqa: N802 - of Java
        return Java("java.lang.Class", getName=self._name, getSuperclass=None)


def delta_log(log_store: str) -> Java:
    """A `DeltaLog` that has chosen this log store by the scheme."""
    package = "org.apache.spark.sql.delta.storage"
    adaptor = Java(f"{package}.LogStoreAdaptor", logStoreImpl=Java(log_store))
    return Java("DeltaLog", store=Java(f"{package}.DelegatingLogStore", getDelegate=adaptor), logPath="")


def fence(*, needed: bool = True, obstacle: str | None = None, unconditional: bool = False) -> Fence:
    found = Fence.__new__(Fence)
    found._needed, found._obstacle, found._bucket = needed, obstacle, "lake"
    found._class = Java(LOG_STORE, isUnconditional=unconditional)
    return found


@pytest.mark.parametrize(
    "key",
    [
        "spark.delta.logStore.class",
        "delta.logStore.class",
        "spark.delta.logStore.s3a.impl",
        "delta.logStore.s3a.impl",
    ],
)
def test_a_log_store_in_the_spark_configuration_is_the_users_choice(key: str) -> None:
    assert chosen_log_store({key: DYNAMODB}, "s3a") == DYNAMODB


def test_a_log_store_of_another_scheme_and_the_sinks_own_are_no_choice() -> None:
    settings = {"spark.delta.logStore.gs.impl": DYNAMODB, setting_of("s3a"): LOG_STORE}

    assert chosen_log_store(settings, "s3a") is None


def test_the_setting_stays_until_the_last_table_is_open() -> None:
    settings: dict[str, str] = {}
    conf = Java("SparkConf")
    conf.set = settings.__setitem__  # type: ignore[attr-defined]
    conf.remove = settings.pop  # type: ignore[attr-defined]
    selection, setting = Selection(), setting_of("s3a")

    with selection.of(conf, setting):
        with pytest.raises(ValueError, match="no table"), selection.of(conf, setting):
            raise ValueError("no table")
        assert settings == {setting: LOG_STORE}

    assert settings == {}


def test_the_log_store_of_a_delta_log() -> None:
    assert log_store_of(delta_log(LOG_STORE)) == LOG_STORE
    assert log_store_of(Java("DeltaLog", store=Java(DYNAMODB))) == DYNAMODB
    assert log_store_of(Java("DeltaLog")) is None


@pytest.mark.parametrize(
    ("found", "log_store", "gap"),
    [
        (fence(), LOG_STORE, None),
        (fence(needed=False), NEIGHBOUR, None),
        (fence(), NEIGHBOUR, f"Delta has opened the table with another log store, {NEIGHBOUR}"),
        (fence(obstacle="Hadoop 3.3"), NEIGHBOUR, "Hadoop 3.3"),
        (
            fence(unconditional=True),
            LOG_STORE,
            "the store, or this release of Hadoop, has no conditional put",
        ),
    ],
    ids=["the class", "nothing to do", "another log store", "an obstacle", "no conditional put"],
)
def test_the_gap_of_a_transaction(found: Fence, log_store: str, gap: str | None) -> None:
    assert found.gap(delta_log(log_store)) == gap


def test_a_table_is_opened_again_only_if_that_gives_it_the_class() -> None:
    assert not fence().is_kept(delta_log(NEIGHBOUR))
    assert fence().is_kept(delta_log(LOG_STORE))
    assert fence(obstacle="Hadoop 3.3").is_kept(delta_log(NEIGHBOUR))
    assert fence().is_kept(Java("DeltaLog")), "another one wouldn't show its log store either"


def test_each_compiled_class_is_defined() -> None:
    name = LOG_STORE.rpartition(".")[2]

    assert {path.stem for path in CLASSES.iterdir()} == {name, *(f"{name}${inner}" for inner in INNER)}
