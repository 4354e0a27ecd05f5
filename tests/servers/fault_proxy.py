"""A proxy in front of an S3 server that injects faults, before or after the store acts.

It forwards whole requests and whole answers, each request over its own connection, so that a fault is exactly one of:

| fault | did the store act? | what the client receives |
| --- | --- | --- |
| `CUT_BEFORE` | no | a reset instead of an answer |
| `CUT_AFTER` | yes | a reset instead of an answer |
| `RESET_MID` | yes | a reset in the middle of the answer |
| `DELAY_SHORT` | yes | the answer, late but within its timeout |
| `DELAY_LONG` | yes, perhaps after the client's timeout | nothing within its timeout |
| `SLOW_DOWN` | no | 503 SlowDown |
| `EXPIRED` | no | 400 ExpiredToken |
| `ERROR_BEFORE` | no | 500 InternalError |
| `ERROR_AFTER` | yes | 500 InternalError |
| `HANG` | no, or much later | nothing, until the test ends the hang (`hanging`) |

`weather` is the probability of faults from now on; a test may change it at any time. The seed determines all random choices.
`injected` counts the faults that were injected, not those that were drawn.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

import anyio

_MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""Far beyond any lock object; a longer answer is an error of the test."""


class Fault(StrEnum):
    """See the table above."""

    CUT_BEFORE = "cut-before"
    CUT_AFTER = "cut-after"
    RESET_MID = "reset-mid"
    DELAY_SHORT = "delay-short"
    DELAY_LONG = "delay-long"
    SLOW_DOWN = "slow-down"
    EXPIRED = "expired"
    ERROR_BEFORE = "error-before"
    ERROR_AFTER = "error-after"
    HANG = "hang"


CHANCE_FAULTS: Final = tuple(fault for fault in Fault if fault is not Fault.HANG)
"""The faults that are drawn at random. A test starts and ends a hang explicitly."""

_ERRORS: Final = {
    Fault.SLOW_DOWN: (503, "SlowDown"),
    Fault.EXPIRED: (400, "ExpiredToken"),
    Fault.ERROR_BEFORE: (500, "InternalError"),
    Fault.ERROR_AFTER: (500, "InternalError"),
}


@dataclass(frozen=True, slots=True)
class Weather:
    """Probabilities of faults: a request gets one with probability `share`, and the next one the same with `burst`."""

    share: float
    burst: float = 0.4
    faults: tuple[Fault, ...] = CHANCE_FAULTS


CALM: Final = Weather(share=0.0, burst=0.0)


@dataclass(frozen=True, slots=True)
class Request:
    """A request as the client sent it."""

    method: str
    path: str
    raw: bytes


@dataclass(slots=True)
class Hang:
    """Matching requests get no answer until the hang ends."""

    matches: Callable[[Request], bool]
    caught: list[Request] = field(default_factory=list)
    first: anyio.Event = field(default_factory=anyio.Event)
    """Set with the first caught request."""
    waiting: set[asyncio.StreamReader] = field(default_factory=set)
    """Connections of clients that still wait for an answer."""
    served_while_hanging: int = 0
    """Other requests that were served while a client waited."""
    over: anyio.Event = field(default_factory=anyio.Event)


