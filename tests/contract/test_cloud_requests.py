"""The requests to Google and Azure, and the hosts that they are sent to.

The tests compare whole requests, because the emulators don't accept everything that obstore sends to the clouds:
fake-gcs-server doesn't know `x-goog-if-generation-match` (see `tests/servers/gcs.py`).
"""

from contextlib import AsyncExitStack
from typing import Any

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, PreconditionError

from lakewarden.agent.settings import Settings
from lakewarden.agent.stores import ConditionalStore, LocationError, Stores, open_store
from lakewarden.agent.stores.cloud import CloudStore
from lakewarden.agent.stores.port import MAX_OBJECT_BYTES
from lakewarden.handlers.lease.conditional import (
    Absent,
    Condition,
    Found,
    IfAbsent,
    IfMatch,
    Lost,
    ReadOutcome,
    Refused,
    Throttled,
    Unknown,
    Won,
    WriteOutcome,
)
from tests.contract.clouds import (
    ABSENT,
    AZURE,
    GOOGLE,
    MODIFIED,
    PATIENT_SECONDS,
    SECRET,
    Cloud,
    RealBucket,
    error,
)
from tests.contract.test_s3_answers import NO_BUCKET_JSON, NO_OBJECT_JSON, QUOTED, google_json
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
        ("PUT", path, {**written, "content-length": "4", "x-goog-if-generation-match": "0"}, b"body"),
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
    written = {**common, "x-ms-blob-type": "BlockBlob", "x-ms-blob-content-type": "application/json"}
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
        open_store(uri, Settings())


async def test_another_bucket_is_refused_without_a_request(cloud: Cloud) -> None:
    async with faulty_server([cloud.done()]) as server, cloud.store(server) as store:
        other = cloud.uri.replace("://", "://x")
        assert isinstance(await store.write(other, b"x", ABSENT), Refused)
        assert isinstance(await store.read("s3://bucket/locks/t.json"), Refused)

    assert server.received == []


