"""What the stores of Google and Azure make of everything that can go wrong on the way, over a real connection.

Each request must reach the server **once**. What is sent is compared whole: the emulators don't take it from obstore as
the clouds do (fake-gcs-server knows no `x-goog-if-generation-match`, see `tests/servers/gcs.py`).
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import anyio
import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, PreconditionError
from structlog.testing import capture_logs

from lakewarden.agent.locks import Stores
from lakewarden.agent.settings import Settings
from lakewarden.agent.stores import LocationError, StoreProbeError, open_store, probe
from lakewarden.agent.stores.cloud import CloudStore
from lakewarden.agent.stores.port import MAX_OBJECT_BYTES
from lakewarden.handlers.conditional import (
    Absent,
    Condition,
    Found,
    IfAbsent,
    IfMatch,
    Lost,
    Refused,
    Throttled,
    Unknown,
    Won,
)
from tests.servers.azure import AzureServer
from tests.servers.fault_proxy import fault_proxy
from tests.servers.faulty_http import FaultyServer, Received, Reply, faulty_server
from tests.servers.gcs import GcsServer

SECRET = "c2VjcmV0LXNlY3JldC1zZWNyZXQ="
MODIFIED = ("Last-Modified", "Sat, 21 Nov 2026 15:00:00 GMT")
BROKEN = ["reset-unread", "reset", "silence", "half-head"]
ABSENT = IfAbsent()


@dataclass(frozen=True, slots=True)
class Cloud:
    """How one of the two answers."""

    uri: str
    before: str
    after: str
    no_object: str
    no_bucket: str
    slow_down: str

    def done(self, version: str | None = None, body: bytes = b"", fault: str = "none") -> Reply:
        """A 200 as the cloud sends it to a write and to a read."""
        version = self.after if version is None else version
        tags = (("ETag", '"any"'), ("x-goog-generation", version)) if self is GOOGLE else (("ETag", version),)
        return Reply(200, (*tags, MODIFIED), body, fault)  # type: ignore[arg-type]

    def store(self, server: FaultyServer, seconds: float = 5.0) -> CloudStore:
        return CloudStore(self.uri, request_timeout_seconds=seconds, endpoint=self.endpoint(server.endpoint))

    def endpoint(self, server: str) -> str:
        return server if self is GOOGLE else f"{server}/account"


GOOGLE = Cloud(
    "gs://bucket/locks/t.json",
    "1795275010399894",
    "1795275010400011",
    "NoSuchKey",
    "NoSuchBucket",
    "SlowDown",
)
AZURE = Cloud(
    "az://container/locks/t.json",
    '"0x8DE28F3A1B2C3D4"',
    '"0x8DE28F3A1B2C3D5"',
    "BlobNotFound",
    "ContainerNotFound",
    "ServerBusy",
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=[GOOGLE, AZURE], ids=["google", "azure"])
def cloud(request: pytest.FixtureRequest) -> Cloud:
    found: Cloud = request.param
    return found


@pytest.fixture(autouse=True)
def credentials(no_cloud: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", SECRET)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", SECRET)


def error(status: int, code: str = "") -> Reply:
    named = f"<Code>{code}</Code>" if code else ""
    return Reply(
        status, body=f'<?xml version="1.0"?>\n<Error>{named}<Message>said\nso</Message></Error>'.encode()
    )


# What it answers, and what that means to a write if-absent, a write if-match, and a read.
ERRORS: list[tuple[Reply, type, type, type]] = [
    (Reply(304), Unknown, Unknown, Unknown),
    (error(400, "InvalidArgument"), Refused, Refused, Refused),
    (error(401, "AuthenticationRequired"), Refused, Refused, Refused),
    (error(403, "AccessDenied"), Refused, Refused, Refused),
    (error(404, "no object"), Refused, Lost, Absent),
    (error(404, "no bucket"), Refused, Refused, Refused),
    (Reply(404, body=b"<html>not found</html>"), Unknown, Unknown, Unknown),
    (error(408), Unknown, Unknown, Unknown),
    (error(409, "Conflict"), Unknown, Unknown, Unknown),
    (error(409), Unknown, Unknown, Unknown),
    (error(412, "PreconditionFailed"), Lost, Lost, Unknown),
    (error(412, "ConditionNotMet"), Lost, Lost, Unknown),
    (error(412), Lost, Lost, Unknown),
    (error(418), Refused, Refused, Refused),
    (error(429, "rateLimitExceeded"), Throttled, Throttled, Throttled),
    (error(429), Throttled, Throttled, Throttled),
    (error(500, "InternalError"), Unknown, Unknown, Unknown),
    (error(501, "NotImplemented"), Refused, Refused, Refused),
    (Reply(502, body=b"<html>bad gateway</html>"), Unknown, Unknown, Unknown),
    (error(503, "slow down"), Throttled, Throttled, Throttled),
    (error(503, "ServiceUnavailable"), Unknown, Unknown, Unknown),
    (error(504), Unknown, Unknown, Unknown),
]


@pytest.mark.parametrize(
    "reply, if_absent, if_match, read",
    ERRORS,
    ids=[f"{number}-{row[0].status}" for number, row in enumerate(ERRORS)],
)
async def test_an_error_means_one_thing_and_the_request_is_sent_once(
    cloud: Cloud, reply: Reply, if_absent: type, if_match: type, read: type
) -> None:
    for code, name in (
        (cloud.no_object, b"no object"),
        (cloud.no_bucket, b"no bucket"),
        (cloud.slow_down, b"slow down"),
    ):
        reply = Reply(reply.status, reply.headers, reply.body.replace(name, code.encode()))
    told = []
    for ask in (ABSENT, IfMatch(cloud.before), None):
        async with faulty_server([reply, cloud.done()]) as server, cloud.store(server) as store:
            told.append(
                await (store.read(cloud.uri) if ask is None else store.write(cloud.uri, b"body", ask))
            )
        assert len(server.received) == 1, ask

    assert [type(outcome) for outcome in told] == [if_absent, if_match, read], told
    assert all("\n" not in getattr(outcome, "why", "") for outcome in told)


async def test_azures_409_for_what_is_there_is_lost(credentials: None) -> None:
    """Unlike any other 409: it says that the condition did not hold, and nothing of two writes that met."""
    async with (
        faulty_server([error(409, "BlobAlreadyExists"), AZURE.done()]) as server,
        AZURE.store(server) as store,
    ):
        outcome = await store.write(AZURE.uri, b"body", ABSENT)

    assert isinstance(outcome, Lost)
    assert "BlobAlreadyExists" in outcome.why


@pytest.mark.parametrize("condition", [IfAbsent, IfMatch])
async def test_a_write_that_is_taken_is_won_with_the_version_that_the_next_needs(
    cloud: Cloud, condition: type[Condition]
) -> None:
    asked: Condition = ABSENT if condition is IfAbsent else IfMatch(cloud.before)
    async with faulty_server([cloud.done()]) as server, cloud.store(server) as store:
        assert await store.write(cloud.uri, b"body", asked) == Won(cloud.after)
        assert await store.write(cloud.uri, b"body", IfMatch(cloud.after + "1")) == Won(cloud.after)

    assert len(server.received) == 2


@pytest.mark.parametrize("version", ["", '"9dd4e461268c8034f5c8564e155c67a6"', "W/x", "*"])
async def test_a_success_without_a_version_of_the_cloud_is_unknown(cloud: Cloud, version: str) -> None:
    async with faulty_server([cloud.done(version)]) as server, cloud.store(server) as store:
        written = await store.write(cloud.uri, b"body", ABSENT)
        read = await store.read(cloud.uri)

    assert isinstance(written, Unknown), written
    assert isinstance(read, Unknown), read
    assert len(server.received) == 2


async def test_a_success_without_headers_is_unknown(cloud: Cloud) -> None:
    async with faulty_server([Reply(200)]) as server, cloud.store(server) as store:
        assert isinstance(await store.write(cloud.uri, b"body", ABSENT), Unknown)
        assert isinstance(await store.read(cloud.uri), Unknown)

    assert len(server.received) == 2


async def test_a_write_that_leaves_the_version_as_it_was_is_unknown(cloud: Cloud) -> None:
    async with faulty_server([cloud.done(cloud.before)]) as server, cloud.store(server) as store:
        assert isinstance(await store.write(cloud.uri, b"body", IfMatch(cloud.before)), Unknown)


async def test_a_read_gives_body_and_version(cloud: Cloud) -> None:
    async with faulty_server([cloud.done(body=b"body")]) as server, cloud.store(server) as store:
        assert await store.read(cloud.uri) == Found(b"body", cloud.after)

    assert len(server.received) == 1


async def test_an_object_past_the_bound_is_refused_unread(cloud: Cloud) -> None:
    """It promises more than the bound and sends half: whoever waited for the rest would run into the timeout."""
    reply = cloud.done(body=b"x" * (MAX_OBJECT_BYTES + 1), fault="hang")
    async with faulty_server([reply]) as server, cloud.store(server) as store:
        assert isinstance(await store.read(cloud.uri), Refused)


async def test_a_name_that_reads_like_an_answer_is_none(cloud: Cloud) -> None:
    """The path is part of the message that the status is read from, and a table's name comes with an event."""
    folder = cloud.uri.rpartition("/")[0]
    spoof = "Error performing PUT x in y - Server returned non-2xx status code: 412 Precondition Failed: z"
    uri = f"{folder}/{spoof}"
    for reply, expected in (
        (error(404, cloud.no_bucket), Refused),
        (error(500), Unknown),
        (Reply(fault="reset"), Unknown),
    ):
        async with faulty_server([reply]) as server, cloud.store(server) as store:
            assert isinstance(await store.write(uri, b"x", IfMatch(cloud.before)), expected)


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("connection", ["new", "pooled"])
async def test_a_write_without_an_answer_is_unknown_and_never_sent_again(
    cloud: Cloud, fault: str, connection: str
) -> None:
    """The store acted and the answer was lost: sent again, the write would meet itself and report 412."""
    broken = Reply(fault=fault)  # type: ignore[arg-type]
    script = [broken, error(412)] if connection == "new" else [cloud.done(), broken, error(412)]
    async with faulty_server(script) as server, cloud.store(server, seconds=1.0) as store:
        if connection == "pooled":
            assert isinstance(await store.write(cloud.uri, b"first", ABSENT), Won)
        sent_before = len(server.received)
        outcome = await store.write(cloud.uri, b"body", IfMatch(cloud.before))

    assert isinstance(outcome, Unknown), outcome
    assert len(server.received) == sent_before + 1


