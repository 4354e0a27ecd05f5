"""The HTTP server over a state without Kafka."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from aiohttp import ClientResponse, ClientSession, TCPConnector
from aiohttp.test_utils import TestClient, TestServer
from aiokafka.errors import GroupAuthorizationFailedError, KafkaConnectionError

from lakewarden.agent.errors import KafkaUnreachableError
from lakewarden.agent.operators import explain as explain_module
from lakewarden.agent.operators.explain import Search
from lakewarden.agent.operators.past import Timelines, refused_event
from lakewarden.agent.operators.status import BlockerView, LockHolder, TableView, TransactionView
from lakewarden.agent.settings import Settings
from lakewarden.agent.web import server, views
from lakewarden.agent.web.follower import Changes, Follower, History
from lakewarden.agent.web.server import Server
from lakewarden.events import Abort, CommitCompleted, CommitIntent, DeadLetter, encode
from lakewarden.handlers.explain.bars import COMPUTING, drawing
from lakewarden.handlers.explain.life import End
from lakewarden.handlers.setup import Member
from tests.unit.agent.serving.owner_in_memory import consumed
from tests.unit.events.building import a_conflict, an_overlap, made

AT = "2026-11-22T17:00:00.000+00:00"
HOSTILE = """"><script>alert('1')</script><img src=x onerror=alert(2)>{{ 7777*7777 }}\u202e"""
LIVE = ("/", "/locks", "/waits", "/writer", "/table?uri=s3://lake/t", "/losses", "/late", "/refused")


@dataclass
class State:
    """In place of `LiveStatus`."""

    found: list[TableView]

    def views(self) -> list[TableView]:
        return self.found

    def view(self, table: str) -> TableView:
        return next((each for each in self.found if each.table == table), TableView(table, None, ()))


def table(uri: str = "s3://lake/t", name: str = "w", *, waiting: bool = True) -> TableView:
    """A table with a granted transaction, and maybe one that waits for it."""
    lock = LockHolder(
        held=True,
        lock="s3://lake/lock",
        agent=f"agent-{name}",
        owner="owner",
        valid_until=AT,
        last_step="lock-renewed",
        detail=None,
    )
    granted = TransactionView(f"A{name}", name, 7, "granted", AT, None, 1, 2, AT, f"why {name}")
    blocker = BlockerView(f"A{name}", name, "granted", f"part={name}")
    waits = TransactionView(
        f"B{name}", f"x{name}", None, "waiting", AT, f"the grant of {name}", 1, 2, None, None, AT, (blocker,)
    )
    return TableView(uri, lock, (granted, waits) if waiting else (granted,), refused=f"stopped {name}")


def history(name: str, uri: str = "s3://lake/t") -> History:
    """A transaction that lost a conflict two seconds ago, and a refused event, of a writer with this name."""
    found = History()
    now = round(time.time() * 1000)
    common: dict[str, Any] = {
        "table": uri,
        "writer": name,
        "transaction": f"B{name}",
        "at": datetime.now(UTC),
    }
    entry = an_overlap(f"part={name}", f"winner {name}")
    conflict = a_conflict(entry, victim_age_seconds=2.5, **common)
    intent = CommitIntent(event_id="i", heartbeat_seconds=5, **common)
    abort = made(Abort, reason="conflict", conflicts=(entry,), **common)
    value = json.dumps({"type": "commit-intent", "table": uri, "writer": name, "transaction": name}).encode()
    letter = DeadLetter(
        reason=f"refused {name}", topic="w", partition=1, offset=2, value=base64.b64encode(value).decode()
    )
    found.losses.add(consumed(encode(conflict), at_ms=now - 2000))
    found.timelines.add_event(consumed(encode(intent), at_ms=now - 4500))
    found.timelines.add_decision(consumed(encode(abort), at_ms=now - 2000))
    refused = refused_event(consumed(encode(letter), at_ms=now))
    assert refused is not None
    found.refused.append(refused)
    return found


@asynccontextmanager
async def served(
    *tables: TableView, history: History | None = None, **configured: Any
) -> AsyncIterator[tuple[TestClient[Any, Any], Follower, Changes]]:
    """A client of the server over these tables."""
    settings = Settings(**configured)
    follower = Follower(settings)
    follower.status, follower.problem = State(list(tables)), None  # type: ignore[assignment]
    follower.current_at = datetime(2026, 11, 22, 17, tzinfo=UTC)
    follower.history = history or History()
    application = Server(follower).application()
    async with TestClient(TestServer(application)) as client:
        yield client, follower, follower.changes


