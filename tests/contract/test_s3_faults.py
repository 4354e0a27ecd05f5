"""What goes wrong between the S3 store and its server beyond a single answer: connections that break, hang and are reused.

Each request must reach the server **once**: botocore and aiohttp both resend by themselves unless they are told not
to, and the second attempt would meet the first one's write as a 412.
"""

from __future__ import annotations

import contextlib
import socket
from collections import Counter
from collections.abc import Iterator
from typing import Literal

import anyio
import anyio.lowlevel
import pytest

from lakewarden.agent.stores.port import MAX_OBJECT_BYTES
from lakewarden.agent.stores.s3 import S3Options, S3Store
from lakewarden.handlers.lease.conditional import IfAbsent, IfMatch, Unknown, Won
from tests.servers.faulty_http import FaultyServer, Reply, faulty_server

URI = "s3://bucket/locks/t.json"
BEFORE = '"0cc175b9c0f1b6a831c399e269772661"'
ETAG = '"9dd4e461268c8034f5c8564e155c67a6"'
WON = Reply(200, (("ETag", ETAG),))
FAILED = Reply(412)

Broken = Literal["reset-unread", "reset", "close", "half-head", "silence"]


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.delenv("AWS_PROFILE", raising=False)


def store_at(server: FaultyServer, seconds: float = 20.0) -> S3Store:
    options = S3Options(endpoint_url=server.endpoint, region="us-east-1")
    return S3Store(options, request_timeout_seconds=seconds)


@pytest.mark.parametrize("fault", ["reset-unread", "reset", "close", "half-head", "silence"])
async def test_a_write_that_breaks_on_a_reused_connection_is_unknown_and_never_sent_again(
    fault: Broken,
) -> None:
    """The store acted and the answer was lost. aiohttp alone would send the PUT again and report the 412."""
    seconds = 2.0 if fault == "silence" else 20.0
    async with (
        faulty_server([WON, Reply(fault=fault), FAILED]) as server,
        store_at(server, seconds) as store,
    ):
        first = await store.write(URI, b"first", IfAbsent())
        second = await store.write(URI, b"second", IfMatch(BEFORE))

    assert first == Won(ETAG)
    assert isinstance(second, Unknown), second
    assert len(server.received) == 2
    assert server.connections == 1


async def test_a_connection_that_breaks_while_the_body_is_sent_is_unknown() -> None:
    body = b"x" * MAX_OBJECT_BYTES
    async with faulty_server([Reply(fault="reset-unread"), FAILED]) as server, store_at(server) as store:
        outcome = await store.write(URI, body, IfMatch(BEFORE))

    assert isinstance(outcome, Unknown), outcome
    assert len(server.received) == 1


async def test_an_idle_connection_that_closes_as_a_request_is_sent_never_sends_it_twice() -> None:
    """Servers close idle connections without asking. The request either takes a new one or is lost with the old."""
    async with (
        faulty_server([Reply(200, WON.headers, fault="close-after")]) as server,
        store_at(server) as store,
    ):
        outcomes = []
        for number in range(100):
            outcomes.append(await store.write(URI, b"%d" % number, IfMatch(BEFORE)))
            for _ in range(number % 5):
                await anyio.lowlevel.checkpoint()

    assert all(isinstance(outcome, Won | Unknown) for outcome in outcomes)
    assert any(isinstance(outcome, Won) for outcome in outcomes)
    assert max(Counter(received.body for received in server.received).values()) == 1


async def test_an_answer_that_nobody_asked_for_is_not_taken_for_the_next_one() -> None:
    """A proxy that mixes up its connections; the second write is told 412, whatever lies in the connection."""
    script = [Reply(200, WON.headers, fault="twice"), FAILED]
    async with faulty_server(script) as server, store_at(server) as store:
        first = await store.write(URI, b"first", IfAbsent())
        second = await store.write(URI, b"second", IfAbsent())

    assert first == Won(ETAG)
    assert not isinstance(second, Won)
    assert len(server.received) <= 2


async def test_nobody_listening_is_unknown() -> None:
    async with faulty_server([WON]) as server:
        gone = server
    async with store_at(gone) as store:
        assert isinstance(await store.write(URI, b"body", IfAbsent()), Unknown)
        assert isinstance(await store.read(URI), Unknown)


@pytest.fixture
def deaf_port() -> Iterator[int]:
    """Where a connection is never accepted: the listener's queue is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.settimeout(0)
            waiting.connect_ex(("127.0.0.1", port))
        yield port


async def test_a_connection_that_is_never_made_is_unknown(deaf_port: int) -> None:
    options = S3Options(endpoint_url=f"http://127.0.0.1:{deaf_port}", region="us-east-1")
    async with S3Store(options, request_timeout_seconds=2) as store:
        outcome = await store.write(URI, b"body", IfAbsent())

    assert isinstance(outcome, Unknown)
    assert "ConnectTimeoutError" in outcome.why


async def test_a_cancelled_request_closes_its_connection_and_leaves_the_client_usable() -> None:
    """Its answer, which may still come, must not be read by the request after it."""
    script = [WON, Reply(fault="silence"), Reply(200, (("ETag", BEFORE),))]
    async with faulty_server(script) as server, store_at(server) as store:
        await store.write(URI, b"first", IfAbsent())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.write, URI, b"second", IfAbsent())
            while len(server.received) < 2:
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        while not server.closed:
            await anyio.sleep(0.01)
        third = await store.write(URI, b"third", IfAbsent())

    assert third == Won(BEFORE)
    assert [received.body for received in server.received] == [b"first", b"second", b"third"]
    assert server.connections == 2


async def test_a_request_given_up_closes_its_connection_and_leaves_the_client_usable() -> None:
    script = [Reply(200, WON.headers, fault="drip"), Reply(200, (("ETag", BEFORE),))]
    async with faulty_server(script) as server, store_at(server, seconds=2) as store:
        first = await store.write(URI, b"first", IfAbsent())
        while not server.closed:
            await anyio.sleep(0.01)
        second = await store.write(URI, b"second", IfAbsent())

    assert isinstance(first, Unknown)
    assert "request_timeout_seconds=2" in first.why
    assert second == Won(BEFORE)


async def test_conditions_and_body_go_out_as_they_are() -> None:
    """Plain: no trailing checksums, no chunks, one header for the condition."""
    async with faulty_server([WON]) as server, store_at(server) as store:
        await store.write(URI, b"body", IfAbsent())
        await store.write(URI, b"other", IfMatch(BEFORE))

    first, second = server.received
    assert (first.method, first.path, first.body) == ("PUT", "/bucket/locks/t.json", b"body")
    assert first.headers["if-none-match"] == "*"
    assert "if-match" not in first.headers
    assert second.headers["if-match"] == BEFORE
    assert "if-none-match" not in second.headers
    for received in (first, second):
        assert not [name for name in received.headers if "checksum" in name or "trailer" in name]
        assert "transfer-encoding" not in received.headers
        assert "expect" not in received.headers
        assert received.headers["user-agent"].startswith("lakewarden ")
