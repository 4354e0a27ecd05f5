"""Iceberg's staged commits on a real server of Spark Connect: each is published only while a living writer allows it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.connect.session import SparkSession

from lakewarden.spark_jobs import BaseChanged, LeaseLost
from lakewarden.spark_jobs.gate.errors import LostToGate
from lakewarden.spark_jobs.gate.grant import Grant, PublishOutcome
from lakewarden.spark_jobs.sinks.connect.procedures import Procedures
from lakewarden.spark_jobs.sinks.iceberg.connect import ServerCatalog, ServerStagedTable
from lakewarden.spark_jobs.sinks.iceberg.metadata import find_commit
from tests.spark.connect.server import ConnectServer
from tests.spark.formats import HAS_ICEBERG, iceberg_name
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not HAS_ICEBERG, reason="Iceberg's jar comes with other tests"),
]

WRITER = "arrivals:q1"


@pytest.fixture(scope="module")
def spark(connect: ConnectServer) -> Iterator[Any]:
    session = SparkSession.builder.remote(connect.url).create()
    yield session
    session.stop()  # a client of a server that has ended tries again for minutes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "warehouse" / "air" / "flights"


@pytest.fixture
def table(spark: Any, folder: Path) -> str:
    name = iceberg_name(spark, folder)
    spark.sql(f"CREATE TABLE {name} (day INT, flight BIGINT) USING iceberg PARTITIONED BY (day)")
    spark.sql("INSERT INTO TABLE_ VALUES (1, 1)".replace("TABLE_", name))
    return name


def grant_of(seconds_left: float = 20.0) -> Grant:
    return Grant("g", 1, check=lambda: seconds_left, completed=lambda _: None, failed=lambda *_: False)


def staged(spark: Any, table: str, name: str, sql: str, *, batch: int = 1) -> ServerStagedTable:
    """Stage a statement, in which `TABLE_` is the table."""
    properties = {
        "lakewarden.transaction": name,
        "lakewarden.writer": WRITER,
        "lakewarden.batch": str(batch),
    }
    found = ServerCatalog(spark, table, untried=False).stage(properties, validated=sql.startswith("MERGE"))
    with found.named(spark) as target:
        spark.sql(sql.replace("TABLE_", target)).collect()
    found.staged()
    return found


INSERT = "INSERT INTO TABLE_ VALUES (1, 7)"
MERGE = (
    "MERGE INTO TABLE_ t USING (SELECT 1 day, 1L flight) s ON t.day = s.day AND t.flight = s.flight AND t.day IN (1) "
    "WHEN MATCHED THEN UPDATE SET flight = 9"
)


CREATED_AGAIN = [
    "DROP TABLE TABLE_",
    "CREATE TABLE TABLE_ (day INT, flight BIGINT) USING iceberg PARTITIONED BY (day)",
    "INSERT INTO TABLE_ VALUES (1, 3)",
]
"""In a Hadoop catalog, whose new metadata file has the same name."""


def flights(spark: Any, table: str) -> list[int]:
    spark.sql(f"REFRESH TABLE {table}")
    return sorted(row.flight for row in spark.table(table).collect())


def files(folder: Path) -> int:
    return len(list(folder.rglob("*.parquet")))


def test_what_is_staged_is_published_by_one_swap_with_its_batch(spark: Any, table: str) -> None:
    commit = staged(spark, table, "t1", INSERT)
    assert flights(spark, table) == [1], "no reader sees what is staged"

    version = commit.publish(grant_of())

    assert flights(spark, table) == [1, 7]
    now = ServerCatalog(spark, table, untried=False).load()
    assert now.metadata.newest is not None
    assert version == str(now.metadata.newest.id) == find_commit(now.metadata, now.name, WRITER, 1)


@pytest.mark.parametrize(
    ("sql", "meanwhile", "reason", "flown"),
    [
        pytest.param(INSERT, ["INSERT INTO TABLE_ VALUES (1, 5)"], None, [1, 5, 7], id="append"),
        pytest.param(MERGE, ["INSERT INTO TABLE_ VALUES (2, 5)"], None, [5, 9], id="upsert elsewhere"),
        pytest.param(
            MERGE,
            ["UPDATE TABLE_ SET flight = 5"],
            r"conflicts with a commit without the gate's label \(snapshot \d+: overwrite, spark",
            [5],
            id="conflict",
        ),
        pytest.param(
            INSERT, ["ALTER TABLE TABLE_ ADD COLUMN note STRING"], "columns or partition", [1], id="layout"
        ),
        pytest.param(INSERT, CREATED_AGAIN, "dropped and created again", [3], id="created again"),
        pytest.param(INSERT, CREATED_AGAIN[:1], "the table was dropped", None, id="dropped"),
    ],
)
def test_what_came_between_staging_and_publish_is_judged(
    *, spark: Any, table: str, sql: str, meanwhile: list[str], reason: str | None, flown: list[int] | None
) -> None:
    commit = staged(spark, table, f"meanwhile {meanwhile}", sql)
    for statement in meanwhile:
        spark.sql(statement.replace("TABLE_", table)).collect()
    grant = grant_of()

    if reason is None:
        commit.publish(grant)
    else:
        with pytest.raises(BaseChanged, match=reason):
            commit.publish(grant)
        assert grant.outcome is PublishOutcome.NOT_PUBLISHED

    if flown is not None:
        assert flights(spark, table) == flown


def test_a_commit_of_the_same_writer_refuses_one_that_was_staged_before_it(spark: Any, table: str) -> None:
    """As when the swap of a dead process is carried out after its successor has looked the batch up."""
    successor = staged(spark, table, "successor", INSERT)
    staged(spark, table, "of-the-dead", INSERT).publish(grant_of())

    with pytest.raises(LostToGate, match="another commit of this writer came after its batch was looked up"):
        successor.publish(grant_of())

    assert flights(spark, table) == [1, 7]


def test_a_lease_that_has_ended_publishes_nothing_and_the_files_are_removed(
    spark: Any, table: str, folder: Path
) -> None:
    before = files(folder)
    late = staged(spark, table, "late", INSERT)
    assert files(folder) == before + 1

    with pytest.raises(LeaseLost, match="the lease ended before the server of Spark Connect began the swap"):
        late.publish(grant_of(-1.0))
    late.discard()

    assert flights(spark, table) == [1]
    assert files(folder) == before


def test_a_publish_without_an_answer_is_closed_and_one_that_comes_later_is_refused(
    spark: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = staged(spark, table, "unanswered", INSERT)
    call, held = Procedures.__call__, []

    def lost(procedures: Procedures, procedure: str, *arguments: Any) -> list[str]:
        if procedure == "publish":
            held.append(arguments)
            raise OSError("the connection was reset")
        return call(procedures, procedure, *arguments)

    monkeypatch.setattr(Procedures, "__call__", lost)
    grant = grant_of()
    with pytest.raises(OSError, match="the connection was reset"):
        commit.publish(grant)
    monkeypatch.undo()

    assert grant.outcome is PublishOutcome.NOT_PUBLISHED
    with pytest.raises(Exception, match="this commit is closed, and can't be published"):
        Procedures(spark, "iceberg")("publish", *held[0])
    assert flights(spark, table) == [1]


def test_a_publish_whose_answer_is_lost_is_unknown(
    spark: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate looks the batch up then."""
    commit = staged(spark, table, "lost", INSERT)
    call = Procedures.__call__

    def lost(procedures: Procedures, procedure: str, *arguments: Any) -> list[str]:
        answer = call(procedures, procedure, *arguments)
        if procedure == "publish":
            raise OSError("the connection was reset")
        return answer

    monkeypatch.setattr(Procedures, "__call__", lost)
    grant = grant_of()
    with pytest.raises(RuntimeError, match="the swap of the table's metadata: the connection was reset"):
        commit.publish(grant)

    assert grant.outcome is PublishOutcome.UNKNOWN
    assert flights(spark, table) == [1, 7]