@pytest.mark.parametrize("path", LIVE)
async def test_names_from_events_are_escaped_in_every_view_and_its_json_has_them(path: str) -> None:
    """A stranger who may write events chooses writers' names, ids, partitions and reasons."""
    past, now = history(HOSTILE), round(time.time() * 1000)
    for number in range(3):  # then it is late
        names = {"table": "s3://lake/t", "writer": HOSTILE, "transaction": f"C{number}"}
        done = made(CommitCompleted, **names, grant="g")
        past.timelines.add_event(consumed(encode(done), at_ms=now - 300_000 + number))
    async with served(table(name=HOSTILE), history=past) as (client, _, _):
        page = await (await client.get(path)).text()
        name, _, query = path.partition("?")
        found = await (await client.get(f"{'/tables' if name == '/' else name}.json?{query}")).json()

    assert found["as_of"] == AT
    assert found["command"].startswith("lakewarden ")
    assert HOSTILE in json.dumps(found, ensure_ascii=False).replace('\\"', '"')
    assert "<script>alert" not in page
    assert "<img" not in page
    assert "60481729" not in page, "no name is a template"
    assert "\u202e" not in page, "no name turns the direction of writing"
    assert r"\u202e" in page
    assert "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;" in page


@pytest.mark.parametrize("path", [*LIVE, "/transaction", "/nothing", "/static/page.css"])
async def test_every_answer_forbids_what_the_page_does_not_need(path: str) -> None:
    async with served(table()) as (client, _, _):
        answer = await client.get(path)

    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", ["/", "/tables.json", "/transaction", "/events", "/static/page.js"])
async def test_only_get_and_head_are_answered(method: str, path: str) -> None:
    """No request changes a state, here or in Kafka."""
    async with served(table()) as (client, _, _):
        answer = await client.request(method, path)

    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8438", 200),
        ("127.0.0.1", 200),
        ("[::1]:8438", 200),
        ("LAKE.example:443", 200),
        ("evil.example", 421),
        ("localhost.evil.example:8438", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
    ],
)
async def test_only_listed_hosts_are_answered(host: str, status: int) -> None:
    """A web site whose name now resolves to 127.0.0.1 must not read the page through the operator's browser."""
    async with served(table(), web_allowed_hosts=("lake.example",)) as (client, _, _):
        answer = await client.get("/tables.json", headers={"Host": host})

    assert answer.status == status


