"""Iceberg tables of a catalog: what a watcher asks a REST server, what it makes of the answers, and what it says of failures."""

import json
import sqlite3
import struct
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
import pytest_asyncio
from aiohttp import web
from anyio.abc import ByteStream, SocketAttribute
from structlog.testing import capture_logs

from lakewarden.agent.errors import SettingsError
from lakewarden.agent.settings import Settings
from lakewarden.agent.watching import follower as following_rules, watcher
from lakewarden.agent.watching.catalog import Catalog, TableName
from lakewarden.agent.watching.catalogs import catalogs
from lakewarden.agent.watching.files import Buckets, UnreadableTableError
from lakewarden.agent.watching.iceberg import CatalogFollower
from lakewarden.agent.watching.pyiceberg_catalogs import HiveCatalog, SqlCatalog
from lakewarden.agent.watching.rest_catalog import RestCatalog
from lakewarden.events import CommitCompleted
from lakewarden.handlers.observations import ObservedCommit
from tests.recorded_delta import commit
from tests.recorded_iceberg import move, moved
from tests.servers.faulty_http import Reply, faulty_server
from tests.tuned import tuned
from tests.unit.agent.watching.lake import QUICK, Lake, Published, logged, looked_at, watching
from tests.waiting import until

FLIGHTS = TableName("prod", ("air",), "flights")
SECRET = "planted-hunter2"
FOREIGN = [
    "4566699494934865161",
    "6329998602131582366",
    "3916602019452908686",
    "2467974080789898127",
    "287767109476664144",
]
"""The snapshots of the recorded table that aren't the gate's: those of versions 2, 3, 4, 5 and 8."""


@dataclass
class Server:
    """Iceberg's REST protocol, for recorded tables that the test sets to versions."""

    location: str
    tables: dict[str, int] = field(default_factory=lambda: {"flights": 1})
    """Version by name. They differ in their locations."""
    has_etags: bool = True
    lists_newest_only: bool = False
    """As Nessie: without its parent, and with no notice of `snapshots`."""
    uuid: str = "9993056d-ae88-4ddd-bfbc-af06936ca0e1"
    received: list[web.Request] = field(default_factory=list)
    uri: str = ""

    def metadata(self, table: str, *, refs: bool) -> dict[str, Any]:
        location = self.location if table == "flights" else f"{self.location}-{table}"
        found = moved(self.tables[table], location) | {"table-uuid": self.uuid}
        if refs or self.lists_newest_only:
            found["snapshots"] = found.get("snapshots", [])[-1:]
        if self.lists_newest_only:
            for each in found["snapshots"]:
                each.pop("parent-snapshot-id", None)
        return found

    async def answer(self, request: web.Request) -> web.Response:
        self.received.append(request)
        match request.path.split("/")[1:]:
            case ["v1", "config"]:
                fields: Any = {"defaults": {}, "overrides": {"prefix": "main"}}
            case ["v1", "main", "namespaces", "air", "tables"]:
                first, *others = [{"namespace": ["air"], "name": each} for each in self.tables]
                fields = {"identifiers": others} if "pageToken" in request.query else {
                    "identifiers": [first], "next-page-token": "2" if others else None
                }  # fmt: skip
            case ["v1", "main", "namespaces", "air", "tables", table] if table in self.tables:
                refs = request.query["snapshots"] == "refs"
                etag = f'"{table}-{self.tables[table]}-{refs}"'
                headers = {"ETag": etag} if self.has_etags else {}
                if self.has_etags and request.headers.get("If-None-Match") == etag:
                    return web.Response(status=304, headers=headers)
                metadata = self.metadata(table, refs=refs)
                pointer = (
                    f"{metadata['location']}/metadata/0000{self.tables[table]}-{self.uuid}.metadata.json"
                )
                fields = {
                    "metadata-location": pointer,
                    "metadata": metadata,
                    "config": {"n": len(self.received)},
                }
                return web.json_response(fields, headers=headers)
            case _:
                error = {
                    "message": f"Table does not exist: {request.path}",
                    "type": "NoSuchTableException",
                    "code": 404,
                }
                return web.json_response({"error": error}, status=404)
        return web.json_response(fields)


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    made = Server(move(tmp_path.resolve() / "flights"))
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    made.uri = f"http://{host}:{port}"
    yield made
    await runner.cleanup()


def settings_of(uri: str, *watch: str, **properties: str) -> Settings:
    given: Any = {"prod": {"type": "rest", "uri": uri, **properties}}
    return tuned(catalogs=given, watch=watch, watch_seconds=0.01, watch_idle_seconds=0.01)


