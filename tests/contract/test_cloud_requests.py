"""The requests to Google and Azure, and the hosts that they are sent to.

The tests compare whole requests, because the emulators don't accept everything that obstore sends to the clouds:
fake-gcs-server doesn't know `x-goog-if-generation-match` (see `tests/servers/gcs.py`).
"""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from lakewarden.agent.locks.keeper import Stores
from lakewarden.agent.settings import Settings
from lakewarden.agent.stores import LocationError, open_store, probe
from lakewarden.agent.stores.cloud import CloudStore
from lakewarden.handlers.lease.conditional import (
    Found,
    IfMatch,
    Refused,
    Won,
)
from tests.contract.clouds import ABSENT, AZURE, GOOGLE, PATIENT_SECONDS, SECRET, Cloud, RealBucket, error
from tests.servers.azure import AzureServer
from tests.servers.faulty_http import Received, Reply, faulty_server

pytestmark = pytest.mark.usefixtures("cloud_credentials")


async def test_requests_to_google() -> None:
    """The condition is in the header that the XML API documents; the body is plain and in one piece."""
    async with faulty_server([GOOGLE.done()]) as server, GOOGLE.store(server) as store:
        await store.write(GOOGLE.uri, b"body", ABSENT)
        await store.write(GOOGLE.uri, b"other", IfMatch(GOOGLE.before))
        await store.read(GOOGLE.uri)

    path = "/bucket/locks%2Ft%2Ejson"
    common = {"accept": "*/*", "authorization": f"Bearer {SECRET}"}
    written = {**common, "content-type": "application/json"}
    assert [stable_parts(received) for received in server.received] == [
        (
            "PUT",
            path,
            {**written, "content-length": "4", "x-goog-if-generation-match": "0"},
            b"body",
        ),
        (
            "PUT",
            path,
            {**written, "content-length": "5", "x-goog-if-generation-match": GOOGLE.before},
            b"other",
        ),
        ("GET", path, common, b""),
    ]


async def test_requests_to_azure() -> None:
    async with faulty_server([AZURE.done()]) as server, AZURE.store(server) as store:
        await store.write(AZURE.uri, b"body", ABSENT)
        await store.write(AZURE.uri, b"other", IfMatch(AZURE.before))
        await store.read(AZURE.uri)

    path = "/account/container/locks/t.json"
    common = {"accept": "*/*", "x-ms-version": "2023-11-03"}
    written = {
        **common,
        "x-ms-blob-type": "BlockBlob",
        "x-ms-blob-content-type": "application/json",
    }
    assert [stable_parts(received) for received in server.received] == [
        ("PUT", path, {**written, "content-length": "4", "if-none-match": "*"}, b"body"),
        ("PUT", path, {**written, "content-length": "5", "if-match": AZURE.before}, b"other"),
        ("GET", path, {**common, "content-length": "0"}, b""),
    ]
    for received in server.received:
        assert received.headers["authorization"].startswith("SharedKey account:")
        assert SECRET not in received.headers["authorization"]


def stable_parts(received: Received) -> tuple[str, str, dict[str, str], bytes]:
    """A request without the headers that differ between runs or machines."""
    variable = {"host", "user-agent", "date", "x-ms-date"}
    if received.headers["authorization"].startswith("SharedKey"):
        variable.add("authorization")
    headers = {name: value for name, value in received.headers.items() if name not in variable}
    return received.method, received.path, headers, received.body


async def test_a_probe_makes_four_requests(cloud: Cloud) -> None:
    async with (
        faulty_server([cloud.done(), error(412), error(412), Reply(204)]) as server,
        cloud.store(server) as store,
    ):
        await probe(store, cloud.uri.rpartition("/")[0])

    assert len(server.received) == 4
    assert [received.method for received in server.received[:3]] == ["PUT"] * 3


AZURITE = "abfs://{container}@devstoreaccount1.dfs.core.windows.net"


