"""A proxy before an object store or a Kafka broker. It injects faults, cuts the network, and holds, counts or delays requests.

A client's connection stays open, so that a JVM and pyarrow work through the proxy as without it. The proxy reads a request whole
before it forwards it, and passes answers on as they come. A request under `weather` gets one of these faults:

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

A test can change `weather`, the probability of faults, at any time. The seed determines all random choices. `injected` counts the
faults that were injected, not those that were drawn.

Before a broker (`kafka://…`), the proxy replaces the broker's address in answers by its own, so that clients stay here.
`drop_idle_seconds` drops idle connections as load balancers do: a dropped one stays open, and loses what its ends send.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit

T = TypeVar("T")

_CHUNK_BYTES: Final = 65_536
_MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""Far beyond any lock object; a longer answer to a request with a fault is an error of the test."""


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
    """A request as the client sent it. Before Kafka: some bytes, without a head."""

    head: bytes
    body: bytes

    @property
    def method(self) -> str:
        return self.head.partition(b" ")[0].decode()

    @property
    def path(self) -> str:
        return self.head.split(b" ", 2)[1].decode("latin-1")

    @property
    def raw(self) -> bytes:
        return self.head + self.body

    @property
    def closing(self) -> bytes:
        """The same, but the server closes the connection after its answer: the end of the connection is the end of the answer."""
        head = re.sub(rb"(?i)\r\nconnection:[^\r]*", b"", self.head)
        return head[:-2] + b"Connection: close\r\n\r\n" + self.body


@dataclass(frozen=True, slots=True)
class Cut:
    """What cuts the network, and for how long. While it is cut, each connection is reset, old or new."""

    request: re.Pattern[bytes]
    """Matched against the head of a request."""
    answered: bool
    """Whether the server has acted on that request and answered. The client never learns of it either way."""
    seconds: float


@dataclass(slots=True)
class Refusal:
    """Requests that get another answer than the server's. They never reach it, unless the first one takes place."""

    request: re.Pattern[bytes]
    """Matched against the head of a request."""
    status: int | None
    """None: the connection is closed without an answer."""
    times: int
    body: str = ""
    takes_place: bool = False
    later: re.Pattern[bytes] | None = None
    """Matched instead, once a request has been refused."""
    refused: int = 0
    hidden: bytes = b""
    """The server's answer to the first one."""


