"""How the S3 store connects: TLS, addressing, credentials and region, each from the standard chain.

A missing or wrong setting is *refused*, and the reason says what to set. A transient failure (of the credentials service, of
a handshake) is *unknown*. In both cases nothing is sent, and no restart is needed after the cause was removed.
"""

import base64
import hashlib
import json
import os
import ssl
import time
import zlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from socket import AF_INET, AddressFamily
from typing import Any
from urllib.parse import parse_qs

import aiohttp.connector
import anyio
import botocore.session
import pytest
import trustme
from aiobotocore.client import AioClientCreator
from aiobotocore.utils import AioContainerMetadataFetcher
from aiohttp.abc import AbstractResolver, ResolveResult
from anyio.abc import SocketAttribute, SocketStream
from anyio.lowlevel import checkpoint

from lakewarden.agent.settings import Settings
from lakewarden.agent.stores import StoreRefusedError, probe
from lakewarden.agent.stores.s3 import S3Options, S3Store
from lakewarden.agent.watching.files import Buckets, UnreadableTableError
from lakewarden.handlers.lease.conditional import (
    Absent,
    Found,
    IfAbsent,
    IfMatch,
    Lost,
    Refused,
    Unknown,
    Won,
    WriteOutcome,
)
from lakewarden.handlers.lease.store_answers import REJECTED_CREDENTIALS
from tests.servers.faulty_http import FaultyServer, Reply, faulty_server
from tests.servers.program import new_name
from tests.servers.s3 import VIRTUAL_DOMAIN, S3Server, encrypting_s3_server

URI = "s3://bucket/locks/t.json"
ETAG = '"9dd4e461268c8034f5c8564e155c67a6"'
WON = Reply(200, (("ETag", ETAG),))
SECONDS = 60.0
Written = tuple[WriteOutcome, FaultyServer]


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Hide the machine's own AWS settings: no variables, and files in an empty folder."""
    for name in [*os.environ]:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return tmp_path


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key-of-the-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


def store_at(endpoint: str | None, **options: str | bool) -> S3Store:
    return S3Store(S3Options(endpoint_url=endpoint, **options), request_timeout_seconds=SECONDS)  # type: ignore[arg-type]


async def written(reply: Reply = WON, *, tls: ssl.SSLContext | None = None) -> Written:
    """What a write returns on a server that answers `reply` once, and that server."""
    opened = faulty_server([reply], tls=tls)
    async with opened as server, store_at(server.endpoint) as store:
        return await store.write(URI, b"body", IfAbsent()), server


def require_refusal(outcome: object, *parts: str) -> None:
    """The outcome is a refusal, whose reason has these parts."""
    assert isinstance(outcome, Refused), outcome
    for part in parts:
        assert part in outcome.why


def credential(server: FaultyServer) -> str:
    """The credential of the last request: key, day, region, service."""
    return server.received[-1].headers["authorization"].partition("Credential=")[2].partition(",")[0]


# -- TLS ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def authority(tmp_path: Path) -> trustme.CA:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    return authority


