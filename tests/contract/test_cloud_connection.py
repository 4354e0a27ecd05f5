"""Connections to Google, Azure and S3 that break or hang: the outcome is unknown, and the request is never resent."""

from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import obstore
import pytest
from structlog.testing import capture_logs

from lakewarden.agent.settings import Settings
from lakewarden.agent.stores import StoreProbeError, Stores
from lakewarden.agent.stores.cloud import CloudStore
from lakewarden.handlers.lease.conditional import Absent, Found, IfMatch, Unknown, Won
from tests.contract.clouds import (
    ABSENT,
    BROKEN,
    PATIENT_SECONDS,
    SECRET,
    SHORT_SECONDS,
    UNANSWERED,
    Cloud,
    RealBucket,
    call_until_received,
    error,
)
from tests.servers.faulty_http import Reply, faulty_server
from tests.servers.proxy import Proxy

pytestmark = pytest.mark.usefixtures("cloud_credentials")


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("connection", ["new", "pooled"])
async def test_a_write_without_an_answer_is_unknown_and_never_resent(
    any_cloud: Cloud, fault: str, connection: str
) -> None:
    """The store acted and the answer was lost. A resent write would get a 412 for its own first attempt."""
    broken = Reply(fault=fault)  # type: ignore[arg-type]
    seconds = SHORT_SECONDS if fault in UNANSWERED else PATIENT_SECONDS
    async with faulty_server([any_cloud.done()]) as server, any_cloud.store(server, seconds) as store:
        if connection == "pooled":
            while not isinstance(await store.write(any_cloud.uri, b"first", ABSENT), Won):
                pass
        server.script[:] = [broken] if fault in UNANSWERED else [broken, error(412)]
        outcomes, received = await call_until_received(
            server, lambda: store.write(any_cloud.uri, b"body", IfMatch(any_cloud.before))
        )

    assert all(isinstance(outcome, Unknown) for outcome in outcomes), outcomes
    assert received <= len(outcomes)
    if fault in UNANSWERED:
        assert server.received[-1].body == b"body", "it can't be recalled, so the store may still apply it"


@pytest.mark.parametrize("fault", [*BROKEN, "cut", "hang"])
async def test_a_read_without_a_complete_answer_is_unknown(any_cloud: Cloud, fault: str) -> None:
    seconds = SHORT_SECONDS if fault in UNANSWERED else PATIENT_SECONDS
    broken = any_cloud.done(body=b"half", fault=fault)
    script = [broken] if fault in UNANSWERED else [broken, any_cloud.done()]
    async with faulty_server(script) as server, any_cloud.store(server, seconds) as store:
        outcomes, received = await call_until_received(server, lambda: store.read(any_cloud.uri))

    assert all(isinstance(outcome, Unknown) for outcome in outcomes), outcomes
    assert received <= len(outcomes)


async def test_a_truncated_error_is_unknown(any_cloud: Cloud) -> None:
    """Half a code of a 404 does not show whether the object or the bucket is missing."""
    reply = Reply(404, (), b"<Error><Code>NoSu", fault="cut")
    async with faulty_server([reply, any_cloud.done()]) as server, any_cloud.store(server) as store:
        assert isinstance(await store.write(any_cloud.uri, b"body", IfMatch(any_cloud.before)), Unknown)
    async with faulty_server([reply, any_cloud.done()]) as server, any_cloud.store(server) as store:
        assert isinstance(await store.read(any_cloud.uri), Unknown)


async def test_a_refused_connection_is_unknown(any_cloud: Cloud) -> None:
    async with faulty_server([any_cloud.done()]) as server:
        gone = server
    async with any_cloud.store(gone, seconds=2.0) as store:
        assert isinstance(await store.write(any_cloud.uri, b"body", ABSENT), Unknown)
        assert isinstance(await store.read(any_cloud.uri), Unknown)


async def test_cancellation_passes_through_a_request(any_cloud: Cloud) -> None:
    async with faulty_server([Reply(fault="silence")]) as server, any_cloud.store(server) as store:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(store.write, any_cloud.uri, b"body", ABSENT)
                while not server.received:
                    await anyio.sleep(0.01)
                scope.cancel()

    assert scope.cancelled_caught