async def test_below_a_base_path_every_link_has_it() -> None:
    """Behind a proxy that serves other things too."""
    async with served(table(), web_listen=":0/lake") as (client, _, _):
        page = await (await client.get("/lake/")).text()
        outside = await client.get("/")

    assert outside.status == 404
    links = [part.split('"')[0] for part in page.replace('src="', 'href="').split('href="')[1:]]
    assert [each for each in links if not each.startswith(("/lake/", "#"))] == []


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/table.json", 400, "the table is missing"),
        ("/table.json?uri=nonsense", 400, "not a table URI"),
        ("/table.json?uri=s3://lake/t&minutes=x", 400, "minutes is not a number"),
        ("/losses.json?table=nonsense", 400, "not a table URI"),
        ("/tables.json?page=x", 400, "page is not a number"),
        ("/nothing.json", 404, "no such view"),
        ("/static/..%2f..%2fsettings.py", 404, "no such view"),
        ("/events?view=/transaction", 400, "no live view"),
        ("/events?view=/table&uri=nonsense", 400, "not a table URI"),
    ],
)
async def test_a_wrong_request_is_answered_with_what_is_wrong(path: str, status: int, message: str) -> None:
    async with served(table()) as (client, _, _):
        answer = await client.get(path)

        assert answer.status == status
        assert message in await answer.text()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KafkaUnreachableError("no broker answers at kafka:9092"), "no broker answers at kafka:9092"),
        (GroupAuthorizationFailedError("agents"), "Kafka denies this user describe on the agents"),
        (KafkaConnectionError("closed"), "Kafka at kafka:9092 doesn't answer"),
        (TimeoutError(), "Kafka at kafka:9092 doesn't answer"),
    ],
    ids=["no broker", "no right", "no connection", "a time limit of a part"],
)
@pytest.mark.parametrize("path", ["/agents", "/transaction?id=A"])
async def test_a_view_that_kafka_does_not_answer_is_unavailable_and_says_why(
    path: str, error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time limit of a part is not that of the whole view, and nothing is called absent."""

    async def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(views, "read_agents", fail)
    monkeypatch.setattr(explain_module, "search_log", fail)
    name, _, query = path.partition("?")
    async with served(bootstrap_servers="kafka:9092") as (client, _, _):
        page = await client.get(path)
        found = await client.get(f"{name}.json?{query}")

        assert (page.status, found.status) == (503, 503)
        assert message in (await found.json())["error"]
        assert "Not found" not in await page.text()
    assert page.headers["Content-Security-Policy"].startswith("default-src 'none'")


async def test_a_view_that_takes_too_long_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "READ_SECONDS", 0.01)

    async def never(*_: Any) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(views, "read_agents", never)
    async with served() as (client, _, _):
        answer = await client.get("/agents.json")

        assert answer.status == 503
        assert "could not be read within 0.01 s" in await answer.text()


async def test_a_transaction_that_is_not_in_the_log_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def searched(*_: Any) -> Search:
        return Search("Z")

    monkeypatch.setattr(explain_module, "search_log", searched)
    async with served() as (client, _, _):
        answer = await client.get("/transaction?id=Z")

        assert answer.status == 404
        assert "Not found" in await answer.text()


async def test_ten_thousand_tables_are_shown_in_pages_with_the_contended_first() -> None:
    tables = [table(f"s3://lake/t{number:05}", waiting=number == 9_999) for number in range(10_000)]
    async with served(*tables) as (client, _, _):
        first = await (await client.get("/tables.json")).json()
        last = await (await client.get("/tables.json?page=50")).json()
        pages = [await (await client.get(f"/?page={number}")).text() for number in (1, 2, 50)]
        filtered = await (await client.get("/tables.json?q=t01234")).json()

    assert (first["count"], len(first["tables"])) == (10_000, 200)
    assert [each["condition"]["waiting"] for each in first["tables"][:2]] == [1, 0]
    assert [("Previous page" in each, "Next page" in each) for each in pages] == [
        (False, True),
        (True, True),
        (True, False),
    ]
    assert first["tables"][0]["table"] == "s3://lake/t09999"
    assert len(last["tables"]) == 200
    assert [each["table"] for each in filtered["tables"]] == ["s3://lake/t01234"]


async def test_without_tables_each_view_says_so() -> None:
    async with served() as (client, _, _):
        assert "No table has" in await (await client.get("/")).text()
        assert "No lock was used" in await (await client.get("/locks")).text()
        assert "No transaction waits" in await (await client.get("/waits")).text()
        assert "No open transaction" in await (await client.get("/table?uri=s3://lake/t")).text()


async def test_losses_are_added_up_by_table_partition_and_pair() -> None:
    async with served(history=history("w")) as (client, _, _):
        found = await (await client.get("/losses.json")).json()
        elsewhere = await (await client.get("/losses.json?table=s3://lake/other")).json()

    loss = {"conflicts": 1, "seconds": 2.5}
    assert found["tables"] == [{"table": "s3://lake/t", **loss}]
    assert found["partitions"] == [{"table": "s3://lake/t", "partition": "part=w", **loss}]
    assert found["pairs"] == [{"table": "s3://lake/t", "winner": "winner w", "loser": "w", **loss}]
    assert elsewhere["conflicts"] == 0


@pytest.mark.parametrize("minutes, heading", [(1, "The last minute"), (15, "The last 15 minutes")])
async def test_the_timeline_of_a_table_has_a_bar_for_each_transaction_in_the_demo_s_colours(
    minutes: int, heading: str
) -> None:
    async with served(history=history("w")) as (client, _, _):
        found = await (await client.get(f"/table.json?uri=s3://lake/t&minutes={minutes}")).json()
        page = await (await client.get(f"/table?uri=s3://lake/t&minutes={minutes}")).text()

    assert f"<h2>{heading}</h2>" in page
    [row] = found["timeline"]["writers"]
    [bar] = row["attempts"]
    assert (row["writer"], bar["transaction"], bar["outcome"]) == ("w", "Bw", "aborted by conflict")
    assert bar["lost_to"] == ["winner w"]
    colour, label = COMPUTING[End.CONFLICT]
    assert [each["label"] for each in bar["segments"]] == [label]
    assert f'fill="{colour}"' in page


async def test_a_page_that_is_not_current_says_since_when_and_why() -> None:
    """Kafka is down: what was known last is shown, and called old."""
    async with served(table()) as (client, follower, _):
        follower.problem = "Kafka at kafka:9092 doesn't answer"
        page = await (await client.get("/")).text()
        found = await (await client.get("/tables.json")).json()

    assert "Kafka at kafka:9092 doesn&#39;t answer" in page
    assert "17:00:00 UTC" in page
    assert found["problem"] == "Kafka at kafka:9092 doesn't answer"
    assert len(found["tables"]) == 1


async def test_before_the_log_was_read_the_page_claims_nothing() -> None:
    """It must not call all tables idle while Kafka doesn't answer."""
    async with served() as (client, follower, _):
        follower.problem, follower.current_at = "Kafka doesn't answer", None
        page = await (await client.get("/")).text()

    assert "Kafka doesn&#39;t answer" in page
    assert "Nothing is known yet" in page
    assert "No table has" not in page


async def test_who_holds_up_whom_has_a_command_against_the_holder_and_none_against_a_victim() -> None:
    """The victims are one row, below the transaction at the head of the queue."""
    now = datetime.now(UTC)
    at = [(now - timedelta(seconds=seconds)).isoformat() for seconds in (400, 300)]
    hangs = TransactionView("A" * 8, "shop", 7, "granted", at[0], None, 1, 2, at[0])
    queued = [
        TransactionView(name, writer, 1, "queued", at[1], "shop", 1, 1, None, None, at[1], (blocker,))
        for name, writer, blocker in (
            ("B" * 8, "crm", BlockerView("A" * 8, "shop", "granted", "day=1")),
            ("C" * 8, "stock", BlockerView("B" * 8, "crm", "ahead in the queue")),
        )
    ]
    found = TableView("s3://lake/warehouse/orders", None, (hangs, *queued))
    async with served(found) as (client, follower, _):
        follower.members = (Member("agent-0", "1"),)
        [row] = (await (await client.get("/waits.json")).json())["waits"]
        pages = [await (await client.get(path)).text() for path in ("/waits", "/")]
        page = await (await client.get(f"/table?uri={found.table}")).text()
        follower.members = ()
        without = [await (await client.get(path)).text() for path in LIVE]

    assert row["head"]["transaction"] == hangs.transaction
    assert [each["writer"] for each in row["waiting"]] == ["crm", "stock"]
    assert "which holds the grant, on <bdi>day=1</bdi>" in " ".join(page.split())
    for page in pages:
        assert "publish hangs" in page
        assert f"lakewarden abort {hangs.transaction}" in page
        assert not any(f"abort {each.transaction}" in page for each in queued)
        assert ">warehouse/orders<" in page
    assert all("No agent is in the group" in page for page in without)


async def test_the_owner_of_a_lock_that_the_agent_waits_for_is_named() -> None:
    found = table()
    assert found.lock is not None
    other = replace(found.lock, held=False, owner="other", last_step="lock-refused", waiting=True)
    async with served(replace(found, lock=other)) as (client, _, _):
        for path in ("/locks", f"/table?uri={found.table}"):
            page = await (await client.get(path)).text()
            assert "held by <bdi>other</bdi>, not by agent <bdi>agent-w</bdi>" in page


@pytest.mark.parametrize("minutes", [1, 5, 15, 60, 360])
def test_commits_without_the_gate_are_one_row_and_the_axis_has_ticks(minutes: int) -> None:
    end = time.time()
    lives = history("delta:49").timelines.tables["s3://lake/t"].values()
    drawn = drawing(lives, end - minutes * 60, end)

    assert [each.writer for each in drawn.writers] == ["delta, without the gate"]
    assert 4 <= len(drawn.ticks) <= 12
    assert all(end - minutes * 60 <= each <= end for each in drawn.ticks)


@pytest.mark.parametrize("reads_commit_first", [True, False])
def test_who_made_a_commit_without_the_gate_is_shown_in_its_row_and_to_those_who_lose_to_it(
    reads_commit_first: bool,
) -> None:
    """The two topics are read in any order."""
    table, now = "s3://lake/t", round(time.time() * 1000)
    found, winner = Timelines(), {"table": table, "transaction": "delta:49", "writer": "delta:49"}
    completed = made(CommitCompleted, **winner, engine="Delta-Lake/4.0.0", job="nightly")
    entry = an_overlap("p", "delta:49", other_operation="delete", other_transaction="delta:49", kind="commit")
    lost = made(Abort, table=table, transaction="B", writer="crm", reason="conflict", conflicts=(entry,))
    steps = [(found.add_event, completed), (found.add_decision, lost)]
    for add, event in steps if reads_commit_first else reversed(steps):
        add(consumed(encode(event), at_ms=now))

    (losing,) = found.ends[table].losing.values()
    assert losing.to == "delta, without the gate (Delta-Lake/4.0.0, job nightly)"
    assert {name: each.made_by for name, each in found.tables[table].items()} == {
        "delta:49": "Delta-Lake/4.0.0, job nightly",
        "B": None,
    }


async def test_a_writer_is_found_by_a_part_of_its_name_and_by_batch() -> None:
    async with served(history=history("shop")) as (client, _, _):
        found = [
            (await (await client.get(f"/writer.json?{query}")).json())["count"]
            for query in ("name=sho", "name=crm", "name=shop&batch=8", "")
        ]
        wrong = await client.get("/writer?batch=x")

    assert found == [1, 0, 0, 1]
    assert wrong.status == 400


@pytest.mark.parametrize(
    "path", ["/writer?name=delta%2C+without+the+gate", "/writer?name=delta:49", "/table?uri=s3://lake/t"]
)
async def test_a_writer_without_the_gate_is_named_so_and_found_by_that_name(path: str) -> None:
    """The lane of a time line links to its transactions."""
    async with served(history=history("delta:49")) as (client, _, _):
        page = await (await client.get(path)).text()

    assert "<bdi>delta, without the gate</bdi></a>" in page


@pytest.mark.parametrize(
    "sort, order", [("", ["b", "c", "a"]), ("table", ["a", "b", "c"]), ("open", ["b", "c", "a"])]
)
async def test_the_worst_table_is_first_unless_a_column_is_chosen(sort: str, order: list[str]) -> None:
    computes = tuple(TransactionView(f"T{n}", "w", n, "active", AT, None, 1, 1) for n in range(3))
    found = [
        TableView("s3://lake/a", None, computes[:1]),
        TableView("s3://lake/b", None, computes, refused="not allowed"),
        TableView("s3://lake/c", None, computes[:2]),
    ]
    async with served(*found) as (client, _, _):
        shown = await (await client.get(f"/tables.json?sort={sort}")).json()

    assert [each["table"][-1] for each in shown["tables"]] == order


async def test_a_stream_sends_a_new_version_only_when_its_view_has_changed() -> None:
    async with served(table()) as (client, follower, changes):
        stream = await client.get("/events?view=/")
        first = await message(stream)
        changes.announce()
        assert await stream.content.readuntil(b"\n\n") == b": \n\n", "nothing that it shows has changed"
        follower.status = State([])  # type: ignore[assignment]
        changes.announce()
        second = await message(stream)
        stream.close()
        shown = await (await client.get("/")).text()

    assert first != second
    assert f'data-version="{second}"' in shown, "the page that is fetched then has this version"


async def test_of_too_many_streams_the_visitor_with_the_most_loses_its_oldest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One visitor can't take the live updates from the others, as often as it connects again."""
    monkeypatch.setattr(server, "MAX_STREAMS", 4)
    async with (
        served(table()) as (client, follower, changes),
        ClientSession(connector=TCPConnector(local_addr=("127.0.0.2", 0))) as other,
    ):
        calm = await other.get(client.make_url("/events"))
        crowd = [await client.get("/events") for _ in range(8)]
        late = await other.get(client.make_url("/events"))
        [first] = {await message(each) for each in (calm, *crowd, late)}
        assert [await each.content.read() for each in crowd[:6]] == [b""] * 6
        follower.status = State([])  # type: ignore[assignment]
        changes.announce()
        [second] = {await message(each) for each in (calm, *crowd[6:], late)}
        for each in (calm, *crowd, late):
            each.close()
    assert second != first


@pytest.mark.parametrize(
    ("site", "mode", "status"),
    [
        ("cross-site", "cors", 403),
        ("cross-site", "no-cors", 403),
        ("same-site", "cors", 403),
        ("cross-site", "navigate", 200),
        ("same-origin", "cors", 200),
        ("none", "navigate", 200),
    ],
)
@pytest.mark.parametrize("path", ["/events", "/tables.json"])
async def test_pages_of_other_sites_get_nothing(path: str, site: str, mode: str, status: int) -> None:
    """A link to the page works."""
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode}
    async with served(table()) as (client, _, _), client.get(path, headers=headers) as answer:
        assert answer.status == status


async def message(stream: ClientResponse) -> str:
    with anyio.fail_after(60):
        while True:
            part = (await stream.content.readuntil(b"\n\n")).decode()
            if part.startswith("data: "):
                return part.removeprefix("data: ").strip()
