"""Queries of Spark Connect clients, on a real server: their functions run in processes that the server starts."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.kafka_fixture import KafkaServer
from tests.spark.conftest import MakeTable, rows_of, snapshots_of
from tests.spark.connect.conftest import Clients
from tests.spark.connect.server import connect_server
from tests.spark.fake_agent import FakeAgent
from tests.waiting import wait_until

pytestmark = [pytest.mark.real]

IDS = "id long"


def test_a_function_is_written_by_its_query_and_an_abort_interrupts_its_statement(
    clients: Clients, aborting: FakeAgent, query: Any, tmp_path: Path
) -> None:
    arguments = {"folder": str(tmp_path), "seconds": 300.0}
    batches = [[{"id": 1}, {"id": 2}], [{"id": 3}]]
    described = query(
        "arrivals", "appending", batches, IDS, arguments=arguments, options={"table": str(tmp_path / "t")}
    )

    client = clients.start(described)
    started, ended = client.line(), client.line()

    assert ended == {"id": started["started"], "error": None}
    assert (tmp_path / "batch-0").read_text() == "[1, 2]"
    assert (tmp_path / "batch-1").read_text() == "[3]"
    intents = aborting.wait_for("commit-intent")
    assert {event.writer for event in intents} == {f"arrivals:{ended['id']}"}
    assert [event.batch_id for event in intents] == [0, 0, 1]
    assert aborting.types()[-2:] == ["commit-requested", "commit-completed"]
    abort = next(decision.at for decision in aborting.decisions if decision.type == "abort")
    print(f"abort to the next attempt: {(intents[1].at - abort).total_seconds():.2f} s")
    assert (tmp_path / "worker-0").read_text() == (tmp_path / "worker-1").read_text(), "one gate and process"


def test_paimon_appends_upserts_and_skips_a_batch_that_is_in_the_table(
    clients: Clients, agent: FakeAgent, query: Any, make_table: MakeTable, tmp_path: Path
) -> None:
    table = make_table()
    rows = [{"month": 1, "day": day, "flight": day, "departure": "a"} for day in (1, 2)]
    again = [{"month": 1, "day": 2, "flight": 2, "departure": "b"}, {"month": 1, "day": 2, "flight": 3}]
    schema = "month int, day int, flight int, departure string"
    append = query("append", "paimon", [rows], schema, name="append", arguments={"table": table})

    upsert = query(
        "upsert",
        "paimon",
        [again],
        schema,
        name="upsert",
        arguments={"table": table, "mode": "upsert", "keys": ["flight"]},
        options={"admission": "auto"},
    )
    client = clients.start(append, upsert, in_turn=True)
    lines = [client.line() for _ in range(4)]
    assert [line["error"] for line in lines if "error" in line] == [None, None]
    expected = [
        {"month": 1, "day": 1, "flight": 1, "departure": "a", "arrival": None},
        {"month": 1, "day": 2, "flight": 2, "departure": "b", "arrival": None},
        {"month": 1, "day": 2, "flight": 3, "departure": None, "arrival": None},
    ]
    assert rows_of(table) == expected

    # The server dies after the commit, and before Spark notes it.
    for name in ("0", ".0.crc"):
        (Path(upsert["checkpoint"]) / "commits" / name).unlink(missing_ok=True)
    replayed = clients.start(upsert)
    assert replayed.line() == lines[2], "the query has the same id"
    assert replayed.line()["error"] is None
    assert rows_of(table) == expected
    assert len(snapshots_of(table)) == 2


@pytest.fixture
def slow(query: Any, tmp_path: Path) -> dict[str, Any]:
    """A query whose statement runs for minutes, until a file `fast` exists."""
    arguments = {"folder": str(tmp_path), "seconds": 300.0}
    options = {"table": str(tmp_path / "t")}
    described: dict[str, Any] = query(
        "w", "appending", [[{"id": 1}]], IDS, arguments=arguments, options=options
    )
    return described


def assert_abandoned(agent: FakeAgent, folder: Path, reason: str) -> None:
    """The transaction ended without a request, and its process, too."""
    abandoned = agent.wait_for("transaction-abandoned")[0]
    assert re.search(reason, abandoned.reason)
    assert "commit-requested" not in agent.types()
    wait_until(lambda: not psutil.pid_exists(int((folder / "worker-0").read_text())))


@pytest.mark.wide
@pytest.mark.parametrize("in_thread", [False, True])
def test_a_stopped_query_abandons_its_transaction_at_once(
    clients: Clients, agent: FakeAgent, slow: dict[str, Any], tmp_path: Path, in_thread: bool
) -> None:
    """Also one of a body's own thread, whose statement is interrupted."""
    client = clients.start({**slow, "in_thread": in_thread})
    client.line()
    wait_until((tmp_path / "computing").exists)

    client.stop()

    expected = "OPERATION_CANCELED" if in_thread else "^ProcessEnds: the query was stopped$"
    assert_abandoned(agent, tmp_path, expected)


