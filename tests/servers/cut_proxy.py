"""A proxy before an S3 server that cuts the network of its clients for a while, at a request that a test names.

It can also hold such a request back until the test releases it, or refuse requests of a kind. Before a Kafka broker it drops
idle connections, as load balancers do: a dropped one stays open, and what its ends send is lost without a word.

Unlike `fault_proxy` it forwards bytes as they come and keeps connections open, so that a JVM and pyarrow work through it as
without it. While the network is cut, it resets each connection, old or new. It runs in a thread.
"""

from __future__ import annotations

import asyncio
import re
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

_CHUNK_BYTES: Final = 65_536
_STOP_SECONDS: Final = 2.0
_ERROR: Final = b"HTTP/1.1 %d Refused\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Cut:
    """What cuts the network, and for how long."""

    request: re.Pattern[bytes]
    """Matched against the first line of a request."""
    answered: bool
    """Whether the server has acted on that request and answered. The client never learns of it either way."""
    seconds: float


@dataclass(slots=True)
class Refusal:
    """Requests that get an error as their answer, and never reach the server."""

    head: re.Pattern[bytes]
    """Found in the head of a request."""
    status: int
    times: int
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Hold:
    """A request that is held back before the server has received it."""

    request: re.Pattern[bytes]
    """Matched against the first line of a request."""
    reached: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True, eq=False)
class Connection:
    """A client's connection."""

    used_at: float
    """When bytes passed last, on the monotonic clock."""
    dropped: bool = False


class CutProxy:
    """Runs inside the `with`. Its methods may be called from any thread."""

    def __init__(self, upstream: str, *, drop_idle_seconds: float | None = None) -> None:
        """Before a broker (`kafka://…`), its address in its answers is replaced by the proxy's own, so that clients stay here."""
        address = urlsplit(upstream)
        self._kafka = address.scheme == "kafka"
        self._drop_idle_seconds = drop_idle_seconds
        self.connections: set[Connection] = set()
        """Those that are open."""
        self.lost = 0
        """Connections that were used after they had been dropped."""
        assert address.hostname is not None
        self._address = (address.hostname, address.port or 80)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cut-proxy", daemon=True)
        self._open: set[asyncio.StreamWriter] = set()
        self._armed: Cut | None = None
        self._hold: Hold | None = None
        self._refusal: Refusal | None = None
        self._cut_until = 0.0
        self.endpoint = ""
        self.cuts: list[Cut] = []
        """Those that have happened."""
        self.cut_at: list[float] = []
        """When they happened, in seconds since the epoch."""

    def __enter__(self) -> Self:
        self._thread.start()
        serving = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop
        )
        self._server = serving.result()
        self.port = self._server.sockets[0].getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def arm(self, cut: Cut) -> None:
        """Cut the network at the next request that matches, once."""
        self._armed = cut

    @contextmanager
    def holding(self, request: re.Pattern[bytes]) -> Iterator[Hold]:
        """Hold the first request back that matches. It is released by the test, or with the end of the block."""
        hold = self._hold = Hold(request)
        try:
            yield hold
        finally:
            self._hold = None
            hold.released.set()

    @contextmanager
    def refusing(self, refusal: Refusal) -> Iterator[Refusal]:
        """Refuse such requests during the block."""
        self._refusal = refusal
        try:
            yield refusal
        finally:
            self._refusal = None

    async def _stop(self) -> None:
        self._server.close()
        self._reset_all()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:  # they end with their connections; asyncio logs an error for each connection whose task is cancelled
            _, others = await asyncio.wait(others, timeout=_STOP_SECONDS)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if time.monotonic() < self._cut_until:
            writer.transport.abort()
            return
        answers, server = await asyncio.open_connection(*self._address)
        self._open |= {writer, server}
        # The cut that waits for the answer of this connection's request.
        pending: list[Cut] = []
        connection = Connection(time.monotonic())
        self.connections.add(connection)
        relaying = asyncio.create_task(self._relay(answers, writer, pending, connection))
        try:
            while chunk := await reader.read(_CHUNK_BYTES):
                if self._is_dropped(connection):
                    continue
                cut = self._armed
                if cut is not None and cut.request.match(chunk.partition(b"\r\n")[0]):
                    self._armed = None
                    if not cut.answered:
                        self._begin(cut)
                        return
                    pending.append(cut)
                hold = self._hold
                if hold is not None and hold.request.match(chunk.partition(b"\r\n")[0]):
                    self._hold = None
                    hold.reached.set()
                    await asyncio.to_thread(hold.released.wait)
                refusal = self._refusal
                if refusal is not None and refusal.head.search(chunk.partition(b"\r\n\r\n")[0]):
                    refusal.refused += 1
                    if refusal.refused == refusal.times:
                        self._refusal = None
                    writer.write(_ERROR % refusal.status)
                    await writer.drain()
                    return
                server.write(chunk)
                await server.drain()
        except ConnectionError:
            pass  # either side closed the connection, or it is cut
        finally:
            relaying.cancel()
            self.connections.discard(connection)
            self._open -= {writer, server}
            server.close()
            writer.close()

    def _is_dropped(self, connection: Connection) -> bool:
        """Whether bytes that arrive now on the connection are lost."""
        now = time.monotonic()
        idle, connection.used_at = now - connection.used_at, now
        if self._drop_idle_seconds is not None and idle > self._drop_idle_seconds and not connection.dropped:
            connection.dropped = True
            self.lost += 1
        return connection.dropped

    async def _relay(
        self,
        answers: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        pending: list[Cut],
        connection: Connection,
    ) -> None:
        while chunk := await answers.read(_CHUNK_BYTES):
            if self._is_dropped(connection):
                continue
            if self._kafka:
                chunk = chunk.replace(_wire_address(self._address[1]), _wire_address(self.port))
            if pending and not chunk.startswith(b"HTTP/1.1 100"):
                self._begin(pending.pop())
                return
            writer.write(chunk)
            await writer.drain()
        writer.close()

    def _begin(self, cut: Cut) -> None:
        self._cut_until = time.monotonic() + cut.seconds
        self.cut_at.append(time.time())
        self.cuts.append(cut)
        self._reset_all()

    def _reset_all(self) -> None:
        for each in self._open:
            each.transport.abort()


def _wire_address(port: int) -> bytes:
    """As Kafka's answers name a broker on this machine."""
    return b"127.0.0.1" + struct.pack(">i", port)