class FaultProxy:
    """A running proxy: its endpoint, its `weather`, and what it has injected. Created by `fault_proxy`."""

    def __init__(self, upstream: str, seed: int, request_timeout_seconds: float) -> None:
        address = urlsplit(upstream)
        assert address.hostname is not None
        self._upstream = (address.hostname, address.port or 80)
        self._random = random.Random(seed)
        self._timeout = request_timeout_seconds
        self._bursting: Fault | None = None
        self._deck: list[Fault] = []
        self._hangs: list[Hang] = []
        self.endpoint = ""
        self.weather = CALM
        self.requests = 0
        self.injected: Counter[Fault] = Counter()

    @contextmanager
    def hanging(self, matches: Callable[[Request], bool] = lambda _: True) -> Iterator[Hang]:
        """Answer no matching request during the block. After the block, half of them are forwarded, far too late."""
        hang = Hang(matches)
        self._hangs.append(hang)
        try:
            yield hang
        finally:
            self._hangs.remove(hang)
            hang.over.set()

    async def handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection. It has one request, because the server's answer closes it."""
        try:
            await self._serve(await _receive(reader), reader, writer)
        except (asyncio.IncompleteReadError, OSError):
            _reset(writer)  # the client or the server has closed its connection
        finally:
            writer.close()

    async def _serve(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.requests += 1
        for hang in self._hangs:
            if hang.matches(request):
                await self._hang(hang, request, reader)
                _reset(writer)
                return
            hang.served_while_hanging += bool(hang.waiting)
        fault = self._draw()
        if fault is not None:
            self.injected[fault] += 1
        match fault:
            case Fault.CUT_BEFORE:
                _reset(writer)
            case Fault.CUT_AFTER:
                await self._forward(request)
                _reset(writer)
            case Fault.RESET_MID:
                answer = await self._forward(request)
                await _send(writer, answer[: len(answer) // 2])
                _reset(writer)
            case Fault.SLOW_DOWN | Fault.EXPIRED | Fault.ERROR_BEFORE:
                await _send(writer, _error(*_ERRORS[fault]))
            case Fault.ERROR_AFTER:
                await self._forward(request)
                await _send(writer, _error(*_ERRORS[fault]))
            case Fault.DELAY_SHORT:
                await self._forward_delayed(request, writer, self._random.uniform(0.1, 0.4) * self._timeout)
            case Fault.DELAY_LONG:
                await self._forward_delayed(request, writer, self._random.uniform(1.2, 2.5) * self._timeout)
            case _:
                await _send(writer, await self._forward(request))

    async def _forward_delayed(self, request: Request, writer: asyncio.StreamWriter, seconds: float) -> None:
        """Delay either the request or the answer."""
        delay_request = self._random.random() < 0.5
        await asyncio.sleep(seconds if delay_request else 0)
        answer = await self._forward(request)
        await asyncio.sleep(0 if delay_request else seconds)
        await _send(writer, answer)

    async def _hang(self, hang: Hang, request: Request, reader: asyncio.StreamReader) -> None:
        async def watch() -> None:
            with suppress(OSError):
                await reader.read(
                    1
                )  # returns when the client closes the connection, since it sends nothing more
            hang.waiting.discard(reader)

        self.injected[Fault.HANG] += 1
        hang.caught.append(request)
        hang.waiting.add(reader)
        hang.first.set()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            await hang.over.wait()
            tasks.cancel_scope.cancel()
        if self._random.random() < 0.5:
            await self._forward(request)

    def _draw(self) -> Fault | None:
        weather, again = self.weather, self._bursting
        if again in weather.faults and self._random.random() < weather.burst:
            return again
        begins = self._random.random() < weather.share
        self._bursting = self._next_fault(weather.faults) if begins else None
        return self._bursting

    def _next_fault(self, faults: tuple[Fault, ...]) -> Fault:
        """Draw without replacement, like cards, so that every fault occurs where many are drawn."""
        if not set(self._deck) & set(faults):
            self._deck = self._random.sample(faults, len(faults))
        return self._deck.pop(next(place for place, fault in enumerate(self._deck) if fault in faults))

    async def _forward(self, request: Request) -> bytes:
        """The server's whole answer."""
        reader, writer = await asyncio.open_connection(*self._upstream)
        try:
            writer.write(request.raw)
            await writer.drain()
            answer = await reader.read(-1)
            if not answer or len(answer) > _MAX_ANSWER_BYTES:
                raise ConnectionError(f"no answer to relay: bytes={len(answer)}")
            return answer
        finally:
            writer.close()


@asynccontextmanager
async def fault_proxy(
    upstream: str, *, seed: int, request_timeout_seconds: float
) -> AsyncGenerator[FaultProxy]:
    """Run a proxy on a free port, at first without faults. `request_timeout_seconds` of its clients scales the delays."""
    proxy = FaultProxy(upstream, seed, request_timeout_seconds)
    conversations: set[asyncio.Task[None]] = set()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # An own task for each connection, because the server does not cancel the tasks that it creates itself.
        task = asyncio.create_task(proxy.handle_connection(reader, writer))
        conversations.add(task)
        task.add_done_callback(conversations.discard)

    server = await asyncio.start_server(begin, "127.0.0.1", 0)
    proxy.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        for task in conversations:
            task.cancel()
        await asyncio.gather(*conversations, return_exceptions=True)


async def _receive(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
    method, path, _ = head[0].decode("latin-1").split(" ", 2)
    headers = [line for line in head[1:] if not line.lower().startswith(b"connection:")]
    length = next((line for line in headers if line.lower().startswith(b"content-length:")), b":0")
    body = await reader.readexactly(int(length.partition(b":")[2]))
    # The server closes the connection after its answer, so that the end of the connection is the end of the answer.
    raw = b"\r\n".join([head[0], *headers, b"Connection: close", b"", body])
    return Request(method, path, raw)


async def _send(writer: asyncio.StreamWriter, answer: bytes) -> None:
    writer.write(answer)
    await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close the connection with RST, and discard buffered data."""
    connection = writer.get_extra_info("socket")
    if connection is not None and not writer.transport.is_closing():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()


def _error(status: int, code: str) -> bytes:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
    head = f"HTTP/1.1 {status} Injected\r\ncontent-type: application/xml\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"connection: close\r\n\r\n" + body