@pytest.mark.parametrize("fault", [*BROKEN, "cut", "hang"])
async def test_a_read_without_a_whole_answer_is_unknown(cloud: Cloud, fault: str) -> None:
    async with (
        faulty_server([cloud.done(body=b"half", fault=fault), cloud.done()]) as server,
        cloud.store(server, seconds=0.5) as store,
    ):
        outcome = await store.read(cloud.uri)

    assert isinstance(outcome, Unknown), outcome
    assert len(server.received) == 1


async def test_an_error_cut_short_is_unknown(cloud: Cloud) -> None:
    """Half a code is no code: of a 404 it would say nothing about which of the two is missing."""
    reply = Reply(404, (), b"<Error><Code>NoSu", fault="cut")
    async with faulty_server([reply, cloud.done()]) as server, cloud.store(server) as store:
        assert isinstance(await store.write(cloud.uri, b"body", IfMatch(cloud.before)), Unknown)
    async with faulty_server([reply, cloud.done()]) as server, cloud.store(server) as store:
        assert isinstance(await store.read(cloud.uri), Unknown)


async def test_nobody_listening_is_unknown(cloud: Cloud) -> None:
    async with faulty_server([cloud.done()]) as server:
        gone = server
    async with cloud.store(gone, seconds=2.0) as store:
        assert isinstance(await store.write(cloud.uri, b"body", ABSENT), Unknown)
        assert isinstance(await store.read(cloud.uri), Unknown)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirected_write_is_refused(cloud: Cloud, status: int) -> None:
    redirect = Reply(status, (("Location", "/elsewhere"),))
    async with faulty_server([redirect, cloud.done()]) as server, cloud.store(server) as store:
        assert isinstance(await store.write(cloud.uri, b"body", ABSENT), Refused)

    assert len(server.received) == 1


