"""Token files that rotate, and credentials of Google that obstore can't use itself, by each client of a store."""

import base64
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

import anyio
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from lakewarden.agent.settings import Settings
from lakewarden.agent.stores import open_store
from lakewarden.agent.stores.cloud import CloudStore
from lakewarden.agent.watching.files import Buckets, UnreadableTableError
from lakewarden.handlers.lease.conditional import IfAbsent, Refused, Unknown, Won
from lakewarden.handlers.paimon.publish import PutRefused
from lakewarden.spark_jobs.sinks.paimon import snapshot_store
from lakewarden.spark_jobs.sinks.paimon.snapshot_store import ObjectSnapshots
from tests.contract.clouds import AZURE, GOOGLE
from tests.servers.faulty_http import FaultyServer, Reply, faulty_server

pytestmark = pytest.mark.usefixtures("no_cloud")
SET: Final = "set GOOGLE_APPLICATION_CREDENTIALS"


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that `GOOGLE_APPLICATION_CREDENTIALS` names."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "credentials.json"))
    return tmp_path / "credentials.json"


def federated(token_url: str, folder: Path, **more: str) -> str:
    given = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/k8s",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"{token_url}/v1/token",
        "credential_source": {"file": str(folder / "subject")},
        **more,
    }
    return json.dumps(given)


IMPERSONATED: Final = json.dumps(
    {
        "type": "impersonated_service_account",
        "service_account_impersonation_url": "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/"
        "locks@p.iam.gserviceaccount.com:generateAccessToken",
        "source_credentials": {
            "type": "authorized_user",
            "client_id": "a",
            "client_secret": "b",
            "refresh_token": "c",
        },
    }
)


def exchanged(token: str) -> Reply:
    """Tokens that end at once, so that each request needs another one."""
    answer = {
        "access_token": token,
        "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
        "token_type": "Bearer",
        "expires_in": 60,
    }
    return Reply(200, (("Content-Type", "application/json"),), json.dumps(answer).encode())


async def by_lock(server: FaultyServer) -> object:
    async with GOOGLE.store(server) as store:
        return await store.write(GOOGLE.uri, b"{}", IfAbsent())


async def by_watcher(server: FaultyServer) -> object:
    files = Buckets(Settings(gcs_endpoint=server.endpoint)).table("gs://bucket/t")
    try:
        return await files.read("log")
    except UnreadableTableError as error:
        return error


async def by_sink(server: FaultyServer) -> object:
    with pytest.MonkeyPatch.context() as patch:
        once = snapshot_store._once(server.endpoint)
        patch.setattr(snapshot_store, "_once", lambda _: once)
        patch.setenv("GOOGLE_BASE_URL", server.endpoint)
        store = ObjectSnapshots(snapshot_store._google("bucket", {}), "t", compares_etags=False)
    return await anyio.to_thread.run_sync(lambda: store.put_if_absent("snapshot-1", b"{}"))


CLIENTS: Final = [by_lock, by_watcher, by_sink]


@pytest.mark.parametrize("send", CLIENTS)
async def test_workload_identity_federation_reads_the_rotated_subject_token(
    send: Callable[[FaultyServer], Awaitable[object]], named: Path, tmp_path: Path
) -> None:
    async with (
        faulty_server([exchanged("one"), exchanged("two")]) as sts,
        faulty_server([GOOGLE.done()]) as server,
    ):
        named.write_text(federated(sts.endpoint, tmp_path))
        for subject in ("subject-1", "subject-2"):
            (tmp_path / "subject").write_text(subject)
            await send(server)

    assert [parse_qs(each.body.decode())["subject_token"] for each in sts.received] == [
        ["subject-1"],
        ["subject-2"],
    ]
    assert all("devstorage" in each.body.decode() for each in sts.received), "Google demands a scope"
    assert [each.headers["authorization"] for each in server.received] == ["Bearer one", "Bearer two"]