def test_what_was_not_staged_or_is_published_cannot_be_published(spark: Any, table: str) -> None:
    published = staged(spark, table, "once", INSERT)
    published.publish(grant_of())
    call = Procedures(spark, "iceberg")

    for name in ("once", "unbegun"):
        with pytest.raises(Exception, match=f"this server has nothing staged of transaction {name}"):
            call("publish", name, table, "v1.metadata.json", "k", "{", "", 10**15)

    assert flights(spark, table) == [1, 7]


WRITER_PROGRAM = """
import sys
from pyspark.sql.connect.session import SparkSession
from lakewarden.spark_jobs.sinks.connect.procedures import Procedures
from tests.spark.connect.test_iceberg_commit import grant_of, staged

url, table, step = sys.argv[1:]
spark = SparkSession.builder.remote(url).create()
call = Procedures.__call__


def calls(procedures, procedure, *arguments):
    if procedure == step:
        print("reached", flush=True)
        sys.stdin.read()
    return call(procedures, procedure, *arguments)


Procedures.__call__ = calls
sql = "INSERT INTO TABLE_ SELECT 1, 7L"
if step == "computing":
    sql = "INSERT INTO TABLE_ SELECT 1, length(java_method('java.lang.Thread', 'sleep', 5000L))"
    print("reached", flush=True)
staged(spark, table, "mortal-" + step, sql).publish(grant_of())
"""


@pytest.mark.wide
@pytest.mark.parametrize("step", ["computing", "staged", "publish"])
def test_a_statement_outlives_its_writer_and_publishes_nothing(
    step: str, connect: ConnectServer, spark: Any, table: str, folder: Path
) -> None:
    """The writer has the client's session, as the process of a query does."""
    before = files(folder)
    with subprocess.Popen(
        [sys.executable, "-c", WRITER_PROGRAM, f"{connect.url}/;session_id={spark.session_id}", table, step],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "reached\n"
        call, name = Procedures(spark, "iceberg"), f"mortal-{step}"
        wait_until(lambda: _is_staged(call, name))
        program.send_signal(signal.SIGKILL)

    wait_until(lambda: files(folder) == before + 1)
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(call, "close", name).result() == ["state\tclosed"]
    assert flights(spark, table) == [1]


def _is_staged(call: Callable[..., list[str]], name: str) -> bool:
    try:
        return bool(call("now", name))
    except Exception:  # noqa: BLE001 - it isn't yet
        return False
