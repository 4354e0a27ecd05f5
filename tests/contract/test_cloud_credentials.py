"""Credentials for Google and Azure: the errors for missing credentials or buckets. No error or log contains a secret."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from lakewarden.agent.locks.keeper import Stores
from lakewarden.agent.settings import Settings
from lakewarden.agent.stores import StoreProbeError
from lakewarden.handlers.lease.conditional import (
    IfMatch,
    Unknown,
)
from tests.contract.clouds import ABSENT, SECRET, Cloud, error
from tests.servers.faulty_http import Reply, faulty_server

pytestmark = pytest.mark.usefixtures("cloud_credentials")


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


async def test_the_error_for_a_missing_account_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
@pytest.mark.parametrize("kind", ["gs", "az"])
async def test_the_error_for_a_missing_bucket_says_what_to_check(
    kind: str, request: pytest.FixtureRequest
) -> None:
    if kind == "gs":
        settings = Settings.load(gcs_endpoint=request.getfixturevalue("gcs_credentials").endpoint)
    else:
        settings = Settings.load(azure_endpoint=request.getfixturevalue("azure_credentials").endpoint)

    message = await probe_error(settings, f"{kind}://not-there/locks/t.json")

    assert "this store refused to write; check bucket or container" in message
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