async def test_a_running_store_exchanges_a_token_that_has_rotated(named: Path, tmp_path: Path) -> None:
    async with (
        faulty_server([exchanged("one"), exchanged("two")]) as sts,
        faulty_server([GOOGLE.done()]) as server,
    ):
        named.write_text(federated(sts.endpoint, tmp_path))
        async with GOOGLE.store(server) as store:
            for number, subject in enumerate(("subject-1", "subject-2"), start=1):
                (tmp_path / "subject").write_text(subject)
                while len(sts.received) < number:  # obstore keeps a token for a moment at least
                    assert isinstance(await store.write(GOOGLE.uri, b"{}", IfAbsent()), Won)

    assert parse_qs(sts.received[-1].body.decode())["subject_token"] == ["subject-2"]
    assert server.received[-1].headers["authorization"] == "Bearer two"


async def test_a_federated_identity_may_impersonate_a_service_account(named: Path, tmp_path: Path) -> None:
    impersonated = Reply(
        200,
        (("Content-Type", "application/json"),),
        b'{"accessToken": "of-the-account", "expireTime": "2999-01-01T00:00:00Z"}',
    )
    async with (
        faulty_server([exchanged("federated"), impersonated]) as sts,
        faulty_server([GOOGLE.done()]) as server,
    ):
        account = f"{sts.endpoint}/v1/projects/-/serviceAccounts/locks@p.iam.gserviceaccount.com:generateAccessToken"
        named.write_text(federated(sts.endpoint, tmp_path, service_account_impersonation_url=account))
        (tmp_path / "subject").write_text("subject")
        assert isinstance(await by_lock(server), Won)

    assert server.received[0].headers["authorization"] == "Bearer of-the-account"


async def test_an_impersonated_service_account_is_opened(named: Path) -> None:
    """Its exchange is with Google's own hosts only."""
    named.write_text(IMPERSONATED)
    async with CloudStore(GOOGLE.uri, request_timeout_seconds=1.0):
        pass


@pytest.mark.parametrize("send", CLIENTS)
@pytest.mark.parametrize("kind", ["external_account", "impersonated_service_account"])
async def test_without_google_auth_the_error_names_what_is_missing_and_what_works(
    send: Callable[[FaultyServer], Awaitable[object]],
    kind: str,
    named: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "google.auth", None)
    named.write_text(IMPERSONATED if kind.startswith("imp") else federated("https://sts", tmp_path))
    async with faulty_server([GOOGLE.done()]) as server:
        with pytest.raises((ValueError, UnreadableTableError)) as raised:
            await send(server)

    message = str(raised.value)
    assert f"of type {kind}, which needs the packages google-auth and requests" in message
    assert "the key of a service account, gcloud's login and the metadata service" in message
    assert SET not in message
    assert server.received == []


async def test_an_exchange_that_fails_is_named_and_leaves_nothing_unknown(
    named: Path, tmp_path: Path
) -> None:
    refusal = Reply(400, (("Content-Type", "application/json"),), b'{"error": "invalid_grant"}')
    (tmp_path / "subject").write_text("hush")
    async with faulty_server([refusal]) as sts, faulty_server([GOOGLE.done()]) as server:
        named.write_text(federated(sts.endpoint, tmp_path))
        outcomes: list[Any] = [await send(server) for send in CLIENTS]

    assert [type(each) for each in outcomes] == [Unknown, UnreadableTableError, PutRefused]
    for text in (outcomes[0].why, str(outcomes[1]), outcomes[2].why):
        assert "invalid_grant" in text
        assert SET not in text
        assert "hush" not in text
    assert f"check GOOGLE_APPLICATION_CREDENTIALS={named}" in outcomes[0].why
    assert server.received == []


@pytest.mark.parametrize(
    "wrong",
    [{"source_credentials": None}, {"source_credentials": "a"}, {"service_account_impersonation_url": 5}],
)
async def test_a_file_that_google_auth_stumbles_over_is_an_error_with_its_cause(
    wrong: dict[str, Any], named: Path
) -> None:
    """It raises what a wrong field leads to, as an `AttributeError`."""
    named.write_text(json.dumps(json.loads(IMPERSONATED) | wrong))
    with pytest.raises(
        ValueError, match="of type impersonated_service_account, and google-auth can't use them: Attr"
    ):
        async with open_store("gs://bucket", Settings.load()):
            pass