async def test_a_request_cancelled_before_it_starts_is_never_sent(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """obstore's functions send the request when they are called, before they are awaited."""
    called: list[str] = []
    monkeypatch.setattr(obstore, "put_async", lambda _, key, *__, **___: called.append(key))
    async with CloudStore(cloud.uri, request_timeout_seconds=1.0) as store:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await store.write(cloud.uri, b"body", ABSENT)

    assert scope.cancelled_caught
    assert called == []


@pytest.mark.usefixtures("gcs_server", "azure_server")
async def test_a_write_that_timed_out_may_be_applied_later_but_never_against_its_condition(
    real: RealBucket,
) -> None:
    """The proxy delays all writes beyond their timeout, then forwards half. Meanwhile every other key is written."""
    keys = [f"{real.uri}/{number}.json" for number in range(20)]
    with Proxy(real.server, seed=1, keep_alive=False) as proxy:
        async with real.open(proxy.endpoint, 0.2) as slow, real.open() as store:
            timed_out = []
            with proxy.hanging() as hang:
                for number, key in enumerate(keys, start=1):
                    while len(hang.caught) < number:
                        timed_out.append(await slow.write(key, b"late", ABSENT))
                before = [await store.read(key) for key in keys]
                meanwhile = [await store.write(key, b"meanwhile", ABSENT) for key in keys[::2]]
            applied = set[bytes]()
            while not applied:
                found = [await store.read(key) for key in keys[1::2]]
                applied = {each.body for each in found if isinstance(each, Found)}
            kept = [await store.read(key) for key in keys[::2]]

    assert all(isinstance(outcome, Unknown) for outcome in timed_out), timed_out
    assert before == [Absent()] * len(keys)
    assert applied == {b"late"}
    assert kept == [Found(b"meanwhile", won.version) for won in meanwhile if isinstance(won, Won)]


async def test_a_call_that_never_ends_is_unknown(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """obstore limits each of its requests, but not the number of requests that one call makes for credentials."""

    async def never(*_: object, **__: object) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(obstore, "put_async", never)
    monkeypatch.setattr(obstore, "get_async", never)
    async with CloudStore(cloud.uri, request_timeout_seconds=0.1) as store:
        for outcome in (await store.write(cloud.uri, b"x", ABSENT), await store.read(cloud.uri)):
            assert isinstance(outcome, Unknown)
            assert "no credentials or no answer within the timeout" in outcome.why


# Credentials for Google and Azure: the errors for missing credentials or buckets. No error or log contains a secret.


@pytest.mark.parametrize(
    "reply",
    [Reply(404), Reply(503), Reply(400, body=b"{}"), Reply(412), Reply(200)],
    ids=lambda reply: reply.status,
)
async def test_an_error_of_the_credentials_service_is_unknown(
    cloud: Cloud, reply: Reply, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine's metadata service has no account. Its 404 must not be mistaken for a missing lock object."""
    monkeypatch.delenv("GOOGLE_BEARER_TOKEN")
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
    async with faulty_server([reply]) as metadata, faulty_server([cloud.done()]) as server:
        monkeypatch.setenv("GCE_METADATA_HOST", metadata.endpoint.removeprefix("http://"))
        monkeypatch.setenv("GCE_METADATA_IP", metadata.endpoint.removeprefix("http://"))
        monkeypatch.setenv("AZURE_MSI_ENDPOINT", f"{metadata.endpoint}/token")
        async with cloud.store(server) as store:
            outcomes = [
                await store.write(cloud.uri, b"x", ABSENT),
                await store.write(cloud.uri, b"x", IfMatch(cloud.before)),
                await store.read(cloud.uri),
            ]

    assert all(isinstance(outcome, Unknown) for outcome in outcomes), outcomes
    assert all("no credentials; set " in getattr(outcome, "why", "") for outcome in outcomes), outcomes
    assert server.received == []


async def probe_error(settings: Settings, uri: str) -> str:
    """The error that an agent reports for this lock object."""
    async with AsyncExitStack() as stack:
        with pytest.raises(StoreProbeError) as caught:
            await Stores(settings, stack).for_lock(uri)
    return str(caught.value)


async def test_the_error_for_a_missing_account_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME")

    message = await probe_error(Settings.load(), "az://container/locks/t.json")

    assert "Account must be specified; set AZURE_STORAGE_ACCOUNT_NAME" in message
    assert message.endswith("store=az://container")
    assert "\n" not in message


async def test_the_error_for_a_missing_credentials_file_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("GOOGLE_BEARER_TOKEN")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", f"{tmp_path}/none.json")

    message = await probe_error(Settings.load(), "gs://bucket/locks/t.json")

    assert f"{tmp_path}/none.json" in message
    assert "set GOOGLE_APPLICATION_CREDENTIALS" in message
    assert message.endswith("store=gs://bucket")
    assert "\n" not in message


@pytest.mark.usefixtures("gcs_server", "azure_server")
@pytest.mark.parametrize(("kind", "cloud"), [("gs", "gcs"), ("az", "azure")])
async def test_the_error_for_a_missing_bucket_says_what_to_check(
    kind: str, cloud: str, request: pytest.FixtureRequest
) -> None:
    endpoint = request.getfixturevalue(f"{cloud}_credentials").endpoint
    settings = Settings.load(**{f"{cloud}_endpoint": endpoint})

    message = await probe_error(settings, f"{kind}://not-there/locks/t.json")

    assert "this store can't be read or written to; check bucket or container" in message
    assert "code=NoSuchBucket" in message or "code=ContainerNotFound" in message
    assert f"key={kind}://not-there/.lakewarden-probe/" in message
    assert "\n" not in message


async def test_no_error_and_no_log_contains_a_secret(cloud: Cloud) -> None:
    replies = [error(403, "SignatureDoesNotMatch"), error(400), Reply(500), Reply(303), Reply(fault="reset")]
    outcomes: list[object] = []
    with capture_logs() as logs:
        for reply in replies:
            async with faulty_server([reply]) as server, cloud.store(server) as store:
                outcomes.append(await store.write(cloud.uri, b"x", ABSENT))
                outcomes.append(await store.read(cloud.uri))
                await store.delete(cloud.uri.replace("locks", ".lakewarden-probe"))

    assert len([entry for entry in logs if entry["event"] == "store.probe_key_left_behind"]) == len(replies)
    assert SECRET not in repr(outcomes)
    assert SECRET not in repr(logs)
