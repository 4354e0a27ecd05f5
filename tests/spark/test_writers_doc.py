"""docs/first-jobs.md, docs/writers.md and docs/recipes.md: every block runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trustme
from pypaimon import CatalogFactory, Schema
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.printed import as_shown
from tests.processes import run_command, running_agent
from tests.spark.conftest import MakeTable, rows_of
from tests.spark.connect.server import connect_server
from tests.spark.fake_agent import grant_everything
from tests.spark.formats import HAS_HUDI, JARS, iceberg_name
from tests.spark.harness import Harness
from tests.spark.plain_python import plain_environment
from tests.unit.events.access.certificates import write_certificate
from tests.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT = (DOCS / "writers.md").read_text()
RECIPES = (DOCS / "recipes.md").read_text()
FLIGHTS = "month int, day int, flight long, departure string, arrival string"


def blocks(page: str = TEXT) -> list[str]:
    found = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(found) == page.count("```python")
    return found


def test_every_block_runs_in_the_order_of_the_page(
    harness: Harness, spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    """With the test's broker and table in place of the page's, and real streams."""
    agent, table = harness.agent(grant_everything), make_table()
    published: dict[tuple[str, int], str] = {}
    discarded: list[str] = []

    def publish(_staged: object, *key: Any) -> str:
        version = str(len(published) + 1)
        published[key or ("by hand", len(published))] = version
        return version

    def merge(before: Callable[[], None], after: Callable[[str], None]) -> None:
        before()
        after("in a callback")

    def stream(name: str, column: str) -> DataFrame:
        schema = f"month int, day int, flight long, {column} string"
        source = str(tmp_path / name)
        spark.createDataFrame([(1, 1, 10, name)], schema).coalesce(1).write.parquet(source)
        return spark.readStream.schema(schema).parquet(source)

    names: dict[str, Any] = {
        "spark": spark,
        "flights": stream("flights", "arrival"),
        "corrections": stream("corrections", "departure"),
        "clicks": stream("clicks", "departure"),
        "late": stream("late", "departure"),
        "compute": lambda: "staged",
        "publish": publish,
        "discard": discarded.append,
        "merge": merge,
        "version_of": lambda writer, batch_id: published.get((writer, batch_id)),
    }
    broker = f'CommitGate("{harness.kafka.bootstrap_servers}", topic_prefix="{harness.prefix}"'
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    write_certificate(authority, tmp_path, "client")
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "checkpoints"))
    try:
        for block in blocks():
            here = block.replace('CommitGate("kafka:9092"', broker).replace("s3://lake/air.db/flights", table)
            here = here.replace("/etc/kafka", str(tmp_path))
            names.pop("query", None)
            exec(compile(here, "docs/writers.md", "exec"), names)  # noqa: S102 - a page of this repository
            if query := names.get("query"):
                query.processAllAvailable()
                query.stop()
                query.awaitTermination()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
        for name in ("gate", "guarded"):
            names[name].close()

    assert [(row["departure"], row["arrival"]) for row in rows_of(table)] == [("late", "flights")]
    completed = {event.writer.partition(":")[0]: event for event in agent.wait_for("commit-completed", 10)}
    assert set(completed) == {"arrivals", "corrections", "late", "later", "ingest", "compaction", "web"}
    for writer in ("corrections", "late", "later"):
        queued = next(e for e in agent.wait_for("commit-intent", 9) if e.writer.partition(":")[0] == writer)
        assert [marker.partition for marker in queued.scope] == ["month=1/day=1"]
    assert "in a callback" in {event.version for event in agent.wait_for("commit-completed", 9)}
    assert discarded == [], "everything was committed"
    assert completed["web"].version == published[(completed["web"].writer, 0)]
    assert "file-group-4" in {m.file_group for e in agent.wait_for("marker-created") for m in e.markers}


@pytest.mark.wide
@pytest.mark.parametrize("by_connect", [False, pytest.param(True, marks=pytest.mark.matrix)])
def test_the_first_jobs_of_the_page_commit(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_connect: bool
) -> None:
    """The script runs as it is on the page, in an environment that has what the page's `pip install` installs."""
    [code] = blocks((DOCS / "first-jobs.md").read_text())
    server = f'CommitGate("{harness.kafka.bootstrap_servers}", topic_prefix="{harness.prefix}"'
    code = code.replace("/tmp/first", str(tmp_path)).replace('CommitGate("localhost:19092"', server)
    script = tmp_path / "first.py"
    script.write_text(re.sub(r"io\.delta:[\w.:-]+", JARS["delta"], code))

    places = {str(tmp_path): "/tmp/first"}

    def answer(command: str) -> str:
        servers = {"bootstrap_servers": harness.kafka.bootstrap_servers, "topic_prefix": harness.prefix}
        return run_command(command, **servers).stdout

    def while_both_work() -> str:
        status = answer("status")
        parts = ("1 table, ok", "lock: held", "last commit", "transaction\n")
        return status if all(part in status for part in parts) else ""

    def committed() -> set[str]:
        lines = [
            line
            for file in tmp_path.glob("orders/_delta_log/*.json")
            for line in file.read_text().splitlines()
        ]
        return {json.loads(line)["txn"]["appId"].partition(":")[0] for line in lines if '"txn"' in line}

    with ExitStack() as servers:
        servers.enter_context(running_agent(harness.kafka, harness.prefix, tmp_path))
        if by_connect:
            monkeypatch.setenv("SPARK_REMOTE", servers.enter_context(connect_server(tmp_path)).url)
        python = sys.executable if by_connect else plain_environment(tmp_path / "own", "spark")
        job = subprocess.Popen([python, script], cwd=tmp_path)
        try:
            wait_until(lambda: committed() == {"shop", "crm"} and " lost " in answer("conflicts"), 500)
            as_shown("docs/first-jobs.md", "lakewarden conflicts", answer("conflicts"), places)
            as_shown("docs/first-jobs.md", "lakewarden status", wait_until(while_both_work), places)
            assert job.poll() is None, "the script has ended"
        finally:
            job.kill()
            job.wait()