async def test_a_file_that_is_spoiled_under_a_running_store_raises_nothing(
    named: Path, tmp_path: Path
) -> None:
    refusal = Reply(
        401, (("Content-Type", "application/xml"),), b"<Error><Code>AuthenticationRequired</Code></Error>"
    )
    async with faulty_server([exchanged("one")]) as sts, faulty_server([refusal]) as server:
        named.write_text(federated(sts.endpoint, tmp_path))
        (tmp_path / "subject").write_text("subject")
        async with GOOGLE.store(server) as store:
            named.write_text('{"type": "impersonated_service_account"}')
            assert isinstance(await store.write(GOOGLE.uri, b"{}", IfAbsent()), Refused)


@pytest.mark.parametrize("content", ["", "{}", '{"type": "gdch_service_account"}', None])
async def test_a_file_that_cannot_be_used_is_named(content: str | None, named: Path) -> None:
    if content is not None:
        named.write_text(content)
    with pytest.raises(ValueError, match="redentials") as raised:
        async with open_store("gs://bucket", Settings.load()):
            pass

    message = str(raised.value)
    if "gdch" in (content or ""):
        assert "of type gdch_service_account, and google-auth can't use them" in message
    else:
        assert (
            f"check GOOGLE_APPLICATION_CREDENTIALS={named}, or unset GOOGLE_APPLICATION_CREDENTIALS"
            in message
        )


async def test_azures_federated_token_is_read_again_for_the_next_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = Reply(200, body=b'{"access_token": "t", "expires_in": 10, "token_type": "Bearer"}')
    async with faulty_server([token]) as directory, faulty_server([AZURE.done()]) as server:
        for name, value in {
            "AZURE_STORAGE_ACCOUNT_NAME": "account",
            "AZURE_CLIENT_ID": "client",
            "AZURE_TENANT_ID": "tenant",
            "AZURE_AUTHORITY_HOST": directory.endpoint,
            "AZURE_FEDERATED_TOKEN_FILE": str(tmp_path / "subject"),
        }.items():
            monkeypatch.setenv(name, value)
        async with AZURE.store(server) as store:
            for number, subject in enumerate(("subject-1", "subject-2"), start=1):
                (tmp_path / "subject").write_text(subject)
                while len(directory.received) < number:
                    assert isinstance(await store.write(AZURE.uri, b"{}", IfAbsent()), Won)
            (tmp_path / "subject").unlink()
        async with AZURE.store(server) as store:
            outcome = await store.write(AZURE.uri, b"{}", IfAbsent())

    assertions = [parse_qs(each.body.decode())["client_assertion"] for each in directory.received]
    assert assertions[:2] == [["subject-1"], ["subject-2"]]
    assert isinstance(outcome, Unknown)
    assert f"check AZURE_FEDERATED_TOKEN_FILE={tmp_path}/subject" in outcome.why


def account_key(key_id: str) -> str:
    private = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return json.dumps(
        {
            "type": "service_account",
            "private_key_id": key_id,
            "private_key": private.decode(),
            "client_email": "locks@p.iam.gserviceaccount.com",
            "token_uri": "https://oauth2.googleapis.com/token",
        }
    )


@pytest.mark.parametrize("by", ["lock", "watcher", "the watcher's next look for tables"])
async def test_the_rotated_key_of_a_service_account_is_read_after_a_refusal(by: str, named: Path) -> None:
    named.write_text(account_key("first"))
    refusal = Reply(401, body=b"<Error><Code>AuthenticationRequired</Code></Error>")
    async with faulty_server([refusal, GOOGLE.done()]) as server:
        buckets = Buckets(Settings(gcs_endpoint=server.endpoint))
        files = buckets.table("gs://bucket/t")
        async with GOOGLE.store(server) as store:
            named.write_text(account_key("second"))
            if by != "lock":
                with pytest.raises(UnreadableTableError):
                    await files.read("log")
                if by != "watcher":
                    files = buckets.table("gs://bucket/other")
                await files.read("log")
            else:
                assert isinstance(await store.write(GOOGLE.uri, b"{}", IfAbsent()), Refused)
                assert isinstance(await store.write(GOOGLE.uri, b"{}", IfAbsent()), Won)

    tokens = [
        each.headers["authorization"].removeprefix("Bearer ").partition(".")[0] for each in server.received
    ]
    assert [json.loads(base64.urlsafe_b64decode(each + "=="))["kid"] for each in tokens] == [
        "first",
        "second",
    ]
