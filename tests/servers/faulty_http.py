"""An HTTP server that answers from a script and injects faults, to test clients of object stores.

Each request gets the next `Reply` of the script. The server records every request, so that a test can count them.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.stapled import MultiListener
from anyio.streams.tls import TLSListener

_MAX_HEAD_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of the script, and its fault.

    | fault | effect |
    | --- | --- |
    | `reset-unread` | resets the connection before it reads the request's body |
    | `reset` | resets the connection after it has read the body (a store may have acted) |
    | `close` | closes the connection after it has read the body |
    | `silence` | sends nothing and keeps the connection open |
    | `cut` | announces a longer body than it sends, then closes |
    | `half-head` | sends half of the headers, then closes |
    | `hang` | announces a longer body than it sends, and keeps the connection open |
    | `drip` | sends a body that never ends, byte by byte |
    | `drip-head` | sends headers that never end |
    | `twice` | sends the answer twice |
    | `close-after` | sends the answer and closes, without announcing it in a header |
    """

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    fault: Literal[
        "none",
        "reset-unread",
        "reset",
        "close",
        "silence",
        "cut",
        "half-head",
        "hang",
        "drip",
        "drip-head",
        "twice",
        "close-after",
    ] = "none"
    framing: Literal["length", "chunked", "until closed"] = "length"
    """How the end of the body is marked."""


WRITTEN = Reply(headers=(("ETag", '"1"'),))
ABSENT = Reply(404, body=b"<Error><Code>NoSuchKey</Code></Error>")
"""What S3 answers to a write, and to a read of what isn't there."""


@dataclass(frozen=True, slots=True)
class Received:
    """The part of a request that the server has read."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class FaultyServer:
    """A running server: its endpoint, its script, and what it has received."""

    endpoint: str
    script: list[Reply]
    received: list[Received] = field(default_factory=list)
    connections: int = 0
    """Connections accepted so far."""
    closed: int = 0
    """Connections that have ended."""

    @property
    def port(self) -> int:
        """The port, for a client that uses another host name."""
        return int(self.endpoint.rpartition(":")[2])


@asynccontextmanager
async def faulty_server(
    script: Sequence[Reply], *, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[FaultyServer]:
    """Run a server that sends one reply of the script per request. The last reply answers all further requests."""
    tcp = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = tcp.extra(SocketAttribute.local_port)
    server = FaultyServer(f"{'https' if tls else 'http'}://127.0.0.1:{port}", list(script))
    listener: MultiListener[SocketStream] | TLSListener = (
        TLSListener(tcp, tls, standard_compatible=False) if tls else tcp
    )

    async def handle(stream: ByteStream) -> None:
        server.connections += 1
        try:
            async with stream:
                with suppress(
                    anyio.EndOfStream,
                    anyio.IncompleteRead,
                    anyio.BrokenResourceError,
                    anyio.ClosedResourceError,
                ):
                    await _serve(stream, server)
        finally:
            server.closed += 1

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, handle)
        yield server
        tasks.cancel_scope.cancel()


async def _serve(stream: ByteStream, server: FaultyServer) -> None:
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


async def _answer(stream: ByteStream, reply: Reply) -> bool:
    """Send the reply; returns whether the connection stays open."""
    head, body = _encoded(reply)
    match reply.fault:
        case "none":
            await stream.send(head + body)
            return reply.framing != "until closed"
        case "twice":
            await stream.send((head + body) * 2)
            return True
        case "close-after":
            await stream.send(head + body)
        case "reset" | "reset-unread":
            _reset_when_closed(stream)
        case "close":
            pass
        case "silence":
            await _wait_for_close(stream)
        case "cut":
            await stream.send(head + body)
        case "hang":
            await stream.send(head + body)
            await _wait_for_close(stream)
        case "half-head":
            await stream.send(head[: len(head) // 2])
        case "drip":
            await stream.send(head)
            await _drip(stream, b"x")
        case "drip-head":
            await stream.send(head.removesuffix(b"\r\n"))
            await _drip(stream, b"x-more: x\r\n")
    return False


def _encoded(reply: Reply) -> tuple[bytes, bytes]:
    lines = [f"HTTP/1.1 {reply.status} Status", *(f"{name}: {value}" for name, value in reply.headers)]
    body = reply.body
    match reply.framing:
        case "length":
            missing = 1_000_000 if reply.fault == "drip" else 100 if reply.fault in {"cut", "hang"} else 0
            lines.append(f"content-length: {len(body) + missing}")
        case "chunked":
            lines.append("transfer-encoding: chunked")
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            body = chunk + (b"" if reply.fault in {"cut", "hang"} else b"0\r\n\r\n")
        case "until closed":
            lines.append("connection: close")
    return "\r\n".join([*lines, "", ""]).encode(), body


async def _drip(stream: ByteStream, piece: bytes) -> None:
    while True:
        await stream.send(piece)
        await anyio.sleep(0.02)


async def _wait_for_close(stream: ByteStream) -> None:
    """Wait until the client has closed the connection."""
    while True:
        await stream.receive()


def _reset_when_closed(stream: ByteStream) -> None:
    """Close with a reset, as a crashed server or a firewall does."""
    plain: socket.socket = stream.extra(SocketAttribute.raw_socket)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
