"""A proxy before an S3 server: it counts the requests, and delays each of them by a fixed time.

It is a separate process, so that its CPU time is not part of the measurement. It forwards one request of a connection at a time,
as HTTP clients send them, and returns the server's answers as they come.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
from collections import Counter
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import psutil

from lakewarden.agent.embedded.bound_child import bound

STOP_SECONDS = 10
CHUNK_BYTES = 65_536


class StoreProxy:
    """Runs inside the `with`. If this process is killed, it ends, too."""

    def __init__(self, upstream: str, *, delay_seconds: float = 0.0) -> None:
        self._arguments = ["--upstream", upstream, "--delay-seconds", str(delay_seconds)]
        self.endpoint = ""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            bound([sys.executable, "-m", __name__, *self._arguments]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.endpoint = f"http://127.0.0.1:{self._read()['port']}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def requests(self) -> Counter[str]:
        """The number of requests so far, by method."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return Counter(self._read())

    def cpu_seconds(self) -> float:
        """CPU time of the proxy since its start."""
        times = psutil.Process(self._process.pid).cpu_times()
        return times.user + times.system

    def _read(self) -> dict[str, int]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the proxy has ended: status={self._process.wait(STOP_SECONDS)}")
        return dict(json.loads(line))


class _Forwarder:
    def __init__(self, upstream: str, delay_seconds: float) -> None:
        address = urlsplit(upstream)
        assert address.hostname is not None
        self._address = (address.hostname, address.port or 80)
        self._delay = delay_seconds
        self.requests: Counter[str] = Counter()

    async def serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either side closes it."""
        answers, server = await asyncio.open_connection(*self._address)
        relaying = asyncio.create_task(_relay(answers, writer))
        try:
            while True:
                request = await _receive(reader, writer)
                self.requests[request.partition(b" ")[0].decode()] += 1
                await asyncio.sleep(self._delay)
                server.write(request)
                await server.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client or the server closed its connection
        finally:
            relaying.cancel()
            server.close()
            writer.close()


async def _receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Read one request. A client that asks before it sends its body is answered here: it would wait a second for the server."""
    head = await reader.readuntil(b"\r\n\r\n")
    if (asked := re.search(rb"\r\nexpect: 100-continue(?=\r\n)", head, re.IGNORECASE)) is not None:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        head = head.replace(asked.group(), b"")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return head + await reader.readexactly(int(lengths[0].partition(b":")[2]) if lengths else 0)


async def _relay(answers: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await answers.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    writer.close()


async def _serve(upstream: str, delay_seconds: float) -> None:
    forwarder = _Forwarder(upstream, delay_seconds)
    server = await asyncio.start_server(forwarder.serve_connection, "127.0.0.1", 0)
    _write_line({"port": server.sockets[0].getsockname()[1]})
    while await asyncio.to_thread(sys.stdin.readline):
        _write_line(forwarder.requests)
    server.close()


def _write_line(numbers: dict[str, int]) -> None:
    print(json.dumps(numbers), flush=True)


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--delay-seconds", type=float, required=True)
    options = parser.parse_args()
    asyncio.run(_serve(options.upstream, options.delay_seconds))


if __name__ == "__main__":
    _main()
