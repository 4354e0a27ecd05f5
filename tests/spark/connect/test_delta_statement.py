"""Delta's statements on a real server of Spark Connect: each commits only while a living writer allows it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.connect.session import SparkSession

from lakewarden.spark_jobs import BaseChanged, LeaseLost, UnsupportedSpark
from lakewarden.spark_jobs.gate.grant import Grant, PublishOutcome
from lakewarden.spark_jobs.sinks.connect import procedures
from lakewarden.spark_jobs.sinks.connect.procedures import Procedures, as_facts
from lakewarden.spark_jobs.sinks.delta.connect import ServerLog, ServerStatement
from lakewarden.spark_jobs.sinks.delta.log import LastBatches
from lakewarden.spark_jobs.sinks.delta.statement import Write
from tests.spark.connect.server import ConnectServer
from tests.spark.formats import HAS_DELTA
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not HAS_DELTA, reason="Delta's jar comes with other tests"),
]

WRITER = "arrivals:q1"
HOLD_MS = 3_000


@pytest.fixture(scope="module")
def spark(connect: ConnectServer) -> Iterator[Any]:
    session = SparkSession.builder.remote(connect.url).create()
    yield session
    session.stop()  # a client of a server that has ended tries again for minutes


@pytest.fixture
def table(spark: Any, tmp_path: Path) -> str:
    location = str(tmp_path / "flights")
    spark.sql(f"CREATE TABLE delta.`{location}` (day INT, flight BIGINT) USING delta PARTITIONED BY (day)")
    return location


class Statement:
    """A statement of a transaction whose gate grants at once, for so many seconds."""

    def __init__(self, spark: Any, table: str, name: str, *, batch: int = 1, left: float = 20.0) -> None:
        self.reports: list[str | None] = []
        self.grant = Grant(
            "g",
            1,
            check=lambda: left,
            completed=lambda grant: self.reports.append(grant.version),
            failed=lambda *_: False,
        )
        self.request: Callable[[], Grant] = lambda: self.grant
        txn: Any = SimpleNamespace(
            id=name,
            table=table,
            writer=WRITER,
            batch_id=batch,
            check=lambda: None,
            touch_all=lambda _: None,
            request_grant=lambda: self.request(),  # noqa: PLW0108 - a test replaces it
        )
        self.log = ServerLog(spark, table, untried=False)
        self.log.metadata()
        self.statement = ServerStatement(txn, self.log)
        self._target = f"delta.`{table}`"
        self._rows = spark.range(1)

    def execute(self, sql: str) -> None:
        self.statement.execute(Write("sql", self._rows, sql.replace("TABLE_", self._target)), self._target)


INSERT = "INSERT INTO TABLE_ VALUES (1, 7)"


def flights(spark: Any, table: str) -> list[tuple[int, int]]:
    return sorted(
        tuple(row) for row in spark.read.format("delta").load(table).select("day", "flight").collect()
    )


def test_a_statement_is_published_with_its_batch_and_its_label(spark: Any, table: str) -> None:
    first, second = (Statement(spark, table, f"t{batch}", batch=batch) for batch in (1, 2))

    first.execute(INSERT)
    second.execute(
        "MERGE INTO TABLE_ t USING (SELECT 1 day, 7L flight) s ON t.day = s.day WHEN MATCHED THEN DELETE"
    )

    assert (first.reports, second.reports) == (["1"], ["2"])
    assert flights(spark, table) == []
    assert LastBatches().last_batch(first.log, WRITER) == 2
    assert first.log.writers() == [WRITER]
    labels = [
        row[0] for row in spark.sql(f"DESCRIBE HISTORY delta.`{table}`").select("userMetadata").collect()
    ]
    assert labels == ['{"lakewarden.transaction": "t2"}', '{"lakewarden.transaction": "t1"}', None]


def test_a_conflict_of_delta_is_a_changed_base(spark: Any, table: str) -> None:
    Statement(spark, table, "c0").execute(INSERT)
    lost = Statement(spark, table, "c1", batch=2)

    def granted() -> Grant:
        spark.sql(INSERT.replace("7", "8").replace("TABLE_", f"delta.`{table}`"))
        return lost.grant

    lost.request = granted

    with pytest.raises(BaseChanged, match="CONCURRENT_APPEND"):
        lost.execute("UPDATE TABLE_ SET flight = flight + 1 WHERE day = 1")

    assert lost.grant.outcome is PublishOutcome.NOT_PUBLISHED
    assert flights(spark, table) == [(1, 7), (1, 8)]


def test_a_lease_that_has_ended_commits_nothing(spark: Any, table: str) -> None:
    late = Statement(spark, table, "late", left=-1.0)

    with pytest.raises(LeaseLost, match="the lease of transaction late ended before its commit began"):
        late.execute(INSERT)

    assert flights(spark, table) == []
    late.log.delete(late.statement.staged_files)
    assert not list(Path(table).rglob("part-*.parquet"))


# the procedures


@pytest.fixture
def call(spark: Any) -> Procedures:
    return Procedures(spark, "delta")


def begin(call: Procedures, table: str, name: str, *, hold_ms: int = HOLD_MS) -> Callable[[], list[str]]:
    """Begin a statement, and wait until it wants to commit. Return what waits for its end."""
    path = as_facts(call("table", table))["path"][0]
    sql = INSERT.replace("TABLE_", f"delta.`{table}`")
    thread = ThreadPoolExecutor(1)
    running = thread.submit(call, "run", name, path, WRITER, 1, "{}", "sql", "", sql, hold_ms)
    assert as_facts(call("prepared", name, 60_000))["state"] == ["prepared"]
    return running.result


def clock(call: Procedures, name: str) -> int:
    return int(as_facts(call("hold", name))["clock"][0])


@pytest.mark.wide
def test_an_unanswered_statement_ends_by_itself(call: Procedures, spark: Any, table: str) -> None:
    begun = time.monotonic()
    end = begin(call, table, "unanswered")

    facts = as_facts(end())

    assert facts["begun"] == ["false"]
    assert re.search("the writer of transaction unanswered didn't answer for 3000 ms", facts["text"][0])
    assert time.monotonic() - begun < 60
    with pytest.raises(Exception, match="transaction unanswered is ended, and can't be allowed"):
        call("allow", "unanswered", clock(call, "unanswered") + 9_000, 0)
    assert flights(spark, table) == []


def test_what_is_not_waiting_for_its_commit_cannot_be_allowed(
    call: Procedures, spark: Any, table: str
) -> None:
    with pytest.raises(Exception, match="this server has no statement of transaction unbegun"):
        call("allow", "unbegun", 10**15, 0)
    end = begin(call, table, "once", hold_ms=60_000)
    call("allow", "once", clock(call, "once") + 60_000, 60_000)
    end()

    with pytest.raises(Exception, match="transaction once is committed, and can't be allowed"):
        call("allow", "once", 10**15, 0)
    with pytest.raises(Exception, match="this transaction has had its statement: once"):
        call("run", "once", table, WRITER, 2, "{}", "sql", "", "SELECT 1", HOLD_MS)
    assert flights(spark, table) == [(1, 7)]


@pytest.mark.wide
def test_a_second_transaction_in_a_statement_is_refused(call: Procedures, spark: Any, table: str) -> None:
    """Auto compaction begins one after the commit, in the same thread."""
    spark.conf.set("spark.databricks.delta.autoCompact.enabled", "true")
    spark.conf.set("spark.databricks.delta.autoCompact.minNumFiles", "2")
    try:
        for name in ("compact1", "compact2", "compact3"):
            end = begin(call, table, name, hold_ms=60_000)
            call("allow", name, clock(call, name) + 60_000, 60_000)
            end()
    finally:
        spark.conf.unset("spark.databricks.delta.autoCompact.enabled")
        spark.conf.unset("spark.databricks.delta.autoCompact.minNumFiles")

    history = spark.sql(f"DESCRIBE HISTORY delta.`{table}`").select("operation").collect()
    assert [row[0] for row in history] == ["WRITE", "WRITE", "WRITE", "CREATE TABLE"]


@pytest.mark.wide
def test_a_statement_that_writes_another_table_is_refused(call: Procedures, spark: Any, table: str) -> None:
    with pytest.raises(Exception, match="the statement writes another table"):
        call(
            "run",
            "other",
            "file:/other",
            WRITER,
            1,
            "{}",
            "sql",
            "",
            INSERT.replace("TABLE_", f"delta.`{table}`"),
            1,
        )

    assert flights(spark, table) == []


WRITER_PROGRAM = """
import os, sys
from pyspark.errors import PySparkException
from pyspark.sql.connect.session import SparkSession
from lakewarden.spark_jobs.sinks.delta import connect
from tests.spark.connect.test_delta_statement import Statement

