"""Credentials for Google and Azure: what is told where they, or what they are for, are missing; they are told nowhere."""

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
        settings = Settings.load(gcs_endpoint=request.getfixturevalue("gcs_credentials").endpoint)
    else:
        settings = Settings.load(azure_endpoint=request.getfixturevalue("azure_credentials").endpoint)

    said = await failing(settings, f"{kind}://not-there/locks/t.json")

    assert "refuses to write there; check bucket or container" in said
    assert "code=NoSuchBucket" in said or "code=ContainerNotFound" in said
    assert f"key={kind}://not-there/.lakewarden-probe/" in said
    assert "\n" not in said


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