@pytest.mark.wide
def test_a_worker_of_a_server_that_was_killed_abandons_its_transaction_and_ends(
    kafka: KafkaServer, topic_prefix: str, agent: FakeAgent, slow: dict[str, Any], tmp_path: Path
) -> None:
    """Its heartbeats would hold the grant, while Spark's client tries its statement again for minutes."""
    folder = tmp_path / "server"
    folder.mkdir()
    with connect_server(folder) as server, Clients(server, kafka, topic_prefix) as clients:
        clients.start(slow).line()
        wait_until((tmp_path / "computing").exists)

        server.process.kill()

        assert_abandoned(agent, tmp_path, "^ProcessEnds: Spark was stopped$")


@pytest.mark.wide
def test_a_worker_that_is_killed_commits_nothing_and_the_next_one_is_the_same_writer(
    clients: Clients, agent: FakeAgent, slow: dict[str, Any], tmp_path: Path
) -> None:
    client = clients.start(slow)
    client.line()
    wait_until((tmp_path / "computing").exists)

    os.kill(int((tmp_path / "worker-0").read_text()), signal.SIGKILL)

    assert "crashed" in client.line()["error"]
    assert "commit-requested" not in agent.types()
    (tmp_path / "fast").touch()
    again = clients.start(slow)
    assert [again.line().get("error"), again.line()["error"]] == [None, None]
    assert (tmp_path / "batch-0").read_text() == "[1]"
    assert len({event.writer for event in agent.wait_for("commit-intent", 2)}) == 1
    assert agent.types().count("commit-completed") == 1


@pytest.mark.wide
def test_a_query_without_a_name_is_refused_beside_another_one(
    clients: Clients, agent: FakeAgent, slow: dict[str, Any], query: Any, tmp_path: Path
) -> None:
    options = {"table": str(tmp_path / "t")}
    other, named = (
        query(name, "appending", [[{"id": 1}]], IDS, arguments={"folder": str(tmp_path)}, options=options)
        for name in ("other", "named")
    )
    client = clients.start({**slow, "name": "w"}, other, {**named, "name": "named"})
    first, _, second, ended, refused = [client.line() for _ in range(5)]

    assert "add .queryName('other') to the query" in refused["error"]
    assert ended["error"] is None
    client.stop()
    agent.wait_for("transaction-abandoned")
    writers = {event.writer for event in agent.wait_for("commit-intent")}
    assert writers == {f"w:{first['started']}", f"named:{second['started']}"}


@pytest.mark.wide
def test_a_query_goes_on_when_its_client_has_ended(
    clients: Clients, agent: FakeAgent, slow: dict[str, Any], tmp_path: Path
) -> None:
    slow["arguments"]["seconds"] = 3.0
    client = clients.start(slow)
    client.line()
    wait_until((tmp_path / "computing").exists)

    client.process.kill()

    agent.wait_for("commit-completed")
    assert (tmp_path / "batch-0").read_text() == "[1]"


@pytest.mark.wide
def test_columns_are_stored_in_the_types_of_the_table_or_refused(
    clients: Clients, agent: FakeAgent, query: Any, make_table: MakeTable
) -> None:
    """A primary key is NOT NULL, and a stream's columns may be NULL."""
    table = make_table(primary_keys=("month", "day", "flight"), bucket="1")
    row = {"month": 1, "day": 1, "flight": 7}
    columns = "month int, day int, departure string, arrival string, flight"

    def upsert(name: str, kind: str, **values: Any) -> dict[str, Any]:
        described: dict[str, Any] = query(
            name,
            "paimon",
            [[row | values]],
            f"{columns} {kind}",
            name=name,
            arguments={"table": table, "mode": "upsert", "keys": ["month", "day", "flight"]},
        )
        return described

    client = clients.start(
        upsert("narrow", "int"),
        upsert("text", "string"),
        upsert("null", "int", flight=None),
        in_turn=True,
    )
    narrow, text, null = [line for line in (client.line() for _ in range(6)) if "error" in line]

    assert narrow["error"] is None
    assert "the batch doesn't fit the table" in text["error"]
    assert "column 'flight' of the table is NOT NULL, and a row has NULL" in null["error"]
    assert rows_of(table) == [{**row, "departure": None, "arrival": None}]
    assert agent.types().count("commit-completed") == 1