def follower_of(
    server: Server, is_own: Callable[[str], bool] = lambda _: True
) -> AbstractAsyncContextManager[tuple[CatalogFollower, Catalog]]:
    return following(settings_of(server.uri), is_own)


@asynccontextmanager
async def following(
    settings: Settings, is_own: Callable[[str], bool] = lambda _: True
) -> AsyncIterator[tuple[CatalogFollower, Catalog]]:
    catalog = catalogs(settings)["prod"]
    yield CatalogFollower(FLIGHTS, catalog, Buckets(settings), is_own), catalog
    await catalog.close()


async def versions(follower: CatalogFollower) -> list[str]:
    return [each.version for each in (await follower.look()).seen if isinstance(each, ObservedCommit)]


@pytest.mark.parametrize(
    ("has_etags", "lists_newest_only"),
    [(True, False), (False, False), (False, True)],
    ids=["etags", "none", "as Nessie"],
)
async def test_foreign_commits_are_reported_and_an_idle_look_is_one_request(
    server: Server, *, has_etags: bool, lists_newest_only: bool
) -> None:
    """Version 6 has no new snapshot, and version 7 is the gate's."""
    server.has_etags, server.lists_newest_only = has_etags, lists_newest_only
    seen: list[str] = []
    async with follower_of(server) as (follower, catalog):
        for number in range(1, 9):
            server.tables["flights"] = number
            seen += await versions(follower)
            before = catalog.requests
            assert await versions(follower) == []
            assert catalog.requests == before + 1

    assert follower.uri == server.location
    assert seen == FOREIGN
    assert {each.headers.get("Authorization") for each in server.received} == {None}


@pytest.mark.parametrize(("newest_only", "expected"), [(False, FOREIGN[1:]), (True, FOREIGN[-1:])])
async def test_several_commits_between_two_looks(
    server: Server, *, newest_only: bool, expected: list[str]
) -> None:
    """Where the catalog lists the newest one only, the others are lost, which is logged once."""
    server.lists_newest_only = newest_only
    seen: list[str] = []
    with capture_logs() as logs:
        async with follower_of(server) as (follower, _):
            for number in (2, 5, 8):
                server.tables["flights"] = number
                seen += await versions(follower)

    assert seen == (["2467974080789898127", *expected] if newest_only else expected)
    assert [each["event"] for each in logs].count("watch.history-cut") == int(newest_only)


@pytest.mark.parametrize(
    ("number", "changes", "event", "reported"),
    [
        pytest.param(3, {}, None, [], id="the branch was set back"),
        pytest.param(8, {"uuid": "1"}, "watch.position-lost", [], id="dropped and created again"),
        pytest.param(8, {"location": "file:///elsewhere"}, "watch.position-lost", [], id="elsewhere"),
    ],
)
async def test_another_state_of_the_table_reports_no_commit_twice(
    server: Server, number: int, changes: dict[str, str], event: str | None, reported: list[str]
) -> None:
    server.tables["flights"] = 5
    with capture_logs() as logs:
        async with follower_of(server) as (follower, _):
            await follower.look()
            before = {key: getattr(server, key) for key in changes}
            for values, version in ((changes, number), (before, 5)):
                server.tables["flights"] = version
                for key, value in values.items():
                    setattr(server, key, value)
                assert await versions(follower) == reported

    assert {each["event"] for each in logs} == {"watch.table"} | ({event} if event else set())