@pytest.mark.parametrize(
    "endpoint",
    [
        "nonsense",
        "ftp://host",
        "http://",
        "http://host?x=1",
        "localhost:4443",
        "http://h:65536",
        "http://a b",
        "http://[::1",
    ],
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


@pytest.mark.usefixtures("gcs_server", "azure_server")
async def test_the_settings_name_the_endpoint_of_a_lock(real: RealBucket) -> None:
    cloud = "gcs" if real.uri.startswith("gs") else "azure"
    endpoint: dict[str, Any] = {f"{cloud}_endpoint": real.server + real.path}
    uri = f"{real.uri}/orders-1.json"
    async with AsyncExitStack() as stack:
        stores = Stores(Settings.load(**endpoint), stack)
        store = await stores.for_lock(uri)
        written = await store.write(uri, b"lock", ABSENT)

        assert await stores.for_lock(f"{real.uri}/orders-2.json") is store
        assert isinstance(written, Won)


# The outcome of each answer of Google and Azure, over a real connection.
#
# Each request must reach the server **once**.

# The answer, and the outcome of a write if-absent, a write if-match and a read.
ERRORS: list[tuple[Reply, type, type, type]] = [
    (Reply(304), Unknown, Unknown, Unknown),
    (error(400, "InvalidArgument"), Refused, Refused, Refused),
    (error(401, "AuthenticationRequired"), Refused, Refused, Refused),
    (error(403, "AccessDenied"), Refused, Refused, Refused),
    (error(404, "no object"), Refused, Lost, Absent),
    (error(404, "no bucket"), Refused, Refused, Refused),
    (Reply(404, body=b"<html>not found</html>"), Unknown, Unknown, Unknown),
    (Reply(404, body=QUOTED), Unknown, Unknown, Unknown),
    (Reply(404, body=NO_OBJECT_JSON), Refused, Lost, Absent),
    (Reply(404, body=NO_BUCKET_JSON), Refused, Refused, Refused),
    (Reply(403, body=google_json("rateLimitExceeded")), Throttled, Throttled, Throttled),
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
    outcomes = []
    for condition in (ABSENT, IfMatch(cloud.before), None):
        async with faulty_server([reply, cloud.done()]) as server, cloud.store(server) as store:
            outcomes.append(await send(store, cloud, condition))
        assert len(server.received) == 1, condition

    assert [type(outcome) for outcome in outcomes] == [if_absent, if_match, read], outcomes
    assert all("\n" not in getattr(outcome, "why", "") for outcome in outcomes)


async def send(
    store: ConditionalStore, cloud: Cloud, condition: Condition | None
) -> ReadOutcome | WriteOutcome:
    """A read, or a write under the condition."""
    if condition is None:
        return await store.read(cloud.uri)
    return await store.write(cloud.uri, b"body", condition)


@pytest.mark.parametrize("keeps", [True, False])
async def test_azures_answer_to_a_write_says_whether_it_keeps_versions(keeps: bool) -> None:
    done = AZURE.done()
    version = (("x-ms-version-id", "2026-11-28T14:00:00.0000000Z"),) if keeps else ()
    reply = Reply(done.status, (*done.headers, *version))
    async with faulty_server([reply]) as server, AZURE.store(server) as store:
        assert store.keeps_versions is None
        await store.write(AZURE.uri, b"body", ABSENT)

        assert store.keeps_versions is keeps


async def test_azures_409_for_an_existing_object_is_lost() -> None:
    """Other 409s mean that two writes collided; this one means that the condition did not hold."""
    async with (
        faulty_server([error(409, "BlobAlreadyExists"), AZURE.done()]) as server,
        AZURE.store(server) as store,
    ):
        outcome = await store.write(AZURE.uri, b"body", ABSENT)

    assert isinstance(outcome, Lost)
    assert "BlobAlreadyExists" in outcome.why


@pytest.mark.parametrize("condition", [IfAbsent, IfMatch])
async def test_a_successful_write_returns_the_version_that_the_next_write_needs(
    cloud: Cloud, condition: type[Condition]
) -> None:
    first: Condition = ABSENT if condition is IfAbsent else IfMatch(cloud.before)
    async with faulty_server([cloud.done()]) as server, cloud.store(server) as store:
        assert await store.write(cloud.uri, b"body", first) == Won(cloud.after)
        assert await store.write(cloud.uri, b"body", IfMatch(cloud.after + "1")) == Won(cloud.after)

    assert len(server.received) == 2


@pytest.mark.parametrize("version", ["", '"9dd4e461268c8034f5c8564e155c67a6"', "W/x", "*", None])
async def test_a_success_without_a_version_of_the_cloud_is_unknown(cloud: Cloud, version: str | None) -> None:
    reply = Reply(200) if version is None else cloud.done(version)
    async with faulty_server([reply]) as server, cloud.store(server) as store:
        written = await store.write(cloud.uri, b"body", ABSENT)
        read = await store.read(cloud.uri)

    assert isinstance(written, Unknown), written
    assert isinstance(read, Unknown), read
    assert len(server.received) == 2


async def test_a_write_that_does_not_change_the_version_is_unknown(cloud: Cloud) -> None:
    async with faulty_server([cloud.done(cloud.before)]) as server, cloud.store(server) as store:
        assert isinstance(await store.write(cloud.uri, b"body", IfMatch(cloud.before)), Unknown)


async def test_an_object_beyond_the_size_limit_is_refused_without_reading_it(cloud: Cloud) -> None:
    """The server announces more than the limit and never sends the rest; a client that reads it runs into the timeout."""
    reply = cloud.done(body=b"x" * (MAX_OBJECT_BYTES + 1), fault="hang")
    async with faulty_server([reply]) as server, cloud.store(server) as store:
        assert isinstance(await store.read(cloud.uri), Refused)


async def test_an_object_name_that_contains_a_status_text_is_not_mistaken_for_an_answer(cloud: Cloud) -> None:
    """The path is part of the message from which the status is parsed, and a table's name comes from an event."""
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


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirected_write_is_refused(cloud: Cloud, status: int) -> None:
    redirect = Reply(status, (("Location", "/elsewhere"),))
    async with faulty_server([redirect, cloud.done()]) as server, cloud.store(server) as store:
        assert isinstance(await store.write(cloud.uri, b"body", ABSENT), Refused)

    assert len(server.received) == 1


async def test_a_page_behind_a_redirect_is_unknown(cloud: Cloud) -> None:
    """A proxy redirects every request to a login page with 303. The page's ETag is not a version of the cloud."""
    redirect = Reply(303, (("Location", "/login"),))
    page = Reply(200, (("ETag", '"33a64df5"'), MODIFIED), b"<html>log in</html>")
    for condition in (ABSENT, IfMatch(cloud.before), None):
        async with faulty_server([redirect, page]) as server, cloud.store(server) as store:
            outcome = await send(store, cloud, condition)
        assert isinstance(outcome, Unknown), outcome
        assert [received.path for received in server.received][1:] == ["/login"]


async def test_a_redirect_to_the_object_itself_is_unknown(cloud: Cloud) -> None:
    """The GET after a 303 returns the unchanged object, with the version that was to be replaced."""
    redirect = Reply(303, (("Location", "/there"),))
    async with (
        faulty_server([redirect, cloud.done(cloud.before, b"old")]) as server,
        cloud.store(server) as store,
    ):
        assert isinstance(await store.write(cloud.uri, b"body", IfMatch(cloud.before)), Unknown)


ANSWERED = (
    "Error performing PUT http://host/b/k in 1ms - Server returned non-2xx status code: 404 Not Found: "
    "<Error><Code>NoSuchKey</Code></Error>"
)


@pytest.mark.parametrize(
    "failure",
    [
        GenericError(f"Generic GCS error: Error requesting something new: {ANSWERED}"),
        GenericError("Generic GCS error: the answer was 404 Not Found"),
        AlreadyExistsError("Object at location k already exists, as another version words it: 409"),
        PreconditionError("412"),
        FileNotFoundError(2, "No such file or directory"),
        NotImplementedError("not yet"),
    ],
    ids=repr,
)
async def test_an_unrecognised_error_message_is_unknown(
    cloud: Cloud, failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later obstore may change its messages. The lock then reads back, and neither loses nor wins by a guess."""

    async def fail(*_: object, **__: object) -> object:
        raise failure

    monkeypatch.setattr(obstore, "put_async", fail)
    monkeypatch.setattr(obstore, "get_async", fail)
    async with CloudStore(cloud.uri, request_timeout_seconds=1.0) as store:
        assert isinstance(await store.write(cloud.uri, b"x", ABSENT), Unknown)
        assert isinstance(await store.write(cloud.uri, b"x", IfMatch(cloud.before)), Unknown)
        assert isinstance(await store.read(cloud.uri), Unknown)
