"""What the S3 store makes of everything that can go wrong on the way, over a real connection.

Each request must reach the server **once**: botocore and aiohttp both resend by themselves unless they are told not
to, and the second attempt would meet the first one's write as a 412.
"""

from __future__ import annotations

import anyio
import pytest

from lakewarden.agent.stores.port import MAX_OBJECT_BYTES
from lakewarden.agent.stores.s3 import S3Options, S3Store
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
from tests.servers.faulty_http import FaultyServer, Reply, faulty_server

URI = "s3://bucket/locks/t.json"
ETAG = '"9dd4e461268c8034f5c8564e155c67a6"'
WON = Reply(200, (("ETag", ETAG),))
BROKEN = ["reset-unread", "reset", "silence", "half-head"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.delenv("AWS_PROFILE", raising=False)


def store_at(server: FaultyServer, seconds: float = 5.0) -> S3Store:
    options = S3Options(endpoint_url=server.endpoint, region="us-east-1")
    return S3Store(options, request_timeout_seconds=seconds)


def error(status: int, code: str) -> Reply:
    return Reply(status, body=f"<Error><Code>{code}</Code><Message>said so</Message></Error>".encode())


@pytest.mark.parametrize(
    "reply, condition, expected",
    [
        (WON, IfAbsent(), Won),
        (WON, IfMatch(ETAG), Won),
        (Reply(200), IfMatch(ETAG), Unknown),
        (error(200, "PreconditionFailed"), IfMatch(ETAG), Lost),
        (error(200, "InternalError"), IfMatch(ETAG), Unknown),
        (Reply(200, (("ETag", ETAG),), body=b"<Error><Code>Precon"), IfMatch(ETAG), Unknown),
        (error(412, "PreconditionFailed"), IfAbsent(), Lost),
        (Reply(412), IfAbsent(), Lost),
        (error(409, "ConditionalRequestConflict"), IfAbsent(), Unknown),
        (error(404, "NoSuchKey"), IfMatch(ETAG), Lost),
        (error(404, "NoSuchBucket"), IfMatch(ETAG), Refused),
        (error(404, "NoSuchBucket"), IfAbsent(), Refused),
        (Reply(429), IfAbsent(), Throttled),
        (error(503, "SlowDown"), IfAbsent(), Throttled),
        (error(503, "ServiceUnavailable"), IfAbsent(), Unknown),
        (error(500, "InternalError"), IfAbsent(), Unknown),
        (Reply(502, body=b"<html>bad gateway</html>"), IfAbsent(), Unknown),
        (error(501, "NotImplemented"), IfAbsent(), Refused),
        (error(403, "AccessDenied"), IfAbsent(), Refused),
        (error(403, "SignatureDoesNotMatch"), IfAbsent(), Refused),
        (error(400, "InvalidRequest"), IfAbsent(), Refused),
        (Reply(418, body=b"not xml at all"), IfAbsent(), Refused),
    ],
)
async def test_an_answer_to_a_write_is_classified_and_the_request_is_sent_once(
    reply: Reply, condition: Condition, expected: type
) -> None:
    async with faulty_server([reply, WON]) as server, store_at(server) as store:
        outcome = await store.write(URI, b"body", condition)

    assert type(outcome) is expected, outcome
    assert len(server.received) == 1


@pytest.mark.parametrize(
    "reply, expected",
    [
        (Reply(200, (("ETag", ETAG),), b"body"), Found),
        (Reply(200, (), b"body"), Unknown),
        (error(404, "NoSuchKey"), Absent),
        (error(404, "NoSuchBucket"), Refused),
        (error(403, "AccessDenied"), Refused),
        (error(503, "SlowDown"), Throttled),
        (error(500, "InternalError"), Unknown),
        (Reply(200, (("ETag", ETAG),), b"bo", fault="cut"), Unknown),
        (Reply(404, (), b"<Error><Code>NoSu", fault="cut"), Unknown),
        (Reply(200, (("ETag", ETAG),), b"x" * (MAX_OBJECT_BYTES + 1)), Refused),
    ],
)
async def test_an_answer_to_a_read_is_classified_and_the_request_is_sent_once(
    reply: Reply, expected: type
) -> None:
    async with (
        faulty_server([reply, Reply(200, (("ETag", ETAG),), b"second")]) as server,
        store_at(server) as store,
    ):
        outcome = await store.read(URI)

    assert type(outcome) is expected, outcome
    assert len(server.received) == 1


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("connection", ["new", "pooled"])
async def test_a_write_without_an_answer_is_unknown_and_never_sent_again(fault: str, connection: str) -> None:
    """The store acted and the answer was lost. aiohttp alone would send the PUT again and report 412."""
    broken = Reply(fault=fault)  # type: ignore[arg-type]
    script = (
        [WON, broken, error(412, "PreconditionFailed")]
        if connection == "pooled"
        else [broken, error(412, "PreconditionFailed")]
    )
    async with faulty_server(script) as server, store_at(server, seconds=1.0) as store:
        if connection == "pooled":
            assert await store.write(URI, b"first", IfAbsent()) == Won(ETAG)
        sent_before = len(server.received)
        outcome = await store.write(URI, b"body", IfMatch(ETAG))

    assert isinstance(outcome, Unknown), outcome
    assert len(server.received) == sent_before + 1


@pytest.mark.parametrize("fault", [*BROKEN, "hang"])
async def test_a_read_without_a_whole_answer_is_unknown(fault: str) -> None:
    reply = Reply(200, (("ETag", ETAG),), b"half", fault=fault)  # type: ignore[arg-type]
    async with faulty_server([reply]) as server, store_at(server, seconds=0.5) as store:
        outcome = await store.read(URI)

    assert isinstance(outcome, Unknown), outcome
    assert len(server.received) == 1


async def test_a_redirect_is_not_followed_to_somebody_elses_200() -> None:
    """A login page or a proxy answers 303 to everything; behind it a GET finds a 200 with an ETag."""
    redirect = Reply(303, (("Location", "/bucket/locks/elsewhere"),))
    async with faulty_server([redirect, WON]) as server, store_at(server) as store:
        outcome = await store.write(URI, b"body", IfAbsent())

    assert isinstance(outcome, Refused), outcome
    assert [received.path for received in server.received] == ["/bucket/locks/t.json"]


async def test_a_request_is_given_up_within_its_timeout() -> None:
    async with faulty_server([Reply(fault="silence")]) as server, store_at(server, seconds=0.3) as store:
        started = anyio.current_time()
        written = await store.write(URI, b"body", IfAbsent())
        read = await store.read(URI)
        await store.delete("s3://bucket/.lakewarden-probe/k")
        took = anyio.current_time() - started

    assert isinstance(written, Unknown)
    assert isinstance(read, Unknown)
    assert took < 3 * 0.3 + 1.0


async def test_nobody_listening_is_unknown() -> None:
    async with faulty_server([WON]) as server:
        gone = server
    async with store_at(gone, seconds=2.0) as store:
        assert isinstance(await store.write(URI, b"body", IfAbsent()), Unknown)
        assert isinstance(await store.read(URI), Unknown)


async def test_missing_credentials_are_refused_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    nothing = str(tmp_path_factory.mktemp("aws") / "none")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", nothing)
    monkeypatch.setenv("AWS_CONFIG_FILE", nothing)
    async with faulty_server([WON]) as server, store_at(server) as store:
        outcome = await store.write(URI, b"body", IfAbsent())

    assert isinstance(outcome, Refused)
    assert "credentials" in outcome.why
    assert server.received == []


async def test_conditions_and_body_go_out_as_they_are() -> None:
    """Plain: no trailing checksums, no chunks, one header for the condition."""
    async with faulty_server([WON]) as server, store_at(server) as store:
        await store.write(URI, b"body", IfAbsent())
        await store.write(URI, b"other", IfMatch(ETAG))

    first, second = server.received
    assert (first.method, first.path, first.body) == ("PUT", "/bucket/locks/t.json", b"body")
    assert first.headers["if-none-match"] == "*"
    assert "if-match" not in first.headers
    assert second.headers["if-match"] == ETAG
    assert "if-none-match" not in second.headers
    for received in (first, second):
        assert not [name for name in received.headers if "checksum" in name or "trailer" in name]
        assert "transfer-encoding" not in received.headers
        assert "expect" not in received.headers


async def test_cancellation_passes_through_a_request() -> None:
    async with faulty_server([Reply(fault="silence")]) as server, store_at(server) as store:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(store.write, URI, b"body", IfAbsent())
                while not server.received:
                    await anyio.sleep(0.01)
                scope.cancel()

    assert scope.cancelled_caught