async def test_a_snapshot_that_can_not_be_read_is_read_again_and_left_behind_for_a_newer_one(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.tables["flights"] = 2
    folder = Path(server.location.removeprefix("file://"), "metadata")
    (manifest,) = folder.glob(f"snap-{FOREIGN[1]}-*.avro")
    body = manifest.read_bytes()
    manifest.unlink()
    async with follower_of(server) as (follower, _):
        await follower.look()
        server.tables["flights"] = 3
        looks = [await follower.look(), await follower.look()]
        manifest.write_bytes(body)
        assert await versions(follower) == [FOREIGN[1]]
        (list_of_4,) = folder.glob(f"snap-{FOREIGN[2]}-*.avro")
        list_of_4.unlink()
        server.tables["flights"] = 5
        assert await versions(follower) == []
        monkeypatch.setattr(following_rules, "UNREADABLE_SECONDS", 0.0)
        assert await versions(follower) == [FOREIGN[2], FOREIGN[3]]

    for look in looks:
        assert not look.complete
        ((path, _),) = look.problems
        assert path.endswith(manifest.name)


async def test_a_table_of_another_agents_partition_is_followed_when_it_comes(server: Server) -> None:
    """Its manifests are not read before."""
    own: set[str] = set()
    async with follower_of(server, is_own=own.__contains__) as (follower, _):
        for number in (2, 3):
            server.tables["flights"] = number
            assert await versions(follower) == []
        assert (follower.began, follower.files and follower.files.requests) == (False, 0)
        own.add(server.location)
        assert await versions(follower) == []
        server.tables["flights"] = 4
        assert await versions(follower) == [FOREIGN[2]]
        own.clear()
        server.tables["flights"] = 5
        assert await versions(follower) == []


async def test_the_tables_of_a_namespace_are_found_watched_and_left(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events have the URI. A table that is listed no longer was dropped; its looks fail meanwhile."""
    monkeypatch.setattr(watcher, "DISCOVERY_SECONDS", 0.02)
    monkeypatch.setattr(watcher, "ABSENT_SECONDS", 0.05)
    server.tables = {"other": 1, "flights": 1}
    published = Published()
    with capture_logs() as logs:
        async with watching(settings_of(server.uri, "prod:air.fl*"), published) as running:
            await until(lambda: running.tables and all(each.looked_at for each in running.tables.values()))
            assert list(running.tables) == ["prod:air.flights"]
            server.tables["flights"] = 2
            await published.until(CommitCompleted)
            del server.tables["flights"]
            await until(lambda: not running.tables)

    assert {each.table for each in published} == {server.location}
    events = [each["event"] for each in logs]
    assert [
        events.count(each) for each in ("watch.table-found", "watch.table-unreadable", "watch.table-dropped")
    ] == [1, 1, 1]
    (line,) = [each["why"] for each in logs if each["event"] == "watch.table-unreadable"]
    assert line.startswith("table air.flights of catalog prod: HTTP 404: Table does not exist")


async def test_a_table_that_the_agents_do_not_serve_is_named_once(server: Server) -> None:
    with capture_logs() as logs:
        settings = settings_of(server.uri, "prod:air.flights")
        async with watching(settings, Published(), is_own=lambda _: False) as running:
            await logged(logs, "watch.not-allowed")
            running.reassign()
            await until(lambda: len(server.received) >= 3)

    (line,) = [each for each in logs if each["event"] == "watch.not-allowed"]
    assert (line["table"], line["name"]) == (server.location, "prod:air.flights")


async def test_a_catalog_that_hangs_delays_no_other_table(tmp_path: Path) -> None:
    log = tmp_path.resolve() / "days" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_bytes(commit("days", 0))
    async with faulty_server([Reply(fault="silence")]) as server:
        entries = (
            "prod:air.*",
            *(f"prod:air.{number}" for number in range(50)),
            f"file://{tmp_path.resolve()}/*",
        )
        async with watching(settings_of(server.endpoint, *entries), Published()) as running:
            await looked_at(running, f"file://{log.parent}")
            assert server.received


CONFIG = Reply(body=b'{"defaults": {}, "overrides": {}}')
TABLE = Reply(
    body=json.dumps(
        {"metadata-location": "s3://b/t/metadata/1.metadata.json", "metadata": {"format-version": 2}}
    ).encode()
)
QUOTING = json.dumps({"error": {"message": f"not me: {SECRET}", "type": "T", "code": 500}}).encode()
FORBIDDEN = json.dumps(
    {"error": {"message": "not\n permitted", "type": "ForbiddenException", "code": 403}}
).encode()
TOKEN = json.dumps({"access_token": "t1", "token_type": "bearer", "expires_in": 3600}).encode()
SECOND = TOKEN.replace(b"t1", b"t2")


@pytest.mark.parametrize(
    ("script", "properties", "why"),
    [
        pytest.param([Reply(401, body=SECRET.encode())], {"token": SECRET}, "HTTP 401; check its credential", id="401"),
        pytest.param([CONFIG, Reply(419)], {"token": SECRET}, "HTTP 419; its token has expired", id="419"),
        pytest.param([CONFIG, Reply(403, body=FORBIDDEN)], {}, "HTTP 403: not permitted (ForbiddenException); permit", id="403"),
        pytest.param([Reply(404, body=b"<html>")], {}, "HTTP 404", id="no catalog here"),
        pytest.param([CONFIG, Reply(503, body=b"[]")], {}, "HTTP 503", id="503"),
        pytest.param([CONFIG, Reply(500, body=QUOTING)], {"token": SECRET}, "HTTP 500", id="quotes a token"),
        pytest.param([CONFIG, Reply(500, body=QUOTING)], {"header.x-key": SECRET}, "HTTP 500", id="quotes a header"),
        pytest.param([Reply(body=b'{"overrides": [1]}'), CONFIG], {}, "no metadata", id="a configuration of another form"),
        pytest.param([Reply(301, (("Location", "https://x/"),))], {}, "HTTP 301 to https://x/; set uri to that", id="moved"),
        pytest.param([Reply(body=b"<html>")], {}, "not a JSON object; is uri that of", id="a web page"),
        pytest.param([CONFIG, Reply(body=b"[" * 100_000)], {}, "not a JSON object", id="nested without end"),
        pytest.param([CONFIG, CONFIG], {}, "the answer has no metadata", id="no table"),
        pytest.param([CONFIG, Reply(fault="silence")], {}, "no answer within 0.3 s", id="hangs"),
        pytest.param([CONFIG, Reply(fault="drip")], {}, "no answer within 0.3 s", id="drips"),
        pytest.param([CONFIG, Reply(fault="hang")], {}, "no answer within 0.3 s", id="hangs in its answer"),
        pytest.param([CONFIG, Reply(fault="reset")], {}, "", id="resets"),
        pytest.param([CONFIG, Reply(body=b"{}", fault="cut")], {}, "", id="cut"),
        pytest.param([CONFIG], {"token-file": "/none"}, "token-file can't be read", id="no file"),
        pytest.param([CONFIG], {"ssl.cabundle": "/none"}, "ssl.cabundle=/none can't be read", id="no authorities"),
        pytest.param(
            [Reply(400, body=b'{"error": "invalid_client", "error_description": "%s"}' % SECRET.encode())],
            {"credential": f"me:{SECRET}"}, "answers 400 (invalid_client); check credential", id="refused at the token endpoint",
        ),
        pytest.param([Reply(body=b"{}")], {"credential": SECRET}, "has no access_token", id="no token"),
        pytest.param(
            [Reply(body=TOKEN), CONFIG, Reply(401), Reply(body=SECOND), Reply(401)],
            {"credential": f"me:{SECRET}"}, "HTTP 401; check its credential", id="refused with a new token, too",
        ),
    ],
)  # fmt: skip
async def test_a_failure_is_one_line_with_the_catalog_and_the_table(
    script: list[Reply], properties: dict[str, str], why: str
) -> None:
    async with faulty_server(script) as running:
        catalog = RestCatalog(
            "prod", {"uri": running.endpoint, **properties}, timeout=0.3 if "0.3" in why else 60.0
        )
        with pytest.raises(UnreadableTableError) as caught:
            await catalog.load(FLIGHTS, None)
        await catalog.close()

    text = str(caught.value)
    assert text.startswith("table air.flights of catalog prod: ")
    assert why in text
    assert "\n" not in text
    assert SECRET not in text
    assert len(text) < 400


async def test_an_answer_without_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakewarden.agent.watching.rest_catalog.MAX_FILE_BYTES", 1000)
    async with faulty_server([CONFIG, Reply(body=b" " * 2000)]) as running:
        catalog = RestCatalog("prod", {"uri": running.endpoint}, timeout=60.0)
        with pytest.raises(UnreadableTableError, match="more than 1,000 bytes"):
            await catalog.load(FLIGHTS, None)
        await catalog.close()


async def requests_of(script: list[Reply], properties: dict[str, str], *, loads: int = 1) -> list[str]:
    """The requests of some loads: path, and what authorizes them."""
    async with faulty_server(script) as running:
        catalog = RestCatalog("prod", {"uri": f"{running.endpoint}/", **properties}, timeout=60.0)
        for _ in range(loads):
            with suppress(UnreadableTableError):
                await catalog.load(FLIGHTS, None)
        await catalog.close()
    return [f"{each.path} {each.headers.get('authorization', '')}".strip() for each in running.received]


RENEW = "/v1/oauth/tokens"
LOAD = "/v1/namespaces/air/tables/flights?snapshots=refs"


@pytest.mark.parametrize(
    ("script", "properties", "expected"),
    [
        pytest.param([CONFIG, TABLE], {}, ["/v1/config", LOAD, LOAD], id="none"),
        pytest.param(
            [CONFIG, TABLE], {"token": "x", "warehouse": "a b"},
            ["/v1/config?warehouse=a+b Bearer x", f"{LOAD} Bearer x", f"{LOAD} Bearer x"], id="a token",
        ),
        pytest.param(
            [Reply(body=b'{"overrides": {"prefix": "main|x", "token-file": "/etc/passwd"}}'), TABLE], {},
            ["/v1/config", *2 * ["/v1/main%7Cx/namespaces/air/tables/flights?snapshots=refs"]], id="a prefix",
        ),
        pytest.param(
            [Reply(body=TOKEN), CONFIG, TABLE], {"credential": "me:x"},
            [RENEW, "/v1/config Bearer t1", f"{LOAD} Bearer t1", f"{LOAD} Bearer t1"], id="one token serves all",
        ),
        pytest.param(
            [Reply(body=TOKEN), CONFIG, Reply(419), Reply(body=SECOND), TABLE], {"credential": "me:x"},
            [RENEW, "/v1/config Bearer t1", f"{LOAD} Bearer t1", RENEW, *2 * [f"{LOAD} Bearer t2"]], id="renewed after a 419",
        ),
        pytest.param(
            [Reply(body=TOKEN.replace(b"3600", b"0")), CONFIG, Reply(body=SECOND), TABLE], {"credential": "me:x"},
            [RENEW, "/v1/config Bearer t1", RENEW, *2 * [f"{LOAD} Bearer t2"]], id="renewed before it ends",
        ),
    ],
)  # fmt: skip
async def test_how_requests_are_authorized(
    script: list[Reply], properties: dict[str, str], expected: list[str]
) -> None:
    assert await requests_of(script, properties, loads=2) == expected


async def test_a_token_that_is_valid_serves_while_its_endpoint_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("lakewarden.agent.watching.rest_catalog.monotonic", lambda: now)
    async with faulty_server([Reply(body=TOKEN), CONFIG, TABLE, Reply(503), TABLE, Reply(503)]) as running:
        catalog = RestCatalog("prod", {"uri": running.endpoint, "credential": "me:x"}, timeout=60.0)
        await catalog.load(FLIGHTS, None)
        now += 3000
        await catalog.load(FLIGHTS, None)
        now += 3000
        with pytest.raises(UnreadableTableError, match="answers 503"):
            await catalog.load(FLIGHTS, None)
        await catalog.close()
    form = running.received[0].body.decode()

    assert form == "grant_type=client_credentials&scope=catalog&client_id=me&client_secret=x"


async def test_the_environments_proxy_is_used_except_for_hosts_of_no_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with faulty_server([CONFIG, TABLE, CONFIG, TABLE]) as proxy:
        monkeypatch.setenv("http_proxy", proxy.endpoint)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        for uri in ("http://catalog.test", proxy.endpoint):
            catalog = RestCatalog("prod", {"uri": uri}, timeout=60.0)
            await catalog.load(FLIGHTS, None)
            await catalog.close()

    there = "http://catalog.test"
    assert [each.path for each in proxy.received] == [
        f"{there}/v1/config",
        f"{there}{LOAD}",
        "/v1/config",
        LOAD,
    ]


@pytest.mark.parametrize("place", ["rest.signing-region", "AWS_DEFAULT_REGION", "AWS_REGION"])
async def test_requests_are_signed_for_aws(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    properties = {"rest.sigv4-enabled": "true", "rest.signing-name": "glue"}
    if place.startswith("AWS"):
        monkeypatch.setenv(place, "eu-central-1")
    else:
        properties[place] = "eu-central-1"

    config, table = await requests_of([CONFIG, TABLE], properties)

    for line in (config, table):
        assert "AWS4-HMAC-SHA256 Credential=AKID/" in line
        assert "/eu-central-1/glue/aws4_request" in line


class Database:
    """`iceberg_tables` as Iceberg's JdbcCatalog makes it, in SQLite. Version 0 has no types: all are tables."""

    def __init__(self, folder: Path, *, has_types: bool = True) -> None:
        self.path, self._has_types = folder / "a catalog.db", has_types
        kind = ", iceberg_type" * has_types
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute(
                "CREATE TABLE iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, "
                f"previous_metadata_location{kind})"
            )
            connection.execute(
                "CREATE TABLE iceberg_namespace_properties (catalog_name, namespace, property_key, property_value)"
            )

    def point(self, table: str, location: str, kind: str | None = "TABLE") -> None:
        row = ("prod", "air", table, location, None, kind)[: 6 if self._has_types else 5]
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute("DELETE FROM iceberg_tables WHERE table_name = ?", (table,))
            marks = ", ".join("?" * len(row))
            connection.execute(f"INSERT INTO iceberg_tables VALUES ({marks})", row)  # noqa: S608


def metadata_file(location: str, number: int) -> str:
    """Write a version of the recorded table. Return the URI of its file."""
    path = Path(location.removeprefix("file://"), "metadata", f"0000{number}-a.metadata.json")
    path.write_text(json.dumps(moved(number, location)))
    return f"file://{path}"


@pytest.mark.parametrize("has_types", [True, False], ids=["version 1", "version 0"])
async def test_a_table_of_a_sql_catalog(tmp_path: Path, has_types: bool) -> None:
    """An idle look is one load of pyiceberg's, and reads no file. A view is no table."""
    location = move(tmp_path.resolve() / "flights")
    database = Database(tmp_path, has_types=has_types)
    settings = Settings(catalogs={"prod": {"type": "sql", "uri": f"sqlite:///{database.path}"}})  # type: ignore[dict-item]
    seen: list[str] = []
    async with following(settings) as (follower, catalog):
        with pytest.raises(UnreadableTableError, match="of catalog prod: there is no such table"):
            await follower.look()
        if has_types:
            database.point("view", "file:///v", "VIEW")
        for number in range(1, 9):
            database.point("flights", metadata_file(location, number), None)
            seen += await versions(follower)
            requests = catalog.requests
            assert await versions(follower) == []
            assert catalog.requests == requests + 1
        tables = await catalog.tables(("air",))

    assert (seen, tables) == (FOREIGN, ["flights"])


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("sqlite:////none/at/all.db", "OperationalError: unable to open database file"),
        (f"oracle://me:{SECRET}@host/db", "ModuleNotFoundError: No module named"),
        (f"nonsense://me:{SECRET}@host/db", "NoSuchModuleError: Can't load plugin"),
        (f"postgresql://me:{SECRET}@127.0.0.1:1/db", "OperationalError: connection failed"),
        (SECRET, "ArgumentError: Could not parse"),
    ],
)
async def test_a_database_that_can_not_be_read_is_named(uri: str, why: str) -> None:
    catalog = SqlCatalog("prod", {"uri": uri}, timeout=60.0)
    with pytest.raises(UnreadableTableError) as caught:
        await catalog.tables(("air",))
    await catalog.close()

    assert str(caught.value).startswith(f"namespace air of catalog prod: {why}")
    assert SECRET not in str(caught.value)


