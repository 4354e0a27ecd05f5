"""`DeltaSink` in queries of Spark Connect clients: each batch once, whatever is killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.connect.session import SparkSession

from lakewarden.spark_jobs.sinks.connect.procedures import Procedures, as_facts
from tests.spark.connect.conftest import Clients
from tests.spark.connect.server import ROOT, ConnectServer
from tests.spark.fake_agent import FakeAgent
from tests.spark.formats import HAS_DELTA, iceberg_name
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not HAS_DELTA, reason="this PySpark's tests have no Delta"),
]

SCHEMA = "day int, flight long, gate string"


class Lake:
    """A Delta table, and the session of a client that reads it."""

    def __init__(self, url: str, folder: Path) -> None:
        self.table = str(folder / "flights")
        self.spark: Any = SparkSession.builder.remote(url).create()
        self.url = f"{url}/;session_id={self.spark.session_id}"
        """Of clients in the same session, as the classes of a jar that was added belong to one session."""
        self.spark.sql(f"CREATE TABLE delta.`{self.table}` ({SCHEMA}) USING delta PARTITIONED BY (day)")

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in self.spark.read.format("delta").load(self.table).collect())

    def batches(self) -> list[int]:
        """The batches in the log, in the order of the commits."""
        found = []
        for file in sorted(Path(self.table, "_delta_log").glob("*.json")):
            actions = [json.loads(line) for line in file.read_text().splitlines()]
            found += [action["txn"]["version"] for action in actions if "txn" in action]
        return found


@pytest.fixture
def lake(connect: ConnectServer, tmp_path: Path) -> Iterator[Lake]:
    lake = Lake(connect.url, tmp_path)
    yield lake
    lake.spark.stop()


def test_a_query_upserts_and_skips_a_batch_that_is_in_the_table(
    clients: Clients, agent: FakeAgent, query: Any, lake: Lake
) -> None:
    batches = [
        [{"day": 1, "flight": 1, "gate": "a"}, {"day": 2, "flight": 2, "gate": "a"}],
        [{"day": 1, "flight": 1, "gate": "b"}, {"day": 1, "flight": 1, "gate": "c"}],
    ]
    upsert = query(
        "arrivals",
        "delta",
        batches,
        SCHEMA,
        arguments={"table": lake.table, "mode": "upsert", "keys": ["flight"]},
        options={"admission": "auto"},
    )
    client = clients.start(upsert)
    started = client.line()
    assert client.line()["error"] is None
    expected = [(1, 1, "c"), (2, 2, "a")]
    assert lake.rows() == expected

    # The server dies after the commit, and before Spark notes it.
    for name in ("1", ".1.crc"):
        (Path(upsert["checkpoint"]) / "commits" / name).unlink(missing_ok=True)
    replayed = clients.start(upsert)

    assert replayed.line() == started, "the query has the same id"
    assert replayed.line()["error"] is None
    assert lake.rows() == expected
    assert lake.batches() == [0, 1]
    completed = agent.wait_for("commit-completed", 2)
    assert [event.version for event in completed[:2]] == ["1", "2"]


@pytest.mark.wide
@pytest.mark.parametrize("mode", ["append", pytest.param("overwrite", marks=pytest.mark.matrix)])
def test_a_query_writes_in_the_other_modes(
    mode: str, clients: Clients, agent: FakeAgent, query: Any, lake: Lake
) -> None:
    batches = [[{"day": 1, "flight": number, "gate": "a"}] for number in range(2)]
    client = clients.start(
        query("w", "delta", batches, SCHEMA, arguments={"table": lake.table, "mode": mode})
    )
    client.line()

    assert client.line()["error"] is None
    appended = [(1, 0, "a"), (1, 1, "a")]
    assert lake.rows() == (appended if mode == "append" else appended[1:])
    assert lake.batches() == [0, 1]
    assert {each.partition for event in agent.wait_for("marker-created") for each in event.markers} == {
        "day=1"
    }


@pytest.mark.wide
@pytest.mark.parametrize(
    "death",
    [
        "after prepared",
        "after allow",
        *(
            pytest.param(each, marks=pytest.mark.matrix)
            for each in ("before allow", "after run", "before run")
        ),
    ],
)
def test_each_batch_is_written_once_though_its_process_is_killed(
    death: str, clients: Clients, agent: FakeAgent, query: Any, lake: Lake
) -> None:
    """Appends aren't repeatable: a batch that is written twice shows."""
    flag = Path(lake.table).parent / "killed"
    when, call = death.split()
    arguments = {"table": lake.table, "when": when, "call": call, "flag": str(flag)}
    batches = [[{"day": 1, "flight": number, "gate": "a"}] for number in range(2)]
    described = query("w", "mortal_delta", batches, SCHEMA, arguments=arguments)

    clients.restart_after_a_kill(described, flag)

    assert lake.rows() == [(1, 0, "a"), (1, 1, "a")]
    assert lake.batches() == [0, 1]
    assert agent.wait_for("commit-completed")


