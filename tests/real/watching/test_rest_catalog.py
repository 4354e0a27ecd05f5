"""A watcher and real REST servers: tables registered there, and commits made by the protocol's own requests."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from lakewarden.agent.settings import Settings
from lakewarden.agent.watching.catalog import Catalog, TableName
from lakewarden.agent.watching.catalogs import catalogs
from lakewarden.agent.watching.files import Buckets
from lakewarden.agent.watching.iceberg import CatalogFollower
from lakewarden.handlers.observations import ObservedCommit
from tests.recorded_iceberg import move, moved
from tests.servers.iceberg_catalogs import running_nessie, running_postgresql, running_rest_catalog
from tests.servers.s3 import encrypting_s3_server
from tests.tuned import tuned
from tests.unit.agent.watching.lake import Published, watching
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.wide]

NAME = "prod:air.flights"


@dataclass
class RestTable:
    """The recorded table in a REST server."""

    uri: str
    location: str
    database: str = ""
    """Of the server's own catalog, a JdbcCatalog."""
    prefix: str = "v1"

    def post(self, path: str, body: dict[str, Any]) -> None:
        request = urllib.request.Request(  # noqa: S310 - of this machine
            f"{self.uri}/{self.prefix}/{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            urllib.request.urlopen(request).close()  # noqa: S310 - likewise
        except urllib.error.HTTPError as error:
            pytest.fail(error.read().decode())

    def register(self, metadata: str) -> None:
        self.post("namespaces", {"namespace": ["air"]})
        self.post("namespaces/air/register", {"name": "flights", "metadata-location": metadata})

    def commit(self, *updates: dict[str, Any]) -> None:
        self.post("namespaces/air/tables/flights", {"requirements": [], "updates": list(updates)})

    def add_snapshot(self, version: int) -> str:
        """Commit the newest snapshot of a recorded version, and return its id."""
        snapshot = moved(version, self.location)["snapshots"][-1]
        main = {"ref-name": "main", "type": "branch", "snapshot-id": snapshot["snapshot-id"]}
        now = {
            "timestamp-ms": time.time_ns() // 1_000_000,
            "first-row-id": 0,
            "added-rows": 0,
        }  # rows: of format 3
        self.commit(
            {"action": "add-snapshot", "snapshot": snapshot | now}, {"action": "set-snapshot-ref", **main}
        )
        return str(snapshot["snapshot-id"])


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.matrix)])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RestTable]:
    folder = tmp_path.resolve() / "air" / "flights"
    location = move(folder)
    first = folder / "metadata" / "v1.metadata.json"
    first.write_text(json.dumps(moved(1, location)))
    with ExitStack() as servers:
        properties, database = (
            {"warehouse": f"file://{tmp_path}"},
            f"sqlite:///{tmp_path / 'rest-catalog.db'}",
        )
        if request.param == "postgresql":
            database = servers.enter_context(running_postgresql())
            properties["uri"] = f"jdbc:{database}"
        uri = servers.enter_context(running_rest_catalog(tmp_path, properties))
        made = RestTable(uri, location, database)
        made.register(f"file://{first}")
        made.commit({"action": "upgrade-format-version", "format-version": 3})
        yield made


def settings_of(table: RestTable) -> Settings:
    given: Any = {
        "prod": {"type": "rest", "uri": table.uri},
        "rest_backend": {"type": "sql", "uri": table.database},
    }
    return tuned(catalogs=given, watch=(NAME,), watch_seconds=0.1, watch_idle_seconds=0.1)


def follower_of(table: RestTable, entry: str) -> tuple[Catalog, CatalogFollower]:
    settings = settings_of(table)
    name = TableName.of(entry)
    assert name is not None
    catalog = catalogs(settings)[name.catalog]
    return catalog, CatalogFollower(name, catalog, Buckets(settings), lambda _: True)


async def test_a_commit_in_a_rest_catalog_is_reported_and_an_idle_look_is_one_request(
    table: RestTable,
) -> None:
    """The table has format 3. Version 7 is the gate's. The server's SQL catalog shows the same commits."""
    published = Published()
    sql, by_sql = follower_of(table, "rest_backend:air.flights")
    assert not (await by_sql.look()).seen
    async with watching(settings_of(table), published) as running:
        await until(lambda: NAME in running.tables and running.tables[NAME].looked_at is not None)
        expected = [await anyio.to_thread.run_sync(table.add_snapshot, 2)]
        await until(lambda: published.versions() == expected)
        expected += [await anyio.to_thread.run_sync(table.add_snapshot, version) for version in (3, 4, 5)]
        await anyio.to_thread.run_sync(table.add_snapshot, 7)
        expected.append(await anyio.to_thread.run_sync(table.add_snapshot, 8))
        await until(lambda: len(published.versions()) == len(expected))

    assert published.versions() == expected
    assert {each.table for each in published} == {table.location}
    seen = (await by_sql.look()).seen
    assert [each.version for each in seen if isinstance(each, ObservedCommit)] == expected
    assert by_sql.uri == table.location
    await sql.close()
    await idle_looks(table)


async def idle_looks(table: RestTable) -> None:
    """The requests of an idle look, and its CPU time, which is printed."""
    catalog, follower = follower_of(table, NAME)
    await follower.look()
    looks = 200
    requests, cpu = catalog.requests, time.process_time()
    for _ in range(looks):
        assert not (await follower.look()).seen
    cpu = (time.process_time() - cpu) / looks
    assert catalog.requests == requests + looks
    assert follower.files is not None
    assert follower.files.requests == 0
    await catalog.close()
    print(f"idle look at a table of a REST catalog: 1 request, {cpu * 1000:.2f} ms of CPU")


@pytest.mark.matrix
@pytest.mark.parametrize("vends", [True, False], ids=["vended", "own"])
async def test_a_table_of_nessie_is_read_with_credentials_that_it_vends_or_with_own_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, vends: bool
) -> None:
    """Nessie lists the newest snapshot only. It gets credentials from the store's STS."""
    with encrypting_s3_server() as s3:
        bucket = s3.bucket()
        folder, location = tmp_path / "flights", f"s3://{bucket}/warehouse/air/flights"
        move(folder, location)
        (folder / "metadata" / "first.json").write_text(json.dumps(moved(1, location)))
        for path in folder.rglob("*.*"):
            s3.put(f"{location}/{path.relative_to(folder)}", path.read_bytes())
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, "none" if vends and "KEY" in name else value)
        asked = {"header.X-Iceberg-Access-Delegation": "vended-credentials"} if vends else {}
        with running_nessie(tmp_path, bucket, s3, vends=vends) as uri:
            table = RestTable(uri, location, prefix="v1/main%7Cwarehouse")
            table.register(f"{location}/metadata/first.json")
            given: Any = {"prod": {"type": "rest", "uri": uri, "warehouse": "warehouse", **asked}}
            settings = tuned(catalogs=given, s3_endpoint=s3.endpoint)
            catalog = catalogs(settings)["prod"]
            flights = TableName.of(NAME)
            assert flights is not None
            follower = CatalogFollower(flights, catalog, Buckets(settings), lambda _: True)
            assert not (await follower.look()).seen
            for version in (2, 3):
                expected = table.add_snapshot(version)
                (seen,) = (await follower.look()).seen
                assert isinstance(seen, ObservedCommit)
                assert seen.version == expected
            await catalog.close()
    assert follower.uri == location