async def test_a_database_without_catalog_is_named_and_stays_as_it_is(tmp_path: Path) -> None:
    """pyiceberg would create its tables, and SQLite an absent file."""
    empty, absent = tmp_path / "empty.db", tmp_path / "absent.db"
    empty.touch()
    for path, why in ((empty, "no such table: iceberg_"), (absent, "unable to open database file")):
        catalog = SqlCatalog("prod", {"uri": f"sqlite:///{path}"}, timeout=60.0)
        with pytest.raises(UnreadableTableError, match=f"of catalog prod: OperationalError: {why}"):
            await catalog.load(FLIGHTS, None)
        await catalog.close()

    assert empty.stat().st_size == 0
    assert not absent.exists()


@pytest.mark.parametrize("kind", ["sql", "hive"])
async def test_without_the_extra_a_catalog_costs_its_own_tables_and_one_line(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watcher goes on: it isn't started again and again."""
    lake = Lake(tmp_path)
    monkeypatch.delitem(sys.modules, "lakewarden.agent.watching.pyiceberg_catalogs")
    monkeypatch.delattr("lakewarden.agent.watching.pyiceberg_catalogs")
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    others: Any = {"a": {"type": "rest", "uri": "http://x"}, "b": {"type": "glue"}}
    assert len(catalogs(Settings(catalogs=others))) == 2
    lake.commit(0)
    tables = ("prod:air.*", lake.at("days"))
    settings = tuned(watch=tables, catalogs={"prod": {"type": kind, "uri": "x"}}, **QUICK)
    with capture_logs() as logs:
        async with watching(settings, Published()) as watcher:
            await looked_at(watcher, lake.at("days"))
            await logged(logs, "watch.glob-unreadable")

    (line,) = (each for each in logs if each["log_level"] != "info")
    assert f"type {kind} needs pyiceberg: pip install 'lakewarden[catalogs]'" in line["why"]


def glue_error(code: str) -> Reply:
    return Reply(400, body=json.dumps({"__type": code, "Message": "said so"}).encode())


@pytest.mark.parametrize("place", ["glue.region", "AWS_REGION"])
async def test_a_table_of_glue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """The answers are those of Glue's protocol, from a server of the test: no account of AWS was used."""
    location = move(tmp_path.resolve() / "flights")

    def table(number: int) -> dict[str, Any]:
        found = metadata_file(location, number)
        return {"Name": "flights", "Parameters": {"metadata_location": found, "table_type": "ICEBERG"}}

    def answer(fields: dict[str, Any]) -> Reply:
        return Reply(
            headers=(("Content-Type", "application/x-amz-json-1.1"),), body=json.dumps(fields).encode()
        )

    script = [answer({"Table": table(number)}) for number in (1, 2, 2, 5)]
    script += [
        answer({"Table": {"Name": "flights"}}),
        glue_error("EntityNotFoundException"),
        glue_error("AccessDeniedException"),
    ]
    script += [answer({"TableList": [table(1)], "NextToken": "2"}), answer({"TableList": [{"Name": "hive"}]})]
    async with faulty_server(script) as running:
        given: Any = {"type": "glue", "glue.endpoint": running.endpoint, "glue.id": "12"}
        if place.startswith("AWS"):
            monkeypatch.setenv(place, "eu-central-1")
        else:
            given[place] = "eu-central-1"
        keys = {"glue.access-key-id": "AKID", "glue.secret-access-key": SECRET}
        async with following(Settings(catalogs={"prod": given | keys})) as (follower, catalog):
            seen = [await versions(follower) for _ in range(4)]
            for why in (
                "it is not an Iceberg table",
                "Glue answers EntityNotFoundException: said so",
                "Glue answers AccessDenied",
            ):
                with pytest.raises(UnreadableTableError, match=f"of catalog prod: {why}"):
                    await follower.look()
            tables = await catalog.tables(("air",))

    assert seen == [[], FOREIGN[:1], [], FOREIGN[1:4]]
    assert tables == ["flights"]
    first = running.received[0]
    assert first.headers["x-amz-target"] == "AWSGlue.GetTable"
    assert json.loads(first.body) == {"DatabaseName": "air", "Name": "flights", "CatalogId": "12"}


@pytest.mark.parametrize("kind", ["glue", "rest"])
async def test_a_credentials_file_that_another_program_renews_is_read_again_after_a_refusal(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, text = (
        tmp_path / "credentials",
        f"[default]\naws_access_key_id={{}}\naws_secret_access_key={SECRET}\n",
    )
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    refusal = glue_error("ExpiredTokenException") if kind == "glue" else Reply(403)
    async with faulty_server([refusal]) as running:
        properties = {
            "glue": {"type": "glue", "glue.endpoint": running.endpoint},
            "rest": {"type": "rest", "uri": running.endpoint, "rest.sigv4-enabled": "true"},
        }
        given: Any = {"prod": properties[kind]}
        async with following(Settings(catalogs=given)) as (_, catalog):
            for key in ("first", "second", "second"):
                keys.write_text(text.format(key))
                with pytest.raises(UnreadableTableError):
                    await catalog.tables(("air",))

    signed = [each.headers["authorization"].partition("Credential=")[2] for each in running.received]
    assert [each.partition("/")[0] for each in signed] in (
        ["first", "first", "second"],
        ["first", "second", "second"],
    )


HIVE_TABLE = {1: (11, "flights"), 9: (13, {"metadata_location": "file:///m/1.json"})}


def thrift(fields: dict[int, tuple[int, Any]], kind: int = 2) -> bytes:
    """An answer of Hive's metastore."""

    def text(each: str) -> bytes:
        return struct.pack(">i", len(each)) + each.encode()

    def value(type_: int, each: Any) -> bytes:
        match type_:
            case 11:
                return text(each)
            case 12:
                return fields_of(each)
            case 13:
                return struct.pack(">bbi", 11, 11, len(each)) + b"".join(
                    text(word) for pair in each.items() for word in pair
                )
            case _:
                return struct.pack(">bi", 11, len(each)) + b"".join(map(text, each))

    def fields_of(given: dict[int, tuple[int, Any]]) -> bytes:
        return (
            b"".join(
                struct.pack(">bh", type_, number) + value(type_, each)
                for number, (type_, each) in given.items()
            )
            + b"\0"
        )

    return struct.pack(">I", 0x80010000 | kind) + text("get_table") + struct.pack(">i", 0) + fields_of(fields)


VENDED = {"s3.access-key-id": "VENDED", "s3.secret-access-key": SECRET, "s3.session-token": "of-session"}


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"config": VENDED}, "VENDED"),
        ({"config": {"s3.remote-signing-enabled": "true"}}, "OWN"),
        (
            {
                "config": VENDED,
                "storage-credentials": [
                    {"prefix": "s3://lake", "config": VENDED},
                    {"prefix": "s3://lake/air/", "config": VENDED | {"s3.access-key-id": "LONGEST"}},
                    {"prefix": "s3://other", "config": VENDED | {"s3.access-key-id": "OTHER"}},
                ],
            },
            "LONGEST",
        ),
    ],
    ids=["vended", "signed by the catalog", "by prefix"],
)
async def test_files_are_read_with_the_credentials_that_the_catalog_vends(
    fields: dict[str, Any], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store refuses; its requests show the credentials."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "OWN")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    first, second = (
        Reply(body=json.dumps({"metadata": moved(number, "s3://lake/air/flights"), **fields}).encode())
        for number in (1, 2)
    )
    async with faulty_server([Reply(403)]) as store, faulty_server([CONFIG, first, second]) as running:
        settings = settings_of(running.endpoint).model_copy(update={"s3_endpoint": store.endpoint})
        async with following(settings) as (follower, _):
            await follower.look()
            look = await follower.look()

    assert not look.complete
    headers = store.received[0].headers
    assert f"Credential={key}/" in headers["authorization"]
    assert headers.get("x-amz-security-token") == (None if key == "OWN" else "of-session")