def tls(authority: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize(
    ("is_named", "host", "reasons"),
    [
        pytest.param(True, "127.0.0.1", (), id="its authority is named"),
        pytest.param(
            False, "127.0.0.1", ("certificate is not trusted: ", "set AWS_CA_BUNDLE to"), id="unknown"
        ),
        pytest.param(True, "elsewhere.test", ("IP address mismatch",), id="of another host"),
    ],
)
async def test_a_certificate_is_trusted_by_the_authority_in_aws_ca_bundle(
    authority: trustme.CA,
    *,
    is_named: bool,
    host: str,
    reasons: tuple[str, ...],
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if is_named:
        monkeypatch.setenv("AWS_CA_BUNDLE", str(home / "authority.pem"))
    outcome, server = await written(tls=tls(authority, host))

    assert server.endpoint.startswith("https://")
    if reasons:
        require_refusal(outcome, *reasons)
        assert server.received == []
    else:
        assert outcome == Won(ETAG)


@pytest.mark.usefixtures("keys")
async def test_a_watcher_trusts_the_authorities_in_ssl_cert_file(
    authority: trustme.CA, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with faulty_server([WON], tls=tls(authority, "127.0.0.1")) as server:
        settings = Settings(s3_endpoint=server.endpoint)
        with pytest.raises(UnreadableTableError, match=r"certificate is not trusted.*set SSL_CERT_FILE to"):
            await Buckets(settings).table("s3://bucket/locks").read("t.json")
        monkeypatch.setenv("SSL_CERT_FILE", str(home / "authority.pem"))
        await Buckets(settings).table("s3://bucket/locks").read("t.json")


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("content", [None, "no certificate"])
async def test_an_unreadable_authority_file_is_refused(
    content: str | None, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(home / "missing.pem"))
    if content is not None:
        (home / "missing.pem").write_text(content)
    async with store_at("https://127.0.0.1:1") as store:
        outcome = await store.write(URI, b"body", IfAbsent())

    require_refusal(outcome, "check AWS_CA_BUNDLE")


@asynccontextmanager
async def answering(answer: bytes) -> AsyncGenerator[str]:
    """A server that sends these bytes after the first ones it receives, then closes the connection."""

    async def handle(stream: SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(answer)

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(SocketAttribute.local_port)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, handle)
            yield f"https://127.0.0.1:{port}"
            tasks.cancel_scope.cancel()


@pytest.mark.usefixtures("keys")
async def test_https_to_an_http_server_is_refused() -> None:
    async with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as endpoint, store_at(endpoint) as store:
        outcome = await store.write(URI, b"body", IfAbsent())

    require_refusal(outcome, "does not use TLS; write it with http://")


@pytest.mark.usefixtures("keys")
async def test_a_handshake_that_breaks_is_unknown() -> None:
    """A load balancer restarts; no setting has to change."""
    async with answering(b"") as endpoint, store_at(endpoint) as store:
        outcome = await store.write(URI, b"body", IfAbsent())

    assert isinstance(outcome, Unknown), outcome


# -- addressing --------------------------------------------------------------------------------------------------------


class ToThisMachine(AbstractResolver):
    """Resolves every name to this machine, as a wildcard DNS record would."""

    async def resolve(self, host: str, port: int = 0, family: AddressFamily = AF_INET) -> list[ResolveResult]:
        return [ResolveResult(hostname=host, host="127.0.0.1", port=port, family=AF_INET, proto=0, flags=0)]

    async def close(self) -> None:
        """Required by the interface."""


@pytest.fixture
def every_name_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiohttp.connector, "DefaultResolver", lambda **_: ToThisMachine())


@pytest.mark.usefixtures("keys", "every_name_is_ours")
@pytest.mark.parametrize(
    ("path_style", "host", "path"),
    [
        (None, VIRTUAL_DOMAIN, "/bucket/locks/t.json"),
        (True, VIRTUAL_DOMAIN, "/bucket/locks/t.json"),
        (False, f"bucket.{VIRTUAL_DOMAIN}", "/locks/t.json"),
    ],
)
async def test_the_bucket_is_in_the_path_or_in_the_host(
    path_style: bool | None, host: str, path: str
) -> None:
    async with faulty_server([WON]) as server:
        options = S3Options(endpoint_url=f"http://{VIRTUAL_DOMAIN}:{server.port}", path_style=path_style)
        async with S3Store(options, request_timeout_seconds=SECONDS) as store:
            assert await store.write(URI, b"body", IfAbsent()) == Won(ETAG)

    assert server.received[0].headers["host"] == f"{host}:{server.port}"
    assert server.received[0].path == path


@pytest.mark.usefixtures("keys", "every_name_is_ours")
@pytest.mark.parametrize(
    "place", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "the profile", "the profile's services"]
)
async def test_an_endpoint_of_the_standard_chain_is_used(
    place: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By agent and watcher. As with the setting, the bucket is in the path: few such endpoints resolve `bucket.host`."""

    def configure(endpoint: str) -> None:
        text = {
            "the profile": f"[default]\nendpoint_url = {endpoint}\n",
            "the profile's services": f"[default]\nservices = mine\n[services mine]\ns3 =\n  endpoint_url = {endpoint}\n",
        }
        if place in text:
            (home / "config").write_text(text[place])
        else:
            monkeypatch.setenv(place, endpoint)

    async with faulty_server([WON, WON]) as server:
        configure(f"http://{VIRTUAL_DOMAIN}:{server.port}")
        async with store_at(None) as store:
            assert await store.write(URI, b"body", IfAbsent()) == Won(ETAG)
        configure(server.endpoint)
        await Buckets(Settings()).table("s3://bucket/locks").read("t.json")

    written, read = server.received
    assert written.headers["host"] == f"{VIRTUAL_DOMAIN}:{server.port}"
    assert written.path == read.path == "/bucket/locks/t.json"


@pytest.mark.real
@pytest.mark.usefixtures("every_name_is_ours")
async def test_a_real_server_accepts_virtual_style(
    started_s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host is part of the signature, so client and server must derive the same bucket and host."""
    for name, value in started_s3_server.environment.items():
        monkeypatch.setenv(name, value)
    uri = f"s3://{started_s3_server.bucket()}/locks/t.json"
    port = started_s3_server.endpoint.rpartition(":")[2]
    async with store_at(f"http://{VIRTUAL_DOMAIN}:{port}", path_style=False) as store:
        assert await store.read(uri) == Absent()
        first = await store.write(uri, b"first", IfAbsent())
        assert isinstance(first, Won), first
        assert isinstance(await store.write(uri, b"second", IfAbsent()), Lost)
        second = await store.write(uri, b"second", IfMatch(first.version))
        assert isinstance(second, Won), second
        assert await store.read(uri) == Found(b"second", second.version)


async def test_an_invalid_endpoint_url_is_refused(keys: None) -> None:
    async with store_at("127.0.0.1:9000") as store:
        outcome = await store.read(URI)

    require_refusal(outcome, "127.0.0.1:9000")


# -- credentials -------------------------------------------------------------------------------------------------------


GIVEN = Reply(
    200,
    (("Content-Type", "application/json"),),
    b'{"AccessKeyId":"key-of-the-role","SecretAccessKey":"secret","Token":"token","Expiration":"2099-01-01T00:00:00Z"}',
)

ASSUMED = Reply(
    200,
    (("Content-Type", "text/xml"),),
    b"<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>key-of-the-role</AccessKeyId>"
    b"<SecretAccessKey>secret</SecretAccessKey><SessionToken>token</SessionToken>"
    b"<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>",
)


@asynccontextmanager
async def credentials_service(
    monkeypatch: pytest.MonkeyPatch, *script: Reply
) -> AsyncGenerator[FaultyServer]:
    """The service from which a container fetches the credentials of its role."""
    monkeypatch.setattr(AioContainerMetadataFetcher, "SLEEP_TIME", 0.0)
    async with faulty_server(script) as service:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{service.endpoint}/role")
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "container token")
        yield service


async def test_credentials_are_fetched_for_a_containers_role(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        credentials_service(monkeypatch, GIVEN) as service,
        faulty_server([WON]) as server,
        store_at(server.endpoint) as store,
    ):
        for _ in range(3):
            assert await store.write(URI, b"body", IfAbsent()) == Won(ETAG)

    assert [(received.path, received.headers["authorization"]) for received in service.received] == [
        ("/role", "container token")
    ]
    assert credential(server).startswith("key-of-the-role/")
    assert server.received[0].headers["x-amz-security-token"] == "token"


async def test_a_role_is_assumed_with_the_external_id_of_its_profile(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "credentials").write_text("[own]\naws_access_key_id = key\naws_secret_access_key = secret\n")
    (home / "config").write_text(
        "[profile lake]\nregion = eu-west-1\nsource_profile = own\nexternal_id = tenant-42\n"
        "role_arn = arn:aws:iam::123456789012:role/lake\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "lake")
    async with faulty_server([ASSUMED]) as service:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", service.endpoint)
        outcome, server = await written()

    assert outcome == Won(ETAG)
    assert credential(server).startswith("key-of-the-role/")
    [asked] = [parse_qs(received.body.decode()) for received in service.received]
    assert (asked["Action"], asked["ExternalId"]) == (["AssumeRole"], ["tenant-42"])


@pytest.mark.parametrize("failure", [Reply(500), Reply(200, body=b"<html>"), Reply(fault="reset")])
async def test_a_failure_of_the_credentials_service_is_unknown_and_the_next_request_fetches_again(
    failure: Reply, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        credentials_service(monkeypatch, failure) as service,
        faulty_server([WON]) as server,
        store_at(server.endpoint) as store,
    ):
        first = await store.write(URI, b"body", IfAbsent())
        sent = len(server.received)
        service.script[:] = [GIVEN]
        second = await store.write(URI, b"body", IfAbsent())

    assert isinstance(first, Unknown), first
    assert sent == 0
    assert second == Won(ETAG)


async def test_the_request_timeout_includes_fetching_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        credentials_service(monkeypatch, Reply(fault="silence"), GIVEN),
        faulty_server([WON]) as server,
        S3Store(S3Options(endpoint_url=server.endpoint), request_timeout_seconds=1) as store,
    ):
        first = await store.write(URI, b"body", IfAbsent())
        # On a busy machine the credentials, too, may take longer than the timeout.
        while isinstance(second := await store.write(URI, b"body", IfAbsent()), Unknown):
            pass

    assert isinstance(first, Unknown)
    assert "no credentials within the timeout: request_timeout_seconds=1" in first.why
    assert second == Won(ETAG)


async def test_building_the_client_may_take_longer_than_the_request_timeout(
    keys: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine it did, in each try again, and the store was never reached."""
    build = AioClientCreator.create_client

    async def build_slowly(*args: Any, **named: Any) -> Any:
        time.sleep(2.5)  # noqa: ASYNC251 - stands for computation, which blocks the event loop
        await checkpoint()
        return await build(*args, **named)

    monkeypatch.setattr(AioClientCreator, "create_client", build_slowly)
    async with (
        faulty_server([WON]) as server,
        S3Store(S3Options(endpoint_url=server.endpoint), request_timeout_seconds=2) as store,
    ):
        # On a busy machine the answer, too, may take longer than the timeout. The client is there after the first try.
        answers = [await store.write(URI, b"body", IfAbsent()) for _ in range(2)]

    assert Won(ETAG) in answers


def write_keys(home: Path, key: str) -> None:
    (home / "credentials").write_text(
        f"[default]\naws_access_key_id = {key}\naws_secret_access_key = secret\naws_session_token = of-{key}\n"
    )


@pytest.mark.parametrize("code", REJECTED_CREDENTIALS)
async def test_a_credentials_file_that_another_program_renews_is_read_again_after_a_refusal(
    code: str, home: Path
) -> None:
    write_keys(home, "first")
    refusal = Reply(403, body=f"<Error><Code>{code}</Code></Error>".encode())
    async with faulty_server([WON, refusal, refusal, WON]) as server, store_at(server.endpoint) as store:
        assert isinstance(await store.write(URI, b"body", IfAbsent()), Won)
        require_refusal(await store.write(URI, b"body", IfAbsent()), code)
        write_keys(home, "second")
        require_refusal(await store.write(URI, b"body", IfAbsent()), code)
        assert isinstance(await store.write(URI, b"body", IfAbsent()), Won)

    credentials = [each.headers["authorization"].partition("Credential=")[2] for each in server.received]
    assert [each.partition("/")[0] for each in credentials] == ["first", "first", "first", "second"]
    assert server.received[-1].headers["x-amz-security-token"] == "of-second"


async def test_a_watcher_reads_a_credentials_file_again(home: Path) -> None:
    """obstore asks for credentials again each minute."""
    found = []
    write_keys(home, "first")
    store: Any = Buckets(Settings(s3_endpoint="http://127.0.0.1:1")).table("s3://bucket/t")._store
    for key in ("first", "second"):
        write_keys(home, key)
        found.append(await store.credential_provider())

    assert [each["access_key_id"] for each in found] == ["first", "second"]


async def test_a_web_identity_token_that_rotates_is_read_for_the_next_session(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session ends soon, so botocore asks for another one before each request."""
    ends = datetime.now(UTC) + timedelta(seconds=100)
    assumed = ASSUMED.body.replace(b"AssumeRoleRes", b"AssumeRoleWithWebIdentityRes")
    reply = replace(ASSUMED, body=assumed.replace(b"2099-01-01T00:00:00Z", ends.isoformat().encode()))
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(home / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/locks")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    async with (
        faulty_server([reply]) as sts,
        faulty_server([WON]) as server,
        store_at(server.endpoint) as store,
    ):
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts.endpoint)
        for token in ("first", "second"):
            (home / "token").write_text(token)
            assert isinstance(await store.write(URI, b"body", IfAbsent()), Won)

    tokens = [parse_qs(each.body.decode())["WebIdentityToken"] for each in sts.received]
    assert (tokens[0], tokens[-1]) == (["first"], ["second"])


async def test_the_program_of_a_profile_is_asked_again_before_its_credentials_end(home: Path) -> None:
    ends = (datetime.now(UTC) + timedelta(minutes=5)).isoformat()
    answer = home / "answer.json"
    (home / "config").write_text(f"[default]\nregion = eu-west-1\ncredential_process = cat {answer}\n")
    async with faulty_server([WON]) as server, store_at(server.endpoint) as store:
        for key in ("first", "second"):
            given = {
                "Version": 1,
                "AccessKeyId": key,
                "SecretAccessKey": "s",
                "SessionToken": "t",
                "Expiration": ends,
            }
            answer.write_text(json.dumps(given))
            await store.write(URI, b"body", IfAbsent())

    assert credential(server).startswith("second/")


async def test_missing_credentials_are_refused_until_they_exist(home: Path) -> None:
    async with faulty_server([WON]) as server, store_at(server.endpoint) as store:
        before = await store.write(URI, b"body", IfAbsent())
        sent = len(server.received)
        (home / "credentials").write_text(
            "[default]\naws_access_key_id = key\naws_secret_access_key = secret\n"
        )
        after = await store.write(URI, b"body", IfAbsent())

    require_refusal(before, "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile in AWS_PROFILE")
    assert sent == 0
    assert after == Won(ETAG)


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"AWS_PROFILE": "missing"}, "profile (missing) could not be found"),
        ({"AWS_ACCESS_KEY_ID": "key"}, "AWS_SECRET_ACCESS_KEY"),
        ({"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://example.com/role"}, "example.com"),
    ],
)
async def test_incomplete_credentials_are_refused(
    variables: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    outcome, server = await written()

    require_refusal(outcome, reason)
    assert server.received == []


async def test_no_reason_contains_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-value")
    outcome, _ = await written(Reply(403))

    assert isinstance(outcome, Refused)
    assert "secret-value" not in outcome.why


# -- region ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("place", ["AWS_REGION", "the profile", "nowhere"])
async def test_a_region_of_the_standard_chain_is_used(
    place: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An endpoint needs none: most other stores have no regions, and accept the one that clients send by default."""
    if place == "the profile":
        (home / "config").write_text("[default]\nregion = eu-west-1\n")
    elif place != "nowhere":
        monkeypatch.setenv(place, "eu-west-1")
    outcome, server = await written()

    assert outcome == Won(ETAG)
    region = "us-east-1" if place == "nowhere" else "eu-west-1"
    assert credential(server).endswith(f"/{region}/s3/aws4_request")


@pytest.mark.usefixtures("keys")
async def test_aws_needs_a_region() -> None:
    async with store_at(None) as store:
        outcome = await store.read(URI)

    require_refusal(outcome, "no region is set; set AWS_REGION")


@pytest.mark.usefixtures("keys")
async def test_a_bucket_in_another_region_is_refused_with_its_region() -> None:
    """botocore alone would look up the region and send the write again: two requests for one call."""
    elsewhere = Reply(
        301,
        (("x-amz-bucket-region", "eu-west-1"),),
        b"<Error><Code>PermanentRedirect</Code><Message>addressed elsewhere</Message></Error>",
    )
    async with faulty_server([elsewhere, WON]) as server, store_at(server.endpoint) as store:
        outcome = await store.write(URI, b"body", IfAbsent())

    require_refusal(outcome, "the bucket is in region eu-west-1")
    assert len(server.received) == 1


# -- encryption --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def encrypting() -> Iterator[S3Server]:
    with encrypting_s3_server() as server:
        yield server


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("given", "accepted"),
    [
        ({}, False),
        ({"encryption": "AES256"}, False),
        ({"encryption": "aws:kms"}, True),
        ({"encryption": "aws:kms", "kms_key": "locks"}, True),
    ],
)
async def test_a_policy_that_demands_encryption_by_a_key_is_met(
    encrypting: S3Server, given: dict[str, str], *, accepted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As bucket policies of AWS do. MinIO applies these to requests without a signature only, so it is the session's policy."""
    bucket = encrypting.bucket()
    for name, value in credentials_with(encrypting, policy_of(bucket)).items():
        monkeypatch.setenv(name, value)
    uri = f"s3://{bucket}/locks/t.json"

    async with store_at(encrypting.endpoint, **given) as store:
        first = await store.write(uri, b"1", IfAbsent())
        if not accepted:
            assert isinstance(first, Refused)
            assert "Access Denied" in first.why
            return
        assert isinstance(first, Won)
        second = await store.write(uri, b"2", IfMatch(first.version))
        assert isinstance(second, Won)
        assert isinstance(await store.write(uri, b"3", IfMatch(first.version)), Lost)
        assert await store.read(uri) == Found(b"2", second.version)
        await probe(store, f"s3://{bucket}/locks")
    headers = encrypting.new_client().head_object(Bucket=bucket, Key="locks/t.json")
    assert (headers["ServerSideEncryption"], headers["SSEKMSKeyId"]) == ("aws:kms", "arn:aws:kms:locks")


# -- versions, retention and checksums ---------------------------------------------------------------------------------


async def test_every_write_has_the_checksum_that_its_kind_of_bucket_knows(keys: None) -> None:
    """A bucket whose Object Lock has a default retention demands one. A directory bucket's session comes first."""
    session = (
        b'<CreateSessionResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Credentials><SessionToken>t</SessionToken>'
        b"<SecretAccessKey>s</SecretAccessKey><AccessKeyId>k</AccessKeyId><Expiration>2999-01-01T00:00:00Z</Expiration>"
        b"</Credentials></CreateSessionResult>"
    )
    async with faulty_server([WON]) as server, store_at(server.endpoint) as store:
        for condition in (IfAbsent(), IfMatch('"1"')):
            assert isinstance(await store.write(URI, b"body", condition), Won)
    async with (
        faulty_server([Reply(200, (), session), WON]) as directory,
        store_at(directory.endpoint) as store,
    ):
        assert isinstance(await store.write("s3://b--use1-az4--x-s3/t.json", b"body", IfAbsent()), Won)

    md5 = base64.b64encode(hashlib.md5(b"body", usedforsecurity=False).digest()).decode()
    assert [each.headers.get("content-md5") for each in server.received] == [md5, md5]
    [_, put] = directory.received
    assert put.headers["x-amz-checksum-crc32"] == base64.b64encode(zlib.crc32(b"body").to_bytes(4)).decode()
    assert "content-md5" not in put.headers


@pytest.mark.parametrize(
    "version, keeps",
    [((), False), ((("x-amz-version-id", "null"),), False), ((("x-amz-version-id", "1"),), True)],
)
async def test_the_answer_to_a_write_says_whether_the_bucket_keeps_versions(
    version: tuple[tuple[str, str], ...], keeps: bool, keys: None
) -> None:
    reply = Reply(200, (*WON.headers, *version))
    async with faulty_server([reply]) as server, store_at(server.endpoint) as store:
        assert store.keeps_versions is None
        assert isinstance(await store.write(URI, b"body", IfAbsent()), Won)

        assert store.keeps_versions is keeps


def create_locked(server: S3Server, bucket: str) -> None:
    """A bucket that keeps each version for a day."""
    client = server.new_client()
    client.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=True)
    rule = {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": 1}}
    client.put_object_lock_configuration(
        Bucket=bucket, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": rule}
    )


@pytest.mark.matrix
@pytest.mark.parametrize("locked", [False, True])
async def test_a_bucket_that_keeps_versions_can_hold_locks(
    encrypting: S3Server, locked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in encrypting.environment.items():
        monkeypatch.setenv(name, value)
    bucket = new_name()
    client = encrypting.new_client()
    if locked:
        create_locked(encrypting, bucket)
    else:
        client.create_bucket(Bucket=bucket)
        client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})

    async with store_at(encrypting.endpoint) as store:
        await probe(store, f"s3://{bucket}/locks")
        await probe(store, f"s3://{bucket}/locks")

    assert store.keeps_versions is True
    found = client.list_object_versions(Bucket=bucket)
    assert (len(found["Versions"]), len(found["DeleteMarkers"])) == (6, 2), "an operator's rule removes them"
    assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


async def test_a_gateway_whose_retention_refuses_overwrites_is_refused_by_the_probe(
    started_s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """versitygw without versions. Before, the first renewal failed."""
    for name, value in started_s3_server.environment.items():
        monkeypatch.setenv(name, value)
    bucket = new_name()
    create_locked(started_s3_server, bucket)

    async with store_at(started_s3_server.endpoint) as store:
        if started_s3_server.objects is None:  # MinIO, where versitygw can't run
            await probe(store, f"s3://{bucket}/locks")
            return
        with pytest.raises(
            StoreRefusedError, match=r"check retention, Object Lock.*protected by object lock"
        ):
            await probe(store, f"s3://{bucket}/locks")


def policy_of(bucket: str) -> dict[str, Any]:
    everything = [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"]
    demanded = {"StringNotEquals": {"s3:x-amz-server-side-encryption": "aws:kms"}}
    return {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Action": ["s3:*"], "Resource": everything},
            {"Effect": "Deny", "Action": ["s3:PutObject"], "Resource": everything[1:], "Condition": demanded},
        ],
    }


def credentials_with(server: S3Server, policy: dict[str, Any]) -> dict[str, str]:
    """The variables of a session that this policy restricts."""
    client = botocore.session.Session().create_client(
        "sts",
        endpoint_url=server.endpoint,
        region_name=server.region,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
    )
    given = client.assume_role(
        RoleArn="arn:aws:iam::0:role/any", RoleSessionName="test", Policy=json.dumps(policy)
    )
    names = {
        "AWS_ACCESS_KEY_ID": "AccessKeyId",
        "AWS_SECRET_ACCESS_KEY": "SecretAccessKey",
        "AWS_SESSION_TOKEN": "SessionToken",
    }
    return {variable: given["Credentials"][name] for variable, name in names.items()} | {
        "AWS_REGION": server.region
    }