url, table, step = sys.argv[1:]
connect.HOLD_SECONDS = 3.0
spark = SparkSession.builder.remote(url).create()
statement = Statement(spark, table, "mortal-" + step)
call = statement.statement._call


def calls(procedure, *arguments):
    if procedure == step:
        print("reached", flush=True)
        sys.stdin.read()
    return call(procedure, *arguments)


statement.statement._call = calls
def granted():
    if step == "granted":
        print("reached", flush=True)
        sys.stdin.read()
    return statement.grant
statement.request = granted
sql = "INSERT INTO TABLE_ SELECT 1, id FROM range(3)"
if step == "computing":
    sql = "INSERT INTO TABLE_ SELECT 1, length(java_method('java.lang.Thread', 'sleep', 9000L))"
    print("reached", flush=True)
statement.execute(sql)
"""


@pytest.mark.wide
@pytest.mark.parametrize("step", ["computing", "hold", "granted", "allow"])
def test_a_statement_outlives_its_writer_and_commits_nothing(
    step: str, connect: ConnectServer, spark: Any, table: str
) -> None:
    """The writer has the client's session, as the process of a query does. Another session has other classes of an added jar."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER_PROGRAM, f"{connect.url}/;session_id={spark.session_id}", table, step],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "reached\n"
        call, name = Procedures(spark, "delta"), f"mortal-{step}"
        wait_until(lambda: _is_begun(call, name))
        program.send_signal(signal.SIGKILL)

    facts = as_facts(call("ended", name, 240_000))

    assert facts["ended"] == ["true"]
    assert facts["begun"] == ["false"]
    assert flights(spark, table) == []


def _is_begun(call: Procedures, name: str) -> bool:
    try:
        return bool(call("ended", name, 0))
    except PySparkException:
        return False


def test_a_server_without_the_procedures_is_refused(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Databricks: the class isn't there, and the session may not add it."""
    monkeypatch.setattr(procedures, "_CLASS", "lakewarden.Absent")
    monkeypatch.setattr(procedures, "_SETTING", "spark.sql.catalog.absent")
    monkeypatch.setattr(procedures, "CATALOG", "absent")

    with pytest.raises(
        UnsupportedSpark,
        match=r"doesn't run lakewarden's procedures for delta.*as on Databricks, write whole statements under the grant",
    ):
        Procedures(spark, "delta")


@pytest.mark.wide
def test_another_release_of_the_jar_is_refused(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procedures, "VERSION", 999)

    with pytest.raises(
        UnsupportedSpark,
        match=r"another lakewarden-connect\.jar, of version \d+; this lakewarden needs version 999",
    ):
        Procedures(spark, "delta")