PAGES = {
    "README.md": ("df", "day date, flight_id long, gate string", {"arrivals", "ingest"}),
    "docs/conflicts.md": ("stream", "day date, flight long, gate string", {"arrivals"}),
    "docs/delta.md": ("flights", "day date, flight long, gate string", {"arrivals"}),
    "docs/iceberg.md": ("flights", "day date, flight long, gate string", {"arrivals"}),
    "docs/paimon.md": ("flights", "day date, flight long, gate string", {"arrivals"}),
    "docs/hudi.md": ("trips", "day date, trip long, updated_at long", {"ingest"}),
}
"""The stream of a page's job, its columns, and the writers that commit."""


@pytest.mark.wide
@pytest.mark.parametrize("page", [each for each in PAGES if (each == "docs/hudi.md") == HAS_HUDI])
def test_the_job_of_each_other_page_commits(
    harness: Harness, spark: SparkSession, tmp_path: Path, page: str
) -> None:
    agent = harness.agent(grant_everything)
    name, columns, writers = PAGES[page]
    incoming = str(tmp_path / "incoming")
    spark.sql("select date'2026-11-26', 1L, 7").toDF(*re.findall(r"(\w+) \w+", columns)).write.json(incoming)
    code = "\n".join(blocks((DOCS.parent / page).read_text()))
    code = code.replace("lake.air.flights", iceberg_name(spark, tmp_path / "warehouse" / "air" / "flights"))
    code = code.replace('"s3://lake"', f'"{tmp_path}"')
    code = re.sub(r"(?<=[\"'`])(s3a?:/)?/lake/", f"{tmp_path}/", code)
    server = f'CommitGate("{harness.kafka.bootstrap_servers}", topic_prefix="{harness.prefix}"'
    if "create" not in code and "Paimon" in code:
        keys = [each for each in ("flight_id", "flight") if each in columns][:1]
        paimon_table(
            tmp_path, pa.schema([("day", pa.date32()), (keys[0], pa.int64()), ("gate", pa.string())])
        )
    names: dict[str, Any] = {
        "spark": spark,
        name: spark.readStream.schema(columns).json(incoming),
        "compute": lambda: "staged",
        "publish": lambda _staged: "1",
    }
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "checkpoints"))
    try:
        exec(compile(code.replace('CommitGate("kafka:9092"', server), page, "exec"), names)  # noqa: S102 - a page of this repository
        for query in spark.streams.active:
            query.processAllAvailable()
            query.stop()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
        names["gate"].close()
    completed = agent.wait_for("commit-completed", len(writers))
    assert {each.writer.partition(":")[0] for each in completed} == writers


def paimon_table(folder: Path, columns: pa.Schema) -> None:
    catalog = CatalogFactory.create({"warehouse": str(folder)})
    catalog.create_database("air", ignore_if_exists=True)
    catalog.create_table(
        "air.flights", Schema.from_pyarrow_schema(columns, partition_keys=["day"]), ignore_if_exists=True
    )


