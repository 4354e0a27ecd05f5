"""`IcebergSink` in queries of Spark Connect clients: each batch once, whatever is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.connect.session import SparkSession

from tests.spark.connect.conftest import Clients
from tests.spark.connect.server import ConnectServer
from tests.spark.fake_agent import FakeAgent
from tests.spark.formats import HAS_ICEBERG, iceberg_name
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not HAS_ICEBERG, reason="this PySpark's tests have no Iceberg"),
]

SCHEMA = "day int, flight long, gate string"


class Lake:
    """An Iceberg table, and the session of a client that reads it."""

    def __init__(self, url: str, folder: Path) -> None:
        session: Any = SparkSession.builder.remote(url).create()
        self.spark = session
        self.folder = folder / "warehouse" / "air" / "flights"
        self.table = iceberg_name(session, self.folder)
        self.spark.sql(f"CREATE TABLE {self.table} ({SCHEMA}) USING iceberg PARTITIONED BY (day)")

    def rows(self) -> list[tuple[Any, ...]]:
        self.spark.sql(f"REFRESH TABLE {self.table}")
        return sorted(tuple(row) for row in self.spark.table(self.table).collect())

    def batches(self) -> list[int]:
        """The batches of the snapshots, in the order of the commits."""
        rows = self.spark.sql(
            f"SELECT summary['lakewarden.batch'] FROM {self.table}.snapshots ORDER BY committed_at"  # noqa: S608 - of this test
        ).collect()
        return [int(row[0]) for row in rows]

    def files(self) -> int:
        return len(list(self.folder.rglob("*.parquet")))


@pytest.fixture
def lake(connect: ConnectServer, tmp_path: Path) -> Iterator[Lake]:
    lake = Lake(connect.url, tmp_path)
    yield lake
    lake.spark.stop()


@pytest.mark.parametrize(
    "mode", ["upsert", *(pytest.param(mode, marks=pytest.mark.wide) for mode in ("append", "overwrite"))]
)
def test_a_query_writes_and_skips_a_batch_that_is_in_the_table(
    mode: str, clients: Clients, agent: FakeAgent, query: Any, lake: Lake
) -> None:
    batches = [
        [{"day": 1, "flight": 1, "gate": "a"}, {"day": 2, "flight": 2, "gate": "a"}],
        [{"day": 1, "flight": 1, "gate": "b"}, {"day": 1, "flight": 1, "gate": "c"}],
    ]
    keys = ["flight"] if mode == "upsert" else []
    arguments = {"folder": str(lake.folder), "mode": mode, "keys": keys}
    described = query("w", "iceberg", batches, SCHEMA, arguments=arguments, options={"admission": "auto"})
    client = clients.start(described)
    started = client.line()
    assert client.line()["error"] is None
    new = [(1, 1, "c")] if mode == "upsert" else [(1, 1, "b"), (1, 1, "c")]
    expected = [*([(1, 1, "a")] if mode == "append" else []), *new, (2, 2, "a")]
    assert lake.rows() == expected

    # The server dies after the commit, and before Spark notes it.
    for name in ("1", ".1.crc"):
        (Path(described["checkpoint"]) / "commits" / name).unlink(missing_ok=True)
    replayed = clients.start(described)

    assert replayed.line() == started, "the query has the same id"
    assert replayed.line()["error"] is None
    assert lake.rows() == expected
    assert lake.batches() == [0, 1]
    assert len({event.version for event in agent.wait_for("commit-completed", 2)}) == 2


@pytest.mark.wide
@pytest.mark.parametrize("death", ["after stage", "after staged", "before publish", "after publish"])
def test_each_batch_is_written_once_though_its_process_is_killed(
    death: str, clients: Clients, agent: FakeAgent, query: Any, lake: Lake
) -> None:
    """Appends aren't repeatable: a batch that is written twice shows."""
    flag = lake.folder.parent / "killed"
    when, call = death.split()
    arguments = {"folder": str(lake.folder), "when": when, "call": call, "flag": str(flag)}
    batches = [[{"day": 1, "flight": number, "gate": "a"}] for number in range(2)]
    described = query("w", "mortal_iceberg", batches, SCHEMA, arguments=arguments)

    clients.restart_after_a_kill(described, flag)

    assert lake.rows() == [(1, 0, "a"), (1, 1, "a")]
    assert lake.batches() == [0, 1]
    assert agent.wait_for("commit-completed")


def slow(query: Any, lake: Lake, tmp_path: Path) -> Any:
    arguments = {"table": str(lake.folder), "folder": str(tmp_path), "seconds": 300.0}
    return query("w", "slow_iceberg", [[{"day": 1, "flight": 1}]], SCHEMA, arguments=arguments)


@pytest.mark.wide
def test_an_abort_interrupts_the_statement_and_the_batch_is_written_once(
    clients: Clients, aborting: FakeAgent, query: Any, lake: Lake, tmp_path: Path
) -> None:
    client = clients.start(slow(query, lake, tmp_path))
    client.line()

    assert client.line()["error"] is None
    assert lake.rows() == [(1, 1, None)]
    assert lake.batches() == [0]
    assert aborting.types().count("commit-intent") == 2


@pytest.mark.wide
def test_a_stopped_query_abandons_its_transaction_and_its_statement_commits_nothing(
    clients: Clients, agent: FakeAgent, query: Any, lake: Lake, tmp_path: Path
) -> None:
    client = clients.start(slow(query, lake, tmp_path))
    client.line()
    wait_until((tmp_path / "computing").exists)

    client.stop()

    assert "stopped" in agent.wait_for("transaction-abandoned")[0].reason
    (tmp_path / "fast").touch()
    assert "commit-requested" not in agent.types()
    assert lake.batches() == []
