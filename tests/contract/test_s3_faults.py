"""Connections between the S3 store and its server that break, hang or are reused, beyond what `test_cloud_connection.py` has.

Each request must reach the server **once**. botocore and aiohttp resend by default, and a resent write would get a 412 for
its own first attempt.
"""

import contextlib
import socket
from collections import Counter
from collections.abc import Iterator

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


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.delenv("AWS_PROFILE", raising=False)


def store_at(server: FaultyServer, seconds: float = 60.0) -> S3Store:
    options = S3Options(endpoint_url=server.endpoint)
    return S3Store(options, request_timeout_seconds=seconds)


async def test_a_connection_that_breaks_while_the_body_is_sent_is_unknown() -> None:
    body = b"x" * MAX_OBJECT_BYTES
    async with faulty_server([Reply(fault="reset-unread"), FAILED]) as server, store_at(server) as store:
        outcome = await store.write(URI, body, IfMatch(BEFORE))

    assert isinstance(outcome, Unknown), outcome
    assert len(server.received) == 1


async def test_a_request_is_never_sent_twice_when_its_idle_connection_closes() -> None:
    """Servers close idle connections. The request either uses a new connection or is lost with the old one."""
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


async def test_a_surplus_answer_is_not_used_for_the_next_request() -> None:
    """A proxy confuses its connections and sends the first answer twice. The second write must not win by it."""
    script = [Reply(200, WON.headers, fault="twice"), FAILED]
    async with faulty_server(script) as server, store_at(server) as store:
        first = await store.write(URI, b"first", IfAbsent())
        second = await store.write(URI, b"second", IfAbsent())

    assert first == Won(ETAG)
    assert not isinstance(second, Won)
    assert len(server.received) <= 2


@pytest.fixture
def blocked_port() -> Iterator[int]:
    """A port on which no connection is accepted, because the listener's backlog is full."""
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


async def test_a_connection_that_is_never_accepted_is_unknown(blocked_port: int) -> None:
    options = S3Options(endpoint_url=f"http://127.0.0.1:{blocked_port}")
    async with S3Store(options, request_timeout_seconds=2) as store:
        # On a busy machine the request's timeout may end together with the connection's, and the reason is that one.
        while True:
            outcome = await store.write(URI, b"body", IfAbsent())
            assert isinstance(outcome, Unknown)
            if "ConnectTimeoutError" in outcome.why:
                break


async def test_a_cancelled_request_closes_its_connection_and_leaves_the_client_usable() -> None:
    """The next request must not read the late answer of the cancelled one."""
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


async def test_a_request_that_times_out_closes_its_connection_and_leaves_the_client_usable() -> None:
    script = [Reply(200, WON.headers, fault="drip"), Reply(200, (("ETag", BEFORE),))]
    async with faulty_server(script) as server, store_at(server, seconds=2) as store:
        first = await store.write(URI, b"first", IfAbsent())
        while server.closed < server.connections:
            await anyio.sleep(0.01)
        # On a busy machine this one, too, may exceed the timeout.
        while isinstance(second := await store.write(URI, b"second", IfAbsent()), Unknown):
            pass

    assert isinstance(first, Unknown)
    assert "request_timeout_seconds=2" in first.why
    assert second == Won(BEFORE)


async def test_condition_and_body_are_sent_unchanged() -> None:
    """No trailing checksums, no chunks, one header for the condition."""
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