@pytest.mark.parametrize(
    "spelling",
    [
        "abfs://{container}",
        "abfss://{container}",
        AZURITE,
        AZURITE.replace("abfs", "abfss"),
        AZURITE.replace("abfs", "az").replace(".dfs.", ".blob."),
    ],
)
async def test_every_spelling_of_a_container_names_the_same_one(
    azure_credentials: AzureServer, spelling: str
) -> None:
    container = azure_credentials.container()
    plain, other = f"az://{container}/t/lock.json", f"{spelling.format(container=container)}/t/lock.json"
    endpoint = azure_credentials.endpoint
    async with CloudStore(plain, request_timeout_seconds=PATIENT_SECONDS, endpoint=endpoint) as store:
        written = await store.write(plain, b"x", ABSENT)
    async with CloudStore(other, request_timeout_seconds=PATIENT_SECONDS, endpoint=endpoint) as store:
        assert isinstance(written, Won)
        assert await store.read(other) == Found(b"x", written.version)


async def test_requests_go_to_the_account_in_the_tables_uri() -> None:
    """They do not go to the account in the environment, although its key is used."""
    uri = "abfss://container@another.dfs.core.windows.net/locks/t.json"
    async with (
        faulty_server([AZURE.done()]) as server,
        CloudStore(uri, request_timeout_seconds=PATIENT_SECONDS, endpoint=server.endpoint) as store,
    ):
        assert isinstance(await store.write(uri, b"x", ABSENT), Won)

    assert server.received[0].headers["authorization"].startswith("SharedKey another:")


@pytest.mark.parametrize(
    "uri",
    [
        "gs://Bucket/x",
        "gs:///x",
        "gs://user@bucket/x",
        "az://Container/x",
        "az://a.b/x",
        "abfs://container@account.evil.example/x",
        "abfs://container@account.dfs.core.windows.net.evil.example/x",
        "abfss://@account.dfs.core.windows.net/x",
    ],
)
def test_a_uri_without_a_valid_bucket_is_an_error(uri: str) -> None:
    """A table's URI comes from an event, and the agent must not send its token to an arbitrary host."""
    with pytest.raises(LocationError, match=r"an object's URI has the form (gs|az)://"):
        open_store(uri, request_timeout_seconds=1.0)


async def test_another_bucket_is_refused_without_a_request(cloud: Cloud) -> None:
    async with faulty_server([cloud.done()]) as server, cloud.store(server) as store:
        other = cloud.uri.replace("://", "://x")
        assert isinstance(await store.write(other, b"x", ABSENT), Refused)
        assert isinstance(await store.read("s3://bucket/locks/t.json"), Refused)

    assert server.received == []


@pytest.mark.parametrize(
    "endpoint", ["nonsense", "ftp://host", "http://", "http://host?x=1", "localhost:4443"]
)
def test_an_invalid_endpoint_is_an_error(cloud: Cloud, endpoint: str) -> None:
    with pytest.raises(LocationError, match="an endpoint has the form https://"):
        CloudStore(cloud.uri, request_timeout_seconds=1.0, endpoint=endpoint)


async def test_nothing_is_sent_without_tls_unless_the_agents_settings_name_the_endpoint(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cloud's own environment variables may also name an endpoint or an emulator. It would receive the credentials."""
    async with faulty_server([cloud.done()]) as server:
        monkeypatch.setenv("GOOGLE_BASE_URL", server.endpoint)
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{server.endpoint}/account")
        monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
        monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", server.endpoint)
        async with CloudStore(cloud.uri, request_timeout_seconds=PATIENT_SECONDS) as store:
            outcome = await store.write(cloud.uri, b"x", ABSENT)

    assert isinstance(outcome, Refused)
    assert "if the endpoint has no TLS, set it in the agent's settings" in outcome.why
    assert server.connections == 0


def settings_for(cloud: str, endpoint: str) -> Settings:
    return Settings.load(gcs_endpoint=endpoint) if cloud == "gcs" else Settings.load(azure_endpoint=endpoint)


@pytest.mark.usefixtures("gcs_server", "azure_server")
async def test_the_settings_name_the_endpoint_of_a_lock(real: RealBucket) -> None:
    cloud = "gcs" if real.uri.startswith("gs") else "azure"
    uri = f"{real.uri}/orders-1.json"
    async with AsyncExitStack() as stack:
        stores = Stores(settings_for(cloud, real.server + real.path), stack)
        store = await stores.for_lock(uri)
        written = await store.write(uri, b"lock", ABSENT)

        assert await stores.for_lock(f"{real.uri}/orders-2.json") is store
        assert isinstance(written, Won)