HIVE_ANSWERS = {
    "a table": (thrift({0: (12, HIVE_TABLE)}), "file:///m/1.json"),
    "no table of Iceberg": (thrift({0: (12, {9: (13, {})})}), "it is not an Iceberg table"),
    "no table": (
        thrift({1: (12, {1: (11, "of Hive")}), 2: (12, {1: (11, "no such table")})}),
        "the metastore: ",
    ),
    "another metastore": (thrift({1: (11, "Invalid method name")}, kind=3), "Invalid method name"),
    "no Thrift": (b"HTTP/1.1 400 Bad Request", "No protocol version header"),
    "cut": (thrift({0: (12, HIVE_TABLE)})[:-9], "the metastore: "),
    "a text of 2 GB": (thrift({})[:-1] + struct.pack(">bhi", 11, 0, 2**31 - 1), "the metastore: "),
    "nested without end": (thrift({})[:-1] + struct.pack(">bh", 12, 7) * 10_000, "the metastore: "),
}


@asynccontextmanager
async def metastore(answer: bytes, pause: float = 0.0) -> AsyncIterator[str]:
    """One that gives the same answer to each call, in pieces."""

    async def serve(stream: ByteStream) -> None:
        async with stream:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                await stream.receive()
                for start in range(0, len(answer), 7):
                    await stream.send(answer[start : start + 7])
                    await anyio.sleep(pause)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield f"thrift://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(("answer", "found"), HIVE_ANSWERS.values(), ids=HIVE_ANSWERS)
