"""What `PaimonSink` makes of a store's answers: the meanings of the lock's table (`test_s3_answers.py`), sent to its own client.

Each put reaches the server once. Only an answer after which the store may have acted is *not written*, which is read back.
"""

import base64
import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from obstore.store import GCSStore, S3Store

from lakewarden.handlers.lease.conditional import Lost, Refused, Throttled, Unknown
from lakewarden.handlers.paimon.publish import NotWritten, PutRefused, Written
from lakewarden.spark_jobs.sinks.paimon.snapshot_store import LinkedSnapshots, ObjectSnapshots, _once, _s3
from tests.contract.test_s3_answers import (
    ETAG,
    EXAMPLES,
    HTML,
    NO_BUCKET_JSON,
    NO_OBJECT_JSON,
    QUOTED,
    Example,
    error,
)
from tests.servers.faulty_http import FaultyServer, Reply, faulty_server

EXPECTED: Final[dict[type, type]] = {
    Lost: NotWritten,
    Unknown: NotWritten,
    Refused: PutRefused,
    Throttled: PutRefused,
}
ANSWERS: Final = [
    each for each in EXAMPLES if each.reply.status >= 400 and each.reply.fault in {"none", "reset"}
]
DONE: Final = Reply(200, (("ETag", ETAG),))


def on_s3(endpoint: str) -> ObjectSnapshots:
    config: Any = {
        "endpoint": endpoint,
        "access_key_id": "a",
        "secret_access_key": "b",
        "region": "us-east-1",
    }
    return ObjectSnapshots(
        S3Store("bucket", config=config, **_once(endpoint)), "a b/t-1", compares_etags=True
    )


def on_google(endpoint: str) -> ObjectSnapshots:
    credentials: Any = lambda: {"token": "t", "expires_at": None}  # noqa: E731
    client = GCSStore(
        "bucket", config={"base_url": endpoint}, credential_provider=credentials, **_once(endpoint)
    )
    return ObjectSnapshots(client, "a b/t-1", compares_etags=False)


async def answered(server: FaultyServer, reply: Reply, call: Callable[[], Any]) -> Any:
    """What the call makes of the reply. The next reply is a success, which a client that resends would return."""
    before = len(server.received)
    server.script[:] = [reply, DONE]
    try:
        return await anyio.to_thread.run_sync(call)
    except OSError as error:
        return error
    finally:
        assert len(server.received) == before + 1


@pytest.mark.parametrize("open_store", [on_s3, on_google])
@pytest.mark.parametrize("example", ANSWERS, ids=lambda example: example.answer)
async def test_an_answer_to_a_put_means_what_it_means_to_the_lock(
    example: Example, open_store: Callable[[str], ObjectSnapshots]
) -> None:
    assert example.if_absent is not None
    async with faulty_server([DONE]) as server:
        store = open_store(server.endpoint)
        outcome = await answered(server, example.reply, lambda: store.put_if_absent("snapshot-1", b"{}"))

    assert type(outcome) is EXPECTED[example.if_absent], outcome
    if isinstance(outcome, PutRefused):
        assert outcome.throttled == (example.if_absent is Throttled)


@pytest.mark.parametrize("open_store", [on_s3, on_google])
@pytest.mark.parametrize(
    "reply, missing",
    [
        (error(404, "NoSuchKey"), True),
        (error(404, "NoSuchBucket"), False),
        (Reply(404, body=NO_OBJECT_JSON), True),
        (Reply(404, body=NO_BUCKET_JSON), False),
        (Reply(404, body=HTML), False),
        (Reply(404, body=QUOTED), False),
        (error(403, "AccessDenied"), False),
    ],
    ids=["object", "bucket", "object in JSON", "bucket in JSON", "proxy", "quotes", "denied"],
)
async def test_only_a_missing_object_is_missing(
    open_store: Callable[[str], ObjectSnapshots], reply: Reply, missing: bool
) -> None:
    """A snapshot of a bucket that isn't there, or behind a proxy's page, was neither read nor removed."""
    async with faulty_server([DONE]) as server:
        store = open_store(server.endpoint)
        for call in (lambda: store.read("snapshot-1"), lambda: store.remove("snapshot-1")):
            outcome = await answered(server, reply, call)
            assert (outcome is None) == missing, outcome


async def test_a_put_has_the_checksum_that_object_lock_demands() -> None:
    async with faulty_server([DONE]) as server:
        options = {
            "s3.endpoint": server.endpoint,
            "s3.access-key": "a",
            "s3.secret-key": "b",
            "s3.path-style-access": "true",
        }
        store = ObjectSnapshots(_s3("bucket", options), "t", compares_etags=True)
        await anyio.to_thread.run_sync(lambda: store.put_if_absent("snapshot-1", b"{}"))

    digest = base64.b64encode(hashlib.sha256(b"{}").digest()).decode()
    assert [each.headers.get("x-amz-checksum-sha256") for each in server.received] == [digest]


@pytest.mark.parametrize(
    "service", [error(400, "ExpiredTokenException"), Reply(500), Reply(404), Reply(fault="reset")]
)
@pytest.mark.parametrize("kind", ["container", "instance", "web identity"])
async def test_credentials_that_cannot_be_fetched_refuse_the_put(
    service: Reply, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing is sent to the store, so nothing is unknown."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    (tmp_path / "token").write_text("token")
    async with faulty_server([service]) as server:
        given = {
            "container": {
                "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{server.endpoint}/role",
                "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(tmp_path / "token"),
            },
            "instance": {"AWS_METADATA_ENDPOINT": server.endpoint},
            "web identity": {"AWS_WEB_IDENTITY_TOKEN_FILE": "/none", "AWS_ROLE_ARN": "arn:aws:iam::1:role/x"},
        }
        for name, value in given[kind].items():
            monkeypatch.setenv(name, value)
        config: Any = {"endpoint": server.endpoint, "region": "us-east-1"}
        client = S3Store("bucket", config=config, **_once(server.endpoint))
        store = ObjectSnapshots(client, "t", compares_etags=True)
        outcome = await anyio.to_thread.run_sync(lambda: store.put_if_absent("snapshot-1", b"{}"))

    assert all("snapshot-1" not in each.path for each in server.received)
    assert isinstance(outcome, PutRefused), outcome
    assert ("a profile in ~/.aws isn't read" in outcome.why) == (kind == "instance"), outcome


@pytest.mark.parametrize(
    "code, expected",
    [
        (errno.EEXIST, NotWritten),
        (errno.EIO, NotWritten),
        (errno.ESTALE, NotWritten),
        (errno.EACCES, PutRefused),
        (errno.ENOSPC, PutRefused),
        (errno.EDQUOT, PutRefused),
        (errno.EROFS, PutRefused),
        (errno.EPERM, PutRefused),
    ],
)
def test_a_disks_no_is_a_refusal(
    code: int, expected: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    store = LinkedSnapshots(tmp_path)
    assert isinstance(store.put_if_absent("snapshot-1", b"{}"), Written)
    monkeypatch.setattr(os, "link", link)

    assert isinstance(store.put_if_absent("snapshot-2", b"{}"), expected)
