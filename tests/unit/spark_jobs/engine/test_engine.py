"""Which Spark `foreach_batch` refuses, and with which line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pyspark
import pytest

from lakewarden.spark_jobs import CommitGate, UnsupportedSpark, table_uri
from lakewarden.spark_jobs.engine.kinds import CONNECT


@pytest.fixture
def gate() -> Iterator[CommitGate]:
    """A gate that connects to nothing."""
    with CommitGate("127.0.0.1:1") as gate:
        yield gate


def write(batch: object, txn: object) -> None:
    """A plain function that writes nothing."""


def test_without_pyspark_foreach_batch_names_the_extra(
    gate: CommitGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)

    with pytest.raises(UnsupportedSpark, match=r"not installed: install lakewarden\[spark\]") as caught:
        gate.foreach_batch(write, writer="w", table="/lake/t")

    assert "gate.transaction(…)" in str(caught.value)
    assert not caught.value.retriable


def test_a_package_that_pyspark_needs_is_reported_as_what_is_missing() -> None:
    """In a process of its own, because it imports a part of PySpark."""
    script = """
import sys

sys.modules["py4j"] = None
from lakewarden.spark_jobs.engine.kinds import require_spark

require_spark("this test")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert done.stderr.splitlines()[-1].startswith("ModuleNotFoundError: No module named 'py4j")
    assert "UnsupportedSpark" not in done.stderr


@pytest.mark.parametrize("version", ["2.4.8", "3.4.4"])
def test_a_spark_without_job_tags_is_refused(
    version: str, gate: CommitGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)

    with pytest.raises(
        UnsupportedSpark, match=rf"PySpark {version} is not supported: .* needs 3\.5 or newer"
    ):
        gate.foreach_batch(write, writer="w", table="/lake/t")


@pytest.mark.parametrize("version", ["3.5.0", "3.5.9", "4.0.5", "4.1.0.dev1", "10.0.0"])
def test_other_versions_are_accepted(version: str, gate: CommitGate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)

    assert callable(gate.foreach_batch(write, writer="w", table="/lake/t"))


def test_a_driver_of_spark_connect_is_refused(gate: CommitGate, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark sets the variable when it creates a session of Spark Connect."""
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")

    with pytest.raises(UnsupportedSpark, match="foreach_batch: Spark Connect is not supported"):
        gate.foreach_batch(write, writer="w", table="/lake/t")


def test_a_batch_of_spark_connect_is_refused(gate: CommitGate) -> None:
    """Its session was created after the function for `foreachBatch`."""
    frame: Any = type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe"})()

    with pytest.raises(UnsupportedSpark) as caught:
        gate.foreach_batch(write, writer="w", table="/lake/t")(frame, 0)

    assert CONNECT in str(caught.value)


def test_without_pyspark_a_catalogs_name_is_refused_and_a_uri_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)

    assert table_uri("s3a://lake/t") == "s3://lake/t"
    with pytest.raises(UnsupportedSpark, match=r"the table name .lake\.t., which is neither a URI"):
        table_uri("lake.t")