def slow(query: Any, lake: Lake) -> Any:
    folder = str(Path(lake.table).parent)
    arguments = {"table": lake.table, "folder": folder, "seconds": 300.0}
    return query("w", "slow_delta", [[{"day": 1, "flight": 1}]], SCHEMA, arguments=arguments)


@pytest.mark.wide
def test_an_abort_interrupts_the_statement_and_the_batch_is_written_once(
    clients: Clients, aborting: FakeAgent, query: Any, lake: Lake, tmp_path: Path
) -> None:
    client = clients.start(slow(query, lake))
    client.line()

    assert client.line()["error"] is None
    assert lake.rows() == [(1, 1, None)]
    assert lake.batches() == [0]
    assert aborting.types().count("commit-intent") == 2


@pytest.mark.wide
def test_a_stopped_query_abandons_its_transaction_and_its_statement_commits_nothing(
    clients: Clients, agent: FakeAgent, query: Any, lake: Lake, tmp_path: Path
) -> None:
    """The server's statement has ended then, so nothing can commit later."""
    client = clients.start({**slow(query, lake), "url": lake.url})
    client.line()
    wait_until((tmp_path / "computing").exists)

    client.stop()

    abandoned = agent.wait_for("transaction-abandoned")[0]
    (tmp_path / "fast").touch()
    ended = as_facts(Procedures(lake.spark, "delta")("ended", abandoned.transaction, 240_000))
    assert "stopped" in abandoned.reason
    assert (ended["ended"], ended["begun"]) == (["true"], ["false"])
    assert "commit-requested" not in agent.types()
    assert lake.batches() == []


@pytest.mark.wide
def test_the_recipe_of_whole_statements_writes_a_table_of_each_format(
    clients: Clients, agent: FakeAgent, query: Any, lake: Lake, tmp_path: Path
) -> None:
    """For servers that can't have the procedures."""
    iceberg = iceberg_name(lake.spark, tmp_path / "warehouse" / "air" / "latest")
    lake.spark.sql(
        f"CREATE TABLE latest (month INT, arrival STRING) USING delta LOCATION '{tmp_path / 'latest'}'"
    )
    lake.spark.sql(f"CREATE TABLE {iceberg} (month INT, arrival STRING) USING iceberg")
    recipe = (ROOT / "docs/recipes.md").read_text().partition("## A MERGE of your own")[2]
    block = recipe.partition("```python")[2].partition("```")[0].replace("lake.air.latest", iceberg)
    batches = [[{"month": 1, "arrival": "08:00"}, {"month": 1, "arrival": "07:00"}]]
    client = clients.start(
        query("latest", "", batches, "month int, arrival string", name="latest", block=block, url=lake.url)
    )
    try:
        agent.wait_for("commit-completed", 2)
        client.stop()
        assert [lake.spark.table(name).collect() for name in ("latest", iceberg)] == [[(1, "08:00")]] * 2
    finally:
        lake.spark.sql("DROP TABLE latest")