async def test_the_answers_of_hives_metastore(answer: bytes, found: str) -> None:
    """The first address of two doesn't answer."""
    async with metastore(answer) as uri:
        catalog = HiveCatalog("prod", {"uri": f"thrift://127.0.0.1:1, {uri}"}, timeout=60.0)
        try:
            text = (await catalog.load(FLIGHTS, None)).pointer
        except UnreadableTableError as error:
            text = str(error)
            assert text.startswith("table air.flights of catalog prod: ")

    assert found in text
    assert len(text) < 400


@pytest.mark.parametrize("pause", [60.0, 0.3], ids=["hangs", "drips"])
async def test_a_metastore_that_doesnt_end_its_answer_frees_the_thread(pause: float) -> None:
    async with metastore(thrift({0: (12, HIVE_TABLE)}), pause) as uri:
        catalog = HiveCatalog("prod", {"uri": uri}, timeout=0.5)
        with pytest.raises(UnreadableTableError, match=r"no answer within 0.5 s|the metastore: "):
            await catalog.load(FLIGHTS, None)
        await until(lambda: catalog._thread.borrowed_tokens == 0)


def test_settings_of_catalogs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Properties come from the file and from the environment, and are not shown."""
    config = tmp_path / "lakewarden.toml"
    config.write_text(
        'watch = ["prod:air.*"]\n[catalogs.prod]\ntype = "rest"\nuri = "http://x"\nrest.sigv4-enabled = true\nn = 5\n'
    )
    monkeypatch.setenv("LAKEWARDEN_CATALOGS", json.dumps({"prod": {"credential": SECRET}}))

    settings = Settings.load(config)

    found = {key: each.get_secret_value() for key, each in settings.catalogs["prod"].items()}
    assert found == {
        "type": "rest", "uri": "http://x", "rest.sigv4-enabled": "true", "n": "5", "credential": SECRET,
    }  # fmt: skip
    assert SECRET not in f"{settings!r} {settings.model_dump()} {settings.model_dump_json()}"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            {"watch": "prod:air.flights"},
            "'prod:air.flights' is of a catalog that catalogs doesn't have; it has: none",
        ),
        ({"catalogs": {"prod": {"uri": SECRET}}}, "type of 'prod' is 'missing'; use rest, sql, glue, hive"),
        ({"catalogs": {"prod": {"type": "rest"}}}, "'prod' has no uri"),
        ({"watch": "prod:*.flights"}, "is not a table URI"),
        ({"tables": "prod:air.flights"}, "is not a table URI"),
    ],
)
def test_a_wrong_setting_is_named(given: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.load(**given)

    assert why in str(caught.value)
    assert SECRET not in str(caught.value)