@dataclass(slots=True, eq=False)
class Connection:
    """A client's connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    server: asyncio.StreamWriter | None = None
    """The connection to the server, opened with the first request that is forwarded."""
    cut: Cut | None = None
    """Cuts the network when the server answers."""
    used_at: float = field(default_factory=time.monotonic)
    """When bytes passed last, on the monotonic clock."""
    dropped: bool = False

    def reset(self) -> None:
        """Close with RST, and discard buffered data."""
        connection = self.writer.get_extra_info("socket")
        if connection is not None and not self.writer.transport.is_closing():
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.writer.transport.abort()
        if self.server is not None:
            self.server.transport.abort()


@dataclass(slots=True, eq=False)
class Hold:
    """Requests that are held back before the server has received them, until the hold is released."""

    matches: Callable[[Request], bool]
    hangs: bool
    """Whether all matching requests are caught, and get no answer at all. Else the first one is, and is forwarded afterwards."""
    loop: asyncio.AbstractEventLoop
    caught: list[Request] = field(default_factory=list)
    waiting: set[Connection] = field(default_factory=set)
    """Connections of clients that still wait for an answer."""
    served_meanwhile: int = 0
    """Other requests that were served while a client waited."""
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def release(self) -> None:
        """End the hold."""
        self.loop.call_soon_threadsafe(self.over.set)


class Proxy:
    """Runs in a thread of its own, inside the `with`. Its methods may be called from any thread."""

    def __init__(
        self,
        upstream: str,
        *,
        seed: int = 0,
        timeout_seconds: float = 1.0,
        keep_alive: bool = True,
        drop_idle_seconds: float | None = None,
    ) -> None:
        """`timeout_seconds` of the clients scales delays. Without `keep_alive`, each request needs a connection of its own."""
        address = urlsplit(upstream)
        assert address.hostname is not None
        self._upstream = (address.hostname, address.port or 80)
        self._kafka = address.scheme == "kafka"
        self._random = random.Random(seed)
        self._timeout = timeout_seconds
        self._keep_alive = keep_alive
        self._drop_idle_seconds = drop_idle_seconds
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self._bursting: Fault | None = None
        self._deck: list[Fault] = []
        self._armed: Cut | None = None
        self._cut_until = 0.0
        self._refusal: Refusal | None = None
        self._holds: list[Hold] = []
        self.endpoint = ""
        self.port = 0
        self.weather = CALM
        self.requests: Counter[str] = Counter()
        """Requests so far, by method."""
        self.injected: Counter[Fault] = Counter()
        self.connections: set[Connection] = set()
        """Those that are open."""
        self.lost = 0
        """Connections that were used after they had been dropped."""
        self.cuts: list[Cut] = []
        """Those that have happened."""
        self.cut_at: list[float] = []
        """When they happened, in seconds since the epoch."""

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def arm(self, cut: Cut) -> None:
        """Cut the network at the next request that matches, once."""
        self._armed = cut

    @contextmanager
    def refusing(self, refusal: Refusal) -> Iterator[Refusal]:
        """Refuse such requests during the block."""
        self._refusal = refusal
        try:
            yield refusal
        finally:
            self._refusal = None

    @contextmanager
    def holding(
        self, matches: Callable[[Request], bool] = lambda _: True, *, hangs: bool = False
    ) -> Iterator[Hold]:
        """Hold the first matching request back, and forward it once the hold is released, or with the end of the block."""
        hold = Hold(matches, hangs, self._loop)
        self._holds.append(hold)
        try:
            yield hold
        finally:
            self._holds.remove(hold)
            hold.release()

    def hanging(self, matches: Callable[[Request], bool] = lambda _: True) -> AbstractContextManager[Hold]:
        """Answer no matching request during the block. After the block, half of them are forwarded, far too late."""
        return self.holding(matches, hangs=True)

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    async def _stop(self) -> None:
        self._server.close()
        self._reset_all()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task of its own: asyncio logs an error for each one of the server's that is cancelled.
        self._start(self._serve(Connection(reader, writer)))

    def _start(self, call: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _serve(self, connection: Connection) -> None:
        self.connections.add(connection)
        try:
            while time.monotonic() >= self._cut_until:
                request = await self._receive(connection)
                if not self._is_dropped(connection) and not await self._handle(connection, request):
                    return
            connection.reset()
        except asyncio.IncompleteReadError:
            pass  # the client has closed its connection
        except OSError:
            connection.reset()
        finally:
            self.connections.discard(connection)
            connection.writer.close()
            if connection.server is not None:
                connection.server.close()

    async def _receive(self, connection: Connection) -> Request:
        """Read a request. A client that asks before it sends its body is answered here: it would wait a second for the server."""
        reader = connection.reader
        if self._kafka:
            chunk = await reader.read(_CHUNK_BYTES)
            if not chunk:
                raise asyncio.IncompleteReadError(chunk, None)
            return Request(b"", chunk)
        head = await reader.readuntil(b"\r\n\r\n")
        if (asked := re.search(rb"(?i)\r\nexpect: 100-continue(?=\r\n)", head)) is not None:
            connection.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            head = head.replace(asked.group(), b"")
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        return Request(head, await reader.readexactly(int(length[1]) if length else 0))

    async def _handle(self, connection: Connection, request: Request) -> bool:
        """Return whether the connection stays open."""
        self.requests[request.method] += 1
        if (cut := self._armed) is not None and cut.request.match(request.head):
            self._armed = None
            if not cut.answered:
                self._begin(cut)
                return False
            connection.cut = cut
        for hold in tuple(self._holds):
            if not hold.matches(request) or (hold.caught and not hold.hangs):
                hold.served_meanwhile += bool(hold.waiting)
            elif not await self._hold(connection, hold, request):
                return False
        if (refusal := self._refusal) is not None and refusal.request.match(request.head):
            refusal.refused += 1
            if refusal.refused == refusal.times:
                self._refusal = None
            refusal.request = refusal.later or refusal.request
            if refusal.takes_place and refusal.refused == 1:
                refusal.hidden = await self._whole_answer(request)
            if refusal.status is not None:
                await self._send(connection, _answer(refusal.status, refusal.body))
            return False
        if (fault := self._draw()) is not None:
            self.injected[fault] += 1
            await self._inject(fault, connection, request)
            return False
        if connection.server is None:
            answers, connection.server = await asyncio.open_connection(*self._upstream)
            self._start(self._relay(connection, answers))
        connection.server.write(request.raw if self._keep_alive or self._kafka else request.closing)
        await connection.server.drain()
        return True

    async def _hold(self, connection: Connection, hold: Hold, request: Request) -> bool:
        async def watch() -> None:
            with suppress(OSError):
                await connection.reader.read(1)  # ends when the client closes: it sends nothing more
            hold.waiting.discard(connection)

        hold.waiting.add(connection)
        hold.caught.append(request)
        if not hold.hangs:
            await hold.over.wait()
            return True
        self.injected[Fault.HANG] += 1
        watching = self._start(watch())
        await hold.over.wait()
        watching.cancel()
        if self._random.random() < 0.5:
            await self._whole_answer(request)
        connection.reset()
        return False

    async def _inject(self, fault: Fault, connection: Connection, request: Request) -> None:
        match fault:
            case Fault.CUT_BEFORE:
                connection.reset()
            case Fault.CUT_AFTER:
                await self._whole_answer(request)
                connection.reset()
            case Fault.RESET_MID:
                answer = await self._whole_answer(request)
                await self._send(connection, answer[: len(answer) // 2])
                connection.reset()
            case Fault.ERROR_AFTER:
                await self._whole_answer(request)
                await self._send(connection, _error(*_ERRORS[fault]))
            case Fault.DELAY_SHORT:
                await self._delayed(connection, request, self._random.uniform(0.1, 0.4) * self._timeout)
            case Fault.DELAY_LONG:
                await self._delayed(connection, request, self._random.uniform(1.2, 2.5) * self._timeout)
            case _:
                await self._send(connection, _error(*_ERRORS[fault]))

    async def _delayed(self, connection: Connection, request: Request, seconds: float) -> None:
        """Delay either the request or the answer."""
        delay_request = self._random.random() < 0.5
        await asyncio.sleep(seconds if delay_request else 0)
        answer = await self._whole_answer(request)
        await asyncio.sleep(0 if delay_request else seconds)
        await self._send(connection, answer)

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

    async def _whole_answer(self, request: Request) -> bytes:
        reader, writer = await asyncio.open_connection(*self._upstream)
        try:
            writer.write(request.closing)
            await writer.drain()
            answer = await reader.read(-1)
            if not answer or len(answer) > _MAX_ANSWER_BYTES:
                raise ConnectionError(f"no answer to relay: bytes={len(answer)}")
            return answer
        finally:
            writer.close()

    async def _relay(self, connection: Connection, answers: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while chunk := await answers.read(_CHUNK_BYTES):
                if self._is_dropped(connection):
                    continue
                if connection.cut is not None:
                    self._begin(connection.cut)
                    return
                if self._kafka:
                    chunk = chunk.replace(_wire_address(self._upstream[1]), _wire_address(self.port))
                await self._send(connection, chunk)
        connection.writer.close()

    @staticmethod
    async def _send(connection: Connection, answer: bytes) -> None:
        connection.writer.write(answer)
        await connection.writer.drain()

    def _is_dropped(self, connection: Connection) -> bool:
        """Whether bytes that arrive now on the connection are lost."""
        now = time.monotonic()
        idle, connection.used_at = now - connection.used_at, now
        if self._drop_idle_seconds is not None and idle > self._drop_idle_seconds and not connection.dropped:
            connection.dropped = True
            self.lost += 1
        return connection.dropped

    def _begin(self, cut: Cut) -> None:
        self._cut_until = time.monotonic() + cut.seconds
        self.cut_at.append(time.time())
        self.cuts.append(cut)
        self._reset_all()

    def _reset_all(self) -> None:
        for connection in self.connections:
            connection.reset()


def _wire_address(port: int) -> bytes:
    """As Kafka's answers name a broker on this machine."""
    return b"127.0.0.1" + struct.pack(">i", port)


def _error(status: int, code: str) -> bytes:
    return _answer(
        status, f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>injected</Message></Error>"
    )


def _answer(status: int, body: str) -> bytes:
    head = f"HTTP/1.1 {status} Injected\r\ncontent-type: application/xml\r\ncontent-length: {len(body)}\r\n"
    return f"{head}connection: close\r\n\r\n{body}".encode()