@pytest.fixture
def recipes(
    harness: Harness, spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> Iterator[Callable[[str], dict[str, Any]]]:
    """A function that runs blocks of the recipes, and returns their names. Two flights are there, one of them late."""
    source, lake = str(tmp_path / "source"), iceberg_name(spark, tmp_path / "warehouse" / "air" / "latest")
    rows = [(1, 1, 10, "08:00", "07:00"), (1, 2, 11, "09:00", "10:00")]
    spark.createDataFrame(rows, FLIGHTS).coalesce(1).write.parquet(source)
    spark.sql(f"create table latest (month int, arrival string) using delta location '{tmp_path / 'latest'}'")
    spark.sql(f"create table {lake} (month int, arrival string) using iceberg")
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "checkpoints"))
    replaced = {
        'CommitGate("kafka:9092"': f'CommitGate("{harness.kafka.bootstrap_servers}", topic_prefix="{harness.prefix}"',
        "s3://lake/air.db/flights": make_table("flights"),
        "s3://lake/air.db/late_flights": make_table("late_flights"),
        "lake.air.latest": lake,
    }
    names: dict[str, Any] = {
        "spark": spark,
        "tables": ["latest", lake],
        "flights": spark.readStream.schema(FLIGHTS).parquet(source),
        "corrections": spark.createDataFrame(
            [(1, 1, 10, "08:30")], "month int, day int, flight long, departure string"
        ),
    }

    def run(page: str) -> dict[str, Any]:
        for block in blocks(page):
            names.pop("query", None)
            code = block
            for text, instead in replaced.items():
                code = code.replace(text, instead)
            exec(compile(code, "docs/recipes.md", "exec"), names)  # noqa: S102 - a page of this repository
            if query := names.get("query"):
                query.processAllAvailable()
                query.stop()
                query.awaitTermination()
        return names

    try:
        yield run
    finally:
        spark.sql("drop table latest")
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
        names["gate"].close()


def test_every_recipe_runs_in_the_order_of_the_page(
    harness: Harness, spark: SparkSession, recipes: Callable[[str], dict[str, Any]]
) -> None:
    agent = harness.agent(grant_everything)

    spark.streams.resetTerminated()  # queries of other tests have failed; `awaitAnyTermination` raises for them, too
    names = recipes(RECIPES)

    for query in (names["first"], names["second"]):
        query.processAllAvailable()
    names["second"].stop()
    names["run"]()
    assert spark.streams.active == []
    assert names["failed"] == []
    times = [(row["flight"], row["departure"], row["arrival"]) for row in rows_of(names["all_flights"].table)]
    assert times == [(10, "08:00", "07:00"), (11, "09:00", "10:00")]
    for name in names["tables"]:
        spark.sql(f"refresh table {name}")  # the query's session has an Iceberg catalog of its own
        assert spark.table(name).collect() == [(1, "10:00")]
    writers = {event.writer.partition(":")[0] for event in agent.wait_for("commit-completed", 13)}
    assert writers == {"flights", "late-flights", "newest-flights", "once", "nightly", "one", "two", "latest"}
    for event in agent.wait_for("commit-intent"):
        assert len(event.writer.partition(":")[2]) == 36, "each has its query's id"


@pytest.mark.parametrize("function", ["write_both", "write_at_once"])
def test_each_of_two_tables_has_each_batch_once_after_a_crash_in_between(
    harness: Harness, recipes: Callable[[str], dict[str, Any]], tmp_path: Path, function: str
) -> None:
    """And a new checkpoint is a new writer in both: with a thread pool its rows were skipped."""
    harness.agent(grant_everything)
    page = RECIPES.replace('mode="upsert", keys=["flight"]', 'mode="append"')
    names = recipes(page.partition("## Filter")[0].replace("query = ", "later = lambda: "))
    to_late = names["to_late"]
    died: list[int] = []

    def dies_once(batch: DataFrame, batch_id: int) -> None:
        if not died:
            died.append(batch_id)
            raise RuntimeError("the driver died here")
        to_late(batch, batch_id)

    def run(checkpoint: str) -> None:
        stream = names["flights"].writeStream.foreachBatch(names[function]).trigger(availableNow=True)
        stream.option("checkpointLocation", str(tmp_path / checkpoint)).start().awaitTermination()

    def copies() -> list[int]:
        tables = [rows_of(names[sink].table) for sink in ("all_flights", "late_flights")]
        return [sum(row["flight"] == 10 for row in rows) for rows in tables]

    names["to_late"] = dies_once
    with pytest.raises(StreamingQueryException, match="the driver died here"):
        run("first")
    assert copies() == [1, 0]
    run("first")
    assert copies() == [1, 1]
    run("another")
    assert copies() == [2, 2]
