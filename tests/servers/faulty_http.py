"""An HTTP server that misbehaves on purpose, to see what an S3 client makes of it.

Every request takes the next `Reply` of the script and is remembered with what was read of it, so that a test can tell
one request from two.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

import anyio
from anyio.abc import SocketAttribute, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

_MAX_HEAD_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer, and how it goes wrong.

    `reset-unread` breaks before the body was read, `reset` after it (the store may have acted), `silence` keeps the
    connection open and says nothing, `cut` promises more body than it sends, `half-head` stops inside the
    headers, `hang` stops inside the body and keeps the connection.
    """

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    fault: Literal["none", "reset-unread", "reset", "silence", "cut", "half-head", "hang"] = "none"


@dataclass(frozen=True, slots=True)
class Received:
    """A request as far as it was read."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class FaultyServer:
    """Where it listens and what it has seen."""

    endpoint: str
    script: list[Reply]
    received: list[Received] = field(default_factory=list)


@asynccontextmanager
async def faulty_server(script: Sequence[Reply]) -> AsyncGenerator[FaultyServer]:
    """A server that plays the script, one reply a request, and the last one for all further requests."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)
    server = FaultyServer(f"http://127.0.0.1:{port}", list(script))

    async def handle(stream: SocketStream) -> None:
        async with stream:
            with suppress(
                anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError
            ):
                await _converse(stream, server)

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, handle)
        yield server
        tasks.cancel_scope.cancel()


async def _converse(stream: SocketStream, server: FaultyServer) -> None:
    buffered = BufferedByteReceiveStream(stream)
    while True:
        head = (await buffered.receive_until(b"\r\n\r\n", _MAX_HEAD_BYTES)).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ", 2)
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])
        }
        reply = server.script.pop(0) if len(server.script) > 1 else server.script[0]
        unread = reply.fault == "reset-unread"
        body = b"" if unread else await buffered.receive_exactly(int(headers.get("content-length", "0")))
        server.received.append(Received(method, path, headers, body))
        if not await _answer(stream, reply):
            return


async def _answer(stream: SocketStream, reply: Reply) -> bool:
    """Whether the connection goes on."""
    length = len(reply.body) + (100 if reply.fault in {"cut", "hang"} else 0)
    lines = [f"HTTP/1.1 {reply.status} Status", *(f"{name}: {value}" for name, value in reply.headers)]
    head = "\r\n".join([*lines, f"content-length: {length}", "", ""]).encode()
    match reply.fault:
        case "none":
            await stream.send(head + reply.body)
            return True
        case "reset" | "reset-unread":
            return False
        case "silence":
            await anyio.sleep_forever()
        case "cut":
            await stream.send(head + reply.body)
        case "hang":
            await stream.send(head + reply.body)
            await anyio.sleep_forever()
        case "half-head":
            await stream.send(head[: len(head) // 2])
    return False
