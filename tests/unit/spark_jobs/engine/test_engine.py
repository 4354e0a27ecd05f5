"""Which Spark `foreach_batch` refuses, and with which line."""

from __future__ import annotations

import pickle
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest

from lakewarden.spark_jobs import (
    CommitGate,
    HudiSink,
    InvalidArgument,
    UnsupportedSpark,
    table_uri,
)
from lakewarden.spark_jobs.engine.connect import WORKER_VARIABLE, Connect
from lakewarden.spark_jobs.engine.kinds import TRIED_ON_CONNECT


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


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark sets the variable when it creates a session of Spark Connect."""
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    monkeypatch.setattr(pyspark, "__version__", "4.1.9")


@pytest.mark.usefixtures("remote")
@pytest.mark.parametrize("version", ["3.5.9", "4.4.0", "5.0.0"])
def test_releases_that_were_not_tried_on_connect_are_refused(
    version: str, gate: CommitGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)

    with pytest.raises(
        UnsupportedSpark,
        match=rf"Spark Connect of PySpark {version} .* tried with 4\.0, 4\.1, 4\.2, 4\.3 only",
    ):
        gate.foreach_batch(write, writer="w", table="/lake/t")

    assert (4, 1) in TRIED_ON_CONNECT


@pytest.mark.usefixtures("remote")
def test_a_sink_that_needs_the_jvm_is_refused_on_connect() -> None:
    with pytest.raises(
        UnsupportedSpark, match=r"HudiSink is not supported on Spark Connect: .* use DeltaSink, IcebergSink"
    ):
        HudiSink("/lake/t")


@pytest.mark.usefixtures("remote")
def test_a_gate_and_its_function_are_made_again_from_their_arguments_once_per_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with CommitGate("127.0.0.1:1", topic_prefix="p", kafka={"client_id": "me"}, observer=print) as gate:
        functions = [gate.foreach_batch(write, writer=name, table="/lake/t") for name in ("a", "b")]
        first, second = (pickle.loads(pickle.dumps(each)) for each in functions)  # noqa: S301 - its own
        again = pickle.loads(pickle.dumps(first._gate))  # noqa: S301 - likewise

    assert first._gate is second._gate is again
    assert first._gate is not gate
    assert (first._writer, second._writer) == ("a", "b")
    assert first._target == functions[0]._target  # type: ignore[attr-defined]
    assert again.place == gate.place
    assert again.options == gate.options
    again.close()


@pytest.mark.usefixtures("remote")
@pytest.mark.parametrize("name", ["write", "scope", "observer", "kafka"])
def test_what_can_not_be_pickled_is_named_before_the_query_starts(name: str) -> None:
    lock = threading.Lock()

    def locked(*_: object) -> None:
        lock.acquire()

    context = {"security_protocol": "SSL", "ssl_context": ssl.create_default_context()}
    of_gate: dict[str, Any] = {"observer": locked} if name == "observer" else {}
    if name == "kafka":
        of_gate = {"kafka": context}
    scope: Any = locked if name == "scope" else None
    with (
        CommitGate("127.0.0.1:1", **of_gate) as gate,
        pytest.raises(InvalidArgument, match=rf"^{name}=.*can't be pickled .*the paths of certificates"),
    ):
        gate.foreach_batch(locked if name == "write" else write, writer="w", table="/lake/t", scope=scope)


class Session:
    """A session of Connect with the names and ids of the queries that run in it."""

    def __init__(self, *queries: tuple[str | None, str]) -> None:
        active = [SimpleNamespace(name=name, id=number, runId=f"run-{number}") for name, number in queries]
        self.streams = SimpleNamespace(active=active)


@pytest.mark.parametrize(
    ("queries", "found"),
    [
        pytest.param([("w", "1")], "1", id="its own"),
        pytest.param([("other", "1")], "1", id="the only one"),
        pytest.param([(None, "1")], "1", id="the only one, without a name"),
        pytest.param([("other", "1"), ("w", "2"), (None, "3")], "2", id="that with the writer's name"),
        pytest.param([(None, "1"), (None, "2")], r"add \.queryName\('w'\)", id="none has a name"),
        pytest.param([("a", "1"), ("b", "2")], r"\(a, b\)", id="none has the writer's name"),
        pytest.param([("w", "1"), ("w", "2")], r"\(w, w\)", id="two have it"),
        pytest.param([], "no query runs in the session", id="of another session"),
    ],
)
def test_the_query_of_a_batch_on_connect_is_found_or_refused(
    queries: list[tuple[str | None, str]], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WORKER_VARIABLE, "sc://localhost:1")
    batch: Any = SimpleNamespace(sparkSession=Session(*queries))

    if found.isdigit():
        query = Connect().query_of(batch, "w")
        assert query is not None
        assert (query.id, query.run) == (found, f"run-{found}")
        assert Connect().query_of(batch, "w", query) is query
    else:
        with pytest.raises(UnsupportedSpark, match=found):
            Connect().query_of(batch, "w")


def test_a_batch_that_a_client_of_connect_writes_itself_has_no_query() -> None:
    batch: Any = SimpleNamespace(sparkSession=Session(("w", "1")))

    assert Connect().query_of(batch, "w") is None


def test_without_pyspark_a_catalogs_name_is_refused_and_a_uri_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)

    assert table_uri("s3a://lake/t") == "s3://lake/t"
    with pytest.raises(UnsupportedSpark, match=r"the table name .lake\.t., which is neither a URI"):
        table_uri("lake.t")