async def test_a_page_behind_a_redirect_is_not_taken_for_an_answer(cloud: Cloud) -> None:
    """A login page answers 303 to everything, and the HTTP client follows it. Its ETag is no version of the cloud."""
    redirect = Reply(303, (("Location", "/login"),))
    page = Reply(200, (("ETag", '"33a64df5"'), MODIFIED), b"<html>log in</html>")
    for ask in (ABSENT, IfMatch(cloud.before), None):
        async with faulty_server([redirect, page]) as server, cloud.store(server) as store:
            outcome = await (store.read(cloud.uri) if ask is None else store.write(cloud.uri, b"body", ask))
        assert isinstance(outcome, Unknown), outcome
        assert [received.path for received in server.received][1:] == ["/login"]


async def test_a_redirect_to_the_object_itself_is_not_taken_for_its_replacement(cloud: Cloud) -> None:
    """The GET that follows a 303 finds what is there, with the version that was to be replaced."""
    redirect = Reply(303, (("Location", "/there"),))
    async with (
        faulty_server([redirect, cloud.done(cloud.before, b"old")]) as server,
        cloud.store(server) as store,
    ):
        assert isinstance(await store.write(cloud.uri, b"body", IfMatch(cloud.before)), Unknown)


async def test_what_is_sent_to_google() -> None:
    """A recorded exchange: conditions in the header that the XML API documents, the body plain and in one piece."""
    async with faulty_server([GOOGLE.done()]) as server, GOOGLE.store(server) as store:
        await store.write(GOOGLE.uri, b"body", ABSENT)
        await store.write(GOOGLE.uri, b"other", IfMatch(GOOGLE.before))
        await store.read(GOOGLE.uri)

    path = "/bucket/locks%2Ft%2Ejson"
    common = {"accept": "*/*", "authorization": f"Bearer {SECRET}"}
    written = {**common, "content-type": "application/json"}
    assert [told(received) for received in server.received] == [
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


async def test_what_is_sent_to_azure() -> None:
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
    assert [told(received) for received in server.received] == [
        ("PUT", path, {**written, "content-length": "4", "if-none-match": "*"}, b"body"),
        ("PUT", path, {**written, "content-length": "5", "if-match": AZURE.before}, b"other"),
        ("GET", path, {**common, "content-length": "0"}, b""),
    ]
    for received in server.received:
        assert received.headers["authorization"].startswith("SharedKey account:")
        assert SECRET not in received.headers["authorization"]


def told(received: Received) -> tuple[str, str, dict[str, str], bytes]:
    """A request without what differs each time, or each machine."""
    different = {"host", "user-agent", "date", "x-ms-date"}
    if received.headers["authorization"].startswith("SharedKey"):
        different.add("authorization")
    headers = {name: value for name, value in received.headers.items() if name not in different}
    return received.method, received.path, headers, received.body


async def test_a_probe_makes_four_requests(cloud: Cloud) -> None:
    async with (
        faulty_server([cloud.done(), error(412), error(412), Reply(204)]) as server,
        cloud.store(server) as store,
    ):
        await probe(store, cloud.uri.rpartition("/")[0])

    assert len(server.received) == 4
    assert [received.method for received in server.received[:3]] == ["PUT"] * 3


async def test_a_write_given_up_in_time_is_unknown_and_was_sent_whole(cloud: Cloud) -> None:
    """It is in the store's hands: nobody can call it back."""
    async with faulty_server([Reply(fault="silence")]) as server, cloud.store(server, seconds=0.3) as store:
        outcome = await store.write(cloud.uri, b"body", ABSENT)

    assert isinstance(outcome, Unknown)
    assert [received.body for received in server.received] == [b"body"]


async def test_cancellation_passes_through_a_request(cloud: Cloud) -> None:
    async with faulty_server([Reply(fault="silence")]) as server, cloud.store(server) as store:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(store.write, cloud.uri, b"body", ABSENT)
                while not server.received:
                    await anyio.sleep(0.01)
                scope.cancel()

    assert scope.cancelled_caught


async def test_what_is_cancelled_before_it_begins_is_never_sent(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """obstore's calls send at once, before anybody awaits them."""
    called: list[str] = []
    monkeypatch.setattr(obstore, "put_async", lambda _, key, *__, **___: called.append(key))
    async with CloudStore(cloud.uri, request_timeout_seconds=1.0) as store:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await store.write(cloud.uri, b"body", ABSENT)

    assert scope.cancelled_caught
    assert called == []


@dataclass(frozen=True, slots=True)
class Real:
    """A bucket on one of the real servers."""

    uri: str
    server: str
    path: str
    """Of the endpoint."""

    def open(self, server: str | None = None, seconds: float = 5.0) -> CloudStore:
        endpoint = (server or self.server) + self.path
        return CloudStore(self.uri, request_timeout_seconds=seconds, endpoint=endpoint)


@pytest.fixture(params=["google", "azure"])
def real(request: pytest.FixtureRequest) -> Real:
    if request.param == "google":
        gcs: GcsServer = request.getfixturevalue("gcs_credentials")
        return Real(f"gs://{gcs.bucket()}/locks", gcs.endpoint, "")
    azure: AzureServer = request.getfixturevalue("azure_credentials")
    server, _, account = azure.endpoint.rpartition("/")
    return Real(f"az://{azure.container()}/locks", server, f"/{account}")


@pytest.mark.usefixtures("gcs_server", "azure_server")
async def test_a_write_given_up_may_land_later_but_never_against_its_condition(real: Real) -> None:
    """Of ten that are kept back, half arrive when everybody has given up; half of the keys were written meanwhile."""
    keys = [f"{real.uri}/{number}.json" for number in range(10)]
    async with (
        fault_proxy(real.server, seed=1, request_timeout_seconds=0.2) as proxy,
        real.open(proxy.endpoint, 0.2) as slow,
        real.open() as store,
    ):
        with proxy.hanging():
            given_up = [await slow.write(key, b"late", ABSENT) for key in keys]
            before = [await store.read(key) for key in keys]
            meanwhile = [await store.write(key, b"meanwhile", ABSENT) for key in keys[::2]]
        landed = set[bytes]()
        while not landed:
            found = [await store.read(key) for key in keys[1::2]]
            landed = {each.body for each in found if isinstance(each, Found)}
        kept = [await store.read(key) for key in keys[::2]]

    assert all(isinstance(outcome, Unknown) for outcome in given_up), given_up
    assert before == [Absent()] * 10
    assert landed == {b"late"}
    assert kept == [Found(b"meanwhile", won.version) for won in meanwhile if isinstance(won, Won)]


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
async def test_every_spelling_of_a_container_leads_to_it(
    azure_credentials: AzureServer, spelling: str
) -> None:
    container = azure_credentials.container()
    plain, other = f"az://{container}/t/lock.json", f"{spelling.format(container=container)}/t/lock.json"
    endpoint = azure_credentials.endpoint
    async with CloudStore(plain, request_timeout_seconds=5.0, endpoint=endpoint) as store:
        written = await store.write(plain, b"x", ABSENT)
    async with CloudStore(other, request_timeout_seconds=5.0, endpoint=endpoint) as store:
        assert isinstance(written, Won)
        assert await store.read(other) == Found(b"x", written.version)


async def test_the_account_that_a_table_names_is_the_one_that_is_asked() -> None:
    """And not the one of the environment, whose key is tried with it."""
    uri = "abfss://container@another.dfs.core.windows.net/locks/t.json"
    async with (
        faulty_server([AZURE.done()]) as server,
        CloudStore(uri, request_timeout_seconds=5.0, endpoint=server.endpoint) as store,
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
def test_what_names_no_bucket_of_the_cloud_is_a_clear_error(uri: str) -> None:
    """A table's name comes with an event; a token must not be sent to wherever it says."""
    with pytest.raises(LocationError, match=r"an object is written (gs|az)://"):
        open_store(uri, request_timeout_seconds=1.0)


async def test_another_bucket_is_refused_unasked(cloud: Cloud) -> None:
    async with faulty_server([cloud.done()]) as server, cloud.store(server) as store:
        other = cloud.uri.replace("://", "://x")
        assert isinstance(await store.write(other, b"x", ABSENT), Refused)
        assert isinstance(await store.read("s3://bucket/locks/t.json"), Refused)

    assert server.received == []


@pytest.mark.parametrize(
    "endpoint", ["nonsense", "ftp://host", "http://", "http://host?x=1", "localhost:4443"]
)
def test_an_endpoint_that_is_none_is_a_clear_error(cloud: Cloud, endpoint: str) -> None:
    with pytest.raises(LocationError, match="an endpoint is written https://"):
        CloudStore(cloud.uri, request_timeout_seconds=1.0, endpoint=endpoint)


async def test_nothing_is_sent_in_the_clear_unless_our_own_endpoint_says_so(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment may name an endpoint or the emulator too; without TLS either would see the credentials."""
    async with faulty_server([cloud.done()]) as server:
        monkeypatch.setenv("GOOGLE_BASE_URL", server.endpoint)
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{server.endpoint}/account")
        monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
        monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", server.endpoint)
        async with CloudStore(cloud.uri, request_timeout_seconds=1.0) as store:
            outcome = await store.write(cloud.uri, b"x", ABSENT)

    assert isinstance(outcome, Refused)
    assert "without TLS? name it in the agent's settings" in outcome.why
    assert server.connections == 0


@pytest.mark.parametrize(
    "reply",
    [Reply(404), Reply(503), Reply(400, body=b"{}"), Reply(412), Reply(200)],
    ids=lambda reply: reply.status,
)
async def test_an_answer_to_a_question_for_credentials_is_none_of_the_store(
    cloud: Cloud, reply: Reply, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata service of the machine has no account: its 404 doesn't say that the lock is gone."""
    monkeypatch.delenv("GOOGLE_BEARER_TOKEN")
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
    async with faulty_server([reply]) as metadata, faulty_server([cloud.done()]) as server:
        monkeypatch.setenv("GCE_METADATA_HOST", metadata.endpoint.removeprefix("http://"))
        monkeypatch.setenv("GCE_METADATA_IP", metadata.endpoint.removeprefix("http://"))
        monkeypatch.setenv("AZURE_MSI_ENDPOINT", f"{metadata.endpoint}/token")
        async with cloud.store(server) as store:
            told = [
                await store.write(cloud.uri, b"x", ABSENT),
                await store.write(cloud.uri, b"x", IfMatch(cloud.before)),
                await store.read(cloud.uri),
            ]

    assert all(isinstance(outcome, Unknown) for outcome in told), told
    assert all("no credentials; set " in getattr(outcome, "why", "") for outcome in told), told
    assert server.received == []


async def test_a_call_that_never_ends_is_given_up(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """obstore bounds each of its requests, but not the several that one call may make for credentials."""

    async def never(*_: object, **__: object) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(obstore, "put_async", never)
    monkeypatch.setattr(obstore, "get_async", never)
    async with CloudStore(cloud.uri, request_timeout_seconds=0.1) as store:
        for outcome in (await store.write(cloud.uri, b"x", ABSENT), await store.read(cloud.uri)):
            assert isinstance(outcome, Unknown)
            assert "credentials or an answer did not come in time" in outcome.why


def settings_for(cloud: str, endpoint: str) -> Settings:
    return Settings.load(gcs_endpoint=endpoint) if cloud == "gcs" else Settings.load(azure_endpoint=endpoint)


async def failing(settings: Settings, uri: str) -> str:
    """What somebody is told who keeps a lock there."""
    async with AsyncExitStack() as stack:
        with pytest.raises(StoreProbeError) as caught:
            await Stores(settings, stack).for_lock(uri)
    return str(caught.value)


async def test_an_account_that_nobody_named_is_one_line_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME")

    said = await failing(Settings.load(), "az://container/locks/t.json")

    assert "Account must be specified; set AZURE_STORAGE_ACCOUNT_NAME" in said
    assert said.endswith("store=az://container")
    assert "\n" not in said


async def test_a_credential_file_that_is_not_there_is_one_line_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("GOOGLE_BEARER_TOKEN")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", f"{tmp_path}/none.json")

    said = await failing(Settings.load(), "gs://bucket/locks/t.json")

    assert f"{tmp_path}/none.json" in said
    assert "set GOOGLE_APPLICATION_CREDENTIALS" in said
    assert said.endswith("store=gs://bucket")
    assert "\n" not in said


@pytest.mark.usefixtures("gcs_server", "azure_server")
@pytest.mark.parametrize("kind", ["gs", "az"])
async def test_a_bucket_that_is_not_there_is_one_line_with_what_to_do(
    kind: str, request: pytest.FixtureRequest
) -> None:
    if kind == "gs":
        settings = settings_for("gcs", request.getfixturevalue("gcs_credentials").endpoint)
    else:
        settings = settings_for("azure", request.getfixturevalue("azure_credentials").endpoint)

    said = await failing(settings, f"{kind}://not-there/locks/t.json")

    assert "refuses to write there; check bucket or container" in said
    assert "code=NoSuchBucket" in said or "code=ContainerNotFound" in said
    assert f"key={kind}://not-there/.lakewarden-probe/" in said
    assert "\n" not in said


@pytest.mark.usefixtures("gcs_server", "azure_server")
async def test_a_lock_is_kept_where_the_settings_say(real: Real) -> None:
    cloud = "gcs" if real.uri.startswith("gs") else "azure"
    uri = f"{real.uri}/orders-1.json"
    async with AsyncExitStack() as stack:
        stores = Stores(settings_for(cloud, real.server + real.path), stack)
        store = await stores.for_lock(uri)
        written = await store.write(uri, b"lock", ABSENT)

        assert await stores.for_lock(f"{real.uri}/orders-2.json") is store
        assert isinstance(written, Won)


ANSWERED = (
    "Error performing PUT http://host/b/k in 1ms - Server returned non-2xx status code: 404 Not Found: "
    "<Error><Code>NoSuchKey</Code></Error>"
)


@pytest.mark.parametrize(
    "failure",
    [
        GenericError(f"Generic GCS error: Error asking for something new: {ANSWERED}"),
        GenericError("Generic GCS error: it said 404 Not Found"),
        AlreadyExistsError("Object at location k already exists, in words of another version: 409"),
        PreconditionError("412"),
        FileNotFoundError(2, "No such file or directory"),
        NotImplementedError("not yet"),
    ],
    ids=repr,
)
async def test_a_failure_in_words_that_are_not_known_is_unknown(
    cloud: Cloud, failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later obstore may say things differently; the lock then reads back, and neither loses nor wins by a guess."""

    async def fail(*_: object, **__: object) -> object:
        raise failure

    monkeypatch.setattr(obstore, "put_async", fail)
    monkeypatch.setattr(obstore, "get_async", fail)
    async with CloudStore(cloud.uri, request_timeout_seconds=1.0) as store:
        assert isinstance(await store.write(cloud.uri, b"x", ABSENT), Unknown)
        assert isinstance(await store.write(cloud.uri, b"x", IfMatch(cloud.before)), Unknown)
        assert isinstance(await store.read(cloud.uri), Unknown)


async def test_credentials_are_in_no_reason_and_no_log(cloud: Cloud) -> None:
    replies = [error(403, "SignatureDoesNotMatch"), error(400), Reply(500), Reply(303), Reply(fault="reset")]
    said: list[object] = []
    with capture_logs() as logs:
        for reply in replies:
            async with faulty_server([reply]) as server, cloud.store(server, 1.0) as store:
                said.append(await store.write(cloud.uri, b"x", ABSENT))
                said.append(await store.read(cloud.uri))
                await store.delete(cloud.uri.replace("locks", ".lakewarden-probe"))

    assert len([entry for entry in logs if entry["event"] == "store.probe_key_left_behind"]) == len(replies)
    assert SECRET not in repr(said)
    assert SECRET not in repr(logs)
